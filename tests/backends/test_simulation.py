"""How findings print, which pages of a buffer there are, and coverage of several runs."""

from __future__ import annotations

import numpy as np
import pytest

from convgen.backends.simulation import PAGE, Budget, Bytes, Coverage, Finding, Pages, Place, Places, joined


@pytest.mark.parametrize(("lane", "end"), [(-1, ""), (0, " lane 0"), (5, " lane 5")])
def test_a_finding_says_who_and_where(lane: int, end: str) -> None:
    found = Finding("poison", "v1 was never written", "k", 0x1C, "v_mov_b32 v0, v1", 3, 2, lane)
    where = "[k+0x001c: v_mov_b32 v0, v1] workgroup 3 subgroup 2"
    assert str(found) == f"poison: v1 was never written {where}{end}"


def test_only_pages_that_are_touched_are_made() -> None:
    """The last byte of an access decides: one that ends with a page does not touch the next."""
    made: list[int] = []

    def make(places: Places) -> Bytes:
        made.extend((places[:, 0] // PAGE).tolist())
        return np.zeros(places.shape, np.uint8)

    pages = Pages(4 * PAGE, make, Budget(1 << 30))
    pages.touch(np.array([PAGE - 16]), 16)
    assert made == [0]
    pages.touch(np.array([2 * PAGE - 15]), 16)
    assert sorted(made) == [0, 1, 2]


def test_coverage_of_several_runs_is_joined_by_kernel() -> None:
    first, second, third = (Place(pc, pc + 4, f"i{pc}") for pc in (0, 4, 12))
    one, other = Coverage("a", 9, (first, second, third)), Coverage("a", 9, (second, third))
    both = joined([one, Coverage("b", 2, ()), other])
    assert both == (Coverage("a", 9, (second, third)), Coverage("b", 2, ()))
    assert [found.executed for found in both] == [7, 2]


def test_missed_instructions_side_by_side_are_one_stretch() -> None:
    places = tuple(Place(pc, pc + size, "i") for pc, size in ((0, 4), (4, 8), (16, 4)))
    assert Coverage("a", 9, places).stretches == (places[:2], places[2:])
