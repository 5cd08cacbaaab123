"""The tile that a workgroup computes: a bijection between workgroup numbers and (batch, M tile, N tile, K slice)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt

from convgen.ir.error import UserError
from convgen.ir.expr import Expr
from convgen.ir.layout.argument import Argument
from convgen.ir.layout.digits import Digits, Index, Space, stacked, times
from convgen.ir.layout.index import Condition, clamped
from convgen.ir.layout.order import IN_ROWS, Order
from convgen.ir.layout.turns import Persist, Turns, follow_one_another
from convgen.ir.layout.walks import SizedRows
from convgen.ir.record import frozen
from convgen.ir.sizes import Extent

TILE = ("batch", "m", "n", "k")  #: components of a workgroup's number: batch, M and N tile, K slice

#: workgroups along y or z; every launch interface of a family takes so many, and more along x
MOST_ALONG_Y_OR_Z = (1 << 16) - 1
_MOST_LISTED = 1 << 24  #: workgroups; an order is proved, and inverted, by a list of all


@frozen
class WorkgroupMapping:
    """A grid of workgroups and their tiles: the index arithmetic that a kernel does, and its inverse.

    `counts` are the tiles along batch, M, N and K. Along x, `order` walks over the tiles of the result; along y are the
    slices of K, along z the batch. All workgroups are along x, tiles innermost, if the order permutes or counts
    workgroups, or if slices or batch exceed the limit of y or z. If an order has more numbers than tiles, workgroups
    without a tile must do nothing (`exists`).

    Raises UserError unless every tile has exactly one workgroup.
    """

    counts: tuple[int, int, int, int]
    order: Order = IN_ROWS
    blocks: int = 1  #: blocks of K in a slice; an order may distribute them over workgroups
    grain: int = 1  #: blocks of K that are never separated
    #: grains of K of a tile if they do not divide into equal slices: the last slices then have one grain more; 0 if all
    #: slices are equal
    uneven_grains: int = 0
    exact: tuple[Extent, ...] = ()  #: tiles along batch, M, N and K in a launch, set by the host, at most `counts`
    #: Number of the first workgroup, in a grid along x shared with other mappings; None if the grid is not shared.
    first: int | None = None
    #: numbers of all mappings that share the grid, if its workgroups persist: they take numbers of any mapping
    together: int = 0

    def __attrs_post_init__(self) -> None:
        if self.order == IN_ROWS or self.exact:
            return
        _numbers_of_tiles(self)
        if self.turns.shared:
            self._check_listed(self.turns.workgroups)
            if not follow_one_another(self.turns):
                raise UserError(f"given the order {self.order}, wanted one workgroup for each block of K")

    @classmethod
    def of(
        cls, m: int, n: int, *, k: int = 1, batch: int = 1, order: Order = IN_ROWS, blocks: int = 1, grain: int = 1
    ) -> WorkgroupMapping:
        """Return a mapping of m x n tiles, row by row unless an order is given."""
        return cls((batch, m, n, k), order, blocks, grain)

    def _check_listed(self, workgroups: int) -> None:
        if workgroups > _MOST_LISTED:
            raise UserError(f"given {workgroups} workgroups, wanted at most {_MOST_LISTED} in the order {self.order}")

    @property
    def _is_flat(self) -> bool:
        """Return whether all workgroups are along x, tiles innermost."""
        order = self.order
        if order.remaps or order.flip or order.persist or self.first is not None:
            return True
        return not self.exact and max(self._parts[1:]) > MOST_ALONG_Y_OR_Z

    @property
    def _parts(self) -> tuple[int, int, int]:
        """Return the numbers of tiles, of slices and of the batch."""
        batch, m, n, k = self.counts
        return self.order.walk.numbers(m, n), k, batch

    @property
    def grid(self) -> tuple[int, int, int]:
        """Return the workgroups along x, y and z; in a shared grid, only those of this mapping."""
        return (self.turns.workgroups, 1, 1) if self._is_flat else self._parts

    @classmethod
    def sized(
        cls, counts: tuple[int, int, int, int], exact: tuple[Extent, ...], order: Order, blocks: int = 1
    ) -> WorkgroupMapping:
        """Return a mapping of tiles counted at launch, at most `counts`; UserError if the order needs exact counts."""
        if all(isinstance(count, int) for count in exact):
            return cls(counts, order, blocks)
        if order != IN_ROWS:
            raise UserError(f"given the order {order} for tiles that are counted at launch, wanted rows")
        length = exact[TILE.index("n")]
        return cls(counts, Order(walk=SizedRows(length)) if isinstance(length, Expr) else order, blocks, exact=exact)

    @property
    def launched(self) -> tuple[Extent, ...]:
        """Return the workgroups along x, y and z if the host chooses them at launch, else ()."""
        if not self.exact:
            return ()
        batch, m, n, k = self.exact
        return times(m, n), k, batch

    @property
    def numbers(self) -> int:
        """Return the count of numbers that map to tiles: one a workgroup, unless workgroups persist."""
        return prod(self._parts)

    @property
    def turns(self) -> Turns:
        """Return the numbers that a workgroup takes, one after the other."""
        numbers = self.together or self.numbers
        return Turns(self.order.persist or Persist(numbers), numbers, self.blocks, self.grain)

    def share_of_slice(self, part: Index) -> tuple[Index, Index]:
        """Return the first grain of a slice and its number of grains; the last slices have one more.

        So a slice's first grain plus the length of the longest slice never exceeds the number of all grains.
        """
        each, more = divmod(self.uneven_grains, self.counts[3])
        behind = part - (self.counts[3] - more)
        return part * each + clamped(behind, max(1, more)), each + clamped(behind + 1, 2)

    @property
    def is_padded(self) -> bool:
        """Return whether some numbers have no tile."""
        return self.numbers != prod(self.counts)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """Return the kernel arguments that the mapping depends on."""
        _, m, n, _ = self.counts
        return self.order.walk.arguments(m, n)

    def tile(self, group: Sequence[Index], arguments: Sequence[Index] = ()) -> dict[str, Index]:
        """Return the tile of a workgroup from its numbers along x, y and z: integers or IR expressions, in range.

        A persistent workgroup passes a number that it takes (`turns`); in a shared grid, its number minus `first`.

        `arguments` stand for the mapping's kernel arguments; by default their current values are used.
        """
        number, part, batch = group
        if self._is_flat:
            for remap in self.order.remaps:
                number = remap.apply(number, self.numbers)
            sizes = zip(("tile", "k", "batch"), self._parts)
            split = Digits(("tile", "k", "batch"), stacked(Space.WORKGROUP, sizes)).merged()
            number, part, batch = split.coordinates({Space.WORKGROUP: number}, overrun=True).values()
        _, m, n, _ = self.counts
        walk = self.order.walk.given(arguments) if arguments else self.order.walk
        tile_m, tile_n = walk.tile(number, m, n)
        return {"batch": batch, "m": tile_m, "n": tile_n, "k": part}

    @property
    def sharers(self) -> int:
        """Return the largest number of workgroups that have parts of K of one tile."""
        return self.turns.sharers * self.counts[3]

    @property
    def shared(self) -> int:
        """Return how many tiles several workgroups may have parts of (tiles from 0 on), or the number of all tiles."""
        return self.turns.shared or prod(self.counts[:3])

    def place(self, tile: Mapping[str, Index]) -> Index:
        """Return the index of a tile among the `shared` tiles; `tile` is the result of `KernelBuilder.tile_of`."""
        if self.turns.shared:
            return tile["number"]
        batch, m, n, _ = self.counts
        row = tile["batch"] * m + tile["m"] if batch > 1 else tile["m"]
        return row * n + tile["n"]

    def is_backward(self, group: Sequence[Index]) -> Condition | None:
        """Return whether a workgroup walks its part of K backwards; None if no workgroup does."""
        return group[0] // self.order.flip % 2 > 0 if 0 < self.order.flip < self.numbers else None

    def exists(self, tile: Mapping[str, Index]) -> list[Condition]:
        """Return conditions that all hold if the tile exists; empty if the grid is not padded."""
        if not self.is_padded:
            return []
        conditions = (tile[dim] < self.counts[TILE.index(dim)] for dim in "mn")
        return [there for there in conditions if there is not True]

    def groups(self, part: Mapping[str, Iterable[int]]) -> tuple[int, ...]:
        """Return the linear workgroup ids (x fastest) of all tiles at these positions; a missing dim means all."""
        ranges = (part.get(dim, range(n)) for dim, n in zip(TILE, self.counts))
        numbers, first = (self._number(*tile) for tile in product(*ranges)), self.first or 0
        if self.together:
            taken = (group for number in numbers for group in self.turns.owners(first + number))
        else:
            taken = (first + group for number in numbers for group in self.turns.owners(number))
        return tuple(dict.fromkeys(taken))

    def _number(self, batch: int, m: int, n: int, k: int) -> int:
        if self.order != IN_ROWS:
            return int(_numbers_of_tiles(self)[batch, m, n, k])
        _, tiles_m, tiles_n, slices = self.counts
        return (m * tiles_n + n) + tiles_m * tiles_n * (k + slices * batch)

    def tiles(self) -> npt.NDArray[np.int64]:
        """Return (batch, m, n, k) of every linear workgroup id, -1 for workgroups without a tile.

        For persistent workgroups: of every number that a workgroup takes.
        """
        x, y, _ = (self.numbers, 1, 1) if self._is_flat else self.grid
        ids = np.arange(self.numbers)
        tile = self.tile((ids % x, ids // x % y, ids // (x * y)))
        rows = np.stack([np.broadcast_to(tile[dim], ids.shape) for dim in TILE], axis=1)
        for there in self.exists(tile):
            rows[~there] = -1
        return rows


@lru_cache(maxsize=2**4)
def _numbers_of_tiles(mapping: WorkgroupMapping) -> npt.NDArray[np.int64]:
    """Return the linear workgroup id of every tile [batch, m, n, k], which proves that each has exactly one."""
    mapping._check_listed(mapping.numbers)
    rows = mapping.tiles()
    ids = np.flatnonzero((rows >= 0).all(axis=1))
    inside = (rows[ids] < mapping.counts).all()
    places = np.ravel_multi_index(tuple(rows[ids].T), mapping.counts) if inside else ids[:0]
    numbers = np.full(prod(mapping.counts), -1)
    numbers[places] = ids
    if len(places) != len(numbers) or (numbers < 0).any() or (rows[:, 0] < 0).sum() != mapping.numbers - len(ids):
        shape = "x".join(map(str, mapping.counts))
        raise UserError(f"given the order {mapping.order} for {shape} tiles, wanted one workgroup for each tile")
    return numbers.reshape(mapping.counts)
