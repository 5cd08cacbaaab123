"""Votes: agreement among subgroups that branch together, counted by a matrix instruction that spans all of them.

Subgroups that share an instruction pointer (`TargetFacts.lockstep`) cannot take different sides of a branch, so a
condition that may differ between them is first made uniform. The instruction takes the rows of one factor from all
subgroups that execute it: each supplies its lanes' ones and zeros there, and each reads all of them in its sums,
without shared memory or a barrier. Where `lockstep` does not divide the number of a workgroup's subgroups, each decides
alone; the back end then has the sharing switched off for the kernel, or refuses it.
"""

from __future__ import annotations

from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, Pack, Slice, Splat, const, eq, ne, select, zeros
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.mma import MmaTile
from convgen.ir.types import s32, vector
from convgen.ir.votes import AllLanes


def voters(facts: TargetFacts, subgroups: int) -> int:
    """Return how many of a workgroup's `subgroups` vote together: `facts.lockstep`, or 1 where each decides alone."""
    together = facts.lockstep
    return together if together and subgroups % together == 0 else 1


def all_agree(k: KernelBuilder, facts: TargetFacts, holds: Expr) -> Expr:
    """Whether a bool holds in all lanes of this subgroup and of those that branch with it."""
    if voters(facts, k.subgroups) == 1:
        return AllLanes(holds)
    return AllLanes(eq(_votes(k, facts, select(holds, const(0), const(1))), 0))


def one_finds(k: KernelBuilder, facts: TargetFacts, holds: Expr) -> Expr:
    """Whether a bool, uniform in each subgroup, holds in this subgroup or in one that branches with it."""
    if voters(facts, k.subgroups) == 1:
        return holds
    return AllLanes(ne(_votes(k, facts, select(holds, const(1), const(0))), 0))


def _votes(k: KernelBuilder, facts: TargetFacts, own: Expr) -> Expr:
    """Return a number that is 0 if the 0-or-1 number `own` is 0 in all lanes of the two voters, else positive.

    Each voter supplies half of the rows of one factor, and each of its lanes a dword of each of these rows, with `own`
    in all elements. The other factor is all ones, so the sums of one row of each voter count all votes.
    """
    atom = next(a for a in facts.atoms if a.spans == facts.lockstep and a.acc is s32)
    product = MmaTile(atom, 1, 1, 1)
    ones = Splat(vector(atom.a_elem, product.a.registers), const(1, atom.a_elem))
    votes = Splat(vector(atom.b_elem, product.b.registers), own.to(atom.b_elem))
    counted = k.mma("votes", product, zeros(vector(s32, product.d.registers)), ones, votes)
    rows = 0, product.d.registers - 1  # one of each voter
    first, last = (Pack(s32, (Slice(counted, n, 1),)) for n in rows)
    return first + last
