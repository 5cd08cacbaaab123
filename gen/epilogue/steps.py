"""The steps from sums to results: the inputs of each, and its effect on the sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul

import numpy as np

from convgen.epilogue.epilogue import Addend, Broadcast, Grouping, Loaded, Reader, Step, along, axes_of, is_in_order
from convgen.ir import functions, narrow
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import (
    Expr,
    Lane,
    Max,
    Mul,
    Pack,
    Shuffle,
    Splat,
    const,
    eq,
    lift,
    maximum,
    minimum,
    ne,
    select,
    zeros,
)
from convgen.ir.floats import absolute, fma
from convgen.ir.layout.digits import Digit, Index, Space, plus
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import TensorDim, View
from convgen.ir.record import evolve, frozen
from convgen.ir.sizes import Extent
from convgen.ir.types import Type, f32, s32, scalar, u8, u32, vector
from convgen.problem import eltwise, post_ops


@frozen
class Bias(Addend):
    """Add a tensor, a view with the axes N and M, which may be broadcast along either.

    The tensor is first multiplied by the number `scale` and, if there is one, by the tensor `factor`.
    """

    is_light = True

    view: View
    factor: View | None = None
    scale: Extent = 1

    @property
    def operands(self) -> tuple[tuple[str, View], ...]:
        return (("bias", self.view), *((("factor", self.factor),) if self.factor else ()))

    def term(self, elem: Type, loaded: Loaded) -> Expr:
        bias, *factors = loaded
        term = bias.as_type(elem, self._scaled)
        for factor in factors:
            term = term * factor.as_type(elem)
        return term

    def _scaled(self, elements: Expr) -> Expr:
        return elements if self.scale == 1 else elements * splat(self.scale, elements)


@frozen
class Affine(Step):
    """Multiply integer sums and add to them, modulo 2^32."""

    is_light = True

    scale: int
    shift: Extent

    def apply(self, k: KernelBuilder, total: Expr, loaded: Loaded) -> Expr:
        scaled = total if self.scale == 1 else total * splat(self.scale, total)
        return scaled if self.shift == 0 else scaled + splat(self.shift, total)


@frozen
class Scale(Step):
    """Multiply by numbers and tensors, or divide by one number or tensor, whose reciprocal is rounded to f32.

    The multipliers are multiplied together first, numbers before tensors.
    """

    numbers: tuple[np.float32, ...]
    views: tuple[View, ...]
    divides: bool = False

    @property
    def operands(self) -> tuple[tuple[str, View], ...]:
        return tuple(("scale", view) for view in self.views)

    def apply(self, k: KernelBuilder, total: Expr, loaded: Loaded) -> Expr:
        factor = _constant(self.numbers, divides=self.divides)
        terms = [scale.as_type(f32, self._reciprocal) for scale in loaded]
        if not terms:
            return total * factor
        first, *others = terms
        term = first if factor == 1 else first * factor
        for other in others:
            term = term * other
        return total * term

    def _reciprocal(self, elements: Expr) -> Expr:
        return functions.divide(lift(1.0, elements), elements) if self.divides else elements


def _constant(numbers: Sequence[np.float32], *, divides: bool) -> float:
    """Return the product of the numbers in f32, or its reciprocal; infinite or NaN where that overflows."""
    with np.errstate(all="ignore"):
        factor = reduce(mul, numbers, np.float32(1))
        return float(1 / factor if divides else factor)


@frozen
class Binary(Step):
    """Apply an operation to the sums and a tensor, both f32; a third tensor, `condition`, selects between them."""

    name: str
    view: View
    condition: View | None = None

    @property
    def operands(self) -> tuple[tuple[str, View], ...]:
        return ((self.name, self.view), *((("condition", self.condition),) if self.condition else ()))

    def apply(self, k: KernelBuilder, total: Expr, loaded: Loaded) -> Expr:
        operand = loaded[0].as_type(f32)
        if self.condition is None:
            return k.let(self.name, eltwise.BINARY[self.name](total, operand))
        chosen = loaded[1].as_type(s32)
        return k.let(self.name, select(ne(chosen, 0), total, operand))


@frozen
class Prelu(Step):
    """Multiply sums below zero by a tensor."""

    view: View

    @property
    def operands(self) -> tuple[tuple[str, View], ...]:
        return (("slope", self.view),)

    def apply(self, k: KernelBuilder, total: Expr, loaded: Loaded) -> Expr:
        slopes = loaded[0].as_type(f32)
        return k.let("prelu", select(total > 0.0, total, total * slopes))


@frozen
class Sum(Step):
    """Add the old values of the destination, a view with the axes of the result."""

    op: post_ops.Sum
    view: View

    @property
    def operands(self) -> tuple[tuple[str, View], ...]:
        return (("old", self.view),)

    def apply(self, k: KernelBuilder, total: Expr, loaded: Loaded) -> Expr:
        """Return the sums with the old values added; the post-op's type decides whether 8-bit integers have a sign."""
        term = loaded[0].as_type(f32, read_as=scalar(self.op.dtype) if self.op.dtype else None)
        if self.op.zero_point:
            term = term - float(self.op.zero_point)
        # With a factor of 1 an `fma` is a sum, and one instruction where the target reads f16 unconverted.
        return fma(term, 1.0, total) if self.op.scale == 1 else total + term * self.op.scale


