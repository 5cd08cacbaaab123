"""The time of launches around what their workgroups take: clock, memory and start, over numbers or arrays of them.

What the workgroups take is told from their machine code (`loop_times`), or from sizes and tiles alone
(`bench/lib/products.py`). All of that runs at a clock that falls as the matrix units of the chip are used, since a chip
may take so much power and no more. Beside it stands what memory takes, before it the start of the launch, behind it the
way of results out of the L2s, the meeting of those that share K, and what else is launched: kernels that only move
bytes.

Ticks are the unit in which a set of measurements tells time: us, or clocks of the unit where efficiencies are given.
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
    """A maximum that terms near it raise."""
    total: Numbers = sum((t**power for t in terms[1:]), terms[0] ** power)
    return np.asarray(total ** (1 / power))


@frozen(eq=False)
class Work(ABC):
    """Launches, one an element; subclasses have a field of numbers for each thing that is known of them."""

    overlap: ClassVar[float]  #: exponent of the smooth maximum of workgroups and memory; 1 where they take turns

    others: Numbers  #: kernels that are launched beside the product's: transposes, casts, zeroes
    other_groups: Numbers  #: workgroups of these
    other_read: Numbers  #: bytes that these read, in whole sectors of memory
    other_written: Numbers  #: and write, likewise

    @abstractmethod
    def estimate(self, chip: Chip, terms: Terms, *, timed: bool = True) -> Estimate:
        """What they take on a chip; if not `timed`, ticks are clocks, whichever clock the chip ran at."""

    @property
    @abstractmethod
    def bytes_once(self) -> Numbers:
        """Of operands and result, each touched once."""

    @property
    @abstractmethod
    def bytes_out(self) -> Numbers:
        """Of the result."""

    def whole(self, chip: Chip, terms: Terms, inner: Inner, meeting: Numbers, *, timed: bool) -> Estimate:
        """The estimate from what the product's own workgroups take and what those take that meet."""
        used = inner.matrix_all / (chip.units * inner.clocks)
        clock = at_clock(chip, terms, used) if timed else np.ones_like(inner.clocks)
        start, kernel = np.full_like(inner.clocks, terms.start), inner.clocks / clock
        moved = self.other_read + self.other_written
        slower = 1 + (terms.slower - 1) * np.maximum(0.0, 1 - terms.cached / (moved + self.bytes_once))
        memory = self.bytes_once / terms.memory * slower
        written_back = np.minimum(self.bytes_out, terms.dirty) / terms.written_back
        others = self.others * terms.other + self.other_groups / terms.other_groups
        others = others + (self.other_read / terms.reads + self.other_written / terms.writes) * slower
        total = start + smooth(self.overlap, kernel, memory) + written_back + meeting + others
        matrix = inner.matrix_busiest / clock
        return Estimate(total, start, matrix, kernel, memory, written_back, meeting, others, clock)


@frozen(eq=False)
class Inner:
    """What the workgroups of products take by themselves."""

    clocks: Numbers
    matrix_all: Numbers  #: clocks of the matrix units of all units of the chip, one after another
    matrix_busiest: Numbers  #: of the unit that has most to do


def _term(unit: str, low: float, high: float, start: float, meaning: str) -> Any:
    """A constant: what it is, and between which bounds it is physical."""
    metadata = {"unit": unit, "low": low, "high": high, "start": start, "meaning": meaning}
    return attrs.field(default=start, metadata=metadata)


@frozen
class Terms:
    """The constants of kernels of one maker on one chip."""

    start: float = _term("ticks", 1e-3, 1e5, 5.0, "of a launch, beside its workgroups")
    matrix: float = _term("1", 1.0, 1.3, 1.0, "matrix clocks beside those at the peak rate")
    serial: float = _term("clocks", 1.0, 3000.0, 300.0, "of an iteration, in which its workgroup waits for loads")
    far: float = _term("clocks", 1.0, 6000.0, 500.0, "more of one all operands of which come from memory")
    operands: float = _term("bytes/clock", 8.0, 64.0, 30.0, "rate at which operands reach a unit")
    fabric: float = _term("bytes/clock", 500.0, 40000.0, 9000.0, "rate at which operands reach all units together")
    run: float = _term("bytes", 1.0, 512.0, 30.0, "that each contiguous run of an operand costs beside its own")
    load: float = _term("clocks", 2.0, 64.0, 16.0, "in which a unit takes in the addresses of a wave's load")
    put: float = _term("clocks", 2.0, 128.0, 16.0, "in which a unit takes in the addresses of a wave's store")
    shared: float = _term("1", 0.05, 2.0, 0.5, "clocks of local memory beside those at its port's rate")
    arrange: float = _term("1", 0.05, 2.0, 0.5, "clocks that join narrow elements beside one operation a register")
    rest: float = _term("clocks", 1.0, 5000.0, 500.0, "of an iteration that K does not fill")
    store: float = _term("clocks/byte", 0.02, 0.6, 0.2, "in which a unit writes results")
    round: float = _term("clocks", 1.0, 12000.0, 300.0, "of a round of workgroups, beside its iterations and results")
    around: float = _term("1", 0.3, 1.5, 1.0, "clocks of the code around a loop beside those modelled")
    memory: float = _term("bytes/tick", 100.0, 2e7, 1e6, "rate at which operands and results come and go once")
    cached: float = _term("bytes", 1e7, 1e9, 1e8, "of a call that come and go at these rates")
    slower: float = _term("1", 1.0, 6.0, 1.5, "by how much the others take longer, relative to these")
    dirty: float = _term("bytes", 1e5, 1e8, 5e6, "of results that L2s hold when a kernel ends, at most")
    written_back: float = _term("bytes/tick", 50.0, 1e9, 1e7, "rate at which these leave the L2s")
    meeting: float = _term("ticks", 1e-3, 1e5, 3.0, "in which those that share K meet")
    shares: float = _term("bytes/tick", 100.0, 1e8, 1e6, "rate at which shares of sums come and go")
    other: float = _term("ticks", 2.0, 1e5, 3.0, "of each further launch")
    other_groups: float = _term("1/tick", 1.0, 1e6, 3000.0, "rate at which further launches begin workgroups")
    reads: float = _term("bytes/tick", 1e3, 1e8, 4e6, "rate at which further launches read")
    writes: float = _term("bytes/tick", 1e3, 1e8, 6e6, "rate at which these write")
    clock: float = _term("clocks/tick", 300.0, 12000.0, 2500.0, "that the chip's power would allow idle matrix units")
    power: float = _term("1", 0.02, 3.0, 0.8, "by how much full use of the matrix units lowers that, relative to 1")


@frozen(eq=False)
class Estimate:
    """What products take, by cause; all in ticks but `clock`."""

    total: Numbers
    start: Numbers
    matrix: Numbers  #: the matrix units' own clocks, of the unit that has most to do
    kernel: Numbers  #: all workgroups
    memory: Numbers  #: each byte once
    written_back: Numbers  #: results that leave the L2s
    meeting: Numbers
    others: Numbers  #: further launches
    clock: Numbers  #: clocks a tick


def at_clock(chip: Chip, terms: Terms, used: Numbers) -> Numbers:
    """Clocks a tick while so much of the chip's matrix units is used, from 0 to 1."""
    return np.asarray(np.minimum(chip.clock, terms.clock / (1 + terms.power * used)))
