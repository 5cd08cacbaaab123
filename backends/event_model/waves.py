"""Waves on the model of a unit: executed instructions, the times of each, and what a run yields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import attrs

from convgen.backends.analysis import Line
from convgen.ir.record import define, frozen


class Op(Protocol):
    """One instruction as a wave executes it; equal ones are one object."""

    @property
    def at(self) -> int: ...  # its address
    @property
    def issue(self) -> float: ...  # clocks until its wave issues the next one
    @property
    def busy(self) -> float: ...  # clocks of its pipe
    @property
    def is_matrix(self) -> bool: ...


Stream = Sequence[Any]  #: instructions of a wave, each an `Op`
Workgroup = Sequence[Stream]  #: streams of its waves


@define(eq=False)
class Wave:
    """One wave with its times, in clocks, by index of its instruction."""

    simd: int
    group: int
    ops: Stream
    free_at: float  #: when it is free to issue the next instruction
    free_since: list[float] = attrs.Factory(list)  #: when it was free to issue each instruction
    issued: list[float] = attrs.Factory(list)
    done: list[float] = attrs.Factory(list)  #: when it could go on after each instruction

    def stalls(self) -> Iterator[float]:
        """Yield the clocks that the wave waits before or at each instruction."""
        for op, free_since, issued, done in zip(self.ops, self.free_since, self.issued, self.done, strict=True):
            yield issued - free_since + done - issued - op.issue


@frozen
class Occupied:
    """A pipe that is busy with one instruction."""

    pipe: str
    simd: int | None  #: number of the SIMD that the pipe belongs to; None: the unit
    start: float  #: clocks
    clocks: float
    op: Op


@frozen(eq=False)
class ModelRun:
    """The result of a run."""

    end: float  #: clocks until the last wave has ended
    waves: Sequence[Wave]
    occupied: Sequence[Occupied]


class UnitModel(Protocol):
    """A unit that runs workgroups together, each of some waves."""

    def run(self, workgroups: Sequence[Workgroup], begins: Sequence[float] = ()) -> ModelRun:
        """Run all waves from the first instruction to the last; workgroups begin at clock 0, or as `begins` says."""

    def busy_of(self, ops: Iterable[tuple[Any, float]]) -> dict[str, float]:
        """Return the busy clocks of each pipe for instructions with their executions: of the unit, or of one SIMD."""


class Trace(Protocol):
    """The instructions of waves, recorded during a launch; waves are identified by workgroup and number."""

    @property
    def wanted(self) -> frozenset[int]: ...  # recorded workgroups
    @property
    def waves(self) -> Mapping[tuple[int, int], list[Any]]: ...
    @property
    def flop(self) -> int: ...  # operations of all workgroups that ran
    @property
    def element(self) -> str: ...  # input type of most matrix instructions; "" if there are none
    @property
    def takes_tickets(self) -> bool: ...  # whether workgroups count their arrivals, and the last one continues
    @property
    def share_of_last(self) -> float: ...  # share of waves that arrive last

    def line(self, at: int) -> Line:
        """Return the instruction at an address."""

    def learn(self, other: Any) -> None:
        """Take instructions that only another run has executed, for `line`."""


Lines = Callable[[int], Line]


def of_workgroup(waves: Mapping[tuple[int, int], list[Any]], number: int) -> list[list[Any]]:
    """Return the waves of a workgroup."""
    return [ops for (group, _), ops in sorted(waves.items(), key=lambda each: each[0]) if group == number]
