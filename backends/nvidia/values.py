"""Selection of values: expressions become instructions of PTX on virtual registers.

A value is a list of registers. 32-bit words hold elements of up to 32 bits, lowest first, several to a word. Each
64-bit element has a register of 64 bits, each bool a predicate; a scalar narrower than a word has the low bits of one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeGuard

from convgen.backends.nvidia import element_ops, packed
from convgen.backends.nvidia.ptx import KINDS, Writer, kind_of, vector_of
from convgen.backends.nvidia.tables import BF16_SUMS, ROWS, MmaRow, WgmmaRow
from convgen.backends.nvidia.warpgroups import InFlight
from convgen.ir import expr as x
from convgen.ir.error import Unsupported
from convgen.ir.expr import Expr, Var
from convgen.ir.floats import Fma
from convgen.ir.program import Kernel
from convgen.ir.types import AnyType, Type, bool_, vector
from convgen.ir.votes import AllLanes

Words = list[str]  #: registers of a value


def count_of(type: AnyType) -> int:
    """Return the registers of a value."""
    if type.elem is bool_ or type.elem.bits == 64:
        return type.lanes
    return max(1, -(-type.bits // 32))


class Values(ABC):
    """Selects the values of one kernel."""

    lane: str  #: register with the lane's number

    def __init__(self, kernel: Kernel, target: str, out: Writer) -> None:
        self.kernel, self.target, self.out = kernel, target, out
        self.env: dict[Expr, Words] = {}  #: registers of variables; absent: postponed reads, `packs`, `offsets`
        self.packs: dict[Var, x.Pack] = {}  #: packs that no instruction has needed whole yet
        self.pointers: dict[str, str] = {}  #: name of a buffer -> register with its address
        self.offsets: dict[Var, tuple[Expr, int]] = {}  #: 64-bit variables -> (other value, constant), their summands
        self.loops = 0  #: loops around the statement that is being selected
        #: Variables with registers of their own and a single use -> loops around their binding. A product in as many
        #: loops adds to them in place.
        self.owned: dict[Var, int] = {}
        self.in_flight = InFlight()  #: products of warpgroups that may still add to their variables' registers
        #: Variables of products of warpgroups that read a factor from registers -> these registers.
        self.reading: dict[Expr, frozenset[str]] = {}

    @abstractmethod
    def _read(self, v: Var) -> None:
        """Emit the read of shared memory that binds a variable, if it was postponed."""

    @abstractmethod
    def await_sums(self, of: Expr | None = None) -> None:
        """Emit a wait for the products that may still add to a variable's registers, or for all of the warpgroup."""

    def scalar(self, e: Expr) -> str:
        """Return the register, or the immediate, of a scalar."""
        if isinstance(e, x.Const) and e.dtype.is_int and e.dtype.bits == 32:
            return str(e.bits)
        (register,) = self.words(e)
        return register

    def words(self, e: Expr) -> Words:
        """Return the registers of a value."""
        if e in self.in_flight:
            self.await_sums(e)
        if (known := self.env.get(e)) is not None:
            if self.reading and self._are_read_in_flight(known):
                self.await_sums()
            return known
        if isinstance(e, Var):
            if e in self.offsets:
                return [self._sum_of(e)]
            self._read(e)
            if (pack := self.packs.pop(e, None)) is not None:
                self.env[e] = self.words(pack)
            return self.env[e]
        handler = _VALUES.get(type(e))
        if handler is None:
            raise Unsupported(f"selection of {type(e).__name__} for {self.kernel.name}")
        return handler(self, e)

    def _are_read_in_flight(self, words: Words) -> bool:
        """Return whether a product in flight reads one of these registers, which then no instruction may access."""
        return any(not self.reading[v].isdisjoint(words) for v in self.in_flight.sums if v in self.reading)

    def _sum_of(self, v: Var) -> str:
        """Return the register of a variable in `offsets`, recomputed for each use: uses may not dominate later ones."""
        base, offset = self.offsets[v]
        return self.out.op("add.s64", self.scalar(base), str(offset), kind="rd", comment=v.name)

    def elements(self, e: Expr) -> Words:
        """Return a register for each element: integers are extended to 32 bits, others have the low bits."""
        words, elem = self.words(e), e.type.elem
        if elem is bool_ or elem.bits >= 32:
            return words
        return [self._element(words, elem, n) for n in range(e.type.lanes)]

    def _element(self, words: Words, elem: Type, number: int) -> str:
        """Return a register with an element of words, extended to 32 bits by its sign if its type has one."""
        per_word = 32 // elem.bits
        signed = "s32" if elem.is_int and elem.min < 0 else "u32"
        at = number % per_word * elem.bits
        return self.out.op(f"bfe.{signed}", words[number // per_word], str(at), str(elem.bits))

    def joined(self, elements: Words, elem: Type) -> Words:
        """Return the words of elements that are each in the low bits of a register."""
        if elem is bool_ or elem.bits >= 32:
            return elements
        per_word, out = 32 // elem.bits, self.out
        if elem.bits not in (8, 16):
            raise Unsupported(f"selection of elements of {elem}")
        words = []
        for first in range(0, len(elements), per_word):
            part = elements[first : first + per_word]
            if elem.bits == 8:
                part = [
                    out.op("prmt.b32", a, b, "0x0040") if b else a
                    for a, b in zip(part[::2], [*part[1::2], *[""] * (len(part) % 2)])
                ]
            words.append(out.op("prmt.b32", part[0], part[1], "0x5410") if len(part) > 1 else part[0])
        return words

    def _const(self, e: x.Const) -> Words:
        out, bits = self.out, e.bits & ((1 << max(1, e.dtype.bits)) - 1)
        if e.dtype is bool_:
            return [out.op("setp.eq.u32" if bits else "setp.ne.u32", self.lane, self.lane, kind="p")]
        kind = kind_of(e.dtype)
        return [out.op(f"mov.{KINDS[kind]}", f"0x{bits:x}", kind=kind)]

    def _splat(self, e: x.Splat) -> Words:
        (word,), elem = self.words(e.a), e.dtype.elem
        if elem.bits == 16:
            word = self.out.op("prmt.b32", word, word, "0x1010")
        elif elem.bits == 8:
            word = self.out.op("prmt.b32", word, word, "0x0000")
        return [word] * count_of(e.dtype)

    def _pack(self, e: x.Pack) -> Words:
        """Return the words of parts: whole words as they are, others by elements of the narrowest type."""
        to = e.dtype.elem
        if to.bits == 64:
            return self._joined_halves([word for part in e.parts for word in self._as_words(part)])
        if all(part.type.bits % 32 == 0 for part in e.parts):
            return [word for part in e.parts for word in self._as_words(part)]
        narrow = min((part.type.elem for part in e.parts), key=lambda elem: elem.bits)
        pieces = [piece for part in e.parts for piece in self._pieces(part, narrow.bits)]
        return self._joined_bits(pieces, narrow.bits)

    def _joined_halves(self, halves: Words) -> Words:
        """Return registers of 64 bits of 32-bit words, the lower half of each first."""
        result = []
        for low, high in zip(halves[::2], halves[1::2]):
            register = self.out.new("rd")
            self.out.emit(f"mov.b64 {register}, {{{low}, {high}}}")
            result.append(register)
        return result

    def _as_words(self, e: Expr) -> Words:
        """Return the 32-bit words of a value, of 64-bit elements their halves."""
        if e.type.elem.bits != 64:
            return self.words(e)
        result = []
        for register in self.words(e):
            low, high = self.out.new(), self.out.new()
            self.out.emit(f"mov.b64 {{{low}, {high}}}, {register}")
            result += [low, high]
        return result

    def _pieces(self, e: Expr, bits: int) -> Words:
        """Return a register for each `bits` bits of a value, in its low bits."""
        words = self._as_words(e)
        if bits == 32:
            return words
        per_word = 32 // bits
        return [
            self.out.op("bfe.u32", words[n // per_word], str(n % per_word * bits), str(bits))
            for n in range(e.type.bits // bits)
        ]

    def _joined_bits(self, pieces: Words, bits: int) -> Words:
        """Return the words of pieces that are each in the low `bits` bits of a register."""
        per_word, words = 32 // bits, []
        for first in range(0, len(pieces), per_word):
            word = pieces[first]
            for n, piece in enumerate(pieces[first + 1 : first + per_word], 1):
                word = self.out.op("bfi.b32", piece, word, str(n * bits), str(bits))
            words.append(word)
        return words

    def _slice(self, e: x.Slice) -> Words:
        return self._picked(e.a, range(e.start, e.start + e.count))

    def _shuffle(self, e: x.Shuffle) -> Words:
        return self._picked(e.a, e.order)

    def _picked(self, of: Expr, order: Sequence[int]) -> Words:
        """Return elements by number; whole words that stay together are taken as they are."""
        words, elem = self.words(of), of.type.elem
        if elem is bool_ or elem.bits >= 32:
            return [words[n] for n in order]
        per_word, result = 32 // elem.bits, []
        for first in range(0, len(order), per_word):
            part = list(order[first : first + per_word])
            begin = part[0]
            if begin % per_word == 0 and part == list(range(begin, begin + len(part))):
                result.append(words[begin // per_word])
            else:
                pieces = [self._element(words, elem, n) for n in part]
                result += self._joined_bits(pieces, elem.bits)
        return result

    def _select(self, e: x.Select) -> Words:
        conditions = self.words(e.cond)
        if e.type.elem is bool_:
            triples = zip(conditions * (e.type.lanes // len(conditions)), self.words(e.a), self.words(e.b))
            return [self._chosen(*triple) for triple in triples]
        kind = kind_of(e.type.elem)
        name = f"selp.{KINDS[kind]}"
        if len(conditions) == 1:
            a, b = (self._constant(value) or self.words(value) for value in (e.a, e.b))
            return [self.out.op(name, left, right, *conditions, kind=kind) for left, right in zip(a, b)]
        triples = zip(self.elements(e.a), self.elements(e.b), conditions)
        return self.joined([self.out.op(name, *triple, kind=kind) for triple in triples], e.type.elem)

    def _chosen(self, condition: str, a: str, b: str) -> str:
        """Return one of two predicates."""
        out = self.out
        first = out.op("and.pred", condition, a, kind="p")
        second = out.op("and.pred", out.op("not.pred", condition, kind="p"), b, kind="p")
        return out.op("or.pred", first, second, kind="p")

    def _bitwise(self, e: x.Binary) -> Words:
        name = {x.And: "and", x.Or: "or", x.Xor: "xor"}[type(e)]
        kind = kind_of(e.type.elem)
        return [self.out.op(f"{name}.{KINDS[kind]}", a, b, kind=kind) for a, b in zip(self.words(e.a), self.words(e.b))]

    def _not(self, e: x.Not) -> Words:
        kind = kind_of(e.type.elem)
        return [self.out.op(f"not.{KINDS[kind]}", a, kind=kind) for a in self.words(e.a)]

    def _elementwise(self, e: Any) -> Words:
        """Return an operation on each word of halves, or on each element by the row of `element_ops`."""
        operands = [getattr(e, name) for name in e.child_fields]
        if name := packed.operation(type(e), e.type.elem, bf16_sums=self.target in BF16_SUMS):
            return [self.out.op(name, *words) for words in zip(*(self.words(operand) for operand in operands))]
        columns = [self._constant(operand) or self.elements(operand) for operand in operands]
        of = operands[0].type.elem
        results = [element_ops.apply(self.out, type(e), of, operands) for operands in zip(*columns)]
        return self.joined(results, e.type.elem)

    @staticmethod
    def _constant(e: Expr) -> Words:
        """Return an integer as an immediate operand; empty for other values."""
        return [str(e.bits)] if isinstance(e, x.Const) and e.dtype.is_int and e.dtype.bits >= 32 else []

    def _convert(self, e: x.Conversion) -> Words:
        of, to = e.a.type.elem, e.type.elem
        saturates = isinstance(e, x.Saturate)
        if of.is_int and to.is_int and of.bits == to.bits and not saturates:
            return self.words(e.a)
        if packed.convertible(of, to, saturate=saturates):
            return packed.convert(self.out, of, to, self.words(e.a), e.type.lanes)
        converted = [element_ops.convert(self.out, of, to, a, saturate=saturates) for a in self.elements(e.a)]
        return self.joined(converted, to)

    def _from_lane(self, e: x.FromLane) -> Words:
        lane, out = self.scalar(e.lane), self.out
        moved = [out.op("shfl.sync.idx.b32", word, lane, "31", "-1") for word in self._as_words(e.a)]
        return self._joined_halves(moved) if e.type.elem.bits == 64 else moved

    def parts(self, e: Expr) -> list[Expr]:
        """Return the expressions whose words, in order, are those of a value: the parts of a pack, or itself."""
        e = self.packs.get(e, e) if isinstance(e, Var) else e
        return [inner for part in e.parts for inner in self.parts(part)] if is_of_words(e) else [e]

    def _mma(self, e: x.Mma) -> Words:
        """Multiply step by step along K; a step's fragments are read during the step before."""
        op, row = e.op, ROWS[e.op.atom.name]
        if isinstance(row, WgmmaRow):
            return self._by_warpgroup(e, row)
        sums, a, b = list(self.words(e.acc)), _Factor(self, e.a), _Factor(self, e.b)
        owned = set(sums) if isinstance(e.acc, Var) and self.owned.pop(e.acc, -1) == self.loops else set()
        per = max(1, 32 // op.atom.a_elem.bits)  # elements of a register
        # registers of one instruction's operands
        of_a, of_b, of_d = op.atom.a.registers // per, op.atom.b.registers // per, op.atom.d.registers
        multiply = self._by_matrix if isinstance(row, MmaRow) else self._by_lanes
        mnemonic, of_sums = row.mnemonic, vector(op.atom.acc, of_d)

        def read(step: int) -> None:
            for n in range(op.tiles_n):
                a.words(op.a_start(n, step) // per, of_a)
            for m in range(op.tiles_m):
                b.words(op.b_start(m, step) // per, of_b)

        read(0)
        for step in range(op.steps):
            if step + 1 < op.steps:
                read(step + 1)
            for m in range(op.tiles_m):
                for n in range(op.tiles_n):
                    at_a, at_b, at_d = op.a_start(n, step) // per, op.b_start(m, step) // per, op.d_start(n, m)
                    factors = a.words(at_a, of_a), b.words(at_b, of_b)
                    before = sums[at_d : at_d + of_d]
                    after = before if owned.issuperset(before) else self._fresh(of_sums)
                    multiply(mnemonic, *factors, before, after)
                    sums[at_d : at_d + of_d] = after
                    owned.update(after)
        return sums

    @abstractmethod
    def _by_warpgroup(self, e: x.Mma, row: WgmmaRow) -> Words:
        """Multiply factors in shared memory; the sums are in flight until `await_sums`."""

    def _by_matrix(self, mnemonic: str, a: Words, b: Words, before: Words, after: Words) -> None:
        """Multiply by `mma.sync`, whose operand A is `b` and whose B is `a`; one register has braces, too."""
        result, first, second, total = map(vector_of, (after, b, a, before))
        self.out.emit(f"{mnemonic} {result}, {first}, {second}, {total}")

    def _by_lanes(self, mnemonic: str, a: Words, b: Words, before: Words, after: Words) -> None:
        """Add the products of a lane's row of A and row of B to its sum, one `fma` after the other along K."""
        (total,), (result,) = before, after
        for left, right in zip(a, b, strict=True):
            self.out.emit(f"{mnemonic} {result}, {left}, {right}, {total}")
            total = result

    def _vote(self, e: AllLanes) -> Words:
        return [self.out.op("vote.sync.all.pred", self.scalar(e.a), "-1", kind="p")]

    def _lane(self, _: x.Lane) -> Words:
        return [self.lane]

    def _address_of(self, e: x.AddressOf) -> Words:
        return [self.pointers[e.buffer.name]]

    def _uniform(self, e: x.Uniform) -> Words:
        return self.words(e.a)

    def _fresh(self, type: AnyType) -> Words:
        """Return new registers for a value."""
        kind = kind_of(type.elem)
        return [self.out.new(kind) for _ in range(count_of(type))]


def is_of_words(e: Expr) -> TypeGuard[x.Pack]:
    """Return whether a value is a pack of variables of whole words, which takes no instruction."""
    return (
        isinstance(e, x.Pack)
        and e.type.elem.bits < 64
        and all(isinstance(p, Var) and p.type.elem.bits < 64 and p.type.bits % 32 == 0 for p in e.parts)
    )


class _Factor:
    """A factor of a product, whose parts are selected when they are needed."""

    def __init__(self, values: Values, e: Expr) -> None:
        self.values = values
        self.parts = values.parts(e)
        self.starts = list(accumulate((count_of(part.type) for part in self.parts), initial=0))  #: word; of each part
        self.known: dict[int, Words] = {}  #: first word -> words of parts that are variables

    def words(self, first: int, count: int) -> Words:
        """Return `count` words from word `first` on; `count` is equal in all calls."""
        if (known := self.known.get(first)) is not None:
            return known
        words: Words = []
        part = begin = bisect_right(self.starts, first) - 1
        while self.starts[part] < first + count:
            words += self.values.words(self.parts[part])
            part += 1
        words = words[first - self.starts[begin] :][:count]
        if all(isinstance(e, Var) for e in self.parts[begin:part]):
            self.known[first] = words
        return words


_VALUES: Mapping[type[Expr], Callable[[Values, Any], Words]] = {
    x.Const: Values._const,
    x.Lane: Values._lane,
    x.Splat: Values._splat,
    x.Pack: Values._pack,
    x.Slice: Values._slice,
    x.Shuffle: Values._shuffle,
    x.Select: Values._select,
    x.Uniform: Values._uniform,
    x.FromLane: Values._from_lane,
    x.Mma: Values._mma,
    x.AddressOf: Values._address_of,
    AllLanes: Values._vote,
    x.Not: Values._not,
    **dict.fromkeys((x.And, x.Or, x.Xor), Values._bitwise),
    **dict.fromkeys((x.Cast, x.Saturate), Values._convert),
    **dict.fromkeys(element_ops.OPERATIONS, Values._elementwise),
    Fma: Values._elementwise,
}
