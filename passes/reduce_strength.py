"""Divisions and remainders of a loop counter as digits that count along with the loop.

`(a*i + b) // D` and `(a*i + b) // D % d`, with constants, are digits of a mixed-radix number that grows by `a` each
iteration. One set of digits for the smallest `b` is carried, advanced by additions and compares; the digits of the
other numerators are advanced from these. Divisors whose boundaries do not divide one another are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import gcd
from typing import TypeVar

import attrs

from convgen.ir.expr import Add, Const, Div, Expr, Mod, Mul, Sub, Var, const, select, var
from convgen.ir.mutate import postorder
from convgen.ir.node import Node
from convgen.ir.program import Kernel
from convgen.ir.stmt import Block, ExitIf, For, If, Let, Stmt, block
from convgen.ir.types import s32


def reduce_strength(kernel: Kernel) -> Kernel:
    """No division of a loop counter by constants is left, where its digits can be carried; message level."""
    body = _in_loops(kernel.body)
    return kernel if body is kernel.body else kernel.replace(body=body)


def _in_loops(s: Stmt) -> Stmt:
    match s:
        case Block(stmts):
            new = [_in_loops(x) for x in stmts]
            return s if all(a is b for a, b in zip(new, stmts)) else block(*new)
        case If(cond, then, other):
            return If(cond, _in_loops(then), _in_loops(other))
        case For():
            inner = _in_loops(s.body)
            return _reduce(For(s.var, s.begin, s.end, s.carried, s.inits, inner, s.yields, s.results, s.label))
    return s


@attrs.frozen
class _Quotient:
    """`(a * counter + b) // below`, of that the remainder by `count` unless it is None; times `scale`, plus `rest`."""

    a: int
    b: int
    below: int
    count: int | None
    scale: int = 1
    rest: int = 0

    def reduced(self) -> _Quotient:
        """The same value with the factors taken out that `a` shares with the divisors: so that more have one `a`."""
        shared = gcd(self.a, self.below)
        q = attrs.evolve(self, a=self.a // shared, b=self.b // shared, below=self.below // shared)
        if q.below > 1 or q.count is None:
            return q
        shared = gcd(q.a, q.count)
        return attrs.evolve(
            q, a=q.a // shared, b=q.b // shared, count=q.count // shared, scale=shared, rest=q.b % shared
        )

    @property
    def boundaries(self) -> tuple[int, ...]:
        return (self.below,) if self.count is None else (self.below, self.below * self.count)


def _quotient(e: Expr, counter: Var) -> _Quotient | None:
    if not isinstance(e, (Div, Mod)) or e.type is not s32 or not isinstance(e.b, Const) or e.b.bits < 1:
        return None
    below, inner = 1, e.a
    if isinstance(e, Div):
        below = e.b.bits
    while isinstance(inner, Div) and isinstance(inner.b, Const) and inner.b.bits > 0:
        below, inner = below * inner.b.bits, inner.a
    linear = _linear(inner, counter)
    if linear is None or linear[0] < 1 or linear[1] < 0:
        return None
    return _Quotient(*linear, below, e.b.bits if isinstance(e, Mod) else None).reduced()


def _linear(e: Expr, counter: Var) -> tuple[int, int] | None:
    """(a, b) of `a * counter + b`."""
    match e:
        case Const():
            return 0, e.bits
        case Var():
            return (1, 0) if e is counter else None
        case Add(x, y) | Sub(x, y):
            left, right = _linear(x, counter), _linear(y, counter)
            sign = 1 if isinstance(e, Add) else -1
            return (left[0] + sign * right[0], left[1] + sign * right[1]) if left and right else None
        case Mul(x, Const(_, factor)):
            scaled = _linear(x, counter)
            return (scaled[0] * factor, scaled[1] * factor) if scaled else None
    return None


@attrs.frozen
class _Digits:
    """A mixed-radix number: digit i counts `places[i]`; all but the last stay below `places[i + 1] // places[i]`."""

    places: tuple[int, ...]

    def of(self, number: int) -> tuple[int, ...]:
        """The digits of a constant."""
        out = []
        for place, following in pairwise(self.places):
            out.append(number // place % (following // place))
        return (*out, number // self.places[-1])

    def advance(self, digits: Sequence[Expr], by: int) -> tuple[Expr, ...]:
        """The digits of the number plus a constant."""
        out: list[Expr] = []
        carry: Expr | None = None
        for i, (digit, step) in enumerate(zip(digits, self.of(by))):
            total = digit + step if step else digit
            most = step + (carry is not None)  # what is added at most
            if carry is not None:
                total = total + select(carry, const(1), 0)
            carry = None
            if most and i + 1 < len(self.places):
                radix = self.places[i + 1] // self.places[i]
                carry = total >= radix
                total = select(carry, const(0) if most == 1 else total - radix, total)
            out.append(total)
        return tuple(out)

    def value(self, digits: Sequence[Expr], q: _Quotient) -> Expr:
        """The quotient from the digits."""
        end = None if q.count is None else q.below * q.count
        terms = [d * (p // q.below) if p > q.below else d for d, p in zip(digits, self.places) if q.below <= p]
        kept = [t for t, p in zip(terms, (p for p in self.places if q.below <= p)) if end is None or p < end]
        total = kept[0] if kept else const(0)
        for t in kept[1:]:
            total = total + t
        total = total * q.scale if q.scale > 1 else total
        return total + q.rest if q.rest else total


def _chain(quotients: Sequence[_Quotient]) -> tuple[int, ...] | None:
    """The boundaries of all quotients if each divides the next."""
    places = sorted({1, *(place for q in quotients for place in q.boundaries)})
    return tuple(places) if all(b % a == 0 for a, b in pairwise(places)) else None


def _reduce(loop: For) -> Stmt:
    if not isinstance(loop.begin, Const) or loop.begin.bits < 0:
        return loop
    found: dict[Expr, _Quotient] = {}
    for e in postorder(loop.body):
        q = _quotient(e, loop.var) if isinstance(e, Expr) else None
        if q is not None and isinstance(e, Expr):
            found[e] = q
    replaced: dict[Node, Expr] = {}
    carried: list[Var] = []
    inits: list[Expr] = []
    yields: list[Expr] = []
    lets: list[Stmt] = []
    for growth in dict.fromkeys(q.a for q in found.values()):
        family = {e: q for e, q in found.items() if q.a == growth}
        places = _chain(list(family.values()))
        if places is None:
            continue
        system = _Digits(places)
        start = min(q.b for q in family.values())
        digits = tuple(var(f"{loop.var.name}_{p}s") for p in places)
        # Highest digit first: it needs the lower ones as they were. Remainders alone need no last digit.
        needed = len(places) if any(q.count is None for q in family.values()) else len(places) - 1
        carried += digits[:needed][::-1]
        inits += [const(d) for d in system.of(growth * loop.begin.bits + start)[:needed][::-1]]
        yields += system.advance(digits, growth)[:needed][::-1]
        for ahead in dict.fromkeys(q.b - start for q in family.values()):
            current: tuple[Expr, ...] = digits
            if ahead:
                values = system.advance(digits, ahead)
                names = tuple(var(d.name) for d in digits)
                lets += [Let(n, v) for n, v in zip(names[:needed], values)]
                current = names
            replaced.update({e: system.value(current, q) for e, q in family.items() if q.b - start == ahead})
    if not replaced:
        return loop
    body = _replace(block(*lets, _leaving_with(loop.body, tuple(carried))), replaced)
    old_yields = tuple(_replace(y, replaced) for y in loop.yields)
    results = tuple(var(c.name) for c in carried)
    return For(
        loop.var,
        loop.begin,
        loop.end,
        (*loop.carried, *carried),
        (*loop.inits, *inits),
        body,
        (*old_yields, *yields),
        (*loop.results, *results),
        loop.label,
    )


def _leaving_with(s: Stmt, more: tuple[Expr, ...]) -> Stmt:
    """The body with early exits that give the new carried values as well; nobody reads them after the loop."""
    match s:
        case ExitIf(cond, values):
            return ExitIf(cond, (*values, *more))
        case Block(stmts):
            return block(*(_leaving_with(x, more) for x in stmts))
        case If(cond, then, other):
            return If(cond, _leaving_with(then, more), _leaving_with(other, more))
    return s


N = TypeVar("N", bound=Node)


def _replace(root: N, values: dict[Node, Expr]) -> N:
    """`root` with whole expressions replaced, outermost first."""
    memo: dict[Node, Node] = {**values}

    def go(n: Node) -> Node:
        known = memo.get(n)
        if known is None:
            known = memo[n] = n.map(go, memo.get)
        return known

    return go(root)  # type: ignore[return-value]
