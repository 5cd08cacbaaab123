"""Loop-counter analysis: linear forms of expressions, and loops with additional carried variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from convgen.ir.expr import Add, Const, Expr, Mul, Sub, Var, var
from convgen.ir.record import evolve, frozen
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.stmt import Block, ExitIf, For, If, Stmt, block
from convgen.passes.clone import changing_vars
from convgen.passes.messages.linear import ZERO, add_exprs


@frozen
class Affine:
    """`a * counter + invariant + b`."""

    a: int
    invariant: Expr
    b: int


class Counting:
    """The dependence of expressions on a loop: invariant, or affine in its counter."""

    def __init__(self, loop: For, bounds: Bounds) -> None:
        self.counter, self.bounds = loop.var, bounds
        self._invariant: dict[Expr, bool] = dict.fromkeys(changing_vars(loop), False)

    def is_invariant(self, e: Expr) -> bool:
        """Return whether a value is loop-invariant."""
        known = self._invariant.get(e)
        if known is None:
            known = self._invariant[e] = all(map(self.is_invariant, e.children()))
        return known

    def affine(self, e: Expr) -> Affine | None:
        """Return an expression as `a * counter + invariant + b`; None if it is not affine in the counter."""
        match e:
            case Const():
                return Affine(0, ZERO, e.bits)
            case Var() if e is self.counter:
                return Affine(1, ZERO, 0)
            case Add(x, y) if (left := self.affine(x)) and (right := self.affine(y)):
                return Affine(left.a + right.a, add_exprs(left.invariant, right.invariant), left.b + right.b)
            case Sub(x, Const(_, less)) if left := self.affine(x):
                return Affine(left.a, left.invariant, left.b - less)
            case Mul(x, Const(_, factor)) if scaled := self.affine(x):
                invariant = scaled.invariant if scaled.invariant is ZERO else scaled.invariant * factor
                return Affine(scaled.a * factor, invariant, scaled.b * factor)
        return Affine(0, e, 0) if self.is_invariant(e) else None


def carrying(loop: For, body: Stmt, yields: Iterable[Expr], more: Sequence[tuple[Var, Expr, Expr]]) -> For:
    """Return the loop with a new body and further carried variables `more` = (variable, initial value, next value)."""
    carried = tuple(v for v, _, _ in more)
    return evolve(
        loop,
        carried=(*loop.carried, *carried),
        inits=(*loop.inits, *(first for _, first, _ in more)),
        body=_leaving_with(body, carried),
        yields=(*yields, *(following for _, _, following in more)),
        results=(*loop.results, *(var(v.name, v.type) for v in carried)),
    )


def _leaving_with(s: Stmt, more: tuple[Expr, ...]) -> Stmt:
    """Return the body with early exits that also pass the new carried values; nothing reads these after the loop."""
    match s:
        case ExitIf(cond, values):
            return ExitIf(cond, (*values, *more))
        case Block(stmts):
            return block(*(_leaving_with(x, more) for x in stmts))
        case If(cond, then, other):
            return If(cond, _leaving_with(then, more), _leaving_with(other, more))
    return s
