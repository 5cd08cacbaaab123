"""What becomes of a sum of products before it is stored.

An epilogue is a list of steps. It is applied once to each element of the result, by whoever holds the whole sum: the
product's kernel where K is in one slice, else the kernel that sums the slices. Where slices add to the result one by
one, the kernel that fills it beforehand applies it to zero, which only sums allow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial, reduce
from math import gcd
from operator import mul
from typing import Protocol

import attrs
import numpy as np

from convgen.ir import functions
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, Lane, Pack, Shuffle, Slice, Splat, const, lift, ne, select, zeros
from convgen.ir.floats import fma
from convgen.ir.layout.digits import Index, Space, plus
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, TensorDim, View
from convgen.ir.sizes import Extent
from convgen.ir.types import Type, f32, s32, scalar, vector
from convgen.kernels import eltwise
from convgen.problem import post_ops


class Step(Protocol):
    """One step; sums are distributed as `layout`, whose first two dims are N and M and begin at the coordinates.

    Where there are several products, the last coordinate is the number of this one.
    """

    @property
    def reads(self) -> tuple[Global, ...]:
        """The buffers that it needs."""

    @property
    def is_light(self) -> bool:
        """Whether it needs no more room than the sums, all of which may take it together."""

    def is_sum(self, acc: Type) -> bool:
        """Whether it is the addition of something to sums of this type, so that sums may be added behind it."""

    def load(self, reader: Reader, layout: Fragment) -> Held:
        """What it reads for them: an element for each of their registers, in its own type."""

    def apply(self, k: KernelBuilder, total: Expr, held: Held) -> Expr:
        """The sums behind this step."""


@attrs.frozen
class Bias:
    """Adds a tensor, a view with the axes N and M, which may be the same all along any of them.

    It may be multiplied before, by another such tensor and by a number.
    """

    view: View
    factor: View | None = None
    scale: Extent = 1

    @property
    def reads(self) -> tuple[Global, ...]:
        return tuple(view.memory for view in (self.view, self.factor) if view)

    @property
    def is_light(self) -> bool:
        return True

    def is_sum(self, acc: Type) -> bool:
        return True

    def load(self, reader: Reader, layout: Fragment) -> Held:
        names = ("bias", self.view), ("factor", self.factor)
        return tuple(reader.read(name, view, layout) for name, view in names if view)

    def apply(self, k: KernelBuilder, total: Expr, held: Held) -> Expr:
        bias, *factors = held
        term = bias.as_type(total.type.elem, self._scaled)
        for factor in factors:
            term = term * factor.as_type(total.type.elem)
        return total + term

    def _scaled(self, held: Expr) -> Expr:
        return held if self.scale == 1 else held * every(self.scale, held)


@attrs.frozen
class Affine:
    """Multiplies sums of integers and adds to them, modulo 2^32."""

    scale: int
    shift: Extent

    @property
    def reads(self) -> tuple[Global, ...]:
        return ()

    @property
    def is_light(self) -> bool:
        return True

    def is_sum(self, acc: Type) -> bool:
        return False

    def load(self, reader: Reader, layout: Fragment) -> Held:
        return ()

    def apply(self, k: KernelBuilder, total: Expr, held: Held) -> Expr:
        scaled = total if self.scale == 1 else total * every(self.scale, total)
        return scaled if self.shift == 0 else scaled + every(self.shift, total)


@attrs.frozen
class Scale:
    """Multiplies by numbers and tensors, or divides: by one number or one tensor, whose reciprocal is rounded to f32.

    The product of what it multiplies by comes first, the numbers' at the front.
    """

    numbers: tuple[np.float32, ...]
    views: tuple[View, ...]
    divides: bool = False

    @property
    def reads(self) -> tuple[Global, ...]:
        return tuple(view.memory for view in self.views)

    @property
    def is_light(self) -> bool:
        return False

    def is_sum(self, acc: Type) -> bool:
        return False

    def load(self, reader: Reader, layout: Fragment) -> Held:
        return tuple(reader.read("scale", view, layout) for view in self.views)

    def apply(self, k: KernelBuilder, total: Expr, held: Held) -> Expr:
        factor = _constant(self.numbers, divides=self.divides)
        terms = [scale.as_type(f32, self._reciprocal) for scale in held]
        if not terms:
            return total * factor
        first, *others = terms
        term = first if factor == 1 else first * factor
        for other in others:
            term = term * other
        return total * term

    def _reciprocal(self, held: Expr) -> Expr:
        return functions.divide(lift(1.0, held), held) if self.divides else held


def _constant(numbers: Sequence[np.float32], *, divides: bool) -> float:
    with np.errstate(all="ignore"):
        found = reduce(mul, numbers, np.float32(1))
        return float(1 / found if divides else found)


@attrs.frozen
class Binary:
    """An operation on the sums and a tensor, f32 both; `condition` is a tensor of integers that chooses."""

    name: str
    view: View
    condition: View | None = None

    @property
    def reads(self) -> tuple[Global, ...]:
        return (self.view.memory, *((self.condition.memory,) if self.condition else ()))

    @property
    def is_light(self) -> bool:
        return False

    def is_sum(self, acc: Type) -> bool:
        return False

    def load(self, reader: Reader, layout: Fragment) -> Held:
        names = {self.name: self.view, **({"condition": self.condition} if self.condition else {})}
        return tuple(reader.read(name, view, layout) for name, view in names.items())

    def apply(self, k: KernelBuilder, total: Expr, held: Held) -> Expr:
        operand = held[0].as_type(f32)
        if self.condition is None:
            return _in_pieces(k, self.name, eltwise.BINARY[self.name], total, operand)
        chosen = held[1].as_type(s32)
        return _in_pieces(k, self.name, lambda x, y, c: select(ne(c, 0), x, y), total, operand, chosen)


@attrs.frozen
class Prelu:
    """Multiplies sums below zero by a tensor."""

    view: View

    @property
    def reads(self) -> tuple[Global, ...]:
        return (self.view.memory,)

    @property
    def is_light(self) -> bool:
        return False

    def is_sum(self, acc: Type) -> bool:
        return False

    def load(self, reader: Reader, layout: Fragment) -> Held:
        return (reader.read("slope", self.view, layout),)

    def apply(self, k: KernelBuilder, total: Expr, held: Held) -> Expr:
        slopes = held[0].as_type(f32)
        return _in_pieces(k, "prelu", lambda x, slope: select(x > 0.0, x, x * slope), total, slopes)


@attrs.frozen
class Sum:
    """Adds what stands in the destination, a view with the axes of the result, before it is written over."""

    op: post_ops.Sum
    view: View

    @property
    def reads(self) -> tuple[Global, ...]:
        return (self.view.memory,)

    @property
    def is_light(self) -> bool:
        return False

    def is_sum(self, acc: Type) -> bool:
        return False

    def load(self, reader: Reader, layout: Fragment) -> Held:
        return (reader.read("old", self.view, layout),)

    def apply(self, k: KernelBuilder, total: Expr, held: Held) -> Expr:
        """Integers of 8 bits are seen with or without a sign, as the post-op has them."""
        term = held[0].as_type(f32, seen=scalar(self.op.dtype) if self.op.dtype else None)
        if self.op.zero_point:
            term = term - float(self.op.zero_point)
        return fma(term, 1.0, total) if self.op.scale == 1 else total + term * self.op.scale


@attrs.frozen
class Eltwise:
    """A function of each sum, few at a time: what it holds of them in between is not much."""

    op: post_ops.Eltwise

    @property
    def reads(self) -> tuple[Global, ...]:
        return ()

    @property
    def is_light(self) -> bool:
        return False

    def is_sum(self, acc: Type) -> bool:
        return False

    def load(self, reader: Reader, layout: Fragment) -> Held:
        return ()

    def apply(self, k: KernelBuilder, total: Expr, held: Held) -> Expr:
        return _in_pieces(k, self.op.name, partial(eltwise.apply, self.op), total)


_AT_A_TIME = 8  #: registers


def _in_pieces(k: KernelBuilder, name: str, function: Callable[..., Expr], total: Expr, *others: Expr) -> Expr:
    """A function of fragments, computed for a few registers at a time."""
    count = gcd(_AT_A_TIME, total.type.lanes)
    whole = [k.let("total", total), *others]
    pieces = ([Slice(each, start, count) for each in whole] for start in range(0, total.type.lanes, count))
    return Pack(total.type, tuple(k.let(name, function(*piece)) for piece in pieces))


@attrs.frozen
class Tails:
    """Zero in the padding of the result's blocks, whatever the steps before made of it.

    `view` has the axes of the result, `sizes` are those of the tensor, without padding.
    """

    view: View
    sizes: tuple[int, ...]

    @property
    def reads(self) -> tuple[Global, ...]:
        return ()

    @property
    def is_light(self) -> bool:
        return True

    def is_sum(self, acc: Type) -> bool:
        return True  # sums of padding are zero

    def load(self, reader: Reader, layout: Fragment) -> Held:
        """The coordinates along the dims that have padding, which are computed."""
        return tuple(self._coordinate(reader, self.view.index[n], layout) for n in self._padded)

    def apply(self, k: KernelBuilder, total: Expr, held: Held) -> Expr:
        for n, place in zip(self._padded, held):
            exists = k.let("exists", place.as_type(s32) < self.sizes[n])
            total = select(exists, total, zeros(vector(total.type.elem, total.type.lanes)))
        return total

    @property
    def _padded(self) -> list[int]:
        return [n for n, (t, size) in enumerate(zip(self.view.index, self.sizes)) if t.size > size]

    def _coordinate(self, reader: Reader, t: TensorDim, layout: Fragment) -> Broadcast:
        """A coordinate of the tensor for each register of `layout`."""
        k, at, axes = reader.k, reader.at, axes_of(self.view, t)
        few, order = along(layout, [layout.dims[axis] for axis in axes if axis < 2])
        found: list[Expr] = []
        for register in range(few.registers):
            held = few.coords(k.subgroup, Lane(), register)
            dims: dict[str, Index] = {}
            for axis in axes:
                dims |= self.view.decode(axis, plus(held[layout.dims[axis]], at[axis]) if axis < 2 else at[axis])
            found.append(lift(t.at(dims), Lane()))
        return Broadcast(Pack(vector(s32, len(found)), tuple(found)), order)


@attrs.frozen
class Convert:
    """Rounds to the result's type; integers saturate."""

    elem: Type

    @property
    def reads(self) -> tuple[Global, ...]:
        return ()

    @property
    def is_light(self) -> bool:
        return True

    def is_sum(self, acc: Type) -> bool:
        return self.elem is acc

    def load(self, reader: Reader, layout: Fragment) -> Held:
        return ()

    def apply(self, k: KernelBuilder, total: Expr, held: Held) -> Expr:
        return total.to(vector(self.elem, total.type.lanes), saturate=self.elem.is_int)


