"""Slices of whole rounds of K, of which some have one more: exact results, and loops without masks at the end of K."""

from __future__ import annotations

import re

import pytest

from convgen import driver
from convgen.backends.target import get
from convgen.plan.config import Config
from convgen.plan.plan import Plan, make_plan
from convgen.problem.matmul import parse_problem
from convgen.run import verdict
from convgen.run.code import Code

_MMA = {"xehpc": "mma=16x8x", "xehpg": "mma=8x8x", "gfx942": "mma=16x16x"}
WEIGHTS = "--dir=BWD_W --dt=f16 mb2ic16oc32ih8kh3ph1"  # 8 blocks of 16 pixels

#: problem, config without the matrix instruction
CASES = {
    "one slot": (WEIGHTS, "tile=32x32x16 waves=1x2 slots=1 taps=fused slices=3"),
    "two slots": ("--dt=f16 40x320:320x40", "tile=32x32x32 waves=2x2 slots=2 taps=split slices=3"),
    "no slots": ("--dt=f16 40x320:320x40", "tile=32x32x32 waves=1x2 slots=0 taps=split slices=3"),
    "three slots": ("--dt=f16 40x672:672x40", "tile=32x32x32 waves=2x2 slots=3 taps=split slices=4"),
    "last": ("--dt=f16 40x320:320x40", "tile=32x32x32 waves=2x2 slots=2 taps=split slices=3 sum=last"),
    "zero points": (
        "--dt=s8:s8:s32 --attr-zero-points=src:0:3+wei:0:2 --attr-deterministic=true 40x320:320x40",
        "tile=32x32x32 waves=2x2 slots=2 taps=split slices=3",
    ),
}


def plan(target: str, line: str, config: str) -> Plan:
    problem = parse_problem(line)
    k = 32 if "s8" in line else 16
    return make_plan(problem, Config.parse(f"{config} {_MMA[target]}{k}"), get(target).facts)


def compiled(target: str, line: str, config: str) -> Code:
    k = 32 if "s8" in line else 16
    return driver.compile(driver.build(parse_problem(line), target, f"{config} {_MMA[target]}{k} acc=v"))


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("target", ["xehpc", "xehpg"])
@pytest.mark.parametrize("name", CASES)
def test_results_are_exact(target: str, name: str) -> None:
    assert plan(target, *CASES[name]).parts[0].mapping.uneven_grains
    assert verdict.run(compiled(target, *CASES[name])).passed


@pytest.mark.parametrize("target", ["xehpc", "xehpg"])
def test_sums_that_are_not_finite_are_made_again_of_the_same_blocks(target: str) -> None:
    code = compiled(target, *CASES["one slot"])
    outcome = verdict.run(code)
    assert outcome.passed
    assert not any(kernel.missed for kernel in outcome.coverage)


def test_loops_have_no_masks_at_the_end_of_k() -> None:
    def masked(k: int) -> int:
        config = "tile=32x32x32 waves=2x2 slots=2 taps=split slices=3"
        code = compiled("xehpg", f"--dt=f16 32x{k}:{k}x32", config)
        loop = re.search(r"k_loop:.*?k_loop_end:", code.asm, re.DOTALL)
        assert loop
        return len(re.findall(r"^\(f.*load\.ugm", loop[0], re.MULTILINE))

    assert masked(1280) == 0  # 20 rounds
    assert masked(1280 + 32) > 0  # the last slice has a block behind the end


@pytest.mark.parametrize(
    ("k", "words", "why"),
    [
        (320, "slices=5", "all slices have as many"),
        (320, "slices=4", "three blocks are less than two rounds"),
        (328, "slices=3", "the last block is not full"),
        (352, "slices=3", "the last round is not full"),
        (64, "slices=3", "there are fewer rounds than slices"),
    ],
)
def test_slices_of_as_many_blocks_each(k: int, words: str, why: str) -> None:
    made = plan("xehpc", f"--dt=f16 40x{k}:{k}x40", f"tile=32x32x32 waves=1x2 slots=2 taps=split {words}")
    assert not made.parts[0].mapping.uneven_grains, why


def test_surfaces_mask_what_is_behind_the_end_by_themselves() -> None:
    made = plan("gfx942", CASES["two slots"][0], "tile=32x32x32 waves=1x1 slots=2 taps=split slices=3")
    assert not made.parts[0].mapping.uneven_grains
