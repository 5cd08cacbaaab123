"""Zero points and unsigned bytes on every target: sums that are added for them, in any layout and order of sums."""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt
import pytest

from convgen import driver
from convgen.backends import target as targets
from convgen.choose.supported import check_supported
from convgen.ir.error import Unsupported, UserError
from convgen.plan.config import Config
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul, Problem, parse_problem
from convgen.run import reference, verdict
from convgen.run.reference import Array
from tests.product.problems import expect_right
from tests.strategies import always

pytestmark = pytest.mark.in_turn(6)

TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpg", "xehpc", "sm_90")

#: Problems by what is special about them.
PROBLEMS = {
    "greatest": "--dir=FWD_D --dt=u8:u8:s32 --attr-zero-points=src:common:255+wei:common:3 mb2ic17ih7oc19kh3ph1",
    "least": "--dir=FWD_D --dt=s8:s8:s32 --attr-zero-points=src:common:-128+wei:common:127 mb2ic17ih7oc19kh3ph1",
    "of_groups": "--dt=u8:s8:s32 --attr-zero-points=src:per_dim_1+wei:per_oc:s8 g2mb2ic18ih7oc20kh3ph1",
    "of_channels": "--dir=FWD_I --dt=u8:s8:f32 --attr-zero-points=src:common:1+wei:per_oc:u8 g16mb1ic16oc32ih4kh3ph1",
    "without_padding": "--dt=s8:s8:f16 --attr-zero-points=src:per_dim_1+wei:common:2 mb2ic17ih7oc19kh3ph0",
    "one_axis_padded": "--dt=s8:u8:bf16 --attr-zero-points=src:common:7 mb1ic8id4ih5iw6oc16kd2kh1kw3pd1ph0pw0",
    "taps_and_channels_side_by_side": "--dir=FWD_D --dt=u8:u8:s32 --stag=axb --wtag=1x43x1806 --dtag=abx "
    "--attr-zero-points=src:per_dim_1 mb1ic42oc42iw4ow11kw3pw4",
    "planes_first": "--dir=FWD_D --dt=u8:s8:s8 --stag=abx --wtag=abx --dtag=abx "
    "--attr-zero-points=src:common:5+wei:per_oc+dst:per_dim_1 mb2ic16ih9oc24kh3ph2dh1",
    "result": "--dt=u8:s8:u8 --attr-post-ops=relu:0.5 --attr-zero-points=src:common:5+dst:common:130 "
    "mb2ic3ih12oc8kh7sh2ph3",
    "blocks": "--dt=u8:u8:s8 --stag=aBcd16b --wtag=ABcd16a16b --dtag=aBcd16b "
    "--attr-zero-points=src:per_dim_1+wei:per_oc+dst:per_dim_1 mb1ic17ih5oc19kh3ph1",
    "blocks_without_padding": "--dt=u8:u8:u8 --stag=ABcd32a32b --dtag=ABcd32a32b "
    "--attr-zero-points=src:common:3+wei:common:2+dst:common:9 mb2ic40ih3oc33kh1ph0",
    "one_channel_in_blocks": "--dt=s8:u8:f32 --wtag=BdcA8b2b8a8a --attr-zero-points=src:per_dim_1+wei:common:135 "
    "mb1ic1oc16ih4kh3ph1",
    "one_channel_without_padding": "--dt=s8:u8:f32 --wtag=ABcd16a16b --attr-zero-points=src:per_dim_1+wei:per_oc:u8 "
    "mb1ic1oc19ih4kh3ph0",
    "rows": "--dt=u8:s8:s32 --attr-zero-points=src:common:4:s8+wei:per_oc:u8 33x47:47x21",
    "columns": "--dt=u8:u8:f32 --stag=ba --wtag=ba --dtag=ba "
    "--attr-zero-points=src:per_dim_1+dst:host_scalar:4 33x470:470x21",
    "two_a_byte": "--dt=s8:u8:s8 --attr-zero-points=src:per_dim_1:u4+wei:per_ocic:s4:32x1+dst:per_dim_1:s4 33x32:32x46",
    "channels_two_a_byte": "--dir=FWD_D --dt=s8:u8:s32 "
    "--attr-zero-points=src:per_dim_1:u4+wei:per_oc:s4+dst:per_dim_1:s4 g2mb1ic8oc8ih8kh3ph1",
    "batch": "--dt=u8:u8:s8 --attr-zero-points=src:common:3+wei:common:2+dst:per_dim_1 3x1x33x47:1x2x47x21",
    "one_in_memory": "--dir=FWD_D --dt=u8:s8:u8 --attr-zero-points=src:common:s32+wei:common+dst:common:u8 "
    "mb2ic9ih7oc12kh3ph1",
    "one_in_memory_of_groups": "--dt=s8:u8:f32 --attr-zero-points=src:host_scalar:s8+wei:per_oc:u8 "
    "g2mb2ic8ih7oc12kh3ph1",
    "one_in_memory_of_a_batch": "--dt=u8:s8:s32 --attr-zero-points=src:0:s32+wei:common:s8 3x1x33x47:1x2x47x21",
    "one_in_memory_of_floats": "--dt=f16:u4:f16 --attr-fpmath=f16:true --attr-scales=wei:per_ocic:f16:32x1 "
    "--attr-zero-points=wei:common:s32 33x96:96x22",
    "sizes_at_launch": "--dt=u8:u8:f16 --runtime_dims_masks=3:3 --attr-zero-points=src:common:3+wei:per_oc 10x39:39x20",
}


