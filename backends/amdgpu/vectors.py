"""Selection of vector-typed values: pack, join, convert and multiply words on CDNA.

Values narrower than a word lie in the low bits of a word.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from weakref import proxy

from convgen.backends.amdgpu.bytes import gather_words
from convgen.backends.amdgpu.conversions import convert, plan
from convgen.backends.amdgpu.elements import Elements
from convgen.backends.amdgpu.emitter import signed
from convgen.backends.amdgpu.isa import MATRIX
from convgen.backends.amdgpu.scalars import AmdScalars
from convgen.backends.machine.conversions import round_to_odd
from convgen.backends.machine.instruction import Imm, Operand, Reg
from convgen.backends.machine.scalars import retyped
from convgen.backends.machine.vectors import Byte, ByteNumbers, Parts, view
from convgen.ir.error import Unsupported
from convgen.ir.expr import Cast, Const, Expr, Saturate, Splat, Var
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.products import BlockMma
from convgen.ir.text import in_short
from convgen.ir.types import Type, VectorType, bf16, f32, s32, u32


class AmdVectors(Elements):
    """Evaluates vector expressions."""

    def __init__(self, scalars: AmdScalars, uses: Mapping[Var, int], facts: TargetFacts, *, in_pairs: bool) -> None:
        """Prepare evaluation. With `in_pairs`, f32 sums and products use packed instructions where possible."""
        super().__init__(scalars, uses)
        scalars.elements = proxy(self)  # a weak reference: a cycle would keep all code alive until it is collected
        self.facts = facts
        self.in_pairs = in_pairs
        self._mask_pool = deque()

    def _pack(self, parts: tuple[Expr, ...]) -> Parts:
        words: list[Reg] = []
        pending: list[tuple[Reg, int]] = []  # parts of the next word, with their bits
        count = sum(p.type.bits for p in parts) // 32
        whole = self.out.new("v", count) if count and all(p.type.bits < 32 for p in parts) else None
        for p in parts:
            registers = self.vector_registers(p)
            if p.type.bits >= 32:
                words.extend(registers)
                continue
            pending.append((registers[0], p.type.bits))
            if sum(bits for _, bits in pending) == 32:
                into = whole.words(len(words), 1) if whole else self.out.new("v")
                words.append(self._join(pending, into))
                pending = []
        if pending:
            return (*words, self._join(pending))
        return (whole,) if whole else tuple(words)

    def _join(self, pieces: list[tuple[Reg, int]], into: Reg | None = None) -> Reg:
        """Join narrow values with clean upper bits in one word."""
        acc, shift = pieces[0]
        for i, (reg, bits) in enumerate(pieces[1:], 2):
            acc = self.out.valu("v_lshl_or_b32", reg, Imm(shift), acc, into=into if i == len(pieces) else None)
            shift += bits
        return acc

    def _slice(self, parts: Parts, elem: Type, start: int, count: int) -> Parts:
        """Return elements; a part of a word gets zero upper bits, as users that join it to others expect."""
        first, offset = divmod(start * elem.bits, 32)
        bits = count * elem.bits
        if offset or bits >= 32:
            return super()._slice(parts, elem, start, count)
        (word,) = view(parts, first, 1)
        return (self._bits(word, 0, bits),)

    def _bits(self, word: Reg, offset: int, bits: int) -> Reg:
        if offset + bits > 32:
            raise Unsupported(f"given a slice at bit {offset} of {bits} bits, wanted one within a word")
        if offset + bits == 32:
            return self.out.valu("v_lshrrev_b32", Imm(offset), word)
        return self.out.valu("v_bfe_u32", word, Imm(offset), Imm(bits))

    def _gather(self, sources: Sequence[Reg], wanted: Sequence[ByteNumbers]) -> Reg:
        return gather_words(self.out, sources, wanted)

    def _convert(self, to: VectorType, e: Cast | Saturate) -> Reg:
        of = e.a.type
        if to.elem is bf16 and of.elem in (s32, u32):
            return self.tuple_of(self.vector_registers(round_to_odd(e.a).to(retyped(of, f32)).to(e.type)))
        source = self.vector_registers(e.a)
        conversion = plan(of.elem, to.elem, self.facts, saturate=isinstance(e, Saturate))
        if conversion is None:
            raise Unsupported(
                f"given a conversion from {of} to {to}, wanted one that {self.facts.name} has: {in_short(e)}"
            )
        size = max(1, of.elem.bits // 32)
        elements = [self.tuple_of(view(source, i, size)) for i in range(0, -(-of.bits // 32), size)]
        dst = self.out.new("v", -(-to.bits // 32))
        convert(self.out, conversion, elements, 32 // min(32, of.elem.bits), dst, to)
        return dst

    def _fill(self, dst: Reg, words: Sequence[int]) -> None:
        """Fill a tuple with a constant.

        If all words are zero, one packed move fills two registers; other constants would go to the lower word only.
        """
        if dst.bank == "v" and not any(words) and dst.first % 2 == dst.count % 2 == 0:
            for n in range(0, dst.count, 2):
                self.out.emit("v_pk_mov_b32", (dst.words(n, 2),), (Imm(0), Imm(0)))
            return
        name = "v_accvgpr_write_b32" if dst.bank == "a" else "v_mov_b32"
        for n in range(dst.count):
            self.out.emit(name, (dst.words(n, 1),), (Imm(signed(words[n % len(words)])),))

    def _order(self, tiles_n: int, tiles_m: int) -> Iterator[tuple[int, int]]:
        """Walk down one column and up the next, so that neighbours share an operand."""
        for j in range(tiles_m):
            for i in range(tiles_n) if j % 2 == 0 else reversed(range(tiles_n)):
                yield i, j

    def _multiply(
        self, atom: MmaAtom, dst: Reg, start: Reg | None, a: Reg, b: Reg, scales: Sequence[Byte], comment: str
    ) -> None:
        self._matrix(atom.name, dst, start, a, b, scales, comment)

    def _matrix(
        self, name: str, dst: Reg, start: Reg | None, a: Reg, b: Reg, scales: Sequence[Byte] = (), comment: str = ""
    ) -> None:
        addend: Operand = Imm(0) if start is None else start
        op, modifiers = MATRIX[self.facts.name][name]
        words = tuple(word for word, _ in scales)
        self.out.emit(
            op, (dst,), (a, b, addend, *words), modifiers=(*_scale_bytes(scales), *modifiers), comment=comment
        )

    def block_product(self, e: Expr) -> Parts:
        """Return a product in blocks. It overwrites its addend if nothing else needs that."""
        assert isinstance(e, BlockMma)
        a, b = (self.tuple_of(self.value(factor)) for factor in (e.a, e.b))
        if isinstance(e.acc, Splat) and isinstance(e.acc.a, Const) and e.acc.a.bits == 0:
            dst = self.out.new("v", e.type.bits // 32)
            self._matrix(e.op.name, dst, None, a, b)
            return (dst,)
        addend = self.tuple_of(self.value(e.acc))
        sums = addend if self.may_overwrite(e.acc) else self._duplicate(addend, "v")
        self._matrix(e.op.name, sums, sums, a, b)
        return (sums,)


def _scale_bytes(scales: Sequence[Byte]) -> tuple[str, ...]:
    """Return the modifiers that select the byte of each scale: its low bit in op_sel, its high bit in op_sel_hi.

    Source: AITER, AITER_MXFP4_MFMA_F4F4_AGPR.
    """
    bits = ((name, [byte >> n & 1 for _, byte in scales]) for n, name in enumerate(("op_sel", "op_sel_hi")))
    return tuple(f"{name}:[{','.join(map(str, each))},0]" for name, each in bits) if scales else ()
