"""Geometry at its edges, in every direction: padding, dilation, strides, empty and strided tensors, buffers' ends.

Each row names what is special about it and says so as a predicate on one of its axes, so that it stays true. An output
that nothing writes keeps the sentinel and fails.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd, prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen import driver
from convgen.backends import target as targets
from convgen.ir.error import UserError
from convgen.problem.conv import Axis, Conv
from convgen.problem.matmul import parse_problem
from convgen.problem.tensors import TensorSpec
from convgen.run import execution, reference, verdict
from convgen.simulated_calls import simulate
from tests.product.problems import expect_right
from tests.strategies import always

pytestmark = pytest.mark.in_turn(6)

Fact = Callable[[Axis], bool]
Array = npt.NDArray[np.generic]

DIRECTIONS = ("FWD_B", "BWD_D", "BWD_WB")


def taken(axis: Axis) -> set[tuple[int, int, int]]:
    """(i, o, k) of all products along an axis, by the law, one at a time."""
    places = ((o * axis.s - axis.p + k * (axis.d + 1), o, k) for o in range(axis.o) for k in range(axis.k))
    return {place for place in places if 0 <= place[0] < axis.i}


def unused(axis: Axis) -> set[int]:
    """Input positions that no window touches."""
    return set(range(axis.i)) - {i for i, _, _ in taken(axis)}


def idle(axis: Axis) -> set[int]:
    """Output positions whose windows lie wholly in padding."""
    return set(range(axis.o)) - {o for _, o, _ in taken(axis)}


def dead(axis: Axis) -> set[int]:
    """Taps that never meet the input."""
    return set(range(axis.k)) - {k for _, _, k in taken(axis)}


def wide(axis: Axis) -> bool:
    """Padding larger than the kernel on both sides."""
    return axis.p > axis.extent < axis.pad_r


def phases(axis: Axis) -> int:
    """Residues of i + p modulo the stride that some tap has."""
    return len({k * (axis.d + 1) % axis.s for k in range(axis.k)})


def negative(axis: Axis) -> bool:
    """Backward data divides negative numbers, some of which are no multiples of the stride."""
    return any((i + axis.p - k * (axis.d + 1)) % axis.s for i in range(axis.i) for k in range(i + axis.p + 1, axis.k))


def past(axis: Axis, residue: int) -> bool:
    """Whether backward data of the inputs with i + p = residue modulo the stride finds windows past the last only."""
    inputs = [i + axis.p for i in range(axis.i) if (i + axis.p) % axis.s == residue]
    taps = [k * (axis.d + 1) for k in range(axis.k) if k * (axis.d + 1) % axis.s == residue]
    return bool(inputs and taps) and min(inputs) - max(taps) > axis.o * axis.s


#: name -> descriptor, and what holds of one of its axes
GEOMETRIES: dict[str, tuple[str, Fact]] = {
    "padding_of_the_kernel": ("mb1ic8ih4oc16kh3ph3", lambda a: a.p == a.extent == a.pad_r),
    "padding_larger_than_the_kernel": ("mb2ic8ih4oc16kh2ph3", wide),
    "windows_wholly_in_padding": ("mb1ic9ih3oh9oc8kh2ph6sh2", lambda a: len(idle(a)) > 2),
    "no_window_touches_the_input": ("mb1ic8ih3oh2oc8kh2sh5ph2", lambda a: not taken(a)),
    "dilated_taps_around_the_input": ("mb2ic16iw1ow1oc16kw3pw10dw3", lambda a: not taken(a) and a.k > 1),
    "all_windows_before_the_input": ("mb1ic16iw3ow1oc4kw1pw3", lambda a: past(a, 0) and not taken(a)),
    "a_phase_of_windows_before_the_input": ("mb1ic16iw4ow1oc4kw2sw2pw4dw4", lambda a: past(a, 0) and bool(taken(a))),
    "large_right_padding": ("mb1ic8ih5oh20oc8kh3ph1", lambda a: a.pad_r > 2 * a.i > a.p),
    "large_right_padding_of_1x1": ("mb1ic8ih5oh12oc8kh1ph0", lambda a: a.pad_r == 7),
    "negative_right_padding": ("mb1ic8ih13oh3oc8kh3ph1", lambda a: a.pad_r < -2 and bool(unused(a))),
    "negative_left_padding": ("mb2ic8ih12oh4oc8kh3", lambda a: a.p < 0),
    "asymmetric_padding": ("mb1ic8ih6oh8oc8kh4ph1_iw6ow5kw3pw2", lambda a: a.p < a.pad_r),
    "padding_on_the_right_only": ("mb1ic8ih6oh6oc24kh3ph0", lambda a: a.p == 0 < a.pad_r),
    "1x1_with_padding": ("mb1ic8ih5oc8kh1ph2", lambda a: a.k == 1 and a.p > 1),
    "right_padding_a_multiple_of_the_kernel": ("mb1ic8ih6oh9oc8kh2ph0", lambda a: a.p == 0 and a.pad_r == 2 * a.k),
    "dilated_and_strided": ("mb1ic8ih11oc8kh3sh2dh1ph2", lambda a: a.s > 1 < a.d + 1 and phases(a) == 1),
    "dilated_and_strided_coprime": ("mb1ic8ih11oc8kh3sh2dh2ph2", lambda a: gcd(a.s, a.d + 1) == 1 and phases(a) == 2),
    "stride_and_dilation_share_a_factor": ("mb1ic8ih15oc8kh3sh4dh1ph3", lambda a: 1 < gcd(a.s, a.d + 1) < a.s),
    "stride_divides_dilation": ("mb1ic8ih15oc8kh4sh3dh5ph7", lambda a: (a.d + 1) % a.s == 0 and a.s > 1 < a.k),
    "negative_quotients": ("mb1ic8ih7oh4oc8kh3sh3dh3ph1", negative),
    "stride_larger_than_the_kernel": ("mb1ic8ih11oc8kh2sh4ph1", lambda a: a.s > a.extent and len(unused(a)) > 2),
    "stride_larger_than_the_input": ("mb1ic8ih3oh3oc8kh3sh4ph3", lambda a: a.s > a.i and bool(taken(a))),
    "dilation_larger_than_the_input": ("mb1ic8ih4oh3oc8kh3dh6ph7", lambda a: a.d >= a.i and len(dead(a)) == 2),
    "kernel_larger_than_the_input": ("mb1ic8ih2oh3oc8kh5ph2", lambda a: a.k > a.i),
    "dilated_kernel_smaller_than_padding": ("mb1_ic1oc16_iw1ow29kw14pw28dw1", lambda a: a.extent <= a.p),
    "stride_leaves_a_tail": ("mb2ic8ih12oc8kh3sh5", lambda a: a.pad_r < 0 and max(unused(a)) == a.i - 1),
    "one_pixel": ("mb1ic24ih1oc16kh1", lambda a: a == Axis()),
    "1x1_stride_2_without_the_last_pixel": ("mb1ic16ih8oc16kh1sh2", lambda a: a.pad_r == -1),
    "buffers_end": ("mb1_ic1oc16_ih123kh3", lambda a: a.i % 4 == 3),
    "buffers_end_1d": ("mb1_ic3oc5_iw37kw4", lambda a: a.i % 4 == 1),
    "all_of_it_in_3d": ("mb1ic3oc5_id3od4kd2sd2pd1_ih5oh2kh2sh3ph0_iw4ow7kw3pw2dw1", lambda a: a.pad_r > a.i),
}


def assert_right(problem: Conv, config: str | None = None, target: str = "gfx942") -> None:
    outcome = verdict.run(driver.compile(driver.build(problem, target, config)))
    expect_right(outcome)
    assert outcome.checked == sum(prod(t.dims) for t in problem.outputs)


#: Backward data, which geometries are hardest for, always; of the two others one in turn.
IN_TURN = always(
    [(name, *way) for name in GEOMETRIES for way in (("FWD_B", "f16"), ("BWD_D", "bf16"), ("BWD_WB", "f32"))],
    lambda n, case: n % 3 == 1 or n // 3 % 2 == n % 3 // 2,
)


@pytest.mark.parametrize(("name", "dir", "dt"), IN_TURN)
def test_geometry(name: str, dir: str, dt: str) -> None:
    descriptor, holds = GEOMETRIES[name]
    problem = Conv.parse(descriptor, dir=dir, dt=dt)
    assert any(map(holds, problem.spatial))
    assert_right(problem)


#: Zero points with windows that reach outside, on a target each, in turn.
POINTS = (
    "src:common:135",
    "src:per_dim_1",
    "src:common:-3+wei:common:7",
    "src:per_dim_1+wei:per_oc:s8",
    "wei:common:-1",
)
WITH_POINTS = always(
    [
        (name, points, ("gfx942", "xehpc", "gfx90a", "xehpg", "gfx950")[(n + m) % 5])
        for n, name in enumerate(GEOMETRIES)
        for m, points in enumerate(POINTS)
    ],
    lambda n, case: n % 13 == 0,
)


@pytest.mark.parametrize(("name", "points", "target"), WITH_POINTS)
def test_zero_points_do_not_count_in_padding(name: str, points: str, target: str) -> None:
    descriptor, _ = GEOMETRIES[name]
    assert_right(Conv.parse(descriptor, dir="FWD_B", dt="u8:s8:s32", attr_zero_points=points), target=target)


@pytest.mark.sweep
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("dir", DIRECTIONS)
def test_geometry_with_other_types_layouts_and_targets(name: str, dir: str) -> None:
    for dt, tag, target in (
        ("f16", "abx", "gfx950"),
        ("bf16", "xba", "gfx90a"),
        ("f32", "abx", "gfx942"),
        ("f64", "xba", "gfx90a"),
    ):
        assert_right(Conv.parse(GEOMETRIES[name][0], dir=dir, dt=dt, stag=tag, wtag=tag, dtag=tag), target=target)


# ---------------------------------------------------------------- told without the reference: everything is one


def ones(problem: Conv, config: str | None = None) -> dict[str, Array]:
    """The outputs where all inputs are one (and the bias 3), by name: they count what is added."""
    values = {"bia": 3}
    code = driver.compile(driver.build(problem, config=config))
    inputs = {t.name: np.full(t.dims, values.get(t.name, 1), reference.numpy_type(t.dtype)) for t in problem.inputs}
    found = cg.simulate(code, **inputs)
    return found if isinstance(found, dict) else {problem.outputs[0].name: found}


def counted(problem: Conv, which: int) -> npt.NDArray[np.int64]:
    """How many products have each i (0), o (1) or k (2), along all axes."""
    total: npt.NDArray[np.int64] = np.ones((), np.int64)
    for axis in problem.spatial:
        sizes = (axis.i, axis.o, axis.k)
        total = np.multiply.outer(total, np.bincount([t[which] for t in taken(axis)], minlength=sizes[which]))
    return total


@pytest.mark.parametrize("name", ["windows_wholly_in_padding", "negative_quotients", "stride_larger_than_the_kernel"])
def test_forward_counts_taps_and_adds_the_bias(name: str) -> None:
    problem = Conv.parse(GEOMETRIES[name][0], dir="FWD_B", dt="f16")
    dst = ones(problem)["dst"]
    assert np.array_equal(dst, np.broadcast_to(problem.ic * counted(problem, 1) + 3, dst.shape))


@pytest.mark.parametrize("name", ["no_window_touches_the_input", "negative_quotients", "stride_larger_than_the_kernel"])
def test_backward_data_counts_windows_and_is_zero_elsewhere(name: str) -> None:
    problem = Conv.parse(GEOMETRIES[name][0], dir="BWD_D", dt="f16")
    diff_src = ones(problem)["diff_src"]
    assert np.array_equal(diff_src, np.broadcast_to(problem.oc * counted(problem, 0), diff_src.shape))


@pytest.mark.parametrize("slices", [1, 4])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", ["dilation_larger_than_the_input", "stride_leaves_a_tail"])
def test_backward_weights_count_positions_and_bias_gradients_count_once(
    name: str, slices: int, deterministic: bool
) -> None:
    """Slices add to what begins as zero; the gradient of the bias is no part of any."""
    descriptor = GEOMETRIES[name][0].replace("oc8", "oc7")
    problem = Conv.parse(descriptor, dir="BWD_WB", dt="f32", attr_deterministic=deterministic)
    found = ones(problem, f"tile=32x32x16 waves=1x1 mma=16x16x4 slots=1 taps=fused slices={slices}")
    positions = prod(axis.o for axis in problem.spatial)
    assert np.array_equal(found["diff_bia"], [problem.mb * positions] * 7)
    diff_wei = found["diff_wei"]
    assert np.array_equal(diff_wei, np.broadcast_to(problem.mb * counted(problem, 2), diff_wei.shape))


@pytest.mark.parametrize("descriptor", ["mb2ic1ih40oc256kh1", "mb1ic1iw40001oc7kw1"])
def test_bias_gradients_are_summed_in_slices_of_their_own(descriptor: str) -> None:
    problem = Conv.parse(descriptor, dir="BWD_WB", dt="f16")
    code = driver.compile(driver.build(problem))
    grids = {launch.kernel.rpartition("bias_")[2]: launch.grid for launch in code.record.launches}
    assert grids["0"][1] > 1
    assert_right(problem)


@pytest.mark.parametrize("bias_of", ["FWD_B", "FWD_D"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_slices_add_one_bias(bias_of: str, deterministic: bool) -> None:
    problem = Conv.parse("mb1ic40ih4oc9kh3ph1", dir=bias_of, dt="f32", attr_deterministic=deterministic)
    dst = ones(problem, "tile=32x32x16 waves=1x1 mma=16x16x4 slots=2 taps=split slices=4")["dst"]
    bias = 3 if bias_of == "FWD_B" else 0
    assert np.array_equal(dst, np.broadcast_to(40 * counted(problem, 1) + bias, dst.shape))


# ---------------------------------------------------------------- nothing to do


@pytest.mark.parametrize("dir", ["FWD_B", "FWD_D", "FWD_I", "BWD_D"])
def test_no_images_no_outputs(dir: str) -> None:
    problem = Conv.parse("mb0ic8ih5oc8kh3ph1", dir=dir, dt="f16")
    assert problem.is_empty
    code = driver.compile(driver.build(problem))
    assert (code.record.launches, code.object, code.config) == ((), None, "")
    assert verdict.run(code).passed
    results = simulate(code, **reference.fill(problem))
    assert results.shape == problem.outputs[0].dims
    assert results.dtype == np.float16


@pytest.mark.parametrize("dt", ["f16", "bf16:f32:bf16", "f32", "f64"])
@pytest.mark.parametrize("dir", ["BWD_W", "BWD_WB"])
def test_no_images_make_gradients_of_zero(dir: str, dt: str) -> None:
    problem = Conv.parse("mb0ic9ih5oc7kh3ph1", dir=dir, dt=dt)
    code = driver.compile(driver.build(problem))
    memory, report = execution.execute(code.record, code.object, reference.fill(problem))
    assert not report.findings
    assert {t.name for t in problem.outputs} <= memory.keys()
    assert not any(memory[t.name].whole().any() for t in problem.outputs)


@pytest.mark.parametrize("target", ["gfx942", "sm_90", "xehpg"])
@pytest.mark.parametrize("descriptor", ["g2mb0ic8oc24ih3kh2ph1", "g4mb0ic16oc8ih7kh3sh2ph1"])
def test_tiles_of_gradients_of_zero_with_groups(descriptor: str, target: str) -> None:
    """Groups stand along one axis of the tile, channels along the other, and columns number both."""
    problem = Conv.parse(descriptor, dir="BWD_W", dt="f16")
    code = driver.compile(driver.build(problem, target))
    assert code.tiles is not None
    whole = verdict.run(code).checked
    assert (
        sum(
            len(r.rows) * len(r.columns)
            for part, (m, n) in enumerate(code.tiles.grids)
            for tile in range(m * n)
            for r in code.tiles.regions(part, tile)
        )
        == whole
    )
    assert verdict.run(code, groups=2).passed


@pytest.mark.parametrize(
    "line",
    [
        "--dir=FWD_D --dt=f16 --dtag=acB8b mb2ic8oc17iw8kw1",
        "--dir=FWD_D --dt=f16 --dtag=AcB2a8b g2mb3ic8oc34iw8kw1",
        "--dir=BWD_D --dt=f16 --stag=aBcd16b mb1ic5oc9ih7oh3kh2sh3",
        "--dir=BWD_W --dt=f16 --wtag=AcBd2a8b16a mb2ic9oc20ih5kh2",
        "--dt=f16 --dtag=aCB8b8c 2x20x40:2x40x21",
    ],
)
def test_tiles_hold_each_element_of_whole_blocks_once(line: str) -> None:
    """Also the padding, in all parts: phases, and positions that no window reaches."""
    problem = parse_problem(line)
    built = driver.build(problem, "gfx942")
    assert built.tiles is not None
    count = np.zeros(problem.outputs[0].layout.padded_dims, np.int64)
    for part, (m, n) in enumerate(built.tiles.grids):
        for tile in range(m * n):
            for region in built.tiles.regions(part, tile):
                assert region.in_blocks is not None
                np.add.at(count, tuple(reference.index_in_blocks(problem, region.output, *region.in_blocks)), 1)
    assert (count == 1).all()


def test_no_images_are_not_reordered() -> None:
    problem = Conv.parse("mb0ic9ih5oc7kh3ph1", dir="BWD_W", dt="f16", stag="abx", dtag="abx")
    config = "tile=32x32x32 waves=1x1 mma=16x16x16 reorder=src+diff_dst slices=2"
    assert_right(problem, config)


@pytest.mark.parametrize("descriptor", ["ic8ih3oc8kh5", "ic8ih3oc8kh3dh1", "ic8oc8_ih8kh3_iw2kw3", "ic8oc8iw1kw2"])
def test_an_output_of_no_size_is_refused(descriptor: str) -> None:
    with pytest.raises(UserError, match=r"given sizes that make o[hw] -?\d+, wanted at least 1"):
        Conv.parse(descriptor)


# ---------------------------------------------------------------- groups of one, strided tensors


@pytest.mark.parametrize("dir", DIRECTIONS)
def test_one_group_is_no_group(dir: str) -> None:
    """With g1 the weights have a dimension more; their bytes and everything else are the same."""
    grouped, plain = (Conv.parse(f"{g}mb2ic9ih6oc11kh3ph1sh2", dir=dir, dt="f16") for g in ("g1", ""))
    assert grouped.wei_dims == (1, *plain.wei_dims)
    assert_right(grouped)
    found = []
    for problem in (grouped, plain):
        code = driver.compile(driver.build(problem))
        inputs = {name: array.reshape(problem.tensor(name).dims) for name, array in reference.fill(plain).items()}
        memory, _ = execution.execute(code.record, code.object, inputs)
        found.append([memory[t.name].whole().tobytes() for t in problem.outputs])
    assert found[0] == found[1]


#: one tensor with gaps between its elements, rows or images; tensors are 2x5x7x7, 6x5x3x3 and 2x6x4x4
GAPS = {
    "src": ["700x1x90x12::", "400x70x9x1::"],
    "wei": [":61x11x3x1:", ":1x8x50x160:"],
    "dst": ["::400x1x50x7", "::500x60x8x2"],
}
SLICED = "tile=32x32x16 waves=1x1 mma=16x16x4 slots=1 taps=fused slices=3"


@pytest.mark.parametrize(
    ("dir", "strides", "config"),
    [
        *((dir, strides, None) for dir in DIRECTIONS for each in GAPS.values() for strides in each),
        *(("FWD_B", strides, SLICED) for strides in GAPS["dst"]),
        *(("BWD_WB", strides, SLICED) for strides in GAPS["wei"]),
    ],
)
def test_gaps_are_neither_read_nor_written(dir: str, strides: str, config: str | None) -> None:
    """Gaps of inputs hold NaN, those of outputs the sentinel; slices add where they write."""
    problem = Conv.parse("mb2ic5ih7oc6oh4kh3sh2ph1", dir=dir, dt="f32", strides=strides)
    code = driver.compile(driver.build(problem, config=config))
    inputs = reference.fill(problem)
    memory, report = execution.execute(code.record, code.object, inputs)
    assert not report.findings, str(report.findings[0])
    for tensor in problem.outputs:
        assert np.array_equal(
            reference.unpack(tensor.layout, tensor.dtype, memory[tensor.name].whole()),
            reference.whole(problem, inputs, tensor.name),
        )
        assert (between(memory[tensor.name].whole(), tensor) == execution.SENTINEL).all(), tensor.name


def between(memory: Array, tensor: TensorSpec) -> Array:
    """The bytes of a tensor's memory that are no element's."""
    elements = memory.reshape(-1, reference.numpy_type(tensor.dtype).itemsize)
    used = np.asarray(tensor.layout.offset(tuple(np.indices(tensor.dims))))
    return np.delete(elements, used.ravel(), axis=0)


def test_zeroes_where_no_window_reaches_leave_gaps_alone() -> None:
    """Stride 3, kernel 1: most of diff_src is zeroed by a kernel of its own."""
    problem = Conv.parse("mb2ic5ih7oc6kh1sh3", dir="BWD_D", dt="f16", strides="900x1x120x16::")
    code = driver.compile(driver.build(problem))
    memory, _ = execution.execute(code.record, code.object, reference.fill(problem))
    (tensor,) = problem.outputs
    assert (between(memory["diff_src"].whole(), tensor) == execution.SENTINEL).all()
    diff_src = reference.unpack(tensor.layout, "f16", memory["diff_src"].whole())
    reached = np.zeros((7, 7), np.bool_)
    reached[::3, ::3] = True
    assert not diff_src[:, :, ~reached].any()
    assert diff_src[:, :, reached].any()


@pytest.mark.parametrize(("dir", "dt"), [("FWD_B", "f16"), ("BWD_D", "f64"), ("BWD_WB", "bf16")])
def test_buffers_are_read_and_written_to_their_end_and_no_further(dir: str, dt: str) -> None:
    """The same launches over one buffer that is an element shorter are a finding, whichever buffer it is."""
    problem = Conv.parse("mb1_ic1oc16_ih11kh3", dir=dir, dt=dt)
    code = driver.compile(driver.build(problem))
    assert code.object is not None
    assert verdict.run(code).passed
    inputs = reference.fill(problem)
    for tensor in problem.tensors:
        memory = {b.name: np.zeros(b.tensor.bytes, np.uint8) for b in code.record.buffers.values()}
        memory |= {t.name: reference.pack(t.layout, inputs[t.name]) for t in problem.inputs}
        memory[tensor.name] = memory[tensor.name][: -reference.numpy_type(tensor.dtype).itemsize]
        report = targets.get("gfx942").simulate(code.object, code.record.requests(), memory)
        assert "out-of-bounds" in {finding.kind for finding in report.findings}, tensor.name


Values = Any

#: name -> a product of one row, its inputs behind src of ones, and what is right. Steps follow each other in f32.
STEPS: dict[str, tuple[str, dict[str, Values], list[float]]] = {
    "ties_go_to_the_even_integer": ("--dt=f32:f32:s8 1x1:1x4", {"wei": [0.5, 1.5, -0.5, -1.5]}, [0, 2, 0, -2]),
    "what_is_negative_is_0_without_a_sign": ("--dt=f32:f32:u8 1x1:1x3", {"wei": [-7, 255.5, 7]}, [0, 255, 7]),
    "integers_saturate_behind_post_ops": (
        "--dt=s8:s8:s8 --attr-post-ops=linear:4+linear:0.25 1x1:1x2",
        {"wei": [100, -128]},
        [100, -128],
    ),
    "a_sum_is_added_before_integers_saturate": (
        "--dt=s8:s8:s8 --attr-post-ops=sum 1x1:1x2",
        {"wei": [120, -120], "dst": [-100, 100]},
        [20, -20],
    ),
    "a_sum_behind_relu": (
        "--dt=f32 --attr-post-ops=relu+sum 1x1:1x2",
        {"wei": [-3, 3], "dst": [1, 1]},
        [1, 4],
    ),
    "relu_behind_a_sum": (
        "--dt=f32 --attr-post-ops=sum+relu 1x1:1x2",
        {"wei": [-3, 3], "dst": [1, 1]},
        [0, 4],
    ),
    "relu_of_halves_keeps_what_is_no_number": (
        "--dt=f16 --attr-post-ops=relu 1x1:1x8",
        {"wei": [np.nan, -np.nan, np.inf, -np.inf, -1, -6e-8, 6e-8, -65504]},
        [np.nan, np.nan, np.inf, 0, 0, 0, float(np.float16(6e-8)), 0],
    ),
    "a_sum_of_another_type_less_its_zero_point": (
        "--dt=s8:s8:u8 --attr-post-ops=sum:2:1:s8 1x1:1x2",
        {"wei": [100, 100], "dst": [255, 3]},
        [96, 104],
    ),
    "the_largest_scale": (
        "--dt=s8:s8:u8 --attr-scales=dst:common:4294967295 1x1:1x2",
        {"wei": [100, -100]},
        [0, 0],
    ),
    "a_scale_without_a_reciprocal": (
        "--dt=s8:s8:s8 --attr-scales=dst:common:1e-45 1x1:1x3",
        {"wei": [1, -1, 5]},
        [127, -128, 127],
    ),
    "a_bias_is_not_scaled_and_is_divided": (
        "--dt=s8:s8:f32 --bia-dt=f32 --attr-scales=src:common:0.5+dst:common:4 1x1:1x2",
        {"wei": [4, 8], "bia": [1, 1]},
        [0.75, 1.25],
    ),
    "division_by_zero": (
        "--dt=f32 --attr-post-ops=div:f32:2 1x1:1x3",
        {"wei": [1, -1, 0], "post_op_0": [0, 0, 0]},
        [np.inf, -np.inf, np.nan],
    ),
    "slopes_along_rows_and_columns": (
        "--dt=f32 --attr-post-ops=prelu:1+prelu:2 1x1:1x3",
        {"wei": [-1, -1, 1], "post_op_0": [4], "post_op_1": [0.5, -0.5, 8]},
        [-2, 2, 1],
    ),
    "a_sigmoid_of_large_numbers": (
        "--dt=f32 --attr-post-ops=logistic 1x1:1x5",
        {"wei": [-1e30, -200, 200, 1e30, np.nan]},
        [0, 0, 1, 1, np.nan],
    ),
    "limits_that_cross": ("--dt=f32 --attr-post-ops=clip:2:1 1x1:1x3", {"wei": [0, 1.5, 9]}, [1, 1, 1]),
}


#: Each of them always, on one target in turn.
ON_TARGETS = always([(name, t) for name in STEPS for t in ("gfx942", "xehpc")], lambda n, case: (n + n // 2) % 2 == 0)


@pytest.mark.parametrize(("name", "target"), ON_TARGETS)
def test_steps_behind_sums(name: str, target: str) -> None:
    line, values, wanted = STEPS[name]
    problem = parse_problem(line)
    kinds = {spec.name: (reference.numpy_type(spec.dtype), spec.dims) for spec in problem.inputs}
    arrays = {key: np.array(v, kinds[key][0]).reshape(kinds[key][1]) for key, v in {"src": 1, **values}.items()}
    found = reference.whole(problem, arrays, "dst")[0].astype(np.float64)
    assert np.allclose(found, wanted, 1e-6, 1e-6, equal_nan=True)
    outcome = verdict.run(driver.compile(driver.build(problem, target)), arrays=arrays)
    assert outcome.passed, outcome.first
