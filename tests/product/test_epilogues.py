"""What becomes of sums: biases of every type, on the simulator against the reference."""

from __future__ import annotations

import numpy as np
import pytest

import convgen as cg
from convgen.problem.matmul import Problem, parse_problem
from convgen.run import reference, verify

TARGETS = ("gfx942", "xehpc")
CONVOLUTION = "mb1ic16ih6oc20kh3ph1"
PRODUCT = "35x32:32x20"


def run(problem: Problem, target: str, config: str | None = None) -> verify.Outcome:
    outcome = verify.run(cg.compile(cg.build(problem, target, config)))
    assert outcome.passed, outcome.first
    return outcome


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("of", ["f16", "s8"])
@pytest.mark.parametrize("bias", ["f32", "f16", "bf16", "s32", "s8", "u8"])
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
