"""Derive a loop's steady state from two runs of a timing model with different iteration counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from convgen.ir.record import frozen

ITERATIONS = (2, 6)  #: iterations of the short and the long run; their difference in clocks gives one iteration


class TimedWave(Protocol):
    """A wave or thread after a run of a model."""

    def stalls(self) -> Iterable[float]: ...  # clocks, by index of the instruction


class ModelRun(Protocol):
    """The result of one run of a model."""

    @property
    def end(self) -> float: ...  # clocks until the last wave has ended
    @property
    def waves(self) -> Sequence[TimedWave]: ...


@frozen
class Steady:
    """The steady state of a loop."""

    iteration: float  #: clocks; one iteration of all waves together
    rest: float  #: clocks; code before and after the loop
    stalls: tuple[float, ...]  #: clocks; mean stall of a wave at each instruction of the loop in an iteration

    @classmethod
    def of(cls, short: ModelRun, long: ModelRun, before: int, body: int) -> Steady:
        """Return the steady state from runs of `ITERATIONS` iterations.

        `before` instructions precede a loop of `body` instructions. The first iteration does not count in the stalls.
        """
        few, many = ITERATIONS
        iteration = (long.end - short.end) / (many - few)
        stalled = [sum(of_waves) for of_waves in zip(*(wave.stalls() for wave in long.waves), strict=True)]
        share = len(long.waves) * (many - 1)
        stalls = (sum(stalled[before + turn * body + n] for turn in range(1, many)) / share for n in range(body))
        return cls(iteration, max(0.0, short.end - few * iteration), tuple(stalls))
