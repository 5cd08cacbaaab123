"""The engine of waves: what strictness looks at before each instruction, and barriers."""

from __future__ import annotations

import numpy as np

from convgen.backends.amdgpu.sim.compile import Program
from convgen.backends.amdgpu.sim.environment import Environment
from convgen.backends.amdgpu.sim.hazards import Event, overwritten
from convgen.backends.amdgpu.sim.state import WaveGroup
from convgen.backends.amdgpu.sim.step import Step
from convgen.backends.sim.engine import Engine


class WaveEngine(Engine[WaveGroup, Step]):
    """Executes one batch of workgroups to their end."""

    def __init__(self, env: Environment, program: Program, limit: int) -> None:
        super().__init__(env, program, limit)
        self.env, self.rules, self.strict = env, env.rules, env.strict

    def _release(self, waiting: list[WaveGroup]) -> tuple[list[WaveGroup], list[WaveGroup]]:
        """Each workgroup passes the barrier; waves that ended do not count."""
        slots = np.unique(np.concatenate([group.slot for group in waiting]))
        self.env.epoch[slots] += np.uint32(1)
        released: list[WaveGroup] = []
        for group in waiting:
            group.blocked = False
            group.stamp = self.env.stamps(group)
            self._join(released, group)
        return released, []

    def _prepare(self, g: WaveGroup, step: Step) -> None:
        if self.strict:
            self._look(g, step)
        if g.matrix_bits & step.writes:
            g.forget_matrices(step.writes)
        g.now += step.wait_states

    def _look(self, g: WaveGroup, step: Step) -> None:
        """What strictness checks before an instruction executes; records what it leaves behind."""
        if step.faults:
            self._report(g, step, step.faults)
        if g.inflight:
            if g.inflight & step.reads:
                self._report_inflight(g, step, step.reads, "reads")
            elif g.inflight & step.writes:
                self._report_inflight(g, step, step.writes, "overwrites")
        if g.events and step.consumes:
            self.rules.check(g, step)
        if g.events and step.overwrites:
            g.events = overwritten(g.events, step.overwrites)
        for item in step.produces:
            g.events.append(Event(item.kind, item.mask, g.now, item.passes, step))

    def _report_inflight(self, g: WaveGroup, step: Step, bits: int, verb: str) -> None:
        for pending in (*g.vm, *g.lgkm):
            if pending.writes & bits:
                message = f"{verb} a register that `{pending.step.instruction.text}` still has in flight"
                self.reporter.add("wait-count", message, step.instruction, g)
                return
