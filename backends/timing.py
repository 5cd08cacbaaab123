"""What a family's model of a unit tells of a kernel, for those who make times of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from convgen.backends.analysis import Line
from convgen.backends.simulation import Finding
from convgen.ir.record import frozen

LATER = 500.0  #: clocks; by which loads return later, to see how much of that a loop exposes


class Pace(NamedTuple):
    """What workgroups that share a unit take, in clocks."""

    each: float  #: of an iteration of all of them
    rest: float  #: of what is left beside the iterations
    exposed: float  #: of an iteration for each clock more that loads of vector memory take


def exposed(each: float, later: float) -> float:
    """Clocks of an iteration for each clock more that loads take, of which one takes `later` if they return LATER."""
    return max(0.0, later - each) / LATER


@frozen
class LoopClocks:
    """Clocks of a kernel on a unit that several of its workgroups share."""

    kernel: str  #: its name
    target: str  #: whose code it is
    threads: int  #: of a workgroup
    resident: int  #: workgroups that a unit holds at most
    flop: int  #: of the matrix instructions of an iteration of its loop, of a workgroup
    matrix: float  #: clocks of the matrix unit of a SIMD, of an iteration of one wave
    shared: Mapping[int, Pace]  #: by workgroups on a unit

    def of(self, groups: int) -> Pace:
        """Where so many workgroups share a unit, between those known."""
        known = sorted(self.shared)
        groups = min(max(groups, known[0]), known[-1])
        low = max(n for n in known if n <= groups)
        high = min(n for n in known if n >= groups)
        share = (groups - low) / (high - low) if high > low else 0.0
        return Pace(*(a + share * (b - a) for a, b in zip(self.shared[low], self.shared[high])))


@frozen
class TimedLine:
    """An instruction; clocks are of a wave on average: of an iteration of its loop in the steady state, or of all."""

    line: Line
    stalled: float  #: clocks in which its wave could have issued it if what it needs had been there
    times: float = 1.0  #: that a wave executes it


def bound_of(busy: Mapping[str, float], clocks: float) -> str:
    """The pipe that works most, or `waiting` where none does for half of the time."""
    pipe = max(busy, key=lambda name: busy[name])
    return pipe if 2 * busy[pipe] >= clocks else "waiting"


@frozen
class LoopProfile:
    """The loop of a kernel where so many of its workgroups share a unit."""

    groups: int
    is_loop: bool  #: whether the code is a loop; else an "iteration" is the straight-line code that waves run once
    clocks: float  #: of an iteration of all workgroups
    around: float  #: clocks of the code before and behind
    busy: Mapping[str, float]  #: pipe -> clocks of an iteration in which it works: matrix, valu and salu of one SIMD
    lines: tuple[TimedLine, ...]

    @property
    def bound(self) -> str:
        return bound_of(self.busy, self.clocks)


@frozen
class KernelProfile:
    """A kernel of a code object, by how many of its workgroups share a unit."""

    name: str
    target: str
    latency: float  #: clocks from a load of global memory to its data
    threads: int
    resident: int
    flop: int  #: of an iteration of a workgroup
    loops: tuple[LoopProfile, ...]


# ---------------------------------------------------------------- whole launches


@frozen
class Work:
    """What the workgroups of a launch have to do, where that of one of them that has most is 1."""

    mean: float
    least: float  #: of a workgroup
    busiest: float  #: all workgroups of the unit that ends last


@frozen
class Machine:
    """What of a chip decides where workgroups run and what they find in caches."""

    target: str
    units: int
    dies: int  #: workgroups go to them in turn; each has an L2
    l2_bytes: int  #: of one die
    memory_side_bytes: int  #: of the cache before memory, 0 where there is none
    line_bytes: int


@frozen
class Moved:
    """Bytes that a launch moves."""

    loaded: float  #: halves of lines that instructions touch, the least that L1 is asked for
    requested: float  #: of L1: lines that instructions touch
    asked: float  #: of L2
    fill: float  #: into the L2s of all dies
    memory: float  #: from memory
    stored: float  #: by lanes

    @property
    def l1_hits(self) -> float:
        """The part of what is requested that L1 has."""
        return 1 - self.asked / self.requested if self.requested else 1.0

    @property
    def brought(self) -> float:
        """What comes from L2: whole lines, or halves where it is asked for no more, and for each of them anew."""
        return min(self.loaded, self.asked)

    @property
    def l2_hits(self) -> float:
        return 1 - self.fill / self.asked if self.asked else 1.0


@frozen
class Slice:
    """Something that takes a while on a track: a wave that issues or waits, a pipe at work."""

    lane: str  #: where the track stands: a SIMD, or the unit
    track: str
    start: float  #: clocks
    clocks: float
    kind: str  #: as of `Line`, or `wait`
    name: str  #: the instruction
    offset: int  #: bytes from the kernel's start


@frozen
class Step:
    """An instruction as a wave executes it, in clocks."""

    line: Line
    could: float  #: when its wave could have issued it
    issued: float
    issue: float  #: that issuing takes
    done: float  #: when its wave could go on; where that is later than issuing takes, it waits at the instruction

    @property
    def stalled(self) -> float:
        """Clocks in which its wave could have issued it, or gone on, but for what it needs."""
        return self.issued - self.could + self.done - self.issued - self.issue

    @property
    def waits_there(self) -> bool:
        """Whether its wave issues it and waits then."""
        return self.done > self.issued + self.issue


@frozen(eq=False)
class Executed:
    """A wave from its first instruction to its last, but for rounds that were not modelled one by one."""

    simd: int
    group: int  #: its workgroup, of those on the unit
    member: int  #: its number within that
    steps: tuple[Step, ...]


@frozen(eq=False)
class UnitProfile:
    """A unit that runs some workgroups from their first instruction to their last."""

    groups: int
    clocks: float
    rounds: float  #: of the loop, of a wave
    each: float  #: clocks from one round to the next; without a loop, from the first matrix instruction to the last
    steady: float  #: clocks of a round of many
    exposed: float  #: clocks of such a round for each clock more that loads of vector memory take
    left_out: int  #: rounds that were not modelled one by one
    busy: Mapping[str, float]  #: pipe -> clocks in which it works: matrix, valu and salu of one SIMD
    lines: tuple[TimedLine, ...]
    slices: Callable[[], Sequence[Slice]]  #: of the rounds that were modelled
    waves: Callable[[], Sequence[Executed]]  #: in the order in which they begin

    @property
    def bound(self) -> str:
        return bound_of(self.busy, self.clocks)

    @property
    def iterations(self) -> float:
        """Rounds of the loop that have as many products as the whole kernel, in which some may stand beside it."""
        products = [(each.times, each.times * each.line.flop) for each in self.lines]
        of_loop = sum(flop for times, flop in products if times > self.rounds - 0.5)
        found = self.rounds * sum(flop for _, flop in products) / of_loop if of_loop else self.rounds
        return max(1.0, found)

    def pace(self, iterations: float) -> Pace:
        """What its workgroups take of which each goes through so many rounds, those beside the loop among them."""
        return Pace(self.steady, max(0.0, self.clocks - iterations * self.steady), self.exposed)


@frozen(eq=False)
class LaunchProfile:
    """A launch, of which some workgroups were executed."""

    kernel: str
    target: str
    entry: int  #: address of the kernel in its code object
    workgroups: int
    threads: int
    held: Mapping[str, int]  #: workgroups that a unit holds, by what limits them
    executed: tuple[int, ...]  #: workgroups
    distinct: int  #: of these, how many do not execute what another does
    instructions: float  #: of a wave
    work: Work
    flop: float  #: of a workgroup, on average
    element: str  #: what its matrix instructions multiply, empty if there are none
    moved: Moved
    added: float  #: bytes of atomic operations
    full: int  #: workgroups on a unit in a round that fills the chip
    rounds: int  #: rounds of that kind
    last: int  #: workgroups on the fullest unit in the round that is left, 0 if there is none
    #: By workgroups on a unit: one, those of a full round, those of the last; all of those that have most to do.
    units: Mapping[int, UnitProfile]
    findings: tuple[Finding, ...]
    seconds: float  #: of execution

    @property
    def on_busiest(self) -> int:
        """Workgroups of a unit that has as many as any."""
        return self.rounds * self.full + self.last

    @property
    def share(self) -> float:
        """The work of the busiest unit, of what it would be if all its workgroups had as much to do as any."""
        return self.work.busiest / self.on_busiest
