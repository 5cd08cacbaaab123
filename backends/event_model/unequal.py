"""Launches whose workgroups have unequal work: some are executed, the others count as the nearest of these.

If executed neighbours differ much, workgroups between them are executed, too, until the rest hardly matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

from convgen.backends.event_model.waves import Stream
from convgen.backends.timing import Work
from convgen.ir.layout.dispatch import Run, makespan

_MOST_UNCERTAIN = 0.01  #: share of all work; most that the workgroups between two executed ones may be misjudged by
_ALIKE = 0.9  #: share of the largest work; workgroups with this much represent those with the most

Amounts = Mapping[int, float]  #: workgroup -> work


def amount(waves: Iterable[Stream]) -> float:
    """Return the work of a workgroup: clocks of its matrix instructions, or its instructions if it has none."""
    ops = [op for mine in waves for op in mine]
    matrix = sum(op.busy for op in ops if op.is_matrix)
    return float(matrix or len(ops))


def work_of(
    known: Amounts, execute: Callable[[tuple[int, ...]], Amounts], workgroups: int, units: int, resident: int
) -> Work:
    """Return the work of a launch, on `units` units that run `resident` workgroups each.

    `known` has the work of some workgroups, the first and last among them; `execute` returns that of others.
    """
    while further := _between(known):
        known = {**known, **execute(further)}
    most = max(known.values())
    runs = [(count, work / most) for count, work in _runs(known)]
    mean = sum(count * work for count, work in runs) / workgroups
    return Work(mean, min(work for _, work in runs), makespan(runs, units, resident))


def longest(known: Amounts) -> list[int]:
    """Return the workgroups with nearly the most work."""
    most = max(known.values())
    return [number for number, work in known.items() if work >= _ALIKE * most]


def _between(known: Amounts) -> tuple[int, ...]:
    """Return workgroups halfway between known ones whose work differs too much."""
    most = _MOST_UNCERTAIN * sum(count * work for count, work in _runs(known))
    return tuple(
        (one + other) // 2
        for one, other in pairwise(sorted(known))
        if abs(known[one] - known[other]) * ((other - one) // 2) > most
    )


def _runs(known: Amounts) -> list[Run]:
    """Return all workgroups in order as runs of equal work: each counts as the nearest known one."""
    numbers = sorted(known)
    ends = [(one + other) // 2 + 1 for one, other in pairwise(numbers)]
    return [
        (end - begin, known[number])
        for number, begin, end in zip(numbers, (0, *ends), (*ends, numbers[-1] + 1), strict=True)
    ]