def check(problem: Problem, target: str, config: str = "") -> str:
    """Run everything; gives the config."""
    code = driver.compile(driver.build(problem, target, Config.parse(config) if config else None))
    outcome = verdict.run(code)
    expect_right(outcome)
    assert outcome.checked == sum(prod(t.dims) for t in problem.outputs)
    return code.config


@pytest.mark.parametrize("shape", ["--dir=FWD_D mb1ic8ih5oc8kh3ph1", "17x40:40x24"])
def test_one_zero_point_without_a_number_is_an_argument_of_one_element(shape: str) -> None:
    problem = parse_problem(f"--dt=u8:s8:u8 --attr-zero-points=src:common:s32+wei:0:s8+dst:common {shape}")
    assert parse_problem(str(problem)) == problem
    record = driver.compile(driver.build(problem)).record
    tensors = [record.buffers[f"{role}_zero_points"].tensor for role in ("src", "wei", "dst")]
    assert [(set(t.dims), t.dtype) for t in tensors] == [({1}, "s32"), ({1}, "s8"), ({1}, "s32")]


@pytest.mark.parametrize("dt", ["u8:s8:s32", "s8:u8:f32"])
def test_a_zero_point_read_from_memory_counts_as_a_constant_does(dt: str) -> None:
    shape = f"--dt={dt} --dir=FWD_D mb1ic3ih5oc4kh3ph1"
    told = parse_problem(f"--attr-zero-points=src:common:3+wei:common:-2+dst:common:5 {shape}")
    read = parse_problem(f"--attr-zero-points=src:common:s32+wei:common:s8+dst:common:s32 {shape}")
    arrays = reference.fill(told)
    points = {"src_zero_points": 3, "wei_zero_points": -2, "dst_zero_points": 5}
    given = {spec.name: np.full(spec.dims, points[spec.name]) for spec in read.inputs if spec.name in points}
    typed = {name: given[name].astype("int8" if name[:3] == "wei" else "int32") for name in given}
    assert np.array_equal(reference.whole(read, {**arrays, **typed}, "dst"), reference.whole(told, arrays, "dst"))


#: Each problem on one target in every run, in turn.
CASES = always(
    [(name, target) for name in PROBLEMS for target in TARGETS],
    lambda n, case: n % len(TARGETS) == n // 5 % len(TARGETS),
)


@pytest.mark.parametrize(("name", "target"), CASES)
def test_problems(name: str, target: str) -> None:
    check(parse_problem(PROBLEMS[name]), target)


@pytest.mark.parametrize(
    "points", ["src:common:3", "wei:per_oc", "src:common:3+wei:common:2", "src:common:3+wei:per_oc"]
)
@pytest.mark.parametrize("pad", [0, 1])
def test_runs_count_all_their_taps_and_channels(points: str, pad: int) -> None:
    line = f"mb1ic4ih9oc16kh3ph{pad}"
    problem = Conv.parse(line, dir="FWD_D", dt="u8:u8:s32", stag="axb", wtag="axb", dtag="axb", attr_zero_points=points)
    check(problem, "gfx942", "tile=32x32x64 waves=2x1 mma=16x16x32 slots=2 taps=runs")


