"""Selection of vector-typed values, as far as all targets share it: structure of values, and matrix products.

A vector value is a tuple of register views in element order, low bits first. A family supplies the instructions on
words: join and split, convert, fill and multiply.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from convgen.backends.machine.emitter import Emitter
from convgen.backends.machine.instruction import Reg
from convgen.backends.machine.scalars import Scalars
from convgen.ir.error import Unsupported, VerifyError
from convgen.ir.expr import Binary, Cast, Const, Expr, Mma, Pack, Saturate, Shuffle, Slice, Splat, Var
from convgen.ir.layout.mma import MmaAtom, MmaTile
from convgen.ir.text import in_short
from convgen.ir.types import AnyType, Type, VectorType

Parts = tuple[Reg, ...]  #: a vector value: register views in element order, low bits first
ByteNumbers = tuple[int, ...]  #: numbers of bytes of a vector value, from its first
Byte = tuple[Reg, int]  #: a byte of a vector value: its word, and its number in the word

WORD_BYTES = 4


def _same_bits(a: Type, b: Type) -> bool:
    """Return whether elements of two types have equal bits: a type and itself, signed and unsigned integers."""
    return a is b or (a.is_int and b.is_int and a.bits == b.bits)


class Vectors(ABC):
    """Evaluates vector expressions on top of `Scalars`."""

    out: Emitter
    elementwise: ClassVar[Mapping[tuple[type[Expr], Type], str]]  #: mnemonic by operation and element type
    accumulators_at: ClassVar[int | None] = None  #: residue of accumulators, as of `VirtualRegister`

    def __init__(self, scalars: Scalars, uses: Mapping[Var, int]) -> None:
        """Prepare evaluation. `uses` counts how often each variable is an operand."""
        self.scalars, self.out, self.uses = scalars, scalars.out, uses
        self.env: dict[Var, Parts] = {}
        self.owned: dict[Var, bool] = {}  # variable -> whether no other value shares its registers

    def value(self, e: Expr) -> Parts:
        """Return the registers that hold a vector."""
        match e:
            case Var():
                if e not in self.env:
                    raise VerifyError(f"selection: {e.name} is not bound")
                return self.env[e]
            case Pack(_, parts):
                return self._pack(parts) if _keep_words(parts) else self._join_bytes(parts)
            case Slice(a, start, count):
                return self._slice(self.value(a), a.type.elem, start, count)
            case Shuffle(a, order):
                return self._shuffle(self.value(a), a.type.elem, order)
            case Binary() if (type(e), e.type.elem) in self.elementwise:
                return (self._element_by_element(self.elementwise[type(e), e.type.elem], e),)
            case Cast(VectorType() as to, a) if _same_bits(a.type.elem, to.elem):
                return (self.tuple_of(self.value(a)),)
            case Cast(VectorType() as to) | Saturate(VectorType() as to) if not e.a.type.elem.is_bool:
                return (self._convert(to, e),)
            case Splat(dtype, a):
                return (self.filled(dtype, a),)
            case Mma():
                return self._mma(e)
        return self.computed(e)

    def computed(self, e: Expr) -> Parts:
        """Return the value of an operation without a row in `elementwise`. Raises Unsupported."""
        raise Unsupported(f"given {type(e).__name__} of type {e.type}, wanted a vector operation: {in_short(e)}")

    def vector_registers(self, e: Expr) -> Parts:
        """Return the vector registers that hold a vector, or one element a lane."""
        return self.value(e) if held_as_vector(e.type) else (self.out.move_to_vector(self.scalars.value(e)),)

    def may_overwrite(self, e: Expr) -> bool:
        """Return whether nothing else needs the registers of a value."""
        return isinstance(e, Var) and self.owned.get(e, False) and self.uses.get(e, 0) == 1

    # ------------------------------------------------------------ to be implemented by a family

    @abstractmethod
    def _pack(self, parts: tuple[Expr, ...]) -> Parts:
        """Join values, each of whole words, or several within a word."""

    @abstractmethod
    def _bits(self, word: Reg, offset: int, bits: int) -> Reg:
        """Return some bits of a word in the lowest bits of another word."""

    @abstractmethod
    def _gather(self, sources: Sequence[Reg], wanted: Sequence[ByteNumbers]) -> Reg:
        """Return a tuple of words that consist of bytes `wanted`, numbered from the first byte of words `sources`."""

    @abstractmethod
    def _operate(self, name: str, elem: Type, a: Reg, b: Reg, into: Reg) -> None:
        """Emit an operation of `elementwise` on one element a lane."""

    @abstractmethod
    def _convert(self, to: VectorType, e: Cast | Saturate) -> Reg:
        """Return a value converted to another element type."""

    @abstractmethod
    def _fill(self, dst: Reg, words: Sequence[int]) -> None:
        """Fill `dst` with the words of a constant, repeated."""

    @abstractmethod
    def _order(self, tiles_n: int, tiles_m: int) -> Iterable[tuple[int, int]]:
        """Return the order in which the tiles (i, j) of a product are multiplied."""

    @abstractmethod
    def _multiply(
        self, atom: MmaAtom, dst: Reg, start: Reg | None, a: Reg, b: Reg, scales: Sequence[Byte], comment: str
    ) -> None:
        """Emit one matrix instruction: dst = start + a * b; no start means zero.

        `scales` are those of a and b, if the instruction takes any.
        """

    # ------------------------------------------------------------ registers

    def filled(self, dtype: VectorType, a: Expr, into: Reg | None = None) -> Reg:
        """Return a tuple with every element equal to a constant."""
        if not isinstance(a, Const):
            raise Unsupported(f"given a splat of {a}, wanted a constant")
        bits, wide = a.bits & (1 << a.dtype.bits) - 1, max(32, a.dtype.bits)
        repeated = sum(bits << i for i in range(0, wide, a.dtype.bits))
        dst = into or self.out.new("v", -(-dtype.bits // 32))
        self._fill(dst, [repeated >> i & 0xFFFFFFFF for i in range(0, wide, 32)])
        return dst

    def tuple_of(self, parts: Parts) -> Reg:
        """Return the value in one tuple, copied only if it is not in one already."""
        together = adjacent(parts)
        if together is not None:
            return together
        dst = self.out.new("v", sum(p.count for p in parts))
        self._assemble(dst, parts)
        return dst

    def _assemble(self, dst: Reg, parts: Parts) -> None:
        """Copy the words of a value, one after the other."""
        at = 0
        for p in parts:
            self.out.copy(dst.words(at, p.count), p)
            at += p.count

    def _duplicate(self, source: Reg, bank: str) -> Reg:
        dst = self.out.new(bank, source.count)
        self.out.copy(dst, source)
        return dst

    # ------------------------------------------------------------ structure

    def _join_bytes(self, parts: Sequence[Expr]) -> Parts:
        """Join values byte by byte, if some begin or end within a word."""
        words: list[Reg] = []
        order: list[int] = []
        for p in parts:
            first, size = WORD_BYTES * len(words), p.type.bits // 8
            order += range(first, first + size)
            words += single_words(self.vector_registers(p))
        return (self._gather(words, _by_words(order)),)

    def _slice(self, parts: Parts, elem: Type, start: int, count: int) -> Parts:
        first, offset = divmod(start * elem.bits, 32)
        bits = count * elem.bits
        if offset + bits > 32 and (offset or bits % 32):  # the slice crosses a word boundary
            return self._shuffle(parts, elem, tuple(range(start, start + count)))
        if not offset:
            return view(parts, first, -(-bits // 32))
        (word,) = view(parts, first, 1)
        return (self._bits(word, offset, bits),)

    def _shuffle(self, parts: Parts, elem: Type, order: tuple[int, ...]) -> Parts:
        """Permute elements: whole words are renamed, smaller elements gathered byte by byte."""
        if elem.bits >= 32:
            words = elem.bits // 32
            return tuple(w for i in order for w in view(parts, i * words, words))
        if elem.bits % 8:
            raise Unsupported(f"given a shuffle of {elem}, wanted elements of whole bytes")
        order_of_bytes = [elem.bytes * i + n for i in order for n in range(elem.bytes)]
        return (self._gather(single_words(parts), _by_words(order_of_bytes)),)

    def _element_by_element(self, name: str, e: Binary) -> Reg:
        a, b = self.value(e.a), self.value(e.b)
        words = max(1, e.type.elem.bits // 32)
        dst = self.out.new("v", sum(p.count for p in a))
        for at in range(0, dst.count, words):
            left, right = (self.tuple_of(view(parts, at, words)) for parts in (a, b))
            self._operate(name, e.type.elem, left, right, dst.words(at, words))
        return dst

    # ------------------------------------------------------------ matrix products

    def carried(self, c: Var, init: Expr, user: Mma | None, maker: Mma | None = None) -> Parts:
        """Return registers for a carried value, with its first value in them.

        The first value's own registers serve if nothing else needs them and its `user` takes them; else they are
        copied. A constant gets one tuple for each accumulator of its `maker`, so that the registers of each are free
        once it is used.
        """
        if isinstance(init, Splat) and user is None and maker is not None:
            tile = VectorType(maker.op.atom.acc, maker.op.atom.d.registers)
            return tuple(self.filled(tile, init.a) for _ in range(init.dtype.bits // tile.bits))
        if isinstance(init, Splat):
            return (self.filled(init.dtype, init.a),) if user is None else self._accumulators(user, init, c.name)
        parts, words = self.value(init), 1 if user is None else _words(user.op.atom.acc, user.op.atom.d.registers)
        if self.may_overwrite(init) and all(p.whole and p.count % words == 0 for p in parts):
            return parts
        if user is not None:
            return self._accumulators(user, parts, c.name)
        copies = tuple(self.out.new(p.bank, p.count, c.name) for p in parts)
        for copy, part in zip(copies, parts):
            self.out.copy(copy, part)
        return copies

    def _accumulators(self, e: Mma, start: Splat | Parts, name: str = "acc") -> Parts:
        """Return the accumulator tuples of a product, one per instruction, filled with constant or value `start`."""
        op = e.op
        tile = VectorType(op.atom.acc, op.atom.d.registers)
        places = tuple(self._accumulator(op, f"{name}_{n}") for n in range(op.tiles_n * op.tiles_m))
        if isinstance(start, Splat):
            return tuple(self.filled(tile, start.a, place) for place in places)
        for n, place in enumerate(places):
            self._assemble(place, view(start, n * place.count, place.count))
        return places

    def _accumulator(self, op: MmaTile, name: str) -> Reg:
        words = _words(op.atom.acc, op.atom.d.registers)
        return self.out.new(_accumulator_bank(op), words, name, residue=self.accumulators_at)

    def _mma(self, e: Mma) -> Parts:
        op, atom = e.op, e.op.atom
        a, b, *of_scales = (self.value(each) for each in (e.a, e.b, *e.scales))
        starts, acc = self._addends(e)
        comment = f"{op.steps} steps of {op.tiles_n} x {op.tiles_m} tiles"
        for step in range(op.steps):
            rows = [self._operand(a, atom.a_elem, op.a_start(i, step), atom.a.registers) for i in range(op.tiles_n)]
            cols = [self._operand(b, atom.b_elem, op.b_start(j, step), atom.b.registers) for j in range(op.tiles_m)]
            for i, j in self._order(op.tiles_n, op.tiles_m):
                at = op.d_start(i, j) // atom.d.registers
                before = acc[at] if step else starts[at]
                after = acc[at] = acc[at] or self._accumulator(op, f"acc_{at}")
                scales = [_byte_of(*each) for each in zip(of_scales, (i * op.steps + step, j * op.steps + step))]
                self._multiply(atom, after, before, rows[i], cols[j], scales, comment)
                comment = ""
        return tuple(r for r in acc if r is not None)

    def _operand(self, parts: Parts, elem: Type, start: int, registers: int) -> Reg:
        return self.tuple_of(view(parts, _words(elem, start), _words(elem, registers)))

    def _addends(self, e: Mma) -> tuple[list[Reg | None], list[Reg | None]]:
        """Return the addend of each tile of a product, None for zero, and those that the product may overwrite."""
        op = e.op
        count, words = op.tiles_n * op.tiles_m, _words(op.atom.acc, op.atom.d.registers)
        if isinstance(e.acc, Splat):
            zero = isinstance(e.acc.a, Const) and e.acc.a.bits == 0
            filled: list[Reg | None] = [None] * count if zero else [*self._accumulators(e, e.acc)]
            return [*filled], filled
        parts, bank = self.value(e.acc), _accumulator_bank(op)
        tiles = [self.tuple_of(view(parts, n * words, words)) for n in range(count)]
        if self.may_overwrite(e.acc):
            return [*tiles], [*tiles]
        copied = [None if tile.bank == bank else self._duplicate(tile, bank) for tile in tiles]
        return [copy or tile for copy, tile in zip(copied, tiles)], [*copied]


def held_as_vector(type: AnyType) -> bool:
    """Return whether values of a type are register tuples; address integers and bools are single operands instead."""
    return isinstance(type, VectorType) or not (type.is_bool or (type.is_int and type.bits >= 32))


def _accumulator_bank(op: MmaTile) -> str:
    return "a" if op.separate_accumulators else "v"


def _byte_of(parts: Parts, number: int) -> Byte:
    """Return a byte of a value: its word, and the number of the byte in the word."""
    (word,) = view(parts, number // WORD_BYTES, 1)
    return word, number % WORD_BYTES


def _words(elem: Type, count: int) -> int:
    return count * elem.bits // 32


def _keep_words(parts: Sequence[Expr]) -> bool:
    """Return whether joined values are whole words each, or lie within one; the last may leave a word unfilled."""
    at = 0  # bits
    for n, p in enumerate(parts, 1):
        bits, begun = p.type.bits, at % 32
        if begun + bits > 32 and (begun or (bits % 32 and n < len(parts))):
            return False
        at += bits
    return True


def single_words(parts: Parts) -> list[Reg]:
    """Return the words of a value, for any element type."""
    return [p.words(i, 1) for p in parts for i in range(p.count)]


def _by_words(order: Sequence[int]) -> list[ByteNumbers]:
    """Group bytes by words."""
    return [tuple(order[i : i + WORD_BYTES]) for i in range(0, len(order), WORD_BYTES)]


def view(parts: Parts, first: int, count: int) -> Parts:
    """Return words [first, first + count) of a value."""
    out: list[Reg] = []
    for p in parts:
        if count > 0 and first < p.count:
            take = min(count, p.count - first)
            out.append(p.words(first, take))
            count -= take
            first = 0
        else:
            first -= p.count
    return tuple(out)


def adjacent(parts: Parts) -> Reg | None:
    """Return the value as one run of words if its parts follow one another in one tuple, else None."""
    first = parts[0]
    at = first.first
    for p in parts:
        if p.vreg is not first.vreg or p.first != at:
            return None
        at += p.count
    return Reg(first.vreg, first.first, at - first.first)
