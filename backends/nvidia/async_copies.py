"""Waits for asynchronous copies from global to shared memory (PTX ISA, "Asynchronous copy", `cp.async`).

A lane groups its copies by `commit_group`, and `wait_group n` waits until all but its last n groups are done. A group
ends ahead of each barrier at which copies may be pending, and between copies to two slots of a tile without a barrier
between them, as in the prologue of a loop. So the age of a copy, in groups, is the number of such places behind it, on
every path. A barrier waits for the youngest copy that an access may touch before the next barrier.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from convgen.backends.nvidia.statement_flow import Ages, GroupFlow, KernelAccesses, behind_a_group, touches
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.record import frozen
from convgen.ir.stmt import Barrier, FlatDirectLoad, Stmt
from convgen.passes.reach import Access


@frozen
class Waits:
    """The groups that a kernel's asynchronous copies form, and the waits for them."""

    ends: Container[Stmt]  #: barriers and copies ahead of which a group ends
    #: groups that may be pending behind a barrier; barriers without a wait are absent
    at_barriers: Mapping[Barrier, int]
    #: accesses to bytes of pending copies without a barrier between: the lane waits for all its copies ahead of them
    at_once: Container[Stmt]


def waits_of(kernel: Kernel, accesses: KernelAccesses) -> Waits | None:
    """Return the waits of a message-level kernel; None if it copies nothing asynchronously."""
    if not any(isinstance(s, FlatDirectLoad) for s in statements(kernel.body)):
        return None
    flow = _PendingCopies(accesses)
    flow.walk(kernel.body, {})
    return Waits(flow.ends, flow.at_barriers, flow.at_once)


class _PendingCopies(GroupFlow):
    """Ages of pending copies; `ends` and `at_once` are those of `Waits`."""

    def __init__(self, accesses: KernelAccesses) -> None:
        super().__init__(accesses.ahead)
        self.accesses = accesses.of_workgroup
        self.ends: set[Stmt] = set()
        self.at_once: set[Stmt] = set()
        #: A state, and accesses that touch no copy that is pending in it: mostly those of many statements in turn.
        self._apart: tuple[Ages, set[frozenset[Access]]] = {}, set()

    def step(self, s: Stmt, ages: Ages, /) -> Ages:
        if isinstance(s, Barrier):
            return self.at_barrier(s, self._ended(s, ages)) if ages else ages
        accesses = self.accesses[s]
        if not accesses:
            return ages
        if isinstance(s, FlatDirectLoad):
            written = [access for access in accesses if access.write]
            if s in self.ends or any(
                _are_two_slots(access, copy) for access in written for copy, age in ages.items() if age < 0
            ):
                ages = self._ended(s, ages)
            return ages if all(ages.get(access) == -1 for access in written) else {**ages, **dict.fromkeys(written, -1)}
        if self._touches(accesses, ages):
            self.at_once.add(s)
            return {}
        return ages

    def _touches(self, accesses: frozenset[Access], ages: Ages) -> bool:
        """Return whether some of these accesses may touch a pending copy."""
        if ages is not self._apart[0]:
            self._apart = ages, set()
        apart = self._apart[1]
        if accesses in apart:
            return False
        if any(touches(access, accesses) for access in ages):
            return True
        apart.add(accesses)
        return False

    def _ended(self, s: Stmt, ages: Ages) -> Ages:
        """Return the ages behind the end of a group ahead of a statement."""
        self.ends.add(s)
        return behind_a_group(ages)


def _are_two_slots(a: Access, b: Access) -> bool:
    """Return whether two accesses are to different slots of one tile."""
    return a.tile is b.tile and a.slot != b.slot
