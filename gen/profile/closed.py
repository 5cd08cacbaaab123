"""The time of launches around their workgroups: clock, memory, launch start; for arrays of launches.

The clocks of the workgroups come from their machine code (`loop_times`), or from sizes and tiles alone
(`bench/lib/products.py`). The clock falls as the chip's matrix units are used, because its power is limited. Memory
time overlaps with the workgroups. Launch start comes before them; write-back of results from the L2s, reduction of
split-K slices and further launches, which only move bytes, come after them.

A tick is the unit of time of a set of measurements: us, or clocks where the set states efficiencies in place of times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import attrs
import numpy as np
import numpy.typing as npt

from convgen.backends.family import Chip
from convgen.ir.record import frozen

Numbers = npt.NDArray[np.float64]

PACE = 4.0  #: exponent of the smooth maximum within an iteration


def smooth(power: float, *terms: Numbers) -> Numbers:
    """Return a smooth maximum: terms close to the largest raise it."""
    total: Numbers = sum((t**power for t in terms[1:]), terms[0] ** power)
    return np.asarray(total ** (1 / power))


@frozen(eq=False)
class LaunchArrays(ABC):
    """Launches, one an element; subclasses have an array for each known property."""

    overlap: ClassVar[float]  #: exponent of the smooth maximum of workgroups and memory; 1: no overlap

    others: Numbers  #: launches besides the product's: transposes, casts, zero fills
    other_groups: Numbers  #: workgroups of the other launches
    other_read: Numbers  #: bytes; read by the other launches, in whole sectors of memory
    other_written: Numbers  #: bytes; written by the other launches, in whole sectors of memory

    @abstractmethod
    def estimate(self, chip: Chip, terms: Terms, *, timed: bool = True) -> Estimate:
        """Return the time on a chip; ticks are us, or clocks if not `timed`."""

    @property
    @abstractmethod
    def bytes_once(self) -> Numbers:
        """Return the bytes of operands and result, each touched once."""

    @property
    @abstractmethod
    def bytes_out(self) -> Numbers:
        """Return the bytes of the result."""

    def launch_estimate(
        self, chip: Chip, terms: Terms, workgroups: WorkgroupClocks, reduction: Numbers, *, timed: bool
    ) -> Estimate:
        """Return the estimate, given the clocks of the product's workgroups and the ticks of the reduction."""
        used = workgroups.matrix_all / (chip.units * workgroups.clocks)
        clock = at_clock(chip, terms, used) if timed else np.ones_like(workgroups.clocks)
        start, kernel = np.full_like(workgroups.clocks, terms.start), workgroups.clocks / clock
        moved = self.other_read + self.other_written
        slower = 1 + (terms.slower - 1) * np.maximum(0.0, 1 - terms.cached / (moved + self.bytes_once))
        memory = self.bytes_once / terms.memory * slower
        written_back = np.minimum(self.bytes_out, terms.dirty) / terms.written_back
        others = self.others * terms.other + self.other_groups / terms.other_groups
        others = others + (self.other_read / terms.reads + self.other_written / terms.writes) * slower
        total = start + smooth(self.overlap, kernel, memory) + written_back + reduction + others
        matrix = workgroups.matrix_busiest / clock
        return Estimate(total, start, matrix, kernel, memory, written_back, reduction, others, clock)


@frozen(eq=False)
class WorkgroupClocks:
    """The clocks of a product's workgroups alone."""

    clocks: Numbers
    matrix_all: Numbers  #: matrix clocks, summed over all units of the chip
    matrix_busiest: Numbers  #: matrix clocks of the unit with the most work


def _term(unit: str, low: float, high: float, start: float, meaning: str) -> Any:
    """Return a constant's field: unit, physical bounds, start of the fit, and meaning."""
    metadata = {"unit": unit, "low": low, "high": high, "start": start, "meaning": meaning}
    return attrs.field(default=start, metadata=metadata)


