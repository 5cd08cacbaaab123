"""Shorten long loops of executed waves: of equal iterations in a row a few are modelled and represent the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise
from math import ceil
from typing import Any

from convgen.backends.event_model.waves import ModelRun, UnitModel
from convgen.ir.record import frozen

#: Iterations, or tiles, after which a loop may repeat itself: its shared-memory slots rotate, or phases of mbarriers.
_PERIODS = (1, 2, 3, 4, 6, 8, 12, 16)
_STRAIGHT = 2  #: executions of an instruction by a wave without a loop


@frozen(eq=False)
class ShortenedLoop:
    """Waves of workgroups, without the iterations of their loop that are left out."""

    workgroups: Sequence[Sequence[list[Any]]]
    marks: Sequence[list[int]]  #: for each wave, the indices of the instructions with which iterations begin
    representing: tuple[int, int]  #: range of iterations that represent those left out
    left_out: int
    looping: float = 1.0  #: share of waves that run the loop; others have another role, and iterations of their own
    kept: int = 0  #: iterations of the run of equal ones of which others are left out

    @property
    def count(self) -> float:
        """Return the mean number of iterations of a wave that runs the loop, including those left out."""
        return sum(map(len, self.marks)) / max(1, sum(map(bool, self.marks))) + self.left_out

    @property
    def weight(self) -> float:
        """Return how often each representing iteration counts."""
        first, last = self.representing
        return 1 + self.left_out / (last - first) if self.left_out else 1.0

    def weights(self, wave: int, instructions: int) -> list[float]:
        """Return how often each instruction of a wave counts."""
        weights = [1.0] * instructions
        if self.left_out and self.marks[wave]:
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
        `clocks`. All waves have to run the loop.
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
    many, and each wave repeats its own. If iterations of whole tiles repeat, those of one tile at least are kept.
    """
    waves = [ops for group in workgroups for ops in group]
    loops = marks_of(waves, body)
    looping = sum(map(bool, loops)) / len(loops) if any(loops) else 1.0
    marks = loops if looping == 1 else _with_roles(waves, loops)
    if marks is None or len({len(m) for m in marks if m}) != 1:
        return ShortenedLoop(workgroups, loops, (0, 0), 0, looping)
    first, end, period = _longest_run(waves, marks)
    modelled = -(-keep // period) * period
    left_out = (end - first - modelled) // period * period
    if left_out <= 0:
        return ShortenedLoop(workgroups, loops, (0, 0), 0, looping)
    cut = first + modelled
    middle = first + modelled // 2 // period * period
    numbered = iter(range(len(waves)))
    short = [[_without(ops, marks[next(numbered)], cut, cut + left_out) for ops in group] for group in workgroups]
    fewer = [_closed_up(m, cut, cut + left_out) if m else m for m in marks]
    return ShortenedLoop(short, fewer, (middle, cut), left_out, looping, modelled)


def _with_roles(waves: Sequence[list[Any]], loops: Sequence[list[int]]) -> list[list[int]] | None:
    """Return the `loops`, with the iterations of waves that run another loop as often, such as those that copy.

    None if a wave's loop has another number of iterations. Waves without any loop have no iterations.
    """
    count = max(map(len, loops))
    marks: list[list[int]] = []
    for ops, iterations in zip(waves, loops):
        times = Counter(op.at for op in ops)
        begin = next((op.at for op in ops if times[op.at] == count), None)
        if iterations or max(times.values(), default=0) <= _STRAIGHT:
            marks.append(iterations)
        elif begin is None:
            return None
        else:
            marks.append([n for n, op in enumerate(ops) if op.at == begin])
    return marks


def _longest_run(waves: Sequence[list[Any]], marks: Sequence[list[int]]) -> tuple[int, int, int]:
    """Return the longest run of repeated iterations: its first, its end, and after how many they repeat.

    Whole tiles are tried where less than half of the iterations repeat otherwise.
    """
    looping = [(ops, m) for ops, m in zip(waves, marks) if m]
    kinds = _kinds(looping)
    best = max((_longest(kinds, period) for period in _PERIODS), key=lambda run: run[1] - run[0])
    if 2 * (best[1] - best[0]) < len(kinds):
        runs = (_longest(kinds, period) for period in _tiles(looping[0][1]))
        best = max((best, *runs), key=lambda run: run[1] - run[0])
    return best


def _kinds(waves: Sequence[tuple[list[Any], list[int]]]) -> list[int]:
    """Return a number for each iteration, equal for equal ones; `waves` are (instructions, beginnings of iterations).

    The code after the last beginning is more than an iteration, and gets no number.
    """
    numbers: dict[object, int] = {}
    by_wave = [[tuple(ops[a:b]) for a, b in pairwise(m)] for ops, m in waves]
    return [numbers.setdefault(iteration, len(numbers)) for iteration in zip(*by_wave)]


def _tiles(marks: list[int]) -> list[int]:
    """Return the iterations of a tile, and of some tiles together: the last one is followed by the tile's epilogue."""
    lengths = [b - a for a, b in pairwise(marks)]
    longest = max(lengths, default=0)
    ends = [n for n, length in enumerate(lengths) if length == longest]
    most = Counter(b - a for a, b in pairwise(ends)).most_common(1)
    return [tiles * most[0][0] for tiles in _PERIODS] if most else []


def _closed_up(marks: list[int], first: int, end: int) -> list[int]:
    """Return the marks without iterations `first` to `end`, which are left out."""
    gap = marks[end] - marks[first]
    return marks[:first] + [n - gap for n in marks[end:]]


def marks_of(waves: Sequence[list[Any]], body: Collection[int]) -> list[list[int]]:
    """Return for each wave the indices of the instructions with which loop iterations begin.

    That is the instruction of the loop that the first wave in the loop executes most often.
    """
    inside = set(body)
    counts = (Counter(op.at for op in ops if op.at in inside) for ops in waves)
    executed = next(filter(None, counts), None)
    if not executed:
        return [[] for _ in waves]
    begin = max(executed, key=lambda at: (executed[at], -at))
    return [[n for n, op in enumerate(ops) if op.at == begin] for ops in waves]


def _longest(kinds: Sequence[int], period: int) -> tuple[int, int, int]:
    """Return the longest run of iterations that equal the one `period` before: its first, its end, the period."""
    best, first = (0, 0), 0
    for n, kind in enumerate(kinds):
        if n >= period and kind != kinds[n - period]:
            first = n - period + 1
        best = max(best, (first, n + 1), key=lambda run: run[1] - run[0])
    return *best, period


def _without(ops: list[Any], marks: list[int], first: int, end: int) -> list[Any]:
    return ops[: marks[first]] + ops[marks[end] :] if marks else ops
