"""The time of tiled products of matrices from sizes and tiles alone: a closed form, over numbers or arrays of them.

Workgroups go to compute units in rounds. In one iteration of K a unit multiplies, takes in operands, reads them from
local memory and arranges them, while each of the workgroups that it holds waits for its own; the slowest of these sets
the pace, and the others show where they come near it. The result is written at the end of a round, without overlap.
All of that runs at a clock that falls as the matrix units of the chip are used, since a chip may take so much power and
no more. Beside it stands what memory takes, before it the start of the launch, behind it the way of results out of the
L2s, the meeting of those that share K, and what else is launched: kernels that only move bytes.

Ticks are the unit in which a set of measurements tells time: us, or clocks of the unit where efficiencies are given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import attrs
import numpy as np
import numpy.typing as npt

from convgen.backends import target as targets
from convgen.backends.family import Chip
from convgen.ir.facts import TargetFacts
from convgen.ir.record import frozen

Numbers = npt.NDArray[np.float64]

_OTHER_REGISTERS = 48  #: registers; of a subgroup, for addresses, masks and temporaries
_STAGES = 2  #: blocks of K held in registers and in local memory
SUM = 4.0  #: bytes of an element of a sum that others are added to
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

    def take(self, which: npt.NDArray[Any]) -> Self:
        """Some of them, by number or by mask."""
        return type(self)(*(getattr(self, f.name)[which] for f in attrs.fields(type(self))))

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


@frozen(eq=False)
class Products(Work):
    """Products of M x K and K x N matrices, one an element."""

    overlap = 2.5

    rate: Numbers  #: FLOP of matrix instructions a clock and unit
    m: Numbers
    n: Numbers
    k: Numbers
    batch: Numbers
    launches: Numbers  #: into which the batch is cut, one after the other
    tile_m: Numbers
    tile_n: Numbers
    tile_k: Numbers
    split: Numbers  #: workgroups that share the K of a tile
    waves: Numbers  #: of a workgroup
    waves_m: Numbers  #: of these, along M
    waves_n: Numbers  #: and along N; where they share K they are more than those
    elem: Numbers  #: bytes of an operand's element
    result: Numbers  #: bytes of a result's element
    k_runs_m: Numbers  #: 1 where M's operand is contiguous along K, else 0
    k_runs_n: Numbers  #: likewise N's
    k_piece_m: Numbers  #: elements of M's operand that follow each other along K, at most
    lane_m: Numbers  #: bytes of M's operand that a lane loads with one instruction
    lane_n: Numbers  #: likewise N's
    lane_out: Numbers  #: bytes of the result that a lane stores with one

    def estimate(self, chip: Chip, terms: Terms, *, timed: bool = True) -> Estimate:
        sums = self.split * self.m * self.n * self.batch * SUM
        meeting = np.where(self.split > 1, terms.meeting + sums / terms.shares, 0.0)
        return self.whole(chip, terms, _inner(self, chip, terms), meeting, timed=timed)

    @property
    def groups(self) -> Numbers:
        """Workgroups."""
        return np.asarray(np.ceil(self.m / self.tile_m) * np.ceil(self.n / self.tile_n) * self.batch * self.split)

    @property
    def depth(self) -> Numbers:
        """Positions along K of one workgroup."""
        return np.asarray(np.ceil(self.k / self.split))

    @property
    def bytes_once(self) -> Numbers:
        return np.asarray((self.m + self.n) * self.k * self.batch * self.elem + self.bytes_out)

    @property
    def bytes_out(self) -> Numbers:
        return np.asarray(self.m * self.n * self.batch * self.result)


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

    def bound(self) -> list[str]:
        """Which cause is largest."""
        names = "start", "memory", "written back", "meeting", "others"
        parts = self.start, self.memory, self.written_back, self.meeting, self.others
        causes = dict(zip(names, parts))
        busy = self.matrix > 0.7 * self.kernel
        causes["matrix"] = np.where(busy, self.kernel, 0.0)
        causes["operands and results"] = np.where(busy, 0.0, self.kernel)
        known = list(causes)
        return [known[n] for n in np.array(list(causes.values())).argmax(axis=0)]


def at_clock(chip: Chip, terms: Terms, used: Numbers) -> Numbers:
    """Clocks a tick while so much of the chip's matrix units is used, from 0 to 1."""
    return np.asarray(np.minimum(chip.clock, terms.clock / (1 + terms.power * used)))


