"""The engine runs groups of threads over a program, splits a group at divergent branches, and merges groups again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from convgen.backends.sim.errors import STUMBLES, Unsupported
from convgen.backends.sim.findings import LaunchStopped
from convgen.backends.sim.threads import Located, Stepped, Surroundings, Threads
from convgen.backends.sim.wave_arrays import Array

QUANTUM = 4_000  #: instructions a group may run before all others get their turn
FATAL = frozenset({"register-range"})


class Step(Stepped, Protocol):
    """A compiled instruction as the engine executes it, for a whole group (`step.Ready` is the class behind it).

    `control` is "", "barrier", "end", "wait" (for memory) or "sleep"; with any other text the instruction may jump.
    """

    @property
    def run(self) -> Callable[[Any], None]: ...
    @property
    def control(self) -> str: ...


G = TypeVar("G", bound=Threads)
S = TypeVar("S", bound=Step)
S_co = TypeVar("S_co", bound=Step, covariant=True)


class Program(Protocol[S_co]):
    """A kernel's instructions, made ready when first executed."""

    @property
    def instructions(self) -> Sequence[Any]: ...  # with their `text` and `address`
    @property
    def steps(self) -> Sequence[S_co | None]: ...
    @property
    def executed(self) -> list[int]: ...  # by instruction, counted a thread
    def compile(self, index: int) -> S_co: ...


