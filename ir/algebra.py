"""Equalities of expressions: what `simplify` knows about integers and bools, one function an operator.

Every equality holds under wraparound: sums and products by constants are taken modulo 2^bits, and what needs exact
integers (division, order) applies only where `Bounds` proves that nothing wraps. Floats are left as they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import gcd
from typing import Any

from convgen.ir import expr as x
from convgen.ir.bounds import Bounds, Range, type_range, within
from convgen.ir.expr import (
    Add,
    And,
    Cast,
    Const,
    Div,
    Eq,
    Expr,
    Le,
    Lt,
    Max,
    Min,
    Mod,
    Mul,
    MulHi,
    Ne,
    Not,
    Or,
    Pack,
    Select,
    Shl,
    Shr,
    Slice,
    Splat,
    Sub,
    Uniform,
    Xor,
)
from convgen.ir.types import Type, VectorType

Terms = dict[Expr, int]  #: a sum of expressions times integers, in order of appearance

_WORD = 0xFFFFFFFF

_FOLD: dict[type[Expr], Callable[[int, int], int]] = {
    Add: int.__add__,
    Sub: int.__sub__,
    Mul: int.__mul__,
    MulHi: lambda a, b: (a & _WORD) * (b & _WORD) >> 32,
    Div: int.__floordiv__,
    Mod: int.__mod__,
    Min: min,
    Max: max,
    And: int.__and__,
    Or: int.__or__,
    Xor: int.__xor__,
    Shl: int.__lshift__,
    Shr: int.__rshift__,
    Lt: int.__lt__,
    Le: int.__le__,
    Eq: int.__eq__,
    Ne: int.__ne__,
}


def number(e: Expr) -> int | None:
    """The integer or bool that `e` visibly is in every element."""
    if isinstance(e, Splat):
        e = e.a
    return int(e.bits) if isinstance(e, Const) and not e.dtype.is_float else None


def wrapped(value: int, type: Type) -> int:
    """The number of an integer or bool type that equals `value` modulo 2^bits."""
    return (value - type.min) % (1 << type.bits) + type.min


def constant(value: int, like: Expr) -> Expr:
    """`value`, wrapped, in every element of the type of `like`."""
    return x.lift(wrapped(value, like.type.elem), like)


class Algebra:
    """Applies equalities to one node whose operands are simplified already; `bounds` gives ranges of variables."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds

    def __call__(self, e: Expr) -> Expr:
        """An expression equal to `e`, `e` itself if nothing applies."""
        if not e.type.elem.is_float and number(e) is None:
            lo, hi = self.bounds(e)
            if lo == hi:
                return constant(lo, e)
        rule = _RULES.get(type(e))
        new = rule(self, e) if rule else None
        return e if new is None else new

    # ------------------------------------------------------------ sums

    def terms(self, e: Expr, exact: bool) -> tuple[Terms, int]:
        """`e` as a sum of terms and a constant: as integers if `exact`, else modulo 2^bits."""
        known = number(e)
        if known is not None:
            return {}, known
        parts = _parts(e) if not exact or self.bounds.cannot_wrap(e) else ()
        total: tuple[Terms, int] = ({}, 0) if parts else ({e: 1}, 0)
        for part, factor in parts:
            total = _plus(total, self.terms(part, exact), factor)
        return total

    def opened(self, e: Expr, wanted: Terms) -> tuple[Terms, int]:
        """`e` modulo 2^bits as in `terms`, but in parts no smaller than it takes to show the `wanted` terms."""
        if e in wanted or wanted.keys().isdisjoint(self.terms(e, False)[0]):
            return ({e: 1}, 0) if number(e) is None else self.terms(e, False)
        total: tuple[Terms, int] = ({}, 0)
        for part, factor in _parts(e):
            total = _plus(total, self.opened(part, wanted), factor)
        return total

    def range(self, terms: Terms, constant: int) -> Range:
        """The exact range of a sum."""
        lo = hi = constant
        for term, factor in terms.items():
            ends = [end * factor for end in self.bounds(term)]
            lo, hi = lo + min(ends), hi + max(ends)
        return lo, hi

    def difference(self, a: Expr, b: Expr) -> Range:
        """The exact range of a - b."""
        return self.range(*_plus(self.terms(a, True), self.terms(b, True), -1))

    def sum(self, terms: Terms, const: int, like: Expr) -> Expr:
        """The sum as an expression, modulo 2^bits: added terms first, the constant last."""
        half = 1 << (like.type.elem.bits - 1)
        factors = {t: (n + half) % (2 * half) - half for t, n in terms.items()}
        total: Expr | None = None
        for t, n in sorted(((t, n) for t, n in factors.items() if n), key=lambda term: term[1] < 0):
            if n > 0:
                total = self.scaled(t, n) if total is None else Add(total, self.scaled(t, n))
            elif total is None and n != -1 and not const:
                total = self.scaled(t, n)
            else:
                start = constant(const, like) if total is None else total
                const = 0 if total is None else const
                total = Sub(start, self.scaled(t, -n))
        return constant(const, like) if total is None else self.offset(total, const)

    def offset(self, e: Expr, n: int) -> Expr:
        """e + n; with `-` where the type is unsigned and n negative."""
        type = e.type.elem
        n = (n + (1 << type.bits - 1)) % (1 << type.bits) - (1 << type.bits - 1)
        if n < 0 and type.min == 0:
            return Sub(e, constant(-n, e))
        return Add(e, constant(n, e)) if n else e

    def scaled(self, e: Expr, factor: int) -> Expr:
        return e if factor == 1 else Mul(e, constant(factor, e))


