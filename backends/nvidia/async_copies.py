"""Waits for asynchronous copies from global to shared memory (PTX ISA, "Asynchronous copy", `cp.async`).

A lane groups its copies by `commit_group`, and `wait_group n` waits until all but its last n groups are done. A group
ends ahead of each barrier at which copies may be pending, and between copies to two slots of a tile without a barrier
between them, as in the prologue of a loop. So the age of a copy, in groups, is the number of such places behind it, on
every path. A barrier waits for the youngest copy that an access may touch before the next barrier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from convgen.backends.nvidia.statement_flow import Flow
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.record import define
from convgen.ir.stmt import Barrier, FlatDirectLoad, Stmt
from convgen.passes.reach import Access, Accesses, Reach

Ages = Mapping[Access, int]  #: pending copies -> groups that have ended since theirs; -1 until theirs has


@define
class Waits:
    """Asynchronous copies: the groups that they form, and the waits for them."""

    ends: set[Stmt] = attrs.field(factory=set)  #: barriers and copies ahead of which a group ends
    #: groups that may be pending behind a barrier; barriers without a wait are absent
    at_barriers: dict[Barrier, int] = attrs.field(factory=dict)
    #: accesses to bytes of pending copies without a barrier between: the lane waits for all its copies ahead of them
    at_once: set[Stmt] = attrs.field(factory=set)


def waits_of(kernel: Kernel) -> Waits | None:
    """Return the waits of a message-level kernel; None if it copies nothing asynchronously."""
    if not any(isinstance(s, FlatDirectLoad) for s in statements(kernel.body)):
        return None
    accesses = Accesses(())  # to tiles that several subgroups access; `()`: leave out no tile
    ahead = Reach(False, accesses)  # against the order of execution: at each barrier the accesses that follow it
    ahead.walk(kernel.body, frozenset())
    flow = _PendingCopies(accesses, ahead.at)
    flow.walk(kernel.body, {})
    return flow.waits


class _PendingCopies(Flow[Ages]):
    """Ages of pending copies; `waits` collects their groups and waits.

    `ahead` has the accesses between a barrier and the next one.
    """

    def __init__(self, accesses: Accesses, ahead: Mapping[Barrier, frozenset[Access]]) -> None:
        super().__init__()
        self.accesses, self.ahead, self.waits = accesses, ahead, Waits()

    def merged(self, a: Ages, b: Ages) -> Ages:
        """Return the copies pending on either path; the younger age demands the stricter wait."""
        return {access: min(a.get(access, age), age) for access, age in {**a, **b}.items()}

    def step(self, s: Stmt, ages: Ages, /) -> Ages:
        if isinstance(s, Barrier):
            return self._barrier(s, self._ended(s, ages)) if ages else ages
        own = self.accesses[s]
        if not own:
            return ages
        if isinstance(s, FlatDirectLoad):
            written = [access for access in own if access.write]
            if s in self.waits.ends or any(_are_two_slots(access, copy) for access in written for copy in _open(ages)):
                ages = self._ended(s, ages)
            return {**ages, **dict.fromkeys(written, -1)}
        if any(_touches(access, own) for access in ages):
            self.waits.at_once.add(s)
            return {}
        return ages

    def _ended(self, s: Stmt, ages: Ages) -> Ages:
        """Return the ages behind the end of a group ahead of a statement."""
        self.waits.ends.add(s)
        return {access: age + 1 for access, age in ages.items()}

    def _barrier(self, s: Barrier, ages: Ages) -> Ages:
        """Return the ages behind a barrier, which waits for the copies that accesses may touch before the next one."""
        awaited = [age for access, age in ages.items() if _touches(access, self.ahead[s])]
        if not awaited:
            return ages
        pending = min(*awaited, self.waits.at_barriers.get(s, awaited[0]))
        self.waits.at_barriers[s] = pending
        return {access: age for access, age in ages.items() if age < pending}


def _open(ages: Ages) -> Iterator[Access]:
    """Yield the copies of the open group."""
    return (access for access, age in ages.items() if age < 0)


def _are_two_slots(a: Access, b: Access) -> bool:
    """Return whether two accesses are to different slots of one tile."""
    return a.tile is b.tile and a.slot != b.slot


def _touches(copy: Access, others: frozenset[Access]) -> bool:
    """Return whether an access may touch the slot that a pending copy writes."""
    return any(copy.conflicts(other) for other in others)
