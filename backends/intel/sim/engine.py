"""The engine: runs groups of threads over a program, splits them where control flow parts, merges where it meets."""

from __future__ import annotations

import numpy as np

from convgen.backends.intel.sim.compile import Program
from convgen.backends.intel.sim.environment import Environment
from convgen.backends.intel.sim.gateway import retire
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.sim.findings import LaunchStopped

QUANTUM = 50_000  #: instructions a group may run before others at other places get their turn
FATAL = frozenset({"register-range"})


class Engine:
    """Executes one batch of workgroups to their end."""

    def __init__(self, env: Environment, program: Program, limit: int) -> None:
        self.env = env
        self.program = program
        self.limit = limit  #: instructions a thread may execute

    def run(self, first: ThreadGroup) -> None:
        """Run until every thread has ended. Groups at the lowest instruction go first, so that paths meet again."""
        runnable = [first]
        waiting: list[ThreadGroup] = []
        while runnable or waiting:
            if not runnable:
                runnable, waiting = self._release(waiting)
            group = min(runnable, key=lambda g: g.pc)
            runnable.remove(group)
            meet = frozenset(other.pc for other in runnable)
            for part in self._advance(group, meet):
                if part.blocked:
                    waiting.append(part)
                else:
                    self._join(runnable, part)

    def _release(self, waiting: list[ThreadGroup]) -> tuple[list[ThreadGroup], list[ThreadGroup]]:
        """Nothing else runs: let through the workgroups all of whose threads have signalled."""
        env = self.env
        passed = env.arrived >= env.waves
        env.arrived[passed] = 0
        env.epoch[passed] += np.uint32(1)
        released: list[ThreadGroup] = []
        still: list[ThreadGroup] = []
        for group in waiting:
            free = passed[group.slot]
            for rows, some in ((np.flatnonzero(free), True), (np.flatnonzero(~free), False)):
                if not len(rows):
                    continue
                part = group if len(rows) == group.count else group.select(rows)
                if some:
                    part.blocked = part.signalled = False
                    part.stamp = env.stamps(part)
                    self._join(released, part)
                else:
                    still.append(part)
        if not released:
            group = waiting[0]
            arrived = int(env.arrived[group.slot[0]])
            step = self.program.steps[group.pc - 1]
            env.reporter.add(
                "barrier",
                f"waits for ever: {arrived} of {env.waves} threads have signalled and no other can",
                None if step is None else step.instruction,
                group,
            )
            raise LaunchStopped
        return released, still

    @staticmethod
    def _join(groups: list[ThreadGroup], group: ThreadGroup) -> None:
        """Add a group, merged with one that stands at the same place."""
        for index, other in enumerate(groups):
            if other.pc == group.pc and other.signature() == group.signature():
                groups[index] = other.merge(group)
                return
        groups.append(group)

    def _advance(self, g: ThreadGroup, meet: frozenset[int]) -> list[ThreadGroup]:
        """Run a group until it blocks, ends, splits, meets another or has used up its turn."""
        program, env = self.program, self.env
        steps, executed = program.steps, program.executed
        quantum = QUANTUM
        while True:
            pc = g.pc
            if pc < 0 or pc >= len(steps):
                env.reporter.add("control", "execution leaves the code", None, g)
                raise LaunchStopped
            step = steps[pc] or program.compile(pc)
            executed[pc] += g.count
            outcome = g.score.after(step)
            if outcome.findings or step.faults:
                for kind, message in (*outcome.findings, *step.faults):
                    env.reporter.add(kind, message, step.instruction, g)
                    if kind in FATAL:
                        raise LaunchStopped
            if outcome.retired and (g.fences or g.local):
                retire(g, outcome.retired)
            g.score = outcome.score
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

    @staticmethod
    def _split(g: ThreadGroup) -> list[ThreadGroup]:
        targets = g.targets
        assert targets is not None
        parts = []
        for target in np.unique(targets):
            part = g.select(np.flatnonzero(targets == target))
            part.pc = int(target)
            parts.append(part)
        return parts
