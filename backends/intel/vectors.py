"""Selection of vector-typed values: how Xe packs, joins, converts and multiplies words.

Narrow elements share the dword of their lane, the first one lowest: a GRF holds elements 0 and 1 of all lanes side by
side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import ClassVar

from convgen.backends.intel.emitter import XeEmitter
from convgen.backends.intel.isa import ACCUMULATORS_AT, Literal, Null, dpas, region
from convgen.backends.machine import Operand, Reg
from convgen.backends.vectors import Parts, Vectors, view
from convgen.ir.error import Unsupported
from convgen.ir.expr import Add, Cast, Expr, Saturate
from convgen.ir.mma import MmaAtom
from convgen.ir.types import Type, VectorType, bf16, f16, f32

#: element type -> IGA's name
_TYPES: dict[Type, str] = {f16: "hf", bf16: "bf", f32: "f"}
_BITS = {8: "ub", 16: "uw"}  #: types that only move bits
#: Conversions that one `mov` makes, rounding to nearest even.
_CONVERSIONS = frozenset(((f32, f16), (f16, f32), (f32, bf16), (bf16, f32)))


class XeVectors(Vectors):
    """Evaluates vector expressions."""

    out: XeEmitter
    elementwise: ClassVar = {(Add, f32): "add"}
    accumulators_at = ACCUMULATORS_AT

    def _pack(self, parts: tuple[Expr, ...]) -> Parts:
        out: list[Reg] = []
        narrow: list[tuple[Reg, int]] = []  # elements of a dword that is not full yet, with their bits
        for p in parts:
            held = self.tuple_of(self.held(p))
            if p.type.bits % 32 == 0 and not narrow:
                out.append(held)
                continue
            narrow.append((held, p.type.bits))
            if sum(bits for _, bits in narrow) == 32:
                out.append(self._joined(narrow))
                narrow = []
        if narrow:
            out.append(self._joined(narrow))
        return tuple(out)

    def _joined(self, pieces: list[tuple[Reg, int]]) -> Reg:
        """Values of 16 bits in the halves of a dword."""
        if len(pieces) == 1:
            return pieces[0][0]
        if any(bits != 16 for _, bits in pieces):
            raise Unsupported(f"given parts of {[bits for _, bits in pieces]} bits, wanted pairs of 16")
        (low, _), (high, _) = pieces
        dst = self.out.new("v")
        self._join_halves((low, 0), (high, 0), dst)
        return dst

    def _bits(self, word: Reg, offset: int, bits: int) -> Reg:
        if (offset, bits) != (16, 16):
            raise Unsupported(f"given a slice at bit {offset} of {bits} bits, wanted one half")
        dst = self.out.new("v")
        self.out.emit("mov", (region(dst, "ud"),), (region(word, "uw", 1, 2),), lanes=self.out.lanes)
        return dst

    def _join_halves(self, low: tuple[Reg, int], high: tuple[Reg, int], into: Reg) -> None:
        for half, (r, of) in enumerate((low, high)):
            to, at = region(into, "uw", half, 2), region(r, "uw", of, 2)
            self.out.emit("mov", (to,), (at,), lanes=self.out.lanes, partial=half > 0)

    def _operate(self, name: str, elem: Type, a: Reg, b: Reg, into: Reg) -> None:
        self.out.alu(name, _TYPES[elem], a, b, into=into)

    def _convert(self, to: VectorType, e: Cast | Saturate) -> Reg:
        of, source = e.a.type, self.value(e.a)
        if isinstance(e, Saturate) or (of.elem, to.elem) not in _CONVERSIONS:
            raise Unsupported(f"given a conversion from {of} to {to}, wanted one between f32 and f16 or bf16: {e}")
        dst = self.out.new("v", max(1, to.bits // 32))
        begun: dict[int, None] = {}
        for n in range(to.lanes):
            word, half = divmod(n * to.elem.bits, 32)
            at, part = divmod(n * of.elem.bits, 32)
            (held,) = view(source, at, 1)
            written = region(dst.words(word, 1), _TYPES[to.elem], half // to.elem.bits, 32 // to.elem.bits)
            if of.elem is bf16:  # the upper half of the float, and no source of a conversion
                bits = region(held, "uw", part // of.elem.bits, 32 // of.elem.bits), Literal(16, "uw")
                self.out.emit("shl", (region(written, "ud"),), bits, lanes=self.out.lanes)
                continue
            read = region(held, _TYPES[of.elem], part // of.elem.bits, 32 // of.elem.bits)
            self.out.emit("mov", (written,), (read,), lanes=self.out.lanes, partial=word in begun)
            begun[word] = None
        return dst

    def across(self, e: Expr) -> Reg:
        """Element n of all lanes side by side, then element n + 1: where they are narrow, lanes share dwords.

        A conversion from 32 bits writes them so at once (mixed mode packs: PRM, "Register Region Restrictions").
        """
        if e.type.elem.bits == 32:
            return self.tuple_of(self.value(e))
        packs = isinstance(e, Cast) and e.a.type.elem.bits == 32 and (e.a.type.elem, e.type.elem) in _CONVERSIONS
        whole = e.a if packs and isinstance(e, Cast) else e
        kinds = [_TYPES[x.type.elem] if packs else _BITS[e.type.elem.bits] for x in (e, whole)]
        source, lanes, dst = self.value(whole), self.out.lanes, self.out.new("v", e.type.bits // 32)
        each, wide = 32 // e.type.elem.bits, whole.type.elem.bits
        for n in range(e.type.lanes):
            word, part = divmod(n, each)
            at, sub = divmod(n * wide, 32)
            (held,) = view(source, at, 1)
            to, of = region(dst.words(word, 1), kinds[0], part * lanes), region(held, kinds[1], sub // wide, 32 // wide)
            self.out.emit("mov", (to,), (of,), lanes=lanes, partial=part > 0)
        return dst

    def _fill(self, dst: Reg, words: Sequence[int]) -> None:
        if len(words) > 1:
            raise Unsupported(f"given a constant of {32 * len(words)} bits, wanted one of at most 32")
        self.out.fill(dst, Literal(words[0], "ud"))

    def _order(self, tiles_i: int, tiles_j: int) -> Iterable[tuple[int, int]]:
        """Rows of source 2 follow one another, so the instructions that share source 1 do."""
        return product(range(tiles_i), range(tiles_j))

    def _multiply(self, atom: MmaAtom, dst: Reg, start: Reg | None, a: Reg, b: Reg, comment: str) -> None:
        multiply = self._multiply_adds if atom.k == 1 else self._dpas
        multiply(atom, dst, start, a, b, comment)

    def _dpas(self, atom: MmaAtom, dst: Reg, start: Reg | None, a: Reg, b: Reg, comment: str) -> None:
        kind = "tf32" if atom.rounds_to else _TYPES[atom.ab]
        before: Operand = Null("f") if start is None else region(start, "f")
        operands = (before, region(a, kind), region(b, kind))
        code = dpas(atom.name.rpartition(".")[0], atom.passes)
        self.out.emit(code, (region(dst, "f"),), operands, lanes=self.out.lanes, comment=comment)

    def _multiply_adds(self, atom: MmaAtom, dst: Reg, start: Reg | None, a: Reg, b: Reg, comment: str) -> None:
        """Row by row of the result, one lane of b at a time; a product without a start has nothing to add to."""
        for j in range(atom.cols):
            row, factors = dst.words(j, 1), (region(a, "f"), region(b, "f", j, 0))
            addends = () if start is None else (region(start.words(j, 1), "f"),)
            name = "mad" if addends else "mul"
            self.out.emit(name, (region(row, "f"),), (*addends, *factors), lanes=self.out.lanes, comment=comment)
            comment = ""
