"""The engine: runs groups of waves over a program, splits them where control flow parts, merges them where it meets."""

from __future__ import annotations

import numpy as np

from convgen.backends.amdgpu.sim.compile import Program
from convgen.backends.amdgpu.sim.environment import Environment
from convgen.backends.amdgpu.sim.hazards import Event
from convgen.backends.amdgpu.sim.state import WaveGroup
from convgen.backends.amdgpu.sim.step import Step
from convgen.backends.sim.findings import LaunchStopped

QUANTUM = 50_000  #: instructions a group may run before others at other places get their turn
FATAL = frozenset({"register-range"})


class Engine:
    """Executes one batch of workgroups to their end."""

    def __init__(self, env: Environment, program: Program, limit: int) -> None:
        self.env = env
        self.program = program
        self.limit = limit  #: instructions a wave may execute
        self.rules = env.rules

    def run(self, first: WaveGroup) -> None:
        """Run until every wave has ended. Groups at the lowest instruction go first, so that paths meet again."""
        runnable = [first]
        waiting: list[WaveGroup] = []
        while runnable or waiting:
            if not runnable:
                runnable, waiting = self._release(waiting), []
            group = min(runnable, key=lambda g: g.pc)
            runnable.remove(group)
            meet = frozenset(other.pc for other in runnable)
            for part in self._advance(group, meet):
                if part.blocked:
                    waiting.append(part)
                else:
                    self._join(runnable, part)

    def _release(self, waiting: list[WaveGroup]) -> list[WaveGroup]:
        """Everything that lives waits at a barrier: each workgroup passes it; waves that ended do not count."""
        slots = np.unique(np.concatenate([group.slot for group in waiting]))
        self.env.epoch[slots] += np.uint32(1)
        released: list[WaveGroup] = []
        for group in waiting:
            group.blocked = False
            group.stamp = self.env.stamps(group)
            self._join(released, group)
        return released

    @staticmethod
    def _join(groups: list[WaveGroup], group: WaveGroup) -> None:
        """Add a group, merged with one that stands at the same place with the same operations outstanding."""
        for index, other in enumerate(groups):
            if other.pc == group.pc and other.signature() == group.signature():
                groups[index] = other.merge(group)
                return
        groups.append(group)

    def _advance(self, g: WaveGroup, meet: frozenset[int]) -> list[WaveGroup]:
        """Run a group until it blocks, ends, splits, meets another or has used up its turn."""
        program, env, strict = self.program, self.env, self.env.strict
        steps, executed = program.steps, program.executed
        quantum = QUANTUM
        while True:
            pc = g.pc
            if pc < 0 or pc >= len(steps):
                env.reporter.add("control", "execution leaves the code", None, g)
                raise LaunchStopped
            step = steps[pc] or program.compile(pc)
            executed[pc] += g.count
            if strict:
                self._look(g, step)
            if g.matrix_bits & step.writes:
                g.forget_matrices(step.writes)
            g.now += step.wait_states
            g.pc = pc + 1
            step.run(g)
            g.issued += 1
            control = step.control
            if control:
                if control == "end":
                    return []
                if control == "barrier":
                    return [g]
                if g.targets is not None:
                    return self._split(g)
            if g.pc in meet:
                return [g]
            quantum -= 1
            if not quantum:
                if g.issued > self.limit:
                    env.reporter.add("runaway", f"more than {self.limit} instructions", step.instruction, g)
                    raise LaunchStopped
                if meet:
                    return [g]
                quantum = QUANTUM

    def _look(self, g: WaveGroup, step: Step) -> None:
        """What strictness checks before an instruction executes; records what it leaves behind."""
        if step.faults:
            for kind, message in step.faults:
                self.env.reporter.add(kind, message, step.instruction, g)
                if kind in FATAL:
                    raise LaunchStopped
        if g.inflight:
            if g.inflight & step.reads:
                self._report_inflight(g, step, step.reads, "reads")
            elif g.inflight & step.writes:
                self._report_inflight(g, step, step.writes, "overwrites")
        if g.events and step.consumes:
            self.rules.check(g, step)
        for item in step.produces:
            g.events.append(Event(item.kind, item.mask, g.now, item.passes, step))

    def _report_inflight(self, g: WaveGroup, step: Step, bits: int, verb: str) -> None:
        for pending in (*g.vm, *g.lgkm):
            if pending.writes & bits:
                self.env.reporter.add(
                    "wait-count",
                    f"{verb} a register that `{pending.step.instruction.text}` still has in flight",
                    step.instruction,
                    g,
                )
                return

    @staticmethod
    def _split(g: WaveGroup) -> list[WaveGroup]:
        targets = g.targets
        assert targets is not None
        parts = []
        for target in np.unique(targets):
            part = g.select(np.flatnonzero(targets == target))
            part.pc = int(target)
            part.targets = None
            parts.append(part)
        return parts