def test_runs_have_no_zero_points_of_channels() -> None:
    problem = parse_problem(PROBLEMS["taps_and_channels_side_by_side"])
    with pytest.raises(UserError, match="taps=runs: wanted src_zero_points constant along channels"):
        driver.build(problem, "gfx942", "tile=32x32x128 waves=2x2 mma=16x16x32 slots=2 taps=runs")


@pytest.mark.parametrize(
    ("target", "config"),
    [
        ("gfx942", "tile=64x64x96 waves=2x2 mma=16x16x32 slots=2 taps=resident"),
        ("xehpc", "tile=32x16x96 waves=2x1 mma=16x8x32 slots=2 taps=resident"),
        ("sm_90a", "tile=64x32x96 waves=2x1 mma=8x16x32 slots=2 taps=resident"),
    ],
)
def test_resident_windows_have_zero_points_of_channels_in_several_blocks(target: str, config: str) -> None:
    shape, points = "mb1ic64oc64iw4kw3pw1", "src:per_dim_1:s32"
    problem = Conv.parse(shape, dir="FWD_D", dt="s8:s8:s32", stag="axb", dtag="axb", attr_zero_points=points)
    check(problem, target, config)


SUMS = ("slices=3", "slices=3 sum=launch", "slices=3 sum=last", "map=stream:5 sum=last", "map=stream:7:all sum=last")


@pytest.mark.parametrize("way", [SUMS[0], *(pytest.param(way, marks=pytest.mark.sweep) for way in SUMS[1:])])
def test_slices_add_what_is_missing_once(way: str) -> None:
    """Beyond K there are zeros, too, which count as what they become on the way."""
    problem = parse_problem("--dt=u8:u8:s32 --attr-zero-points=src:common:9 50x204:204x40")
    check(problem, "gfx942", f"tile=32x32x32 waves=1x1 mma=32x32x16 slots=2 taps=split acc=v {way}")


@pytest.mark.parametrize("target", ["gfx942", pytest.param("xehpc", marks=pytest.mark.sweep)])
def test_fragments_straight_from_memory(target: str) -> None:
    mma = {"gfx942": "32x32x16", "xehpc": "16x8x32"}[target]
    problem = Conv.parse("mb1ic40ih6oc36kh3ph1", dir="FWD_D", dt="u8:u8:s32", attr_zero_points="src:common:3")
    rows = {"gfx942": 32, "xehpc": 16}[target]
    check(problem, target, f"tile={rows}x32x64 waves=1x1 mma={mma} slots=0 taps=split acc=v")


@pytest.mark.parametrize(
    ("target", "dt", "points", "roles"),
    [
        ("gfx942", "s8:s8:s32", "", []),
        ("xehpc", "u8:u8:s32", "dst:common:3", []),
        ("gfx942", "u8:s8:s32", "", ["sums_wei"]),
        ("gfx942", "u8:u8:s32", "", ["sums_wei", "sums_at_src", "sums_src"]),
        ("xehpc", "u8:s8:s32", "src:common:3", ["sums_points", "sums_inside"]),
        (
            "gfx942",
            "u8:s8:s32",
            "src:common:3+wei:common:1",
            ["sums_wei", "sums_points", "sums_inside", "sums_at_src", "sums_src"],
        ),
    ],
)
def test_launches_before_the_product(target: str, dt: str, points: str, roles: list[str]) -> None:
    problem = Conv.parse("mb1ic16ih5oc16kh3ph1", dir="FWD_D", dt=dt, attr_zero_points=points)
    plan = driver.build(problem, target).plan
    assert plan is not None
    assert [sums.role for part in plan.parts for sums in part.launches_before] == roles


def test_known_points_of_products_without_padding_cost_one_launch() -> None:
    problem = Matmul.parse("32x64:64x32", dt="u8:s8:s32", attr_zero_points="src:common:3")
    plan = driver.build(problem, "gfx942").plan
    assert plan is not None
    assert [sums.role for sums in plan.parts[0].launches_before] == ["sums_wei"]


