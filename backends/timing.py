"""What a family's model of a unit tells of a kernel, for those who make times of it."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from convgen.backends.analysis import Line

L2_LATENCY = 500.0  #: clocks from a load of vector memory to data that L2 has (MIOpen's rows on gfx942: 300 to 600)


@attrs.frozen
class LoopClocks:
    """Clocks of a kernel on a unit that several of its workgroups share."""

    kernel: str  #: its name
    target: str  #: whose code it is
    threads: int  #: of a workgroup
    resident: int  #: workgroups that a unit holds at most
    flop: int  #: of the matrix instructions of an iteration of its loop, of a workgroup
    matrix: float  #: clocks of the matrix unit of a SIMD, of an iteration of one wave
    shared: Mapping[int, tuple[float, float]]  #: workgroups on a unit -> clocks of an iteration of all, and of the rest

    def of(self, groups: int) -> tuple[float, float]:
        """Clocks of an iteration and of the rest where so many workgroups share a unit, between those known."""
        known = sorted(self.shared)
        groups = min(max(groups, known[0]), known[-1])
        low = max(n for n in known if n <= groups)
        high = min(n for n in known if n >= groups)
        share = (groups - low) / (high - low) if high > low else 0.0
        each, rest = (a + share * (b - a) for a, b in zip(self.shared[low], self.shared[high]))
        return each, rest


@attrs.frozen
class TimedLine:
    """An instruction of a loop in the steady state; clocks are of an iteration of one wave, on average."""

    line: Line
    stalled: float  #: clocks in which its wave could have issued it if what it needs had been there


@attrs.frozen
class LoopProfile:
    """The loop of a kernel where so many of its workgroups share a unit."""

    groups: int
    clocks: float  #: of an iteration of all workgroups
    around: float  #: clocks of the code before and behind
    busy: Mapping[str, float]  #: pipe -> clocks of an iteration in which it works: matrix, valu and salu of one SIMD
    lines: tuple[TimedLine, ...]

    @property
    def bound(self) -> str:
        """The pipe that works most, or `waiting` where none does for half of the time."""
        pipe = max(self.busy, key=lambda name: self.busy[name])
        return pipe if 2 * self.busy[pipe] >= self.clocks else "waiting"


@attrs.frozen
class KernelProfile:
    """A kernel of a code object, by how many of its workgroups share a unit."""

    name: str
    target: str
    threads: int
    resident: int
    flop: int  #: of an iteration of a workgroup
    loops: tuple[LoopProfile, ...]
