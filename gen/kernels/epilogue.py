"""What becomes of a sum of products before it is stored.

An epilogue is a list of steps. It is applied once to each element of the result, by whoever holds the whole sum: the
product's kernel where K is in one slice, else the kernel that sums the slices. Where slices add to the result one by
one, the kernel that fills it beforehand applies it to zero, which only sums allow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial, reduce
from math import gcd
from operator import mul
from typing import Protocol

import attrs
import numpy as np

from convgen.ir import functions
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, Lane, Pack, Shuffle, Slice, Splat, const, lift, ne, select, zeros
from convgen.ir.layout.digits import Index, Space, plus
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, TensorDim, View
from convgen.ir.sizes import Extent
from convgen.ir.types import Type, f32, s32, scalar, vector
from convgen.kernels import eltwise
from convgen.problem import post_ops


class Step(Protocol):
    """One step; `total` is distributed as `layout`, whose first two dims are N and M and begin at the coordinates.

    Where there are several products, the last coordinate is the number of this one.
    """

    @property
    def reads(self) -> tuple[Global, ...]:
        """The buffers that it needs."""

    def is_sum(self, acc: Type) -> bool:
        """Whether it is the addition of something to sums of this type, so that sums may be added behind it."""

    def apply(self, k: KernelBuilder, total: Expr, at: Sequence[Expr | int], layout: Fragment) -> Expr:
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

    def is_sum(self, acc: Type) -> bool:
        return True

    def apply(self, k: KernelBuilder, total: Expr, at: Sequence[Expr | int], layout: Fragment) -> Expr:
        term = broadcast(k, "bias", self.view, at, layout, total.type.elem, self._scaled)
        if self.factor:
            term = term * broadcast(k, "factor", self.factor, at, layout, total.type.elem)
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

    def is_sum(self, acc: Type) -> bool:
        return False

    def apply(self, k: KernelBuilder, total: Expr, at: Sequence[Expr | int], layout: Fragment) -> Expr:
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

    def is_sum(self, acc: Type) -> bool:
        return False

    def apply(self, k: KernelBuilder, total: Expr, at: Sequence[Expr | int], layout: Fragment) -> Expr:
        factor = _constant(self.numbers, divides=self.divides)
        terms = [broadcast(k, "scale", view, at, layout, f32, self._reciprocal) for view in self.views]
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

    def is_sum(self, acc: Type) -> bool:
        return False

    def apply(self, k: KernelBuilder, total: Expr, at: Sequence[Expr | int], layout: Fragment) -> Expr:
        operand = broadcast(k, self.name, self.view, at, layout, f32)
        if self.condition is None:
            return _in_pieces(k, self.name, eltwise.BINARY[self.name], total, operand)
        chosen = broadcast(k, "condition", self.condition, at, layout, s32)
        return _in_pieces(k, self.name, lambda x, y, c: select(ne(c, 0), x, y), total, operand, chosen)


@attrs.frozen
class Prelu:
    """Multiplies sums below zero by a tensor."""

    view: View

    @property
    def reads(self) -> tuple[Global, ...]:
        return (self.view.memory,)

    def is_sum(self, acc: Type) -> bool:
        return False

    def apply(self, k: KernelBuilder, total: Expr, at: Sequence[Expr | int], layout: Fragment) -> Expr:
        slopes = broadcast(k, "slope", self.view, at, layout, f32)
        return _in_pieces(k, "prelu", lambda x, slope: select(x > 0.0, x, x * slope), total, slopes)


@attrs.frozen
class Sum:
    """Adds what stands in the destination, a view with the axes of the result, before it is written over."""

    op: post_ops.Sum
    view: View

    @property
    def reads(self) -> tuple[Global, ...]:
        return (self.view.memory,)

    def is_sum(self, acc: Type) -> bool:
        return False

    def apply(self, k: KernelBuilder, total: Expr, at: Sequence[Expr | int], layout: Fragment) -> Expr:
        """Integers of 8 bits are seen with or without a sign, as the post-op has them."""
        plane = attrs.evolve(layout, dims=layout.dims[:2])
        old: Expr = k.load_view("old", self.view, at[: len(self.view.axes)], plane, "load", self.view.memory.name)
        elem = scalar(self.op.dtype) if self.op.dtype else self.view.memory.elem
        term = old.to(vector(elem, layout.registers)).to(total.type)
        if self.op.zero_point:
            term = term - float(self.op.zero_point)
        return total + (term if self.op.scale == 1 else term * self.op.scale)


@attrs.frozen
class Eltwise:
    """A function of each sum, few at a time: what it holds of them in between is not much."""

    op: post_ops.Eltwise

    @property
    def reads(self) -> tuple[Global, ...]:
        return ()

    def is_sum(self, acc: Type) -> bool:
        return False

    def apply(self, k: KernelBuilder, total: Expr, at: Sequence[Expr | int], layout: Fragment) -> Expr:
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

    def is_sum(self, acc: Type) -> bool:
        return True  # sums of padding are zero

    def apply(self, k: KernelBuilder, total: Expr, at: Sequence[Expr | int], layout: Fragment) -> Expr:
        for t, size in zip(self.view.index, self.sizes):
            if t.size > size:
                exists = k.let("exists", self._coordinate(k, t, at, layout) < size)
                total = select(exists, total, zeros(vector(total.type.elem, layout.registers)))
        return total

    def _coordinate(self, k: KernelBuilder, t: TensorDim, at: Sequence[Expr | int], layout: Fragment) -> Expr:
        """A coordinate of the tensor for each register of `layout`."""
        axes = axes_of(self.view, t)
        few, order = along(layout, [layout.dims[axis] for axis in axes if axis < 2])
        found: list[Expr] = []
        for register in range(few.registers):
            held = few.coords(k.subgroup, Lane(), register)
            dims: dict[str, Index] = {}
            for axis in axes:
                dims |= self.view.decode(axis, plus(held[layout.dims[axis]], at[axis]) if axis < 2 else at[axis])
            found.append(lift(t.at(dims), Lane()))
        return Shuffle(Pack(vector(s32, len(found)), tuple(found)), order)


@attrs.frozen
class Convert:
    """Rounds to the result's type; integers saturate."""

    elem: Type

    @property
    def reads(self) -> tuple[Global, ...]:
        return ()

    def is_sum(self, acc: Type) -> bool:
        return self.elem is acc

    def apply(self, k: KernelBuilder, total: Expr, at: Sequence[Expr | int], layout: Fragment) -> Expr:
        return total.to(vector(self.elem, layout.registers), saturate=self.elem.is_int)


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

    def apply(self, k: KernelBuilder, total: Expr, at: Sequence[Expr | int], layout: Fragment) -> Expr:
        """What is to be stored in place of the sums `total`, distributed as `layout` from the coordinates (N, M)."""
        for step in self.steps:
            total = step.apply(k, total, at, layout)
        return total


