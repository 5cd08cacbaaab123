"""Dispatch of workgroups to compute units: in grid order, each to a unit that has room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

Run = tuple[int, float]  #: count of consecutive workgroups, and the work of each


class _Units(NamedTuple):
    """Units in one state: `left` is the work that remains of their other workgroups when their next one ends."""

    end: float  #: time at which the next workgroup ends
    left: tuple[float, ...]  #: work; ascending
    units: int

    @staticmethod
    def of(now: float, work: Iterable[float], units: int) -> _Units:
        """Return units that begin workgroups with this `work` at `now` and share their rate evenly among them."""
        first, *rest = sorted(work)
        return _Units(now + first * (1 + len(rest)), tuple([each - first for each in rest]), units)

    def most(self, now: float) -> float:
        """Return the greatest work that any of their workgroups still has to do."""
        return (self.end - now) / (1 + len(self.left)) + max(self.left, default=0.0)


def makespan(runs: Iterable[Run], units: int, resident: int) -> float:
    """Return the time until the last unit finishes, each unit doing one unit of work per unit of time.

    Up to `resident` workgroups run on a unit at a time; together they take as long as one after the other. At first
    every unit gets one workgroup, then another, until all are full; then a unit gets the next one when one ends there.
    """
    queue = _Queue(runs)
    filled: list[tuple[tuple[float, ...], int]] = [((), units)]
    for _ in range(resident):
        filled = [((*has, *more), count) for has, together in filled for more, count in queue.take(together)]
    working = [_Units.of(0.0, has, count) for has, count in filled if has]
    heapify(working)
    last = skipped = 0.0
    while working:
        now = heappop(working)
        rounds = queue.count // (units * resident) - 1
        if rounds > 0 and all(unit.most(now.end) <= queue.each for unit in (now, *working)):
            # No unit has more left: after `resident` further workgroups on each unit, all are in the same state as now.
            queue.count -= rounds * units * resident
            skipped += rounds * resident * queue.each
        for more, count in queue.take(now.units):
            if work := (*now.left, *more):
                heappush(working, _Units.of(now.end, work, count))
        last = max(last, now.end)
    return skipped + last


class _Queue:
    """Waiting workgroups: `count` with work `each`, then further runs."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs = iter([run for run in runs if min(run) > 0])
        self._next()

    def _next(self) -> None:
        self.count, self.each = next(self._runs, (0, 0.0))

    def take(self, units: int) -> Iterator[tuple[tuple[float, ...], int]]:
        """Yield (work, units) pairs for one workgroup on each of `units` units; work is empty if none is left."""
        while units and self.count:
            taken = min(units, self.count)
            yield (self.each,), taken
            units, self.count = units - taken, self.count - taken
            if not self.count:
                self._next()
        if units:
            yield (), units
