"""Selection of vector-typed values: pack, join, convert and multiply words on Xe.

Narrow elements share the dword of their lane, the first one lowest: a GRF holds elements 0 and 1 of all lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from weakref import proxy

from convgen.backends.intel.byte_gather import UNSIGNED, gather_words
from convgen.backends.intel.conversions import in_steps
from convgen.backends.intel.elements import Elements
from convgen.backends.intel.isa import ACCUMULATORS_AT, Literal, Null, dpas, region
from convgen.backends.intel.operations import CONVERSIONS, TYPES
from convgen.backends.intel.scalars import XeScalars
from convgen.backends.intel.tables import MATRIX
from convgen.backends.machine.instruction import Operand, Reg
from convgen.backends.machine.scalars import retyped
from convgen.backends.machine.vectors import WORD_BYTES, Byte, ByteNumbers, Parts, view
from convgen.ir.error import Unsupported
from convgen.ir.expr import Cast, Expr, Saturate, Var
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.text import in_short
from convgen.ir.types import Type, VectorType, bf16, f16, f32, s8, u8

#: element type -> type of a dword of such elements on the vector engine
_DWORDS: dict[Type, str] = {f32: "f", s8: "d", u8: "ud"}


class XeVectors(Elements):
    """Evaluates vector expressions."""

    accumulators_at = ACCUMULATORS_AT

    def __init__(self, scalars: XeScalars, uses: Mapping[Var, int]) -> None:
        super().__init__(scalars, uses)
        scalars.elements = proxy(self)  # a weak reference: a cycle would keep all code alive until it is collected

    def _pack(self, parts: tuple[Expr, ...]) -> Parts:
        out: list[Reg] = []
        narrow: list[tuple[Reg, int]] = []  # elements of an incomplete dword, with their bits
        for p in parts:
            registers = self.vector_registers(p)
            if p.type.bits % 32 == 0 and not narrow:
                out.extend(registers)
                continue
            narrow.append((self.tuple_of(registers), p.type.bits))
            if sum(bits for _, bits in narrow) == 32:
                out.append(self._packed_dword(narrow))
                narrow = []
        if narrow:
            out.append(self._packed_dword(narrow))
        return tuple(out)

    def _packed_dword(self, pieces: list[tuple[Reg, int]]) -> Reg:
        """Join narrow values in one dword."""
        if len(pieces) == 1:
            return pieces[0][0]
        wanted = tuple(WORD_BYTES * n + i for n, (_, bits) in enumerate(pieces) for i in range(bits // 8))
        return self._gather([register for register, _ in pieces], [wanted])

    def _bits(self, word: Reg, offset: int, bits: int) -> Reg:
        if offset % 8 or bits % 8:  # not whole bytes: moves cannot extract them
            dst, moved = self.out.new("v"), (region(word, "ud"), Literal(offset, "uw"))
            self.out.emit("shr", (region(dst, "ud"),), moved, lanes=self.out.lanes)
            return dst
        if offset % bits or bits // 8 not in UNSIGNED:
            return self._gather([word], [tuple(range(offset // 8, (offset + bits) // 8))])
        dst, part = self.out.new("v"), region(word, UNSIGNED[bits // 8], offset // bits, 32 // bits)
        self.out.emit("mov", (region(dst, "ud"),), (part,), lanes=self.out.lanes)
        return dst

    def _gather(self, sources: Sequence[Reg], byte_numbers: Sequence[ByteNumbers]) -> Reg:
        return gather_words(self.out, sources, byte_numbers)

    def _convert(self, to: VectorType, e: Cast | Saturate) -> Reg:
        if (steps := in_steps(e)) is not None:
            return self.tuple_of(self.vector_registers(steps))
        of, saturates = e.a.type, isinstance(e, Saturate)
        integers = of.elem.is_int and to.elem.is_int
        if integers and not saturates and of.elem.bits == to.elem.bits:
            return self.tuple_of(self.vector_registers(e.a))
        narrows = integers and 8 <= to.elem.bits < of.elem.bits  # moves bring whole bytes
        first, wraps = CONVERSIONS.get((of.elem, to.elem)), narrows and not saturates
        if (first is None and not wraps) or (saturates and not narrows):
            raise Unsupported(f"given a conversion from {of} to {to}, wanted one that moves make: {in_short(e)}")
        if first not in (None, to.elem):
            return self.tuple_of(self.vector_registers(e.a.to(retyped(of, first)).to(e.type)))
        source = self.vector_registers(e.a)
        dst = self.out.new("v", -(-to.bits // 32))
        for n in range(to.lanes):
            (word, place), (at, part) = divmod(n, 32 // to.elem.bits), divmod(n, 32 // of.elem.bits)
            (read,) = view(source, at, 1)
            into = dst.words(word, 1)
            if wraps:
                self._low_bits(into, place, to.elem, read, part * of.elem.bits // to.elem.bits)
            else:
                self._convert_element(into, place, to.elem, read, part, of.elem, saturates)
        return dst

    def _low_bits(self, into: Reg, place: int, to: Type, source: Reg, part: int) -> None:
        """Set element `place` of each dword of `into` to bits of `source`, beginning at its element `part`."""
        kind, apart = UNSIGNED[to.bytes], 32 // to.bits
        written, read = region(into, kind, place, apart), region(source, kind, part, apart)
        self.out.emit("mov", (written,), (read,), lanes=self.out.lanes, partial=place > 0)

    def _convert_element(
        self, into: Reg, place: int, to: Type, source: Reg, part: int, of: Type, saturates: bool
    ) -> None:
        """Convert element `part` of each dword of `source` to element `place` of `into`; place 0 begins a new dword.

        From Xe 12.5 on, an f16 that is converted from or to a dword is in the lowest bits of that dword, and any
        narrower destination begins where its source does (PRM, General Restrictions Based on Operand Types): bit moves
        bring it elsewhere. A bf16 may be the upper half (IGC, HWConformity.cpp, `fixUnalignedRegions`).
        """
        out, apart = self.out, 32 // to.bits
        if of is bf16:  # bf16 is the upper half of an f32, and cannot be the source of a conversion
            bits = region(source, "uw", part, 2), Literal(16, "uw")
            out.emit("shl", (region(into, "ud"),), bits, lanes=out.lanes)
            return
        if of is f16 and part:
            source, part = self._bits(source, of.bits, of.bits), 0
        written = region(into, TYPES[to], place, apart, saturated=saturates)
        read = region(source, TYPES[of], part, 32 // of.bits)
        if place and to is not bf16:
            low = region(out.new("v"), TYPES[to], 0, apart, saturated=saturates)
            out.emit("mov", (low,), (read,), lanes=out.lanes)
            written, read = (region(r, UNSIGNED[to.bytes], r.sub, apart) for r in (written, low))
        out.emit("mov", (written,), (read,), lanes=out.lanes, partial=place > 0)

    def across(self, e: Expr) -> Reg:
        """Return element n of all lanes packed, then element n + 1: lanes share dwords if elements are narrow.

        A conversion from 32 bits packs directly (mixed mode packs: PRM, "Register Region Restrictions").
        """
        if e.type.elem.bits == 32:
            return self.tuple_of(self.value(e))
        elem, whole, kinds = e.type.elem, e, (UNSIGNED[e.type.elem.bytes],) * 2  # kinds: written, read
        of = e.a.type.elem if isinstance(e, Cast) else elem
        if isinstance(e, Cast) and of.bits == 32 and CONVERSIONS.get((of, elem)) is elem:
            whole, kinds = e.a, (TYPES[elem], TYPES[of])
        source, lanes, dst = self.value(whole), self.out.lanes, self.out.new("v", -(-e.type.bits // 32))
        wide = whole.type.elem.bits
        for n in range(e.type.lanes):
            word, part = divmod(n, 32 // elem.bits)
            at, sub = divmod(n * wide, 32)
            (register,) = view(source, at, 1)
            to = region(dst.words(word, 1), kinds[0], part * lanes)
            read = region(register, kinds[1], sub // wide, 32 // wide)
            self.out.emit("mov", (to,), (read,), lanes=lanes, partial=part > 0)
        return dst

    def _fill(self, dst: Reg, words: Sequence[int]) -> None:
        if len(words) > 1:
            raise Unsupported(f"given a constant of {32 * len(words)} bits, wanted one of at most 32")
        self.out.fill(dst, Literal(words[0], "ud"))

    def _order(self, tiles_n: int, tiles_m: int) -> Iterable[tuple[int, int]]:
        """Walk along rows of source 2, so that instructions that share source 1 are adjacent."""
        return product(range(tiles_n), range(tiles_m))

    def _multiply(
        self, atom: MmaAtom, dst: Reg, start: Reg | None, a: Reg, b: Reg, scales: Sequence[Byte], comment: str
    ) -> None:
        multiply = self._dpas if MATRIX[atom.name].systolic else self._multiply_adds
        multiply(atom, dst, start, a, b, comment)

    def _dpas(self, atom: MmaAtom, dst: Reg, start: Reg | None, a: Reg, b: Reg, comment: str) -> None:
        first, second = ("tf32" if atom.rounds_to else TYPES[t] for t in (atom.a_elem, atom.b_elem))
        sums = TYPES[atom.acc]
        before: Operand = Null(sums) if start is None else region(start, sums)
        operands = (before, region(a, first), region(b, second))
        code = dpas(MATRIX[atom.name].mnemonic, atom.clocks)
        self.out.emit(code, (region(dst, sums),), operands, lanes=self.out.lanes, comment=comment)

    def _multiply_adds(self, atom: MmaAtom, dst: Reg, start: Reg | None, a: Reg, b: Reg, comment: str) -> None:
        """Multiply row by row of the result, one lane of b at a time."""
        name = MATRIX[atom.name].mnemonic
        first, second, sums = _DWORDS[atom.a_elem], _DWORDS[atom.b_elem], TYPES[atom.acc]
        for j in range(atom.m):
            row, factors = dst.words(j, 1), (region(a, first), region(b, second, j, 0))
            addend = self._zero(name) if start is None else region(start.words(j, 1), sums)
            self.out.emit(name, (region(row, sums),), (addend, *factors), lanes=self.out.lanes, comment=comment)
            comment = ""

    def _zero(self, name: str) -> Operand:
        """Return the first addend: plus zero. A product of minus zero loses its sign, which the IR leaves open."""
        return Literal(0, "w") if name == "dp4a" else region(self.out.kernel_constant(Literal(0, "ud")), "f", 0, 0)
