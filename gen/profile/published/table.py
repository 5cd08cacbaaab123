"""A table of measurements: rows as products of matrices.

Columns are those of the tables' own README. A row's `kinds` name the constants that may serve it, the best ones first:
those of its maker, type and chip, and wider ones where the former were never fitted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import attrs
import numpy as np
import numpy.typing as npt

from convgen.profile.chips import Chip
from convgen.profile.closed import Numbers, Products, Work

Row = dict[str, str]

#: Type -> bytes of an element.
BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "fp8": 1.0, "i8": 1.0, "s8": 1.0, "fp4": 0.5}


@attrs.frozen
class Sample:
    """A row as work on a chip: numbers of `Products` or of `Loops` by name."""

    chip: Chip
    flop: float
    peak: float  #: FLOP a clock and unit
    numbers: dict[str, float]


def products(**numbers: float) -> dict[str, float]:
    """Numbers of `Products`, those of launches beside the product's 0 unless they are given."""
    return {"others": 0.0, "other_bytes": 0.0, **numbers}


@attrs.define(eq=False, slots=False)
class Table:
    """The rows of one file."""

    name: str
    rows: list[Row]
    measure: str  #: the column that was measured
    timed: bool  #: whether it is a time, in `scale` us; else per cent of the matrix units' peak
    scale: float
    shape: Callable[[Row], str]  #: rows of one shape are on one side when a table is cut
    kinds: Callable[[Row], tuple[str, ...]]
    sample: Callable[[Row], Sample]
    counts: Callable[[Row], bool]  #: whether the figure says enough to be judged by
    results: frozenset[str]  #: columns that follow from the measurement
    labels: tuple[str, ...]  #: columns by which errors are told
    model: type[Work] = Products

    @cached_property
    def samples(self) -> list[Sample]:
        """The rows as work."""
        return [self.sample(row) for row in self.rows]

    @cached_property
    def work(self) -> Work:
        """All rows."""
        names = [f.name for f in attrs.fields(self.model)]
        return self.model(*(np.array([s.numbers[n] for s in self.samples], np.float64) for n in names))

    @cached_property
    def measured(self) -> Numbers:
        """Ticks of each row: us, or clocks."""
        value = np.array([float(row[self.measure]) for row in self.rows])
        return value * self.scale if self.timed else self._peak / np.maximum(value, 1e-9)

    def told(self, ticks: Numbers) -> Numbers:
        """Ticks in the unit of the measured column."""
        return ticks / self.scale if self.timed else self._peak / ticks

    @cached_property
    def _peak(self) -> Numbers:
        """Clocks at the peak of all units, times 100."""
        return np.array([100 * s.flop / (s.peak * s.chip.units) for s in self.samples])

    @cached_property
    def judged(self) -> npt.NDArray[np.bool_]:
        """Rows that count."""
        return np.array([self.counts(row) for row in self.rows])
