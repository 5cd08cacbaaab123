"""Workgroups that come to compute units: in the order of the grid, each to a unit that has room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

Run = tuple[int, float]  #: so many workgroups in a row, each with so much to do


class _Units(NamedTuple):
    """Units that do the same: `left` is what the workgroups there have to do when the next one of them ends."""

    end: float  #: of that one
    left: tuple[float, ...]  #: in ascending order
    units: int

    @staticmethod
    def of(now: float, work: Iterable[float], units: int) -> _Units:
        """Those that share themselves out evenly among workgroups with so much to do."""
        first, *rest = sorted(work)
        return _Units(now + first * (1 + len(rest)), tuple([each - first for each in rest]), units)

    def most(self, now: float) -> float:
        """What any of their workgroups still has to do."""
        return (self.end - now) / (1 + len(self.left)) + max(self.left, default=0.0)


def busiest(runs: Iterable[Run], units: int, held: int) -> float:
    """What a unit does until it ends, of the one that ends last.

    Each holds so many workgroups, which take as long together as one after the other. At first all units get one each,
    then another, until they are full; then whoever has room gets the next.
    """
    queue = _Queue(runs)
    filled: list[tuple[tuple[float, ...], int]] = [((), units)]
    for _ in range(held):
        filled = [((*has, *more), count) for has, together in filled for more, count in queue.take(together)]
    working = [_Units.of(0.0, has, count) for has, count in filled if has]
    heapify(working)
    last = skipped = 0.0
    while working:
        now = heappop(working)
        turns = queue.count // (units * held) - 1
        if turns > 0 and all(unit.most(now.end) <= queue.each for unit in (now, *working)):
            # All have as much to do or less: after as many of these as a unit holds, every unit is where it was.
            queue.count -= turns * units * held
            skipped += turns * held * queue.each
        for more, count in queue.take(now.units):
            if work := (*now.left, *more):
                heappush(working, _Units.of(now.end, work, count))
        last = max(last, now.end)
    return skipped + last


class _Queue:
    """Workgroups that wait: `count` with as much to do as `each`, and further ones."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs = iter([run for run in runs if min(run) > 0])
        self._next()

    def _next(self) -> None:
        self.count, self.each = next(self._runs, (0, 0.0))

    def take(self, units: int) -> Iterator[tuple[tuple[float, ...], int]]:
        """One for each of so many units: what it has to do, nothing where none is left, and for how many units."""
        while units and self.count:
            taken = min(units, self.count)
            yield (self.each,), taken
            units, self.count = units - taken, self.count - taken
            if not self.count:
                self._next()
        if units:
            yield (), units
