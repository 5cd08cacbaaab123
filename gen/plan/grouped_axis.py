"""Groups along M, N or K of a product whose ends a launch reads from memory, and the tiles that they take.

Tiles of rows are numbered group by group; group g has as many as its rows need. How many a group has is data of a
launch, so a grid has numbers for the most tiles that groups can take together. The last numbers then have no work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

import numpy as np

from convgen.ir.layout.digits import Index
from convgen.ir.layout.index import lesser
from convgen.ir.layout.memory import Dim, Global, TensorDim, View
from convgen.ir.layout.tags import Layout
from convgen.ir.record import frozen

MOST_OF_LANE = 32  #: ends of groups that a lane compares, each in straight-line code; chosen
MOST_NUMBERED = 1 << 21  #: tiles in the order `ragged`, whose numbers are divided in f32
_END = "end"  #: the views' last axis; its position is the end of the group


def can_number(tiles: Sequence[int]) -> bool:
    """Return whether the order `ragged` has numbers for the tiles of a grid."""
    return prod(tiles) <= MOST_NUMBERED


@frozen
class GroupTile:
    """A tile of a group along the grouped axis: its number, and the rows or columns that it has."""

    number: int
    group: int
    positions: range
    first: int  #: number of the group's first tile
    tiles: int  #: tiles of the group

    def column_by_column(self, across: int, counts: int) -> int:
        """Return the number of this tile at position `across` of the other axis, which has `counts` tiles.

        All tiles of a group have numbers before those of the next; within a group, this axis runs fastest.
        """
        return self.first * counts + across * self.tiles + (self.number - self.first)


@frozen
class GroupedAxis:
    """Groups along one axis of a product, one after another; their sizes are data of a launch."""

    offsets: Global  #: s32; the position behind each group
    count: int  #: groups
    size: int  #: rows, columns or terms of all groups
    side: int | None  #: axis of the result that is grouped, 0 (N) or 1 (M); None: K

    @property
    def ends(self) -> View:
        """Return the ends of the groups as a view with one axis; beyond the groups it reads zero."""
        index = (TensorDim(self.count, (("group", 1),)),)
        return View(self.offsets, Layout.dense((self.count,), (0,)), ((Dim("group", self.count, self.count),),), index)

    def tiles_of(self, begin: Index, end: Index, tile: Index) -> Index:
        """Return the tiles, of `tile` rows, of a group between two positions."""
        return (end - begin + (tile - 1)) // tile

    def most_tiles(self, tile: Index) -> Index:
        """Return the greatest number of tiles that the groups take, whatever their sizes.

        Each group takes at most a tile more than whole tiles, and a tile has a row.
        """
        return lesser(self.size // tile + self.count, self.size)

    def usual_tiles(self, tile: Index) -> Index:
        """Return the number of tiles that groups usually take, for numbers or arrays of a tile's rows.

        Each group has a row and, where groups have more rows than a tile, a last tile that is half empty.
        """
        return np.minimum(np.maximum(self.size // tile + self.count // 2, self.count), self.size)

    def numbered(self, ends: Sequence[int], side: int) -> Iterator[GroupTile]:
        """Yield the tiles of `side` rows that have work, for groups with these ends."""
        first = 0
        for group, (begin, end) in enumerate(pairwise((0, *ends))):
            tiles = int(self.tiles_of(begin, end, side))
            for at in range(tiles):
                start = begin + at * side
                yield GroupTile(first + at, group, range(start, min(start + side, end)), first, tiles)
            first += tiles

    def begins_along(self, side: int) -> int | None:
        """Return the axis of the factor of a side, 0 (N) or 1 (M), along which groups begin: its rows, K or none."""
        if self.side is None:
            return 1
        return 0 if self.side == side else None

    @property
    def axis(self) -> tuple[Dim, ...]:
        """Return the last axis of views that end with a group: a position is the end of the group."""
        return (Dim(_END, self.size + 1, self.size + 1),)

    def until_end(self, dim: str) -> TensorDim:
        """Return a coordinate, dim - end + size, that leaves its range behind the end of the group."""
        return TensorDim(self.size, ((dim, 1), (_END, -1)), self.size, masked=True)
