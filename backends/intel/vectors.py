"""Selection of vector-typed values: packs, slices, shuffles, conversions and matrix products.

A vector value is a tuple of register views in element order. Narrow elements share the dword of their lane, the first
one lowest: a GRF holds elements 0 and 1 of all lanes side by side.
"""

from __future__ import annotations

from convgen.backends.intel.emitter import Emitter
from convgen.backends.intel.isa import ACCUMULATORS_AT, Literal, Null, dpas, region
from convgen.backends.intel.scalars import Scalars
from convgen.backends.machine import Operand, Reg
from convgen.backends.selection import Parts, adjacent, view
from convgen.ir.error import Unsupported, VerifyError
from convgen.ir.expr import Add, Binary, Cast, Const, Expr, Mma, Pack, Saturate, Shuffle, Slice, Splat, Var
from convgen.ir.mma import MmaAtom
from convgen.ir.types import Type, VectorType, bf16, f16, f32

#: element type -> IGA's name
_TYPES: dict[Type, str] = {f16: "hf", bf16: "bf", f32: "f"}
#: Arithmetic on vectors, element by element.
_ELEMENTWISE: dict[tuple[type[Expr], Type], str] = {(Add, f32): "add"}
_BITS = {8: "ub", 16: "uw"}  #: types that only move bits
#: Conversions that one `mov` makes, rounding to nearest even.
_CONVERSIONS = frozenset(((f32, f16), (f16, f32), (f32, bf16), (bf16, f32)))