@frozen
class Eltwise(Step):
    """Apply a function to each sum."""

    op: post_ops.Eltwise

    @property
    def keeps_rounded(self) -> bool:
        """Whether the function maps rounded numbers to rounded numbers, so that it may follow the rounding."""
        return self.op.name == "relu" and not self.op.alpha and self.op.scale == 1

    def apply(self, k: KernelBuilder, total: Expr, loaded: Loaded) -> Expr:
        op = self.op
        value = eltwise.FUNCTIONS[op.name](k.let("total", total), op.alpha, op.beta)
        return k.let(op.name, value if op.scale == 1 else value * op.scale)


@frozen
class ZeroPadding(Step):
    """Store zero in the padding of the result's blocks, whatever earlier steps produce there.

    `view` has the axes of the result, `sizes` are those of the tensor, without padding.
    """

    is_light = True

    view: View
    sizes: tuple[int, ...]

    def may_precede_sums(self, acc: Type) -> bool:
        """Return True: slices add nothing to padding (`views.without_padding`)."""
        return True

    def load(self, reader: Reader, layout: Fragment) -> Loaded:
        """Compute the coordinates along the dims that have padding."""
        return tuple(self._coordinate(reader, self.view.index[n], layout) for n in self._padded)

    def apply(self, k: KernelBuilder, total: Expr, loaded: Loaded) -> Expr:
        for n, place in zip(self._padded, loaded):
            exists = k.let("exists", place.as_type(s32) < self.sizes[n])
            total = select(exists, total, zeros(vector(total.type.elem, total.type.lanes)))
        return total

    @property
    def _padded(self) -> list[int]:
        return [n for n, (t, size) in enumerate(zip(self.view.index, self.sizes)) if t.size > size]

    def _coordinate(self, reader: Reader, t: TensorDim, layout: Fragment) -> Broadcast:
        """Return a coordinate of the tensor for each register of `layout`."""
        k, at, axes = reader.k, reader.at, axes_of(self.view, t)
        distinct, order = along(layout, [layout.dims[axis] for axis in axes if axis < 2])
        coordinates: list[Expr] = []
        for register in range(distinct.registers):
            place = distinct.coords(k.subgroup, Lane(), register)
            dims: dict[str, Index] = {}
            for axis in axes:
                dims |= self.view.decode(axis, plus(place[layout.dims[axis]], at[axis]) if axis < 2 else at[axis])
            coordinates.append(lift(t.at(dims), Lane()))
        return Broadcast(Pack(vector(s32, len(coordinates)), tuple(coordinates)), order)


