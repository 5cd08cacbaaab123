"""Clusters of one workgroup: mapa, getctarank, barrier.cluster; and elect.sync (PTX ISA, Cluster; barrier.cluster).

The shared memory of the cluster is that of the workgroup, at its addresses. barrier.cluster counts all threads that
have not ended, once a phase each; a wait needs an arrival before it. griddepcontrol has no effect: launches run one
after the other, so the grids that a launch depends on are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.nvidia.sim.control import check_aligned
from convgen.backends.nvidia.sim.fences import order_lanes
from convgen.backends.nvidia.sim.lanes import members
from convgen.backends.nvidia.sim.operands import numbers_of, report_undefined, source, target
from convgen.backends.nvidia.sim.ptx_text import Instruction, Pair, Sink
from convgen.backends.nvidia.sim.shared_memory import Shared
from convgen.backends.nvidia.sim.state import CLUSTER, LANES, WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step, unsupported, wants_target
from convgen.backends.sim.wave_arrays import Array, Bools

KIND = "barrier"


class ClusterBarriers:
    """The barrier of each workgroup's cluster."""

    def __init__(self, slots: int, waves: int) -> None:
        self.waves = waves
        self.phase: Array = np.zeros(slots, np.int64)
        #: Phase in which each thread of the batch has arrived and not waited yet; -1: none.
        self.arrived: Array = np.full((slots * waves, LANES), -1, np.int64)
        self._views: dict[int, Array] = {}  #: clocks that arrivals of the present phase pass on, by slot
        self._ended: dict[int, Array] = {}  #: clocks that the last phase that ended has passed on, by slot

    def arrive(self, g: WarpGroup, step: Step, *, releases: bool) -> None:
        """Count the lanes that execute barrier.cluster.arrive."""
        again = g.active & (self.arrived[g.thread] >= 0)
        if again.any():
            finding = "arrives at the cluster's barrier again, with no wait between"
            g.env.reporter.at_first(KIND, finding, step.instruction, g, again)
        phases = np.broadcast_to(self.phase[g.slot][:, None], g.shape)
        self.arrived[g.thread] = np.where(g.active, phases, self.arrived[g.thread])
        for row in np.flatnonzero(g.active.any(axis=1)).tolist():
            slot, warp = int(g.slot[row]), int(g.wave[row])
            view = g.env.local.arrive(slot, warp) if releases else np.zeros(g.env.local.agents.end, np.int64)
            self._views[slot] = np.maximum(self._views.get(slot, view), view)
        g.env.memory.changes += 1

    def update(self, g: WarpGroup) -> None:
        """End the phases in which all threads have arrived that have not ended."""
        for slot in np.unique(g.slot).tolist():
            threads = slice(slot * self.waves, (slot + 1) * self.waves)
            alive = g.env.alive[threads]
            if slot in self._views and (self.arrived[threads][alive] == self.phase[slot]).all():
                self._ended[slot] = self._views.pop(slot)
                self.phase[slot] += 1
                g.env.epoch[slot] += np.uint32(1)

    def ended(self, g: WarpGroup) -> Bools:
        """Return by row whether the phase has ended in which a warp's lanes have arrived."""
        self.update(g)
        return np.asarray((self.arrived[g.thread] < self.phase[g.slot][:, None]).all(axis=1))

    def leave(self, g: WarpGroup, rows: Bools, shared: Shared) -> None:
        """End the wait of some rows, which acquires what the phase's arrivals have passed on."""
        lanes = g.active & rows[:, None]
        self.arrived[g.thread] = np.where(lanes, -1, self.arrived[g.thread])
        for row in np.flatnonzero(rows).tolist():
            slot, warp = int(g.slot[row]), int(g.wave[row])
            if slot in self._ended:
                np.maximum(shared.seen[slot, warp], self._ended[slot], out=shared.seen[slot, warp])


def compile_cluster(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of an instruction of clusters, or of elect.sync; None for other instructions."""
    makers: Mapping[str, Callable[[Instruction, Context], Step]] = {
        "mapa": _map,
        "getctarank": _rank,
        "elect": _elect,
        "griddepcontrol": lambda instruction, _: Step(instruction, "other", lambda g: None),
    }
    maker = makers.get(instruction.name)
    if instruction.name == "barrier" and instruction.has("cluster"):
        maker = _arrive if instruction.has("arrive") else _wait
    if maker is None:
        return None
    wants_target(instruction, context, "sm_90")
    return maker(instruction, context)


def _map(instruction: Instruction, context: Context) -> Step:
    """mapa: the address in another workgroup of the cluster; the only rank is 0."""
    kind = instruction.types[-1]
    into, address, rank = instruction.operands
    write = target(context, instruction, into, kind)
    read, ranks = source(context, instruction, address, kind), source(context, instruction, rank, "u32")
    numbers = numbers_of(rank)
    address_numbers = numbers_of(address)
    step = Step(instruction, "alu", lambda g: None)

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, numbers, "the rank of a workgroup")
        beyond = g.active & (np.broadcast_to(ranks(g), g.shape) != 0)
        if beyond.any():
            finding = "a rank other than 0 in a cluster of one workgroup"
            g.env.reporter.at_first("operand", finding, step.instruction, g, beyond)
        write(g, read(g), g.undefined(address_numbers))

    return step.running(run)


def _rank(instruction: Instruction, context: Context) -> Step:
    write = target(context, instruction, instruction.operands[0], "u32")
    return Step(instruction, "alu", lambda g: write(g, np.zeros(g.shape, np.uint32), None))


def _elect(instruction: Instruction, context: Context) -> Step:
    """elect.sync: the number of the lowest named lane, and a predicate that is true in that lane."""
    first, mask_operand = instruction.operands
    into, flag = (first.first, first.second) if isinstance(first, Pair) else (first, Sink())
    write, write_flag = target(context, instruction, into, "b32"), target(context, instruction, flag, "pred")
    mask, numbers = source(context, instruction, mask_operand, "b32"), numbers_of(mask_operand)
    step = Step(instruction, "alu", lambda g: None)

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, numbers, "the member mask")
        leader = members(g, step, mask(g)).argmax(axis=2)
        write(g, leader.astype(np.uint32), None)
        write_flag(g, leader == np.arange(LANES), None)

    return step.running(run)


def _arrive(instruction: Instruction, context: Context) -> Step:
    if instruction.has("wait"):
        raise unsupported(instruction)
    step = Step(instruction, "barrier", lambda g: None)
    aligned, releases = instruction.has("aligned"), not instruction.has("relaxed")

    def run(g: WarpGroup) -> None:
        if aligned:
            check_aligned(g, step, g.active)
        order_lanes(g, g.active, waits=False)
        g.env.cluster_barriers.arrive(g, step, releases=releases)

    return step.running(run)


def _wait(instruction: Instruction, context: Context) -> Step:
    """Return the step of barrier.cluster.wait."""
    step = Step(instruction, "barrier", lambda g: None, control="branch")
    aligned = instruction.has("aligned")

    def run(g: WarpGroup) -> None:
        g.targets = None
        if aligned:
            check_aligned(g, step, g.active)
        barriers = g.env.cluster_barriers
        missing = g.active & (barriers.arrived[g.thread] < 0)
        if missing.any():
            finding = "waits at the cluster's barrier without an arrival"
            g.env.reporter.at_first(KIND, finding, step.instruction, g, missing)
        ended = barriers.ended(g)
        barriers.leave(g, ended, g.env.local)
        if ended.all():
            order_lanes(g, g.active)
            return
        g.await_rows(ended, CLUSTER, 0, resumes=True)

    return step.running(run)
