"""Remove barriers that order nothing.

A barrier is needed if an access to shared memory may precede it and a conflicting one may follow, with no other barrier
between either and this one. Removing a barrier extends the reach of its neighbours, so barriers are removed one at a
time. A workgroup of one subgroup needs none where a subgroup's lanes see its accesses in order (`ordered_lanes`).

Direct copies (global to shared memory without registers) take long, and a barrier waits for the copies it publishes. So
the barrier before reads of such a tile stays even if an earlier one would suffice: the earlier one would wait for
copies that are read iterations later.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from convgen.ir.expr import Mma
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.memory import Shared
from convgen.ir.mma_operands import shared_factors
from convgen.ir.mutate import rewrite, statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import Barrier, DirectCopy, Let, LoadShared, Stmt, empty
from convgen.passes.messages.ownership import private_tiles
from convgen.passes.reach import Access, Accesses, Reach


def drop_barriers(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Remove barriers that order nothing; either level."""
    body, accesses = kernel.body, _accesses(kernel)
    copied = {s.tile for s in statements(body) if isinstance(s, DirectCopy)}  # tiles that direct copies write
    while True:
        barriers = [s for s in statements(body) if isinstance(s, Barrier)]
        before, after = Reach(True, accesses), Reach(False, accesses)
        before.walk(body, frozenset())
        after.walk(body, frozenset())
        is_alone = kernel.subgroups == 1 and facts.ordered_lanes
        orders = ((b, _conflict(before.at[b], after.at[b]) or _reads(copied, after.at[b])) for b in barriers)
        useless = next((b for b, needed in orders if is_alone or not needed), None)
        if useless is None:
            return evolve(kernel, body=body)
        body = _without(body, useless)


def _accesses(kernel: Kernel) -> Accesses:
    """Return the accesses of statements; a product that reads its factors in shared memory does so itself."""
    body, accesses = kernel.body, Accesses(private_tiles(kernel))
    factors = shared_factors(body)
    loads = {s.var: accesses[s] for s in statements(body) if isinstance(s, LoadShared) and s.var in factors}
    for s in statements(body) if loads else ():
        if isinstance(s, Let) and isinstance(s.value, Mma):
            accesses[s] = frozenset().union(*(loads[e] for e in (s.value.a, s.value.b) if e in loads))
    return accesses


def _without(body: Stmt, useless: Barrier) -> Stmt:
    return rewrite(body, {type(useless): lambda b: empty if b is useless else b})


def _conflict(before: Iterable[Access], after: Iterable[Access]) -> bool:
    later = tuple(after)
    return any(a.conflicts(b) for a in before for b in later)


def _reads(tiles: Container[Shared], after: Iterable[Access]) -> bool:
    return any(a.tile in tiles and not a.write for a in after)
