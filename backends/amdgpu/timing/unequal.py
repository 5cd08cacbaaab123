"""Launches whose workgroups differ in what they have to do: some are executed, others do as much as the nearest one.

Where neighbours of those that are executed differ much, further ones between them are, until little is left open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

from convgen.backends.amdgpu.timing.ops import Op, Port
from convgen.backends.timing import Work
from convgen.ir.layout.dispatch import Run, busiest

_OPEN = 0.01  #: of all work, that may depend on where between two workgroups it changes
_ALIKE = 0.9  #: of the most work of a workgroup; who has that stands for those that have most

Amounts = Mapping[int, float]  #: by workgroup


def amount(waves: Iterable[list[Op]]) -> float:
    """What a workgroup has to do: clocks of its matrix instructions, or instructions if it has none."""
    ops = [op for mine in waves for op in mine]
    matrix = sum(op.busy for op in ops if op.port is Port.MATRIX)
    return float(matrix or len(ops))


def work_of(
    known: Amounts, execute: Callable[[tuple[int, ...]], Amounts], workgroups: int, units: int, held: int
) -> Work:
    """The work of a launch from that of the workgroups that are `known`, first and last among them, and of others that
    it executes; on so many units that hold so many.
    """
    while further := _between(known):
        known = {**known, **execute(further)}
    most = max(known.values())
    runs = [(count, each / most) for count, each in _runs(known)]
    mean = sum(count * each for count, each in runs) / workgroups
    return Work(mean, min(each for _, each in runs), busiest(runs, units, held))


def longest(known: Amounts) -> list[int]:
    """The workgroups that have about as much to do as any."""
    most = max(known.values())
    return [number for number, each in known.items() if each >= _ALIKE * most]


def _between(known: Amounts) -> tuple[int, ...]:
    """Workgroups amid two that are known, where these differ too much."""
    most = _OPEN * sum(count * each for count, each in _runs(known))
    return tuple(
        (one + other) // 2
        for one, other in pairwise(sorted(known))
        if abs(known[one] - known[other]) * ((other - one) // 2) > most
    )


def _runs(known: Amounts) -> list[Run]:
    """All workgroups in their order: half of those between two that are known do as much as either."""
    numbers = sorted(known)
    ends = [(one + other) // 2 + 1 for one, other in pairwise(numbers)]
    return [
        (end - begin, known[number])
        for number, begin, end in zip(numbers, (0, *ends), (*ends, numbers[-1] + 1), strict=True)
    ]
