"""Selection of element-wise operations on vectors, and on floats and narrow integers of one element a lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, cast

from convgen.backends.intel.byte_gather import UNSIGNED
from convgen.backends.intel.comparisons import LOGIC, Comparisons
from convgen.backends.intel.exchange import from_lanes
from convgen.backends.intel.isa import Literal, Region, region
from convgen.backends.intel.operands import Words, as_type, in_pairs, in_wider, is_constant, number, uniform
from convgen.backends.intel.operations import BINARY, COMMUTES, EXTREMA, TYPES, UNARY, WIDER
from convgen.backends.machine.instruction import Reg
from convgen.backends.machine.vectors import Parts, single_words
from convgen.ir import expr as x
from convgen.ir.expr import Expr
from convgen.ir.floats import Abs, Cos, Fma, Neg, Sin
from convgen.ir.types import Type, VectorType, f16, f32, vector

_REVOLUTION = 0x40C90FDB  #: f32 bits; radians of a revolution


class Elements(Comparisons):
    """Evaluates operations element by element."""

    elementwise: ClassVar = BINARY

    def value(self, e: Expr) -> Parts:
        if isinstance(e, x.Var) and e not in self.env and e in self.scalars.env:  # an argument
            return (self.out.move_to_vector(self.scalars.value(e)),)
        if e.type.elem.is_bool and not isinstance(e, x.Var):
            return tuple(self.masks(e, 32))
        return super().value(e)

    def computed(self, e: Expr) -> Parts:
        kind, wide = type(e), WIDER.get(e.type.elem)
        if kind in UNARY and e.type.elem is f32:
            return (self._unary(cast(x.Unary, e)),)
        if kind in _KINDS:
            return (_KINDS[kind](self, e),)
        if kind in UNARY and e.type.elem is f16:
            wide = f32
        if wide is None or not isinstance(e, (x.Unary, x.Binary)):
            return super().computed(e)
        result: Expr = type(e)(*(in_wider(c, wide) for c in e.children()))
        return self.value(result.to(e.type))

    def filled(self, dtype: VectorType, a: Expr, into: Reg | None = None) -> Reg:
        if isinstance(a, x.Const) and not dtype.elem.is_bool:
            return super().filled(dtype, a, into)
        word = self.spread(self.scalars.mask(a)) if dtype.elem.is_bool else self.in_all_elements(a)
        dst = into or self.out.new("v", dtype.lanes if dtype.elem.is_bool else -(-dtype.bits // 32))
        for n in range(dst.count):
            self.out.move(dst.words(n, 1), word)
        return dst

    # ------------------------------------------------------------ two operands

    def _element_by_element(self, name: str, e: x.Binary) -> Reg:
        """Compute an operation on two values by the row `name`, dword by dword."""
        a, b, elem = e.a, e.b, e.type.elem
        # The zero that a sum begins with stays the first operand, in registers of its own.
        starts_sum = name == "add" and isinstance(a, x.Splat) and _is_zero(a)
        if name in COMMUTES and is_constant(a) and not starts_sum:
            a, b = b, a
        if name == "sub" and elem.is_float:
            name, b = "add", -b
        if name == "mul" and elem.bits == 32 and elem.is_int:
            name = "mul16" if _is_short(b) else "mul32"
        source = self.typed if name in EXTREMA else self.operand
        first_operand = self.registers(self.value(a), TYPES[elem], "") if starts_sum else source(a, last=False)
        second_operand = source(b, last=name not in ("sub", "mul32", "mulhi"))  # the others take an immediate
        if name in EXTREMA and elem.is_float:
            return self._extremum(name, e, first_operand, second_operand, uniform(b))
        dst, into = self.result(e.type)
        for n, to in enumerate(into):
            self._operate(name, elem, cast(Reg, first_operand(n)), cast(Reg, second_operand(n)), to)
        return dst

    def _operate(self, name: str, elem: Type, a: Reg, b: Reg, into: Reg) -> None:
        to = region(into, TYPES[elem])
        if name == "mul16":
            self.element_op("mul", to, a, as_type(b, "uw"))
        elif name == "mul32":
            self.scalars.product(a, b, to.type, into=into)
        elif name == "mulhi":
            self.scalars.product(a, b, "ud", high=True, into=into)
        elif name == "sub":
            self.element_op("add", to, a, self.scalars.negated(b, to.type))
        elif name in EXTREMA:
            self.element_op("sel", to, a, b, condition=EXTREMA[name][0])
        else:
            self.element_op(name, to, a, b)

    def _extremum(self, name: str, e: x.Binary, a: Words, b: Words, other: Expr) -> Reg:
        """Compute a minimum or maximum, with a defined result for NaN and for zeros of different signs.

        For a NaN and a number `sel` gives the number (IGC, MIN_MAX.md); no manual says which of two zeros it gives.
        Where operands are equal except for the sign of a zero, logic on their bits gives the result. If the `other`
        operand of a maximum is zero, it is added: minus zero plus zero is zero.
        """
        (condition, bitwise), kind = EXTREMA[name], TYPES[e.type.elem]
        bits = UNSIGNED[e.type.elem.bytes]
        dst, into = self.result(e.type)
        added = name == "max" and _is_zero(other)
        for n, word in enumerate(into):
            to = region(word, kind)
            self.element_op("sel", to, a(n), b(n), condition=condition)
            if added:
                self.element_op("add", to, to, b(n))
        if added or (isinstance(other, x.Const) and other.value):
            return dst
        for pair in in_pairs(into):
            equal = [self.compare("eq", kind, a(n), b(n)) for n, _ in pair]
            for flag, (n, word) in zip(equal, pair):
                self.element_op(bitwise, region(word, bits), as_type(a(n), bits), as_type(b(n), bits), predicate=flag)
        return dst

    def _bitwise(self, e: Expr) -> Reg:
        assert isinstance(e, x.Binary)
        a, b = (e.b, e.a) if is_constant(e.a) else (e.a, e.b)
        left, right = self.bits(a, 32, last=False), self.bits(b, 32, last=True)
        dst, into = self.result(e.type)
        for n, to in enumerate(into):
            self.element_op(LOGIC[type(e)], region(to, "ud"), left(n), right(n))
        return dst

    # ------------------------------------------------------------ one, and three

    def _unary(self, e: x.Unary) -> Reg:
        source = self.operand(e.a, last=False)
        dst, into = self.result(e.type)
        results = [region(to, "f") for to in into]
        if type(e) in (Sin, Cos):
            self._radians(source, results)
            source = results.__getitem__
        for n, to in enumerate(results):
            self.element_op(UNARY[type(e)], to, source(n))
        return dst

    def _radians(self, turns: Words, into: list[Region]) -> None:
        """Reduce turns to the fraction nearest to zero, which is exact, and convert to radians."""
        for n, to in enumerate(into):
            self.element_op("rnde", to, turns(n))
        for n, to in enumerate(into):
            self.element_op("add", to, turns(n), self.scalars.negated(to, "f"))
        for to in into:
            self.element_op("mul", to, to, Literal(_REVOLUTION, "f"))

    def _changed(self, e: Expr) -> Reg:
        """Change bits of each element: the sign of a float, or all bits of an integer."""
        assert isinstance(e, x.Unary)
        bits = e.type.elem.bits
        sign = sum(1 << i for i in range(bits - 1, 32, bits))
        name, *mask = {x.Not: ("not",), Neg: ("xor", sign), Abs: ("and", sign ^ 0xFFFFFFFF)}[type(e)]
        source = self.bits(e.a, 32, last=False)
        dst, into = self.result(e.type)
        for n, to in enumerate(into):
            self.element_op(str(name), region(to, "ud"), source(n), *(Literal(int(m), "ud") for m in mask))
        return dst

    def _fma(self, e: Expr) -> Reg:
        assert isinstance(e, Fma)
        sources = [self.operand(o, last=False) for o in (e.c, e.a, e.b)]
        dst, into = self.result(e.type)
        for n, to in enumerate(into):
            self.element_op("mad", region(to, TYPES[e.type.elem]), *(source(n) for source in sources))
        return dst

    def from_lane(self, e: Expr) -> Reg:
        """Read other lanes word by word, for any element type."""
        assert isinstance(e, x.FromLane)
        return from_lanes(self.scalars, single_words(self.vector_registers(e.a)), e)

    def converted(self, e: Expr) -> Reg:
        """Return a conversion to the elements of its type, vector or not."""
        assert isinstance(e, (x.Cast, x.Saturate))
        if not e.a.type.elem.is_bool:
            return self._convert(e.type if isinstance(e.type, VectorType) else vector(e.type, 1), e)
        return self.tuple_of(self.vector_registers(x.Select(e.a, number(1, e.type), number(0, e.type))))


def _is_short(e: Expr) -> bool:
    """Return whether an operand is one 16-bit constant in all elements: multiplying by it is one instruction."""
    inner = uniform(e)
    return isinstance(inner, x.Const) and 0 <= inner.value < 1 << 16


def _is_zero(e: Expr) -> bool:
    """Return whether all elements are the constant zero without a sign."""
    inner = uniform(e)
    return isinstance(inner, x.Const) and not inner.bits


_KINDS: dict[type[Expr], Callable[[Elements, Expr], Reg]] = {
    Fma: Elements._fma,
    **dict.fromkeys((Neg, Abs, x.Not), Elements._changed),
    **dict.fromkeys(LOGIC, Elements._bitwise),
    **dict.fromkeys((x.Cast, x.Saturate), Elements.converted),
    x.Select: Elements.select,
    x.FromLane: Elements.from_lane,
    x.Const: lambda elements, e: elements.filled(vector(e.type.elem, 1), e),
    x.Uniform: lambda elements, e: elements.tuple_of(elements.value(cast(x.Uniform, e).a)),
}
