"""Padding contributes nothing: values that are not finite against the reference, which knows no padding.

Each tap in turn, strides, dilation, phases of backward data, all that makes K, shares of it, layouts, lanes, targets.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import convgen as cg
from convgen import driver
from convgen.problem.conv import Conv, Direction
from convgen.run import reference
from tests.product.test_depthwise import TARGETS, depthwise, fitting
from tests.strategies import SWEEP

NAN, INF = np.nan, np.inf
OTHER = {"FWD_D": "wei", "BWD_D": "wei", "BWD_W": "diff_dst"}  #: what meets padding, by direction
LANES = "slots=0 taps=fused"


def what_meets_padding(problem: Conv) -> str:
    return "wei" if problem.direction.is_forward else OTHER[problem.direction.value]


def results(
    problem: Conv, target: str, config: str | None, values: dict[tuple[int, ...], float]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The output with some values in what meets padding, an infinity at the windows' last corner, and the right one."""
    inputs = reference.fill(problem)
    name, source = what_meets_padding(problem), "diff_dst" if problem.direction is Direction.BWD_D else "src"
    for changed in (name, source):
        inputs[changed] = inputs[changed].copy()
    inputs[source][(0, *(-1 for _ in inputs[source].shape[1:]))] = INF
    for at, value in values.items():
        inputs[name][at] = value
    found = cg.simulate(driver.compile(driver.build(problem, target, config)), **inputs)
    with np.errstate(all="ignore"):
        right = reference.whole(problem, inputs, problem.outputs[0].name)
    return np.asarray(found, np.float64), np.asarray(right, np.float64)


def check(problem: Conv, target: str, config: str | None, values: dict[tuple[int, ...], float]) -> None:
    found, right = results(problem, target, config, values)
    assert not np.isfinite(right).all()
    np.testing.assert_array_equal(found, right)


NVIDIA = "tile=32x32x32 waves=1x2 mma=8x16x16"
AMD, XE = "tile=32x32x32 waves=1x2 mma=16x16x16", "tile=16x32x32 waves=2x2 mma=16x8x16"
WAYS = (
    "slots=1 taps=split", "slots=2 taps=chunk", "slots=0 taps=fused", "slots=2 taps=fused slices=3",
    "slots=1 taps=split map=stream:3", "slots=1 taps=chunk subtiles=2",
)  # fmt: skip
SHAPES = (
    "mb2ic5ih7oc6kh3ph1", "mb1ic16ih9oc16kh3sh2ph1", "mb1ic16ih9oc16kh3ph2dh1", "mb1ic3ih9oc8kh5sh2ph2",
    "mb1ic8id3ih4iw5oc8kd3kh3kw3pd1ph1pw1", "g2mb1ic16ih5oc16kh3ph1", "mb1ic16iw9oc16kw5pw2",
)  # fmt: skip

#: One of each way, shape, direction and target together with others; what does not fit is left out.
FEW = [
    ("FWD_D", SHAPES[2], "gfx942", f"{AMD} {WAYS[0]} acc=a"),
    ("FWD_B", SHAPES[0], "gfx942", f"{AMD} {WAYS[0]}"),
    ("FWD_B", SHAPES[1], "xehpc", f"{XE} {WAYS[1]}"),
    ("BWD_W", SHAPES[0], "gfx942", f"{AMD} {WAYS[4]}"),
    ("BWD_D", SHAPES[1], "gfx942", f"{AMD} {WAYS[3]}"),
    ("BWD_W", SHAPES[0], "gfx950", None),
    ("FWD_D", SHAPES[1], "sm_90", f"{NVIDIA} slots=3 taps=split copy=direct"),
    ("BWD_W", SHAPES[3], "sm_80", f"{NVIDIA} {WAYS[3]}"),
    ("BWD_D", SHAPES[0], "sm_90", f"{NVIDIA} {WAYS[4]}"),
    ("FWD_B", SHAPES[4], "sm_90", None),
    pytest.param(
        *("FWD_D", SHAPES[0], "xehpg", "tile=16x16x32 waves=2x2 mma=16x8x16 slots=2 taps=chunk"),
        marks=pytest.mark.sweep,
    ),
    ("BWD_D", SHAPES[6], "xehpc", f"{XE} {WAYS[2]}"),
    ("FWD_D", "g8mb1ic8ih5oc8kh3ph1", "gfx942", f"tile=128x8x9 waves=1x1 mma=fma:4x2x2 {LANES}"),
    ("FWD_D", "g8mb1ic8ih5oc16kh3sh2ph1", "xehpc", f"tile=8x16x3 waves=1x1 mma=fma:4x1x2 {LANES}"),
    ("BWD_D", "g4mb1ic16ih5oc16kh3ph1", "gfx90a", f"tile=64x16x36 waves=1x1 mma=4x4x4:4x2x2 {LANES}"),
    ("BWD_W", "g8mb2ic16ih5oc8kh3ph1", "gfx942", f"tile=6x8x64 waves=1x1 mma=fma:4x1x2 {LANES} slices=2"),
    ("BWD_W", "g8mb1ic8ih5oc8kh3ph1", "xehpg", f"tile=9x8x16 waves=1x2 mma=fma:2x2x2 {LANES}"),
]


