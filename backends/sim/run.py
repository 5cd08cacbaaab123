"""One call of a simulator: launches over buffers, batch by batch."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from convgen.backends.sim.device_memory import Memory
from convgen.backends.sim.errors import SimulatorError
from convgen.backends.sim.findings import LaunchStopped, Reporter
from convgen.backends.sim.wave_arrays import Array
from convgen.backends.simulation import Coverage, LaunchRequest, Pages, Place, SimReport, Source, joined

Buffers = Mapping[str, npt.NDArray[np.uint8] | Pages]
Progress = Callable[[int, int], None]  #: called with the workgroups done and all workgroups
#: Called with each access to global memory: "load" or "store", buffer, workgroups, byte offsets, bytes per lane.
Observer = Callable[[str, str, npt.NDArray[np.int64], npt.NDArray[np.int64], int], None]
MAX_INSTRUCTIONS = 20_000_000  #: a thread that executes more has run away


class Counted(Protocol):
    """A program that counts executions by instruction; its lists may grow by copies of the text."""

    @property
    def instructions(self) -> Sequence[Any]: ...  # with their `text`, `address` and `size`
    @property
    def places(self) -> Sequence[Any]: ...  # the instructions that control flow reaches
    @property
    def steps(self) -> Sequence[Any]: ...  # with their `kind`; None where nothing ever executed
    @property
    def executed(self) -> list[int]: ...


class Run(ABC):
    """The launches of one call, one after the other, on buffers that are changed in place."""

    sources: ClassVar[Mapping[str, Source]] = {}  #: document of the rule of each kind of finding

    def __init__(
        self, buffers: Buffers, uninitialised: Collection[str], max_findings: int, wave_order: str, limit: int
    ) -> None:
        """Prepare memory (`uninitialised` names buffers) and findings; a thread may execute `limit` instructions."""
        if wave_order not in ("forward", "reverse"):
            raise SimulatorError(f"given wave_order {wave_order!r}, wanted 'forward' or 'reverse'")
        self._started = time.perf_counter()
        self.memory, self.reporter = Memory(buffers, uninitialised), Reporter(max_findings, self.sources)
        self.backwards, self.limit = wave_order == "reverse", limit
        self.kinds: Counter[str] = Counter()  #: executed instructions by kind
        self.counters: Counter[str] = Counter()  #: events that a family counts, by name
        self._done = self._total = 0
        self._order: Sequence[int] = ()  #: workgroups still to run
        self._size = 1  #: workgroups of a batch
        self.reached: set[int] = set()  #: indices of instructions that had an effect in the launch that runs
        self._coverage: list[Coverage] = []
        self.observe: Observer | None = None
        self._progress: Progress | None = None

    @abstractmethod
    def _launch(self, launch: LaunchRequest) -> None:
        """Run one launch to its end."""

    def report(self, launches: Sequence[LaunchRequest], kinds: Collection[str], progress: Progress | None) -> SimReport:
        """Run all launches and return the report, which counts instructions by `kinds`."""
        self._total, self._progress = sum(len(_groups_of(launch)) for launch in launches), progress
        with np.errstate(all="ignore"):
            for launch in launches:
                try:
                    self._launch(launch)
                    self.reporter.report_postponed()
                except LaunchStopped:
                    break
        self.memory.finish()
        instructions = {kind: self.kinds[kind] for kind in kinds if self.kinds[kind]}
        seconds = time.perf_counter() - self._started
        covered = joined(self._coverage)
        return SimReport(tuple(self.reporter.findings), instructions, dict(self.counters), seconds, covered)

    def _next(self) -> Array | None:
        """Return the workgroups of the next batch and count them as done; None if there are no more."""
        groups, self._order = self._order[: self._size], self._order[self._size :]
        self._done += len(groups)
        return np.array(groups, np.int64) if groups else None

    def _batches(self, launch: LaunchRequest, size: int, program: Counted, execute: Callable[[Array], None]) -> None:
        """Execute the workgroups of a launch in batches of `size`; count the program's instructions."""
        order = _groups_of(launch)
        if self.backwards:
            order = order[::-1]
        before = list(program.executed)
        self.reached.clear()
        try:
            self._order, self._size = order, size
            while (groups := self._next()) is not None:
                execute(groups)
                if self._progress is not None:
                    self._progress(self._done, self._total)
        finally:
            before += [0] * (len(program.executed) - len(before))
            for step, count, old in zip(program.steps, program.executed, before, strict=True):
                if step is not None:
                    self.kinds[step.kind] += count - old
            self._coverage.append(self._covered(launch.kernel, program))

    def _covered(self, kernel: str, program: Counted) -> Coverage:
        """Return the instructions of a kernel that the launch did not execute; copies of the text count as the text.

        An instruction that only computed jumps reach counts as part of the kernel once it is executed.
        """
        text, base = program.instructions, self.reporter.base
        # each copy of the text ends with one more step, which reports that control leaves it
        reached = {text[at].address for at in (i % (len(text) + 1) for i in self.reached) if at < len(text)}
        places = {i.address for i in program.places}
        missed = (i for i in program.places if i.address not in reached)
        shown = (Place(i.address - base, i.address - base + i.size, i.text) for i in missed)
        return Coverage(kernel, len(places | reached), tuple(shown))


def _groups_of(launch: LaunchRequest) -> Sequence[int]:
    """Return the linear ids of the workgroups to run. Raises SimulatorError for one outside the grid."""
    count = launch.grid[0] * launch.grid[1] * launch.grid[2]
    if launch.groups is None:
        return range(count)
    bad = [group for group in launch.groups if not 0 <= group < count]
    if bad:
        raise SimulatorError(f"given workgroup {bad[0]} of a grid of {count}, wanted one below {count}")
    return launch.groups
