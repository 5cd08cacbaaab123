"""The work of a workgroup, turn by turn: one tile, several tiles, or equal shares of the K blocks of some tiles.

Stream-K (Osama et al., 2023, arXiv 2301.03598): as many workgroups as run concurrently get equally many blocks of K.
The two-tile form distributes only the tiles of the last partial round and of one full round, so that a share is at
least as long as one tile; all other tiles stay whole.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import ClassVar

import attrs
import numpy as np
import numpy.typing as npt

from convgen.ir.layout.digits import Index
from convgen.ir.layout.index import Condition, choose, clamped, lesser
from convgen.ir.record import frozen


@frozen
class Share:
    """Grains [begin, end) of K of the tile `number`, and the workgroups that share this tile."""

    NAMES: ClassVar = ("number", "begin", "end", "rank", "sharers")

    number: Index  #: number of the tile, slices and batch included
    begin: Index  #: grains
    end: Index  #: grains
    rank: Index = 0  #: index among the workgroups that share the tile, in order of K
    sharers: Index = 1
    tiles: int | None = attrs.field(default=None, kw_only=True)  #: number of tiles, if `number` may exceed it

    @property
    def values(self) -> tuple[Index, ...]:
        """Return the values in order of `NAMES`."""
        return self.number, self.begin, self.end, self.rank, self.sharers

    @property
    def exists(self) -> list[Condition]:
        """Return conditions that all hold if there is work to do."""
        conditions = (self.begin < self.end, True if self.tiles is None else self.number < self.tiles)
        return [there for there in conditions if there is not True]


class SharedOut(Enum):
    """The tiles whose K is distributed over several workgroups."""

    NONE = "none"  #: none: every tile has one workgroup
    LAST = "last"  #: the tiles of the last partial round and of one full round: two-tile stream-K
    ALL = "all"


@frozen
class Persist:
    """Persistent workgroups: at most `count` are launched; each takes one tile, or share of a tile, after the other.

    With `snake`, the workgroups take the tiles of every second turn in descending order: a workgroup with a long tile
    takes a short one next where the work of the tiles rises or falls from number to number.
    """

    count: int
    shared: SharedOut = SharedOut.NONE
    snake: bool = False

    def __str__(self) -> str:
        if self.shared is SharedOut.NONE:
            return f"persist:{self.count}" + ":snake" * self.snake
        return f"stream:{self.count}" + (":all" if self.shared is SharedOut.ALL else "")


@frozen
class Turns:
    """The work of each workgroup in each of its turns: shares of the first tiles, then whole tiles.

    There are `tiles` tiles of `blocks` blocks of K; a grain is `grain` blocks that are never separated.
    """

    persist: Persist
    tiles: int
    blocks: int = 1
    grain: int = 1

    @property
    def grains(self) -> int:
        """Return the grains of a tile."""
        return -(-self.blocks // self.grain)

    @property
    def blocks_of_tile(self) -> int:
        """Return the blocks of a tile in whole grains, perhaps beyond K."""
        return self.grains * self.grain

    @property
    def workgroups(self) -> int:
        """Return the workgroups launched; each has work."""
        each = 1 if self.persist.shared is SharedOut.NONE else self.grains
        return min(self.persist.count, self.tiles * each)

    @property
    def shared(self) -> int:
        """Return the number of tiles whose K is shared, which are the first ones."""
        match self.persist.shared:
            case SharedOut.NONE:
                return 0
            case SharedOut.ALL:
                return self.tiles
            case SharedOut.LAST:
                left = self.tiles % self.persist.count
                return min(self.tiles, left + self.persist.count) if left else 0

    @property
    def whole_turns(self) -> int:
        """Return the turns that are whole tiles."""
        return -(-(self.tiles - self.shared) // self.workgroups)

    @property
    def shared_turns(self) -> int:
        """Return the largest number of tiles that a share touches."""
        if not self.shared:
            return 0
        first, end = self._span(np.arange(self.workgroups))
        return int((-(-end // self.grains) - first // self.grains).max())

    @property
    def count(self) -> int:
        return self.shared_turns + self.whole_turns

    @property
    def longest(self) -> int:
        """Return the largest number of blocks that a workgroup has."""
        return self.grain * (-(-self.shared * self.grains // self.workgroups) + self.whole_turns * self.grains)

    @property
    def sharers(self) -> int:
        """Return the largest number of workgroups that have blocks of one tile."""
        if not self.shared:
            return 1
        tiles = np.arange(self.shared)
        return int((self._last(tiles) - self._owner(tiles * self.grains)).max()) + 1

    def share(self, turn: Index, group: Index) -> Share:
        """Return the work of a workgroup in a turn; for integers, numpy arrays or IR expressions."""
        if not self.shared_turns:
            return self._whole(turn, group)
        if not self.whole_turns:
            return self._part(turn, group)
        part, whole = self._part(turn, group), self._whole(turn - self.shared_turns, group)
        is_part = turn < self.shared_turns
        return Share(*map(partial(choose, is_part), part.values, whole.values), tiles=whole.tiles)

    def whole(self, number: Index) -> Share:
        """Return the share that is a whole tile."""
        return Share(number, 0, self.grains)

    def owners(self, number: int) -> range:
        """Return the workgroups that have blocks of a tile."""
        if number < self.shared:
            return range(int(self._owner(number * self.grains)), int(self._last(number)) + 1)
        only = int(self._taker(number))
        return range(only, only + 1)

    def first_owners(self) -> npt.NDArray[np.int64]:
        """Return, for each tile, the workgroup that computes its first blocks of K."""
        number = np.arange(self.tiles)
        whole: npt.NDArray[np.int64] = self._taker(number)
        return np.where(number < self.shared, self._owner(number * self.grains), whole) if self.shared else whole

    def _taker(self, number: Index) -> Index:
        """Return the workgroup that takes a whole tile."""
        turn, place = (number - self.shared) // self.workgroups, (number - self.shared) % self.workgroups
        return self._snaked(turn, place)

    def _snaked(self, turn: Index, place: Index) -> Index:
        """Return a workgroup or its place in a turn: the last first in odd turns of a snake."""
        if not self.persist.snake:
            return place
        return choose(turn % 2 < 1, place, self.workgroups - 1 - place)

    def _whole(self, turn: Index, group: Index) -> Share:
        number = turn * self.workgroups + self._snaked(turn, group)
        number = number + self.shared if self.shared else number
        rest = (self.tiles - self.shared) % self.workgroups
        return Share(number, 0, self.grains, tiles=self.tiles if rest else None)

    def _part(self, turn: Index, group: Index) -> Share:
        first, end = self._span(group)
        number = first // self.grains + turn
        start = number * self.grains
        begin, stop = clamped(first - start, self.grains), lesser(end - start, self.grains)
        owner = self._owner(start)
        sharers = self._last(number) - owner + 1
        return Share(number, begin, stop, group - owner, sharers)

    def _span(self, group: Index) -> tuple[Index, Index]:
        """Return the grains [first, end) of a workgroup, counted through all shared tiles; the first have one more."""
        each, more = divmod(self.shared * self.grains, self.workgroups)
        return group * each + lesser(group, more), (group + 1) * each + lesser(group + 1, more)

    def _owner(self, grain: Index) -> Index:
        """Return the workgroup of a grain."""
        shorter, more = divmod(self.shared * self.grains, self.workgroups)
        longer = more * (shorter + 1)
        if not more:
            return grain // shorter
        return choose(grain < longer, grain // (shorter + 1), (grain - longer) // shorter + more)

    def _last(self, number: Index) -> Index:
        """Return the workgroup of the last grain of a tile."""
        return self._owner((number + 1) * self.grains - 1)


def follow_one_another(turns: Turns) -> bool:
    """Return whether the shares of each tile cover its blocks exactly once, with ranks in the order of K."""
    turn, group = (ids.ravel() for ids in np.meshgrid(np.arange(turns.count), np.arange(turns.workgroups)))
    share = turns.share(turn, group)
    there = np.logical_and.reduce(share.exists) if share.exists else np.ones(turn.shape, bool)
    columns = (share.number, share.begin, share.end, share.rank, share.sharers)
    rows = np.stack([np.broadcast_to(column, turn.shape)[there] for column in columns], axis=1)
    number, begin, end, rank, sharers = rows[np.lexsort((rows[:, 1], rows[:, 0]))].T
    first = np.flatnonzero(np.diff(number, prepend=-1))
    shares = np.diff(first, append=len(number))
    wanted_begin = np.roll(end, 1)
    wanted_begin[first] = 0
    return bool(
        np.array_equal(number[first], np.arange(turns.tiles))
        and (end[first + shares - 1] == turns.grains).all()
        and (begin == wanted_begin).all()
        and (rank == np.arange(len(number)) - np.repeat(first, shares)).all()
        and (sharers == np.repeat(shares, shares)).all()
    )
