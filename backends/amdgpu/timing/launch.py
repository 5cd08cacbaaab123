"""Time a whole launch: execute workgroups on the simulator, then replay their waves on the model of a CU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from math import ceil, prod

import numpy as np

from convgen.backends.amdgpu.analyze import groups_held, hot_code
from convgen.backends.amdgpu.costs import element
from convgen.backends.amdgpu.foreign import architecture
from convgen.backends.amdgpu.sim import CodeObject
from convgen.backends.amdgpu.sim.compile import Program
from convgen.backends.amdgpu.sim.simulate import simulate
from convgen.backends.amdgpu.tables import WAVE
from convgen.backends.amdgpu.timing.executed import Trace
from convgen.backends.amdgpu.timing.moved import Lengths, Reads, Share, moved
from convgen.backends.amdgpu.timing.ops import Op, Port
from convgen.backends.amdgpu.timing.shortened_loops import marks_of, shortened
from convgen.backends.amdgpu.timing.shown import unit_profile
from convgen.backends.amdgpu.timing.unequal import Amounts, amount, longest, work_of
from convgen.backends.amdgpu.timing.unit import Latencies, Unit
from convgen.backends.sim.run import Buffers
from convgen.backends.simulation import LaunchRequest, Scrutiny, SimReport
from convgen.backends.timing import LATER, LaunchProfile, Machine, Moved, UnitProfile, Work
from convgen.ir.record import evolve, frozen

__all__ = ["architecture", "profile_launch"]

_EXECUTED = 8  #: workgroups to execute, spread evenly over the grid
_WINDOW = 3  #: loop iterations that suffice to see which lines workgroups share
_NEVER = 1 << 30  #: limit of findings, so that none stops a run
_WAITS_FOR_OTHERS = "no-progress"  #: finding: a workgroup waits for one that does not run


def profile_launch(
    code: bytes, launch: LaunchRequest, buffers: Callable[[], Buffers], machine: Machine, latency: float, keep: int
) -> LaunchProfile:
    """Return the profile of a launch on a chip; runs of equal loop iterations are cut to `keep` at most.

    `buffers` returns fresh buffers of the launch, which are overwritten. Raises SimulatorError, Unsupported.
    """
    return _Launch(code, launch, buffers, machine, latency, keep).profile()


@frozen(eq=False)
class _Executed:
    """The result of a run on the simulator."""

    trace: Trace  #: instructions of some workgroups
    ran: int  #: number of workgroups that ran
    reads: Reads
    memory: Buffers
    report: SimReport

    @property
    def waves(self) -> dict[int, list[list[Op]]]:
        """Return the instructions of each wave, by workgroup."""
        return {number: self.trace.of(number) for number in sorted(self.trace.wanted)}

    @property
    def longest(self) -> list[list[list[Op]]]:
        """Return the waves of the workgroups with the most work, longest first."""
        waves = self.waves
        return sorted((waves[n] for n in longest(self.amounts)), key=lambda mine: -sum(map(len, mine)))

    @property
    def amounts(self) -> Amounts:
        """Return the work of each workgroup."""
        return {number: amount(waves) for number, waves in self.waves.items()}

    @property
    def element(self) -> str:
        """Return the input type of most matrix instructions."""
        times = Counter(op.at for ops in self.trace.waves.values() for op in ops if op.port is Port.MATRIX)
        most = max(times, key=lambda at: times[at], default=None)
        return "" if most is None else element(self.trace.instructions[most], self.trace.context.arch.name)


@frozen(eq=False, slots=False)
class _Launch:
    code: bytes
    request: LaunchRequest
    buffers: Callable[[], Buffers]
    machine: Machine
    latency: float
    keep: int  #: iterations

    def profile(self) -> LaunchProfile:
        ran = self._run(self.sample)
        independent = all(finding.kind != _WAITS_FOR_OTHERS for finding in ran.report.findings)
        if not independent:
            ran = self._run(None)
        streams = ran.longest
        last_arrivals = self._run(self.sample, last=True) if ran.trace.tickets else ran
        if last_arrivals is not ran:  # where workgroups take tickets, one on the CU is the last to arrive
            streams = [last_arrivals.longest[0], *streams[1:]]
            ran.trace.instructions.update(last_arrivals.trace.instructions)
        lengths = [len(ops) for ops in ran.trace.waves.values()]
        return LaunchProfile(
            kernel=self.request.kernel,
            target=self.machine.target,
            entry=self.program.kernel.descriptor.entry,
            workgroups=self.workgroups,
            threads=prod(self.request.workgroup),
            resident=self.resident,
            executed=self.sample,
            distinct=len({tuple(map(tuple, waves)) for waves in ran.waves.values()}),
            instructions=sum(lengths) / max(1, len(lengths)),
            work=self._work(ran.amounts, independent),
            flop=ran.trace.flop / ran.ran,
            element=ran.element,
            moved=self._with_reductions(self._moved(ran), ran, last_arrivals),
            added=ran.report.counters.get("atomic_bytes", 0) / ran.ran * self.workgroups,
            full=self.full,
            rounds=self.workgroups // (self.full * self.machine.units),
            last=self.last,
            units={count: self._unit(ran, streams, count) for count in sorted({1, self.full, self.last or 1})},
            findings=ran.report.findings,
            seconds=ran.report.seconds,
        )

    @cached_property
    def workgroups(self) -> int:
        return prod(self.request.grid)

    @cached_property
    def sample(self) -> tuple[int, ...]:
        """Return the workgroups that are executed."""
        return tuple(sorted(set(np.linspace(0, self.workgroups - 1, _EXECUTED).round().astype(int).tolist())))

    @cached_property
    def program(self) -> Program:
        loaded = CodeObject.load(self.code)
        return Program(loaded.kernel(self.request.kernel), loaded.arch)

    @cached_property
    def body(self) -> set[int]:
        """Return the addresses of the hot loop; empty if no loop is hot."""
        _, hot, is_loop = hot_code(self.program.kernel, self.machine.target)
        return {i.address for i in hot if is_loop}

    @cached_property
    def resident(self) -> dict[str, int]:
        """Return the workgroups that a CU holds, by limiting resource."""
        waves = ceil(prod(self.request.workgroup) / WAVE)
        shared = max(self.program.kernel.descriptor.group_segment, self.request.shared_bytes)
        return groups_held(self.program.kernel, self.machine.target, waves, shared)

    @property
    def full(self) -> int:
        """Return the workgroups on a CU at a time, if there are enough."""
        return max(1, min(*self.resident.values(), ceil(self.workgroups / self.machine.units)))

    @property
    def last(self) -> int:
        """Return the workgroups on the fullest CU in the last, partial round; 0 if there is none."""
        return ceil(self.workgroups % (self.full * self.machine.units) / self.machine.units)

    def _run(
        self, groups: tuple[int, ...] | None, *, traced: tuple[int, ...] | None = None, last: bool = False
    ) -> _Executed:
        """Execute some workgroups, or the whole grid (None) if they wait for others.

        `traced` (default: the sample) are recorded; with `last`, they behave as the last to arrive, if workgroups count
        their arrivals.
        """
        wanted = frozenset(self.sample if traced is None else traced)
        trace, reads = Trace(self.program.context, wanted, last), Reads(self.machine.line_bytes)
        memory, request = self.buffers(), evolve(self.request, groups=groups)
        scrutiny = Scrutiny(watch=trace)
        report = simulate(self.code, [request], memory, observe=reads, scrutiny=scrutiny, max_findings=_NEVER)
        return _Executed(trace, self.workgroups if groups is None else len(groups), reads, memory, report)

    def _work(self, known: Amounts, independent: bool) -> Work:
        """Return the work of the launch; workgroups that are not `independent` of others run with the whole grid."""

        def execute(groups: tuple[int, ...]) -> Amounts:
            return self._run(groups if independent else None, traced=groups).amounts

        return work_of(known, execute, self.workgroups, self.machine.units, self.full)

    def _moved(self, ran: _Executed) -> Moved:
        longest = max(ran.trace.waves.values(), key=len, default=[])
        marks = marks_of([longest], self.body)[0]
        lengths = Lengths(len(longest), marks[_WINDOW] if len(marks) > _WINDOW + 1 else len(longest))
        share = Share(self.machine, self.workgroups, self.full)
        return moved(self.code, self.request, ran.memory, share, ran.reads, ran.ran, lengths)

    def _with_reductions(self, moved: Moved, ran: _Executed, last_arrivals: _Executed) -> Moved:
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

    def _unit(self, ran: _Executed, streams: Sequence[list[list[Op]]], count: int) -> UnitProfile:
        """Model `count` workgroups on a CU; workgroup n executes stream n modulo their number."""
        waves = [streams[n % len(streams)] for n in range(count)]
        loop_of = cache(partial(shortened, waves, self.body))
        run = cache(lambda unit, keep: unit.run(loop_of(keep).workgroups))

        def steady(unit: Unit, keep: int) -> float:
            """Return the clocks of an iteration in the steady state; of equal iterations `keep` are modelled."""
            loop, half = loop_of(keep), keep // 2
            if not loop.left_out:
                return loop.steady(unit, keep)
            return loop.pace_of(loop_of(half), run(unit, keep).end - run(unit, half).end)

        soon, later = (Unit(Latencies(latency)) for latency in (self.latency, self.latency + LATER))
        paces = steady(soon, self.keep), steady(later, self.keep // 2)
        entry = self.program.kernel.descriptor.entry
        return unit_profile(ran.trace, loop_of(self.keep), run(soon, self.keep), paces, entry)
