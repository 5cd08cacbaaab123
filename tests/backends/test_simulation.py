"""How findings print."""

from __future__ import annotations

import pytest

from convgen.backends.simulation import Finding


@pytest.mark.parametrize(("lane", "end"), [(-1, ""), (0, " lane 0"), (5, " lane 5")])
def test_a_finding_says_who_and_where(lane: int, end: str) -> None:
    found = Finding("poison", "v1 was never written", "k", 0x1C, "v_mov_b32 v0, v1", 3, 2, lane)
    where = "[k+0x001c: v_mov_b32 v0, v1] workgroup 3 wave 2"
    assert str(found) == f"poison: v1 was never written {where}{end}"
