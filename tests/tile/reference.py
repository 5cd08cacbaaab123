"""The tile language on numpy: a kernel's function runs block by block, on intervals of what a machine may compute.

Each operation rounds the ends of an interval as the machine rounds what is between them. So an interval is one number
until something has an error or no defined order: an approximate function, or a sum of floats that is not exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type, bool_, scalar
from convgen.tile.tiles import Tensor

Array = Any
_MANTISSA = {"f32": 23, "f16": 10, "bf16": 7}  #: bits
_UNITS = (1, 8, 64)  #: sums of floats are thought exact if all are whole multiples of one part in so many
#: function -> what numpy says, and its error on f32 in ulp (docs/ir.md); on other types, computed in f32, one more
FUNCTIONS: dict[str, tuple[Callable[[Array], Array], int]] = {
    "exp": (np.exp, 6),
    "exp2": (np.exp2, 4),
    "sqrt": (np.sqrt, 4),
    "tanh": (np.tanh, 8),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 16),
}
_ROUNDED = {"floor": np.floor, "ceil": np.ceil, "round": np.rint}


@attrs.frozen(eq=False)
class Block:
    """Elements between `low` and `high`, in f64 or s64; of floats, NaN at both ends where nothing is known."""

    elem: Type
    low: Array
    high: Array

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.low.shape
        return shape

    def __add__(self, other: Block | float) -> Block:
        return self._ends(lambda a, b: a + b, other)

    def __mul__(self, other: Block | float) -> Block:
        return self._ends(lambda a, b: a * b, other)

    def __sub__(self, other: Block | float) -> Block:
        return self._ends(lambda a, b: a - b, other)

    def __neg__(self) -> Block:
        return rounded(self.elem, -self.high, -self.low)

    def _ends(self, operation: Callable[[Array, Array], Array], other: Block | float) -> Block:
        other = like(other, self)
        ends = np.array([operation(a, b) for a in (self.low, self.high) for b in (other.low, other.high)])
        return rounded(self.elem, ends.min(0), ends.max(0))


def like(value: Block | float, other: Block) -> Block:
    """A number as a block of another's type."""
    if isinstance(value, Block):
        return value
    number = np.array(value, np.float64 if other.elem.is_float else np.int64)
    return rounded(other.elem, number, number)


def rounded(elem: Type, low: Array, high: Array) -> Block:
    """What a machine makes of numbers between two: floats are rounded, integers wrap."""
    if elem.is_float:
        low, high = (a.astype(elem.numpy).astype(np.float64) for a in (low, high))
        unknown = np.isnan(low) | np.isnan(high)
        return Block(elem, *(np.where(unknown, np.nan, a) for a in (low, high)))
    wraps = (low < elem.min) | (high > elem.max)
    lost = wraps & (low != high)
    low, high = (np.where(wraps, a.astype(elem.numpy).astype(np.int64), a) for a in (low, high))
    return Block(elem, np.where(lost, elem.min, low), np.where(lost, elem.max, high))


def widened(elem: Type, low: Array, high: Array, by: Array, ulps: int) -> Block:
    """Numbers that are so many ulp of `by` off."""
    size = np.maximum(np.abs(by), float(elem.largest) ** -1)
    slack = ulps * np.exp2(np.floor(np.log2(size)) - _MANTISSA[elem.name])
    return rounded(elem, low - slack, high + slack)


def total(elem: Type, low: Array, high: Array, axis: int) -> Block:
    """Sums of floats in any order, wrapped sums of integers; the axis stays."""
    least, most = (a.sum(axis, keepdims=True) for a in (low, high))
    if not elem.is_float:
        return rounded(elem, least, most)
    size = np.maximum(np.abs(low), np.abs(high)).sum(axis, keepdims=True)
    exact = np.zeros(size.shape, bool)
    for units in _UNITS:
        whole = np.all((low * units % 1 == 0) & (high * units % 1 == 0), axis, keepdims=True)
        exact |= whole & (size * units < 2 ** (_MANTISSA[elem.name] + 1))
    size = np.where(size <= elem.largest, size, np.nan)
    loose, sharp = widened(elem, least, most, size, low.shape[axis]), rounded(elem, least, most)
    return Block(elem, np.where(exact, sharp.low, loose.low), np.where(exact, sharp.high, loose.high))


