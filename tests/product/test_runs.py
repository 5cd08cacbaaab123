"""Runs of taps and channels: what messages bring of what does not exist is in no sum, whatever stands there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

import convgen as cg
from convgen import driver
from convgen.ir.error import DoesNotFit, UserError
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.conv import Conv
from convgen.run import reference, verdict
from tests.strategies import SWEEP

TARGETS = ("gfx90a", "gfx942", "gfx950")
LAST = {"stag": "axb", "wtag": "axb", "dtag": "axb"}
MMA = {"f16": "16x16x16", "f32": "16x16x4", "s8": "16x16x32", "bf16": "16x16x16"}
OF_GFX90A = {**MMA, "s8": "16x16x16"}
STEM = "mb2ic3ih10iw14oc16oh5ow7kh7kw7sh2sw2ph3pw3"
#: Rows of whole words and not, runs of one message and of several, more positions at an edge than one.
SHAPES = (
    STEM, "mb2ic3ih7iw9oc16kh3kw3ph1pw1", "mb2ic1ih6iw10oc16kh5kw5ph2pw2", "mb1ic2ih9iw8oc16kh3kw3sh2sw2ph1pw1",
    "mb1ic4ih6iw7oc20kh3kw3ph0pw0", "mb1ic8ih5iw6oc16kh3kw3ph1pw1", "mb2ic3ih9iw9oc5kh5kw5sh3sw3ph2pw2",
)  # fmt: skip


def check(problem: Conv, target: str, config: str, seed: int) -> None:
    """With infinities and NaNs against the reference: in both factors, or where sums are not made again, in one."""
    code = driver.compile(driver.build(problem, target, config))
    random, inputs = np.random.default_rng(seed), reference.fill(problem)
    for t in problem.factors:
        held = inputs[t.name] = inputs[t.name].copy()
        if t.dtype in ("f16", "f32") and (t.name == "src" or "padding=zeros" not in config):
            at = tuple(random.integers(0, size, 3) for size in held.shape)
            held[at] = random.choice([np.nan, np.inf, -np.inf], 3)
    found = cg.simulate(code, **inputs)
    with np.errstate(all="ignore"):
        right = reference.whole(problem, inputs, problem.outputs[0].name)
    np.testing.assert_array_equal(np.asarray(found, np.float64), np.asarray(right, np.float64))


def config_of(dir: str, dt: str, target: str, tile_k: int, ways: str) -> str:
    mma = (OF_GFX90A if target == "gfx90a" else MMA)[dt]
    tile = f"32x32x{tile_k}" if dir == "FWD_D" else f"16x64x{tile_k}"
    return f"tile={tile} waves={'2x1' if dir == 'FWD_D' else '1x2'} mma={mma} taps=runs {ways}"


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("dir", ["FWD_D", "BWD_W"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_no_part_of_a_run_is_in_no_sum(shape: str, dir: str) -> None:
    problem = Conv.parse(shape, dir=dir, dt="f16", **LAST)
    check(problem, "gfx942", config_of(dir, "f16", "gfx942", 32, "slots=2"), 1)


def test_the_other_factor_may_lie_in_any_order() -> None:
    """Messages bring its elements one by one; what is in registers on the way is what is in the tile."""
    problem = Conv.parse("mb1ic16ih12oc32kh3ph1", dir="FWD_D", dt="f32", stag="abx")
    check(problem, "gfx942", config_of("FWD_D", "f32", "gfx942", 64, "slots=2"), 3)


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("shape", [*SHAPES, "mb1ic3id6ih7iw9oc16od6oh7ow9kd3kh3kw3pd1ph1pw1"])
@pytest.mark.parametrize("groups", [1, 2, None])
def test_a_sample_of_gradients_is_found_in_the_tensor(shape: str, groups: int | None) -> None:
    """What a tile holds of the weights, whose taps and channels are one dim of it, padded and behind a lead."""
    problem = Conv.parse(shape, dir="BWD_WB", dt="f16", **LAST)
    code = driver.compile(driver.build(problem, "gfx942", config_of("BWD_W", "f16", "gfx942", 32, "slots=2")))
    outcome = verdict.run(code, groups=groups)
    assert outcome.passed, outcome.first
    sizes = [np.prod(t.dims) for t in problem.outputs]
    assert 0 < outcome.checked <= sum(sizes)
    assert groups is not None or outcome.checked == sum(sizes)


@pytest.mark.parametrize(("target", "config"), [
    ("gfx942", "tile=32x32x16 waves=1x2 mma=16x16x4 slots=2 taps=runs slices=3 sum=atomic"),
    ("xehpc", "tile=32x32x16 waves=2x2 mma=16x16x1 slots=2 taps=runs slices=3 sum=atomic"),
    ("gfx942", None),
])  # fmt: skip
@pytest.mark.parametrize("shape", ["mb40ic1oc8ih6kh3ph1", "mb9ic3oc8ih8kh3ph1"])
def test_slices_add_gradients_to_weights_of_which_a_run_is_one_dim(shape: str, target: str, config: str | None) -> None:
    problem = Conv.parse(shape, dir="BWD_W", dt="f32", **LAST)
    outcome = verdict.run(driver.compile(driver.build(problem, target, config)))
    assert outcome.passed, (outcome.first, outcome.findings)
    assert outcome.checked


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("ways", ["slots=1", "slots=3 stages=3"])
def test_the_last_run_of_a_row_is_moved_back_over_where_its_block_begins(ways: str, target: str) -> None:
    """By more than its lane is ahead: of the first window the lane's offset alone would be negative."""
    problem = Conv.parse("mb1ic5iw8oc4ow2kw7sw2pw1", dir="FWD_D", dt="f16", **LAST)
    assert verdict.run(
        driver.compile(driver.build(problem, target, config_of("FWD_D", "f16", target, 32, ways)))
    ).passed


