"""Operands of element-wise instructions: registers, immediates and signs.

Narrow elements share dwords, and instructions work on all of them in place, with more lanes. A value that is equal in
all elements is one operand: an immediate, or the register of a scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from convgen.backends.intel.byte_gather import UNSIGNED
from convgen.backends.intel.emitter import XeEmitter
from convgen.backends.intel.isa import TYPE_BYTES, Literal, Region, region
from convgen.backends.intel.operations import TYPES
from convgen.backends.intel.scalars import XeScalars
from convgen.backends.machine.instruction import Imm, Operand, Reg
from convgen.backends.machine.scalars import retyped
from convgen.backends.machine.vectors import WORD_BYTES, Parts, Vectors, single_words
from convgen.ir import expr as x
from convgen.ir.error import Unsupported
from convgen.ir.expr import Expr
from convgen.ir.floats import Abs, Neg
from convgen.ir.types import AnyType, Type, VectorType

Words = Callable[[int], Operand]  #: dword number of the result -> operand


class Operands(Vectors):
    """Evaluates values as operands, dword by dword. Only the `last` source of an instruction may be an immediate."""

    out: XeEmitter
    scalars: XeScalars

    def operand(self, e: Expr, *, last: bool) -> Words:
        """Return a value as a source, with signs as modifiers."""
        signs, inner = _signs(e)
        return self._typed(inner, signs, last=last)

    def typed(self, e: Expr, *, last: bool) -> Words:
        """Return a value as a source without modifiers."""
        return self._typed(e, "", last=last)

    def bits(self, e: Expr, width: int, *, last: bool) -> Words:
        """Return the bits of a value's dwords as elements of `width` bits, without modifiers."""
        check(e.type)
        elem, inner, kind = e.type.elem, uniform(e), UNSIGNED[width // 8]
        if not isinstance(inner, x.Const):
            source = self.typed(e, last=last)
            return lambda n: as_type(source(n), kind)
        pattern = inner.bits & (1 << elem.bits) - 1
        if width == 32 and e.type.lanes > 1:
            pattern = sum(pattern << i for i in range(0, 32, elem.bits))
        return self._immediate(Literal(pattern, kind), last=last)

    def registers(self, parts: Parts, kind: str, signs: str) -> Words:
        """Return the registers of a value as sources."""
        words = single_words(parts)
        return lambda n: region(words[n], kind, 0, _stride(words[n]), signs=signs)

    def _typed(self, e: Expr, signs: str, *, last: bool) -> Words:
        check(e.type)
        kind, inner = TYPES[e.type.elem], uniform(e)
        if isinstance(inner, x.Const):
            sign = 1 << inner.type.bits - 1
            bits = (inner.bits & ~sign if "(abs)" in signs else inner.bits) ^ (sign if signs[:1] == "-" else 0)
            literal = self.out.source(Imm(bits), kind)
            assert isinstance(literal, Literal)
            return self._immediate(literal, last=last)
        if isinstance(e, x.Splat):
            word = self.in_all_elements(e.a)
            return lambda n: region(word, kind, 0, _stride(word), signs=signs)
        return self.registers(self.vector_registers(e), kind, signs)

    def _immediate(self, literal: Literal, *, last: bool) -> Words:
        operand: Operand = literal if last else region(self.out.constant(literal), literal.type, 0, 0)
        return lambda n: operand

    def in_all_elements(self, a: Expr) -> Reg:
        """Return a register with the scalar in all elements of its dwords: one dword per lane, or one for all lanes."""
        known = self.scalars.env.get(a) if isinstance(a, x.Var) else None
        if a.type.bits == 32 and isinstance(known, Reg):
            return known
        word = self.tuple_of(self.vector_registers(a))
        if a.type.bits == 32:
            return word
        part = region(word, UNSIGNED[a.type.bits // 8], 0, 32 // a.type.bits)
        return self.side_by_side(part.type, *[part] * part.stride)

    def side_by_side(self, kind: str, *parts: Region) -> Reg:
        """Return dwords that consist of the parts, the first one lowest."""
        dst = self.out.new("v")
        for n, of in enumerate(parts):
            to = region(dst, kind, n, len(parts))
            self.out.emit("mov", (to,), (of,), lanes=self.out.lanes, partial=n > 0)
        return dst

    # ------------------------------------------------------------ results

    def result(self, type: AnyType) -> tuple[Reg, list[Reg]]:
        """Return registers for a value, and each of its dwords."""
        check(type)
        dst = self.out.new("v", -(-type.bits // 32))
        return dst, single_words((dst,))

    def lanes(self, kind: str) -> int:
        """Return how many elements of a type the dwords of all lanes hold."""
        return self.out.lanes * WORD_BYTES // TYPE_BYTES[kind]

    def element_op(
        self,
        name: str,
        into: Region,
        *sources: Operand,
        condition: str = "",
        predicate: Reg | None = None,
        modifiers: Sequence[str] = (),
    ) -> None:
        """Emit an instruction on the elements of a dword of each lane."""
        lanes = self.lanes(into.type)
        self.out.emit(
            name, (into,), sources, lanes=lanes, condition=condition, predicate=predicate, modifiers=modifiers
        )


def in_pairs(words: Sequence[Reg]) -> Iterator[list[tuple[int, Reg]]]:
    """Yield dwords with their numbers in pairs: with two flags at a time, neither waits for the use of the other."""
    numbered = list(enumerate(words))
    return (numbered[at : at + 2] for at in range(0, len(numbered), 2))


def check(type: AnyType) -> None:
    """Raise Unsupported for types that no element-wise instruction supports."""
    if type.elem not in TYPES or (type.lanes > 1 and type.bits % 32):
        raise Unsupported(f"given an operation on {type}, wanted whole dwords of elements of up to 32 bits")


def _signs(e: Expr) -> tuple[str, Expr]:
    """Return the sign modifiers of a value, and the value without them."""
    signs = ""
    if isinstance(e, Neg):
        signs, e = "-", e.a
    if isinstance(e, Abs):
        signs, e = f"{signs}(abs)", e.a
    return signs, e


def _stride(r: Reg) -> int:
    return int(r.bank != "s")


def as_type(o: Operand, kind: str) -> Operand:
    """Return the bits of an operand as another type of equal size."""
    if isinstance(o, Literal):
        return Literal(o.value, kind)
    assert isinstance(o, Reg)
    return region(o, kind, 0, _stride(o))


def uniform(e: Expr) -> Expr:
    """Return the value of all elements, or the vector itself."""
    return e.a if isinstance(e, x.Splat) else e


def is_constant(e: Expr) -> bool:
    """Return whether an operand is one constant for all elements."""
    return isinstance(uniform(e), x.Const)


def number(n: float, type: AnyType) -> Expr:
    """Return a value with that number in all elements."""
    one = x.const(n, type.elem)
    return x.Splat(type, one) if isinstance(type, VectorType) else one


def in_wider(e: Expr, wide: Type) -> Expr:
    """Return a value as elements of a wider type."""
    inner, type = uniform(e), retyped(e.type, wide)
    return number(inner.value, type) if isinstance(inner, x.Const) else e.to(type)
