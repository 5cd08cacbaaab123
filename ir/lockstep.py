"""Lockstep teams: values that are equal in all subgroups of a team, and branches that could split it.

Subgroups that share an instruction pointer (`TargetFacts.lockstep`) form a team, for two of them subgroups 2k and 2k +
1; a branch condition must have one value in the whole team. Values differ if they depend on the subgroup number, or on
memory read at different places. A matrix instruction of several subgroups (`MmaAtom.spans`) brings all rows of B to
each of them: its result differs only if A or the accumulator does. So a team can agree on a value without shared
memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convgen.ir.expr import And, Const, Div, Expr, Mma, Shr, Var
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.stmt import ExitIf, For, If, Stmt
from convgen.ir.uniform import Uniformity, analyse


class Team(Uniformity):
    """Decides whether corresponding lanes of all subgroups of a team of `size` have equal values."""

    def __init__(self, kernel: Kernel, size: int) -> None:
        super().__init__((kernel.subgroup,) if kernel.subgroups > 1 else ())
        self.subgroup, self.size = kernel.subgroup, size

    def _decide(self, e: Expr) -> bool:
        match e:
            case Var():
                return e not in self.varying
            case Shr(Var() as number, Const(bits=places)) if number is self.subgroup:
                return (1 << places) % self.size == 0
            case Div(Var() as number, Const(bits=by)) if number is self.subgroup:
                return by % self.size == 0
            case And(Var() as number, Const(bits=kept)) if number is self.subgroup:
                return not kept & (self.size - 1)
            case Mma(op=op) if op.atom.spans == self.size:
                return self(e.acc) and self(e.a)
            case Mma(op=op) if op.atom.spans > 1:
                return False
        return all(map(self, e.children()))


def team_of(kernel: Kernel, size: int) -> Team:
    """Return the analysis of values that all subgroups of a team share."""
    # a ticket or an atomic operation gives each subgroup another value; other loads depend on their operands
    return analyse(kernel.body, Team(kernel, size), lambda s: None if s.updates else s.operands)


def parting(kernel: Kernel, size: int) -> Iterator[tuple[Stmt, Expr]]:
    """Yield each statement at which a team may split, with the condition or bound that may differ."""
    if kernel.subgroups == 1:
        return
    team = team_of(kernel, size)
    for s in statements(kernel.body):
        for e in _decisions(s):
            if not team(e):
                yield s, e


def _decisions(s: Stmt) -> Sequence[Expr]:
    match s:
        case If(cond=cond) | ExitIf(cond=cond):
            return (cond,)
        case For(begin=begin, end=end):
            return begin, end
    return ()