def direct(problem: Conv, inputs: dict[str, Array]) -> npt.NDArray[np.int64]:
    """The definition, one product at a time: [oc, oh, ow] of one image."""
    (h, w), src, wei = problem.spatial, inputs["src"].astype(int), inputs["wei"].astype(int)
    zero = inputs["src_zero_points"].astype(int)
    dst = np.zeros((problem.oc, h.o, w.o), np.int64)
    for o, kh, kw in np.ndindex(h.o * w.o, h.k, w.k):
        at = o // w.o * h.s - h.p + kh, o % w.o * w.s - w.p + kw
        if 0 <= at[0] < h.i and 0 <= at[1] < w.i:
            dst[:, o // w.o, o % w.o] += (wei[:, :, kh, kw] - 2) @ (src[0, :, at[0], at[1]] - zero[0, :, 0, 0])
    return dst


def test_the_reference_follows_the_definition() -> None:
    points = "src:per_dim_1+wei:common:2+dst:common:-5"
    problem = Conv.parse("mb1ic3ih5oc4kh3ph2sh2_iw4kw2pw1", dir="FWD_D", dt="u8:s8:f32", attr_zero_points=points)
    inputs = reference.fill(problem)
    assert np.array_equal(reference.whole(problem, inputs, "dst")[0], direct(problem, inputs) - 5)


_RAGGED = "mb1ic9oc16_ih5oh6kh2ph1_iw5kw2"  #: 9 channels in blocks of 32


@pytest.mark.parametrize(
    "line",
    [
        f"--dt=u8:s8:s32 --wtag=acdB32b --attr-zero-points=src:common:s32+wei:per_oc:s8 {_RAGGED}",
        f"--dt=u8:s8:s32 --wtag=acdB32b --attr-zero-points=src:per_dim_1+wei:common:3 {_RAGGED}",
        f"--dt=s8:s8:s32 --stag=aBcd4b --wtag=aBcd2b --attr-zero-points=src:common:s32+wei:per_oc:s8 {_RAGGED}",
        "--dt=s8:s8:s32 --wtag=AB8b32a --attr-zero-points=src:common:s32+wei:per_oc:s8 20x41:41x20",
    ],
)
def test_zero_points_do_not_count_in_padding_of_blocks(line: str) -> None:
    """Weights are stored as 0 in padding of blocks along K, which less their zero point is no zero."""
    assert verdict.run(driver.compile(driver.build(parse_problem(line), "gfx942"))).passed


REFUSED = [
    ("--dir=FWD_D --dt=s8:s8:s32 --attr-zero-points=src:per_dim_2 mb1ic8ih5oc8kh1", "zero-points"),
    ("--dir=FWD_D --dt=s8:s8:s32 --attr-zero-points=wei:per_dim_1 mb1ic8ih5oc8kh1", "zero-points"),
    ("--dir=BWD_D --dt=s32:s8:s8 --attr-zero-points=wei:common:1 mb1ic8ih5oc8kh1", "zero-points"),
    ("--dir=FWD_D --dt=f16 --attr-zero-points=src:common:1 mb1ic8ih5oc8kh1", "zero-points"),
    ("--dt=s8:s8:s32 --attr-zero-points=src:per_dim_0 8x8:8x8", "zero-points"),
    ("--dt=s8:s8:s32 --attr-zero-points=wei:common:1:f32 8x8:8x8", "zero-points"),
    ("--dt=s8:s8:s32 --attr-zero-points=wei:per_ocic:u8:4x1 8x8:8x8", "zero-points"),
    ("--dt=s8:s8:s32 --attr-zero-points=src:2:u8:1x4 8x8:8x8", "zero-points-groups"),
]


@pytest.mark.parametrize(("line", "rule"), REFUSED)
def test_what_is_refused(line: str, rule: str) -> None:
    with pytest.raises(Unsupported, match=r"^given attr-zero-points") as caught:
        check_supported(parse_problem(line), targets.get("gfx942").facts)
    assert caught.value.rule == rule


def test_zero_points_print_what_they_mean() -> None:
    line = "--attr-zero-points=dst:host_scalar:-3+wei:per_oc:u8+src0:0:7"
    problem = Matmul.parse("8x8:8x8", dt="s8:s8:s32", attr_zero_points=line.partition("=")[2])
    assert problem.knob_texts["attr-zero-points"] == "src:common:7+wei:per_oc:u8+dst:common:-3"
    assert parse_problem(str(problem)) == problem
    assert Matmul.parse("8x8:8x8", attr_zero_points="src:common:0") == Matmul.parse("8x8:8x8")
