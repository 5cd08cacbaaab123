"""A table of measurements: rows as products of matrices.

Columns are those of the tables' own README. A row's `kinds` name the constants that may serve it, the best ones first:
those of its maker, type and chip, and wider ones where the former were never fitted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import ceil

import attrs
import numpy as np
import numpy.typing as npt
from lib.products import Products

from convgen.backends.family import Chip
from convgen.backends.timing import LoopClocks
from convgen.ir.record import define, fields_of, frozen
from convgen.profile.closed import LaunchArrays, Numbers

Row = dict[str, str]

#: Type -> bytes of an element.
BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "fp8": 1.0, "i8": 1.0, "s8": 1.0, "fp4": 0.5}


@frozen
class Sample:
    """A row as work on a chip: numbers of `Products` or of `Loops` by name."""

    chip: Chip
    flop: float
    peak: float  #: FLOP a clock and unit
    numbers: dict[str, float]


_HALF_LINE = 64  #: bytes; the least that L2 gives
WIDEST = 16.0  #: bytes that a lane loads or stores with one instruction, at most


def lane_bytes(row_bytes: float) -> float:
    """Return the bytes that a lane moves with one instruction in rows of `row_bytes` without gaps."""
    return min(WIDEST, float(int(row_bytes) & -int(row_bytes)))


#: Numbers of `LaunchArrays` where nothing else is launched.
ALONE = {"others": 0.0, "other_groups": 0.0, "other_read": 0.0, "other_written": 0.0}


def in_half_lines(run: float) -> float:
    """Return the bytes of a contiguous run in whole half lines, over its own `run` bytes."""
    return ceil(run / _HALF_LINE) * _HALF_LINE / run


def of_loop(
    clocks: LoopClocks, chip: Chip, groups: float, depth: float, tile: tuple[float, float], operands: float
) -> dict[str, float]:
    """Return the numbers of `Loops` that follow from a kernel's clocks.

    Each of `groups` workgroups has a `tile` of M and N over `depth` positions along K, each with `operands` bytes.
    """
    of_iteration = clocks.flop / (2 * tile[0] * tile[1])  # positions along K
    left = groups % (chip.units * clocks.resident)
    full, last = map(clocks.of, (clocks.resident, ceil(left / chip.units)))
    return {
        "groups": groups,
        "iterations": depth / of_iteration,
        "uneven": 1.0,
        "resident": float(clocks.resident),
        **{f"{what}_full": clocks for what, clocks in full._asdict().items()},
        **{f"{what}_last": clocks for what, clocks in last._asdict().items()},
        "matrix": clocks.matrix,
        "operands": of_iteration * operands,
    }


@define(eq=False, slots=False)
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
    labels: tuple[str, ...]  #: columns by whose values errors are reported
    apart: Callable[[Row], bool] = lambda _: False  #: whether a row must not be fitted with kinds wider than its own
    subsets: dict[str, Callable[[Row], bool]] = attrs.field(
        factory=dict
    )  #: further rows by whose name errors are reported, as a test
    model: type[LaunchArrays] = Products

    def fitted_kinds(self, row: Row) -> tuple[str, ...]:
        """Return the kinds whose constants are fitted to a row."""
        return self.kinds(row)[:1] if self.apart(row) else self.kinds(row)

    @cached_property
    def samples(self) -> list[Sample]:
        """The rows as work."""
        return [self.sample(row) for row in self.rows]

    @cached_property
    def work(self) -> LaunchArrays:
        """All rows."""
        names = [f.name for f in fields_of(self.model)]
        return self.model(*(np.array([s.numbers[n] for s in self.samples], np.float64) for n in names))

    @cached_property
    def measured(self) -> Numbers:
        """Ticks of each row: us, or clocks."""
        value = np.array([float(row[self.measure] or "nan") for row in self.rows])
        return value * self.scale if self.timed else self._peak / np.maximum(value, 1e-9)

    def in_measured_unit(self, ticks: Numbers) -> Numbers:
        """Return ticks in the unit of the measured column."""
        return ticks / self.scale if self.timed else self._peak / ticks

    def ratios(self, predicted: Numbers, measured: Numbers) -> dict[str, Numbers]:
        """Return predicted over measured of some rows, both given in ticks, in each unit of reported errors.

        The unit of the measured column comes first. A share of the peak is inverse to clocks: one predicted at twice
        its value is as far off as clocks predicted at half.
        """
        clocks = predicted / measured
        return {self.measure: clocks} if self.timed else {self.measure: 1 / clocks, "clocks": clocks}

    @cached_property
    def _peak(self) -> Numbers:
        """Clocks at the peak of all units, times 100."""
        return np.array([100 * s.flop / (s.peak * s.chip.units) for s in self.samples])

    @cached_property
    def judged(self) -> npt.NDArray[np.bool_]:
        """Rows that count."""
        return np.array([self.counts(row) for row in self.rows])