@frozen
class Terms:
    """The constants of one maker's kernels on one chip: `start`, those of workgroups, then those of launches.

    `loop_times` reads matrix, far, operands, store and around of the constants of workgroups. `bench/lib/products.py`,
    which knows sizes and tiles only, reads all of them except around.
    """

    start: float = _term("ticks", 1e-3, 1e5, 5.0, "start of a launch")
    # ------------------------------------------------------------ workgroups

    matrix: float = _term("1", 1.0, 1.3, 1.0, "matrix clocks relative to those at the peak rate")
    serial: float = _term("clocks", 1.0, 3000.0, 300.0, "of an iteration in which its workgroup waits for loads")
    far: float = _term("clocks", 1.0, 6000.0, 500.0, "further ones of an iteration whose operands all come from memory")
    operands: float = _term("bytes/clock", 8.0, 64.0, 30.0, "rate at which operands reach a unit")
    fabric: float = _term("bytes/clock", 500.0, 40000.0, 9000.0, "rate at which operands reach all units together")
    run: float = _term("bytes", 1.0, 512.0, 30.0, "overhead of each contiguous run of an operand")
    load: float = _term("clocks", 2.0, 64.0, 16.0, "address pipe of a unit, for a wave's load")
    put: float = _term("clocks", 2.0, 128.0, 16.0, "address pipe of a unit, for a wave's store")
    shared: float = _term("1", 0.05, 2.0, 0.5, "clocks of shared memory relative to those at its port's rate")
    arrange: float = _term(
        "1", 0.05, 2.0, 0.5, "clocks of packing narrow elements relative to one operation a register"
    )
    rest: float = _term("clocks", 1.0, 5000.0, 500.0, "of an iteration that is not full along K")
    store: float = _term("clocks/byte", 0.02, 0.6, 0.2, "writing of results by a unit")
    round: float = _term("clocks", 1.0, 12000.0, 300.0, "of a round of workgroups, outside its iterations and results")
    around: float = _term("1", 0.3, 1.5, 1.0, "clocks of the code around a loop relative to the modelled ones")
    # ------------------------------------------------------------ launches

    memory: float = _term("bytes/tick", 100.0, 2e7, 1e6, "rate at which operands and results move once")
    cached: float = _term("bytes", 1e7, 1e9, 1e8, "bytes of a call that move at these rates")
    slower: float = _term("1", 1.0, 6.0, 1.5, "time of further bytes relative to these")
    dirty: float = _term("bytes", 1e5, 1e8, 5e6, "most results that L2s hold when a kernel ends")
    written_back: float = _term("bytes/tick", 50.0, 1e9, 1e7, "rate at which L2s write them back")
    meeting: float = _term("ticks", 1e-3, 1e5, 3.0, "reduction of split-K slices, besides its bytes")
    shares: float = _term("bytes/tick", 100.0, 1e8, 1e6, "rate at which partial sums move")
    other: float = _term("ticks", 0.5, 1e5, 3.0, "start of each further launch")
    other_groups: float = _term("1/tick", 1.0, 1e6, 3000.0, "rate at which further launches start workgroups")
    reads: float = _term("bytes/tick", 1e3, 1e8, 4e6, "rate at which further launches read")
    writes: float = _term("bytes/tick", 1e3, 1e8, 6e6, "rate at which further launches write")
    clock: float = _term(
        "clocks/tick", 300.0, 12000.0, 2500.0, "clock that the chip's power allows with idle matrix units"
    )
    power: float = _term(
        "1", 0.02, 3.0, 0.8, "by how much full use of the matrix units lowers the clock, relative to 1"
    )


@frozen(eq=False)
class Estimate:
    """The time of products by cause; in ticks, except `clock`."""

    total: Numbers
    start: Numbers
    matrix: Numbers  #: matrix clocks of the unit with the most work
    kernel: Numbers  #: all workgroups
    memory: Numbers  #: each byte once
    written_back: Numbers  #: write-back of results from the L2s
    reduction: Numbers  #: of split-K slices
    others: Numbers  #: further launches
    clock: Numbers  #: clocks a tick


def at_clock(chip: Chip, terms: Terms, used: Numbers) -> Numbers:
    """Return the clocks per tick while a share (0 to 1) of the chip's matrix units is in use."""
    return np.asarray(np.minimum(chip.clock, terms.clock / (1 + terms.power * used)))
