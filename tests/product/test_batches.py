"""Groups of convolutions and batches of matrices: several products in one launch, exact on every target."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import convgen as cg
from convgen.choose.supported import check_supported
from convgen.ir.error import UserError
from convgen.problem.matmul import parse_problem
from convgen.run import verdict
from tests.strategies import SWEEP, always

pytestmark = pytest.mark.in_turn(6)

TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpc", "xehpg", "sm_90")
LINES = (
    "--dt=f16 --dir=FWD_B g4mb2ic32ih9oc64oh9kh3ph1",
    "--dt=bf16 --dir=FWD_D g8mb1ic8ih9oc8oh9kh3ph1_n\"depthwise\"",
    "--dt=f16 --dir=BWD_D g3mb2ic15ih9oc21oh5kh3ph1sh2",
    "--dt=f16 --dir=BWD_WB --stag=abcd --dtag=abcd g3mb2ic15ih9oc21oh5kh3ph1sh2",
    "--dt=s8:s8:s32 --dir=FWD_D g2mb2ic64ih6oc32oh6kh3ph1",
    "--dt=f16 --dir=BWD_D g6mb1ic6ih8oc12oh8kh3ph1_n\"multiplier_2\"",
    "--dt=f16 3x100x64:3x64x80",
    "--dt=f16:f16:f32 --wtag=abdc 2x3x40x64:1x3x64x48",
    "--dt=s8:s8:s32 --stag=acb --dtag=bac 5x33x64:1x64x20",
    "--dt=f16 --runtime_dims_masks=2:0 2x40x64:2x64x48",
)  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("line", LINES)
def test_several_products(line: str, target: str) -> None:
    outcome = verdict.run(cg.compile(cg.build(parse_problem(line), target)))
    assert outcome.checked
    assert outcome.passed


@pytest.mark.parametrize("line", LINES[2:4] + LINES[7:9])
def test_samples_of_tiles(line: str) -> None:
    """Sampled tiles of several products are computed by the workgroups that they say."""
    code = cg.compile(cg.build(parse_problem(line), "gfx942"))
    assert code.tiles is not None
    for part, (rows, columns) in enumerate(code.tiles.grids):
        seen = [region for tile in range(rows * columns) for region in code.tiles.regions(part, tile)]
        elements = sum(len(region.rows) * len(region.columns) for region in seen)
        shape = code.problem.tensor(seen[0].output).dims if code.problem else ()
        assert part or elements == np.prod(shape) or len(code.tiles.grids) > 1
    outcome = verdict.run(code, groups=5)
    assert outcome.checked
    assert outcome.passed


#: Ways to divide the K of each product over workgroups; atomic additions want a result of the type of the sums.
SHARED_K = ("slices=3 sum=last", "slices=5 sum=last:2", "slices=3 sum=launch", "slices=3 sum=atomic", "map=stream:5")
DEEP = {
    "batch": "--dt=f16:f16:f32 3x40x330:3x330x50",
    "broadcast": "--dt=s8:s8:s32 --wtag=abdc 2x1x33x320:1x2x320x20",
    "epilogue": "--dt=f16:f16:f32 --bia-dt=f32 --bia_mask=5 --attr-scales=src:common:0.5 3x40x330:3x330x50",
    "forward": "--dt=f16:f16:f32 --dir=FWD_B g3mb2ic48ih9oc60oh9kh3ph1",
    "backward data": "--dt=f32:f16:f16 --dir=BWD_D g2mb2ic30ih9oc40oh5kh3ph1sh2",
    "backward weights": "--dt=f16:f32:f16 --dir=BWD_WB g3mb3ic48ih10oc60oh10kh3ph1",
}
MMA = {"gfx942": {"f16": "16x16x16", "s8": "16x16x32"}, "xehpc": {"f16": "16x8x16", "s8": "16x8x32"}}
MMA["sm_90"] = {"f16": "8x16x16", "s8": "8x16x32"}


@pytest.mark.parametrize(
    ("name", "shared", "target"), always(product(DEEP, SHARED_K, MMA), lambda n, _: n // 3 % 3 == n % 3)
)
def test_each_product_divides_its_k_over_workgroups(name: str, shared: str, target: str) -> None:
    """The workspace, the counters of arrivals and the launches before and behind have a place for each product."""
    problem = parse_problem(DEEP[name])
    mma = MMA[target]["s8" if "s8" in DEEP[name] else "f16"]
    config = f"tile=32x32x32 waves=1x1 mma={mma} slots=1 taps=fused {shared}"
    if shared.endswith("atomic") and "attr" in DEEP[name]:
        with pytest.raises(UserError, match="sum=atomic"):
            cg.build(problem, target, config)
        return
    code = cg.compile(cg.build(problem, target, config))
    assert verdict.run(code).passed
    assert shared != SHARED_K[0] or verdict.run(code, groups=3).passed


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90a"])
def test_the_chooser_divides_the_k_of_few_products(target: str) -> None:
    for line in ("--dt=f16:f16:f32 4x64x65536:4x65536x64", "--dt=f16 --dir=BWD_W g4mb64ic64ih28oc64oh28kh3ph1"):
        assert "slices=" in str(cg.build(parse_problem(line), target).config)


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_random_batches(target: str) -> None:
    """Random groups are among the random problems."""
    pairs = st.integers(1, 3).flatmap(lambda b: st.sampled_from([(b, b), (1, b), (b, 1)]))
    sizes = st.tuples(*[st.integers(1, 90)] * 3)

    @settings(SWEEP, max_examples=40)
    @given(st.lists(pairs, min_size=1, max_size=2), sizes, st.sampled_from(("f16", "bf16:bf16:f32", "s8:s8:s32")))
    def run(batch: list[tuple[int, int]], size: tuple[int, int, int], types: str) -> None:
        left, right = ("".join(f"{b}x" for b in side) for side in zip(*batch))
        m, k, n = size
        line = f"--dt={types} {left}{m}x{k}:{right}{k}x{n}"
        assert verdict.run(cg.compile(cg.build(parse_problem(line), target))).passed, line

    run()


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
@pytest.mark.parametrize(
    "line", ["--dt=f16 70000x9x16:70000x16x8", "--dt=f16 --dir=FWD_D g70000mb1ic70000oc70000ih4kh3ph1"]
)
def test_more_products_than_a_grid_has_along_z(line: str, target: str) -> None:
    code = cg.compile(cg.build(parse_problem(line), target))
    assert all(max(launch.grid[1:]) == 1 for launch in code.record.launches)
    assert verdict.run(code, groups=3).passed


def test_more_products_of_sizes_known_at_launch_than_a_grid_has_along_z_are_refused() -> None:
    with pytest.raises(cg.Unsupported, match="wanted sizes that are known, or at most 65535 products"):
        cg.build(parse_problem("--dt=f16 --runtime_dims_masks=1:1 70000x9x16:70000x16x8"), "gfx942")


@pytest.mark.parametrize(
    ("fits", "more"),
    [
        ("67108863x16x16:67108863x16x16", "67108864x16x16:67108864x16x16"),  # a wave each: 2^32 work-items
        ("1048320x16:16x1048320", "1048576x16:16x1048576"),  # of one product, in tiles of 256 x 256 by four waves
        ("--dir=FWD_D mb1048320ic16ih1oc1048320kh1", "--dir=FWD_D mb1048576ic16ih1oc1048576kh1"),
    ],
)
def test_a_launch_has_less_than_2_to_the_32_work_items_along_x(fits: str, more: str) -> None:
    """An AQL packet counts work-items of a grid in 32 bits; a launch record counts workgroups in 31."""
    problem = parse_problem(f"--dt=s8 {fits}")
    check_supported(problem, cg.facts("gfx942"))
    program = cg.build(problem, "gfx942")
    assert all(kernel.grid[0] * kernel.subgroups * kernel.width < 1 << 32 for kernel in program.ir.kernels)
    with pytest.raises(cg.Unsupported, match="wanted no more than tiles cover in a launch of 4294967295 work-items"):
        check_supported(parse_problem(f"--dt=s8 {more}"), cg.facts("gfx942"))
    check_supported(parse_problem(f"--dt=s8 {more}"), cg.facts("xehpc"))


@pytest.mark.parametrize("target", TARGETS)
def test_tensors_of_more_bytes_than_addresses_are_refused(target: str) -> None:
    with pytest.raises(cg.Unsupported, match="given dst of 4000000000000000000 bytes, wanted at most 281474976710656"):
        check_supported(parse_problem("--dt=s8 2000000000x16:16x2000000000"), cg.facts(target))
