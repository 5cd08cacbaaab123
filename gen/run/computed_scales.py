"""The reference of scales that the result decides, for each group of neighbours along the last dim of dst.

By oneDNN's reference (ref_matmul.cpp, `is_mx`): the scale is the greatest power of two that is at most the group's
greatest absolute value, divided by that of the destination's type, at least 2^-127. NaNs have no part in the greatest
value; an infinite one makes the scale NaN. Elements are multiplied by the scale's reciprocal, and saturate.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from convgen.problem.scales import Scale
from convgen.run import reference_types as types
from convgen.run.fills import Array
from convgen.run.ranges import Range
from convgen.run.reference_memory import Indices
from convgen.run.reference_types import numpy_type

_BIAS, _NAN, _MANTISSA = 127, 255, 23
_Codes = npt.NDArray[np.int64]
Steps = Callable[[Indices], Range]  #: returns the range of columns of dst before their scales
Ranges = Callable[[Steps, Indices], Range]


def ranges(scale: Scale, dtype: str, size: int) -> tuple[Ranges, Ranges]:
    """Return functions that return the ranges of columns of the scales, and of columns of dst.

    dst has `size` columns of a type.
    """
    group, most = scale.groups[-1], types.limits(dtype)[1]
    largest = int(np.floor(np.log2(most)))

    def of_groups(steps: Steps, groups: Indices) -> tuple[Range, list[_Codes]]:
        """Return the ranges of all members of groups [row, group, member], and the least and greatest codes."""
        members = groups[:, None] * group + np.arange(group)
        exists = members < size
        values = steps(np.minimum(members, size - 1).ravel()).map(lambda x: x.reshape(len(x), *members.shape))
        sizes = [np.where(exists, np.abs(point), 0) for point in values.points()]
        bounds = [sizes[0]] if values.is_one else [np.fmin.reduce(sizes), np.fmax.reduce(sizes)]
        return values, [_codes(np.fmax.reduce(bound, axis=-1, initial=0), largest) for bound in bounds]

    def codes(steps: Steps, columns: Indices) -> Range:
        _, bounds = of_groups(steps, columns)
        return Range.of([code.astype(np.uint8).view(numpy_type(scale.dtype)) for code in bounds])

    def quotients(steps: Steps, columns: Indices) -> Range:
        groups, number = np.unique(columns // group, return_inverse=True)
        values, bounds = of_groups(steps, groups)
        points = [point[:, number, columns % group] for point in values.points()]
        factors = [_reciprocals(code)[:, number] for code in bounds]
        return Range.of([_stored(point * factor, dtype, most) for point in points for factor in factors])

    return codes, quotients


def _codes(greatest: Array, largest: int) -> _Codes:
    """Return the codes of e8m0 of the scales of groups with these greatest values."""
    exponents = (np.ascontiguousarray(greatest, np.float32).view(np.uint32) >> _MANTISSA).astype(np.int64)
    return np.where(exponents == _NAN, _NAN, np.maximum(exponents - largest, 0))


def _reciprocals(codes: _Codes) -> npt.NDArray[np.float32]:
    return np.where(codes == _NAN, np.nan, np.ldexp(1.0, _BIAS - codes)).astype(np.float32)


def _stored(values: Array, dtype: str, most: float) -> Array:
    """Saturate and round; a NaN becomes the least number, as comparisons with it fail."""
    typed: Array = np.fmin(np.fmax(values, np.float32(-most)), np.float32(most)).astype(numpy_type(dtype))
    return typed