def corners(problem: Conv) -> dict[tuple[int, ...], float]:
    """A NaN and infinities at corners of what meets padding."""
    dims = problem.tensor(what_meets_padding(problem)).dims
    space = len(problem.axes)
    last = tuple(size - 1 for size in dims)
    return {
        (*last[:-space], *(0 for _ in range(space))): NAN,
        last: INF,
        (*(0 for _ in last[:-space]), *last[-space:]): -INF,
    }


@pytest.mark.parametrize(("dir", "shape", "target", "config"), FEW)
def test_what_meets_padding_is_not_multiplied(dir: str, shape: str, target: str, config: str | None) -> None:
    problem = Conv.parse(shape, dir=dir, dt="f16")
    check(problem, target, config, corners(problem))


@pytest.mark.parametrize("dir", OTHER)
def test_each_tap_in_turn(dir: str) -> None:
    """One channel a tap: of the result, or where that is what a tap is of, of what is summed."""
    problem = Conv.parse("mb1ic9ih5oc9kh3ph1", dir=dir, dt="f16")
    name = OTHER[dir]
    taps = list(product(range(3), repeat=2))
    at = [(n, 0, *tap) if dir == "FWD_D" else (0, n, *tap) for n, tap in enumerate(taps)]
    if name == "diff_dst":
        at = [(0, n, 2 * h, 2 * w) for n, (h, w) in enumerate(taps)]
    check(problem, "gfx942", f"{AMD} slots=1 taps=split", dict.fromkeys(at, NAN))


@pytest.mark.parametrize("slices", [2, 3])
def test_taps_of_a_share_begin_where_runs_are_padded_to_chunks(slices: int) -> None:
    """K has two runs of 9 pixels, each padded to 16; the second slice recomputes the sums over the second run."""
    problem = Conv.parse("mb1ic16oc8ih3oh2kh2dh3ph1iw1ow9kw1sw2pw2", dir="BWD_W", dt="f16", wtag="bcda")
    inside: dict[tuple[int, ...], float]
    inside = {(0, oc, oh, ow): NAN for oc in range(8) for oh in range(2) for ow in range(9) if ow != 1}
    config = f"tile=32x96x16 waves=1x4 mma=8x8x16 slots=1 taps=chunk slices={slices}"
    found, right = results(problem, "xehpg", config, inside)
    assert np.isfinite(right).any()
    np.testing.assert_array_equal(found, right)


def test_taps_of_a_share_are_decoded_where_they_are_counted_in_turn() -> None:
    """Of gradients of weights each share of rows begins at a tap of its own, and the first follows the last."""
    line = "mb1ic14oc40id4od1kd1sd3pd1ih3oh4kh2sh4ph0iw4ow3kw3sw3pw0dw2"
    tags = {"stag": "cbaed", "wtag": "adecB2b", "dtag": "eBdca2b8b"}
    problem = Conv.parse(line, dir="BWD_W", dt="bf16:f16:bf16", **tags)
    config = "tile=32x64x16 waves=2x2 mma=16x8x16 slots=3 taps=fused subtiles=2 map=cols"
    np.testing.assert_array_equal(*results(problem, "xehpc", config, corners(problem)))


@pytest.mark.parametrize("way", ["waves=2x2", "waves=4x2 subtiles=2", "waves=2x2 slices=3 sum=launch"])
def test_rows_dealt_to_instructions_are_made_anew(way: str) -> None:
    """A subgroup's rows are not on end where those of a block would be written to the same banks."""
    tags = dict.fromkeys(("stag", "wtag", "dtag"), "axb")
    problem = Conv.parse("mb1ic16ih8oc64kh3ph1", dir="BWD_W", dt="f16", **tags)
    built = driver.build(problem, "xehpc", f"tile=64x64x32 mma=16x8x16 slots=2 taps=fused {way}")
    assert built.plan is not None
    assert built.plan.mma.rows == 4
    assert built.plan.parts[0].padding is not None
    check(problem, "xehpc", str(built.plan.config), corners(problem))


