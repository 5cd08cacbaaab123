"""Combinations of config fields, as arrays over many configs at a time.

Arrays have the axes (fill, tile, parts of M, variant, staging); an array that does not depend on an axis has length 1
there. Tiles come with the matrix instruction that multiplies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from convgen.ir.layout.mma import MmaAtom
from convgen.ir.layout.turns import Persist
from convgen.ir.record import frozen
from convgen.plan.config import Config, Staging
from convgen.plan.registers import Numbers
from convgen.plan.variants.variant import Variant, variant_of

_AXES = 5
FILL, TILE, SUBTILES, VARIANT, STAGING = range(_AXES)


class _Columns(dict[str, "Numbers"]):
    """Attributes of records as arrays along an axis, each created once."""

    def __init__(self, axis: int, records: Sequence[object]) -> None:
        super().__init__()
        self.axis, self.records = axis, records

    def __missing__(self, name: str) -> Numbers:
        self[name] = along(self.axis, [getattr(record, name) for record in self.records])
        return self[name]


@frozen(eq=False)
class Configs:
    """All combinations of tiles, each with a grid of subgroups, and of parts of M, variants and stagings."""

    tiles: Sequence[tuple[int, int, int, int, int, int]]  #: M, N and K of a tile, and subgroups along each
    atoms: Sequence[MmaAtom]  #: by tile: its matrix instruction; they differ in shape and clocks only
    subtiles: tuple[int, ...]
    variants: tuple[Variant, ...]
    stagings: tuple[Staging, ...]
    slices: int | None = None  #: slices of K; None: as many as fill the chip
    sum: str = ""  #: how slices are reduced
    at_a_time: int = 0  #: slices; the most that one workgroup adds up (`sum=last:COUNT`), 0: all
    group_sizes: tuple[int, ...] = ()  #: values of `at_a_time` worth trying
    persist: Persist | None = None  #: number of persistent workgroups; None where each tile has its own workgroup

    @classmethod
    def of(cls, config: Config, atom: MmaAtom) -> Configs:
        """Return the single combination of a given config, which names this matrix instruction."""
        tile = (*config.tile, *config.waves, config.waves_k)
        slicing = config.slices, config.sum, config.at_a_time
        words = (config.subtiles,), (variant_of(config),), (config.staging,)
        return cls([tile], [atom], *words, *slicing, persist=config.map.persist)

    @property
    def dims(self) -> tuple[int, ...]:
        """Return the lengths of all axes but that of fills, which depends on the launch."""
        return len(self.tiles), len(self.subtiles), len(self.variants), len(self.stagings)

    @property
    def atom(self) -> MmaAtom:
        """Return a matrix instruction, whose types and way to factors are those of all."""
        return self.atoms[0]

    @cached_property
    def sizes(self) -> Sequence[Numbers]:
        """Return M, N and K of the tiles, and the subgroups along each."""
        return [along(TILE, sizes) for sizes in zip(*self.tiles)]

    @cached_property
    def of_stagings(self) -> Mapping[str, Numbers]:
        """Return the attributes of the stagings by name."""
        return _Columns(STAGING, self.stagings)

    @cached_property
    def of_atoms(self) -> Mapping[str, Numbers]:
        """Return the attributes of the tiles' matrix instructions by name."""
        return _Columns(TILE, self.atoms)

    @cached_property
    def atom_numbers(self) -> Numbers:
        """Return the number of each tile's matrix instruction, in order of appearance."""
        numbers = {atom: number for number, atom in enumerate(dict.fromkeys(self.atoms))}
        return np.array([numbers[atom] for atom in self.atoms])


def along(axis: int, values: Iterable[float]) -> Numbers:
    """Return the numbers as an array along one of the axes."""
    return np.array([*values]).reshape([-1 if n == axis else 1 for n in range(_AXES)])


def by_tile(function: Callable[..., float], *columns: Numbers) -> Numbers:
    """Return the values of a function at each tile's integers, computed once for each distinct tuple."""
    numbers_of_tiles = list(zip(*(column.ravel().tolist() for column in columns)))
    results = {numbers: function(*numbers) for numbers in dict.fromkeys(numbers_of_tiles)}
    return along(TILE, map(results.__getitem__, numbers_of_tiles))