class Engine(ABC, Generic[G, S]):
    """Executes one batch of workgroups to their end."""

    def __init__(self, env: Surroundings, program: Program[S], limit: int) -> None:
        self.reporter, self.memory = env.reporter, env.memory
        self.program = program
        self.limit = limit  #: instructions a thread may execute
        self.reached = env.reached  #: indices of instructions that had an effect
        self._executing = 0  #: index of the instruction that executes
        self._turn_is_over = False  #: whether the group that stopped last has had its turn
        self._states: set[object] = set()  #: states in which all groups rested, since memory changed last
        self._changes = -1

    @abstractmethod
    def _release(self, waiting: list[G]) -> tuple[list[G], list[G]]:
        """Return the groups that pass a barrier and those that keep waiting, when every live group waits at one."""

    def _release_some(self, waiting: list[G], live: Sequence[G]) -> tuple[list[G], list[G]]:
        """Return the groups that pass a barrier and those that keep waiting, while groups `live` are on their way."""
        return [], waiting

    def _start(self, first: G) -> list[G]:
        """Return the groups that a run starts with."""
        return [first]

    def _next(self, runnable: Sequence[G]) -> G:
        """Return the group at the lowest instruction: running it first lets diverged paths merge again."""
        return min(runnable, key=lambda g: g.pc)

    def _may_merge(self, g: G, other: G) -> bool:
        """Return whether two groups that stand at one instruction may be merged."""
        return True

    def _has_polled(self, g: G) -> bool:
        """Return whether a group has just polled memory, as in a spin loop, so that other groups should run."""
        return False

    def _state(self, groups: Sequence[G]) -> object | None:
        """Return all state beside memory that decides what the groups do next; None if the family cannot tell."""
        return None

    def _begin_more(self) -> G | None:
        """Start workgroups that have not begun, for groups that wait for them; None if all have begun."""
        return None

    def _does_something(self, g: G, step: S) -> bool:
        """Return whether an instruction has an effect in this group: an instruction of lanes needs an active lane."""
        return True

    @abstractmethod
    def _prepare(self, g: G, step: S) -> None:
        """Check the rules and record hazards before a group executes an instruction."""

    def run(self, first: G) -> None:
        """Run until every thread has ended.

        The group at the lowest instruction runs first, so that diverged paths merge again. A group that sleeps or has
        used up its turn rests until all other groups rest or wait. Raises Unsupported at an instruction, or a
        combination of operands, that is not simulated.
        """
        try:
            self._run(first)
        except STUMBLES as error:
            instruction = self.program.instructions[self._executing]
            what = f"`{instruction.text}` at {instruction.address:#x} is not simulated"
            raise Unsupported(f"{what} ({type(error).__name__}: {error})") from error

    def _run(self, first: G) -> None:
        runnable = self._start(first)
        rested: list[G] = []
        waiting: list[G] = []
        while runnable or rested or waiting:
            if not runnable and not rested:
                runnable, waiting = self._release(waiting)
            elif not runnable:
                runnable, waiting = self._release_some(waiting, rested)
                if not runnable and self._stuck(rested):
                    runnable.append(self._begin_more_or_stop(rested[0]))
                for part in rested:
                    self._join(runnable, part)
                rested = []
            group = self._next(runnable)
            runnable.remove(group)
            if group.issued > self.limit:
                what = f"has executed {self.limit} instructions without an end"
                self.reporter.add("runaway", what, self._next_instruction(group), group)
                raise LaunchStopped
            merge_at = frozenset(other.pc for other in runnable if self._may_merge(group, other))
            self._turn_is_over = False
            for part in self._advance(group, merge_at):
                if part.blocked:
                    waiting.append(part)
                elif self._turn_is_over:
                    rested.append(part)
                else:
                    self._join(runnable, part)

    def _stuck(self, groups: Sequence[G]) -> bool:
        """Return whether the resting groups are in a state that they were in before, with memory unchanged since."""
        changes = self.memory.changes
        if changes != self._changes:
            self._changes = changes
            self._states.clear()
            return False
        state = self._state(groups)
        if state is None:
            return False
        known = state in self._states
        self._states.add(state)
        return known

    def _begin_more_or_stop(self, group: G) -> G:
        """Return workgroups that have not begun, for a group that waits for ever otherwise; stop if all have begun."""
        fresh = self._begin_more()
        if fresh is None:
            what = "waits for ever for memory to change: all other workgroups have ended or wait as well"
            self.reporter.add("no-progress", what, self._next_instruction(group), group)
            raise LaunchStopped
        self._states.clear()
        return fresh

    def _next_instruction(self, group: G) -> Located | None:
        """Return the instruction that a group executes next."""
        steps = self.program.steps
        step = steps[group.pc] if 0 <= group.pc < len(steps) else None
        return None if step is None else step.instruction

    @staticmethod
    def _join(groups: list[G], group: G) -> None:
        """Add a group to a list, merged with a group at its instruction that has equal operations outstanding."""
        for index, other in enumerate(groups):
            if other.pc == group.pc and other.signature() == group.signature():
                groups[index] = other.merge(group)
                return
        groups.append(group)

    def _advance(self, g: G, merge_at: frozenset[int]) -> list[G]:
        """Run a group until it blocks, ends, splits, reaches another group or has used up its turn.

        `merge_at` holds the instructions of groups that may merge with it. If it starts at one of these, with other
        operations outstanding, it stops at each wait, too: they read shared memory before this group overwrites it.
        """
        program, prepare = self.program, self._prepare
        shared = g.pc in merge_at
        steps, executed, reached = program.steps, program.executed, self.reached
        quantum = QUANTUM
        while True:
            pc = g.pc
            if pc < 0 or pc >= len(steps):
                self.reporter.add("control", "execution leaves the kernel's code: a jump or a missing end", None, g)
                raise LaunchStopped
            self._executing = pc
            step = steps[pc] or program.compile(pc)
            executed[pc] += g.count
            if pc not in reached and self._does_something(g, step):
                reached.add(pc)
            prepare(g, step)
            g.pc = pc + 1
            step.run(g)
            g.issued += 1
            control = step.control
            if control:
                if control == "end":
                    return []
                if control == "barrier":
                    return [g]
                if control == "wait":
                    if self._has_polled(g):
                        self._turn_is_over = True
                        return [g]
                    if shared:
                        return [g]
                elif control == "sleep":
                    self._turn_is_over = True
                    return [g]
                elif g.targets is not None:
                    return self._split(g, g.targets)
            if g.pc in merge_at:
                return [g]
            quantum -= 1
            if not quantum:
                self._turn_is_over = True
                return [g]

    @staticmethod
    def _split(g: G, targets: Array) -> list[G]:
        parts = []
        for target in np.unique(targets):
            part = g.select(np.flatnonzero(targets == target))
            part.pc = int(target)
            parts.append(part)
        return parts

    def _report(self, g: G, step: S, findings: Iterable[tuple[str, str]]) -> None:
        for kind, message in findings:
            self.reporter.add(kind, message, step.instruction, g)
            if kind in FATAL:
                raise LaunchStopped
