"""Selection of vector-typed values: packs, slices, conversions and matrix products.

A vector value is a tuple of register views in element order, low bits first. Values narrower than a word stand in the
low bits of one.
"""

from __future__ import annotations

from convgen.backends.amdgpu.conversions import convert, plan
from convgen.backends.amdgpu.emitter import signed
from convgen.backends.amdgpu.isa import mfma
from convgen.backends.amdgpu.scalars import Scalars
from convgen.backends.machine import Imm, Operand, Reg
from convgen.backends.selection import Parts, adjacent, view
from convgen.ir.error import Unsupported, VerifyError
from convgen.ir.expr import Add, Binary, Cast, Const, Expr, Mma, Pack, Saturate, Shuffle, Slice, Splat, Var
from convgen.ir.facts import TargetFacts
from convgen.ir.types import Type, VectorType, f32, f64

#: Arithmetic on vectors, element by element.
_ELEMENTWISE: dict[tuple[type[Expr], Type], str] = {(Add, f32): "v_add_f32", (Add, f64): "v_add_f64"}


class Vectors:
    """Evaluates vector expressions on top of `Scalars`."""

    def __init__(self, scalars: Scalars, uses: dict[Var, int], facts: TargetFacts) -> None:
        self.scalars, self.out, self.uses, self.facts = scalars, scalars.out, uses, facts
        self.env: dict[Var, Parts] = {}
        self.owned: dict[Var, bool] = {}  # whether a variable's registers are its alone

    def value(self, e: Expr) -> Parts:
        """The registers that hold a vector."""
        match e:
            case Var():
                if e not in self.env:
                    raise VerifyError(f"selection: {e.name} is not bound")
                return self.env[e]
            case Pack(_, parts):
                return self._pack(parts)
            case Slice(a, start, count):
                return self._slice(self.value(a), a.type.elem, start, count)
            case Shuffle(a, order):
                return self._shuffle(self.value(a), a.type.elem, order)
            case Binary(a, b) if (type(e), e.type.elem) in _ELEMENTWISE:
                return self._elementwise(_ELEMENTWISE[type(e), e.type.elem], self.value(a), self.value(b), e.type.elem)
            case Cast(VectorType() as to) | Saturate(VectorType() as to):
                return (self._convert(to, e),)
            case Splat(dtype, a):
                return (self.filled(dtype, a, "v"),)
            case Mma():
                return self._mma(e)
        raise Unsupported(f"given {type(e).__name__} of type {e.type}, wanted a vector operation: {e}")

    # ------------------------------------------------------------ registers

    def filled(self, dtype: VectorType, a: Expr, bank: str, like: Reg | None = None) -> Reg:
        """A tuple with every element equal to a constant."""
        if not isinstance(a, Const):
            raise Unsupported(f"given a splat of {a}, wanted a constant")
        bits, wide = a.bits & (1 << a.dtype.bits) - 1, max(32, a.dtype.bits)
        repeated = sum(bits << i for i in range(0, wide, a.dtype.bits))
        dst = like or self.out.new(bank, max(1, dtype.bits // 32))
        for i in range(dst.count):
            name = "v_accvgpr_write_b32" if bank == "a" else "v_mov_b32"
            value = Imm(signed(repeated >> 32 * i % wide))
            self.out.emit(name, (dst.words(i, 1),), (value,))
        return dst

    def tuple_of(self, parts: Parts, name: str = "") -> Reg:
        """The value in one tuple, copied only if it is not in one already."""
        together = adjacent(parts)
        if together is not None:
            return together
        dst = self.out.new("v", sum(p.count for p in parts), name)
        at = 0
        for p in parts:
            self.out.copy(dst.words(at, p.count), p)
            at += p.count
        return dst

    # ------------------------------------------------------------ structure

    def _pack(self, parts: tuple[Expr, ...]) -> Parts:
        out: list[Reg] = []
        pending: list[tuple[Reg, int]] = []
        narrow = all(p.type.bits < 32 for p in parts)
        words = sum(p.type.bits for p in parts) // 32
        joined = self.out.new("v", words) if narrow and words else None
        for p in parts:
            held = (
                self.value(p) if isinstance(p.type, VectorType) else (self.out.move_to_vector(self.scalars.value(p)),)
            )
            if p.type.bits >= 32:
                out.extend(held)
                continue
            pending.append((held[0], p.type.bits))
            if sum(bits for _, bits in pending) == 32:
                into = joined.words(len(out), 1) if joined else self.out.new("v")
                out.append(self._join(pending, into))
                pending = []
        if pending:
            if len(parts) != 1:
                raise Unsupported(f"given a pack of {sum(b for _, b in pending)} bits, wanted whole words")
            return (pending[0][0],)
        return (joined,) if joined else tuple(out)

    def _join(self, pieces: list[tuple[Reg, int]], into: Reg) -> Reg:
        """Narrow values with clean upper bits, side by side in one word."""
        acc, shift = pieces[0][0], pieces[0][1]
        for i, (reg, bits) in enumerate(pieces[1:], 2):
            acc = self.out.valu("v_lshl_or_b32", reg, Imm(shift), acc, into=into if i == len(pieces) else None)
            shift += bits
        return acc

    def _slice(self, parts: Parts, elem: Type, start: int, count: int) -> Parts:
        first, offset = divmod(start * elem.bits, 32)
        bits = count * elem.bits
        if offset:
            if offset + bits > 32:
                raise Unsupported(f"given a slice at bit {offset} of {bits} bits, wanted one within a word")
            (word,) = view(parts, first, 1)
            return (self.out.valu("v_lshrrev_b32", Imm(offset), word),)
        return view(parts, first, max(1, bits // 32))

    def _shuffle(self, parts: Parts, elem: Type, order: tuple[int, ...]) -> Parts:
        """Whole words are renamed; halves of two words are joined by one byte permutation (CDNA3 ISA, V_PERM_B32)."""
        if elem.bits >= 32:
            words = elem.bits // 32
            return tuple(w for i in order for w in view(parts, i * words, words))
        if elem.bits != 16 or len(order) % 2:
            raise Unsupported(f"given a shuffle of {len(order)} elements of {elem}, wanted pairs of 16 bits or words")
        dst = self.out.new("v", len(order) // 2)
        for word, (low, high) in enumerate(zip(order[::2], order[1::2])):
            (first,), (second,) = view(parts, low // 2, 1), view(parts, high // 2, 1)
            into = dst.words(word, 1)
            if (low % 2, high) == (0, low + 1):
                self.out.copy(into, first)
                continue
            bytes_ = (2 * (low % 2), 2 * (low % 2) + 1, 4 + 2 * (high % 2), 5 + 2 * (high % 2))
            selector = self.out.constant(int.from_bytes(bytes_, "little"))
            self.out.valu("v_perm_b32", second, first, selector, into=into)
        return (dst,)

    def _elementwise(self, name: str, a: Parts, b: Parts, elem: Type) -> Parts:
        words = max(1, elem.bits // 32)
        count = sum(p.count for p in a)
        dst = self.out.new("v", count)
        for at in range(0, count, words):
            left, right = (self.tuple_of(view(parts, at, words)) for parts in (a, b))
            self.out.valu(name, left, right, into=dst.words(at, words))
        return (dst,)

    def _convert(self, to: VectorType, e: Cast | Saturate) -> Reg:
        of = e.a.type
        source = self.value(e.a)
        if of.elem is to.elem and isinstance(e, Cast):
            return self.tuple_of(source)
        how = plan(of.elem, to.elem, self.facts, saturate=isinstance(e, Saturate))
        if how is None:
            raise Unsupported(f"given a conversion from {of} to {to}, wanted one that {self.facts.name} has: {e}")
        size = max(1, of.elem.bits // 32)
        elements = [self.tuple_of(view(source, i, size)) for i in range(0, max(1, of.bits // 32), size)]
        dst = self.out.new("v", max(1, to.bits // 32))
        convert(self.out, how, elements, 32 // min(32, of.elem.bits), dst, to)
        return dst

    # ------------------------------------------------------------ matrix products

    def accumulators(self, e: Mma, start: Expr, like: Var | None = None) -> Parts:
        """The accumulator tuples of a product, one an instruction, holding the constant `start`."""
        if not isinstance(start, Splat):
            raise VerifyError("selection: accumulators start from a constant")
        op = e.op
        count = op.tiles_i * op.tiles_j
        tile = VectorType(op.atom.acc, op.atom.d.registers)
        name = "acc" if like is None else like.name
        return tuple(
            self.filled(tile, start.a, op.acc_bank, self.out.new(op.acc_bank, tile.bits // 32, f"{name}_{i}"))
            for i in range(count)
        )

    def _mma(self, e: Mma) -> Parts:
        op, held = e.op, e.op.atom.d.registers * e.op.atom.acc.bits // 32  # words of one accumulator
        a, b = self.value(e.a), self.value(e.b)
        zero = isinstance(e.acc, Splat) and isinstance(e.acc.a, Const) and e.acc.a.bits == 0
        acc: list[Reg | None] = [None] * (op.tiles_i * op.tiles_j)
        if not zero:
            parts = self.accumulators(e, e.acc) if isinstance(e.acc, Splat) else self.value(e.acc)
            whole = [self.tuple_of(view(parts, i * held, held)) for i in range(len(acc))]
            mine = isinstance(e.acc, Splat) or (isinstance(e.acc, Var) and self._may_overwrite(e.acc))
            acc = list(whole) if mine else [self._duplicate(r, op.acc_bank) for r in whole]
        words = op.atom.ab.bytes * op.atom.a.registers // 4
        code = mfma(op.atom.name, op.atom.passes)
        comment = f"{op.steps} steps of {op.tiles_i} x {op.tiles_j} tiles"
        for step in range(op.steps):
            for j in range(op.tiles_j):
                for i in range(op.tiles_i) if j % 2 == 0 else reversed(range(op.tiles_i)):
                    first = self.tuple_of(view(a, op.a_start(i, step) * op.atom.ab.bytes // 4, words))
                    second = self.tuple_of(view(b, op.b_start(j, step) * op.atom.ab.bytes // 4, words))
                    at = op.d_start(i, j) // op.atom.d.registers
                    source: Operand = Imm(0)
                    dst = acc[at]
                    if dst is None:
                        dst = acc[at] = self.out.new(op.acc_bank, held, f"acc_{at}")
                    else:
                        source = dst
                    self.out.emit(code, (dst,), (first, second, source), comment=comment)
                    comment = ""
        return tuple(r for r in acc if r is not None)

    def _may_overwrite(self, v: Var) -> bool:
        return self.owned.get(v, False) and self.uses.get(v, 0) == 1

    def _duplicate(self, source: Reg, bank: str) -> Reg:
        dst = self.out.new(bank, source.count)
        self.out.copy(dst, source)
        return dst