def _product(of: Block, axis: int) -> Block:
    low = of.low.prod(axis, keepdims=True)
    if not of.elem.is_float:
        same = (of.low == of.high).all(axis, keepdims=True)
        ends = rounded(of.elem, low, low)
        return Block(of.elem, np.where(same, ends.low, of.elem.min), np.where(same, ends.high, of.elem.max))
    size = np.abs(of.low)
    above = np.prod(np.where(size > 1, size, 1), axis, keepdims=True)
    below = np.prod(np.where((size < 1) & (size > 0), size, 1), axis, keepdims=True)
    known = (of.low == of.high).all(axis, keepdims=True) & (above < of.elem.largest) & (below > 2.0**-14)
    low = np.where(known, low, np.nan)
    return widened(of.elem, low, low, low, of.shape[axis])


@frozen(eq=False)
class Place:
    """A tile: where a block begins."""

    tensor: Tensor
    shape: tuple[int, ...]
    offsets: tuple[int, ...]


@attrs.define
class Numpy:
    """What `convgen.tile` has, for one workgroup whose block begins at `at`; stores go to `found`."""

    memory: dict[str, Array]
    found: dict[str, Block]
    at: tuple[int, ...] = ()

    def range(self, begin: int, end: int, step: int = 1) -> Iterator[int]:
        return iter(range(begin, end, step))

    def grid(self, over: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
        return self.at

    def init_tile(self, tensor: Tensor, offsets: Sequence[int], shape: Sequence[int]) -> Place:
        return Place(tensor, tuple(shape), tuple(offsets))

    def update_tile_offset(self, tile: Place, by: Sequence[int]) -> Place:
        return evolve(tile, offsets=tuple(o + d for o, d in zip(tile.offsets, by)))

    def load_tile(self, tile: Place, *, transpose: bool = False) -> Block:
        wide = np.float64 if tile.tensor.elem.is_float else np.int64
        here, there = _inside(tile)
        block = np.zeros(tile.shape, wide)
        block[here] = self.memory[tile.tensor.name][there]
        block = block.T if transpose else block
        return Block(tile.tensor.elem, block, block)

    def store_tile(self, value: Block, tile: Place) -> None:
        here, there = _inside(tile)
        to = self.found[tile.tensor.name]
        to.low[there], to.high[there] = value.low[here], value.high[here]

    def full(self, shape: Sequence[int], value: float, dtype: str = "f32") -> Block:
        one = like(value, Block(scalar(dtype), np.zeros(()), np.zeros(())))
        return Block(one.elem, *(np.broadcast_to(a, shape) for a in (one.low, one.high)))

    def zeros(self, shape: Sequence[int], dtype: str = "f32") -> Block:
        return self.full(shape, 0, dtype)

    def positions(self, shape: Sequence[int], axis: int) -> Block:
        held = np.indices(shape)[axis]
        return Block(scalar("s32"), held, held)

    def tile_mma(self, a: Block, b: Block, acc: Block) -> Block:
        """Exact products, summed in any order."""
        ends = np.array([x[:, None] * y.T[None] for x in (a.low, a.high) for y in (b.low, b.high)])
        low, high = (np.dstack([e, s]) for e, s in ((ends.min(0), acc.low), (ends.max(0), acc.high)))
        found = total(acc.elem, low, high, 2)
        return Block(acc.elem, found.low[..., 0], found.high[..., 0])

    def reduce(self, kind: str, value: Block, axis: int) -> Block:
        if kind == "sum":
            return total(value.elem, value.low, value.high, axis)
        if kind == "prod":
            return _product(value, axis)
        if kind in ("max", "min"):
            ends = [getattr(a, kind)(axis, keepdims=True) for a in (value.low, value.high)]
            return Block(value.elem, *ends)
        same = (value.low == value.high).all(axis, keepdims=True)
        found = {"and": np.bitwise_and, "or": np.bitwise_or}[kind].reduce(value.low, axis, keepdims=True)
        return Block(value.elem, np.where(same, found, value.elem.min), np.where(same, found, value.elem.max))

    def convert(self, value: Block, dtype: str, *, saturate: bool = False) -> Block:
        to, of = scalar(dtype), value.elem
        low, high = value.low, value.high
        if to.is_float:
            if saturate:
                low, high = (np.clip(a, -to.largest, to.largest) for a in (low, high))
            return rounded(to, low.astype(np.float64), high.astype(np.float64))
        if of.is_float:
            unknown = np.isnan(low)
            low, high = (
                np.clip(np.rint(np.where(unknown, 0, a)), to.min, to.max).astype(np.int64) for a in (low, high)
            )
            return Block(to, np.where(unknown, to.min, low), np.where(unknown, to.max, high))
        if saturate:
            return Block(to, np.clip(low, to.min, to.max), np.clip(high, to.min, to.max))
        return rounded(to, low, high)

    def less(self, a: Block, b: Block | float) -> Block:
        b = like(b, a)
        unknown = np.isnan(a.low) | np.isnan(b.low) if a.elem.is_float else np.False_
        return Block(bool_, (a.high < b.low) & ~unknown, (a.low < b.high) | unknown)

    def equal(self, a: Block, b: Block | float) -> Block:
        b = like(b, a)
        meet = (a.low <= b.high) & (b.low <= a.high)
        unknown = np.isnan(a.low) | np.isnan(b.low) if a.elem.is_float else np.False_
        return Block(bool_, meet & (a.low == a.high) & (b.low == b.high), meet | unknown)

    def where(self, cond: Block, a: Block, b: Block) -> Block:
        ends = [
            np.where(cond.low, x, np.where(cond.high, choose(x, y), y))
            for x, y, choose in ((a.low, b.low, np.minimum), (a.high, b.high, np.maximum))
        ]
        return Block(a.elem, *ends)

    def max(self, a: Block, b: Block | float) -> Block:
        b = like(b, a)
        return Block(a.elem, np.maximum(a.low, b.low), np.maximum(a.high, b.high))

    def min(self, a: Block, b: Block | float) -> Block:
        b = like(b, a)
        return Block(a.elem, np.minimum(a.low, b.low), np.minimum(a.high, b.high))

    def abs(self, a: Block) -> Block:
        low = np.maximum(np.maximum(a.low, -a.high), 0)
        return rounded(a.elem, low, np.maximum(np.abs(a.low), np.abs(a.high)))

    def __getattr__(self, name: str) -> Callable[[Block], Block]:
        """A function of one element, all of which rise."""
        if name in _ROUNDED:
            return lambda a: rounded(a.elem, _ROUNDED[name](a.low), _ROUNDED[name](a.high))
        if name not in FUNCTIONS:
            raise AttributeError(name)
        function, ulps = FUNCTIONS[name]

        def of(a: Block) -> Block:
            low, high = function(a.low), function(a.high)
            return widened(a.elem, low, high, np.maximum(abs(low), abs(high)), ulps if a.elem.name == "f32" else 2)

        return of


def _inside(tile: Place) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """What of a tile is inside its tensor: where in the block, and where in the tensor."""
    ends = [
        (max(0, -o), max(0, -o, min(size, whole - o)))
        for o, size, whole in zip(tile.offsets, tile.shape, tile.tensor.shape)
    ]
    here = tuple(slice(*e) for e in ends)
    return here, tuple(slice(b + o, max(b, e) + o) for (b, e), o in zip(ends, tile.offsets))


def within(found: Array, wanted: Block) -> Array:
    """Where numbers are those of intervals."""
    wide = found.astype(wanted.low.dtype)
    inside = (wanted.low <= wide) & (wide <= wanted.high)
    return inside | np.isnan(wanted.low) if wanted.elem.is_float else inside
