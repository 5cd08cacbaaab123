"""What threads know of other workgroups' stores: release and acquire between the workgroups of a launch.

Nothing orders the workgroups of a launch but a chain: a thread *releases* stores (it has waited for them, and where the
target wants it for a writeback of its caches), *publishes* them by an atomic operation on some place in memory; another
thread *observes* that place by an atomic operation that has come back, and *acquires* (invalidates its caches). From
then on it may read what was released, and so may the other threads of its workgroup behind a barrier. A release passes
on what was acquired before it.

Atomic operations that read and write pass on what was published at their place before; an atomic store replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import numpy as np

from convgen.backends.sim.device_memory import Allocation
from convgen.backends.sim.wave_arrays import Array, Bools
from convgen.ir.record import define, frozen


def _latest(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return {key: max(one.get(key, 0), other.get(key, 0)) for key in {**one, **other}}


_NEVER: tuple[int, frozenset[int]] = (0, frozenset())


def _last(
    one: Mapping[int, tuple[int, frozenset[int]]], other: Mapping[int, tuple[int, frozenset[int]]]
) -> dict[int, tuple[int, frozenset[int]]]:
    """Return the later of two publications for each thread."""
    return {
        key: max(one.get(key, _NEVER), other.get(key, _NEVER), key=lambda each: each[0]) for key in {**one, **other}
    }


@frozen
class Knowledge:
    """Stores that are known: a thread's up to a ticket, and a workgroup's that it waited for before an epoch."""

    threads: Mapping[int, int] = attrs.field(factory=dict)
    groups: Mapping[int, int] = attrs.field(factory=dict)
    #: By thread: its last publication's ticket, and its stores that it had not waited for then.
    unwaited: Mapping[int, tuple[int, frozenset[int]]] = attrs.field(factory=dict)

    def joined(self, other: Knowledge) -> Knowledge:
        threads, groups = _latest(self.threads, other.threads), _latest(self.groups, other.groups)
        if not self.unwaited and not other.unwaited:
            return Knowledge(threads, groups)
        return Knowledge(threads, groups, _last(self.unwaited, other.unwaited))

    def includes(self, other: Knowledge) -> bool:
        """Whether all that another knows is known."""
        return (
            all(self.threads.get(key, 0) >= value for key, value in other.threads.items())
            and all(self.groups.get(key, 0) >= value for key, value in other.groups.items())
            and all(self.unwaited.get(key, _NEVER)[0] >= value[0] for key, value in other.unwaited.items())
        )


_NOTHING = Knowledge()


@frozen
class Who:
    """A thread at some moment: its number in the launch, its workgroup, and the barriers that this has passed."""

    thread: int
    group: int
    epoch: int


@define
class Causality:
    """The releases and acquires of one launch. Where nothing of it acquires, nothing is tracked."""

    tracked: bool = False
    tickets: int = 0  #: stores and atomic operations issued so far
    store_done: dict[tuple[int, int], int] = attrs.field(
        factory=dict
    )  #: epoch in which (ticket, thread) was waited for
    store_issued: dict[tuple[int, int], int] = attrs.field(factory=dict)  #: the same of when it was issued
    _acquired: dict[int, Knowledge] = attrs.field(factory=dict)  #: by thread
    _shared: dict[int, list[tuple[int, Knowledge]]] = attrs.field(factory=dict)  #: by workgroup, with the epoch
    _released: dict[int, Knowledge] = attrs.field(factory=dict)
    _observed: dict[int, set[int]] = attrs.field(factory=dict)  #: numbers of what was published
    _published: list[Knowledge] = attrs.field(factory=lambda: [_NOTHING])  #: by number; 0 is nothing

    def known(self, who: Who) -> Knowledge:
        """What a thread has acquired, or a thread of its workgroup before the last barrier."""
        found = self._acquired.get(who.thread, _NOTHING)
        for epoch, knowledge in self._shared.get(who.group, ()):
            if epoch < who.epoch:
                found = found.joined(knowledge)
        return found

    def release(self, who: Who, ticket: int) -> None:
        """A thread has released its stores up to a ticket, and its workgroup's before the last barrier."""
        before = self._released.get(who.thread, _NOTHING).joined(self.known(who))
        self._released[who.thread] = before.joined(Knowledge({who.thread: ticket}, {who.group: who.epoch}))

    def leave_unwaited(self, thread: int, ticket: int, stores: frozenset[int]) -> None:
        """A thread publishes with operation `ticket` while `stores` of its own are not waited for."""
        before = self._released.get(thread, _NOTHING)
        if stores or thread in before.unwaited:
            self._released[thread] = before.joined(Knowledge(unwaited={thread: (ticket, stores)}))

    def overtakes(self, thread: int, ticket: int, writer: int) -> bool:
        """Whether a thread has observed what a writer published before it had waited for its store `ticket`."""
        return ticket in self._published[self.observed(thread)].unwaited.get(writer, _NEVER)[1]

    def acquire(self, who: Who, number: int) -> None:
        """A thread has acquired what it had observed (`observed`)."""
        observed, before = self._published[number], self._acquired.get(who.thread, _NOTHING)
        if not before.includes(observed):
            self._acquired[who.thread] = before.joined(observed)
            self._shared.setdefault(who.group, []).append((who.epoch, observed))

    def observed(self, thread: int) -> int:
        """The number of all that a thread has observed."""
        numbers = self._observed.get(thread)
        if numbers is None:
            return 0
        number = self._together(numbers)
        self._observed[thread] = {number}
        return number

    def observe(self, thread: int, number: int) -> None:
        """An atomic operation that met what is published under this number has come back."""
        if number:
            self._observed.setdefault(thread, set()).add(number)

    def meet(self, allocation: Allocation, units: Array, lanes: Bools, threads: Iterable[int], kind: str) -> Array:
        """Atomic operations, a "load", "store" or "update", of [threads, lanes] on stamps [units, threads, lanes],
        thread by thread: publishes what was released; gives what each met as [threads, 1] numbers for `observe`.
        """
        if allocation.published is None:
            allocation.published = np.zeros(len(allocation.data) // allocation.grain + 1, np.int32)
        places, met = allocation.published, np.zeros((units.shape[1], 1), np.int64)
        for row, thread in enumerate(threads):
            mine = units[:, row][:, lanes[row]]
            met[row] = before = self._together(set(np.unique(places[mine]).tolist()))
            if kind != "load" and mine.size:
                places[mine] = self._publish(thread, before if kind == "update" else 0)
        return met

    def _publish(self, thread: int, before: int) -> int:
        """The number of what a thread has released, on top of what is published under a number."""
        released, there = self._released.get(thread), self._published[before]
        if released is None or there.includes(released):
            return before
        self._published.append(released.joined(there))
        return len(self._published) - 1

    def _together(self, numbers: set[int]) -> int:
        """The number of all that is published under some numbers."""
        distinct = sorted(numbers - {0})
        if len(distinct) < 2:
            return distinct[0] if distinct else 0
        together = _NOTHING
        for number in distinct:
            together = together.joined(self._published[number])
        self._published.append(together)
        return len(self._published) - 1

    def covers(self, who: Who, ticket: int, thread: int, group: int, *, issued: bool = False) -> bool:
        """Whether a thread knows of a store of another workgroup's thread; or would, if what that workgroup's threads
        have `issued` before a barrier were done behind it.
        """
        if not self.tracked:
            return False
        known = self.known(who)
        if known.threads.get(thread, 0) >= ticket:
            return True
        done = (self.store_issued if issued else self.store_done).get((ticket, thread))
        return done is not None and done < known.groups.get(group, 0)
