"""Which values differ between the lanes of a subgroup.

The lane number is the only source of divergence; what memory or the matrix unit gives a lane is its own. `Uniform(x)`
is uniform by contract, and `AllLanes(x)` by its meaning. The analysis only chooses a home for a value: a pass cannot
change a meaning through it.
"""

from __future__ import annotations

from collections.abc import Container

from convgen.ir.expr import Expr, Lane, Mma, Uniform, Var
from convgen.ir.node import Node
from convgen.ir.products import BlockMma
from convgen.ir.program import Kernel
from convgen.ir.stmt import ExitIf, For, Let, Load, Stmt
from convgen.ir.votes import AllLanes


class Uniformity:
    """Whether expressions are uniform, given which variables are not; looks at each node once."""

    def __init__(self, varying: Container[Var]) -> None:
        self.varying = varying
        self._memo: dict[Node, bool] = {}

    def __call__(self, e: Expr) -> bool:
        known = self._memo.get(e)
        if known is None:
            known = self._memo[e] = self._decide(e)
        return known

    def _decide(self, e: Expr) -> bool:
        match e:
            case Uniform() | AllLanes():
                return True
            case Lane() | Mma() | BlockMma():
                return False
            case Var():
                return e not in self.varying
        return all(self(c) for c in e.children() if isinstance(c, Expr))


def is_uniform(e: Expr, varying: Container[Var]) -> bool:
    """Whether all lanes of a subgroup have the same value of `e`."""
    return Uniformity(varying)(e)


def varying(root: Kernel | Stmt) -> frozenset[Var]:
    """The variables bound under `root` that may differ between lanes (test membership only: a set has no order).

    Variables bound outside (arguments, group ids, the subgroup number) are uniform.
    """
    found: set[Var] = set()
    before = -1
    while len(found) != before:  # a loop carries divergence back to its start
        before = len(found)
        _mark(root.body if isinstance(root, Kernel) else root, None, Uniformity(found), found)
    return frozenset(found)


def _mark(s: Stmt, loop: For | None, uniform: Uniformity, found: set[Var]) -> None:
    """Add to `found` what one pass over `s`, inside `loop`, shows to vary."""

    def take(var: Var, *values: Expr) -> None:
        if not all(map(uniform, values)):
            found.add(var)

    match s:
        case Let():
            take(s.var, s.value)
        case Load() if not s.is_uniform:
            found.add(s.var)
        case For():
            for var, init, value in zip(s.carried, s.inits, s.yields):
                take(var, init, value)
        case ExitIf() if loop:
            for carried, result, value in zip(loop.carried, loop.results, s.values):  # one register holds both
                take(carried, value)
                take(result, value)
    for inner in s.bodies:
        _mark(inner, s if isinstance(s, For) else loop, uniform, found)
    if isinstance(s, For):
        for var, init, value in zip(s.results, s.inits, s.yields):
            take(var, init, value)