@pytest.mark.parametrize("target", TARGETS)
def test_the_last_run_of_a_row_is_moved_back_over_an_edge(target: str) -> None:
    """As random problems have found: the edge lies where runs begin that are in their places, none of which it cuts."""
    problem = Conv.parse("mb1ic4iw8oc8ow6kw5sw2pw6", dir="FWD_D", dt="f16", **LAST)
    config = config_of("FWD_D", "f16", target, 32, "slots=2")
    assert verdict.run(driver.compile(driver.build(problem, target, config))).passed


@pytest.mark.parametrize("shape", [STEM, SHAPES[1], SHAPES[2], SHAPES[3]])
@pytest.mark.parametrize("tile_k", [48, 64])
def test_one_window_is_all_that_a_sum_sees(shape: str, tile_k: int) -> None:
    """All around it is no number: neighbours in the row, rows before and after. No sum is made again."""
    problem = Conv.parse(shape, dir="FWD_D", dt="f16", **LAST)
    ways = "slots=2 padding=zeros"
    code = driver.compile(driver.build(problem, "gfx942", config_of("FWD_D", "f16", "gfx942", tile_k, ways)))
    inputs = reference.fill(problem)
    _, down, across = problem.axes
    for h, w in ((0, 0), (0, across.o - 1), (down.o // 2, across.o // 2), (down.o - 1, 1), (down.o - 1, across.o - 1)):
        seen = inputs["src"].copy()
        rows, columns = (slice(max(0, o * a.s - a.p), o * a.s - a.p + a.k) for o, a in ((h, down), (w, across)))
        inside = np.zeros(seen.shape, np.bool_)
        inside[-1, :, rows, columns] = True
        seen[~inside] = np.nan
        found = np.asarray(cg.simulate(code, **{**inputs, "src": seen}), np.float64)
        right = reference.whole(problem, inputs, "dst")
        np.testing.assert_array_equal(found[-1, :, h, w], right[-1, :, h, w])


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Conv, str, str]:
    dir, dt = draw(st.sampled_from(["FWD_D", "BWD_W"])), draw(st.sampled_from(sorted(MMA)))
    line = f"mb{draw(st.integers(1, 2))}ic{draw(st.integers(1, 8))}oc{draw(st.integers(1, 20))}"
    for axis in "hw":
        k, s, p = draw(st.integers(1, 7)), draw(st.integers(1, 3)), draw(st.integers(0, 6))
        i = draw(st.integers(max(1, k - 2 * p), 12))
        line += f"i{axis}{i}o{axis}{(i + 2 * p - k) // s + 1}k{axis}{k}s{axis}{s}p{axis}{p}"
    problem = Conv.parse(line, dir=dir, dt=dt if dt != "s8" or dir == "FWD_D" else "f16", **LAST)
    target = draw(st.sampled_from(TARGETS))
    ways = draw(
        st.sampled_from(["slots=1", "slots=2", "slots=3 stages=2", "slots=2 slices=2", "slots=2 acc=a padding=zeros"])
    )
    tile_k = draw(st.sampled_from([32, 48, 64, 96]))
    return problem, target, config_of(dir, problem.factors[0].dtype, target, tile_k, ways)


@pytest.mark.sweep
@SWEEP
@given(convolutions(), st.integers(0, 1000))
def test_runs_of_any_convolution(case: tuple[Conv, str, str], seed: int) -> None:
    problem, target, config = case
    try:
        make_plan(problem, Config.parse(config), cg.facts(target))
    except DoesNotFit:
        reject()
    check(problem, target, config, seed)


def test_elements_of_more_than_a_word_are_no_runs() -> None:
    """As random problems have found; without a config they are what they are by other orders of K."""
    problem = Conv.parse("mb3ic8ih6iw5oc16oh7ow12kh3kw1sh3sw2ph4pw2", dir="FWD_B", dt="f64", stag="dacb", dtag="dacb")
    with pytest.raises(UserError, match="taps=runs: wanted elements of 4 bytes at most, src has f64"):
        driver.build(problem, "gfx90a", "tile=64x32x16 waves=1x2x2 mma=16x16x4 slots=1 taps=runs slices=3")
    inputs = reference.fill(problem)
    found = cg.simulate(driver.compile(driver.build(problem, "gfx90a")), **inputs)
    np.testing.assert_array_equal(found, reference.whole(problem, inputs, "dst"))


def test_a_tensor_beside_the_result_keeps_its_dims_apart() -> None:
    """Where pixels and windows are one dim of the result, what differs along pixels has another config."""
    problem = Conv.parse(
        "mb2ic1oc1ih13oh4kh5sh2dh1ph1iw13ow15kw3dw2pw2", dir="FWD_D", dt="f16", attr_post_ops="mul:f32:per_tensor"
    )
    line = "tile=32x32x64 waves=2x2 mma=16x16x16 slots=3 stages=2 taps=runs"
    with pytest.raises(UserError, match="a tensor beside the result differs along ow"):
        driver.build(problem, "gfx90a", line)
    outcome = verdict.run(driver.compile(driver.build(problem, "gfx90a")))
    assert not outcome.mismatches
    assert not outcome.findings