class Vectors:
    """Evaluates vector expressions on top of `Scalars`."""

    def __init__(self, scalars: Scalars, uses: dict[Var, int]) -> None:
        self.scalars, self.out, self.uses = scalars, scalars.out, uses
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
            case Cast(VectorType() as to):
                return (self._convert(to, e),)
            case Splat(dtype, a):
                return (self.filled(dtype, a, "v"),)
            case Mma():
                return self._mma(e)
        raise Unsupported(f"given {type(e).__name__} of type {e.type}, wanted a vector operation: {e}")

    # ------------------------------------------------------------ registers

    def filled(self, dtype: VectorType, a: Expr, bank: str, like: Reg | None = None) -> Reg:
        """A tuple with every element equal to a constant, two registers a move."""
        if not isinstance(a, Const) or a.dtype.bits > 32:
            raise Unsupported(f"given a splat of {a}, wanted a constant of at most 32 bits")
        bits = a.bits & (1 << a.dtype.bits) - 1
        repeated = sum(bits << i for i in range(0, 32, a.dtype.bits))
        dst = like or self.out.new(bank, max(1, dtype.bits // 32))
        fill(self.out, dst, Literal(repeated, "ud"))
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
        narrow: list[tuple[Reg, int]] = []  # elements of a dword that is not full yet, with their bits
        for p in parts:
            held = self.tuple_of(self.value(p)) if isinstance(p.type, VectorType) else self._scalar(p)
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

    def _scalar(self, e: Expr) -> Reg:
        if isinstance(e, Var) and e in self.env:
            return self.tuple_of(self.env[e])
        return self.vector_register(self.scalars.value(e))

    def vector_register(self, o: Operand) -> Reg:
        """The operand in all lanes of a register."""
        if isinstance(o, Reg) and o.bank == "v" and not self.out.is_uniform(o):
            return o
        dst = self.out.new("v")
        self.out.move(dst, o)
        return dst

    def _joined(self, pieces: list[tuple[Reg, int]]) -> Reg:
        """Values of 16 bits in the halves of a dword."""
        if len(pieces) == 1:
            return pieces[0][0]
        if any(bits != 16 for _, bits in pieces):
            raise Unsupported(f"given parts of {[bits for _, bits in pieces]} bits, wanted pairs of 16")
        (low, _), (high, _) = pieces
        return self._halves((low, 0), (high, 0))

    def _halves(self, low: tuple[Reg, int], high: tuple[Reg, int], into: Reg | None = None) -> Reg:
        """A dword of two halves, each the lower or upper one of another dword."""
        dst = into or self.out.new("v")
        for half, (r, of) in enumerate((low, high)):
            to, at = region(dst, "uw", half, 2), region(r, "uw", of, 2)
            self.out.emit("mov", (to,), (at,), lanes=self.out.lanes, partial=half > 0)
        return dst

    def _slice(self, parts: Parts, elem: Type, start: int, count: int) -> Parts:
        first, offset = divmod(start * elem.bits, 32)
        bits = count * elem.bits
        if not offset:
            return view(parts, first, max(1, bits // 32))
        if elem.bits != 16 or count != 1:
            raise Unsupported(f"given a slice at bit {offset} of {bits} bits, wanted one half")
        (word,) = view(parts, first, 1)
        dst = self.out.new("v")
        self.out.emit("mov", (region(dst, "ud"),), (region(word, "uw", 1, 2),), lanes=self.out.lanes)
        return (dst,)

    def _shuffle(self, parts: Parts, elem: Type, order: tuple[int, ...]) -> Parts:
        """Whole words are renamed, halves of two words moved together."""
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
            else:
                self._halves((first, low % 2), (second, high % 2), into)
        return (dst,)

    def _elementwise(self, name: str, a: Parts, b: Parts, elem: Type) -> Parts:
        count = sum(p.count for p in a)
        dst = self.out.new("v", count)
        for at in range(count):
            (left,), (right,) = view(a, at, 1), view(b, at, 1)
            self.out.alu(name, _TYPES[elem], left, right, into=dst.words(at, 1))
        return (dst,)

    def _convert(self, to: VectorType, e: Cast | Saturate) -> Reg:
        of, source = e.a.type, self.value(e.a)
        if of.elem is to.elem:
            return self.tuple_of(source)
        if (of.elem, to.elem) not in _CONVERSIONS:
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

    # ------------------------------------------------------------ matrix products

    def accumulators(self, e: Mma, start: Expr, like: Var | None = None) -> Parts:
        """The accumulator tuples of a product, one an instruction, holding the constant `start`."""
        if not isinstance(start, Splat):
            raise VerifyError("selection: accumulators start from a constant")
        op, name = e.op, "acc" if like is None else like.name
        tile = VectorType(op.atom.acc, op.atom.d.registers)
        return tuple(
            self.filled(tile, start.a, "v", self.out.new("v", tile.bits // 32, f"{name}_{i}", residue=ACCUMULATORS_AT))
            for i in range(op.tiles_i * op.tiles_j)
        )

    def _mma(self, e: Mma) -> Parts:
        """Rows of source 2 follow one another, so the instructions that share source 1 do."""
        op = e.op
        held = op.atom.d.registers * op.atom.acc.bits // 32
        a, b = self.value(e.a), self.value(e.b)
        zero = isinstance(e.acc, Splat) and isinstance(e.acc.a, Const) and e.acc.a.bits == 0
        acc: list[Reg | None] = [None] * (op.tiles_i * op.tiles_j)
        if not zero:
            parts = self.accumulators(e, e.acc) if isinstance(e.acc, Splat) else self.value(e.acc)
            whole = [self.tuple_of(view(parts, i * held, held)) for i in range(len(acc))]
            mine = isinstance(e.acc, Splat) or (isinstance(e.acc, Var) and self._may_overwrite(e.acc))
            acc = list(whole) if mine else [self._duplicate(r) for r in whole]
        words = [op.atom.ab.bytes * f.registers // 4 for f in (op.atom.a, op.atom.b)]
        comment = f"{op.steps} steps of {op.tiles_i} x {op.tiles_j} tiles"
        for step in range(op.steps):
            for i in range(op.tiles_i):
                first = self.tuple_of(view(a, op.a_start(i, step) * op.atom.ab.bytes // 4, words[0]))
                for j in range(op.tiles_j):
                    second = self.tuple_of(view(b, op.b_start(j, step) * op.atom.ab.bytes // 4, words[1]))
                    at = op.d_start(i, j) // op.atom.d.registers
                    before = acc[at]
                    after = acc[at] = before or self.out.new("v", held, f"acc_{at}", residue=ACCUMULATORS_AT)
                    multiply = self._multiply_adds if op.atom.k == 1 else self._dpas
                    multiply(op.atom, after, before, first, second, comment)
                    comment = ""
        return tuple(r for r in acc if r is not None)

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

    def _may_overwrite(self, v: Var) -> bool:
        return self.owned.get(v, False) and self.uses.get(v, 0) == 1

    def _duplicate(self, source: Reg) -> Reg:
        dst = self.out.new("v", source.count)
        self.out.copy(dst, source)
        return dst


def fill(out: Emitter, dst: Reg, value: Literal) -> None:
    """Every dword of a tuple becomes the value, two registers a move: the most that one instruction writes."""
    for at in range(0, dst.count, 2):
        count = min(2, dst.count - at)
        out.emit("mov", (region(dst.words(at, count), "ud"),), (value,), lanes=count * out.lanes)
