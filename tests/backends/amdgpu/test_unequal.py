"""Launches whose workgroups differ: what is executed of them, and what that says of the others."""

from __future__ import annotations

import pytest

from convgen.backends.event_model.unequal import longest, work_of

SAMPLE = (0, 33, 66, 100, 133, 166, 199)
UNITS, HELD = 10, 2


class Launch:
    """200 workgroups, which are asked for what they have to do."""

    def __init__(self, amounts: list[float]) -> None:
        self.amounts, self.asked = amounts, 0

    def __call__(self, groups: tuple[int, ...]) -> dict[int, float]:
        self.asked += len(groups)
        return {n: self.amounts[n] for n in groups}

    def work(self) -> tuple[float, float, float]:
        known = {n: self.amounts[n] for n in SAMPLE}
        found = work_of(known, self, len(self.amounts), UNITS, HELD)
        return found.mean, found.least, found.busiest


def test_equal_ones_need_no_further_look() -> None:
    launch = Launch([7.0] * 200)
    assert launch.work() == (1, 1, 20)
    assert launch.asked == 0


@pytest.mark.parametrize("at", [1, 20, 40, 77, 120, 180, 198])
def test_where_it_changes_is_found(at: int) -> None:
    amounts = [8.0] * at + [2.0] * (200 - at)
    launch = Launch(amounts)
    mean, least, busiest = launch.work()
    assert mean == pytest.approx(sum(amounts) / 8 / 200, rel=0.02)
    assert least == 0.25
    assert busiest >= mean * 200 / UNITS - 1e-9
    assert launch.asked <= 6


def test_what_grows_evenly_is_told_by_its_neighbours() -> None:
    amounts = [float(1 + n) for n in range(200)]
    launch = Launch(amounts)
    mean, least, _ = launch.work()
    assert mean == pytest.approx(sum(amounts) / 200 / 200, rel=0.03)
    assert least == 1 / 200
    assert launch.asked <= 12


def test_who_has_about_the_most_stands_for_the_longest() -> None:
    assert longest({0: 10.0, 3: 9.5, 5: 8.0, 9: 10.0}) == [0, 3, 9]
