"""Sums of a depthwise convolution over a source of which only ranges of right values are known."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.problem.conv import Conv
from convgen.run.oracle import Tensor, input_of
from convgen.run.ranges import Range
from convgen.run.reference_memory import Indices

_BITS = {"f32": 24, "f64": 53}  #: of the significand of a sum


def depthwise_sums(
    problem: Conv,
    read: Callable[[Indices], Range],
    weights: Tensor,
    rows: Indices,
    columns: Indices,
    sum_type: str,
) -> Range:
    """Return the range of sums of a depthwise convolution for rows (n, positions) and columns, in float64.

    `read` returns the right values of rows of the source, in these columns. Where values have several right ones, or a
    sum of floats is not exact, the range holds the sums of all of them, rounded in any order.
    """
    n, *places = np.unravel_index(rows, (problem.mb, *(axis.o for axis in problem.axes)))
    sizes = (problem.mb, *(axis.i for axis in problem.axes))
    taps = list(product(*(range(axis.k) for axis in problem.axes)))
    flat, inside = _sources(problem, n, places, taps, sizes)
    needed = np.unique(flat[inside])
    source = read(needed)
    own = np.asarray(weights[columns, 0, 0]).astype(np.float64).reshape(len(columns), len(taps))
    low, high, size = (np.zeros((len(rows), len(columns))) for _ in range(3))
    unit = _unit(source.least) * _unit(own)
    with np.errstate(invalid="ignore", over="ignore"):
        for tap in range(len(taps)):
            here = np.flatnonzero(inside[tap])
            at = np.searchsorted(needed, flat[tap, here])
            products = [np.asarray(end[at], np.float64) * own[:, tap] for end in (source.least, source.most)]
            low[here] += np.minimum(*products)
            high[here] += np.maximum(*products)
            size[here] += np.maximum(*np.abs(products))
        if sum_type not in _BITS or (source.is_one and bool(np.all(~(size > unit * 2.0 ** _BITS[sum_type])))):
            return Range.of([low]) if source.is_one else Range.of([low, high])
        off = (len(taps) + 1) * 2.0 ** (1 - _BITS[sum_type]) * np.where(np.isfinite(size), size, 0)
        return Range.of([low - off, high + off])


def _sources(
    problem: Conv, n: Indices, places: list[Indices], taps: list[tuple[int, ...]], sizes: tuple[int, ...]
) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """Return the rows of the source that each tap of some outputs reads, and flags of those that exist: [tap, row]."""
    flat, inside = [], []
    for tap in taps:
        at, exists = zip(*map(input_of, problem.axes, places, tap))
        flags = np.logical_and.reduce(exists)
        flat.append(np.ravel_multi_index([n, *(np.where(flags, i, 0) for i in at)], sizes))
        inside.append(flags)
    return np.array(flat), np.array(inside)


def _unit(values: Any) -> float:
    """Return the greatest power of two of which all finite values are multiples; 1 without values but zero."""
    numbers = np.asarray(values).astype(np.float64)
    numbers = np.abs(numbers[np.isfinite(numbers) & (numbers != 0)])
    if not numbers.size:
        return 1.0
    mantissas, exponents = np.frexp(numbers)
    whole = (mantissas * 2.0**53).astype(np.int64)
    zeros = np.log2((whole & -whole).astype(np.float64)).astype(np.int64)
    return float(2.0 ** int((exponents - 53 + zeros).min()))