@attrs.frozen
class Epilogue:
    """The steps from the accumulator to the store, in order."""

    steps: tuple[Step, ...]

    @property
    def reads(self) -> tuple[Global, ...]:
        return tuple(buffer for step in self.steps for buffer in step.reads)

    def may_precede_sums(self, acc: Type) -> bool:
        """Whether slices may add their sums of this type to what it made of zero."""
        return all(step.is_sum(acc) for step in self.steps)

    @property
    def is_light(self) -> bool:
        return all(step.is_light for step in self.steps)

    def load(self, reader: Reader, layout: Fragment) -> tuple[Held, ...]:
        """What the steps read for sums distributed as `layout`."""
        return tuple(step.load(reader, layout) for step in self.steps)

    def apply(self, k: KernelBuilder, total: Expr, held: Sequence[Held]) -> Expr:
        """What is to be stored in place of the sums `total`, of what was loaded for them."""
        for step, own in zip(self.steps, held, strict=True):
            total = step.apply(k, total, own)
        return total


def every(number: Extent, like: Expr) -> Expr:
    """A number, modulo 2^32, in place of each of some 32-bit integers."""
    elem = like.type.elem
    wrapped = const((number - elem.min) % (1 << elem.bits) + elem.min, elem) if isinstance(number, int) else number
    return Splat(vector(elem, like.type.lanes), wrapped)


