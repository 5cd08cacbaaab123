"""Signal barriers early: hoist a barrier's arrival to the last access of shared memory before it.

Work between arrival and wait, such as matrix instructions and global memory accesses, then overlaps with other
subgroups' arrivals.
"""

from __future__ import annotations

from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import rewrite
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import Arrive, Barrier, Block, Stmt, Wait, block, ordered_by_barriers
from convgen.passes.clone import Cloner


def split_barriers(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Split barriers into arrival and wait with other work between them, if the target has both."""
    if not facts.split_barriers:
        return kernel
    cloner = Cloner(kernel)

    def split(b: Block) -> Stmt:
        out: list[Stmt] = []
        for s in b.stmts:
            at = len(out)
            while type(s) is Barrier and at and not ordered_by_barriers(out[at - 1]):
                at -= 1
            if type(s) is Barrier and at < len(out):
                out.insert(at, Arrive(s.site))
                s = Wait(cloner.site(s.site))
            out.append(s)
        return block(*out) if len(out) > len(b.stmts) else b

    return evolve(kernel, body=rewrite(kernel.body, {Block: split}))
