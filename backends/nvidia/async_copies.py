"""Waits for asynchronous copies from global to shared memory (PTX ISA, "Asynchronous copy", `cp.async`).

A lane groups its copies by `commit_group`, and `wait_group n` waits until all but its last n groups are done. Here a
group ends at each barrier behind which copies may be pending, and between copies to two slots of a tile that no barrier
parts, as ahead of a loop. So the age of a copy in groups is the number of such places behind it, on every path, and a
barrier waits for the youngest copy that an access may touch before the next barrier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import attrs

from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.record import define
from convgen.ir.stmt import Barrier, Block, ExitIf, FlatDirectLoad, For, If, Stmt
from convgen.passes.reach import Access, Accesses, Reach

Ages = Mapping[Access, int]  #: pending copies -> groups behind them; -1 within the open group


@define
class Waits:
    """Asynchronous copies: the groups that they form, and the waits for them."""

    ends: set[Stmt] = attrs.field(factory=set)  #: barriers and copies ahead of which a group ends
    #: groups that may be pending behind a barrier; barriers without a wait are absent
    at_barriers: dict[Barrier, int] = attrs.field(factory=dict)
    #: accesses that no barrier precedes, ahead of which all copies of the subgroup must be done
    at_once: set[Stmt] = attrs.field(factory=set)


def waits_of(kernel: Kernel) -> Waits | None:
    """Return the waits of a message-level kernel; None if it copies nothing asynchronously."""
    if not any(isinstance(s, FlatDirectLoad) for s in statements(kernel.body)):
        return None
    accesses = Accesses(())
    ahead = Reach(False, accesses)
    ahead.walk(kernel.body, frozenset())
    flow = _Flow(accesses, ahead.at, Waits())
    flow.walk(kernel.body, {})
    return flow.waits


@define(eq=False)
class _Flow:
    """Ages of pending copies along the statements; `ahead` has the accesses up to the next barrier."""

    accesses: Accesses
    ahead: Mapping[Barrier, frozenset[Access]]
    waits: Waits
    exits: tuple[list[Ages], ...] = ()  #: ages where loops are left early, outermost loop first

    def walk(self, s: Stmt, ages: Ages) -> Ages:
        """Return the ages behind a statement, given those before it; note the waits that it needs."""
        match s:
            case Block(stmts):
                for inner in stmts:
                    ages = self.walk(inner, ages)
                return ages
            case Barrier():
                return self._barrier(s, self._ended(s, ages)) if ages else ages
            case If(_, then, other):
                return _merged(self.walk(then, ages), self.walk(other, ages))
            case For():
                return self._loop(s, ages)
            case ExitIf():
                self.exits[-1].append(ages)
                return ages
        found = self.accesses[s]
        if not found:
            return ages
        if isinstance(s, FlatDirectLoad):
            written = [access for access in found if access.write]
            if s in self.waits.ends or any(_are_slots(access, copy) for access in written for copy in _open(ages)):
                ages = self._ended(s, ages)
            return {**ages, **dict.fromkeys(written, -1)}
        if any(_touches(access, found) for access in ages):
            self.waits.at_once.add(s)
            return {}
        return ages

    def _ended(self, s: Stmt, ages: Ages) -> Ages:
        """Return the ages behind the end of a group ahead of a statement."""
        self.waits.ends.add(s)
        return {access: age + 1 for access, age in ages.items()}

    def _barrier(self, s: Barrier, ages: Ages) -> Ages:
        awaited = [age for access, age in ages.items() if _touches(access, self.ahead[s])]
        if not awaited:
            return ages
        pending = min(*awaited, self.waits.at_barriers.get(s, awaited[0]))
        self.waits.at_barriers[s] = pending
        return {access: age for access, age in ages.items() if age < pending}

    def _loop(self, s: For, ages: Ages) -> Ages:
        """Walk a loop until the ages at its head stay; it may run no iteration."""
        self.exits = (*self.exits, [])
        head: Ages = ages
        while True:
            behind = self.walk(s.body, head)
            if (again := _merged(head, behind)) == head:
                break
            head = again
        *outer, left = self.exits
        self.exits = tuple(outer)
        ends = head
        for each in chain([behind], left):
            ends = _merged(ends, each)
        return ends


def _open(ages: Ages) -> Iterator[Access]:
    """Yield the copies of the open group."""
    return (access for access, age in ages.items() if age < 0)


def _are_slots(a: Access, b: Access) -> bool:
    """Return whether two accesses are to different slots of one tile."""
    return a.tile is b.tile and a.slot != b.slot


def _touches(copy: Access, others: frozenset[Access]) -> bool:
    """Return whether an access may touch the slot that a pending copy writes."""
    return any(copy.conflicts(other) for other in others)


def _merged(a: Ages, b: Ages) -> Ages:
    """Return the copies pending on either path; the younger age demands the stricter wait."""
    return {access: min(a.get(access, age), age) for access, age in {**a, **b}.items()}
