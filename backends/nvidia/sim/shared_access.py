"""Accesses of lanes to shared memory: their bytes, which lanes make them, and the bank conflicts of whole warps."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from convgen.backends.nvidia.sim.state import LANES, WarpGroup
from convgen.backends.sim.local import Lds, Stretch
from convgen.backends.sim.wave_arrays import Array, Bools, all_bits

if TYPE_CHECKING:
    from convgen.backends.nvidia.sim.step import Step

_BANKS = 32


class Access:
    """Some lanes' accesses to shared memory, one column each: flat byte places, and who makes them."""

    def __init__(self, shared: Lds, place: Array, size: int, row: Array, slot: Array, warp: Array, lane: Array) -> None:
        self.place, self.size = place, size
        self.row, self.slot, self.warp, self.lane = row, slot, warp, lane
        self.units: Array = shared.units(place, size)
        self.is_mbarrier = False  #: whether mbarrier.init stores
        self.counted: tuple[int, int] | None = None  #: agent and clock of the mbarrier that counts copies of cp.async

    def take(self, columns: Array) -> Access:
        """Return the accesses of some columns."""
        some = copy(self)
        for name in ("place", "row", "slot", "warp", "lane"):
            setattr(some, name, getattr(self, name)[columns])
        some.units = self.units[:, columns]
        return some

    @property
    def who(self) -> tuple[Array, Array, Array]:
        """Return the workgroup's slot, the warp and the lane of each access."""
        return self.slot, self.warp, self.lane

    @property
    def stretch(self) -> Stretch:
        """Return the bytes as `local` reads and writes them."""
        return Stretch.of(self.place, self.size)


def located(g: WarpGroup, step: Step, offset: Array, size: int, lanes: Bools | None) -> Access | None:
    """Return the accesses at byte offsets [rows, lanes] within bounds; report others, and unaligned ones."""
    shared = g.env.local
    acting = np.ones(g.shape, np.bool_) if lanes is None else lanes
    beyond = acting & ((offset < 0) | (offset > shared.size - size))
    if np.count_nonzero(beyond):
        row, lane = (int(i) for i in np.argwhere(beyond)[0])
        finding = f"{size} bytes at {int(offset[row, lane]):#x} are outside the {shared.size} bytes of shared memory"
        g.env.reporter.add("out-of-bounds", finding, step.instruction, g, row, lane)
        acting = acting & ~beyond
    rows, lanes_ = np.nonzero(acting)
    if not len(rows):
        return None
    at = offset[rows, lanes_]
    if all_bits(at) & (size - 1):
        bad = acting & ((offset & (size - 1)) != 0)
        finding = f"shared access of {size} bytes not aligned to {size}"
        g.env.reporter.at_first("misaligned", finding, step.instruction, g, bad)
        at = at & ~(size - 1)
    place = at + g.slot[rows] * shared.stride
    if len(at) == g.count * LANES:
        count_conflicts(g, at, size)
    return Access(shared, place, size, rows, g.slot[rows], g.wave[rows], lanes_)


def count_conflicts(g: WarpGroup, at: Array, size: int) -> None:
    """Count the clocks that bank conflicts add to an access of whole warps.

    A phase serves 128 bytes; each of its clocks reads one word of every bank, for any number of lanes.
    """
    phases = max(size // 4, 1)
    words = (at[:, None] >> 2) + np.arange(phases)
    words = np.sort(words.reshape(-1, LANES), axis=1)
    if (words[:, -1] - words[:, 0] == LANES - 1).all() and (np.diff(words, axis=1) == 1).all():
        return
    distinct = np.ones(words.shape, np.bool_)
    distinct[:, 1:] = words[:, 1:] != words[:, :-1]
    number = np.broadcast_to(np.arange(len(words))[:, None], words.shape)
    filled = np.bincount(number[distinct] * _BANKS + words[distinct] % _BANKS, minlength=len(words) * _BANKS)
    g.env.counters["shared_conflict_cycles"] += int(np.maximum(filled.reshape(-1, _BANKS).max(axis=1) - 1, 0).sum())
