"""Barriers of a warp stand between accesses of its lanes to shared memory, and nowhere else."""

from __future__ import annotations

import re

import pytest

import convgen as cg
from convgen.ir.record import evolve
from convgen.problem.conv import Conv
from convgen.run import verdict

ONE_WARP = "tile=32x32x32 waves=1x1 mma=8x16x{k}"
LAYER = "mb2ic24oc40ih7kh3ph1"


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize(("dt", "k"), [("f16", 16), ("s8:s8:s8", 32)])
def test_workgroups_of_one_warp_are_right(dt: str, k: int, slots: int) -> None:
    problem = Conv.parse(LAYER, dir="FWD_B", dt=dt)
    assert verdict.run(
        cg.compile(cg.build(problem, target="sm_90", config=f"{ONE_WARP.format(k=k)} slots={slots}"))
    ).passed


def test_a_warp_without_its_barriers_races() -> None:
    """Weights are transposed between lanes of one warp, through a part of shared memory that is its own."""
    problem = Conv.parse(LAYER, dir="FWD_D", dt="s8:s8:s8")
    code = cg.compile(cg.build(problem, target="sm_90", config=f"{ONE_WARP.format(k=32)} slots=2"))
    text = re.sub(r"\n *(bar\.warp\.sync|bar\.sync)[^\n]*", "", code.asm)
    outcome = verdict.run(evolve(code, asm=text, object=text.encode()))
    assert {finding.kind for finding in outcome.findings} == {"lane-race"}


def test_no_barrier_of_a_warp_beside_that_of_the_workgroup() -> None:
    problem = Conv.parse(LAYER, dir="FWD_D", dt="f16")
    code = cg.compile(cg.build(problem, target="sm_90", config="tile=32x32x32 waves=2x2 mma=8x16x16 slots=3"))
    loop = re.search(r"LOOP_1:\n(.*?) bra[^\n]* LOOP_1;", code.asm, re.S)
    assert loop is not None
    assert "bar.sync 0" in loop[1]
    assert "bar.warp.sync" not in loop[1]


def test_one_warp_keeps_copies_in_flight() -> None:
    """A barrier that waits for the oldest group of copies stays, though one warp would need none for its order."""
    problem = Conv.parse(LAYER, dir="FWD_D", dt="f16")
    text = cg.compile(cg.build(problem, target="sm_90", config=f"{ONE_WARP.format(k=16)} slots=3 copy=direct")).asm
    assert "cp.async.wait_group 1" in text
    assert "cp.async.wait_all" not in text
