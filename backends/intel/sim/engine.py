"""The engine of threads: the scoreboard's checks before each instruction, and barriers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convgen.backends.intel.sim.compile import Program
from convgen.backends.intel.sim.environment import Environment
from convgen.backends.intel.sim.gateway import epoch_of, retire
from convgen.backends.intel.sim.late import read_completed
from convgen.backends.intel.sim.scopes import land
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.intel.sim.step import Step
from convgen.backends.sim.engine import Engine
from convgen.backends.sim.findings import LaunchStopped


class ThreadEngine(Engine[ThreadGroup, Step]):
    """Executes one batch of workgroups to their end."""

    def __init__(self, env: Environment, program: Program, limit: int) -> None:
        super().__init__(env, program, limit)
        self.env = env
        self._phase = 0  #: barriers passed

    def _release(self, waiting: list[ThreadGroup]) -> tuple[list[ThreadGroup], list[ThreadGroup]]:
        """Let the workgroups pass whose threads have all signalled; report a deadlock if there are none."""
        released, still = self._pass(waiting)
        if not released:
            self._deadlock(waiting[0])
        return released, still

    def _pass(self, waiting: list[ThreadGroup]) -> tuple[list[ThreadGroup], list[ThreadGroup]]:
        """Return the groups that pass a barrier, as all threads of their workgroups have signalled, and the rest."""
        env = self.env
        passed = env.arrived >= env.waves
        env.arrived[passed] = 0
        env.epoch[passed] += np.uint32(1)
        self._phase += int(passed.any())
        released: list[ThreadGroup] = []
        still: list[ThreadGroup] = []
        for group in waiting:
            free = epoch_of(group.stamp[:, 0]) < env.epoch[group.slot]
            for rows, passes in ((np.flatnonzero(free), True), (np.flatnonzero(~free), False)):
                if not len(rows):
                    continue
                part = group if len(rows) == group.count else group.select(rows)
                if passes:
                    part.blocked = part.signalled = part.held = False
                    part.stamp = env.stamps(part)
                    self._join(released, part)
                else:
                    still.append(part)
        return released, still

    def _release_some(
        self, waiting: list[ThreadGroup], live: Sequence[ThreadGroup]
    ) -> tuple[list[ThreadGroup], list[ThreadGroup]]:
        """Let other threads pass a barrier that the adversary's held threads have signalled."""
        return self._pass(waiting) if self.env.adversary is not None else ([], waiting)

    def _start(self, first: ThreadGroup) -> list[ThreadGroup]:
        adversary = self.env.adversary
        return [first] if adversary is None else adversary.parts(first, fused=self.env.fused)

    def _next(self, runnable: Sequence[ThreadGroup]) -> ThreadGroup:
        adversary = self.env.adversary
        if adversary is None:
            return super()._next(runnable)
        return min(runnable, key=lambda g: (*adversary.rank(g, self._phase), g.pc))

    def _may_merge(self, g: ThreadGroup, other: ThreadGroup) -> bool:
        return g.squad == other.squad

    def _has_polled(self, g: ThreadGroup) -> bool:
        """Return whether a group that has signalled a barrier is held there."""
        adversary = self.env.adversary
        if adversary is None or not adversary.holds(g, self._phase):
            return False
        g.held = True
        return True

    def _deadlock(self, group: ThreadGroup) -> None:
        arrived, step = int(self.env.arrived[group.slot[0]]), self.program.steps[group.pc - 1]
        message = f"waits for ever: {arrived} of {self.env.waves} threads have signalled, and no other thread can"
        self.reporter.add("barrier", message, None if step is None else step.instruction, group)
        raise LaunchStopped

    def _prepare(self, g: ThreadGroup, step: Step) -> None:
        outcome = g.score.after(step)
        if outcome.findings or step.faults:
            self._report(g, step, (*outcome.findings, *step.faults))
        if outcome.retired and g.late:
            read_completed(g, outcome.retired)
        if outcome.retired and (g.fences or g.local):
            retire(g, outcome.retired)
        if outcome.retired and g.underway:
            land(g, outcome.retired)
        g.score = outcome.score