def _plus(a: tuple[Terms, int], b: tuple[Terms, int], factor: int) -> tuple[Terms, int]:
    """a + b * factor"""
    terms = dict(a[0])
    for term, n in b[0].items():
        terms[term] = terms.get(term, 0) + n * factor
    return {term: n for term, n in terms.items() if n}, a[1] + b[1] * factor


def _parts(e: Expr) -> list[tuple[Expr, int]]:
    """The operands of a sum, or of a product by a constant, with their factors."""
    match e:
        case Add(a, b):
            return [(a, 1), (b, 1)]
        case Sub(a, b):
            return [(a, 1), (b, -1)]
        case Mul(a, b) if (factor := number(b)) is not None:
            return [(a, factor)]
        case Shl(a, b) if (amount := number(b)) is not None and 0 <= amount < e.type.elem.bits:
            return [(a, 1 << amount)]
    return []


def _unit(e: Expr) -> tuple[Expr, int]:
    """(x, n) such that `e` is x * n."""
    if isinstance(e, Mul) and (n := number(e.b)) is not None:
        return e.a, n
    return e, 1


def _peel(e: Expr) -> tuple[Expr | None, int, int]:
    """(x, sign, constant) such that `e` is x * sign + constant; no x for a constant."""
    if (n := number(e)) is not None:
        return None, 1, n
    if isinstance(e, (Add, Sub)):
        sign = -1 if isinstance(e, Sub) else 1
        if (n := number(e.b)) is not None:
            return e.a, 1, sign * n
        if (n := number(e.a)) is not None:
            return e.b, sign, n
    return e, 1, 0


def _pairs(terms: Terms) -> list[tuple[Mod, Div]]:
    """The terms `x % c` and `x // c` whose factors make them x."""
    quotients = {(t.a, t.b): t for t in terms if isinstance(t, Div)}
    mods = [t for t in terms if isinstance(t, Mod) and (t.a, t.b) in quotients]
    found = [(mod, quotients[mod.a, mod.b]) for mod in mods]
    return [(mod, div) for mod, div in found if terms[div] == terms[mod] * (number(mod.b) or 0)]


def _folded(e: Any) -> Expr | None:
    a, b = number(e.a), number(e.b)
    if a is None or b is None:
        return None
    if isinstance(e, (Div, Mod)) and b == 0:
        return None  # an error, and it stays one
    if isinstance(e, (Shl, Shr)) and not 0 <= b < e.type.elem.bits:
        return None
    return constant(int(_FOLD[type(e)](a, b)), e)