PAIRS = (
    "tile=32x32x32 waves=4x2 mma=16x8x16 slots=1 taps=fused", "tile=32x32x32 waves=2x2 mma=16x8x16 slots=2 taps=fused",
    "tile=32x32x16 waves=4x2 mma=8x8x16 slots=2 taps=fused", "tile=64x32x16 waves=2x4 mma=16x8x16 slots=1 taps=fused",
    "tile=32x32x32 waves=2x2 mma=16x8x16 slots=2 taps=fused slices=2", "tile=32x16x16 waves=1x2 mma=16x8x16 taps=fused",
)  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "config"), [("mb1ic5ih5oc8kh3ph1", PAIRS[1]), ("mb1ic12ih6oc16oh3kh2sh2ph1", PAIRS[2])]
)
def test_subgroups_that_branch_together_go_over_as_many_taps(shape: str, config: str) -> None:
    """Rows of one have two taps, those of the other three."""
    problem = Conv.parse(shape, dir="BWD_W", dt="f16")
    check(problem, "xehpg", config, corners(problem))


@st.composite
def gradients(draw: st.DrawFn) -> Conv:
    """Gradients of weights of few channels, windows that reach outside."""
    (ic, oc), mb, image = (draw(st.integers(1, 24)) for _ in "io"), draw(st.integers(1, 2)), draw(st.integers(3, 8))
    window, stride = draw(st.integers(2, 5)), draw(st.integers(1, 2))
    pad = draw(st.integers(1, window - 1))
    if image + 2 * pad < window:
        pad = window - 1
    out = (image + 2 * pad - window) // stride + 1
    line = f"mb{mb}ic{ic}ih{image}oc{oc}oh{out}kh{window}sh{stride}ph{pad}"
    return Conv.parse(line, dir="BWD_W", dt="f16", stag=draw(st.sampled_from(["abx", "axb"])))


@pytest.mark.sweep
@SWEEP
@given(gradients(), st.sampled_from(PAIRS), st.sampled_from(["xehpg", "xehpg", "xehpc"]))
def test_random_gradients_of_pairs(problem: Conv, config: str, target: str) -> None:
    """A config that does not fit is refused; none is for subgroups that would part."""
    try:
        driver.compile(driver.build(problem, target, config))
    except cg.UserError as error:
        refusal = str(error)
    else:
        refusal = ""
    assert "a branch on" not in refusal
    if refusal:
        return
    np.testing.assert_array_equal(*results(problem, target, config, corners(problem)))


def test_what_is_finite_keeps_its_bits() -> None:
    """Sums beside such that are made again: in the same order."""
    problem = Conv.parse("mb1ic32ih6oc16kh3ph1", dir="FWD_D", dt="f16:f16:f32")
    code = driver.compile(driver.build(problem, "gfx942", f"{AMD} slots=1 taps=split"))
    random = np.random.default_rng(7)
    inputs = {t.name: random.standard_normal(t.dims).astype(np.float16) for t in problem.inputs}
    before = cg.simulate(code, **inputs)
    inputs["wei"][3, 3, 0, 0] = INF
    after = cg.simulate(code, **inputs)
    assert not np.isfinite(after[0, 3]).all()
    kept = np.delete(np.arange(16), 3)
    assert np.array_equal(before[:, kept], after[:, kept])
    assert np.array_equal(before[0, 3, 0], after[0, 3, 0])  # the first row meets that tap in padding only


@pytest.mark.parametrize(("target", "instruction"), [("gfx942", "16x16x16"), ("gfx950", "16x16x32")])
def test_pieces_are_stored_as_wide_as_tiles(target: str, instruction: str) -> None:
    """Where a piece begins whose sums are made again is known as well as where its tile does."""
    problem = Conv.parse("mb1ic64ih8oc64kh3ph1", dir="FWD_D", dt="f16", stag="axb", wtag="axb", dtag="axb")
    config = f"tile=64x64x32 waves=2x2 mma={instruction} slots=2"
    assert "buffer_store_short" not in driver.compile(driver.build(problem, target, config)).asm


