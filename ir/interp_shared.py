"""Shared memory of the interpreter: bytes, whether each is poison, and who accessed each since the last barrier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convgen.ir.evaluate import Array, InterpError, Mask, check_inside
from convgen.ir.layout.memory import Shared
from convgen.ir.record import frozen

_NOBODY, _SEVERAL = -1, -2  # accessors of a byte in this epoch besides subgroup numbers


class RingState:
    """How often copies have filled, and consumers released, each slot of a ring."""

    def __init__(self, slots: int, consumers: int) -> None:
        self.consumers = consumers
        self.filled, self.released = [0] * slots, [0] * slots
        self.due = [0] * slots  #: bytes that copies still bring into a slot
        self.places: list[list[tuple[Region, Array]]] = [[] for _ in range(slots)]  #: bytes of the last use of a slot
        self.readers: list[set[int]] = [set() for _ in range(slots)]  #: subgroups that have awaited and not released it

    @property
    def steps(self) -> int:
        """Return a number that grows with each use and release of a slot."""
        return sum((*self.filled, *self.released))

    def is_filled(self, slot: int, phase: int) -> bool:
        """Return whether the copies of this phase have filled a slot."""
        return self.filled[slot] % 2 != phase

    def is_empty(self, slot: int, phase: int) -> bool:
        """Return whether all consumers have released a slot since its use before this phase."""
        return self.released[slot] // self.consumers % 2 == phase

    def acquire(self, slot: int, count: int) -> None:
        """Begin a use of a slot, which `count` bytes of copies fill: reads of the last use have ended."""
        if self.due[slot]:
            raise InterpError(f"slot {slot} of a ring acquired while {self.due[slot]} bytes of copies are due")
        for region, at in self.places[slot]:
            region.reader[at] = region.writer[at] = _NOBODY
        self.due[slot], self.places[slot] = count, []
        self.readers[slot].clear()

    def fill(self, slot: int, region: Region, at: Array, count: int) -> None:
        """Note `count` bytes of a copy into a slot, at `at` of a region, clipped ones included."""
        if count > self.due[slot]:
            raise InterpError(f"{count} bytes copied into slot {slot} of a ring, wanted {self.due[slot]}")
        self.due[slot] -= count
        self.places[slot].append((region, at))
        region.note_copy(self, slot, at)
        self.filled[slot] += not self.due[slot]

    def awaited(self, slot: int, by: int) -> None:
        """Let a subgroup read a slot that copies have filled."""
        self.readers[slot].add(by)

    def release(self, slot: int, by: int) -> None:
        """Count the release of a slot by a subgroup, which may no longer read it."""
        if by not in self.readers[slot]:
            raise InterpError(f"slot {slot} of a ring released by subgroup {by}, which has not awaited it")
        self.readers[slot].discard(by)
        self.released[slot] += 1

    def read_by(self, subgroup: int) -> list[int]:
        """Return the slots that a subgroup may read."""
        return [slot for slot, readers in enumerate(self.readers) if subgroup in readers]


@frozen
class Accessors:
    """Lanes that access shared memory: the workgroup of each (from 0), and the lanes of each subgroup."""

    group: Array
    subgroups: Sequence[tuple[int, Array]]


class Region:
    """The bytes of a region in some workgroups, whether each is poison, and who accessed each in this epoch."""

    def __init__(self, size: int, groups: int) -> None:
        self.bytes = size
        size *= groups
        self.data = np.zeros(size, np.uint8)
        self.poison = np.ones(size, np.bool_)
        self.reader, self.writer = (np.full(size, _NOBODY, np.int16) for _ in range(2))
        self.ring: RingState | None = None  #: state of the ring whose shared memory this is, once it has started
        self.filler: RingState | None = None  #: the ring whose copies have written here, if one has
        self.slot_of: Array = np.zeros(0, np.int16)  #: its slot to which a byte belongs; -1: none

    def note_copy(self, ring: RingState, slot: int, at: Array) -> None:
        """Note that a copy into a slot of a ring has written the bytes `at`."""
        if self.filler is None:
            self.filler, self.slot_of = ring, np.full(len(self.data), -1, np.int16)
        self.slot_of[at] = slot

    def not_awaited(self, at: Array, me: int) -> Array:
        """Return the bytes among `at` that do not belong to a slot of a ring that subgroup `me` has awaited."""
        return at if self.filler is None else at[~np.isin(self.slot_of[at], self.filler.read_by(me))]

    def next_epoch(self) -> None:
        self.reader.fill(_NOBODY)
        self.writer.fill(_NOBODY)


@frozen(eq=False)
class SharedTile:
    """A shared tile in its own region, or in the region of the tile that it overlays."""

    tile: Shared
    region: Region

    @classmethod
    def of_all(cls, tiles: Sequence[Shared], groups: int = 1) -> dict[Shared, SharedTile]:
        """Return the tiles of a kernel with memory for `groups` workgroups."""
        regions = {tile.name: Region(tile.bytes, groups) for tile in tiles if tile.region == tile.name}
        return {tile: cls(tile, regions[tile.region]) for tile in tiles}

    def _check(self, at: Array, me: int, others: Array, deed: str) -> None:
        bad = (others[at] != _NOBODY) & (others[at] != me)
        if bad.any():
            byte = int(at[bad][0])  # only one workgroup runs where this message is seen
            who = "several subgroups" if others[byte] == _SEVERAL else f"subgroup {others[byte]}"
            raise InterpError(
                f"race in shared tile {self.tile.name}: byte {byte} was {deed} by {who} since the barrier"
            )

    def _inside(self, at: Array, who: Accessors) -> Array:
        """Return the bytes in the regions of all workgroups, given the bytes of each lane's own tile."""
        check_inside(at, self.tile.bytes, "byte", f"shared tile {self.tile.name}")
        moved: Array = at + who.group[:, None] * self.region.bytes
        return moved

    def read(self, at: Array, who: Accessors) -> tuple[Array, Mask]:
        """Return the bytes that lanes read, `[lanes, bytes]`, and whether each is poison."""
        at = self._inside(at, who)
        for me, lanes in who.subgroups:
            self._check(self.region.not_awaited(at[lanes], me), me, self.region.writer, "written")
            before = self.region.reader[at[lanes]]
            self.region.reader[at[lanes]] = np.where((before == _NOBODY) | (before == me), me, _SEVERAL)
        return self.region.data[at], self.region.poison[at]

    @property
    def ring(self) -> RingState:
        """Return the state of the ring that a tile is. Raises InterpError for a ring that has not started."""
        if self.region.ring is None:
            raise InterpError(f"ring {self.tile.name} is used before it starts")
        return self.region.ring

    def write(self, at: Array, who: Accessors, data: Array, poison: Mask | None) -> None:
        at = self._inside(at, who)
        for me, lanes in who.subgroups:
            self._check(at[lanes], me, self.region.writer, "written")
            self._check(at[lanes], me, self.region.reader, "read")
            self.region.writer[at[lanes]] = me
        agree(at.ravel(), data.ravel(), f"shared tile {self.tile.name}")
        self.region.data[at] = data
        self.region.poison[at] = False if poison is None else poison


def agree(at: Array, data: Array, where: str) -> None:
    """Raise InterpError if one statement stores different `data` to one place; floats compare by their bits."""
    order = np.argsort(at, kind="stable")
    at, data = at[order], data[order]
    clash = (at[1:] == at[:-1]) & (data[1:] != data[:-1])
    if clash.any():
        raise InterpError(f"two lanes store different values to place {at[1:][clash][0]} of {where}")