def _sum(s: Algebra, e: Any) -> Expr | None:
    """Terms that both sides share merge; constants go to the right end of the sum."""
    (a, sign_a, const_a), (b, sign_b, const_b) = _peel(e.a), _peel(e.b)
    sign = -1 if isinstance(e, Sub) else 1
    sides = [(x, n) for x, n in ((a, sign_a), (b, sign * sign_b)) if x is not None]
    terms, const = _merged(s, *sides) if len(sides) == 2 else (dict(sides), 0)
    new = s.sum(terms, const + const_a + sign * const_b, e)
    return None if new is e else s(new)


def _merged(s: Algebra, a: tuple[Expr, int], b: tuple[Expr, int]) -> tuple[Terms, int]:
    """a[0] * a[1] + b[0] * b[1], opened only as far as it takes for equal terms to meet."""
    (unit_a, n), (unit_b, m) = _unit(a[0]), _unit(b[0])
    if unit_a is unit_b:
        return {unit_a: n * a[1] + m * b[1]}, 0
    left, right = (_plus(({}, 0), s.terms(x, False), factor)[0] for x, factor in (a, b))
    pairs = _pairs(_plus((left, 0), (right, 0), 1)[0])
    meeting = dict.fromkeys((*(t for t in left if t in right), *(t for pair in pairs for t in pair)), 1)
    if not meeting:
        return {a[0]: a[1], b[0]: b[1]}, 0
    terms, const = _plus(_plus(({}, 0), s.opened(a[0], meeting), a[1]), s.opened(b[0], meeting), b[1])
    for mod, div in pairs:  # x // c * c + x % c == x
        terms[mod.a] = terms.get(mod.a, 0) + terms.pop(mod)
        del terms[div]
    return terms, const


def _product(s: Algebra, e: Mul) -> Expr | None:
    c = number(e.b)
    if c is None:
        return s(Mul(e.b, e.a)) if number(e.a) is not None else None
    if c in (0, 1):
        return e.a if c else constant(0, e)
    rest, sign, offset = _peel(e.a)
    if rest is not None and sign == 1 and offset:  # (x + c0) * c1 == x * c1 + c0 * c1, unless that could wrap only now
        product = s(Mul(rest, e.b))
        if s.bounds.cannot_wrap(product) or not s.bounds.cannot_wrap(e):
            return s(s.offset(product, offset * c))
    if isinstance(e.a, Mul) and (inner := number(e.a.b)) is not None:  # (x * c0) * c1 == x * (c0 * c1)
        return s(Mul(e.a.a, constant(inner * c, e)))
    return None


# ---------------------------------------------------------------- division


def _division(s: Algebra, e: Any) -> Expr | None:
    """`//` and `%`: a dividend `c * whole + rest` is taken apart where it is exact."""
    c, is_div = number(e.b), isinstance(e, Div)
    if c is None or c <= 0:
        a, b = s.bounds(e.a), s.bounds(e.b)
        inside = a[0] >= 0 and a[1] < b[0]
        return (constant(0, e) if is_div else e.a) if inside else None
    if c == 1:
        return e.a if is_div else constant(0, e)
    for rule in (_nested, _split, _reduced):
        if (new := rule(s, e, c)) is not None:
            return new
    return None


def _nested(s: Algebra, e: Any, c: int) -> Expr | None:
    a = e.a
    inner = number(a.b) if isinstance(a, (Div, Mod)) and type(a) is type(e) else None
    if inner is None or inner <= 0:
        return None
    if isinstance(e, Div):  # (x // c0) // c1 == x // (c0 * c1)
        return s(Div(a.a, constant(inner * c, e))) if inner * c <= e.type.elem.max else None
    return s(Mod(a.a, e.b)) if inner % c == 0 else None  # (x % (c0 * c1)) % c1 == x % c1


