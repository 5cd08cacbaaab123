"""Quotients and remainders of sums by positive constants: a dividend `c * whole + rest` is split where exact.

    v1      (c*q + r) // c == q + r // c            (c*q + r) % c == r % c
    range   then r // c and r % c are known if r is in [k*c, (k+1)*c)
    v2      (g*q + d) // (g*c) == q // c            (g*q + d) % (g*c) == q % c * g + d            for 0 <= d < g
    bits                                            ((c*q + r) ^ s) % c == (r ^ s) % c            for c = 2^n; |, & too

A term is a multiple of c by its factor or by its congruence. A mask 2^n - 1 is a remainder by 2^n.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from convgen.ir.expr import Add, And, Div, Expr, Mod, Mul, Or, Xor
from convgen.ir.simplify.bounds import type_range, within
from convgen.ir.simplify.rules import make, number
from convgen.ir.simplify.sums import Linear, Terms

if TYPE_CHECKING:
    from convgen.ir.simplify.algebra import Algebra


def quotient(s: Algebra, e: Div) -> Expr | None:
    """Return a simpler `a // c`, or None."""
    c = number(e.b)
    if c is None or c <= 1:
        return None
    if isinstance(e.a, Div) and (inner := number(e.a.b)) is not None and inner > 0:
        return _nested_quotient(s, e, inner * c)
    for rule in (_whole_quotient, _reduced_quotient, _quotient_of_let):
        if (new := rule(s, e, s.facts.terms(e.a), c)) is not None:
            return new
    return None


def remainder(s: Algebra, e: Mod | And) -> Expr | None:
    """Return a simpler `a % c`, or `a & (c - 1)` with a power of two c; None if there is none."""
    bits = number(e.b)
    if isinstance(e, Mod) and bits and (known := _known_remainder(s, e, bits)) is not None:
        return known
    c = bits if bits is None or isinstance(e, Mod) else bits + 1
    if c is None or c <= 1 or (isinstance(e, And) and c & (c - 1)):
        return None
    for rule in (_exact_remainder, _low_bits, _bitwise, _reduced_remainder):
        if (new := rule(s, e, c)) is not None:
            return new
    return None


def _nested_quotient(s: Algebra, e: Div, c: int) -> Expr | None:
    """(x // c0) // c1 == x // (c0 * c1), unless (x // c0) % c1 is computed, too: the two share x // c0."""
    if c > e.type.elem.max or not s.is_known_unused(Mod(e.a, e.b), e.a):
        return None
    return s(Div(e.a.a, make(c, e.type)))  # type: ignore[attr-defined]


def _whole_quotient(s: Algebra, e: Div, sum: Linear, c: int) -> Expr | None:
    """Split off terms that are multiples of c (v1); compute the quotient if the rest's range allows it (range)."""
    terms, const = sum
    whole = {t: n // c for t, n in terms.items() if n % c == 0}
    rest = {t: n for t, n in terms.items() if n % c}
    count, rest_const = divmod(const, c)
    lo, hi = s.facts.range_of_sum((rest, rest_const))
    if lo // c == hi // c:
        return s.sum(whole, count + lo // c, e)
    if not (whole or (count and not rest_const)) or not within((lo, hi), type_range(e.type.elem)):
        # quotients split off whole terms as remainders do, but a constant alone only if nothing of it is left
        return None
    return s(Add(s.sum(whole, count, e), s(Div(s.sum(rest, rest_const, e), e.b))))


def _reduced_quotient(s: Algebra, e: Div, sum: Linear, c: int) -> Expr | None:
    """Drop low terms below a common factor g of divisor and high terms, and divide both by g (v2)."""
    terms, const = sum
    for g in _common_factors(s, sum, c):
        high, low = _split(s, terms, g)
        count, low_const = divmod(const, g)
        if not within(s.facts.range_of_sum((low, low_const)), (0, g - 1)):
            continue
        if all(n % g == 0 for n in high.values()):
            return s(Div(s.sum({t: n // g for t, n in high.items()}, count, e), make(c // g, e.type)))
        if low or low_const:
            return s(Div(s.sum(high, count * g, e), e.b))
    return None


def _quotient_of_let(s: Algebra, e: Div, sum: Linear, c: int) -> Expr | None:
    """v // c == x where a let defines v as x * c."""
    terms, const = s.facts.resolved(sum)
    if const == 0 and list(terms.values()) == [c] and sum[0].keys() != terms.keys():
        return next(iter(terms))
    return None


def _known_remainder(s: Algebra, e: Mod, c: int) -> Expr | None:
    """Return the remainder of a dividend known modulo c; it has the sign of the divisor."""
    m, r = s.facts.congruence(e.a)
    return make(r % c, e.type) if m % c == 0 else None


def _exact_remainder(s: Algebra, e: Mod | And, c: int) -> Expr | None:
    """Drop terms with a known remainder (v1); compute the remainder if the rest's range allows it (range)."""
    sum = s.facts.terms(e.a)
    rest, rest_const = _residue(s, sum, c)
    lo, hi = s.facts.range_of_sum((rest, rest_const))
    if lo // c == hi // c:
        new = s.sum(rest, rest_const - lo // c * c, e)
        return e.a if new is e.a or (rest == sum[0] and rest_const - lo // c * c == sum[1]) else new
    if (rest, rest_const) == sum or not within((lo, hi), type_range(e.type.elem)):
        return None
    if rest == sum[0] and rest_const and c & (c - 1) and not s.is_known_unused(Div(e.a, e.b), e.a):
        return None  # only the constant would change, and the quotient that shares this dividend does not change
    return s(_remainder_like(e, s.sum(rest, rest_const, e), c))


def _low_bits(s: Algebra, e: Mod | And, c: int) -> Expr | None:
    """Reduce a dividend modulo a power of two: c divides 2^bits, so wrapping does not matter."""
    sum = s.notes.linear(e.a)
    if c & (c - 1) or (len(sum[0]) + (sum[1] != 0) < 2 and next(iter(sum[0]), None) is e.a):
        return None
    rest, left = _residue(s, sum, c)
    if (rest, left) == sum:
        return None
    return s(_remainder_like(e, s.sum(rest, left, e), c))


def _bitwise(s: Algebra, e: Mod | And, c: int) -> Expr | None:
    """Reduce the operands of a bitwise dividend modulo a power of two: only their low bits matter."""
    whole = e.a
    if c & (c - 1) or not isinstance(whole, (And, Or, Xor)):
        return None
    sums = [s.notes.linear(a) for a in (whole.a, whole.b)]
    rests = [_residue(s, sum, c) for sum in sums]
    if rests == sums:
        return None
    a, b = (s.sum(*rest, whole) for rest in rests)
    return s(type(e)(s(type(whole)(a, b)), e.b))


def _reduced_remainder(s: Algebra, e: Mod | And, c: int) -> Expr | None:
    """Split off low terms below a common factor g of divisor and high terms, and divide both by g (v2)."""
    sum = s.facts.terms(e.a)
    terms, const = sum
    for g in _common_factors(s, sum, c):
        high, low = _split(s, terms, g)
        count, low_const = divmod(const, g)
        if g == c or not within(s.facts.range_of_sum((low, low_const)), (0, g - 1)):
            continue
        if low_const and not low and count % (c // g):
            continue  # the constant would become two
        if all(n % g == 0 for n in high.values()):
            if g not in high.values() and s.is_known_unused(Div(e.a, e.b), e.a):
                continue  # it would cost a product, and no quotient shares the dividend
            reduced = s.sum({t: n // g for t, n in high.items()}, count, e)
            scaled = s(Mul(s(_remainder_like(e, reduced, c // g)), make(g, e.type)))
            return s(Add(scaled, s.sum(low, low_const, e))) if low or low_const else scaled
        if low:
            return s(Add(s(_remainder_like(e, s.sum(high, count * g, e), c)), s.sum(low, low_const, e)))
    return None


def _split(s: Algebra, terms: Terms, g: int) -> tuple[Terms, Terms]:
    """Return the terms that are multiples of g, and the others."""
    high = {t: n for t, n in terms.items() if n * s.facts.congruence.multiple(t) % g == 0}
    return high, {t: n for t, n in terms.items() if t not in high}


def _residue(s: Algebra, sum: Linear, c: int) -> Linear:
    """Return the sum modulo c: terms with a known remainder become constants, the constant is in [0, c)."""
    rest: dict[Expr, int] = {}
    rest_const = sum[1]
    for t, n in sum[0].items():
        m, r = s.facts.congruence(t)
        if n * m % c == 0:
            rest_const += n * r
        else:
            rest[t] = n
    return rest, rest_const % c


def _remainder_like(e: Mod | And, a: Expr, c: int) -> Expr:
    """Return a % c, written with the operator of `e`."""
    return type(e)(a, make(c if isinstance(e, Mod) else c - 1, e.type))


def _common_factors(s: Algebra, sum: Linear, c: int) -> list[int]:
    """Return the numbers over 1 that divide c and some term, greatest first."""
    found = {gcd(n * s.facts.congruence.multiple(t), c) for t, n in sum[0].items()}
    return sorted(found - {1}, reverse=True)
