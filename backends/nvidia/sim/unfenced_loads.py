"""Loads of shared memory that a warp has passed on at an mbarrier without fence.proxy.async behind them.

On an H200, an arrival at an mbarrier overtook ldmatrix, and the bulk copy that had waited for the arrival overwrote
what ldmatrix was to load. A copy may overwrite loaded bytes once the warp that starts it sees a later fence by the
lanes that loaded them, or a later barrier of the workgroup at which their warp has arrived.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from convgen.backends.nvidia.sim.state import LANES
from convgen.backends.sim.wave_arrays import Array, Bools
from convgen.ir.record import define

_OPEN = np.iinfo(np.int64).max  #: end of a stretch behind which no fence or barrier has come yet


@define
class _Stretch:
    """Clocks of a warp, from its first load without a fence to the fence or barrier that ends such loads."""

    first: int
    passed: int  #: the last clock that the warp has passed on at an mbarrier
    end: int = _OPEN  #: who may see this clock sees the fence or barrier


class UnfencedLoads:
    """The loads of each warp of the workgroups of a batch since its last fence or barrier."""

    def __init__(self, slots: int, waves: int) -> None:
        self._lanes: Array = np.zeros((slots, waves), np.int64)  #: lanes that have loaded, as bits
        self._first: Array = np.zeros((slots, waves), np.int64)  #: clock of the first of these loads
        #: Stretches in which a warp has passed on loads, in order.
        self._passed: dict[tuple[int, int], list[_Stretch]] = {}

    def note(self, slot: Array, warp: Array, lane: Array, clocks: Array) -> None:
        """Remember the lanes that load; `clocks` are those of all warps."""
        at = slot, warp
        self._first[at] = np.where(self._lanes[at], self._first[at], clocks[at])
        np.bitwise_or.at(self._lanes, at, 1 << lane)

    def pass_on(self, slot: int, warp: int, clock: int) -> None:
        """Note that a warp arrives at an mbarrier."""
        if not self._lanes[slot, warp]:
            return
        stretches = self._passed.setdefault((slot, warp), [])
        if stretches and stretches[-1].end == _OPEN:
            stretches[-1].passed = clock
        else:
            stretches.append(_Stretch(int(self._first[slot, warp]), clock))

    def fence(self, slot: Array, warp: Array, active: Bools, clocks: Array) -> Bools:
        """Note a fence by the `active` lanes of warps; return flags of the warps of which it covers all loads."""
        before = self._lanes[slot, warp]
        after = before & ~(active << np.arange(LANES)).sum(axis=1)
        self._lanes[slot, warp] = after
        covered: Bools = (before != 0) & (after == 0)
        for row in np.flatnonzero(covered).tolist():
            self.end(int(slot[row]), [int(warp[row])], clocks)
        return covered

    def end(self, slot: int, warps: list[int], clocks: Array) -> None:
        """Note that a fence, or a barrier of the workgroup, ends all loads of some warps."""
        self._lanes[slot, warps] = 0
        for warp in warps:
            stretches = self._passed.get((slot, warp))
            if stretches and stretches[-1].end == _OPEN:
                stretches[-1].end = int(clocks[slot, warp])

    def early(self, slot: int, seen: Array) -> list[tuple[int, int, int]]:
        """Return (warp, first clock, last clock) of loads without a fence in sight of a warp that sees these clocks."""
        ranges = []
        for (of, warp), stretches in self._passed.items():
            before = bisect_right(stretches, seen[warp], key=lambda stretch: stretch.first) if of == slot else 0
            if before and (stretch := stretches[before - 1]).end > seen[warp]:
                ranges.append((warp, stretch.first, min(stretch.passed, int(seen[warp]))))
        return ranges
