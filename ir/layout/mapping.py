"""Which tile a workgroup computes: a bijection between workgroup numbers and (batch, M tile, N tile, K slice)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod

import attrs

from convgen.ir.error import UserError
from convgen.ir.layout.digits import Digit, Digits, Index, Space

TILE = ("batch", "m", "n", "k")  #: what a workgroup's number is split into: M and N tiles, slices of K
GROUPS = (Space.GROUP_X, Space.GROUP_Y, Space.GROUP_Z)


@attrs.frozen(cache_hash=True)
class WorkgroupMapping:
    """A split of the three workgroup numbers into a tile: what a kernel computes from its numbers, and back.

    `counts` are the tiles that exist along batch, M, N and K. Where the digits hold more than that the grid is padded,
    and workgroups beyond must do nothing (`exists`). Raises UserError unless every tile has one workgroup.
    """

    counts: tuple[int, int, int, int]
    digits: Digits

    def __attrs_post_init__(self) -> None:
        split = self.digits.merged()
        spaces = {d.space for d in split.digits}
        dense = all(split.renumbered(space) == split for space in spaces)
        whole = self.digits.dims == TILE and all(held >= n for held, n in zip(self.digits.shape, self.counts))
        if not dense or not whole or not spaces.issubset(GROUPS):
            raise UserError(f"given the workgroups {self.digits} for {self._shape} tiles, wanted one for each tile")

    @classmethod
    def rows(cls, m: int, n: int, *, k: int = 1, batch: int = 1) -> WorkgroupMapping:
        """Along x one row of tiles after the other, N fastest; along y the slices of K; along z the batch."""
        x, y, z = GROUPS
        digits = Digit("n", n, x, 1), Digit("m", m, x, max(n, 1)), Digit("k", k, y, 1), Digit("batch", batch, z, 1)
        return cls((batch, m, n, k), Digits(TILE, digits))

    @property
    def grid(self) -> tuple[int, int, int]:
        """Workgroups along x, y and z."""
        x, y, z = (self.digits.count(space) for space in GROUPS)
        return x, y, z

    @property
    def is_padded(self) -> bool:
        """Whether there are workgroups without a tile."""
        return prod(self.grid) != prod(self.counts)

    def tile(self, group: Sequence[Index]) -> dict[str, Index]:
        """The tile of a workgroup by its numbers along x, y and z, which are in range: integers or IR expressions."""
        return self.digits.coordinates(dict(zip(GROUPS, group)), overrun=True)

    def exists(self, tile: Mapping[str, Index]) -> list[Index]:
        """Conditions that all hold where there is such a tile; none if the grid is not padded."""
        padded = (dim for dim, held, n in zip(TILE, self.digits.shape, self.counts) if held != n)
        return [tile[dim] < self.counts[TILE.index(dim)] for dim in padded]

    def groups(self, part: Mapping[str, Iterable[int]]) -> tuple[int, ...]:
        """The linear workgroup ids (x fastest) of all tiles at these positions; along what is not named, all."""
        ranges = (part.get(dim, range(n)) for dim, n in zip(TILE, self.counts))
        x, y, _ = self.grid
        places = (self.digits.place(dict(zip(TILE, tile))) for tile in product(*ranges))
        ids = (tuple(place.get(space, 0) for space in GROUPS) for place in places)
        return tuple(at[0] + x * (at[1] + y * at[2]) for at in ids)

    @property
    def _shape(self) -> str:
        return "x".join(map(str, self.counts))
