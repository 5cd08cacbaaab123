"""Groups along M, N or K of a product whose ends a launch reads from memory, and the tiles that they take.

Tiles of rows are numbered without knowing the sizes of all groups before: group g has the numbers from `first(begin of
g, g)` to `first(end of g, g + 1)`, which are at least as many as its tiles. The number of a tile's group is therefore
a count of the groups that end before it. Numbers beyond a group's rows have no work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from convgen.ir.expr import Expr, minimum
from convgen.ir.layout.digits import Index
from convgen.ir.layout.index import lesser
from convgen.ir.layout.memory import Dim, Global, TensorDim, View
from convgen.ir.layout.tags import Layout
from convgen.ir.record import frozen

MOST_OF_LANE = 32  #: ends of groups that a lane compares, each in straight-line code; chosen
_END = "end"  #: the views' last axis; its position is the end of the group


@frozen
class GroupTile:
    """A tile of a group: its number, its group, and its rows, or columns, none where it has no work."""

    number: int
    group: int
    positions: range


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

    @property
    def leaves_gaps(self) -> bool:
        """Whether numbers of tiles have no work, which depends on the sizes of groups: those of rows or columns."""
        return self.side is not None

    def first(self, begin: Index, group: Index, tile: Index) -> Index:
        """Return the number of a group's first tile, of `tile` rows: the least of two bounds of the tiles before it.

        The groups before have `begin` rows; each takes at most a tile more than whole tiles, and a tile has a row.
        """
        bound = begin // tile + group
        return minimum(bound, begin) if isinstance(bound, Expr) and isinstance(begin, Expr) else lesser(bound, begin)

    def tiles(self, tile: Index) -> Index:
        """Return the numbers of tiles of `tile` rows of all groups, whatever their sizes."""
        return self.first(self.size, self.count, tile)

    def numbered(self, ends: Sequence[int], side: int) -> Iterator[GroupTile]:
        """Yield the tile of each number, of `side` rows or none, for groups with these ends."""
        for group, (begin, end) in enumerate(pairwise((0, *ends))):
            first, behind = self.first(begin, group, side), self.first(end, group + 1, side)
            for number in range(int(first), int(behind)):
                start = begin + (number - int(first)) * side
                yield GroupTile(number, group, range(min(start, end), min(start + side, end)))

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
