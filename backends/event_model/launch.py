"""Time a whole launch: execute workgroups on the simulator, then replay their waves on the model of a unit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from math import ceil, prod
from typing import Any, ClassVar

import numpy as np

from convgen.backends.event_model.cache_traffic import (
    Distribution,
    PartialRuns,
    Reads,
    WaveLengths,
    WholeRun,
    traffic_of,
)
from convgen.backends.event_model.shortened_loops import marks_of, shortened
from convgen.backends.event_model.unequal import Amounts, amount, longest, work_of
from convgen.backends.event_model.unit_profiles import unit_profile
from convgen.backends.event_model.waves import Trace, UnitModel, of_workgroup
from convgen.backends.sim.run import Buffers
from convgen.backends.simulation import LaunchRequest, SimReport
from convgen.backends.timing import LATER, LaunchProfile, Machine, Moved, UnitProfile, Work, exposed
from convgen.ir.record import evolve, frozen

_WINDOW = 3  #: loop iterations that suffice to see which lines workgroups share
_MOST_OPS, _LEAST_KEPT = 200_000, 4  #: instructions of equal iterations that are modelled; such iterations at least
_GENERATIONS = 3  #: workgroups, one after the other, of which all but the first show a later round
NEVER = 1 << 30  #: limit of findings, so that none stops a run
_WAITS_FOR_OTHERS = "no-progress"  #: finding: a workgroup waits for one that does not run


@frozen(eq=False, slots=False)
class SimulatorRun:
    """A run of some workgroups on the simulator: what was executed, and what it read."""

    trace: Trace  #: instructions of some workgroups
    ran: int  #: number of workgroups that ran
    reads: Reads
    memory: Buffers
    report: SimReport

    @cached_property
    def waves(self) -> dict[int, list[list[Any]]]:
        """Return the instructions of each wave, by workgroup."""
        return {number: of_workgroup(self.trace.waves, number) for number in sorted(self.trace.wanted)}

    @property
    def longest(self) -> list[list[list[Any]]]:
        """Return the waves of the workgroups with the most work, longest first."""
        waves = self.waves
        return sorted((waves[n] for n in longest(self.amounts)), key=lambda mine: -sum(map(len, mine)))

    @cached_property
    def amounts(self) -> Amounts:
        """Return the work of each workgroup."""
        return {number: amount(waves) for number, waves in self.waves.items()}


@frozen(eq=False, slots=False)
class TimedLaunch(ABC):
    """A launch to profile; a family's class executes it and models its unit."""

    code: bytes
    request: LaunchRequest
    buffers: Callable[[], Buffers]  #: fresh buffers, which a run overwrites
    machine: Machine
    latency: float  #: clocks from a load of global memory to its data
    keep: int  #: most iterations of a run of equal ones that are modelled

    #: Whether workgroups of later rounds are modelled out of step with each other; else all rounds are like the first.
    rounds_drift: ClassVar[bool] = False

    sampled: ClassVar[int] = 8  #: workgroups to execute, spread evenly over the grid
    lanes: ClassVar[int]  #: lanes of a wave
    batch_waves: ClassVar[int]  #: waves that the simulator runs at a time

    @classmethod
    def profiled(
        cls,
        code: bytes,
        launch: LaunchRequest,
        buffers: Callable[[], Buffers],
        machine: Machine,
        latency: float,
        keep: int,
    ) -> LaunchProfile:
        """Return the profile of a launch on a chip; runs of equal loop iterations are cut to `keep` at most.

        `buffers` returns fresh buffers of the launch, which are overwritten. Raises SimulatorError, Unsupported.
        """
        return cls(code, launch, buffers, machine, latency, keep).profile()

    # ------------------------------------------------------------ a family's part

    @abstractmethod
    def execute(
        self, groups: tuple[int, ...] | None, wanted: frozenset[int], *, as_last_arrivals: bool
    ) -> SimulatorRun:
        """Execute some workgroups, or the whole grid (None), and record those that are `wanted`.

        With `as_last_arrivals`, each behaves as the last to arrive, if workgroups count their arrivals. Raises
        SimulatorError, Unsupported.
        """

    @abstractmethod
    def unit(self, latency: float) -> UnitModel:
        """Return the model of a unit."""

    @abstractmethod
    def observe(self, groups: tuple[int, ...], most: int, reads: Reads, buffers: Buffers) -> None:
        """Run workgroups up to a number of instructions and record their reads. Raises SimulatorError, Unsupported."""

    @property
    @abstractmethod
    def entry(self) -> int:
        """Return the address of the kernel."""

    @property
    @abstractmethod
    def body(self) -> set[int]:
        """Return the addresses of the hot loop; empty if no loop is hot."""

    @property
    @abstractmethod
    def resident(self) -> Mapping[str, int]:
        """Return the workgroups that a unit holds, by limiting resource."""

    @property
    @abstractmethod
    def l1_bytes(self) -> int:
        """Return the bytes of L1 of a unit that loads go through; 0 if they go past it."""

    # ------------------------------------------------------------ the profile

    def profile(self) -> LaunchProfile:
        """Return the profile; of equal loop iterations `keep` at most are modelled."""
        ran = self._run(self.sample)
        independent = all(finding.kind != _WAITS_FOR_OTHERS for finding in ran.report.findings)
        if not independent:
            ran = self._run(None)
        streams = ran.longest  # waves of the workgroups that are modelled on a unit
        last_arrivals = self._run(self.sample, as_last_arrivals=True) if ran.trace.takes_tickets else ran
        if last_arrivals is not ran:  # where workgroups take tickets, one on the unit is the last to arrive
            streams = [last_arrivals.longest[0], *streams[1:]]
            ran.trace.learn(last_arrivals.trace)
        lengths = [len(ops) for ops in ran.trace.waves.values()]
        return LaunchProfile(
            kernel=self.request.kernel,
            target=self.machine.target,
            entry=self.entry,
            workgroups=self.workgroups,
            threads=prod(self.request.workgroup),
            resident=self.resident,
            executed=self.sample,
            distinct=len({tuple(map(tuple, waves)) for waves in ran.waves.values()}),
            instructions=sum(lengths) / max(1, len(lengths)),
            work=self._work(ran.amounts, independent),
            flop=ran.trace.flop / ran.ran,
            element=ran.trace.element,
            moved=self._with_reductions(self._moved(ran), ran, last_arrivals),
            added=ran.report.counters.get("atomic_bytes", 0) / ran.ran * self.workgroups,
            full=self.full,
            rounds=self.rounds,
            last=self.last,
            units={count: self._unit(ran, streams, count) for count in sorted({1, self.full, self.last or 1})},
            findings=ran.report.findings,
            seconds=ran.report.seconds,
        )

    @cached_property
    def workgroups(self) -> int:
        return prod(self.request.grid)

    @cached_property
    def waves(self) -> int:
        """Return the waves of a workgroup."""
        return ceil(prod(self.request.workgroup) / self.lanes)

    @cached_property
    def sample(self) -> tuple[int, ...]:
        """Return the workgroups that are executed."""
        return tuple(sorted(set(np.linspace(0, self.workgroups - 1, self.sampled).round().astype(int).tolist())))

    @property
    def full(self) -> int:
        """Return the workgroups on a unit at a time, if there are enough."""
        return max(1, min(*self.resident.values(), ceil(self.workgroups / self.machine.units)))

    @property
    def rounds(self) -> int:
        """Return the rounds of workgroups that fill the chip."""
        return self.workgroups // (self.full * self.machine.units)

    @property
    def last(self) -> int:
        """Return the workgroups on the fullest unit in the last, partial round; 0 if there is none."""
        return ceil(self.workgroups % (self.full * self.machine.units) / self.machine.units)

    def _run(
        self, groups: tuple[int, ...] | None, *, traced: tuple[int, ...] | None = None, as_last_arrivals: bool = False
    ) -> SimulatorRun:
        """Execute some workgroups; `traced` (default: the sample) are recorded."""
        wanted = frozenset(self.sample if traced is None else traced)
        return self.execute(groups, wanted, as_last_arrivals=as_last_arrivals)

    def _work(self, known: Amounts, independent: bool) -> Work:
        """Return the work of the launch; workgroups that are not `independent` of others run with the whole grid."""

        def execute(groups: tuple[int, ...]) -> Amounts:
            return self._run(groups if independent else None, traced=groups).amounts

        return work_of(known, execute, self.workgroups, self.machine.units, self.full)

    def _moved(self, ran: SimulatorRun) -> Moved:
        """Return the traffic of the launch, without reductions by workgroups that arrive last."""
        waves = ran.longest[0]
        whole, marks = max(map(len, waves)), max(marks_of(waves, self.body), key=len)
        lengths = WaveLengths(whole, marks[_WINDOW] if len(marks) > _WINDOW + 1 else whole)
        distribution = Distribution(self.machine, self.workgroups, self.full)
        reads = Reads(self.machine.line_bytes)
        observe = partial(self.observe, reads=reads, buffers=ran.memory)
        partial_runs = PartialRuns(observe, max(1, self.batch_waves // self.waves), self.waves)
        whole_run = WholeRun(ran.reads, ran.ran, ran.memory)
        return traffic_of(partial_runs, reads, distribution, self.l1_bytes, whole_run, lengths)

    def _with_reductions(self, moved: Moved, ran: SimulatorRun, last_arrivals: SimulatorRun) -> Moved:
        """Add the traffic of workgroups that arrive last and reduce the others' partial sums: it misses all caches."""
        share = last_arrivals.trace.share_of_last * self.workgroups / ran.ran
        read = max(0, last_arrivals.reads.count - ran.reads.count) * self.machine.line_bytes * share
        stored = max(0, last_arrivals.reads.stored - ran.reads.stored) * share
        return Moved(
            loaded=moved.loaded + read,
            requested=moved.requested + read,
            asked=moved.asked + read,
            fill=moved.fill + read,
            memory=moved.memory + read,
            stored=moved.stored + stored,
        )

    def _unit(self, ran: SimulatorRun, streams: Sequence[list[list[Any]]], count: int) -> UnitProfile:
        """Model `count` workgroups on a unit; workgroup n executes stream n modulo their number."""
        waves = [streams[n % len(streams)] for n in range(count)]
        loop_of = cache(partial(shortened, waves, self.body))
        models = {later: self.unit(self.latency + later) for later in (0.0, LATER)}
        run = cache(lambda later, keep: models[later].run(loop_of(keep).workgroups))
        size = sum(len(ops) for group in waves for ops in group)
        keep = max(_LEAST_KEPT, min(self.keep, int(_MOST_OPS * loop_of(self.keep).count / max(1, size))))

        def steady(later: float, keep: int) -> float:
            """Return the clocks of an iteration in the steady state; of equal iterations `keep` are modelled."""
            loop, half = loop_of(keep), keep // 2
            if not loop.left_out:
                repeats = loop.looping == 1 and size <= _MOST_OPS
                return loop.steady(models[later], keep) if repeats else loop.clocks(run(later, keep), 0.0)[1]
            if loop_of(half).left_out == loop.left_out:  # both keep one tile
                half, keep = keep, loop.kept + 1
            return loop_of(keep).pace_of(loop_of(half), run(later, keep).end - run(later, half).end)

        paces = steady(0.0, keep), steady(LATER, max(2, keep // 2))
        unit = unit_profile(ran.trace, loop_of(keep), run(0.0, keep), models[0.0], paces)
        drifts = self.rounds_drift and count == self.full > 1 and self.rounds > 1 and _GENERATIONS * size <= _MOST_OPS
        return (
            _in_drift(unit, [_round(models[later], waves, unit.clocks) for later in (0.0, LATER)]) if drifts else unit
        )


def _round(model: UnitModel, waves: Sequence[list[list[Any]]], clocks: float) -> float:
    """Return the clocks of a later round, in which each workgroup begins when another one ends.

    Workgroups begin evenly spread over the `clocks` that a round takes if all begin together.
    """
    begins = [clocks * number / len(waves) for number in range(len(waves))]
    first, last = (model.run([[ops * n for ops in group] for group in waves], begins).end for n in (1, _GENERATIONS))
    return (last - first) / (_GENERATIONS - 1)


def _in_drift(unit: UnitProfile, rounds: Sequence[float]) -> UnitProfile:
    """Return a unit's profile with the clocks of a later round, at normal latency and with loads LATER clocks later."""
    soon, later = rounds
    shorter = soon / unit.clocks
    exposed_by_round = exposed(soon, later)
    return evolve(
        unit,
        clocks=soon,
        iteration=unit.iteration * shorter,
        steady=unit.steady * shorter,
        exposed=exposed_by_round / max(1.0, unit.iterations),
    )
