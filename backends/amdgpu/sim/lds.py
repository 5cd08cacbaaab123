"""Local memory of the workgroups of a batch, with race stamps and bank conflicts.

A stamp covers `grain` bytes (the narrowest LDS access of the kernel) and packs epoch << 8 | wave << 1 | clean: the
barrier epoch and wave of the last write (or read), and whether the data is defined. Two accesses of different waves in
one epoch, at least one of them a write, race: nothing orders them. An access whose wait has not come by the time its
wave reaches a barrier is stamped again with the next epoch, because the barrier does not order it either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from convgen.backends.amdgpu.sim.archs import BankPhases
from convgen.backends.amdgpu.sim.state import U32, Array, Bools

if TYPE_CHECKING:
    from convgen.backends.amdgpu.sim.state import WaveGroup
    from convgen.backends.amdgpu.sim.step import Step

SEVERAL = np.uint32(0xFE)  #: the wave field of a unit that more than one wave has read


class Lds:
    """The LDS of a batch of workgroups, one stretch a workgroup."""

    def __init__(self, slots: int, size: int, grain: int) -> None:
        self.size, self.grain = size, grain
        self.stride = (size + 31) // 16 * 16
        self.data: npt.NDArray[np.uint8] = np.zeros(max(slots * self.stride, 16), np.uint8)
        self.words: U32 = self.data.view(np.uint32)
        self.written: U32 = np.zeros(len(self.data) // grain, np.uint32)
        self.read: U32 = np.zeros(len(self.data) // grain, np.uint32)

    def units(self, place: Array, size: int) -> Array:
        """Indices of the stamps that `size` bytes at each flat byte address cover."""
        steps = np.arange(max(size // self.grain, 1)).reshape((-1,) + (1,) * place.ndim)
        return place // self.grain + steps

    def load(self, place: Array, size: int) -> Array:
        """`size` bytes at each address: [size/4, ...] words, or values for sizes 1 and 2."""
        if size >= 4:
            steps = np.arange(size // 4).reshape((-1,) + (1,) * place.ndim)
            if (place & 3).any():
                at = (place + 4 * steps)[..., None] + np.arange(4)
                return np.ascontiguousarray(self.data.take(at)).view(np.uint32)[..., 0]
            return self.words.take((place >> 2) + steps)
        values = self.data.take(place).astype(np.uint32)
        if size == 2:
            values |= self.data.take(place + 1).astype(np.uint32) << 8
        return values[None]

    def store(self, place: Array, size: int, values: Array) -> None:
        """Write words [size/4, ...] (or single values) at each address."""
        if size >= 4:
            steps = np.arange(size // 4).reshape((-1,) + (1,) * place.ndim)
            if (place & 3).any():
                at = (place + 4 * steps)[..., None] + np.arange(4)
                self.data[at] = np.ascontiguousarray(values).view(np.uint8).reshape(at.shape)
            else:
                self.words[(place >> 2) + steps] = values
        else:
            for byte in range(size):
                self.data[place + byte] = (values[0] >> (8 * byte)).astype(np.uint8)

    # -- races --------------------------------------------------------------------------------------------------------

    def note_read(self, group: WaveGroup, step: Step, units: Array, mine: U32) -> Bools | None:
        """Stamp a read; gives the undefined units, and reports a race with another wave's write."""
        stamps = self.written.take(units)
        race = (stamps ^ mine) - np.uint32(2) < np.uint32(254)
        if race.any():
            self._report(group, step, race, "reads what another wave wrote since the last barrier")
        before = self.read.take(units)
        value = np.where((before ^ mine) - np.uint32(2) < np.uint32(254), mine | SEVERAL, mine)
        self.read[units] = value
        clash = self.read.take(units) != value
        if clash.any():
            self.read[units[clash]] = np.broadcast_to(mine, units.shape)[clash] | SEVERAL
        undefined = (stamps & np.uint32(1)) == 0
        return undefined if undefined.any() else None

    def note_write(self, group: WaveGroup, step: Step, units: Array, mine: U32, clean: Array | int = 1) -> None:
        """Stamp a write; `clean` is 0 where the data is undefined or still on its way."""
        race = (self.written.take(units) ^ mine) - np.uint32(2) < np.uint32(254)
        if race.any():
            self._report(group, step, race, "overwrites what another wave wrote since the last barrier")
        race = (self.read.take(units) ^ mine) - np.uint32(2) < np.uint32(254)
        if race.any():
            self._report(group, step, race, "overwrites what another wave has read since the last barrier")
        self.stamp_write(units, mine, clean)
        race = (self.written.take(units) ^ mine) - np.uint32(2) < np.uint32(254)
        if race.any():
            self._report(group, step, race, "writes where another wave writes with the same instruction")

    def stamp_write(self, units: Array, mine: U32, clean: Array | int) -> None:
        """Set the write stamps of some units."""
        self.written[units] = (mine & np.uint32(0xFFFFFFFE)) | np.asarray(clean, np.uint32)

    def cross_barrier(self, group: WaveGroup, units: Array, mine: U32, *, write: bool) -> None:
        """Carry an access that is still outstanding over into the epoch behind the barrier."""
        if write:
            self.stamp_write(units, mine, self.written.take(units) & np.uint32(1))
        else:
            self.read[units] = mine

    def _report(self, group: WaveGroup, step: Step, race: Bools, what: str) -> None:
        lanes = race.any(axis=0)
        row, lane = (int(i) for i in np.argwhere(lanes)[0]) if lanes.ndim == 2 else (0, -1)
        group.env.reporter.add("lds-race", what, step.instruction, group, row, lane)


def bank_conflicts(phases: BankPhases, word: Array, width: int, active: Bools) -> int:
    """Extra LDS cycles of one access of `width` dwords per lane: in each phase, the fullest bank group less one.

    `word` is the dword address per [wave, lane]; lanes with equal addresses share one access.
    """
    groups = phases.banks // width
    lanes = np.array(phases.phases)
    waves = len(word)
    key = word.astype(np.int64) // width
    key = np.where(active, key, -1)[:, lanes].reshape(waves * len(lanes), -1)
    key.sort(axis=1)
    distinct = np.ones(key.shape, np.bool_)
    distinct[:, 1:] = key[:, 1:] != key[:, :-1]
    distinct &= key >= 0
    rows = np.broadcast_to(np.arange(len(key))[:, None], key.shape)
    filled = np.bincount((rows * groups + key % groups)[distinct], minlength=len(key) * groups)
    return int(np.maximum(filled.reshape(len(key), groups).max(axis=1) - 1, 0).sum())
