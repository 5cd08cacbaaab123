"""Local memory of the workgroups of a batch, with stamps that show races.

A stamp covers `grain` bytes, at most the narrowest access of the kernel, and packs epoch << 9 | wave << 1 | clean: the
barrier epoch and wave of the last write (or read), and whether the data is defined. Two accesses of different waves in
one epoch race if one of them is a write. An access that its wave has not waited for before a barrier is stamped again
with the next epoch, because the barrier does not order it. Atomic operations race with other waves' plain accesses, not
with each other. Waves that write equal bytes do not race: nobody can see which came last, and compilers let several
waves store one tile.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from convgen.backends.sim.wave_arrays import (
    U32,
    Array,
    Bools,
    all_bits,
    any_along,
    counted,
    gather_bytes,
    scatter_bytes,
)
from convgen.ir.record import frozen

if TYPE_CHECKING:
    from convgen.backends.sim.threads import Stepped, Threads

#: First bits of the wave and of the epoch in a stamp.
_WAVE_BIT, EPOCH_BIT = np.uint32(1), np.uint32(9)
SEVERAL = np.uint32(0x1FE)  #: the wave field of a unit that more than one wave has read or updated
MOST_WAVES = 255  #: of a workgroup: the field's largest number stands for several
_SINCE = " since the last barrier"
_ONE_WAVE, _CLEAN, _DOUBTFUL = np.uint32(2), np.uint32(1), np.uint32(0xFFFFFFFE)  #: wave step, clean bit, the rest


_REMEMBERED = 512  #: accesses that a batch remembers to name the other side of a race


class _Access(NamedTuple):
    """An access to local memory, remembered so that a finding can name both sides of a race."""

    kind: str  #: "read", "write" or "update"
    step: Stepped
    units: Array
    stamps: U32
    outstanding: bool  #: whether its wave passed a barrier without waiting for it


def stamps_of(epoch: Array, wave: Array) -> U32:
    """Return the stamp of a clean access by each wave [waves, 1], of at most `MOST_WAVES`."""
    packed = (epoch.astype(np.uint32) << EPOCH_BIT) | (wave.astype(np.uint32) << _WAVE_BIT) | _CLEAN
    return packed[:, None]


def wave_of(stamps: U32) -> U32:
    """Return the waves of stamps."""
    waves: U32 = (stamps & SEVERAL) >> _WAVE_BIT
    return waves


def _by_other_waves(stamps: U32, mine: U32) -> Bools:
    """Return flags of the stamps that another wave made in the epoch of `mine`."""
    # Two stamps of one wave and epoch differ by 0 or 1 (clean), which wraps around below; of two epochs, by SEVERAL + 2
    # or more.
    apart = stamps ^ mine
    apart -= _ONE_WAVE
    found: Bools = apart < SEVERAL
    return found


def _wave_bits(units: Array, mine: U32) -> U32:
    """Return, for each of some units, the accessing wave of stamp `mine` as a set of one bit.

    Only families with at most 32 waves a workgroup note guesses.
    """
    bits: U32 = np.uint32(1) << wave_of(np.broadcast_to(mine, units.shape))
    return bits


def _undefined(stamps: U32) -> Bools | None:
    """Return flags of the stamps whose bytes are undefined; None if all are defined."""
    if np.bitwise_and.reduce(stamps, axis=None) & _CLEAN:
        return None
    found: Bools = (stamps & _CLEAN) == 0
    return found


@frozen(eq=False)
class Stretch:
    """`size` bytes of local memory at each of some flat byte addresses."""

    place: Array
    size: int
    words: Array | None  #: indices of 4-byte words [size/4, ...], if all addresses are aligned to 4

    @classmethod
    def of(cls, place: Array, size: int) -> Stretch:
        aligned = size >= 4 and not all_bits(place) & 3
        return cls(place, size, (place >> 2) + counted(size // 4, place.ndim) if aligned else None)

    def lanes_of(self, lanes: Bools) -> Stretch:
        """Return the addresses of some lanes."""
        return Stretch(self.place[lanes], self.size, None if self.words is None else self.words[:, lanes])


class Lds:
    """The shared memory of a batch of workgroups, one range of bytes each."""

    def __init__(self, slots: int, size: int, grain: int, kind: str = "lds-race") -> None:
        self.kind = kind  #: kind of its findings
        self.size, self.grain = size, grain  #: bytes per workgroup; bytes per stamp, a power of two
        self._shift = grain.bit_length() - 1
        self.stride = (size + 31) // 16 * 16  #: bytes to the next workgroup's memory: 16 to 31 more than `size`
        self.data: npt.NDArray[np.uint8] = np.zeros(max(slots * self.stride, 16), np.uint8)
        self.words: U32 = self.data.view(np.uint32)
        self._accessed: U32 = np.zeros((2, len(self.data) // grain), np.uint32)
        self.written: U32 = self._accessed[0]
        self.read: U32 = self._accessed[1]
        self.updated: U32 | None = None  #: stamps of atomic operations, where there are any
        #: Guesses are reads that a compare-and-swap may check later. By unit, two sets of waves, a bit each: those that
        #: have guessed since the last barrier, and those of them that no compare-and-swap has checked yet.
        self._guesses: tuple[U32, U32] | None = None
        self._guess: tuple[Stepped, Threads] | None = None  #: the latest guess, which a finding names
        self._accesses: deque[_Access] = deque(maxlen=_REMEMBERED)  #: the latest ones

    def units(self, place: Array, size: int) -> Array:
        """Return the indices of the stamps that `size` bytes at each aligned address cover [units, ...]."""
        return (place >> self._shift) + counted(max(size // self.grain, 1), place.ndim)

    def units_across(self, place: Array, size: int) -> Array:
        """Return the indices of the stamps that `size` bytes at any address cover; the last one may occur twice."""
        units = (place >> self._shift) + counted(size // self.grain + 1, place.ndim)
        covered: Array = np.minimum(units, (place + (size - 1)) >> self._shift)
        return covered

    def load(self, at: Stretch) -> Array:
        """Load the bytes at each address: words [size/4, ...], for sizes 1 and 2 zero-extended values [1, ...]."""
        return gather_bytes(self.data, at.place, at.size) if at.words is None else self.words.take(at.words)

    def store(self, at: Stretch, values: Array) -> None:
        """Write words [size/4, ...] (or single values) at each address."""
        if at.words is None:
            scatter_bytes(self.data, at.place, at.size, values)
        else:
            self.words[at.words] = values

    # -- races --------------------------------------------------------------------------------------------------------

    def note_read(
        self, group: Threads, step: Stepped, units: Array, mine: U32, where: Array | None = None, *, guess: bool = False
    ) -> Bools | None:
        """Stamp a read; report a race with another wave's write; return flags of the undefined units, or None.

        A `guess` is checked against atomic operations at the next barrier (`report_stale_guesses`). `where` holds the
        (row, lane) of each column of `units` if these cover some lanes only.
        """
        stamps = self._accessed.take(units, axis=1)
        others = _by_other_waves(stamps, mine)
        self._race(group, step, others[0], "reads what {} wrote", "write", where, units)
        if guess:
            self._note_guess(group, step, units, mine)
        elif self.updated is not None:
            race = _by_other_waves(self.updated.take(units), mine)
            self._race(group, step, race, "reads what {} updated", "update", where, units)
        self._share(self.read, units, mine, others[1])
        self._accesses.append(_Access("read", step, units, mine, outstanding=False))
        return _undefined(stamps[0])

    def write(
        self,
        group: Threads,
        step: Stepped,
        at: Stretch,
        values: Array,
        units: Array,
        mine: U32,
        clean: Array | int = 1,
        where: Array | None = None,
    ) -> None:
        """Store words [size/4, ...] (or single values) at each address and stamp their `units` with `mine`.

        `clean` is 0 where values are undefined. A write races if it changes what another wave wrote in this epoch.
        `where` is explained at `note_read`.
        """
        others = _by_other_waves(self._accessed.take(units, axis=1), mine)
        if np.count_nonzero(others):
            others[0] &= self._differ(at, values, len(units))
            self._overwrites(group, step, others, where, units)
        self._overwrites_update(group, step, mine, where, units)
        self.store(at, values)
        self._accesses.append(_Access("write", step, units, mine, outstanding=False))
        if self.stamp_write(units, mine, clean):
            lost = _by_other_waves(self.written.take(units), mine) & self._differ(at, values, len(units))
            self._report(group, step, lost, "writes where another wave writes with the same instruction", where, units)

    def _differ(self, at: Stretch, values: Array, units: int) -> Bools:
        """Return flags [units, ...] of the stamps whose bytes differ from `values`.

        An address that is not aligned to stamps has one flag for all of its stamps.
        """
        there = self.data.take(at.place[..., None] + np.arange(at.size))
        words = np.ascontiguousarray(np.moveaxis(values, 0, -1))
        given = words.view(np.uint8) if at.size >= 4 else words.view(np.uint8)[..., : at.size]
        parts = units if units * self.grain == at.size else 1
        return np.moveaxis(any_along((there != given).reshape(*at.place.shape, parts, -1), -1), -1, 0)

    def note_write(self, group: Threads, step: Stepped, units: Array, mine: U32, clean: Array | int) -> None:
        """Stamp a write whose data is not known yet; `clean` is 0 where the data is undefined or in flight."""
        self._overwrites(group, step, _by_other_waves(self._accessed.take(units, axis=1), mine), None, units)
        self._overwrites_update(group, step, mine, None, units)
        self._accesses.append(_Access("write", step, units, mine, outstanding=False))
        if self.stamp_write(units, mine, clean):
            race = _by_other_waves(self.written.take(units), mine)
            self._report(group, step, race, "writes where another wave writes with the same instruction", None, units)

    def note_update(
        self, group: Threads, step: Stepped, units: Array, mine: U32, where: Array | None = None
    ) -> Bools | None:
        """Stamp an atomic operation; report races with plain accesses; return flags of the undefined units, or None."""
        stamps = self.written.take(units)
        self._race(
            group, step, _by_other_waves(stamps, mine), "atomically updates what {} wrote", "write", where, units, mine
        )
        read = self.read.take(units)
        if self._guesses is not None:
            read[self._guesses[0].take(units) != 0] = 0
        self._race(
            group, step, _by_other_waves(read, mine), "atomically updates what {} has read", "read", where, units, mine
        )
        if self.updated is None:
            self.updated = np.zeros(len(self.read), np.uint32)
        self._share(self.updated, units, mine, _by_other_waves(self.updated.take(units), mine))
        self._accesses.append(_Access("update", step, units, mine, outstanding=False))
        return _undefined(stamps)

    def _note_guess(self, group: Threads, step: Stepped, units: Array, mine: U32) -> None:
        if self._guesses is None:
            self._guesses = np.zeros(len(self.read), np.uint32), np.zeros(len(self.read), np.uint32)
        bits = _wave_bits(units, mine)
        for masks in self._guesses:
            np.bitwise_or.at(masks, units, bits)
        self._guess = step, group

    def check_guesses(self, units: Array, mine: U32) -> None:
        """Record that compare-and-swaps told their waves whether their guesses about `units` were stale."""
        if self._guesses is not None:
            np.bitwise_and.at(self._guesses[1], units, ~_wave_bits(units, mine))

    def report_stale_guesses(self, slot: int, epoch: int) -> None:
        """Report unchecked guesses that raced with atomic operations, at a workgroup's barrier or end."""
        if self._guesses is None or self._guess is None:
            return
        part = slice(slot * self.stride // self.grain, (slot + 1) * self.stride // self.grain)
        doubts = self._guesses[1][part]
        places = np.flatnonzero(doubts)
        if len(places) and self.updated is not None:
            stamps = self.updated[part][places]
            other = np.uint32(1) << np.minimum(wave_of(stamps), np.uint32(31))
            others = (doubts[places] != other) | (stamps & SEVERAL == SEVERAL)
            stale = places[(stamps >> EPOCH_BIT == epoch) & others]
            if len(stale):
                step, group = self._guess
                message = f"reads what another wave updated{_SINCE}, at local address {int(stale[0]) * self.grain:#x}"
                group.env.reporter.add(self.kind, message, step.instruction, group)
        for masks in self._guesses:
            masks[part] = 0

    @staticmethod
    def _share(stamps: U32, units: Array, mine: U32, others: Bools) -> None:
        """Stamp a read or atomic operation; `others` flags the units that other waves accessed in this epoch."""
        value = np.where(others, mine | SEVERAL, mine) if np.count_nonzero(others) else mine
        stamps[units] = value
        clash = stamps.take(units) != value if value.size > 1 else None
        if clash is not None and np.count_nonzero(clash):
            stamps[units[clash]] = np.broadcast_to(mine, units.shape)[clash] | SEVERAL

    def _overwrites(self, group: Threads, step: Stepped, others: Bools, where: Array | None, units: Array) -> None:
        """Report a write to units that other waves wrote (row 0 of `others`) or read (row 1)."""
        self._race(group, step, others[0], "overwrites what {} wrote", "write", where, units)
        self._race(group, step, others[1], "overwrites what {} has read", "read", where, units)

    def _overwrites_update(self, group: Threads, step: Stepped, mine: U32, where: Array | None, units: Array) -> None:
        """Report a write to units that other waves updated atomically."""
        if self.updated is not None:
            race = _by_other_waves(self.updated.take(units), mine)
            self._race(group, step, race, "overwrites what {} updated", "update", where, units)

    def _race(
        self,
        group: Threads,
        step: Stepped,
        race: Bools,
        what: str,
        access: str,
        where: Array | None,
        units: Array,
        mine: U32 | None = None,
    ) -> None:
        """Report a race with another wave's `access`, with that wave and its instruction if they are remembered.

        `mine` holds the stamps of the accessing waves, by default those of their rows.
        """
        if not np.count_nonzero(race):
            return
        first = int(race.argmax())
        unit = int(np.broadcast_to(units, race.shape).reshape(-1)[first])
        own = self._own(group, race, where, first) if mine is None else np.broadcast_to(mine, race.shape).flat[first]
        other = self._other(access, unit, np.asarray(own, np.uint32))
        if other is None:
            self._report(group, step, race, what.format("another wave") + _SINCE, where, units)
            return
        wave, remembered = other
        instruction = remembered.step.instruction
        named = f"`{instruction.text}` at +{instruction.address - group.env.reporter.base:#x}"
        lack = f" by {named}, not waited for before the barrier" if remembered.outstanding else f"{_SINCE} by {named}"
        cause = what, instruction.address, remembered.outstanding
        self._report(group, step, race, what.format(f"wave {wave}") + lack, where, units, cause)

    @staticmethod
    def _own(group: Threads, race: Bools, where: Array | None, first: int) -> U32:
        """Return the stamp of the accessing wave at the flat index `first` of `race`."""
        place = np.unravel_index(first, race.shape)[1]
        row = int(place) if race.ndim == 3 or where is None else int(where[place][0])
        own: U32 = group.env.stamps(group)[row]
        return own

    def _other(self, access: str, unit: int, own: U32) -> tuple[int, _Access] | None:
        """Return another wave and its latest `access` to a unit in the epoch of stamp `own`; None if forgotten."""
        for remembered in reversed(self._accesses):
            if remembered.kind == access:
                stamps = np.broadcast_to(remembered.stamps, remembered.units.shape)[remembered.units == unit]
                others = stamps[_by_other_waves(stamps, own)]
                if len(others):
                    return int(wave_of(others[0])), remembered
        return None

    def stamp_write(self, units: Array, mine: U32, clean: Array | int) -> bool:
        """Set the write stamps of some units; return whether two lanes of the instruction share a unit."""
        stamps = (mine & _DOUBTFUL) | np.asarray(clean, np.uint32)
        self.written[units] = stamps
        return stamps.size > 1 and bool(np.count_nonzero(self.written.take(units) != stamps))

    def cross_barrier(self, units: Array, mine: U32, access: str, step: Stepped | None = None) -> None:
        """Stamp a "read", "write" or "update" that is outstanding at a barrier with the epoch after it (`mine`).

        `step` is the instruction of the access, if it is known.
        """
        if step is not None:
            self._accesses.append(_Access(access, step, units, mine, outstanding=True))
        if access == "write":
            self.stamp_write(units, mine, self.written.take(units) & np.uint32(1))
        elif access == "update" and self.updated is not None:
            self._share(self.updated, units, mine, _by_other_waves(self.updated.take(units), mine))
        else:
            self._share(self.read, units, mine, _by_other_waves(self.read.take(units), mine))

    def _report(
        self,
        group: Threads,
        step: Stepped,
        race: Bools,
        what: str,
        where: Array | None,
        units: Array,
        cause: tuple[object, ...] | None = None,
    ) -> None:
        if not np.count_nonzero(race):
            return
        lanes = race.any(axis=0)
        if lanes.ndim == 2:
            row, lane = (int(i) for i in np.argwhere(lanes)[0])
        else:
            row, lane = (0, -1) if where is None else (int(i) for i in where[lanes.argmax()])
        column = lanes.argmax()
        first = race.reshape(len(race), -1)[:, column].argmax()
        place = int(np.broadcast_to(units, race.shape).reshape(len(race), -1)[first, column]) * self.grain % self.stride
        message = f"{what}, at local address {place:#x}"
        group.env.reporter.add(self.kind, message, step.instruction, group, row, lane, cause=cause)
