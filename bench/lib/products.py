"""The time of tiled products of matrices from sizes and tiles alone: a closed form, over numbers or arrays of them.

Workgroups go to compute units in rounds. In one iteration of K a unit multiplies, loads operands, reads them from LDS
and joins narrow elements, while each of its workgroups waits for its own loads. The slowest of these sets the pace; the
others add a share where they come near it (`smooth`). The result is stored at the end of a round, without overlap.
`convgen.profile.closed` turns these clocks into a time: by the chip's clock, memory traffic and further launches.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from convgen.backends import target as targets
from convgen.backends.family import Chip
from convgen.ir.facts import TargetFacts
from convgen.ir.record import fields_of, frozen
from convgen.profile.closed import PACE, Estimate, LaunchArrays, Numbers, Terms, WorkgroupClocks, smooth
from convgen.profile.loop_times import LoopsOfClosedForm

OfWork = TypeVar("OfWork", bound=LaunchArrays)

_OTHER_REGISTERS = 48  #: registers; of a subgroup, for addresses, masks and temporaries
_STAGES = 2  #: blocks of K in registers, and slots in LDS
SUM = 4.0  #: bytes of a partial sum of split K


@frozen(eq=False)
class Products(LaunchArrays):
    """Products of M x K and K x N matrices; each field has one element a product."""

    overlap = LoopsOfClosedForm.overlap

    rate: Numbers  #: FLOP of matrix instructions a clock and unit
    m: Numbers
    n: Numbers
    k: Numbers
    batch: Numbers
    launches: Numbers  #: number of launches, one after another, into which the batch is cut
    tile_m: Numbers
    tile_n: Numbers
    tile_k: Numbers
    split: Numbers  #: workgroups that share the K of a tile
    waves: Numbers  #: waves of a workgroup; more than waves_m * waves_n where waves share K
    waves_m: Numbers  #: waves along M of a tile
    waves_n: Numbers  #: waves along N of a tile
    elem: Numbers  #: bytes of an operand's element
    result: Numbers  #: bytes of a result's element
    k_runs_m: Numbers  #: 1 where M's operand is contiguous along K, else 0
    k_runs_n: Numbers  #: 1 where N's operand is contiguous along K, else 0
    k_piece_m: Numbers  #: elements; longest contiguous run along K of M's operand
    lane_m: Numbers  #: bytes of M's operand that a lane loads with one instruction
    lane_n: Numbers  #: bytes of N's operand that a lane loads with one instruction
    lane_out: Numbers  #: bytes of the result that a lane stores with one instruction

    def estimate(self, chip: Chip, terms: Terms, *, timed: bool = True) -> Estimate:
        sums = self.split * self.m * self.n * self.batch * SUM
        meeting = np.where(self.split > 1, terms.meeting + sums / terms.shares, 0.0)
        return self.launch_estimate(chip, terms, _inner(self, chip, terms), meeting, timed=timed)

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


def taken(work: OfWork, which: npt.NDArray[Any]) -> OfWork:
    """Return some launches, chosen by number or by mask."""
    return type(work)(*(getattr(work, f.name)[which] for f in fields_of(type(work))))


def bounds(estimate: Estimate) -> list[str]:
    """Name the largest cause of each launch's time."""
    names = "start", "memory", "written back", "meeting", "others"
    parts = estimate.start, estimate.memory, estimate.written_back, estimate.reduction, estimate.others
    causes = dict(zip(names, parts))
    busy = estimate.matrix > 0.7 * estimate.kernel
    causes["matrix"] = np.where(busy, estimate.kernel, 0.0)
    causes["operands and results"] = np.where(busy, 0.0, estimate.kernel)
    known = list(causes)
    return [known[n] for n in np.array(list(causes.values())).argmax(axis=0)]


def _inner(p: Products, chip: Chip, terms: Terms) -> WorkgroupClocks:
    """Return the clocks of all workgroups, launches one after another, and those of their matrix instructions."""
    facts = targets.get(chip.target).facts
    lanes, simds = facts.subgroup_size, facts.core.simds
    rounds = np.ceil(p.groups / p.launches / chip.units)  # workgroups of a unit in one launch
    together = np.minimum(rounds, _resident(p, facts))
    turns = p.launches * np.ceil(rounds / together)
    rounds = p.launches * rounds  # workgroups of a unit in all launches
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
    return WorkgroupClocks(clocks, p.groups * iterations * matrix, rounds * iterations * matrix)


def _resident(p: Products, facts: TargetFacts) -> Numbers:
    """Workgroups that a unit holds, as registers and shared memory allow."""
    simds, core = facts.core.simds, facts.core
    lanes, block = p.waves * facts.subgroup_size, (p.tile_m + p.tile_n) * p.tile_k * p.elem
    registers = p.tile_m * p.tile_n / lanes + _STAGES * block / (4 * lanes) + _OTHER_REGISTERS
    fit = np.minimum(core.simd_registers / registers * simds / p.waves, facts.shared_bytes / block)
    return np.clip(np.floor(fit), 1, core.simd_subgroups * simds / np.minimum(p.waves, simds))


def _fetched(p: Products, more: float) -> Numbers:
    """Return the operand bytes that a workgroup loads in an iteration; each contiguous run costs `more` bytes extra.

    Rows beyond M and N are not loaded.
    """
    along_k = np.minimum(p.tile_k, p.depth)

    def side(rows: Numbers, run: Numbers) -> Numbers:
        return np.asarray(rows * p.tile_k * p.elem * (1 + more / (run * p.elem)))

    m, n = np.minimum(p.tile_m, p.m), np.minimum(p.tile_n, p.n)
    run_m = np.where(p.k_runs_m > 0, np.minimum(along_k, p.k_piece_m), m)
    run_n = np.where(p.k_runs_n > 0, along_k, n)
    return side(m, run_m) + side(n, run_n)


def _loads(p: Products, lanes: int) -> Numbers:
    """Return the load instructions of a workgroup in an iteration, by subgroups of `lanes` lanes."""
    loaders = np.minimum(p.tile_m, p.m) / p.lane_m + np.minimum(p.tile_n, p.n) / p.lane_n
    return np.asarray(loaders * p.tile_k * p.elem / lanes)


def _shared_bytes(p: Products) -> Numbers:
    """Return the bytes that a workgroup writes to and reads from LDS in an iteration: waves read their own factors."""
    rows = p.tile_m * (1 + p.waves_n) + p.tile_n * (1 + p.waves_m)
    return np.asarray(rows * p.tile_k * p.elem)


def _arranged(p: Products, facts: TargetFacts) -> Numbers:
    """Return the clocks of a SIMD to join elements narrower than a register along K where memory is not."""
    rows = np.where(p.k_runs_m > 0, 0.0, p.tile_m * p.waves_n) + np.where(p.k_runs_n > 0, 0.0, p.tile_n * p.waves_m)
    registers = rows * p.tile_k * p.elem / (4 * facts.subgroup_size)  # of all waves
    return np.where(p.elem < 4, registers * 4 / facts.core.simds, 0.0)
