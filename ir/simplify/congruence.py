"""Congruence analysis: remainders of an expression's value, over all lanes and elements.

A congruence (m, r) means that the value is r modulo m; (0, r) that it is r. If an operation may wrap, only the largest
power of two in m survives, since it divides 2^bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd
from typing import Any

from convgen.ir import expr as x
from convgen.ir import sizes
from convgen.ir.simplify.bounds import Bounds

Congruence = tuple[int, int]

ANYTHING: Congruence = (1, 0)


def normal(m: int, r: int) -> Congruence:
    """Return the congruence with its remainder in [0, m)."""
    return (m, r % m) if m else (0, r)


def disjunction(a: Congruence, b: Congruence) -> Congruence:
    """Return the congruence of a value for which `a` or `b` holds."""
    return normal(gcd(a[0], b[0], a[1] - b[1]), a[1])


def conjunction(a: Congruence, b: Congruence) -> Congruence:
    """Return the congruence of a value for which both hold (Chinese remainder theorem); `a` if they contradict."""
    (m, r), (n, t) = (a, b) if b[0] else (b, a)  # a constant goes first
    step = gcd(m, n)
    if not m or (t - r) % step:
        return m, r
    steps = (t - r) // step * pow(m // step, -1, n // step)
    return normal(m // step * n, r + m * steps)


class Congruences:
    """The congruences of expressions; `known` has those of variables, `bounds` decides what may wrap."""

    def __init__(self, bounds: Bounds, known: Mapping[x.Expr, Congruence]) -> None:
        self.bounds, self.known = bounds, known
        self._memo: dict[x.Expr, Congruence] = {}

    def __call__(self, e: x.Expr) -> Congruence:
        """Return the congruence of an expression of integer or bool elements."""
        known = self._memo.get(e)
        if known is None:
            transfer = _TRANSFER.get(type(e))
            m, r = transfer(self, e) if transfer else ANYTHING
            if transfer in _MAY_WRAP and m != 1 and not self.bounds.cannot_wrap(e):
                m = gcd(m, 1 << e.type.elem.bits)
            known = normal(m, r)
            if e in self.known:
                known = conjunction(known, self.known[e])
            self._memo[e] = known
        return known

    def multiple(self, e: x.Expr) -> int:
        """Return a number that divides `e`; 0 if `e` is zero."""
        return gcd(*self(e))


def _add(s: Congruences, e: Any) -> Congruence:
    (m, r), (n, t) = s(e.a), s(e.b)
    return gcd(m, n), r + t


def _sub(s: Congruences, e: Any) -> Congruence:
    (m, r), (n, t) = s(e.a), s(e.b)
    return gcd(m, n), r - t


def _mul(s: Congruences, e: Any) -> Congruence:
    (m, r), (n, t) = s(e.a), s(e.b)
    return gcd(m * n, m * t, n * r), r * t


def _shl(s: Congruences, e: Any) -> Congruence:
    (m, r), (n, t) = s(e.a), s(e.b)
    return (m << t, r << t) if n == 0 and 0 <= t < e.type.elem.bits else ANYTHING


def _div(s: Congruences, e: Any) -> Congruence:
    (m, r), (n, c) = s(e.a), s(e.b)
    return (m // c, r // c) if n == 0 and c > 0 and m % c == 0 else ANYTHING


def _mod(s: Congruences, e: Any) -> Congruence:
    (m, r), (n, t) = s(e.a), s(e.b)
    return gcd(m, n, t), r


def _and(s: Congruences, e: Any) -> Congruence:
    """Keep the known low zeros of either operand, and the known bits below a mask of low bits."""
    (m, r), (n, c) = s(e.a), s(e.b)
    if n == 0 and c > 0 and c & (c + 1) == 0:
        return gcd(m, c + 1), r
    low = max(_low_bit(gcd(m, r)), _low_bit(gcd(n, c)))
    return low, 0


def _low_bit(n: int) -> int:
    return n & -n


def _cast(s: Congruences, e: x.Cast) -> Congruence:
    return s(e.a) if e.type.elem.is_int and not e.a.type.elem.is_float else ANYTHING


#: Transfer functions: the congruence of an operation from the congruences of its operands.
_TRANSFER: dict[type[x.Expr], Callable[[Congruences, Any], Congruence]] = {
    x.Const: lambda s, e: (0, int(e.bits)) if not e.dtype.is_float else ANYTHING,
    x.Var: lambda s, e: s.known.get(e, ANYTHING),
    sizes.Size: lambda s, e: (e.multiple, 0),
    sizes.HostValue: lambda s, e: s.known.get(e, ANYTHING),
    x.Add: _add,
    x.Sub: _sub,
    x.Mul: _mul,
    x.Shl: _shl,
    x.Div: _div,
    x.Mod: _mod,
    x.And: _and,
    **dict.fromkeys((x.Min, x.Max, x.Select), lambda s, e: disjunction(s(e.a), s(e.b))),
    x.Cast: _cast,
    **dict.fromkeys((x.Uniform, x.Splat, x.Slice, x.Shuffle, x.FromLane), lambda s, e: s(e.a)),
}

_MAY_WRAP = frozenset((_add, _sub, _mul, _shl, _cast))
