"""Records of a timing model: the clocks of a kernel's loop, of a unit's workgroups, and of whole launches.

A unit is what a workgroup runs on: a compute unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from convgen.backends.analysis import Line
from convgen.backends.simulation import Finding
from convgen.ir.record import frozen

LATER = 500.0  #: clocks; extra load latency that a second run of the model adds to find how much of it a loop exposes


class Pace(NamedTuple):
    """Clocks of workgroups that share a unit."""

    iteration: float  #: clocks; an iteration of all workgroups
    rest: float  #: clocks; everything outside the iterations
    exposed: float  #: clocks an iteration takes longer for each clock of extra load latency


def exposed(each: float, later: float) -> float:
    """Return the extra clocks of an iteration per clock of extra load latency.

    `later` is the length of an iteration when loads return LATER clocks later.
    """
    return max(0.0, later - each) / LATER


@frozen
class LoopClocks:
    """Clocks of a kernel on a unit that several of its workgroups share."""

    kernel: str  #: name of the kernel
    target: str  #: name of the target
    threads: int  #: work-items of a workgroup
    resident: int  #: workgroups that a unit holds, at most
    flop: int  #: operations; matrix instructions of a workgroup in an iteration
    matrix: float  #: clocks; matrix unit of a SIMD, in an iteration of one wave
    shared: Mapping[int, Pace]  #: by number of workgroups on a unit

    def of(self, groups: int) -> Pace:
        """Return the pace of `groups` workgroups on a unit, interpolated between known numbers."""
        known = sorted(self.shared)
        groups = min(max(groups, known[0]), known[-1])
        low = max(n for n in known if n <= groups)
        high = min(n for n in known if n >= groups)
        share = (groups - low) / (high - low) if high > low else 0.0
        return Pace(*(a + share * (b - a) for a, b in zip(self.shared[low], self.shared[high])))


@frozen
class TimedLine:
    """An instruction with its mean clocks in a wave: of one iteration in the steady state, or of the whole run."""

    line: Line
    stalled: float  #: clocks; stall: the wave waits for the instruction's operands or its unit
    times: float = 1.0  #: executions by a wave


def bound_of(busy: Mapping[str, float], clocks: float) -> str:
    """Return the busiest pipe, or `waiting` if no pipe is busy for half of the time."""
    pipe = max(busy, key=lambda name: busy[name])
    return pipe if 2 * busy[pipe] >= clocks else "waiting"


@frozen
class LoopProfile:
    """The loop of a kernel when `groups` of its workgroups share a unit."""

    groups: int
    is_loop: bool  #: whether the code is a loop; else an "iteration" is the straight-line code that waves run once
    clocks: float  #: clocks; an iteration of all workgroups
    rest: float  #: clocks; code before and after the loop
    busy: Mapping[str, float]  #: pipe -> busy clocks in an iteration; matrix, valu and salu are those of one SIMD
    lines: tuple[TimedLine, ...]

    @property
    def bound(self) -> str:
        """Return the busiest pipe, or `waiting` if no pipe is busy for half of the time."""
        return bound_of(self.busy, self.clocks)


@frozen
class KernelProfile:
    """The profile of a kernel in a code object, by the number of its workgroups that share a unit."""

    name: str
    target: str
    latency: float  #: clocks from a load of global memory to its data
    threads: int
    resident: int
    flop: int  #: operations; an iteration of a workgroup
    loops: tuple[LoopProfile, ...]


# ---------------------------------------------------------------- whole launches


@frozen
class Work:
    """The work of a launch's workgroups, relative to the workgroup that has the most."""

    mean: float  #: mean work of a workgroup
    least: float  #: least work of a workgroup
    busiest: float  #: total work of the unit that ends last


@frozen
class Machine:
    """The parts of a chip that decide where workgroups run and which data they find in caches."""

    target: str
    units: int
    dies: int  #: dies, to which workgroups are distributed round robin; each has an L2
    l2_bytes: int  #: L2 of one die
    memory_side_bytes: int  #: memory-side cache; 0 if there is none
    line_bytes: int


@frozen
class Moved:
    """Bytes that a launch moves."""

    loaded: float  #: half lines that instructions touch: the least that can be requested of L1
    requested: float  #: lines that instructions touch: requests to L1
    asked: float  #: requests to L2
    fill: float  #: fills of the L2s of all dies
    memory: float  #: from memory
    stored: float  #: stored by lanes

    @property
    def l1_hits(self) -> float:
        """Return the hit rate of L1."""
        return 1 - self.asked / self.requested if self.requested else 1.0

    @property
    def brought(self) -> float:
        """Return the bytes that L2 delivers: whole lines, or half lines where no more is requested."""
        return min(self.loaded, self.asked)

    @property
    def l2_hits(self) -> float:
        """Return the hit rate of L2."""
        return 1 - self.fill / self.asked if self.asked else 1.0


