"""What becomes of sums: biases of every type and post-ops, on the simulator against the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import convgen as cg
from convgen.ir.record import evolve
from convgen.ir.types import scalar
from convgen.problem import eltwise, post_ops
from convgen.problem.matmul import Problem, parse_problem
from convgen.run import accuracy, reference, verdict
from convgen.run.ranges import Range, chained, converted, divided

pytestmark = pytest.mark.in_turn(6)

ROOT = Path(__file__).parents[2]
TARGETS = ("gfx942", "xehpc", "sm_90")
CONVOLUTION = "mb1ic16ih6oc20kh3ph1"
PRODUCT = "35x32:32x20"


def run(problem: Problem, target: str, config: str | None = None) -> verdict.Outcome:
    outcome = verdict.run(cg.compile(cg.build(problem, target, config)))
    assert outcome.passed, outcome.first
    return outcome


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("of", ["f16", "s8"])
@pytest.mark.parametrize("bias", ["f32", "f16", "bf16", "s32", "s8", "u8", "f8_e4m3", "f8_e5m2"])
def test_a_bias_has_any_type(bias: str, of: str, target: str) -> None:
    """Those that are no integers are added to sums of integers in f32."""
    run(parse_problem(f"--dt={of} --dir=FWD_D --bia-dt={bias} {CONVOLUTION}"), target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mask", range(8))
def test_a_bias_of_products_differs_along_any_dims(mask: int, target: str) -> None:
    run(parse_problem(f"--dt=f16 --bia-dt=bf16 --bia_mask={mask} 3x35x32:3x32x20"), target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("knobs", ["--dtag=ba", "--runtime_dims_masks=1:2"])
def test_a_bias_lies_as_the_result_is_seen(knobs: str, target: str) -> None:
    run(parse_problem(f"--dt=f16 {knobs} --bia-dt=f32 --bia_mask=3 {PRODUCT}"), target)


@pytest.mark.parametrize("target", TARGETS)
def test_the_gradient_of_a_bias_is_rounded_once(target: str) -> None:
    run(parse_problem("--dt=bf16 --dir=BWD_W --bia-dt=bf16 mb2ic16ih14oc20kh3ph1"), target)


def test_the_reference_adds_a_bias_by_its_mask() -> None:
    problem = parse_problem("--dt=s8:s8:s8 --bia-dt=f16 --bia_mask=1 2x1:1x3")
    src, wei = np.array([[1], [2]], np.int8), np.array([[1, 50, 100]], np.int8)
    bias = np.array([[0.5], [0.25]], np.float16)
    found = reference.whole(problem, {"src": src, "wei": wei, "bia": bias}, "dst")
    assert found.tolist() == [[2, 50, 100], [2, 100, 127]]  # 1.5 and 50.5 go to the even ones


EXACT = "abs clip:-2:3 clip_v2:-2:3 hardsigmoid:0.2:0.5 hardswish:0.2:0.5 linear:2:1 relu relu:0.1 round square pow:1:2"
BOUNDED = (
    "elu:0.5 elu:-2 exp gelu_erf gelu_tanh log logistic mish pow:1:1.5 pow:2:0.5 pow:1:-1 pow:0.5:3 soft_relu:1 "
    "soft_relu:-2 sqrt swish swish:1 swish:-0.5 tanh"
)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", [*EXACT.split(), *BOUNDED.split()])
def test_every_function_is_within_its_bound(op: str, target: str) -> None:
    run(parse_problem(f"--dt=f16:f16:f32 --attr-post-ops={op} 17x9:9x20"), target)


def test_all_functions_are_tried() -> None:
    tried = {op.partition(":")[0] for op in [*EXACT.split(), *BOUNDED.split()]}
    assert tried == set(accuracy.REFERENCES)


def test_work_on_sums_does_not_wait_for_the_vote_on_padding() -> None:
    """It is under way beside the last products, and sums begin with the bias; only stores are left."""
    built = cg.build(parse_problem("--dt=f16 --dir=FWD_B --attr-post-ops=relu+sum mb1ic64ih14oc64kh3ph1"), "gfx942")
    text = cg.compile(built).asm
    then = text.partition(".then_")[2].partition(".else_")[0]
    assert "v_pk_add_f32" not in text
    assert "buffer_store" in then
    assert not any(line.split()[0].startswith(("v_", "buffer_load")) for line in then.splitlines()[1:] if line.strip())


CHAINS = [
    f"--dt=s8:s8:u8 --attr-post-ops=linear:0.02:3+relu {CONVOLUTION}",
    f"--dt=s8:s8:s8 --dir=FWD_D --bia-dt=bf16 --attr-post-ops=linear:0.02+gelu_erf {CONVOLUTION}",
    f"--dt=f16 --attr-post-ops=linear:0.1:0.3+tanh+square+linear:0.25:0.375+round {CONVOLUTION}",
    f"--dt=bf16 --bia-dt=f32 --attr-post-ops=relu:0:0:2.6 --runtime_dims_masks=1 {PRODUCT}",
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("line", CHAINS)
def test_post_ops_follow_each_other(line: str, target: str) -> None:
    run(parse_problem(line), target)


@pytest.mark.parametrize("summed", ["", " sum=last", " sum=launch"])
def test_whoever_has_the_whole_sum_applies_post_ops(summed: str) -> None:
    problem = parse_problem("--dt=f16 --bia-dt=f16 --attr-post-ops=linear:0.1:0.3+tanh 33x256:256x40")
    config = f"tile=32x32x32 waves=1x1 mma=16x16x16 slots=2 taps=fused slices=3{summed}"
    run(problem, "gfx942", config)
    with pytest.raises(cg.UserError, match="sum=atomic: slices cannot be added"):
        cg.build(problem, "gfx942", config.removesuffix(summed) + " sum=atomic")


SUMS = [
    f"--dt=f16 --attr-post-ops=sum:1.5:2+relu --dtag=abcd g2{CONVOLUTION}",
    f"--dt=f16:f16:f32 --attr-post-ops=tanh+sum:0.25:3 {CONVOLUTION}",
    f"--dt=s8:s8:u8 --attr-post-ops=sum:0.5:3:s8+relu {CONVOLUTION}",
    f"--dt=bf16 --attr-post-ops=sum+relu --runtime_dims_masks=1 {PRODUCT}",
    "--dt=f16 --bia-dt=f32 --bia_mask=4 --attr-post-ops=relu:0.5+sum 3x35x32:3x32x20",
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("line", SUMS)
def test_a_sum_takes_the_destination_before_it_is_written_over(line: str, target: str) -> None:
    problem = parse_problem(line)
    run(problem, target)
    assert [t.name for t in problem.tensors].count("dst") == 1
    assert problem.inputs[-1].name == "dst"


@pytest.mark.parametrize("summed", ["last", "launch"])
def test_slices_read_the_destination_once(summed: str) -> None:
    config = f"tile=32x32x32 waves=1x1 mma=16x16x16 slots=2 taps=fused slices=3 sum={summed}"
    run(parse_problem("--dt=f16 --attr-post-ops=sum:0.5+abs 33x256:256x40"), "gfx942", config)


def test_a_sum_is_of_what_was_there_less_the_zero_point() -> None:
    problem = parse_problem("--dt=s8:s8:u8 --attr-post-ops=sum:0.5:1:s8 1x1:1x3")
    arrays = {"src": [[2]], "wei": [[10, 20, 31]]}
    inputs = {name: np.array(values, np.int8) for name, values in arrays.items()}
    old = np.array([[5, 255, 129]], np.uint8)  # 5, -1 and -127
    assert reference.whole(problem, {**inputs, "dst": old}, "dst").tolist() == [[22, 39, 0]]


def _nothing(name: str) -> reference.Array:
    raise KeyError(name)


def test_a_range_holds_what_is_right_and_little_more() -> None:
    """A function that turns is followed to where it turns."""
    values = np.array([-1, 0, 3], np.float32)
    exact = chained(post_ops.read("linear:2:1+abs"), Range.of([values]), _nothing)
    assert exact.is_one
    assert exact.least.tolist() == [1, 1, 7]
    found = chained(post_ops.read("tanh+square"), Range.of([values]), _nothing)
    wanted = np.tanh(values.astype(np.float64)) ** 2
    assert np.all((found.least <= wanted) & (wanted <= found.most))
    assert np.all(found.most - found.least < 1e-5)
    assert not found.nan.any()


@pytest.mark.parametrize("last", ["log", "sqrt", "pow:1:0.5", "pow:1:-1", "linear:-3:2"])
def test_numbers_and_nan_are_right_of_what_may_be_below_zero(last: str) -> None:
    """`swish:-2` of much is next to zero, on either side."""
    values = np.array([20, -20], np.float32)
    found = chained(post_ops.read(f"swish:-2+{last}"), Range.of([values]), _nothing)
    with np.errstate(all="ignore"):
        of_zeros = chained(post_ops.read(last), Range.of([np.array([1e-9, 0, -0.0], np.float32)]), _nothing)
    for one in of_zeros.least:
        assert found.least[0] <= one <= found.most[0]
    assert found.nan.tolist() == [last in ("log", "sqrt", "pow:1:0.5"), last in ("log", "sqrt", "pow:1:0.5")]
    assert np.isnan(found.least).tolist() == [False, found.nan[1]]


@pytest.mark.parametrize("op", ["log", "sqrt", "pow:1:-1", "elu:1"])
def test_denormals_may_count_as_zeros_to_approximate_functions(op: str) -> None:
    """As on hardware that flushes them (docs/ir.md, "Floats"); exact functions keep them."""
    values = np.array([1e-40, -1e-40, 2**-149, 1], np.float32)
    found = chained(post_ops.read(op), Range.of([values]), _nothing)
    with np.errstate(all="ignore"):
        for each in (values, np.where(values == 1, values, np.copysign(np.float32(0), values))):
            right = chained(post_ops.read(op), Range.of([each]), _nothing)
            assert np.all((found.least <= right.least) & (right.most <= found.most) | right.nan & found.nan)
    assert chained(post_ops.read("abs"), Range.of([values]), _nothing).least.tolist() == np.abs(values).tolist()


@pytest.mark.parametrize(("scale", "also_right"), [(2.0**-127, np.nan), (3e38, 0.0), (0.75, None)])
def test_denormal_scales_and_reciprocals_may_count_as_zeros(scale: float, also_right: float | None) -> None:
    found = divided(Range.of([np.array([0, 1], np.float32)]), np.array([scale, scale], np.float32))
    assert found.least[1] <= np.float32(1) / np.float32(scale) <= found.most[1]
    assert found.nan.tolist() == [also_right is not None and np.isnan(also_right), False]
    assert (found.least[1] == 0) == (also_right == 0)


def test_infinite_results_and_scales_make_nan() -> None:
    found = divided(Range.of([np.array([np.inf, 2], np.float32)]), np.array([np.inf, np.inf], np.float32))
    assert found.nan.tolist() == [True, False]
    assert np.isnan(found.least[0])
    assert (found.least[1], found.most[1]) == (0, 0)


def test_beyond_a_type_without_infinities_a_range_holds_numbers_and_nan() -> None:
    ends = [np.array(values, np.float32) for values in ([400, 440, -600, 600], [440, 600, 600, 700])]
    narrow = scalar("f8_e4m3")
    found = converted(Range.of(ends), lambda values: values.astype(narrow.numpy), narrow.largest)
    assert found.nan.tolist() == [False, True, True, True]
    assert np.isnan(found.least).tolist() == [False, False, False, True]
    assert found.least[:3].tolist() == [384, 448, -448]
    assert found.most[:3].tolist() == [448, 448, 448]


_OF_BOTH_SIGNS = (
    "relu",
    "relu:0.5",
    "clip:0:5",
    "clip:-3:0",
    "hardsigmoid:-1:0",
    "round",
    "pow:-1:1",
    "max:f32",
    "min:f16",
)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("to", ["f16", "f32"])
@pytest.mark.parametrize("ops", [f"{first}+{last}" for first in ("mul:f32:1", "linear:-1") for last in _OF_BOTH_SIGNS])
def test_zeros_have_the_sign_of_the_reference(to: str, ops: str, target: str) -> None:
    """Whatever is rounded first, and behind operations to which zeros with and without a sign are equal."""
    run(parse_problem(f"--dt=f16:f16:{to} --attr-post-ops={ops} 43x8:8x32"), target)


def test_what_is_out_of_range_is_wrong() -> None:
    problem = parse_problem("--dt=f16:f16:f32 --attr-post-ops=tanh 8x8:8x8")
    code = cg.compile(cg.build(problem))
    other = evolve(problem, post_ops=post_ops.read("gelu_erf"))
    assert verdict.run(evolve(code, problem=other)).mismatches


def test_an_element_wise_function_stands_in_two_rows() -> None:
    """One where it is generated, with the name by which requests have it, and one where it is judged."""
    rooms = [ROOT / room for room in ("gen", "ir", "passes", "backends")]
    files = [path.name for room in rooms for path in room.rglob("*.py") if '"mish"' in path.read_text()]
    assert sorted(files) == ["accuracy.py", "eltwise.py"]
    assert accuracy.REFERENCES.keys() == eltwise.FUNCTIONS.keys()


@pytest.mark.parametrize("target", ["gfx942", "gfx950", "xehpc", "sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz"])
@pytest.mark.parametrize("name", ["post_op_0", "bia"])
def test_operands_of_8_bit_floats_have_every_value(name: str, dtype: str, target: str) -> None:
    """The sums are zero: what is stored are the operand's 256 values, infinities and NaNs included."""
    knobs = f"--attr-post-ops=add:{dtype}:3" if name == "post_op_0" else f"--bia-dt={dtype} --bia_mask=3"
    problem = parse_problem(f"--dt=f32 {knobs} 16x8:8x16")
    src, wei = np.zeros((16, 8), np.float32), np.zeros((8, 16), np.float32)
    operand = np.arange(256, dtype=np.uint8).view(reference.numpy_type(dtype)).reshape(16, 16)
    inputs = {"src": src, "wei": wei, name: operand}
    result = cg.simulate(cg.compile(cg.build(problem, target)), **inputs)
    assert np.array_equal(result, operand.astype(np.float32), equal_nan=True)
