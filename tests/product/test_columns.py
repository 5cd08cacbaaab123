"""Stride phases as columns of one product: every tap once, what is no tap contributes nothing."""

from __future__ import annotations

from itertools import islice
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import convgen as cg
from convgen import driver
from convgen.backends.target import get
from convgen.ir.error import UserError
from convgen.plan import views
from convgen.plan.config import COLUMNS, Config
from convgen.plan.plan import make_plan
from convgen.problem.conv import Conv
from convgen.run import reference, verdict
from tests import samples
from tests.product import test_padding as padding

pytestmark = pytest.mark.in_turn(6)

CONFIG = {
    "amdgpu": "tile=32x32x32 waves=1x1 mma=16x16x16 slots=2 taps=fused phases=columns",
    "intel": "tile=32x32x32 waves=2x2 mma=16x8x16 slots=1 taps=split phases=columns",
    "nvidia": "tile=32x32x32 waves=1x2 mma=8x16x16 slots=2 taps=fused phases=columns",
}
CHANNELS_LAST = {"stag": "axb", "wtag": "axb", "dtag": "axb"}


def config(target: str) -> str:
    return samples.of_family(target, CONFIG)


def strided(random: Random) -> Conv:
    """Backward data of few channels: strides, windows outside, what no window reaches, dilation and groups."""
    groups, stride = random.choice((1, 1, 2)), random.choice((2, 2, 3, 4))
    kernel = random.choice([k for k in (2, 3, 4, 5, 7, 11) if k >= stride])
    ic, oc = groups * random.randint(1, 8), groups * random.choice((3, 8, 16, 33))
    wide = f"kw{kernel}sw{random.choice((1, stride))}pw{random.randint(0, kernel)}"
    dilation = random.choice((0, 0, 2)) if stride != 3 else random.choice((0, 1))
    high = f"kh{kernel}sh{stride}ph{random.randint(0, kernel)}dh{dilation}"
    size = random.randint(8, 14)
    reach = max(0, (kernel - 1) * dilation - 3)
    images, width = random.randint(1, 2), max(kernel, random.randint(8, 14))
    line = f"g{groups}mb{images}ic{ic}oc{oc}ih{size + reach}iw{width}{high}{wide}"
    return Conv.parse(line, dir="BWD_D", dt="f16", stag=random.choice(("axb", "abx")), wtag="axb", dtag="axb")


def found(problem: Conv, target: str) -> int | None:
    """Mismatches, all findings counted; None where the config does not fit."""
    try:
        code = driver.compile(driver.build(problem, target, config(target)))
    except UserError:
        return None
    assert len(code.record.launches) == 1
    outcome = verdict.run(code)
    return outcome.mismatches + len(outcome.findings)


@pytest.mark.parametrize("target", samples.SIMULATED)
def test_strided_problems_are_right(target: str) -> None:
    assert_right(target, 1)


@pytest.mark.sweep
@pytest.mark.parametrize("target", samples.SIMULATED)
def test_more_strided_problems_are_right(target: str) -> None:
    assert_right(target, 6)


def assert_right(target: str, count: int) -> None:
    """Run so many problems, of those drawn that fit."""
    random = Random(f"columns {target}")
    results = (found(strided(random), target) for _ in range(4 * count))
    ran = list(islice((wrong for wrong in results if wrong is not None), count))
    assert len(ran) == count
    assert not any(ran)


@pytest.mark.parametrize("target", samples.SIMULATED)
@pytest.mark.parametrize(
    "shape", ["mb1ic3ih9oc16kh3sh2ph1", "mb1ic2ih8oc8kh7sh2ph3", "g2mb1ic4ih9oc16kh5sh4ph1", "mb1ic1iw11oc8kw5sw2pw0"]
)
def test_taps_that_do_not_exist_are_not_multiplied(target: str, shape: str) -> None:
    """An infinity in diff_dst meets zeros in place of weights, as those in weights meet padding."""
    problem = Conv.parse(shape, dir="BWD_D", dt="f16", **CHANNELS_LAST)
    padding.check(problem, target, config(target), padding.corners(problem))


@settings(max_examples=8)
@given(st.data())
def test_what_is_not_finite_stays_where_it_is(data: st.DataObject) -> None:
    """One element of each factor, of which the kernel has shares where K is cut."""
    problem = strided(Random(data.draw(st.integers(0, 99))))
    inputs = reference.fill(problem)
    for name in ("wei", "diff_dst"):
        inputs[name] = inputs[name].copy()
        at = tuple(data.draw(st.integers(0, size - 1)) for size in inputs[name].shape)
        inputs[name][at] = data.draw(st.sampled_from((np.inf, -np.inf, np.nan, 2.0)))
    ways = ("slots=2",) if problem.groups > 1 else ("slots=2", "slots=2 slices=2", "slots=1 map=stream:3")
    line = f"tile=32x32x32 waves=1x1 mma=16x16x16 taps=fused phases=columns {data.draw(st.sampled_from(ways))}"
    code = driver.compile(driver.build(problem, "gfx950", line))
    result = cg.simulate(code, **inputs)
    with np.errstate(all="ignore"):
        right = reference.whole(problem, inputs, "diff_src")
    np.testing.assert_array_equal(result, right)


