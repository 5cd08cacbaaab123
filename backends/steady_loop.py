"""A loop in its steady state, from two runs of a model that differ in how often it is repeated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from convgen.ir.record import frozen

TURNS = (2, 6)  #: iterations of the two runs; by what one takes longer, one iteration is told


class Ran(Protocol):
    """A wave or thread that has run."""

    def stalls(self) -> Iterable[float]: ...  # clocks by the number of its instruction


class Course(Protocol):
    """What became of a run."""

    @property
    def end(self) -> float: ...  # clocks until the last wave has ended
    @property
    def waves(self) -> Sequence[Ran]: ...


@frozen
class Steady:
    each: float  #: clocks of an iteration of all that runs
    around: float  #: clocks of the code before and behind
    stalls: tuple[float, ...]  #: clocks of each instruction of the loop, of a wave in an iteration, on average

    @classmethod
    def of(cls, short: Course, long: Course, before: int, body: int) -> Steady:
        """By runs of `TURNS`, in which `before` instructions precede a loop of `body`; the first iteration has no part
        in the stalls.
        """
        few, many = TURNS
        each = (long.end - short.end) / (many - few)
        stalled = [sum(of_waves) for of_waves in zip(*(wave.stalls() for wave in long.waves), strict=True)]
        share = len(long.waves) * (many - 1)
        stalls = (sum(stalled[before + turn * body + n] for turn in range(1, many)) / share for n in range(body))
        return cls(each, max(0.0, short.end - few * each), tuple(stalls))