def _split(s: Algebra, e: Any, c: int) -> Expr | None:
    """(c * q + r) // c == q + r // c and (c * q + r) % c == r % c, and better where the range of r shows r // c."""
    terms, const = s.terms(e.a, True)
    whole = {t: n // c for t, n in terms.items() if n % c == 0}
    rest = {t: n for t, n in terms.items() if n % c}
    quotient, remainder = divmod(const, c)
    lo, hi = s.range(rest, remainder)
    if lo // c == hi // c:
        if isinstance(e, Mod) and not whole and quotient + lo // c == 0:
            return e.a
        if isinstance(e, Div):
            return s.sum(whole, quotient + lo // c, e)
        return s.sum(rest, remainder - lo // c * c, e)
    if not within((lo, hi), type_range(e.type.elem)):
        return None
    if isinstance(e, Div):
        if not whole:
            return None
        return s(Add(s.sum(whole, quotient, e), s(Div(s.sum(rest, remainder, e), e.b))))
    return s(Mod(s.sum(rest, remainder, e), e.b)) if whole or quotient else None


def _reduced(s: Algebra, e: Any, c: int) -> Expr | None:
    """With 0 <= d < g: (g * q + d) // (g * c) == q // c and (g * q + d) % (g * c) == q % c * g + d."""
    terms, const = s.terms(e.a, True)
    for g in sorted({gcd(n, c) for n in terms.values()} - {1}, reverse=True):
        low = {t: n for t, n in terms.items() if n % g}
        quotient, remainder = divmod(const, g)
        if within(s.range(low, remainder), (0, g - 1)):
            high = s.sum({t: n // g for t, n in terms.items() if n % g == 0}, quotient, e)
            if isinstance(e, Div):
                return s(Div(high, constant(c // g, e)))
            return s(Add(s(Mul(s(Mod(high, constant(c // g, e))), constant(g, e))), s.sum(low, remainder, e)))
    return None


# ---------------------------------------------------------------- order and bits

_DECIDED: dict[type[Expr], tuple[Callable[[int, int], bool], Callable[[int, int], bool]]] = {
    Lt: (lambda lo, hi: hi < 0, lambda lo, hi: lo >= 0),
    Le: (lambda lo, hi: hi <= 0, lambda lo, hi: lo > 0),
    Eq: (lambda lo, hi: lo == hi == 0, lambda lo, hi: lo > 0 or hi < 0),
    Ne: (lambda lo, hi: lo > 0 or hi < 0, lambda lo, hi: lo == hi == 0),
}


def _comparison(s: Algebra, e: Any) -> Expr | None:
    if e.a.type.elem.is_float:
        return None
    lo, hi = s.difference(e.a, e.b)
    true, false = (test(lo, hi) for test in _DECIDED[type(e)])
    if true or false:
        return constant(int(true), e)
    return _offset_compared(s, e)


def _offset_compared(s: Algebra, e: Any) -> Expr | None:
    """x + c0 < c1 == x < c1 - c0 and c1 < x + c0 == c1 - c0 < x, where `x + c0` and `c1 - c0` do not wrap."""
    for side, other in ((e.a, e.b), (e.b, e.a)):
        rest, sign, offset = _peel(side)
        limit = number(other)
        if rest is not None and sign == 1 and offset and limit is not None and s.bounds.cannot_wrap(side):
            moved = limit - offset
            if within((moved, moved), type_range(side.type.elem)):
                to = constant(moved, side)
                return s(type(e)(rest, to) if side is e.a else type(e)(to, rest))
    return None


def _extremum(s: Algebra, e: Min | Max) -> Expr | None:
    """min and max: of equal operands, of operands in known order, of an extremum and a constant."""
    if e.type.elem.is_float:
        return None
    lo, hi = s.difference(e.a, e.b)
    if hi <= 0 or lo >= 0:
        return e.a if (hi <= 0) == isinstance(e, Min) else e.b
    if type(e.a) is type(e) and (inner := number(e.a.b)) is not None and (outer := number(e.b)) is not None:
        return s(type(e)(e.a.a, constant(_FOLD[type(e)](inner, outer), e)))
    return None


def _bitwise(s: Algebra, e: And | Or | Xor) -> Expr | None:
    ones = wrapped(-1, e.type.elem)
    c = number(e.b)
    if e.a is e.b:
        return constant(0, e) if isinstance(e, Xor) else e.a
    if c == 0:
        return constant(0, e) if isinstance(e, And) else e.a
    if c == ones:
        return {And: e.a, Or: e.b, Xor: s(Not(e.a))}[type(e)]
    if c is not None and isinstance(e, And) and c > 0 and c & (c + 1) == 0 and within(s.bounds(e.a), (0, c)):
        return e.a  # x & (2^n - 1) == x for 0 <= x < 2^n
    if c is not None and type(e.a) is type(e) and (inner := number(e.a.b)) is not None:
        return s(type(e)(e.a.a, constant(_FOLD[type(e)](inner, c), e)))
    return None


def _shift(s: Algebra, e: Any) -> Expr | None:
    return e.a if number(e.b) == 0 else None


def _not(s: Algebra, e: Not) -> Expr | None:
    match e.a:
        case Not(a):
            return a
        case Eq(a, b):
            return s(Ne(a, b))
        case Ne(a, b):
            return s(Eq(a, b))
        case Lt(a, b) if not a.type.elem.is_float:
            return s(Le(b, a))
        case Le(a, b) if not a.type.elem.is_float:
            return s(Lt(b, a))
    return None


# ---------------------------------------------------------------- the rest


def _select(s: Algebra, e: Select) -> Expr | None:
    cond = number(e.cond)
    if cond is not None:
        return e.a if cond else e.b
    if e.a is e.b:
        return e.a
    if isinstance(e.cond, Not):
        return s(Select(e.cond.a, e.b, e.a))
    if e.cond.type is e.type and (number(e.a), number(e.b)) == (1, 0):
        return e.cond
    return None


def _cast(s: Algebra, e: Cast) -> Expr | None:
    if e.type is e.a.type:
        return e.a
    inner = e.a
    if e.type.elem.is_float or inner.type.elem.is_float:
        return None
    known = number(inner)
    if known is not None:
        return constant(int(known != 0) if e.type.elem.is_bool else known, e)
    if isinstance(inner, Cast) and not inner.a.type.elem.is_float and s.bounds.cannot_wrap(inner):
        return s(Cast(e.type, inner.a)) if not inner.type.elem.is_bool else None
    return None


def _uniform(s: Algebra, e: Uniform) -> Expr | None:
    return e.a if isinstance(e.a, (Uniform, Const)) else None


def _slice(s: Algebra, e: Slice) -> Expr | None:
    if e.type is e.a.type:
        return e.a
    match e.a:
        case Splat(_, a) if isinstance(e.type, VectorType):
            return Splat(e.type, a)
        case Slice(a, start, _):
            return s(Slice(a, start + e.start, e.count))
    return None


def _pack(s: Algebra, e: Pack) -> Expr | None:
    return e.parts[0] if len(e.parts) == 1 and e.parts[0].type is e.type else None


Rule = Callable[[Algebra, Any], Expr | None]


def _binary(rule: Rule) -> Rule:
    """`rule` after what all operators share: constants are folded, and stand on the right."""

    def whole(s: Algebra, e: Any) -> Expr | None:
        if e.a.type.elem.is_float:
            return None
        if (folded := _folded(e)) is not None:
            return folded
        if e.commutes and number(e.a) is not None:
            return s(type(e)(e.b, e.a))
        return rule(s, e)

    return whole


def _all(ops: Iterable[type[Expr]], rule: Rule) -> dict[type[Expr], Rule]:
    return dict.fromkeys(ops, _binary(rule))


_RULES: dict[type[Expr], Rule] = {
    **_all((Add, Sub), _sum),
    **_all((Mul,), _product),
    **_all((MulHi,), lambda s, e: None),
    **_all((Div, Mod), _division),
    **_all((Lt, Le, Eq, Ne), _comparison),
    **_all((Min, Max), _extremum),
    **_all((And, Or, Xor), _bitwise),
    **_all((Shl, Shr), _shift),
    Not: _not,
    Select: _select,
    Cast: _cast,
    Uniform: _uniform,
    Slice: _slice,
    Pack: _pack,
}
