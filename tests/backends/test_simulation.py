"""How findings print, and which pages of a buffer there are."""

from __future__ import annotations

import numpy as np
import pytest

from convgen.backends.simulation import PAGE, Budget, Bytes, Finding, Pages, Places


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
