"""Shorten long loops of executed waves: of equal iterations in a row a few are modelled and represent the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise
from math import ceil
from typing import Any

from convgen.backends.event_model.waves import ModelRun, UnitModel
from convgen.ir.record import frozen

_PERIODS = (1, 2, 3, 4)  #: iterations after which a loop may repeat itself: its shared-memory slots rotate


@frozen(eq=False)
class ShortenedLoop:
    """Waves of workgroups, without the iterations of their loop that are left out."""

    workgroups: Sequence[Sequence[list[Any]]]
    marks: Sequence[list[int]]  #: for each wave, the indices of the instructions with which iterations begin
    representing: tuple[int, int]  #: range of iterations that represent those left out
    left_out: int

    @property
    def count(self) -> float:
        """Return the mean number of iterations of a wave, including those left out."""
        return sum(map(len, self.marks)) / len(self.marks) + self.left_out

    @property
    def weight(self) -> float:
        """Return how often each representing iteration counts."""
        first, last = self.representing
        return 1 + self.left_out / (last - first) if self.left_out else 1.0

    def weights(self, wave: int, instructions: int) -> list[float]:
        """Return how often each instruction of a wave counts."""
        weights = [1.0] * instructions
        if self.left_out:
            first, last = (self.marks[wave][n] for n in self.representing)
            weights[first:last] = [self.weight] * (last - first)
        return weights

    def pace_of(self, fewer: ShortenedLoop, clocks: float) -> float:
        """Return the clocks of a left-out iteration; a run takes `clocks` longer than one with `fewer` iterations."""
        more = fewer.left_out - self.left_out
        return clocks / more if more else 0.0

    def repeated(self, times: int) -> list[list[list[Any]]]:
        """Return the waves with all iterations but the last repeated `times` times."""
        marks = iter(self.marks)
        return [[_repeated(ops, next(marks), times) for ops in group] for group in self.workgroups]

    def steady(self, unit: UnitModel, count: int) -> float:
        """Return the clocks of an iteration in the steady state.

        The model runs the loop with its iterations repeated, and again with twice as many, at least `count` more: the
        difference is that of iterations in the steady state. If no wave has two iterations, the result is that of
        `clocks`.
        """
        followed = sum(max(0, len(m) - 1) for m in self.marks) / len(self.marks)
        if not followed:
            return self.clocks(unit.run(self.workgroups), 0.0)[1]
        times = ceil(count / followed)
        short, long = (unit.run(self.repeated(n)).end for n in (times, 2 * times))
        return (long - short) / (times * followed)

    def clocks(self, result: ModelRun, pace: float) -> tuple[float, float]:
        """Return the clocks of a run with all iterations, and from one iteration to the next.

        Left-out iterations take `pace` clocks each. If no wave has two iterations, the second value is from the first
        matrix instruction to the last, or all clocks if there is none.
        """
        total = result.end + self.left_out * pace
        if self.left_out:
            return total, pace
        between = [wave.issued[m[-1]] - wave.issued[m[0]] for wave, m in zip(result.waves, self.marks) if m]
        steps = sum(len(m) - 1 for m in self.marks if m)
        return total, sum(between) / steps if steps else _multiplying(result) or total


def _repeated(ops: list[Any], marks: list[int], times: int) -> list[Any]:
    return ops[: marks[0]] + ops[marks[0] : marks[-1]] * times + ops[marks[-1] :] if marks else ops


def _multiplying(result: ModelRun) -> float:
    """Return the clocks from the first matrix instruction to the last; 0 if there is none."""
    waves = ((op, at) for wave in result.waves for op, at in zip(wave.ops, wave.issued))
    times = [at for op, at in waves if op.is_matrix]
    return max(times) - min(times) if times else 0.0


def shortened(workgroups: Sequence[Sequence[list[Any]]], body: Collection[int], keep: int) -> ShortenedLoop:
    """Shorten runs of equal iterations to `keep` at most; `body` has the addresses of a loop.

    An iteration begins at the loop's most frequent instruction. Iterations are left out only if all waves have equally
    many, and each wave repeats its own.
    """
    waves = [ops for group in workgroups for ops in group]
    marks = marks_of(waves, body)
    if len({len(m) for m in marks}) > 1 or not marks[0]:
        return ShortenedLoop(workgroups, marks, (0, 0), 0)
    runs = (_longest(waves, marks, period) for period in _PERIODS)
    first, end, period = max(runs, key=lambda run: run[1] - run[0])
    kept = -(-keep // period) * period
    left_out = (end - first - kept) // period * period
    if left_out <= 0:
        return ShortenedLoop(workgroups, marks, (0, 0), 0)
    cut = first + kept
    middle = first + kept // 2 // period * period
    numbered = iter(range(len(waves)))
    short = [[_without(ops, marks[next(numbered)], cut, cut + left_out) for ops in group] for group in workgroups]
    gaps = [m[cut + left_out] - m[cut] for m in marks]
    fewer = [m[:cut] + [n - gap for n in m[cut + left_out :]] for m, gap in zip(marks, gaps)]
    return ShortenedLoop(short, fewer, (middle, cut), left_out)


def marks_of(waves: Sequence[list[Any]], body: Collection[int]) -> list[list[int]]:
    """Return for each wave the indices of the instructions with which loop iterations begin."""
    inside = set(body)
    executed = Counter(op.at for op in waves[0] if op.at in inside)
    if not executed:
        return [[] for _ in waves]
    begin = max(executed, key=lambda at: (executed[at], -at))
    return [[n for n, op in enumerate(ops) if op.at == begin] for ops in waves]


def _longest(waves: Sequence[list[Any]], marks: Sequence[list[int]], period: int) -> tuple[int, int, int]:
    """Return the longest run of iterations that equal the one `period` before: its first, its end, the period."""
    count = len(marks[0]) - 1  # the code after the last mark is more than an iteration
    iterations = [[ops[a:b] for a, b in pairwise(m)] for ops, m in zip(waves, marks)]
    best, first = (0, 0), 0
    for n in range(count):
        if n >= period and any(mine[n] != mine[n - period] for mine in iterations):
            first = n - period + 1
        best = max(best, (first, n + 1), key=lambda run: run[1] - run[0])
    return *best, period


def _without(ops: list[Any], marks: list[int], first: int, end: int) -> list[Any]:
    return ops[: marks[first]] + ops[marks[end] :]
