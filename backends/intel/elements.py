"""Selection of element-wise operations on vectors, and on floats and narrow integers of one a lane.

Narrow elements share dwords and are worked on side by side, so none moves within its dword: twice as many lanes. What
is the same in all elements is one operand for all of them: an immediate, or the register of a scalar.

Of a vector of bools a variable holds dwords, all ones where an element is true; what chooses by it makes flags of
them. A comparison of elements as wide as those that it chooses sets the flags itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, cast

from convgen.backends.intel.bytes import UNSIGNED
from convgen.backends.intel.emitter import XeEmitter
from convgen.backends.intel.isa import Literal, region
from convgen.backends.intel.operations import BINARY, COMMUTES, EXTREMA, TYPES, UNARY, WIDENED, WIDER
from convgen.backends.intel.scalars import CONDITIONS, SWAPPED, XeScalars
from convgen.backends.machine.instruction import Imm, Operand, Reg
from convgen.backends.machine.scalars import plain
from convgen.backends.machine.vectors import Parts, Vectors
from convgen.ir import expr as x
from convgen.ir.error import Unsupported
from convgen.ir.expr import Expr
from convgen.ir.floats import Abs, Cos, Fma, Neg, Sin
from convgen.ir.types import AnyType, Type, VectorType, f16, f32, s16, s32, u16, u32, vector

Words = Callable[[int], Operand]  #: what an operand is of each dword of a result
Flags = Callable[[int], Reg]  #: the flags of the elements in each dword

_TURN = 0x40C90FDB  #: f32; radians
_ONES = {32: 0xFFFFFFFF, 16: 0xFFFF}


class Elements(Vectors):
    """Evaluates operations element by element."""

    out: XeEmitter
    scalars: XeScalars
    elementwise: ClassVar = BINARY

    def value(self, e: Expr) -> Parts:
        if isinstance(e, x.Var) and e not in self.env and e in self.scalars.env:  # an argument
            return (self.out.move_to_vector(self.scalars.env[e]),)
        if e.type.elem.is_bool and not isinstance(e, x.Var):
            return tuple(self.masks(e, 32))
        return super().value(e)

    def computed(self, e: Expr) -> Parts:
        wide = WIDER.get(e.type.elem) or WIDENED.get((type(e), e.type.elem))
        if type(e) in UNARY and e.type.elem is f32:
            return (self._unary(cast(x.Unary, e)),)
        if type(e) in _KINDS:
            return (_KINDS[type(e)](self, e),)
        if wide is not None and isinstance(e, (x.Unary, x.Binary)):
            operands = [_in_wider(c, wide) for c in cast("tuple[Expr, ...]", e.children())]
            made: Expr = type(e)(*operands)
            return self.value(made.to(e.type))
        return super().computed(e)

    # ------------------------------------------------------------ operands

    def operand(self, e: Expr, *, signs: bool = True, last: bool = False) -> Words:
        """The dwords of a value as sources; with `signs`, those of floats turn on the way. Only the `last` source of
        an instruction may be an immediate.
        """
        negated = absolute = False
        while signs and isinstance(e, (Neg, Abs)):
            negated ^= isinstance(e, Neg) and not absolute
            absolute |= isinstance(e, Abs)
            e = e.a
        kind, inner = TYPES[e.type.elem], e.a if isinstance(e, x.Splat) else e
        if isinstance(inner, x.Const):
            sign = 1 << inner.type.bits - 1
            bits = (inner.bits & ~sign if absolute else inner.bits) ^ (sign if negated else 0)
            literal = self.out.source(Imm(bits), kind)
            assert isinstance(literal, Literal)
            held: Operand = literal if last else region(self.out.constant(literal), kind, 0, 0)
            return lambda n: held
        if isinstance(e, x.Splat):
            same = self._same(e.a)
            return lambda n: region(same, kind, 0, self._stride(same), negated=negated, absolute=absolute)
        return self._registers(self.held(e), kind, negated=negated, absolute=absolute)

    def _registers(self, parts: Parts, kind: str, *, negated: bool = False, absolute: bool = False) -> Words:
        words = _words(parts)
        return lambda n: region(words[n], kind, 0, self._stride(words[n]), negated=negated, absolute=absolute)

    @staticmethod
    def _stride(r: Reg) -> int:
        return int(r.bank != "s")

    def _same(self, a: Expr) -> Reg:
        """A register with the scalar in all elements of its dwords: of the lanes, or the one dword that all see."""
        known = self.scalars.env.get(a) if isinstance(a, x.Var) else None
        if a.type.elem.bits == 32 and isinstance(known, Reg):
            return known
        word = self.tuple_of(self.held(a))
        if a.type.elem.bits == 32:
            return word
        dst, bits = self.out.new("v"), a.type.elem.bits
        kind, apart = UNSIGNED[bits // 8], 32 // bits
        for n in range(apart):
            to, of = region(dst, kind, n, apart), region(word, kind, 0, apart)
            self.out.emit("mov", (to,), (of,), lanes=self.out.lanes, partial=n > 0)
        return dst

    def filled(self, dtype: VectorType, a: Expr, into: Reg | None = None) -> Reg:
        if isinstance(a, x.Const) and not dtype.elem.is_bool:
            return super().filled(dtype, a, into)
        same = self._spread(self.scalars.mask(a)) if dtype.elem.is_bool else self._same(a)
        dst = into or self.out.new("v", dtype.lanes if dtype.elem.is_bool else max(1, dtype.bits // 32))
        for n in range(dst.count):
            self.out.move(dst.words(n, 1), same)
        return dst

    def result(self, type: AnyType) -> tuple[Reg, list[Reg]]:
        """Registers for a value, and each of its dwords."""
        if type.elem not in TYPES or (type.lanes > 1 and type.bits % 32):
            raise Unsupported(f"given an operation on {type}, wanted whole dwords of elements of up to 32 bits")
        dst = self.out.new("v", max(1, type.bits // 32))
        return dst, [dst.words(n, 1) for n in range(dst.count)]

    def lanes(self, bits: int) -> int:
        """How many elements of so many bits the dwords of all lanes hold."""
        return self.out.lanes * 32 // bits

    def do(self, name: str, kind: str, into: Reg, *sources: Operand, bits: int = 32, condition: str = "") -> None:
        """An instruction on the elements of a dword of each lane."""
        self.out.emit(name, (region(into, kind),), sources, lanes=self.lanes(bits), condition=condition)

    # ------------------------------------------------------------ arithmetic

    def _element_by_element(self, name: str, e: x.Binary) -> Reg:
        a, b, elem = e.a, e.b, e.type.elem
        begins = name == "add" and _is_zeros(a)  # a sum, of which zeros have registers
        if name in COMMUTES and _is_constant(a) and not begins:
            a, b = b, a
        if name == "sub" and elem.is_float:
            name, b = "add", -b
        signs = elem.is_float and name not in EXTREMA
        whole = name in ("sub", "mulhi") or (name == "mul" and elem.is_int and elem.bits == 32)
        left = self._registers(self.value(a), TYPES[elem]) if begins else self.operand(a, signs=signs)
        right = self.operand(b, signs=signs, last=not whole)
        dst, into = self.result(e.type)
        for n, to in enumerate(into):
            self._operate(name, elem, cast(Reg, left(n)), cast(Reg, right(n)), to)
        return dst

    def _operate(self, name: str, elem: Type, a: Reg, b: Reg, into: Reg) -> None:
        kind = TYPES[elem]
        if name == "mulhi" or (name == "mul" and elem.is_int and elem.bits == 32):
            self.scalars.product(a, b, "ud" if name == "mulhi" else kind, high=name == "mulhi", into=into)
        elif name == "sub":
            self.do("add", kind, into, a, self.scalars.negated(b, kind), bits=elem.bits)
        elif name in EXTREMA:
            self._extremum(name, elem, a, b, into)
        else:
            self.do(name, kind, into, a, b, bits=elem.bits)

    def _extremum(self, name: str, elem: Type, a: Operand, b: Operand, into: Reg) -> None:
        """Of a NaN and a number `sel` gives the number (IGC, MIN_MAX.md); which of two zeros, no manual says.

        Where both operands are equal, but for the sign of a zero, the result has the bits of both, or of either.
        """
        kind, (condition, bitwise) = TYPES[elem], EXTREMA[name]
        self.do("sel", kind, into, a, b, bits=elem.bits, condition=condition)
        if not elem.is_float or (isinstance(b, Literal) and b.value & _ONES[elem.bits] >> 1):  # type: ignore[operator]
            return
        if isinstance(b, Literal) and name == "max" and not b.value:
            self.do("add", kind, into, region(into, kind), b, bits=elem.bits)  # minus zero and zero are zero
            return
        equal = self._compare("eq", kind, a, b, elem.bits)
        bits = UNSIGNED[elem.bytes]
        first, second = (self._as(o, bits) for o in (a, b))
        self.out.emit(bitwise, (region(into, bits),), (first, second), lanes=self.lanes(elem.bits), predicate=equal)

    def _as(self, o: Operand, kind: str) -> Operand:
        """The bits of an operand."""
        if isinstance(o, Literal):
            return Literal(o.value, kind)
        return region(o, kind, 0, self._stride(o))  # type: ignore[arg-type]

    def _unary(self, e: x.Unary) -> Reg:
        source = self.operand(e.a)
        if type(e) in (Sin, Cos):
            source = self._radians(source)
        dst, into = self.result(e.type)
        for n, to in enumerate(into):
            self.do(UNARY[type(e)], "f", to, source(n))
        return dst

    def _radians(self, turns: Words) -> Words:
        """Of turns, the part of one that lies nearest to zero, which is exact, as radians."""

        def word(n: int) -> Operand:
            whole, part = self.out.new("v"), self.out.new("v")
            self.do("rnde", "f", whole, turns(n))
            self.do("add", "f", part, turns(n), region(whole, "f", negated=True))
            self.do("mul", "f", part, region(part, "f"), Literal(_TURN, "f"))
            return region(part, "f")

        return word

    def _signed(self, e: Expr) -> Reg:
        """Bits of each element changed: the sign of a float, or all of an integer."""
        assert isinstance(e, x.Unary)
        elem = e.type.elem
        sign = sum(1 << i for i in range(elem.bits - 1, 32, elem.bits))
        source = self.operand(e.a, signs=False)
        dst, into = self.result(e.type)
        for n, to in enumerate(into):
            word = self._as(source(n), "ud")
            if isinstance(e, x.Not):
                self.do("not", "ud", to, word)
            elif isinstance(e, Neg):
                self.do("xor", "ud", to, word, Literal(sign, "ud"))
            else:
                self.do("and", "ud", to, word, Literal(~sign & _ONES[32], "ud"))
        return dst

    def _bitwise(self, e: Expr) -> Reg:
        assert isinstance(e, x.Binary)
        a, b = (e.b, e.a) if _is_constant(e.a) else (e.a, e.b)
        left, right = self._whole(a, 32), self._whole(b, 32, last=True)
        dst, into = self.result(e.type)
        for n, to in enumerate(into):
            self.do(_LOGIC[type(e)], "ud", to, left(n), right(n))
        return dst

    def _fma(self, e: Expr) -> Reg:
        assert isinstance(e, Fma)
        elem = e.type.elem
        sources = [self.operand(o) for o in (e.c, e.a, e.b)]
        dst, into = self.result(e.type)
        for n, to in enumerate(into):
            self.do("mad", TYPES[elem], to, *(source(n) for source in sources), bits=elem.bits)
        return dst

    def converted(self, e: Expr) -> Reg:
        """A conversion to the elements of its type, be it a vector or not."""
        assert isinstance(e, (x.Cast, x.Saturate))
        if not e.a.type.elem.is_bool:
            return self._convert(e.type if isinstance(e.type, VectorType) else vector(e.type, 1), e)
        return self.tuple_of(self.held(x.Select(e.a, _number(1, e.type), _number(0, e.type))))

    # ------------------------------------------------------------ choices

    def _select(self, e: Expr) -> Reg:
        assert isinstance(e, x.Select)
        elem = e.type.elem
        if elem.bits < 16 and not elem.is_storage:
            a, b = (_in_wider(c, WIDER[elem]) for c in (e.a, e.b))
            return self.tuple_of(self.value(x.Select(e.cond, a, b).to(e.type)))
        bits = 32 if isinstance(e.cond.type, Type) else elem.bits
        turned = _is_constant(e.a) and not _is_constant(e.b)
        first, second = (e.b, e.a) if turned else (e.a, e.b)
        chosen, other = self._whole(first, bits), self._whole(second, bits, last=True)
        flags = self.flags(e.cond, bits)
        dst, into = self.result(e.type)
        for n, to in enumerate(into):
            kind = UNSIGNED[bits // 8]
            self.out.emit(
                "sel", (region(to, kind),), (chosen(n), other(n)),
                lanes=self.lanes(bits), predicate=flags(n), modifiers=("unless",) if turned else (),
            )  # fmt: skip
        return dst

    def _whole(self, e: Expr, bits: int, *, last: bool = False) -> Words:
        """The bits of a value's dwords, in elements of so many `bits`."""
        elem, inner = e.type.elem, e.a if isinstance(e, x.Splat) else e
        if isinstance(inner, x.Const):
            pattern = inner.bits & (1 << elem.bits) - 1
            if bits == 32 and e.type.lanes > 1:
                pattern = sum(pattern << i for i in range(0, 32, elem.bits))
            literal = Literal(pattern, UNSIGNED[bits // 8])
            held: Operand = literal if last else region(self.out.constant(literal), literal.type, 0, 0)
            return lambda n: held
        source = self.operand(e, signs=False)
        return lambda n: self._as(source(n), UNSIGNED[bits // 8])

    def flags(self, cond: Expr, bits: int) -> Flags:
        """The flags of a bool, or of a vector of them by whose elements others of so many `bits` are chosen."""
        if isinstance(cond.type, Type):
            one = self.scalars.mask(cond)
            return lambda n: one
        cond = plain(cond)
        if isinstance(cond, x.Comparison) and cond.a.type.elem.bits == bits and cond.a.type.elem not in WIDER:
            return self._compared(cond)
        kind = UNSIGNED[bits // 8]
        words = self.masks(cond, bits)
        return lambda n: self._compare("ne", kind, region(words[n], kind), Literal(0, kind), bits)

    # ------------------------------------------------------------ comparisons

    def compared(self, e: x.Comparison) -> Reg:
        """The flags of a comparison of one element a lane."""
        elem = e.a.type.elem
        wide = {**WIDER, **_WORDS}.get(elem)
        return self._compared(e if wide is None else type(e)(_in_wider(e.a, wide), _in_wider(e.b, wide)))(0)

    def _compared(self, e: x.Comparison) -> Flags:
        kind, bits, condition, a, b = self._comparison(e)
        return lambda n: self._compare(condition, kind, a(n), b(n), bits)

    def _comparison(self, e: x.Comparison) -> tuple[str, int, str, Words, Words]:
        """Type, width, condition and operands."""
        elem, condition = e.a.type.elem, CONDITIONS[type(e)]
        first, second = e.a, e.b
        if _is_constant(first):
            first, second, condition = second, first, SWAPPED[condition]
        if elem not in TYPES:
            raise Unsupported(f"given a comparison of {e.a.type}, wanted elements of up to 32 bits: {e}")
        a, b = self.operand(first, signs=elem.is_float), self.operand(second, signs=elem.is_float, last=True)
        return TYPES[elem], elem.bits, condition, a, b

    def _compare(self, condition: str, kind: str, a: Operand, b: Operand, bits: int, into: Reg | None = None) -> Reg:
        """Flags of the elements in a dword of each lane; `into` has all ones or zeros in each of them."""
        dst = None if into is None else region(into, kind)
        return self.out.compare(condition, kind, a, b, self.lanes(bits), dst)

    def masks(self, e: Expr, bits: int) -> list[Reg]:
        """The dwords of a vector of bools, all ones or zeros in elements of so many `bits`."""
        e = plain(e)
        match e:
            case x.Comparison():
                return self._compared_masks(e, bits)
            case x.And() | x.Or() | x.Xor():
                pairs = zip(self.masks(e.a, bits), self.masks(e.b, bits))
                return [self._logic(_LOGIC[type(e)], *pair) for pair in pairs]
            case x.Not(a):
                return [self._logic("not", word) for word in self.masks(a, bits)]
        return self._masks_of(self._dwords(e), 32, bits)

    def _dwords(self, e: Expr) -> list[Reg]:
        """A dword for each of some bools that are moved or held."""
        match e:
            case x.Var():
                return _words(self.value(e))
            case x.Slice(a, start, count):
                return self.masks(a, 32)[start : start + count]
            case x.Shuffle(a, order):
                held = self.masks(a, 32)
                return [held[i] for i in order]
            case x.Splat(_, a):
                return [self._spread(self.scalars.mask(a))] * e.type.lanes
        raise Unsupported(f"given {type(e).__name__} of type {e.type}, wanted a comparison or logic: {e}")

    def _spread(self, flag: Reg) -> Reg:
        """All ones in the lanes of the flags."""
        dst = self.out.new("v")
        self.out.fill(dst, Literal(0, "ud"))
        self.out.emit("mov", (region(dst, "d"),), (Literal(-1, "d"),), lanes=self.out.lanes, predicate=flag)
        return dst

    def _logic(self, name: str, *words: Reg) -> Reg:
        dst = self.out.new("v")
        self.do(name, "ud", dst, *(region(w, "ud") for w in words))
        return dst

    def _compared_masks(self, e: x.Comparison, bits: int) -> list[Reg]:
        """As wide as what is compared, then as asked for."""
        wide = WIDER.get(e.a.type.elem)
        if wide is not None:
            e = type(e)(_in_wider(e.a, wide), _in_wider(e.b, wide))
        _, into = self.result(e.a.type)
        kind, width, condition, a, b = self._comparison(e)
        for n, to in enumerate(into):
            self._compare(condition, kind, a(n), b(n), width, to)
        return self._masks_of(into, width, bits)

    def _masks_of(self, words: list[Reg], of: int, bits: int) -> list[Reg]:
        """Masks of another width."""
        if of == bits:
            return words
        if bits == 32:
            return [self._moved("d", region(w, "w", part, 2)) for w in words for part in (0, 1)]
        pairs = zip(words[::2], words[1::2])
        return [self._moved("uw", *(region(w, "uw", 0, 2) for w in pair)) for pair in pairs]

    def _moved(self, kind: str, *parts: Reg) -> Reg:
        """A dword of the parts side by side."""
        dst = self.out.new("v")
        for n, of in enumerate(parts):
            to = region(dst, kind, n, len(parts))
            self.out.emit("mov", (to,), (of,), lanes=self.out.lanes, partial=n > 0)
        return dst


_LOGIC: dict[type[Expr], str] = {x.And: "and", x.Or: "or", x.Xor: "xor"}
_KINDS: dict[type[Expr], Callable[[Elements, Expr], Reg]] = {
    Fma: Elements._fma,
    **dict.fromkeys((Neg, Abs, x.Not), Elements._signed),
    **dict.fromkeys(_LOGIC, Elements._bitwise),
    **dict.fromkeys((x.Cast, x.Saturate), Elements.converted),
    x.Select: Elements._select,
    x.Const: lambda elements, e: elements.filled(vector(e.type.elem, 1), e),
    x.Uniform: lambda elements, e: elements.tuple_of(elements.value(cast(x.Uniform, e).a)),
}
#: What is compared in a wider type where it does not share its dword.
_WORDS: dict[Type, Type] = {f16: f32, s16: s32, u16: u32}


def retyped(type: AnyType, elem: Type) -> AnyType:
    """The same number of other elements."""
    return vector(elem, type.lanes) if isinstance(type, VectorType) else elem


def _in_wider(e: Expr, wide: Type) -> Expr:
    """A value as elements of a wider type."""
    inner, type = e.a if isinstance(e, x.Splat) else e, retyped(e.type, wide)
    return _number(inner.value, type) if isinstance(inner, x.Const) else e.to(type)


def _number(n: int | float, type: AnyType) -> Expr:
    one = x.const(n, type.elem)
    return x.Splat(type, one) if isinstance(type, VectorType) else one


def _words(parts: Parts) -> list[Reg]:
    """The dwords of a value."""
    return [p.words(i, 1) for p in parts for i in range(p.count)]


def _is_zeros(e: Expr) -> bool:
    return isinstance(e, x.Splat) and isinstance(e.a, x.Const) and not e.a.bits


def _is_constant(e: Expr) -> bool:
    """Whether an operand is one constant for all elements."""
    return isinstance(e.a if isinstance(e, x.Splat) else e, x.Const)