@frozen
class Slice:
    """An event on a track: a wave that issues or waits, or a busy pipe."""

    lane: str  #: place of the track: a SIMD, or the unit
    track: str
    start: float  #: clocks
    clocks: float
    kind: str  #: kind of a `Line`, or `wait`
    name: str  #: the instruction
    offset: int  #: bytes from the kernel's start


@frozen
class Step:
    """One executed instruction of a wave; times are clocks."""

    line: Line
    free_since: float  #: first clock at which its wave was free to issue it
    issued: float
    issue: float  #: clocks that issuing takes
    done: float  #: when its wave can go on; if that is later than issuing ends, the wave waits at the instruction

    @property
    def stalled(self) -> float:
        """Return the clocks that its wave waits before or after issuing it."""
        return self.issued - self.free_since + self.done - self.issued - self.issue

    @property
    def waits_after_issue(self) -> bool:
        """Return whether its wave waits after issuing it."""
        return self.done > self.issued + self.issue


@frozen(eq=False)
class WaveTimes:
    """A wave from its first instruction to its last, without the iterations that were not modelled one by one."""

    simd: int
    group: int  #: number of its workgroup on the unit
    member: int  #: number of the wave in its workgroup
    steps: tuple[Step, ...]


@frozen(eq=False)
class UnitProfile:
    """A unit that runs some workgroups from first to last instruction."""

    groups: int
    clocks: float
    loop_iterations: float  #: of a wave that runs the loop
    looping: float  #: share of waves that run the loop; others copy, say; 1 without a loop
    #: clocks; from one iteration to the next; without a loop, from the first matrix instruction to the last
    iteration: float
    steady: float  #: clocks; an iteration in the steady state
    exposed: float  #: clocks such an iteration takes longer for each clock of extra load latency
    left_out: int  #: iterations that were not modelled one by one
    busy: Mapping[str, float]  #: pipe -> busy clocks; matrix, valu and salu are those of one SIMD
    lines: tuple[TimedLine, ...]
    slices: Callable[[], Sequence[Slice]]  #: events of the modelled iterations
    waves: Callable[[], Sequence[WaveTimes]]  #: waves in the order in which they begin

    @property
    def bound(self) -> str:
        """Return the busiest pipe, or `waiting` if no pipe is busy for half of the time."""
        return bound_of(self.busy, self.clocks)

    @property
    def iterations(self) -> float:
        """Return the loop iterations that would do all products of the kernel, including those outside the loop."""
        products = [(each.times, each.times * each.line.flop) for each in self.lines]
        of_loop = sum(flop for times, flop in products if times > self.looping * (self.loop_iterations - 0.5))
        share = sum(flop for _, flop in products) / of_loop if of_loop else 1.0
        return max(1.0, self.loop_iterations * share)

    def pace(self, iterations: float) -> Pace:
        """Return the pace of its workgroups if the kernel's products are worth `iterations` iterations.

        Products outside the loop count.
        """
        return Pace(self.steady, max(0.0, self.clocks - iterations * self.steady), self.exposed)


@frozen(eq=False)
class LaunchProfile:
    """A launch, of which some workgroups were executed."""

    kernel: str
    target: str
    entry: int  #: address of the kernel in its code object
    workgroups: int
    threads: int
    resident: Mapping[str, int]  #: workgroups that a unit holds, by limiting resource
    executed: tuple[int, ...]  #: ids of the executed workgroups
    distinct: int  #: number of executed workgroups with different instruction streams
    instructions: float  #: executed by a wave
    work: Work
    flop: float  #: operations; a workgroup on average
    element: str  #: input type of its matrix instructions; empty if there are none
    moved: Moved
    added: float  #: bytes; atomic operations
    full: int  #: workgroups on a unit in a round that fills the chip
    rounds: int  #: rounds that fill the chip
    last: int  #: workgroups on the fullest unit in the last, partial round; 0 if there is none
    #: By number of workgroups on a unit: 1, `full` and `last`; all workgroups have the most work.
    units: Mapping[int, UnitProfile]
    findings: tuple[Finding, ...]
    seconds: float  #: wall time of the execution

    @property
    def on_busiest(self) -> int:
        """Return the number of workgroups of a unit that gets the most."""
        return self.rounds * self.full + self.last

    @property
    def share(self) -> float:
        """Return the busiest unit's work relative to workgroups that all have the most work."""
        return self.work.busiest / self.on_busiest