@frozen
class ComputedScale(Grouping):
    """Divide groups of neighbours along the result's last dim by a scale, which is stored beside the result.

    NaNs have no part in it. Quotients saturate, and a NaN becomes the least number (oneDNN, ref_matmul.cpp).
    """

    view: View  #: scales, by the axes of the result
    result: View
    last: TensorDim  #: coordinate of the result's last dim, along which groups are; masks may follow it
    group: int  #: elements of a group
    to: Type  #: type of the result

    @property
    def views_written(self) -> tuple[View, ...]:
        return (self.view,)

    def suits(self, layout: Fragment) -> bool:
        """Whether groups are along one axis of the result, in order, and whole in a subgroup."""
        name = layout.dims[self._axis]
        for step, d in layout.factored(Space.REGISTER).factored(Space.LANE).stepped():
            within = d.dim == name and d.size > 1 and step < self.group
            if within and (d.space not in (Space.REGISTER, Space.LANE) or self.group % (step * d.size)):
                return False
        is_whole = layout.extent(name) % self.group == 0
        return is_whole and is_in_order(self.result, self._axis, self.last)

    @property
    def _axis(self) -> int:
        """Return the axis of the result along which groups are."""
        return next(axis for axis in axes_of(self.result, self.last) if axis < 2)

    def apply_to(self, k: KernelBuilder, total: Expr, layout: Fragment, at: Sequence[Expr | int]) -> Expr:
        name, most = layout.dims[self._axis], self.to.largest
        split = _in_groups(layout, name, self.group)
        greatest, of_groups = k.reduce("greatest", absolute(total), split, _WITHIN, Max)
        scales, inverse = self.scaled(k, maximum(greatest, 0.0))
        first = Digit(name, self.group, Space.FIXED, 0)
        k.store_view(self.view, at, scales, Fragment(layout.dims[:2], (first, *of_groups.digits)), "store", "scales")
        quotients = total * k.broadcast(k.let("inverse", inverse), of_groups, split)
        return minimum(maximum(quotients, -most), most)

    def scaled(self, k: KernelBuilder, greatest: Expr) -> tuple[Expr, Expr]:
        """Return the scales of groups with these greatest absolute values, to be stored, and their reciprocals in f32.

        Raises NotImplementedError in this base.
        """
        raise NotImplementedError


@frozen
class MxScale(ComputedScale):
    """The scale is a power of two: 2^(floor(log2(greatest)) - emax), at least 2^-127.

    2^emax is the greatest power of two of the result's type. The scale is NaN where the greatest value is infinite.
    """

    def scaled(self, k: KernelBuilder, greatest: Expr) -> tuple[Expr, Expr]:
        count, largest = greatest.type.lanes, int(np.log2(self.to.largest))
        exponents: Expr = Pack(vector(u32, count), (greatest,)) >> 23
        code = maximum(exponents.to(vector(s32, count)) - largest, 0)
        is_infinite = eq(exponents, 255)
        codes = k.let("codes", select(is_infinite, lift(255, code), code))
        scales: Expr = Pack(vector(self.view.memory.elem, count), (codes.to(vector(u8, count)),))
        power = select(is_infinite, lift(0x7FC00000, code), lift(254, code) - code << 23)
        return scales, Pack(vector(f32, count), (power,))


@frozen
class FpScale(ComputedScale):
    """The scale is the greatest value divided by the greatest number of the result's type, rounded to f8_e4m3.

    It is at least the type's epsilon, 2^-3.
    """

    def scaled(self, k: KernelBuilder, greatest: Expr) -> tuple[Expr, Expr]:
        stored, count, most = self.view.memory.elem, greatest.type.lanes, self.to.largest
        # The quotient, rounded once: its first estimate, and the rest that this leaves (Markstein).
        reciprocal = float(np.float32(1) / np.float32(most))
        estimate = k.let("estimate", greatest * reciprocal)
        quotient = fma(fma(estimate, -most, greatest), reciprocal, estimate)
        scale = minimum(quotient, stored.largest)  # infinite values make it NaN, of which `minimum` takes the number
        scales = k.let("scales", maximum(scale, _EPSILON).to(vector(stored, count)))
        bits: Expr = Pack(vector(u32, count), (scales.to(vector(f32, count)),))
        eighths = k.let("eighths", bits >> 20 & 7)
        inverse: Expr = Splat(vector(f32, count), const(1.0, f32))
        for n in range(1, 8):
            inverse = select(eq(eighths, n), lift(float(np.float32(1) / np.float32(1 + n / 8)), inverse), inverse)
        power: Expr = Pack(vector(f32, count), (lift(254, bits) - (bits >> 23) << 23,))
        return Pack(vector(stored, count), (scales,)), inverse * power


