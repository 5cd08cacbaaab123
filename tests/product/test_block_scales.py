"""Scales along K that multiply the sums of each block of K, run on the strict simulators, exactly right."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from convgen import driver
from convgen.backends.target import get
from convgen.choose.choose import candidates
from convgen.ir.error import DoesNotFit
from convgen.plan import block_scales
from convgen.plan.config import TENSOR, Config
from convgen.plan.plan import make_plan
from convgen.problem.matmul import parse_problem
from convgen.run import execution, reference, verdict
from tests.product.problems import expect_right
from tests.strategies import always

F8 = "--dt=f8_e4m3:f8_e4m3"
BLOCKS = "src:per_ocic:f32:1x128+wei:per_ocic:f32:128x128"
MX = "src:per_ocic:e8m0:1x32+wei:per_ocic:e8m0:32x1"
#: what is special -> the problem's line
CASES = {
    "blocks of weights": f"{F8}:bf16 --wtag=ba --attr-scales={BLOCKS} 100x512:512x264",
    "columns": f"{F8}:f32 --wtag=ba --attr-scales=src:per_ocic:f32:1x128+wei:per_ocic:f32:128x1 70x384:384x136",
    "weights only, in rows": "--dt=f8_e4m3:f8_e5m2:f32 --wtag=ab --attr-scales=wei:per_ocic:f32:64x1 70x320:320x144",
    "source only, a short group": f"{F8}:bf16 --wtag=ba --attr-scales=src:per_ocic:f32:1x256 33x1000:1000x100",
    "f16": "--dt=f16 --wtag=ba --attr-scales=wei:per_ocic:f32:128x1 64x256:256x128",
    "a bias, bf16": f"--dt=bf16:bf16:f32 --wtag=ba --bia_dt=f32 --attr-scales={BLOCKS} 64x256:256x128",
    "runs of 32": f"{F8}:f32 --wtag=ba --attr-scales={MX} 64x256:256x128",
    "pairs": f"--dt=f4_e2m1:f4_e2m1:f32 --wtag=ba --attr-scales={MX} 64x256:256x128",
    "integers": "--dt=s8:s8:f32 --wtag=ba --attr-scales=src:per_ocic:f32:1x128+wei:per_ocic:f32:128x1 64x512:512x128",
    "a batch": f"{F8}:f32 --wtag=acb --attr-scales=wei:per_ocic:f32:128x1 3x33x256:3x256x40",
    "a gate": f"{F8}:bf16 --wtag=ba --attr-scales={BLOCKS} --attr-post-ops=glu:halves:swish:1 5x256:256x256",
}
TARGETS = "gfx90a", "gfx942", "gfx950", "xehpg", "xehpc", "sm_80", "sm_90a"


@pytest.mark.in_turn(4)
@pytest.mark.parametrize(
    ("name", "target"),
    always(
        [(n, t) for t in TARGETS for n in CASES], lambda n, case: case in {("columns", "gfx950"), ("f16", "sm_90a")}
    ),
)
def test_results_are_exact(name: str, target: str) -> None:
    expect_right(verdict.run(driver.compile(driver.build(parse_problem(CASES[name]), target))))


@pytest.mark.parametrize(
    "line",
    [
        "tile=128x128x128 waves=2x4 mma=128x64x32 slots=3 copy=tensor",
        "tile=128x128x64 waves=2x4 mma=128x64x32 slots=4 map=persist:2 copy=tensor",
        "tile=64x64x128 waves=1x4 mma=64x64x32 slots=2 slices=2 copy=direct",
        "tile=64x64x128 waves=2x2 mma=8x16x32 slots=3 copy=direct",
        "tile=64x64x128 waves=2x2 mma=8x16x32 slots=2 stages=2",
    ],
)
@pytest.mark.parametrize("columns", [200, 256])
def test_blocks_are_scaled_on_every_path(line: str, columns: int) -> None:
    problem = parse_problem(f"{F8}:bf16 --wtag=ba --attr-scales={BLOCKS} 100x512:512x{columns}")
    code = driver.compile(driver.build(problem, "sm_90a", line))
    expect_right(verdict.run(code))
    assert "fma.rn.f32" in code.asm


def random_line(random: Random) -> str:
    types = "f8_e4m3:f8_e4m3:bf16", "f8_e5m2:f8_e4m3:f16", "s8:s8:f32", "u8:s8:bf16", "f16", "f4_e2m1:f4_e2m1:f32"
    k, group = random.choice((96, 160, 320, 512)), random.choice((32, 64, 128))
    scale = random.choice(("f32", "e8m0", "bf16"))
    of_src = f"src:per_ocic:{scale}:1x{random.choice((group, 2 * group))}"
    of_wei = f"wei:per_ocic:{scale}:{group}x{random.choice((1, 1, 32, 128))}"
    scales = random.choice((f"{of_src}+{of_wei}", of_src, of_wei, f"{of_src}+wei:per_oc:f32"))
    tags, more = random.choice(("--wtag=ba", "--wtag=ab", "--stag=ba --wtag=ab")), random.choice(("", "--bia_dt=f32 "))
    of_types = random.choice(types)
    rows = (2, 16, 34) if "f4" in of_types else (1, 16, 33, 100)  # two numbers of 4 bits share a byte
    m, n = random.choice(rows), random.choice((16, 34, 136))
    return f"--dt={of_types} {tags} --attr-scales={scales} {more}{m}x{k}:{k}x{n}"


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_random_products_are_exact(target: str) -> None:
    random = Random(f"block scales {target}")
    for _ in range(40):
        expect_right(verdict.run(driver.compile(driver.build(parse_problem(random_line(random)), target))))


@pytest.mark.parametrize("target", ["gfx942", "gfx950", "xehpc", "sm_80", "sm_90a"])
def test_the_chooser_multiplies_no_floats_of_32_bits(target: str) -> None:
    problem = parse_problem(f"--dt=f8_e4m3:f8_e4m3:bf16 --wtag=ba --attr-scales={BLOCKS} 4096x4096:4096x4096")
    best = next(iter(candidates(problem, get(target).facts))).config
    assert "f32" not in best.types


@pytest.mark.parametrize("columns", [200, 264, 576, 2112])
def test_bulk_copies_bring_weights_whose_last_group_is_shorter(columns: int) -> None:
    problem = parse_problem(f"--dt=f8_e4m3:f8_e4m3:bf16 --wtag=ba --attr-scales={BLOCKS} 4096x7168:7168x{columns}")
    assert Config.parse(driver.build(problem, "sm_90a").config).copy == (TENSOR,)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_only_its_own_sums_meet_a_scale_that_is_not_finite(value: float) -> None:
    problem = parse_problem(CASES["blocks of weights"])
    code = driver.compile(driver.build(problem, "sm_90a"))
    assert code.object
    inputs = {name: np.array(fill) for name, fill in reference.fills(problem).items()}
    (name,) = (name for name in inputs if "scale" in name and "wei" in name)
    inputs[name][0, 0] = value  # of the first 128 columns
    outputs, _ = execution.execute(code.record, code.object, inputs)
    dst = outputs["dst"].whole().view(np.uint16).astype(np.uint32).reshape(problem.outputs[0].dims) << 16
    dst = dst.view(np.float32)  # the bits of bf16 are the upper ones of f32
    assert not np.isfinite(dst[:, :128]).all()
    assert np.isfinite(dst[:, 128:]).all()


def test_a_block_lies_within_a_group() -> None:
    problem = parse_problem(CASES["weights only, in rows"])
    config = Config.parse("tile=64x64x128 waves=2x2 mma=8x16x32 slots=2 stages=2")
    with pytest.raises(DoesNotFit, match="blocks of 128 along K and scales of 64 positions, wanted blocks that divide"):
        make_plan(problem, config, get("sm_90a").facts)


@pytest.mark.parametrize(
    "line",
    [
        "--dt=f8_e4m3:f8_e4m3:f32 --wtag=ba --attr-scales=src:per_dim_0+wei:per_oc 64x256:256x128",
        "--dt=f16:s8:f16 --attr-scales=wei:per_ocic:f16:64x1 --attr-zero-points=wei:per_ocic:s8:64x1 64x256:256x128",
    ],
)
def test_other_scales_are_none_of_blocks(line: str) -> None:
    assert block_scales.of(parse_problem(line)) is None
