"""Combinations of config fields, as arrays over many configs at a time.

Arrays have the axes (tile, parts of M, variant, staging); an array that does not depend on an axis has length 1 there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np

from convgen.ir.layout.turns import Persist
from convgen.ir.record import frozen
from convgen.plan.config import Config, Staging
from convgen.plan.registers import Numbers
from convgen.plan.variants.variant import Variant, variant_of

_AXES = 4
TILE, SUBTILES, VARIANT, STAGING = range(_AXES)


@frozen(eq=False)
class Configs:
    """All combinations of tiles, each with a grid of subgroups, and of parts of M, variants and stagings."""

    tiles: Sequence[tuple[int, int, int, int, int, int]]  #: M, N and K of a tile, and subgroups along each
    subtiles: tuple[int, ...]
    variants: tuple[Variant, ...]
    stagings: tuple[Staging, ...]
    slices: int | None = None  #: slices of K; None: as many as fill the chip
    sum: str = ""  #: how slices are reduced
    at_a_time: int = 0  #: slices; the most that one workgroup adds up (`sum=last:COUNT`), 0: all
    group_sizes: tuple[int, ...] = ()  #: values of `at_a_time` worth trying
    persist: Persist | None = None  #: number of persistent workgroups; None where each tile has its own workgroup

    @classmethod
    def of(cls, config: Config) -> Configs:
        """Return the single combination of a given config."""
        tile = (*config.tile, *config.waves, config.waves_k)
        slicing = config.slices, config.sum, config.at_a_time
        return cls(
            [tile], (config.subtiles,), (variant_of(config),), (config.staging,), *slicing, persist=config.map.persist
        )

    @property
    def dims(self) -> tuple[int, ...]:
        return len(self.tiles), len(self.subtiles), len(self.variants), len(self.stagings)

    @cached_property
    def sizes(self) -> Sequence[Numbers]:
        """Return M, N and K of the tiles, and the subgroups along each."""
        return [along(TILE, sizes) for sizes in zip(*self.tiles)]

    def of_stagings(self, name: str) -> Numbers:
        """Return an attribute of each staging."""
        return along(STAGING, [getattr(staging, name) for staging in self.stagings])


def along(axis: int, values: Iterable[float]) -> Numbers:
    """Return the numbers as an array along one of the axes."""
    return np.array([*values]).reshape([-1 if n == axis else 1 for n in range(_AXES)])


def by_tile(function: Callable[..., float], *columns: Numbers) -> Numbers:
    """Return the values of a function at each tile's integers, computed once for each distinct tuple."""
    numbers_of_tiles = list(zip(*(column.ravel().tolist() for column in columns)))
    results = {numbers: function(*numbers) for numbers in dict.fromkeys(numbers_of_tiles)}
    return along(TILE, map(results.__getitem__, numbers_of_tiles))
