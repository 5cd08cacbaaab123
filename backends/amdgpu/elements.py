"""Selection of element-wise operations on vectors, and on floats and narrow integers of one element a lane.

A value that is equal in all elements is one operand for all of them: a constant, or the register of a scalar. A vector
of bools is a pair of scalar registers per element; masks without a variable are computed on use.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeGuard, cast

from convgen.backends.amdgpu.emitter import AmdEmitter, signed
from convgen.backends.amdgpu.exchange import from_lanes
from convgen.backends.amdgpu.operations import (
    BINARY,
    BITWISE,
    COMPARE,
    FUSED,
    IN_REVOLUTIONS,
    PAIRED,
    REVERSED,
    UNARY,
    WIDER,
)
from convgen.backends.amdgpu.scalars import LOGIC, AmdScalars
from convgen.backends.machine.instruction import Imm, Operand, Reg
from convgen.backends.machine.scalars import plain, retyped
from convgen.backends.machine.vectors import Parts, Vectors, adjacent, single_words, view
from convgen.ir import expr as x
from convgen.ir.error import Unsupported
from convgen.ir.expr import Expr
from convgen.ir.floats import Fma, Round
from convgen.ir.products import BlockMma
from convgen.ir.text import in_short
from convgen.ir.types import AnyType, Type, VectorType, f16, f32, vector

#: (element, destination or None) -> mask of the lanes where the element is true
Masks = Callable[[int, "Reg | None"], Reg]

_UPPER = "src0_sel:WORD_1"
_UPPER_WORD = ("dst_sel:DWORD", "dst_unused:UNUSED_PAD", _UPPER)
_MASKS = 4  #: pairs of scalar registers, so that comparisons fill the wait states between a comparison and its use


class Elements(Vectors):
    """Evaluates operations element by element."""

    out: AmdEmitter
    scalars: AmdScalars
    elementwise: ClassVar = BINARY
    _mask_pool: deque[Reg]  #: scalar pairs for masks, reused in turn
    in_pairs: bool  #: whether f32 sums and products use packed instructions

    def value(self, e: Expr) -> Parts:
        if e.type.elem.is_bool and not isinstance(e, x.Var):
            masks = self.masks(e)
            return tuple(masks(i, None) for i in range(e.type.lanes))
        return super().value(e)

    def computed(self, e: Expr) -> Parts:
        kind, elem = type(e), e.type.elem
        if kind in UNARY and elem not in WIDER:
            return self._unary(cast(x.Unary, e))
        if kind in _KINDS:
            return _KINDS[kind](self, e)
        if elem in WIDER:
            return self._widened(e)
        return super().computed(e)

    # ------------------------------------------------------------ operands

    def words(self, e: Expr, *, scalar: bool = False) -> Sequence[Operand]:
        """Return a register (two for 64 bits) for each word of a value; with `scalar`, a constant stays a constant."""
        elem, size = e.type.elem, words_of(e.type.elem)
        if e.type.bits > 32 and e.type.bits % 32:
            raise Unsupported(f"given an operation on {e.type}, wanted whole words of elements: {in_short(e)}")
        count = -(-e.type.bits // 32) // size
        inner = e.a if isinstance(e, x.Splat) else e
        if isinstance(inner, x.Const):
            if scalar and size == 1:
                return [self._constant(inner, e.type)] * count
            full = vector(elem, max(1, 32 // elem.bits))
            return [self._single(inner) if e.type.lanes == 1 else self.filled(full, inner)] * count
        if isinstance(e, x.Splat):
            return [self._repeated(e.a)] * count
        return self._sliced(self.vector_registers(e), size)

    def _sliced(self, parts: Parts, size: int) -> list[Reg]:
        """Return the value in tuples of `size` words."""
        count = sum(p.count for p in parts)
        return [self.tuple_of(view(parts, at, size)) for at in range(0, count, size)]

    def _constant(self, c: x.Const, type: AnyType) -> Operand:
        """Return a word of a constant; a register for narrow types, whose operations do not repeat inline constants."""
        bits = c.dtype.bits
        word = sum((c.bits & (1 << bits) - 1) << i for i in range(0, min(32, type.bits), bits))
        return self.out.constant(word) if bits < 32 and word else Imm(word)

    def _repeated(self, a: Expr) -> Reg:
        """Return a word (two for 64 bits) with the scalar in all its elements."""
        word, bits = self.tuple_of(self.vector_registers(a)), a.type.bits
        while bits < 32:
            word = self.out.valu("v_lshl_or_b32", word, Imm(bits), word)
            bits *= 2
        return word

    def filled(self, dtype: VectorType, a: Expr, into: Reg | None = None) -> Reg:
        if isinstance(a, x.Const) and not dtype.elem.is_bool:
            return super().filled(dtype, a, into)
        word = self.scalars.mask(a) if dtype.elem.is_bool else self._repeated(a)
        size = word.count
        count = dtype.lanes if dtype.elem.is_bool else -(-dtype.bits // 32) // size
        dst = into or self.out.new(word.bank, count * size)
        for n in range(count):
            self.out.copy(dst.words(n * size, size), word)
        return dst

    def _single(self, c: x.Const) -> Reg:
        """Return a constant of one element a lane; bits above a narrow one are zero."""
        narrow = c.dtype.bits < 32
        return self.out.move_to_vector(Imm(c.bits)) if narrow else self.filled(vector(c.dtype, 1), c)

    def _result(self, type: AnyType) -> tuple[Reg, list[Reg]]:
        """Return registers for a value, and each of its words."""
        size = words_of(type.elem)
        dst = self.out.new("v", -(-type.bits // 32))
        return dst, [dst.words(at, size) for at in range(0, dst.count, size)]

    # ------------------------------------------------------------ arithmetic

    def _element_by_element(self, name: str, e: x.Binary) -> Reg:
        if self.in_pairs and name in PAIRED and e.type.lanes % 2 == 0 and not any(map(_is_repeated, (e.a, e.b))):
            values = {c: self.vector_registers(c) for c in (e.a, e.b)}
            if all(map(_are_pairs, values.values())):
                return self._two_by_two(PAIRED[name], (e.a, e.b), values, e.type)
            return self._of_words(name, e.type, *(self._sliced(values[c], 1) for c in (e.a, e.b)))
        words = self._term if isinstance(e, x.Add) else self.words
        return self._of_words(name, e.type, words(e.a, scalar=True), words(e.b, scalar=not _is_constant(e.a)))

    def _of_words(self, name: str, type: AnyType, a: Sequence[Operand], b: Sequence[Operand]) -> Reg:
        """Return the result of an operation, word by word."""
        dst, into = self._result(type)
        for left, right, to in zip(a, b, into):
            self._operate(name, type.elem, left, right, to)
        return dst

    def _term(self, e: Expr, *, scalar: bool) -> Sequence[Operand]:
        """Return the words of an addend; initial zeros of sums get their own registers."""
        if isinstance(e, x.Splat) and isinstance(e.a, x.Const) and not e.a.bits:
            return self._sliced(self.value(e), words_of(e.type.elem))
        return self.words(e, scalar=scalar)

    def _operate(self, name: str, elem: Type, a: Operand, b: Operand, into: Reg) -> None:
        mnemonic, *modifiers = name.split()
        operands = (b, a) if name in REVERSED else (a, b)
        self.out.valu(mnemonic, *operands, into=into, modifiers=modifiers)

    def _difference(self, e: Expr) -> Parts:
        """Subtract f64 by adding the negated operand: there is no f64 subtraction."""
        assert isinstance(e, x.Sub)
        if e.type.elem.bits != 64 or not e.type.elem.is_float:
            return self._widened(e)
        return self.value(x.Add(e.a, -e.b))

    def _unary(self, e: x.Unary) -> Parts:
        name, elem = f"v_{UNARY[type(e)]}_{e.type.elem}", e.type.elem
        dst, into = self._result(e.type)
        words = self._revolutions(e.a) if isinstance(e, IN_REVOLUTIONS) else self.words(e.a)
        for word, to in zip(words, into):
            if elem is f16:
                self._halves(name, word, to, both=e.type.lanes > 1)
            else:
                self.out.valu(name, word, into=to)
        return (dst,)

    def _revolutions(self, e: Expr) -> Sequence[Operand]:
        """Return the distance to the nearest whole revolution, which is exact."""
        revolutions = x.Var("turns", 0, e.type)
        self.env[revolutions] = self.vector_registers(e)
        return self.words(revolutions - Round(revolutions))

    def _halves(self, name: str, word: Operand, to: Reg, *, both: bool) -> None:
        """Emit a 16-bit operation on the lower half, and on the upper half if there are `both`."""
        low = self.out.valu(f"{name}_e64", word, into=None if both else to)
        if both:
            high = self.out.new("v")
            self.out.emit(f"{name}_sdwa", (high,), (self.out.move_to_vector(word),), modifiers=_UPPER_WORD)
            self.out.valu("v_pack_b32_f16", low, high, into=to)

    def from_lane(self, e: Expr) -> Parts:
        """Read other lanes word by word, for any element type."""
        assert isinstance(e, x.FromLane)
        return (from_lanes(self.scalars, single_words(self.vector_registers(e.a)), e.lane),)

    @abstractmethod
    def block_product(self, e: Expr) -> Parts:
        """Return a product of blocks of lanes by a matrix instruction."""

    def _bitwise(self, e: Expr) -> Parts:
        """Change some bits of each element; for 64 bits the sign is in the upper word."""
        assert isinstance(e, x.Unary)
        elem = e.type.elem
        name, which = BITWISE[type(e), elem.kind]
        sign = 1 << min(31, elem.bits - 1)
        bits = {"sign": sign, "others": sign - 1, "all": 2 * sign - 1}[which]
        mask = sum(bits << i for i in range(0, 32 if e.type.lanes > 1 else 1, elem.bits))
        dst, into = self._result(e.type)
        for word, to in zip(self.words(e.a), into):
            assert isinstance(word, Reg)
            last = to.count - 1
            if last:
                self.out.copy(to.words(0, last), word.words(0, last))
            self.out.valu(name, Imm(mask), self.out.move_to_vector(word.words(last, 1)), into=to.words(last, 1))
        return (dst,)

    def _fma(self, e: Expr) -> Parts:
        """Multiply and add: f32 in pairs of registers where possible, mixed precision if an operand was converted from
        f16.
        """
        assert isinstance(e, Fma)
        operands = (e.a, e.b, e.c)
        if any(map(_was_half, operands)):
            return self._mixed(operands, e.type)
        values = {c: self.vector_registers(c) for c in operands if not _is_repeated(c)}
        if e.type.elem is f32 and e.type.lanes % 2 == 0 and all(map(_are_pairs, values.values())):
            return (self._two_by_two("v_pk_fma_f32", operands, values, e.type),)
        dst, into = self._result(e.type)
        size = words_of(e.type.elem)
        constants = list(dict.fromkeys(c for c in operands if _is_constant(c)))
        words = [
            self._sliced(values[c], size) if c in values else self.words(c, scalar=c in constants[:1]) for c in operands
        ]
        for a, b, c, to in zip(*words, into):
            self.out.valu(FUSED[e.type.elem], a, b, c, into=to)
        return (dst,)

    def _two_by_two(self, name: str, operands: Sequence[Expr], registers: Mapping[Expr, Parts], type: AnyType) -> Reg:
        """Emit a packed f32 operation on operands that are in pairs of `registers`, or constants.

        One scalar pair holds the two constants that an operation may have; modifiers select the word that both halves
        read (CDNA3 ISA 6.7, Packed Math: OP_SEL and OP_SEL_HI of 32-bit operations choose a dword of each source).
        """
        constants = [_bits_of(c) for c in dict.fromkeys(operands) if _is_scalar(c)]
        sources = [self._pairs(c, registers, constants, type.lanes // 2) for c in operands]
        chosen = [constants.index(_bits_of(c)) if _is_scalar(c) else None for c in operands]
        low, high = [n == 1 for n in chosen], [n != 0 for n in chosen]
        modifiers = [m for m in (_bits("op_sel", low), _bits("op_sel_hi", high)) if m] if constants else []
        dst = self.out.new("v", type.lanes)
        for n, pairs in enumerate(zip(*sources)):
            self.out.emit(name, (dst.words(2 * n, 2),), pairs, modifiers=modifiers)
        return dst

    def _pairs(self, e: Expr, registers: Mapping[Expr, Parts], constants: Sequence[int], count: int) -> Sequence[Reg]:
        """Return an operand in `count` pairs; a constant uses the pair that holds all `constants`."""
        if e in registers:
            return self._sliced(registers[e], 2)
        assert isinstance(e, x.Splat)
        if not _is_scalar(e):
            return [self.filled(vector(f32, 2), e.a)] * count
        first, last = constants[0], constants[-1]
        name = f"const_{first:#x}" if first == last else f"const_{first:#x}_{last:#x}"
        return [self.out.kernel_constant(Imm(signed(first)), Imm(signed(last)), name=name)] * count

    def _mixed(self, operands: Sequence[Expr], type: AnyType) -> Parts:
        """Multiply and add f32 and unconverted f16: modifiers select operands that are halves of words."""
        halves = [_was_half(c) for c in operands]
        constants = list(dict.fromkeys(c for c in operands if _is_constant(c)))
        words = [
            single_words(self.vector_registers(cast(x.Cast, c).a)) if half else self.words(c, scalar=c in constants[:1])
            for c, half in zip(operands, halves)
        ]
        dst, into = self._result(type)
        for n, to in enumerate(into):
            sources = [operand[n // 2 if half else n] for operand, half in zip(words, halves)]
            picked = [_bits("op_sel", [half and n % 2 == 1 for half in halves]), _bits("op_sel_hi", halves)]
            self.out.valu("v_fma_mix_f32", *sources, into=to, modifiers=[m for m in picked if m])
        return (dst,)

    def _widened(self, e: Expr) -> Parts:
        """Compute in a wider type and convert the result, which equals that of the narrow operation."""
        wide = WIDER.get(e.type.elem)
        if wide is None or not isinstance(e, (x.Unary, x.Binary)):
            return super().computed(e)
        operands = [c.to(retyped(c.type, wide)) for c in e.children()]
        result: Expr = type(e)(*operands)
        return self.value(result.to(e.type))

    def converted(self, e: x.Cast | x.Saturate) -> Reg:
        """Return a conversion to the elements of its type, vector or not."""
        if not e.a.type.elem.is_bool:
            return self._convert(e.type if isinstance(e.type, VectorType) else vector(e.type, 1), e)
        zero, one = (x.const(n, e.type.elem) for n in (0, 1))
        if isinstance(e.type, VectorType):
            return self.tuple_of(self.value(x.Select(e.a, x.Splat(e.type, one), x.Splat(e.type, zero))))
        return self.tuple_of(self.vector_registers(x.Select(e.a, one, zero)))

    # ------------------------------------------------------------ choices

    def _select(self, e: Expr) -> Parts:
        assert isinstance(e, x.Select)
        chosen, otherwise = self.words(e.a), self.words(e.b)
        masks = self.masks(e.cond)
        dst, into = self._result(e.type)
        per_word = 1 if isinstance(e.cond.type, Type) else max(1, 32 // e.type.elem.bits)
        for n, (a, b, to) in enumerate(zip(chosen, otherwise, into)):
            element_masks = [masks(n * per_word + i, self._next_mask()) for i in range(min(per_word, e.type.lanes))]
            if len(element_masks) == 1:
                self._choose(a, b, element_masks[0], to)
            else:
                picked = [self._choose(a, b, mask, self.out.new("v")) for mask in element_masks]
                self._joined(picked, e.type.elem.bits, to)
        return (dst,)

    def _next_mask(self) -> Reg:
        """Return registers for a mask that is used at once; `_MASKS` pairs are reused in turn."""
        if len(self._mask_pool) < _MASKS:
            self._mask_pool.append(self.out.new("s", 2))
        else:
            self._mask_pool.rotate(-1)
        return self._mask_pool[-1]

    def _choose(self, a: Operand, b: Operand, mask: Reg, into: Reg) -> Reg:
        for w in range(into.count):
            chosen, other = (self.out.move_to_vector(v.words(w, 1) if isinstance(v, Reg) else v) for v in (a, b))
            self.out.emit("v_cndmask_b32", (into.words(w, 1),), (other, chosen, mask))
        return into

    def _joined(self, words: Sequence[Reg], bits: int, into: Reg) -> None:
        """Join words: element n of the result is element n of the n-th word."""
        while len(words) > 1:
            lower = sum(((1 << bits) - 1) << i for i in range(0, 32, 2 * bits))
            ends = len(words) == 2
            words = [
                self.out.valu("v_bfi_b32", Imm(lower), low, high, into=into if ends else None)
                for low, high in zip(words[::2], words[1::2])
            ]
            bits *= 2

    # ------------------------------------------------------------ masks

    def masks(self, e: Expr) -> Masks:
        """Return a function that gives the mask of each element of a bool or vector of bools; operands are evaluated
        now.
        """
        if isinstance(e.type, Type):
            one = self.scalars.mask(e)
            return lambda i, into: one
        match plain(e):
            case x.Var():
                pairs = self.value(e)
                return lambda i, into: self.tuple_of(view(pairs, 2 * i, 2))
            case x.Comparison() as numbers:
                return self.compared(numbers)
            case x.And(a, b) | x.Or(a, b) | x.Xor(a, b):
                left, right, name = self.masks(a), self.masks(b), LOGIC[type(plain(e))]
                return lambda i, into: self.out.salu(name, left(i, None), right(i, None), size=2, into=into)
            case x.Not(a):
                inner = self.masks(a)
                return lambda i, into: self.out.salu("s_not_b64", inner(i, None), size=2, into=into)
            case x.Splat(_, a):
                return self.masks(a)
            case x.Slice(a, start, _):
                whole = self.masks(a)
                return lambda i, into: whole(start + i, into)
            case x.Shuffle(a, order):
                whole = self.masks(a)
                return lambda i, into: whole(order[i], into)
        raise Unsupported(f"given {type(e).__name__} of type {e.type}, wanted a comparison or logic: {in_short(e)}")

    def compared(self, e: x.Comparison) -> Masks:
        """Return a function that gives the masks of a comparison of numbers."""
        elem = e.a.type.elem
        if elem in WIDER:
            wide = retyped(e.a.type, WIDER[elem])
            return self.compared(type(e)(e.a.to(wide), e.b.to(wide)))
        name = COMPARE.get((type(e), elem))
        if name is None:
            raise Unsupported(f"given a comparison of {e.a.type}, wanted one that the vector unit has: {in_short(e)}")
        a, b = self.words(e.a, scalar=True), self.words(e.b, scalar=not _is_constant(e.a))
        if elem.bits >= 32 or e.a.type.lanes == 1:
            return lambda i, into: self.out.valu(name, a[i], b[i], bank="s", size=2, into=into)
        return lambda i, into: self._compare_half(name, a[i // 2], b[i // 2], i % 2, into)

    def _compare_half(self, name: str, a: Operand, b: Operand, upper: int, into: Reg | None) -> Reg:
        if not upper:
            return self.out.valu(name, a, b, bank="s", size=2, into=into)
        dst = into or self.out.new("s", 2)
        operands = [self.out.move_to_vector(o) for o in (a, b)]
        self.out.emit(f"{name}_sdwa", (dst,), operands, modifiers=(_UPPER, "src1_sel:WORD_1"))
        return dst


_KINDS: dict[type[Expr], Callable[[Elements, Expr], Parts]] = {
    **dict.fromkeys([kind for kind, _ in BITWISE], Elements._bitwise),
    x.Sub: Elements._difference,
    Fma: Elements._fma,
    x.Select: Elements._select,
    x.FromLane: Elements.from_lane,
    BlockMma: lambda elements, e: elements.block_product(e),
    x.Const: lambda elements, e: (elements._single(cast(x.Const, e)),),
    **dict.fromkeys((x.Cast, x.Saturate), lambda elements, e: (elements.converted(cast("x.Cast | x.Saturate", e)),)),
    x.Uniform: lambda elements, e: elements.value(cast(x.Uniform, e).a),
}


def words_of(elem: Type) -> int:
    """Return the registers that an element takes; a narrow one shares its register."""
    return max(1, elem.bits // 32)


def _was_half(e: Expr) -> bool:
    """Return whether an f32 is a converted f16."""
    return isinstance(e, x.Cast) and e.type.elem is f32 and e.a.type.elem is f16


def _bits(name: str, bits: Sequence[bool]) -> str:
    """Return a modifier with a bit for each operand; empty for the default."""
    return f"{name}:[{','.join(str(int(bit)) for bit in bits)}]" if any(bits) else ""


def _are_pairs(parts: Parts) -> bool:
    """Return whether words lie in pairs that begin at even registers."""
    pairs = [adjacent(view(parts, at, 2)) for at in range(0, sum(p.count for p in parts), 2)]
    return all(pair and pair.bank == "v" and pair.first % 2 == 0 for pair in pairs)


def _is_scalar(e: Expr) -> TypeGuard[x.Splat]:
    """Return whether scalar registers hold an operand of a packed operation: a constant other than zero."""
    return isinstance(e, x.Splat) and isinstance(e.a, x.Const) and e.a.bits != 0


def _bits_of(e: x.Splat) -> int:
    assert isinstance(e.a, x.Const)
    return e.a.bits


def _is_repeated(e: Expr) -> bool:
    """Return whether an operand is syntactically equal in all elements."""
    return isinstance(e, (x.Const, x.Splat))


def _is_constant(e: Expr) -> bool:
    """Return whether an operand is one constant for all words."""
    return isinstance(e.a if isinstance(e, x.Splat) else e, x.Const)
