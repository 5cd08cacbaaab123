"""Names for the arrays that simulators pass around."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
ALL_BITS = np.uint32(0xFFFFFFFF)  #: all bits of a word


def any_along(flags: Array, axis: int | tuple[int, ...], *, keepdims: bool = False) -> Bools:
    """Return whether any flag is set along some axes."""
    found: Bools = np.asarray(np.any(flags, axis=axis, keepdims=keepdims))
    return found


def least(numbers: Array) -> int:
    """Return the least of some numbers; for small arrays `argmin` takes a third of the time of `min`."""
    return int(numbers.item(numbers.argmin()))


def most(numbers: Array) -> int:
    """Return the greatest of some numbers."""
    return int(numbers.item(numbers.argmax()))


def all_bits(numbers: Array) -> int:
    """Return the bits that are set in any of some numbers."""
    return int(np.bitwise_or.reduce(numbers, axis=None))


@lru_cache(maxsize=128)
def counted(count: int, axes: int) -> Array:
    """Return 0, 1, .. `count` - 1 along the first axis of an array with `axes` further axes of size 1."""
    return np.arange(count).reshape((-1,) + (1,) * axes)


def united(rows: Iterable[Bools | None]) -> Bools | None:
    """Return the union of flag arrays, skipping None; None if all are None."""
    union: Bools | None = None
    for row in rows:
        if row is not None:
            union = row if union is None else union | row
    return union
