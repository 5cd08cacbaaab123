"""The engine of waves: checks before each instruction, and barriers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from convgen.backends.amdgpu.sim.compile import Program
from convgen.backends.amdgpu.sim.environment import Environment
from convgen.backends.amdgpu.sim.hazards import overwrite
from convgen.backends.amdgpu.sim.state import WaveGroup
from convgen.backends.amdgpu.sim.step import BY_LANES, Step
from convgen.backends.sim.engine import Engine

_LOADS = ("vmem_load", "atomic")  #: kinds of steps whose results vmcnt counts


class WaveEngine(Engine[WaveGroup, Step]):
    """Executes one batch of workgroups to their end."""

    def __init__(
        self, env: Environment, program: Program, limit: int, reinforce: Callable[[], WaveGroup | None]
    ) -> None:
        super().__init__(env, program, limit)
        self.rules, self.strict, self._more = program.rules, env.strict, reinforce
        self.look: Callable[[WaveGroup, Step], None] | None = None  #: is called before each step

    def _release(self, waiting: list[WaveGroup]) -> tuple[list[WaveGroup], list[WaveGroup]]:
        """Let each workgroup pass the barrier; waves that have ended do not count."""
        return self._release_some(waiting, ())

    def _release_some(
        self, waiting: list[WaveGroup], live: Sequence[WaveGroup]
    ) -> tuple[list[WaveGroup], list[WaveGroup]]:
        """Let those workgroups pass the barrier of which no wave is still on its way."""
        busy = {(id(group.env), int(slot)) for group in live for slot in group.slot}
        parts = [(group, group.env, [(id(group.env), int(slot)) in busy for slot in group.slot]) for group in waiting]
        passing = {(id(env), int(slot)): env for group, env, held in parts for slot in group.slot[~np.array(held)]}
        for (_, slot), env in passing.items():
            env.local.report_stale_guesses(slot, int(env.epoch[slot]))
            env.epoch[slot] += np.uint32(1)
        released: list[WaveGroup] = []
        still: list[WaveGroup] = []
        for group, env, held in parts:
            if all(held):
                still.append(group)
                continue
            if any(held):
                still.append(group.select(np.flatnonzero(held)))
                group = group.select(np.flatnonzero(~np.array(held)))
            group.blocked = False
            group.stamp = env.stamps(group)
            self._join(released, group)
        return released, still

    def _has_polled(self, g: WaveGroup) -> bool:
        """Return whether an atomic operation has just returned, as in loops that wait for other workgroups."""
        polled, g.polled = g.polled, False
        return polled

    def _state(self, groups: Sequence[WaveGroup]) -> object:
        """Return program counters and registers of all waves, and the LDS of their workgroups, as a hashable key."""
        local = {id(g.env): hash(g.env.local.data.tobytes()) for g in groups}
        waves = [(g.pc, g.mode, g.wave_ids().tobytes(), g.s.tobytes(), hash(g.v.tobytes())) for g in groups]
        return tuple(waves), tuple(local.values())

    def _begin_more(self) -> WaveGroup | None:
        return self._more()

    def _does_something(self, g: WaveGroup, step: Step) -> bool:
        return step.kind not in BY_LANES or g.exec_full or bool(g.exec.any())

    def _prepare(self, g: WaveGroup, step: Step) -> None:
        if self.look is not None:
            self.look(g, step)
        if self.strict:
            self._check_rules(g, step)
        if g.matrix_bits & step.writes:
            g.forget_matrices(step.writes)
        g.now += step.wait_states

    def _check_rules(self, g: WaveGroup, step: Step) -> None:
        """Check an instruction against loads in flight and hazards before it executes; record its own hazards."""
        if step.faults:
            self._report(g, step, step.faults)
        if g.inflight:
            if g.inflight & step.reads:
                self._report_inflight(g, step, step.reads, "reads")
            elif g.inflight & step.writes:
                self._report_inflight(g, step, step.writes, "overwrites")
        if g.watched & step.touches:
            self.rules.check(g, step)
        if g.watched & step.overwrites:
            overwrite(g.events, step.overwrites)
        if step.produces:
            self.rules.note(g, step)

    def _report_inflight(self, g: WaveGroup, step: Step, bits: int, verb: str) -> None:
        """Report an access to registers in flight.

        A load that vmcnt alone counts may overwrite the registers of an earlier one: they return in the order of issue
        (CDNA3 ISA 4.4), on which LLVM relies (SIInsertWaitcnts).
        """
        behind = verb == "overwrites" and step.kind in _LOADS and not step.instruction.name.startswith("flat_")
        for pending in (*g.vm, *g.lgkm):
            if pending.writes & bits and not (behind and pending.kind == "vm"):
                message = f"{verb} a register that `{pending.step.instruction.text}` still has in flight"
                self.reporter.add("wait-count", message, step.instruction, g)
                return
