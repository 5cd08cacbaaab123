"""The reference of scales that the result decides, for each group of neighbours along the last dim of dst.

By oneDNN's reference (ref_matmul.cpp): with `mx` the scale is the greatest power of two that is at most the group's
greatest absolute value, divided by that of the destination's type, at least 2^-127; an infinite value makes it NaN.
With `dynamic_fp` it is the greatest value divided by the type's greatest number, from 2^-3 to the greatest number of
the scale's type, to which it is rounded. NaNs have no part in the greatest value. Elements are multiplied by the
scale's reciprocal, and saturate.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convgen.problem.scales import Scale
from convgen.run import reference_types as types
from convgen.run.fills import Array
from convgen.run.ranges import Range
from convgen.run.reference_memory import Indices
from convgen.run.reference_types import numpy_type

Steps = Callable[[Indices], Range]  #: returns the range of columns of dst before their scales
Ranges = Callable[[Steps, Indices], Range]


def ranges(scale: Scale, dtype: str, size: int) -> tuple[Ranges, Ranges]:
    """Return functions that return the ranges of columns of the scales, and of columns of dst.

    dst has `size` columns of a type.
    """
    group, most = scale.groups[-1], types.limits(dtype)[1]
    rule = _powers if scale.mask == "mx" else _quotients

    def of_groups(steps: Steps, groups: Indices) -> tuple[Range, list[Array]]:
        """Return the ranges of all members of groups [row, group, member], and the least and greatest scales."""
        members = groups[:, None] * group + np.arange(group)
        exists = members < size
        values = steps(np.minimum(members, size - 1).ravel()).map(lambda x: x.reshape(len(x), *members.shape))
        sizes = [np.where(exists, np.abs(point), 0) for point in values.points()]
        bounds = [sizes[0]] if values.is_one else [np.fmin.reduce(sizes), np.fmax.reduce(sizes)]
        greatest = (np.fmax.reduce(bound, axis=-1, initial=0).astype(np.float32) for bound in bounds)
        return values, [rule(each, np.float32(most)).astype(numpy_type(scale.dtype)) for each in greatest]

    def scales(steps: Steps, columns: Indices) -> Range:
        return Range.of(of_groups(steps, columns)[1])

    def quotients(steps: Steps, columns: Indices) -> Range:
        groups, number = np.unique(columns // group, return_inverse=True)
        values, bounds = of_groups(steps, groups)
        points = [point[:, number, columns % group] for point in values.points()]
        factors = [(np.float32(1) / bound.astype(np.float32))[:, number] for bound in bounds]
        return Range.of([_stored(point * factor, dtype, most) for point in points for factor in factors])

    return scales, quotients


def _powers(greatest: Array, most: np.float32) -> Array:
    """Return the scales of the MX formats."""
    _, exponents = np.frexp(np.where(np.isfinite(greatest), greatest, 1).astype(np.float64))
    largest = int(np.floor(np.log2(most)))
    powers = np.ldexp(1.0, np.where(greatest == 0, -127, np.maximum(exponents - 1 - largest, -127)))
    return np.where(np.isfinite(greatest), powers, np.nan)


def _quotients(greatest: Array, most: np.float32) -> Array:
    """Return the scales of f8_e4m3, before they are rounded."""
    scales: Array = np.clip(np.divide(greatest, most), np.float32(2.0**-3), np.float32(types.limits("f8_e4m3")[1]))
    return scales


def _stored(values: Array, dtype: str, most: float) -> Array:
    """Saturate and round; a NaN becomes the least number, as comparisons with it fail."""
    typed: Array = np.fmin(np.fmax(values, np.float32(-most)), np.float32(most)).astype(numpy_type(dtype))
    return typed
