"""Fills: tensors of small integers whose elements are computed when they are read, so that they need no memory.

An element depends on the seed and on its number in the tensor only, so that the simulator and the reference see one
tensor, of which each computes only what it touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.ir.record import evolve, frozen

Array = npt.NDArray[np.generic]
Numbers = npt.NDArray[np.int64]

_CHUNK = 1 << 15  #: elements drawn at a time, so that temporaries stay in a core's caches
_LOW = 0xFFFFFFFF


def _mixed(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Hash each number in place by a bijection of 32 bits (C. Wellons, "Prospecting for hash functions")."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x ^= x >> np.uint32(shift)
        x *= np.uint32(factor)
    x ^= x >> np.uint32(16)
    return x


def _word(*parts: int) -> int:
    """Hash some numbers and their order into one word."""
    word = np.zeros(1, np.uint32)
    for part in parts:
        for half in (part & _LOW, part >> 32 & _LOW):
            word = _mixed(word + np.uint32(0x9E3779B9) ^ np.uint32(half))
    return int(word[0])


@frozen(eq=False)
class Fill:
    """A tensor of shape `shape` whose elements are drawn evenly from `values`.

    It is indexed like a numpy array: slices give a part, arrays of indices the elements. Elements of the whole tensor
    are numbered row by row; `strides` and `start` map an index of this part to such a number.
    """

    values: Array  #: at most 255
    seed: int  #: 32 bits
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int = 0
    changed: tuple[tuple[int, Any], ...] = ()  #: (number of an element, its value) of those that are not drawn

    @classmethod
    def of(cls, values: Array, seed: tuple[int, ...], shape: tuple[int, ...]) -> Fill:
        return cls(values, _word(*seed), shape, _row_major(shape))

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return self.values.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        """Return a part for slices, elements for arrays of indices, which must be in range.

        Dimensions are in numpy's order: those of index arrays together, at the place of the first array if the arrays
        are neighbours, else first.
        """
        keys = list(key) if isinstance(key, tuple) else [key]
        keys += [slice(None)] * (len(self.shape) - len(keys))
        part = self._part([k if isinstance(k, slice) else slice(None) for k in keys])
        arrays = [d for d, k in enumerate(keys) if not isinstance(k, slice)]
        if not arrays:
            return part
        slices = [d for d, k in enumerate(keys) if isinstance(k, slice)]
        together = arrays[-1] - arrays[0] < len(arrays)
        before = sum(d < arrays[0] for d in slices) if together else 0
        chosen: Numbers = sum((np.asarray(keys[d]) * self.strides[d] for d in arrays), np.zeros((), np.int64))
        along = [part._along(d) for d in slices]
        return self.numbered(_outer(part.start, [*along[:before], chosen, *along[before:]]))

    def _along(self, d: int) -> Numbers:
        """Return the term that each index along a dimension adds to an element's number."""
        return np.arange(self.shape[d], dtype=np.int64) * self.strides[d]

    def _part(self, keys: list[slice]) -> Fill:
        ranges = [range(size)[key] for size, key in zip(self.shape, keys)]
        start = self.start + sum(r.start * stride for r, stride in zip(ranges, self.strides) if len(r))
        strides = tuple(r.step * stride for r, stride in zip(ranges, self.strides))
        return evolve(self, shape=tuple(map(len, ranges)), strides=strides, start=start)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Return all elements; numbers without gaps are generated piece by piece, to save memory."""
        elements = np.empty(self.shape, self.dtype)
        if self.strides == _row_major(self.shape):
            flat = elements.reshape(-1)
            for at in range(0, len(flat), _CHUNK):
                flat[at : at + _CHUNK] = self.numbered(np.arange(at, min(at + _CHUNK, len(flat))) + self.start)
        else:
            elements[...] = self.numbered(_outer(self.start, map(self._along, range(len(self.shape)))))
        return elements if dtype is None else elements.astype(dtype)

    def reshape(self, *shape: int) -> Fill:
        """Return a whole tensor in another shape, with its elements in unchanged order."""
        if self.strides != _row_major(self.shape) or prod(shape) != prod(self.shape):
            raise ValueError(f"a part of shape {self.shape} seen as {shape}")
        return evolve(self, shape=shape, strides=_row_major(shape))

    def with_values(self, values: Mapping[tuple[int, ...], float]) -> Fill:
        """Return the tensor with other values at some indices."""
        changed = {self.start + sum(map(mul, at, self.strides)): value for at, value in values.items()}
        return evolve(self, changed=(*self.changed, *changed.items()))

    def numbered(self, numbers: Numbers) -> Array:
        """Return the elements with these numbers."""
        elements = np.empty(numbers.shape, self.dtype)
        flat, wanted = elements.reshape(-1), numbers.reshape(-1)
        small = wanted.size == 0 or int(wanted.max()) <= _LOW  # the upper halves of all numbers are then 0
        for start in range(0, len(wanted), _CHUNK):
            chunk = wanted[start : start + _CHUNK]
            upper = (chunk[:1] if small else chunk) >> 32
            drawn = chunk.astype(np.uint32)
            drawn ^= _mixed(upper.astype(np.uint32) ^ np.uint32(self.seed))
            _mixed(drawn)
            drawn >>= np.uint32(8)  # 24 bits, so that the product below has 32
            drawn *= np.uint32(len(self.values))
            drawn >>= np.uint32(24)
            self.values.take(drawn, out=flat[start : start + _CHUNK], mode="clip")
        for number, value in self.changed:
            flat[wanted == number] = value
        return elements


def _outer(start: int, parts: Iterable[Numbers]) -> Numbers:
    """Return the outer sum of `start` and the parts, each part along dimensions of its own."""
    number = np.array(start, np.int64)
    for part in parts:
        number = number.reshape(number.shape + (1,) * part.ndim) + part
    return number


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))