@attrs.frozen
class Broadcast:
    """A tensor beside sums: each lane has an element once, and `order` says which one each register takes."""

    held: Expr
    order: tuple[int, ...]

    @property
    def words(self) -> int:
        """Registers that it takes."""
        return -(-self.held.type.lanes * self.held.type.elem.bits // 32)

    def as_type(self, elem: Type, made: Callable[[Expr], Expr] = lambda x: x, seen: Type | None = None) -> Expr:
        """What is made of it, as another type, for each register; integers `seen` with or without a sign."""
        lanes = self.held.type.lanes
        found = self.held.to(vector(seen, lanes)) if seen else self.held
        return Shuffle(made(found.to(vector(elem, lanes))), self.order)


Held = tuple[Broadcast, ...]


@attrs.define
class Reader:
    """Loads what stands beside sums whose fragments begin at the coordinates (N, M, and that of the product).

    What fragments that are read in one scope have in common is loaded once, so long as there is room to keep it.
    """

    k: KernelBuilder
    at: Sequence[Expr | int]
    room: int = 0  #: registers; of a lane, for what is kept
    _kept: dict[tuple[str, View, Fragment], Broadcast] = attrs.Factory(dict)

    def read(self, name: str, view: View, layout: Fragment) -> Broadcast:
        """What a view has for each register of `layout`."""
        sides = {axis for t in view.index for axis in axes_of(view, t) if axis < 2}
        few, order = along(layout, [layout.dims[n] for n in sides])
        key = name, view, few
        if key in self._kept:
            return Broadcast(self._kept[key].held, order)
        held = self.k.load_view(name, view, self.at[: len(view.axes)], few, "load", view.memory.name)
        found = Broadcast(held, order)
        if len(sides) < len(layout.dims[:2]) and found.words <= self.room:
            self.room -= found.words
            self._kept[key] = found
        return found

    def fresh(self, held: Iterable[Broadcast]) -> int:
        """Registers that these take, but for what is kept."""
        return sum(b.words for b in held if all(b.held is not kept.held for kept in self._kept.values()))


def axes_of(view: View, t: TensorDim) -> list[int]:
    """The axes of a view on which a coordinate depends."""
    names = {name for name, _ in t.terms}
    return [n for n, dims in enumerate(view.axes) if names.intersection(d.name for d in dims)]


def along(layout: Fragment, dims: Collection[str]) -> tuple[Fragment, tuple[int, ...]]:
    """The layout, over its first two dims, of what differs along `dims` only: without the registers of all others.

    With it, for each register of `layout` the one that belongs to it.
    """
    own = tuple(d for d in layout.digits if d.space not in (Space.REGISTER, Space.FIXED) or d.dim in dims)
    few = Fragment(layout.dims, own).renumbered(Space.REGISTER)

    def place(fragment: Fragment, register: int) -> tuple[int, ...]:
        return tuple(int(at) for dim, at in fragment.coords(0, 0, register).items() if dim in dims)

    places = {place(few, r): r for r in range(few.registers)}
    order = tuple(places[place(layout, r)] for r in range(layout.registers))
    return attrs.evolve(few, dims=layout.dims[:2]), order