def every(number: Extent, like: Expr) -> Expr:
    """A number, modulo 2^32, in place of each of some 32-bit integers."""
    elem = like.type.elem
    wrapped = const((number - elem.min) % (1 << elem.bits) + elem.min, elem) if isinstance(number, int) else number
    return Splat(vector(elem, like.type.lanes), wrapped)


def broadcast(
    k: KernelBuilder,
    name: str,
    view: View,
    at: Sequence[Expr | int],
    layout: Fragment,
    elem: Type,
    made: Callable[[Expr], Expr] = lambda held: held,
) -> Expr:
    """What is made of what a view has, as another type, for each register of `layout`.

    Each lane loads an element once, and shares out what becomes of it.
    """
    sides = {axis for t in view.index for axis in axes_of(view, t) if axis < 2}
    few, order = along(layout, [layout.dims[n] for n in sides])
    held = k.load_view(name, view, at[: len(view.axes)], few, "load", view.memory.name)
    return Shuffle(made(held.to(vector(elem, few.registers))), order)


def axes_of(view: View, t: TensorDim) -> list[int]:
    """The axes of a view on which a coordinate depends."""
    names = {name for name, _ in t.terms}
    return [n for n, dims in enumerate(view.axes) if names.intersection(d.name for d in dims)]


def along(layout: Fragment, dims: Collection[str]) -> tuple[Fragment, tuple[int, ...]]:
    """The layout, over its first two dims, of what differs along `dims` only: without the registers of all others.

    With it, for each register of `layout` the one that belongs to it.
    """
    own = tuple(d for d in layout.digits if d.space != Space.REGISTER or d.dim in dims)
    few = Fragment(layout.dims, own).renumbered(Space.REGISTER)

    def place(fragment: Fragment, register: int) -> tuple[int, ...]:
        return tuple(int(at) for dim, at in fragment.coords(0, 0, register).items() if dim in dims)

    places = {place(few, r): r for r in range(few.registers)}
    order = tuple(places[place(layout, r)] for r in range(layout.registers))
    return attrs.evolve(few, dims=layout.dims[:2]), order