def _inner(p: Products, chip: Chip, terms: Terms) -> Inner:
    """Rounds of workgroups, iteration by iteration."""
    facts = targets.get(chip.target).facts
    lanes, simds = facts.subgroup_size, facts.core.simds
    rounds = np.ceil(p.groups / p.launches / chip.units)  # of a launch
    together = np.minimum(rounds, _resident(p, facts))
    turns = p.launches * np.ceil(rounds / together)
    rounds = p.launches * rounds
    iterations = np.ceil(p.depth / p.tile_k)
    matrix = 2 * p.tile_m * p.tile_n * p.tile_k / p.rate
    arranged = _arranged(p, facts) * terms.arrange
    busy, fetched = terms.matrix * matrix + arranged, _fetched(p, terms.run)
    asked_for = p.groups * iterations * _fetched(p, 0.0)
    missed = np.minimum(1.0, chip.partitions * p.bytes_once / asked_for)
    multiplied = np.maximum(rounds, turns * simds / np.minimum(p.waves, simds)) * busy
    shared = _shared_bytes(p) / facts.core.shared_rate * terms.shared
    waited = turns * (shared + terms.serial + terms.far * missed)
    together_in = p.groups * fetched / terms.fabric
    taken_in = smooth(PACE, rounds * fetched / terms.operands, together_in, rounds * _loads(p, lanes) * terms.load)
    pace = smooth(PACE, multiplied, taken_in, rounds * shared, waited)
    result = np.minimum(p.tile_m, p.m) * np.minimum(p.tile_n, p.n) * p.result
    stores = np.maximum(p.launches, p.groups / chip.units)  # not in rounds: what takes results away serves all units
    stored = stores * result * (terms.store + terms.put / (lanes * p.lane_out))
    partial = np.where(p.depth % p.tile_k, turns * terms.rest, 0.0)
    clocks = iterations * pace + stored + partial + turns * terms.round
    return Inner(clocks, p.groups * iterations * matrix, rounds * iterations * matrix)


def _resident(p: Products, facts: TargetFacts) -> Numbers:
    """Workgroups that a unit holds, as registers and shared memory allow."""
    simds, core = facts.core.simds, facts.core
    lanes, block = p.waves * facts.subgroup_size, (p.tile_m + p.tile_n) * p.tile_k * p.elem
    registers = p.tile_m * p.tile_n / lanes + _STAGES * block / (4 * lanes) + _OTHER_REGISTERS
    fit = np.minimum(core.simd_registers / registers * simds / p.waves, facts.shared_bytes / block)
    return np.clip(np.floor(fit), 1, core.simd_subgroups * simds / np.minimum(p.waves, simds))


def _fetched(p: Products, more: float) -> Numbers:
    """Bytes of operands of an iteration, each contiguous run `more` longer than it is; of rows that exist."""
    along_k = np.minimum(p.tile_k, p.depth)

    def side(rows: Numbers, run: Numbers) -> Numbers:
        return np.asarray(rows * p.tile_k * p.elem * (1 + more / (run * p.elem)))

    m, n = np.minimum(p.tile_m, p.m), np.minimum(p.tile_n, p.n)
    run_m = np.where(p.k_runs_m > 0, np.minimum(along_k, p.k_piece_m), m)
    run_n = np.where(p.k_runs_n > 0, along_k, n)
    return side(m, run_m) + side(n, run_n)


def _loads(p: Products, lanes: int) -> Numbers:
    """Loads of subgroups of so many `lanes` in an iteration."""
    loaders = np.minimum(p.tile_m, p.m) / p.lane_m + np.minimum(p.tile_n, p.n) / p.lane_n
    return np.asarray(loaders * p.tile_k * p.elem / lanes)


def _shared_bytes(p: Products) -> Numbers:
    """Bytes that local memory takes in and gives out in an iteration: each wave reads what it multiplies."""
    rows = p.tile_m * (1 + p.waves_n) + p.tile_n * (1 + p.waves_m)
    return np.asarray(rows * p.tile_k * p.elem)


def _arranged(p: Products, facts: TargetFacts) -> Numbers:
    """Clocks of a SIMD in which elements narrower than a register, not contiguous along K, are joined along it."""
    rows = np.where(p.k_runs_m > 0, 0.0, p.tile_m * p.waves_n) + np.where(p.k_runs_n > 0, 0.0, p.tile_n * p.waves_m)
    registers = rows * p.tile_k * p.elem / (4 * facts.subgroup_size)  # of all waves
    return np.where(p.elem < 4, registers * 4 / facts.core.simds, 0.0)
