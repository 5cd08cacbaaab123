"""Products of 8-bit integers on every target: exact sums, saturated results, mixed signs, ragged sizes, any layout."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import pytest

from convgen import driver
from convgen.plan.config import Config
from convgen.problem.matmul import Problem, parse_problem
from convgen.run import verdict
from convgen.run.reference import Array
from tests.product.problems import expect_right
from tests.strategies import always

pytestmark = pytest.mark.in_turn(6)

SIGNED_ONLY = ("gfx90a", "gfx942", "gfx950")
MIXING = ("xehpg", "xehpc")
ANY_SIGNS = ("sm_80", "sm_90")  #: targets whose matrix instructions take every pair of signs
TILE = "tile=64x64x64 waves=2x2"

#: types of the two inputs and of the result, and the problem; of the last two the result stands elsewhere
PROBLEMS = (
    ("s8:s8:s32", "33x70:70x19"),
    ("u8:s8:f32", "--stag=ba --wtag=ab --dtag=ba 65x67:67x70"),
    ("s8:u8:u8", "--dtag=ba 40x129:129x24"),
    ("u8:u8:s8", "--stag=ba 16x31:31x48"),
    ("u8:s8:s32", "--dir=FWD_B mb2ic19ih9oc21oh5kh3sh2ph1"),
    ("s8:s8:s8", "--dir=FWD_B --stag=abx --wtag=abx --dtag=abx mb1ic32ih6oc16oh6kh3ph1"),
    ("s8:u8:f32", "--dir=FWD_D --dtag=abx mb1ic3ih11oc7oh6kh4sh2ph1dh1"),
    ("u8:s8:u8", "--dir=FWD_B mb1ic5id4oc6od3kd2"),
    ("s8:u8:s8", "--dir=BWD_D mb1ic13ih9oc20oh5kh3sh2ph1"),
    ("s8:u8:s32", "--dir=BWD_WB --stag=abx --dtag=abx mb2ic5ih7oc9oh7kh3ph1"),
)
RESULT = {"BWD_D": 0, "BWD_WB": 1}


def parse(types: str, text: str) -> Problem:
    """The problem whose inputs, in the order src, wei, dst, and result have these types."""
    *inputs, result = types.split(":")
    place = next((n for direction, n in RESULT.items() if direction in text), 2)
    inputs.insert(place, result)
    return parse_problem(f"--dt={':'.join(inputs)} {text}")


def run(problem: Problem, target: str, config: str = "", arrays: Mapping[str, Array] | None = None) -> str:
    """Run everything, and give the assembly."""
    code = driver.compile(driver.build(problem, target, Config.parse(config) if config else None))
    outcome = verdict.run(code, arrays=arrays)
    expect_right(outcome)
    assert outcome.checked == sum(prod(t.dims) for t in problem.outputs)
    return code.asm


#: Each problem on one target of each family in every run, in turn.
CASES = always(
    [(*problem, target) for problem in PROBLEMS for target in (*SIGNED_ONLY, *MIXING, *ANY_SIGNS)],
    lambda n, case: case[2] in [family[n // 7 % len(family)] for family in (SIGNED_ONLY, MIXING, ANY_SIGNS)],
)


@pytest.mark.parametrize(("types", "text", "target"), CASES)
def test_problems(types: str, text: str, target: str) -> None:
    run(parse(types, text), target)


def flips(types: str) -> int:
    """Exclusive ors of all kernels of a product, where copies are at two places: in the loop, and behind it."""
    problem = parse(types, "--stag=ab --wtag=ba 64x512:512x64")
    return run(problem, "gfx942", f"{TILE} mma=32x32x16 slots=1 taps=split").count("v_xor_b32")


def test_one_instruction_makes_four_elements_signed() -> None:
    """A lane copies 16 bytes of each matrix for a block."""
    of_addresses = flips("s8:s8:s32")
    assert [flips(types) - of_addresses for types in ("u8:s8:s32", "s8:u8:s32", "u8:u8:s32")] == [8, 8, 16]


CONFIGS = {
    "gfx90a": ("32x32x8", "16x16x16"),
    "gfx942": ("32x32x16", "16x16x32"),
    "gfx950": ("32x32x32", "16x16x64", "32x32x16", "16x16x32"),
    "xehpg": ("8x8x32", "16x8x32", "8x8x4"),
    "xehpc": ("16x8x32", "16x16x4"),
}
MNEMONICS = {"8x8x4": "dp4a ", "16x16x4": "dp4a ", "8x8x32": "dpas.8x8 ", ("xehpg", "16x8x32"): "dpasw.8x8 "}


#: Each instruction in every run; slices with one of each target.
WITH_SLICES = always(
    [(target, mma, slices) for target, names in CONFIGS.items() for mma in names for slices in (1, 3)],
    lambda n, case: case[2] == 1 or case[1] == CONFIGS[case[0]][0],
)


@pytest.mark.parametrize(("target", "mma", "slices"), WITH_SLICES)
def test_configs_name_every_instruction(target: str, mma: str, slices: int) -> None:
    """Slices meet by atomic additions, for the order of integers does not matter."""
    problem = parse("u8:s8:s32", "--attr-deterministic=true 50x200:200x40")
    tile = TILE if target in SIGNED_ONLY else "tile=32x32x32 waves=2x2"
    text = run(problem, target, f"{tile} mma={mma} slots=2 taps=split acc=v slices={slices}")
    wanted = MNEMONICS.get((target, mma), MNEMONICS.get(mma, "dpas.8x8 "))
    assert wanted in text if target in MIXING else f"v_mfma_i32_{mma}" in text.replace("_i8", "").replace("i8", "")
    assert ("atomic" in text) == (slices > 1)


@pytest.mark.parametrize("target", MIXING)
def test_matrix_instructions_come_first(target: str) -> None:
    text = run(parse("u8:u8:s32", "64x64:64x64"), target)
    assert "dpas" in text
    assert "dp4a" not in text


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90"])
def test_large_sums_round_once_and_wrap(target: str) -> None:
    """Above 2^24 not every integer is an f32; beyond 2^31 sums of s32 wrap."""
    random = np.random.default_rng(5)
    depth = 2000
    src = random.integers(100, 128, (3, depth), dtype=np.int8)
    wei = random.integers(100, 128, (depth, 4), dtype=np.int8)
    run(parse("s8:s8:f32", f"3x{depth}:{depth}x4"), target, arrays={"src": src, "wei": wei})
    depth = (1 << 17) + 96
    least = {"src": np.full((1, depth), -128, np.int8), "wei": np.full((depth, 2), -128, np.int8)}
    run(parse("s8:s8:s32", f"1x{depth}:{depth}x2"), target, arrays=least)
