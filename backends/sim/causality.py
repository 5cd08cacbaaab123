"""Release and acquire between the workgroups of a launch: which stores of other workgroups a thread may read.

Only a chain of four steps orders two workgroups. A thread *releases* its stores: it has waited for them and, where the
target needs this, written its caches back. It *publishes* them by an atomic operation on an address. Another thread
*observes* that address by an atomic operation whose result has arrived, and *acquires*: it invalidates its caches. From
then on that thread may read the released stores, and so may the other threads of its workgroup after a barrier. A
release includes all stores that its thread has acquired before.

A thread is a wave. Where a target does not order the lanes of a wave, each lane observes and acquires for itself: a set
of lanes, one bit each, tells who did. A barrier of the wave joins what its lanes have acquired (`join_lanes`).

An atomic read-modify-write keeps what was published at its address before; an atomic store replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import numpy as np

from convgen.backends.sim.device_memory import Allocation
from convgen.backends.sim.wave_arrays import Array, Bools
from convgen.ir.record import define, evolve, frozen


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
    """Known stores: those of a thread up to a ticket, and those that a workgroup waited for before an epoch."""

    threads: Mapping[int, int] = attrs.field(factory=dict)  #: thread -> ticket up to which its stores are known
    groups: Mapping[int, int] = attrs.field(factory=dict)  #: workgroup -> epoch; stores waited for before are known
    #: By thread: its last publication's ticket, and its stores that it had not waited for then.
    unwaited: Mapping[int, tuple[int, frozenset[int]]] = attrs.field(factory=dict)

    def joined(self, other: Knowledge) -> Knowledge:
        threads, groups = _latest(self.threads, other.threads), _latest(self.groups, other.groups)
        if not self.unwaited and not other.unwaited:
            return Knowledge(threads, groups)
        return Knowledge(threads, groups, _last(self.unwaited, other.unwaited))

    def includes(self, other: Knowledge) -> bool:
        """Return whether every store that `other` knows is known."""
        return (
            all(self.threads.get(key, 0) >= value for key, value in other.threads.items())
            and all(self.groups.get(key, 0) >= value for key, value in other.groups.items())
            and all(self.unwaited.get(key, _NEVER)[0] >= value[0] for key, value in other.unwaited.items())
        )


_NOTHING = Knowledge()


EVERY_LANE = -1  #: the set of all lanes


@frozen
class Who:
    """A thread, or some of its lanes, at a moment.

    A thread has a number in the launch and a workgroup, which has passed `epoch` barriers.
    """

    thread: int
    group: int
    epoch: int
    lanes: int = EVERY_LANE


@define
class Causality:
    """The releases and acquires of one launch, tracked only if its kernel contains an acquire."""

    tracked: bool = False
    tickets: int = 0  #: stores and atomic operations issued so far
    store_done: dict[tuple[int, int], int] = attrs.field(
        factory=dict
    )  #: epoch in which (ticket, thread) was waited for
    store_issued: dict[tuple[int, int], int] = attrs.field(factory=dict)  #: epoch in which (ticket, thread) was issued
    _acquired: dict[int, dict[int, Knowledge]] = attrs.field(factory=dict)  #: by thread and set of its lanes
    _shared: dict[int, list[tuple[int, Knowledge]]] = attrs.field(factory=dict)  #: by workgroup, with the epoch
    _released: dict[int, Knowledge] = attrs.field(factory=dict)
    #: Numbers of observed publications, by thread and set of its lanes.
    _observed: dict[int, dict[int, set[int]]] = attrs.field(factory=dict)
    _published: list[Knowledge] = attrs.field(factory=lambda: [_NOTHING])  #: by number; 0 is nothing

    def known(self, who: Who) -> Knowledge:
        """Return the stores that a lane of `who` has acquired, or its workgroup before the last barrier."""
        known = _NOTHING
        for lanes, knowledge in self._acquired.get(who.thread, {}).items():
            if lanes & who.lanes:
                known = known.joined(knowledge)
        for epoch, knowledge in self._shared.get(who.group, ()):
            if epoch < who.epoch:
                known = known.joined(knowledge)
        return known

    def release(self, who: Who, ticket: int) -> None:
        """Record that a thread released its stores up to a ticket, and its workgroup's from before the last barrier."""
        before = self._released.get(who.thread, _NOTHING).joined(self.known(who))
        self._released[who.thread] = before.joined(Knowledge({who.thread: ticket}, {who.group: who.epoch}))

    def leave_unwaited(self, thread: int, ticket: int, stores: frozenset[int]) -> None:
        """Record that a thread publishes by operation `ticket` before it has waited for `stores` of its own."""
        before = self._released.get(thread, _NOTHING)
        if stores or thread in before.unwaited:
            self._released[thread] = before.joined(Knowledge(unwaited={thread: (ticket, stores)}))

    def overtakes(self, thread: int, ticket: int, writer: int) -> bool:
        """Return whether a thread has observed a flag that `writer` published before waiting for its store `ticket`."""
        return ticket in self._published[self.observed(thread)].unwaited.get(writer, _NEVER)[1]

    def acquire(self, who: Who, number: int) -> None:
        """Record that some lanes acquired the stores published under `number` (from `observed`)."""
        observed, by_lanes = self._published[number], self._acquired.get(who.thread, {})
        if any(by_lanes.get(lanes, _NOTHING).includes(observed) for lanes in (who.lanes, EVERY_LANE)):
            return
        by_lanes[who.lanes] = by_lanes.get(who.lanes, _NOTHING).joined(observed)
        self._acquired[who.thread] = by_lanes
        self._shared.setdefault(who.group, []).append((who.epoch, observed))

    def acquire_observed(self, who: Who) -> None:
        """Record that each lane of `who` acquired the publications that it has observed itself."""
        for lanes in tuple(self._observed.get(who.thread, ())):
            if own := lanes & who.lanes:
                self.acquire(evolve(who, lanes=own), self._observed_by(who.thread, lanes))

    def join_lanes(self, thread: int, lanes: int) -> None:
        """Record that some lanes passed a barrier of the wave: each then knows the stores that any of them acquired."""
        if not lanes or not self.lanes_differ(thread):
            return
        before = self._acquired[thread]
        union = before.get(lanes, _NOTHING)
        for own, knowledge in before.items():
            union = union.joined(knowledge) if own & lanes else union
        self._acquired[thread] = {own: known for own, known in before.items() if own & ~lanes} | {lanes: union}

    def lanes_differ(self, thread: int) -> bool:
        """Return whether some lanes of a thread have acquired what others have not."""
        return any(lanes != EVERY_LANE for lanes in self._acquired.get(thread, ()))

    def observed(self, thread: int) -> int:
        """Return the number in `_published` of all that a thread has observed."""
        return self._together({self._observed_by(thread, lanes) for lanes in self._observed.get(thread, ())})

    def _observed_by(self, thread: int, lanes: int) -> int:
        """Return the number in `_published` of all that a set of lanes has observed."""
        by_lanes = self._observed[thread]
        number = self._together(by_lanes[lanes])
        by_lanes[lanes] = {number}
        return number

    def observe(self, thread: int, number: int, lanes: int = EVERY_LANE) -> None:
        """Record that the result of an atomic operation of some lanes arrived, which read the publication `number`."""
        if number:
            self._observed.setdefault(thread, {}).setdefault(lanes, set()).add(number)

    def publish_and_observe(
        self, allocation: Allocation, units: Array, lanes: Bools, threads: Iterable[int], kind: str
    ) -> Array:
        """Publish what the threads of an atomic operation have released, and return the numbers that they observe.

        `kind` is "load", "store" or "update"; `units` are its stamps [units, threads, lanes], `lanes` its active lanes
        [threads, lanes]. Threads take their turns one by one. The result, [threads, 1], is meant for `observe`.
        """
        if allocation.published is None:
            allocation.published = np.zeros(len(allocation.data) // allocation.grain + 1, np.int32)
        places, observed = allocation.published, np.zeros((units.shape[1], 1), np.int64)
        for row, thread in enumerate(threads):
            mine = units[:, row][:, lanes[row]]
            observed[row] = before = self._together(set(np.unique(places[mine]).tolist()))
            if kind != "load" and mine.size:
                places[mine] = self._publish(thread, before if kind == "update" else 0)
        return observed

    def _publish(self, thread: int, before: int) -> int:
        """Publish a thread's released stores together with publication `before`; return the number of the union."""
        released, there = self._released.get(thread), self._published[before]
        if released is None or there.includes(released):
            return before
        self._published.append(released.joined(there))
        return len(self._published) - 1

    def _together(self, numbers: set[int]) -> int:
        """Return the number of a publication that unites those of `numbers`, 0 if nothing is published there."""
        distinct = sorted(numbers - {0})
        if len(distinct) < 2:
            return distinct[0] if distinct else 0
        together = _NOTHING
        for number in distinct:
            together = together.joined(self._published[number])
        self._published.append(together)
        return len(self._published) - 1

    def covers(self, who: Who, ticket: int, thread: int, group: int, *, issued: bool = False) -> bool:
        """Return whether `who` has acquired store `ticket` of another workgroup's thread.

        With `issued`, the writer need not have waited for the store before the barrier that follows it.
        """
        if not self.tracked:
            return False
        known = self.known(who)
        if known.threads.get(thread, 0) >= ticket:
            return True
        done = (self.store_issued if issued else self.store_done).get((ticket, thread))
        return done is not None and done < known.groups.get(group, 0)
