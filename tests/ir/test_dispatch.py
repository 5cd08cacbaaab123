"""Workgroups that come to units: against a loop over all of them, and against bounds that any order keeps."""

from __future__ import annotations

from heapq import heapify, heapreplace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convgen.ir.layout.dispatch import Run, makespan

#: Powers of two below one keep sums exact, so that units that end together do so in both.
RUNS = st.lists(st.tuples(st.integers(1, 150), st.integers(1, 1 << 16).map(lambda n: n / 1024)), min_size=1, max_size=4)
UNITS, HELD = st.integers(1, 6), st.sampled_from([1, 2, 4])


def one_by_one(runs: list[Run]) -> list[Run]:
    return [(1, each) for count, each in runs for _ in range(count)]


@given(RUNS, UNITS)
def test_units_that_hold_one_take_the_next_as_they_end(runs: list[Run], units: int) -> None:
    ends = [0.0] * units
    heapify(ends)
    for _, each in one_by_one(runs):
        heapreplace(ends, ends[0] + each)
    assert makespan(runs, units, 1) == max(ends)


@given(RUNS, UNITS, HELD)
def test_turns_that_are_alike_are_skipped_without_a_trace(runs: list[Run], units: int, held: int) -> None:
    assert makespan(runs, units, held) == makespan(one_by_one(runs), units, held)


@given(RUNS, UNITS, HELD)
def test_no_unit_is_idle_before_the_last_begins(runs: list[Run], units: int, held: int) -> None:
    """All work, spread evenly, is the least; one that begins last is delayed by no more than what a unit holds."""
    total, longest = sum(count * each for count, each in runs), max(each for _, each in runs)
    assert max(total / units, longest) <= makespan(runs, units, held) <= total / units + held * longest


@pytest.mark.parametrize(("count", "held", "expected"), [(110, 1, 1), (111, 1, 2), (220, 2, 2), (221, 2, 3), (1, 8, 1)])
def test_equal_workgroups_go_in_rounds(count: int, held: int, expected: int) -> None:
    assert makespan([(count, 1.0)], 110, held) == expected


def test_units_are_filled_by_number_and_not_by_work() -> None:
    """Four units that hold two get all eight at once: who has the long one has one of the second four, too."""
    assert makespan([(1, 8.0), (7, 2.0)], 4, 2) == 10
    assert makespan([(1, 8.0), (7, 2.0)], 4, 1) == 8


def test_nothing_takes_no_time() -> None:
    assert makespan([], 4, 2) == makespan([(5, 0.0)], 4, 2) == makespan([(0, 3.0)], 4, 2) == 0