def test_a_tile_is_the_rows_of_all_its_phases() -> None:
    """Tiles that hold some phases of some pixels: each output element is of one of them, and needs one workgroup."""
    problem = Conv.parse("g2mb2ic12ih13oc16kh3sh2ph1", dir="BWD_D", dt="f16", **CHANNELS_LAST)
    line = "tile=32x16x32 waves=1x1 mma=16x16x16 slots=2 taps=fused phases=columns"
    code = driver.with_tiles(driver.compile(driver.build(problem, "gfx942", line)))
    assert code.tiles is not None
    ((down, across),) = code.tiles.grids
    seen = np.zeros((2 * 13 * 13, 12), int)
    for tile in range(down * across):
        for region in code.tiles.regions(0, tile):
            seen[np.ix_(region.rows, region.columns)] += 1
        assert len(code.tiles.groups(0, tile)[0]) == 1
    assert across > 1
    assert (seen == 1).all()
    outcome = verdict.run(code, groups=3)
    assert (outcome.mismatches, outcome.findings) == (0, ())


def test_a_tile_whose_rows_are_phases_is_sampled() -> None:
    """Pixels lie along N, phases along M: where only one of two axes has a stride, the other is no product of both."""
    tags = {"stag": "abx", "wtag": "axb", "dtag": "axb"}
    problem = Conv.parse("g2mb1_ic2oc16_ih9oh5kh3sh2ph1_iw12ow10kw3pw0", dir="BWD_D", dt="f16", **tags)
    line = "tile=16x32x32 waves=1x1 mma=16x16x16 slots=2 taps=fused phases=columns"
    code = driver.with_tiles(driver.compile(driver.build(problem, "gfx942", line)))
    assert code.tiles is not None
    ((down, across),) = code.tiles.grids
    seen = np.zeros((9 * 12, 2), int)
    for tile in range(down * across):
        for region in code.tiles.regions(0, tile):
            seen[np.ix_(region.rows, region.columns)] += 1
    assert (seen == 1).all()
    outcome = verdict.run(code, groups=2)
    assert outcome.passed
    assert outcome.checked


@pytest.mark.parametrize(
    ("line", "direction", "other", "why"),
    [
        ("mb2ic3ih16oc32kh3ph1", "BWD_D", "", "wanted backward data with strides"),
        ("mb2ic3ih16oc32kh3sh2ph1", "FWD_D", "", "wanted backward data with strides"),
        ("mb2ic3ih16oc32kh3sh2ph1dh1", "BWD_D", "", "taps at each input position"),
        ("mb2ic3ih16oc32kh1sh2", "BWD_D", "", "taps at each input position"),
        ("mb2ic3ih16oc32kh3sh2ph1", "BWD_D", "grids=merged", "wanted several products"),
    ],
)
def test_others_are_refused_in_a_line(line: str, direction: str, other: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as refused:
        driver.build(Conv.parse(line, dir=direction, dt="f16"), config=f"{CONFIG['amdgpu']} {other}")
    assert "\n" not in str(refused.value)


def test_lanes_have_no_columns() -> None:
    problem = Conv.parse("g8mb1ic8ih9oc8kh3sh2ph1", dir="BWD_D", dt="f16")
    lanes = "tile=16x8x9 waves=1x1 mma=fma:1x1x2 slots=0 taps=fused"
    driver.build(problem, config=lanes)
    with pytest.raises(UserError, match="computes each phase by itself"):
        driver.build(problem, config=f"{lanes} phases=columns")


def test_the_stem_is_one_product_that_fills_its_columns() -> None:
    """4 x 4 taps for 7 x 7 in strides of 2: 12 of 16 columns, as many pixels as a phase has, and no result masked."""
    problem = Conv.parse("mb2ic3ih24oc64oh12kh7sh2ph3", dir="BWD_D", dt="f16", **CHANNELS_LAST)
    (part,) = views.products(problem, 1, phases=COLUMNS)
    assert (part.m, part.n, part.k) == (2 * 12 * 12, 12, 16 * 64)
    assert not any(t.masked for t in part.result.index)


def test_of_strides_above_the_taps_the_fewest_products_are_made() -> None:
    """11 x 11 in strides of 4, padding 2: 3 x 3 taps, at the cost of one more position."""
    problem = Conv.parse("mb1ic3ih224oc64oh55kh11sh4ph2", dir="BWD_D", dt="f16", **CHANNELS_LAST)
    (part,) = views.products(problem, 1, phases=COLUMNS)
    assert (part.m, part.n, part.k) == (57 * 57, 48, 9 * 64)
    plan = make_plan(problem, Config.parse(CONFIG["amdgpu"]), get("gfx942").facts)
    assert len(plan.parts) == 1