@frozen
class Gated(Grouping):
    """Multiply a function of the gate by up: two sums become one value."""

    op: post_ops.Glu
    axis: int  #: of the result, along which gate and up differ
    distance: int  #: positions along the axis from the gate to up

    @property
    def views_written(self) -> tuple[View, ...]:
        return ()

    def suits(self, layout: Fragment) -> bool:
        """Whether gate and up lie in registers or lanes of one subgroup."""
        gates = [d for d in self._split(layout).digits if d.dim == _GATE]
        return [(d.size, d.space in (Space.REGISTER, Space.LANE)) for d in gates] == [(2, True)]

    def apply_to(self, k: KernelBuilder, total: Expr, layout: Fragment, at: Sequence[Expr | int]) -> Expr:
        split = self._split(layout)
        (gate,) = (d for d in split.digits if d.dim == _GATE)
        if gate.space is Space.LANE:
            is_gate = eq(Lane() // gate.stride % 2, 0)
            factors = k.let("factors", select(is_gate, self._function(k, total), total))
            product, _ = k.reduce("gated", factors, split, _GATE, Mul)
            return Shuffle(product, tuple(range(layout.registers)))  # as `layout_after`, which has the gates' positions
        halves = [n // gate.stride % 2 for n in range(layout.registers)]
        of_gate, of_up = (Shuffle(total, tuple(n for n, half in enumerate(halves) if half == own)) for own in (0, 1))
        return k.let("gated", self._function(k, of_gate) * of_up)

    def layout_after(self, layout: Fragment) -> Fragment:
        """Return the layout of the gates alone."""
        name, split = layout.dims[self.axis], self._split(layout)
        digits = (Digit(name, 2, Space.FIXED, 0) if d.dim == _GATE else d for d in split.digits)
        return Fragment(layout.dims, tuple(digits)).renumbered(Space.REGISTER)

    def _function(self, k: KernelBuilder, gate: Expr) -> Expr:
        return Eltwise(self.op.function).apply(k, gate, ())

    def _split(self, layout: Fragment) -> Fragment:
        """Return the layout with a dim of its own along which gate and up differ."""
        name = layout.dims[self.axis]
        fine = layout.factored(Space.REGISTER).factored(Space.LANE)
        digits = (
            evolve(d, dim=_GATE) if d.dim == name and step <= self.distance < step * d.size else d
            for step, d in fine.stepped()
        )
        return Fragment((*layout.dims, _GATE), tuple(digits))


_GATE = "gate"  #: dim along which gate and up differ
_EPSILON = 2.0**-3  #: of f8_e4m3 (oneDNN, nstl.hpp)
_WITHIN = "in_group"  #: dim of the positions within a group


def _in_groups(layout: Fragment, name: str, group: int) -> Fragment:
    """Return a layout with the positions of a dim within each group as a dim of their own."""
    fine = layout.factored(Space.REGISTER).factored(Space.LANE)
    digits = (evolve(d, dim=_WITHIN) if d.dim == name and step < group else d for step, d in fine.stepped())
    return Fragment((*layout.dims, _WITHIN), tuple(digits))


@frozen
class Codes(Step):
    """Round numbers within the range of a type of 4 bits to its codes, a word each."""

    elem: Type

    def apply(self, k: KernelBuilder, total: Expr, loaded: Loaded) -> Expr:
        return narrow.codes(total, self.elem, saturate=True)


@frozen
class Convert(Step):
    """Round to the result's type; integers saturate. 8-bit floats are converted from floats only."""

    is_light = True

    elem: Type

    def may_precede_sums(self, acc: Type) -> bool:
        return self.elem is acc

    def apply(self, k: KernelBuilder, total: Expr, loaded: Loaded) -> Expr:
        if total.type.elem.is_int and self.elem.is_float and self.elem.bits == 8:
            total = total.to(vector(f32, total.type.lanes))
        return total.to(vector(self.elem, total.type.lanes), saturate=self.elem.is_int)


def splat(number: Extent, like: Expr) -> Expr:
    """Return a number, modulo 2^32, in each element of a vector of 32-bit integers."""
    elem = like.type.elem
    wrapped = const((number - elem.min) % (1 << elem.bits) + elem.min, elem) if isinstance(number, int) else number
    return Splat(vector(elem, like.type.lanes), wrapped)
