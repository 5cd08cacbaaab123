"""What steps behind the sums read beside them: scales, second operands of post-ops; and results of every type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen.problem.matmul import Problem, parse_problem
from convgen.run import reference, verdict
from tests.strategies import always

pytestmark = pytest.mark.in_turn(6)

TARGETS = ("gfx942", "xehpc", "sm_90")
OTHERS = ("gfx90a", "gfx950", "xehpg")
CONVOLUTION = "mb2ic16ih6oc20kh3ph1"
PRODUCT = "35x32:32x20"
BATCH = "3x35x32:3x32x20"

Values = Any


def _in_turn(number: int, case: object) -> bool:
    """What every run tries of the pairs of a line and a target: one in three."""
    return number % 3 == 0


def run(line: str, target: str, arrays: dict[str, reference.Array] | None = None, config: str | None = None) -> None:
    code = cg.compile(cg.build(parse_problem(line), target, config))
    outcome = verdict.run(code, arrays=arrays)
    assert outcome.passed, (outcome.first, outcome.findings)


def right(line: str, **arrays: Values) -> list[Any]:
    """The right result of inputs, given in their order by name, each as the problem has it."""
    problem = parse_problem(line)
    found: list[Any] = reference.whole(problem, given(problem, arrays), "dst").tolist()
    return found


def given(problem: Problem, arrays: dict[str, Values]) -> dict[str, reference.Array]:
    assert set(arrays) == {spec.name for spec in problem.inputs}
    return {
        spec.name: np.array(arrays[spec.name], reference.numpy_type(spec.dtype)).reshape(spec.dims)
        for spec in problem.inputs
    }


SCALES = [
    f"--dt=s8:s8:f32 --attr-scales=src:common:0.25+wei:per_oc+dst:common:2 {CONVOLUTION}",
    f"--dt=s8 --attr-scales=src:common:0.25+wei:per_oc:f16+dst:common:1.25 --bia-dt=f32 --dir=FWD_D g2{CONVOLUTION}",
    f"--dt=f16 --attr-scales=wei:host_scalar:0.5:bf16+dst:per_oc:bf16 --dtag=abcd {CONVOLUTION}",
    f"--dt=bf16 --attr-scales=src:1:f16+dst:per_tensor --attr-post-ops=relu {CONVOLUTION}",
    f"--dt=s8:s8:u8 --attr-scales=dst:9 --attr-post-ops=sum:0.5 {CONVOLUTION}",
    f"--dt=f16 --attr-scales=src:3+wei:5:f16+dst:per_tensor {BATCH}",
    f"--dt=s8:s8:bf16 --attr-scales=src:per_dim_0:f16:1x32+wei:per_oc --dtag=ba {PRODUCT}",
    f"--dt=f16 --runtime_dims_masks=1:2 --attr-scales=wei:per_oc+dst:2 {PRODUCT}",
    "--dt=f16 --attr-scales=wei:4 --bia-dt=f32 --bia_mask=1 --attr-post-ops=tanh 3x35x32:1x32x20",
    f"--dt=s8:s8:f32 --attr-scales=src:common:f32+wei:common:bf16+dst:common --dir=FWD_D g2{CONVOLUTION}",
    f"--dt=f16:f16:f32 --attr-scales=src:common+wei:0:f16+dst:common:f32 {PRODUCT}",
    f"--dt=f16 --runtime_dims_masks=1:2 --attr-scales=src:common:0.5+wei:host_scalar:f32 {PRODUCT}",
]


@pytest.mark.parametrize(("line", "target"), always([(s, t) for s in SCALES for t in TARGETS], _in_turn))
def test_scales(line: str, target: str) -> None:
    run(line, target)


@pytest.mark.sweep
@pytest.mark.parametrize("target", OTHERS)
@pytest.mark.parametrize("line", SCALES)
def test_scales_of_other_targets(line: str, target: str) -> None:
    run(line, target)


def test_one_value_is_a_constant_and_others_are_arguments() -> None:
    line = f"--dt=s8 --attr-scales=src:common:0.25+wei:per_oc:f16+dst:common:2 --dir=FWD_D g2{CONVOLUTION}"
    record = cg.compile(cg.build(parse_problem(line))).record
    assert list(record.buffers) == ["src", "wei", "wei_scales", "dst"]
    scales = record.buffers["wei_scales"]
    assert (scales.tensor.dims, scales.tensor.dtype, scales.access) == ((2, 10, 1, 1, 1), "f16", "read")


@pytest.mark.parametrize("shape", [f"--dir=FWD_D {CONVOLUTION}", PRODUCT])
def test_one_value_without_a_number_is_an_argument_of_one_element(shape: str) -> None:
    problem = parse_problem(f"--dt=s8:s8:f32 --attr-scales=src:common:f32+wei:common:bf16+dst:0 {shape}")
    assert parse_problem(str(problem)) == problem
    record = cg.compile(cg.build(problem)).record
    assert list(record.buffers) == ["src", "wei", "src_scales", "wei_scales", "dst_scales", "dst"]
    tensors = [record.buffers[f"{role}_scales"].tensor for role in ("src", "wei", "dst")]
    assert [(set(each.dims), each.dtype) for each in tensors] == [({1}, "f32"), ({1}, "bf16"), ({1}, "f32")]


def test_a_scale_read_from_memory_counts_as_a_constant_does() -> None:
    knobs = "--dt=s8:s8:f32 --attr-scales=src:common:f32+wei:common+dst:common:f16 --bia-dt=f32"
    scales = {"src_scales": [0.5], "wei_scales": [4], "dst_scales": [8]}
    assert right(f"{knobs} 1x1:1x2", src=[3], wei=[4, 5], bia=[1, 3], **scales) == [[25 / 8, 33 / 8]]


def test_scales_come_before_a_bias_and_that_of_the_result_behind_all() -> None:
    knobs = "--dt=s8:s8:f32 --attr-scales=src:common:0.5+wei:per_oc+dst:common:8 --bia-dt=f32 --attr-post-ops=square"
    assert right(f"{knobs} 1x1:1x2", src=[3], wei=[4, 5], bia=[1, 1], wei_scales=[2, 4]) == [[13**2 / 8, 31**2 / 8]]


def test_the_reciprocal_of_a_scale_is_rounded() -> None:
    """To f32, as that of one value is before the launch; so is an integer above 2^24 before it is scaled."""
    assert right("--dt=f32 --attr-scales=dst:common:3 1x1:1x1", src=[5], wei=[1]) == [
        [float(np.float32(5) * (np.float32(1) / np.float32(3)))]
    ]
    line = "--dt=s8:s8:s32 --attr-scales=src:common:2 1x1100:1100x1"
    ends = {"src": np.full(1100, -128), "wei": np.array([-128] * 1099 + [-127])}
    assert right(line, **ends) == [[2 * int(np.float32(128 * 128 * 1100 - 128))]]


def test_a_large_scale_leaves_nothing() -> None:
    line = "--dt=s8:s8:u8 --attr-scales=src:common:0.25+dst:common:4294967295 1x1:1x1"
    assert right(line, src=[100], wei=[100]) == [[0]]


BINARY = [
    *(
        f"--dt=f16:f16:f32 --attr-post-ops={op}:f32:per_oc"
        for op in "add sub mul div min max eq ne lt le gt ge".split()
    ),
    *(f"--dt=f16 --attr-post-ops=add:{dtype}:15" for dtype in "f32 f16 bf16 s32 s8 u8".split()),
    "--dt=bf16 --attr-post-ops=add:f32+mul:s8:per_oc+sub:u8:15+min:s32:14+max:f16:per_dim_01",
    "--dt=s8:s8:u8 --attr-post-ops=eq:f32+linear:2:1+ne:s32:per_oc+linear:100:0.5",
    "--dt=f16 --attr-post-ops=tanh+div:f32:per_oc+prelu:per_oc+eq:f32+add:f16:per_tensor",
    "--dt=f16 --attr-post-ops=prelu:per_oc+prelu:15+prelu --dtag=abcd",
    "--dt=f16 --attr-post-ops=select:f16.2:15.axb+select:f16+select:s8:0",
    "--dt=f16 --attr-post-ops=add:f32:13:abcd:100x100x6x1+add:bf16:per_tensor:cdba+sum --dtag=abcd",
    "--dt=f16 --attr-post-ops=add:f32:1+add:f32:4+add:f32:8+add:f32:12",
    "--dt=f16 --attr-post-ops=mul:f32:per_oc+exp+add:s8:14:aBcd16b+add:f16:15+sum --dtag=ABcd2a16b",
    "--dt=f16 --attr-post-ops=mul:f32:1+mul:f32:9+add:f32:6+add:f32:14 --dtag=abcd",
]


@pytest.mark.parametrize(("knobs", "target"), always([(s, t) for s in BINARY for t in TARGETS], _in_turn))
def test_operands_of_post_ops(knobs: str, target: str) -> None:
    run(f"{knobs} --dir=FWD_D {CONVOLUTION}", target)


@pytest.mark.sweep
@pytest.mark.parametrize("target", OTHERS)
@pytest.mark.parametrize("knobs", BINARY)
def test_operands_of_other_targets(knobs: str, target: str) -> None:
    """With groups, but for blocks that do not end where these do."""
    run(f"{knobs} {'' if '16b' in knobs else 'g2'}{CONVOLUTION}", target)


OF_PRODUCTS = [
    f"--attr-post-ops=mul:f32:2+linear:1:2+add:f16:3+sum --dtag=AB16b16a {PRODUCT}",
    f"--attr-post-ops=add:f16:6:abc+mul:f16:5:abc+add:f16:7:bac+add:f32:1+prelu:per_oc {BATCH}",
    f"--attr-post-ops=add:f16:3:ab+mul:f16:1+mul:f16:2 --runtime_dims_masks=1:2 {PRODUCT}",
    f"--attr-post-ops=select:f32.1:3.ba+mul:f16:3 --dtag=ba {PRODUCT}",
]


@pytest.mark.parametrize(("line", "target"), always([(s, t) for s in OF_PRODUCTS for t in TARGETS], _in_turn))
def test_operands_of_products(line: str, target: str) -> None:
    run(f"--dt=f16 {line}", target)


@pytest.mark.parametrize("summed", ["last", "launch"])
def test_slices_read_operands_once(summed: str) -> None:
    config = f"tile=32x32x32 waves=1x1 mma=16x16x16 slots=2 taps=fused slices=3 sum={summed}"
    knobs = "--dt=f16 --attr-scales=wei:per_oc+dst:common:2 --attr-post-ops=mul:f32:3+prelu:1"
    run(f"{knobs} 33x256:256x40", "gfx942", config=config)


def test_the_reference_broadcasts_operands() -> None:
    line = "--dt=f32 --attr-post-ops=add:f32:per_dim_0+select:f32.per_dim_1:3+prelu 2x1:1x3"
    found = right(
        line,
        src=[1, 2],
        wei=[1, 10, -100],
        post_op_0=[1000, 2000],
        post_op_1=[7, 8, -9],
        post_op_1_condition=[1, 0, 1, 0, 1, 0],
        post_op_2=[0.5],
    )
    assert found == [[1001, 8, 900], [7, 2020, -4.5]]


SPECIAL = [-np.inf, -3e9, -2.5, -0.0, 0.0, 0.5, 1.5, 3e9, np.inf, np.nan]
LEFT = {
    "s32": [-(2**31), -(2**31), -2, 0, 0, 0, 2, 2**31 - 1, 2**31 - 1, 0],
    "s8": [-128, -128, -2, 0, 0, 0, 2, 127, 127, 0],
}
LEFT["u8"] = [0, 0, 0, 0, 0, 0, 2, 255, 255, 0]


@pytest.mark.parametrize("dt", LEFT)
def test_integers_of_floats_are_the_nearest_even_ones(dt: str) -> None:
    """They saturate; NaN is none, and 0."""
    line = f"--dt=f32:f32:{dt} 10x1:1x1"
    problem = parse_problem(line)
    arrays = given(problem, {"src": SPECIAL, "wei": [1]})
    assert reference.whole(problem, arrays, "dst").ravel().tolist() == LEFT[dt]
    for target in TARGETS:
        run(line, target, arrays)


ANY_TYPE = [(f"--dt={of}:{of}:{to} {CONVOLUTION}", t) for of in ("f32", "f16", "bf16") for to in LEFT for t in TARGETS]
ANY_TYPE += [(f"--dt=s8:s8:{to} {CONVOLUTION}", t) for to in ("f16", "bf16") for t in TARGETS]


@pytest.mark.parametrize(("line", "target"), always(ANY_TYPE, lambda n, case: n % 5 == 0))
def test_results_of_any_type(line: str, target: str) -> None:
    run(line, target)


NOT_LOST = [
    "relu:0.5+linear:2:1+abs+square",
    "clip:-1:1+elu:1+hardsigmoid:1:0.5+hardswish:1:0.5+relu",
    "div:f32:1+prelu:1+mul:f32:1",
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("ops", NOT_LOST)
def test_a_nan_is_not_lost(ops: str, target: str) -> None:
    """Nor are infinities, and what a division by zero makes of them."""
    problem = parse_problem(line := f"--dt=f32 --attr-post-ops={ops} 6x1:1x3")
    zeros = {spec.name: np.zeros(6) for spec in problem.inputs[2:]}
    arrays = given(problem, {"src": [-np.inf, -2.5, 0.0, 1.5, np.inf, np.nan], "wei": [1, -1, 2], **zeros})
    assert np.all(np.isnan(reference.whole(problem, arrays, "dst")[-1]))
    run(line, target, arrays)


LARGE = "mb32ic64ih56oc64oh56kh3ph1"
WIDE = {
    "gfx942": "tile=256x64x32 waves=4x1 mma=32x32x8 slots=2 taps=split padding=zeros",
    "xehpc": "tile=256x64x16 waves=8x1 mma=16x8x16 slots=2 taps=split padding=zeros",
}


@pytest.mark.parametrize(("target", "elements"), [("gfx942", 64), ("xehpc", 128)])
def test_a_chain_adds_few_instructions_and_no_pass(target: str, elements: int) -> None:
    """Of a lane's registers: bias, relu and a sum of f16 take some six instructions each, and their loads."""
    lines = (f"--dt=f16 --dir=FWD_D {LARGE}", f"--dt=f16 --attr-post-ops=relu+sum {LARGE}")
    plain, chain = (cg.compile(cg.build(parse_problem(line), target, WIDE[target])) for line in lines)
    assert len(chain.record.launches) == len(plain.record.launches) == 1
    counts = [len([row for row in code.asm.splitlines() if row.startswith(" ")]) for code in (plain, chain)]
    assert counts[1] - counts[0] < 6.6 * elements


@pytest.mark.parametrize("target", WIDE)
def test_long_chains_have_room_in_large_tiles(target: str) -> None:
    knobs = "--dt=f16 --attr-scales=src:common:0.5+wei:per_oc+dst:common:2"
    line = f"{knobs} --attr-post-ops=mul:f32:per_oc+gelu_tanh+add:f32:per_tensor+prelu:per_oc+sum {LARGE}"
    outcome = verdict.run(cg.compile(cg.build(parse_problem(line), target, WIDE[target])), groups=1)
    assert outcome.passed, outcome.first
