"""Shared memory of the interpreter: bytes, whether each is poison, and who accessed each since the last barrier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convgen.ir.evaluate import Array, InterpError, Mask, check_inside
from convgen.ir.layout.memory import Shared
from convgen.ir.record import frozen

_NOBODY, _SEVERAL = -1, -2  # accessors of a byte in this epoch besides subgroup numbers


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
            self._check(at[lanes], me, self.region.writer, "written")
            before = self.region.reader[at[lanes]]
            self.region.reader[at[lanes]] = np.where((before == _NOBODY) | (before == me), me, _SEVERAL)
        return self.region.data[at], self.region.poison[at]

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
