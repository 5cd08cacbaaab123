"""What subgroups agree on that branch together: a vote, for which a matrix instruction of all of them counts lanes.

Subgroups that share an instruction pointer (`TargetFacts.lockstep`) part at no branch, so a condition that may differ
between them is made one first. The rows of one factor come from all subgroups that execute such an instruction: each
puts its lanes' ones and zeros there, all find all of them in their sums, and neither shared memory nor a barrier takes
part. Where a workgroup's subgroups do not make whole teams, each decides by itself; the back end says what then becomes
of its kernel.
"""

from __future__ import annotations

from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, Pack, Slice, Splat, const, eq, ne, select, zeros
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.mma import MmaTile
from convgen.ir.types import s32, vector
from convgen.ir.votes import AllLanes


def teams(facts: TargetFacts, subgroups: int) -> int:
    """Subgroups of a workgroup that decide together; 1 where each does alone."""
    together = facts.lockstep
    return together if together and subgroups % together == 0 else 1


def all_agree(k: KernelBuilder, facts: TargetFacts, holds: Expr) -> Expr:
    """Whether a bool holds in all lanes of this subgroup, and of those that branch with it."""
    if teams(facts, k.subgroups) == 1:
        return AllLanes(holds)
    return AllLanes(eq(_votes(k, facts, select(holds, const(0), const(1))), 0))


def one_finds(k: KernelBuilder, facts: TargetFacts, holds: Expr) -> Expr:
    """Whether a bool that a subgroup's lanes share holds in this subgroup, or in one of those that branch with it."""
    if teams(facts, k.subgroups) == 1:
        return holds
    return AllLanes(ne(_votes(k, facts, select(holds, const(1), const(0))), 0))


def _votes(k: KernelBuilder, facts: TargetFacts, own: Expr) -> Expr:
    """The sum of a number that is 0 or 1 over all lanes of a team's two subgroups, times the elements of a dword."""
    atom = next(a for a in facts.atoms if a.spans == facts.lockstep and a.acc is s32)
    product = MmaTile(atom, 1, 1, 1)
    ones = Splat(vector(atom.a_elem, product.a.registers), const(1, atom.a_elem))
    votes = Splat(vector(atom.b_elem, product.b.registers), own.to(atom.b_elem))
    counted = k.mma("votes", product, zeros(vector(s32, product.d.registers)), ones, votes)
    rows = 0, product.d.registers - 1  # one of the first subgroup, one of the last
    first, last = (Pack(s32, (Slice(counted, n, 1),)) for n in rows)
    return first + last