@pytest.mark.parametrize("value", [INF, NAN, -0.0])
def test_a_bias_of_any_value_is_added_once(value: float) -> None:
    """Sums begin with it, also those that are made again because it makes them look like padding's."""
    problem = Conv.parse("mb1ic5ih6oc6kh3ph1", dir="FWD_B", dt="f16")
    inputs = reference.fill(problem)
    inputs["bia"][3] = value
    found = cg.simulate(driver.compile(driver.build(problem, "gfx942", f"{AMD} slots=1 taps=split")), **inputs)
    np.testing.assert_array_equal(found, reference.whole(problem, inputs, "dst"))


def test_a_source_that_is_not_finite_counts_where_it_is() -> None:
    problem = Conv.parse("mb1ic5ih6oc6kh3ph1", dir="FWD_D", dt="f32")
    inputs = reference.fill(problem)
    inputs["src"][0, 2, 0, 3], inputs["wei"][1, 4, 2, 2] = INF, NAN
    found = cg.simulate(driver.compile(driver.build(problem, "gfx942")), **inputs)
    with np.errstate(all="ignore"):
        right = reference.whole(problem, inputs, "dst")
    np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize(
    ("shape", "dt", "config", "votes"),
    [
        ("mb1ic32ih6oc8kh3ph1", "f16", "", True),
        ("mb1ic32ih6oc8kh3ph1", "f16", f"{AMD} slots=1 taps=split padding=zeros", False),
        ("mb1ic32ih6oc8kh3ph0", "f16", "", False),
        ("mb1ic32ih6oc8kh3ph1", "s8", "", False),
    ],
)
def test_only_what_can_be_wrong_is_looked_at(shape: str, dt: str, config: str, votes: bool) -> None:
    program = driver.build(Conv.parse(shape, dir="FWD_D", dt=dt), "gfx942", config or None)
    assert ("if all(" in str(program.ir)) is votes
    assert ("padding=" in str(program.plan and program.plan.config)) is ("padding" in config)


@pytest.mark.parametrize(("dir", "shape"), [("BWD_W", "g2mb1ic16ih5oc16kh3ph1"), ("FWD_D", "mb2ic5ih7oc6kh3ph1")])
def test_what_lies_past_the_last_row_is_not_read(dir: str, shape: str) -> None:
    """Rows that do not exist have coordinates that do, by some taps, and taps that stand in another offset."""
    problem = Conv.parse(shape, dir=dir, dt="f16")
    check(problem, "gfx942", None, corners(problem))


EVERY = list(product(OTHER, SHAPES, WAYS, ("f16", "bf16"), ("gfx942", "xehpc")))[::3]


@pytest.mark.sweep
@pytest.mark.parametrize(("dir", "shape", "way", "dt", "target"), EVERY)
def test_every_way_in_all_directions(dir: str, shape: str, way: str, dt: str, target: str) -> None:
    """Where a line does not fit, the one that is chosen: of groups that is one of lanes."""
    problem = Conv.parse(shape, dir=dir, dt=dt)
    line: str | None = f"{AMD if target == 'gfx942' else XE} {way}"
    try:
        driver.compile(driver.build(problem, target, line))
    except cg.UserError:
        line = None
    check(problem, target, line, corners(problem))


@pytest.mark.sweep
@SWEEP
@given(depthwise("FWD_B", "BWD_D", "BWD_W"), st.sampled_from(TARGETS), st.integers(0, 1 << 16), st.data())
def test_random_small_groups(problem: Conv, target: str, number: int, data: st.DataObject) -> None:
    """By lanes and blocks of them."""
    if (code := fitting(problem, target, number)) is None:
        return
    dims = problem.tensor(what_meets_padding(problem)).dims
    places = st.tuples(*(st.integers(0, size - 1) for size in dims))
    values = data.draw(st.dictionaries(places, st.sampled_from([NAN, INF, -INF]), max_size=4))
    np.testing.assert_array_equal(*results(problem, target, code.config, corners(problem) | values))


@pytest.mark.parametrize("at", [(0, 0, 0, 0, 0), (1, 1, 3, 1, 2), (2, 2, 7, 2, 4)])
def test_of_more_sums_than_stand_in_one_expression(at: tuple[int, ...]) -> None:
    """Each lane has 128 to look at."""
    problem = Conv.parse("g3mb1ic24oc9ih3kh3sh1ph1iw5kw5sw3pw4", dir="BWD_D", dt="f32:f16:f16")
    config = "tile=128x64x32 waves=1x4 mma=16x8x16 slots=2 taps=fused subtiles=2 phases=columns"
    check(problem, "xehpc", config, {at: NAN})
