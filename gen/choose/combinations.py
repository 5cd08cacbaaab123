"""Combinations of what configs may be: arrays of many at a time.

They have the axes (tile, parts of M, variant, staging); those that do not differ along one are 1 long there.
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
    slices: int | None = None  #: of K; where none are given those that fill the chip
    sum: str = ""  #: how they meet
    at_a_time: int = 0  #: slices; that meet at most where the last to arrive adds them up, 0: all
    meetings: tuple[int, ...] = ()  #: such numbers that are worth a try
    persist: Persist | None = None  #: how many workgroups take the tiles, if not one takes each

    @classmethod
    def of(cls, config: Config) -> Configs:
        """One that is given."""
        tile = (*config.tile, *config.waves, config.waves_k)
        given = config.slices, config.sum, config.at_a_time
        return cls(
            [tile], (config.subtiles,), (variant_of(config),), (config.staging,), *given, persist=config.map.persist
        )

    @property
    def dims(self) -> tuple[int, ...]:
        return len(self.tiles), len(self.subtiles), len(self.variants), len(self.stagings)

    @cached_property
    def sizes(self) -> Sequence[Numbers]:
        """M, N and K of the tiles, and subgroups along each."""
        return [along(TILE, sizes) for sizes in zip(*self.tiles)]

    def of_stagings(self, name: str) -> Numbers:
        """An attribute of each staging."""
        return along(STAGING, [getattr(staging, name) for staging in self.stagings])


def along(axis: int, values: Iterable[float]) -> Numbers:
    """Numbers along one of the axes."""
    return np.array([*values]).reshape([-1 if n == axis else 1 for n in range(_AXES)])


def by_tile(function: Callable[..., float], *columns: Numbers) -> Numbers:
    """What a function of integers makes of each tile's; many tiles have the same."""
    given = list(zip(*(column.ravel().tolist() for column in columns)))
    made = {numbers: function(*numbers) for numbers in dict.fromkeys(given)}
    return along(TILE, map(made.__getitem__, given))
