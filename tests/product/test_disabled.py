"""With any optimising pass or stage switched off, kernels are still exactly right on the simulator."""

from __future__ import annotations

from itertools import product

import pytest

from convgen import driver
from convgen.compile_steps import steps
from convgen.passes.pipeline import OPTIMISING
from convgen.problem.conv import Conv
from convgen.run import verdict
from tests.strategies import always

pytestmark = pytest.mark.in_turn(2)

PROBLEMS = (
    Conv.parse("mb1ic64ih8oc64kh3ph1", dir="FWD_D", dt="f16"),
    Conv.parse("mb2ic5ih9oc19kh3ph2sh2", dir="FWD_D", dt="bf16:bf16:f32"),
    Conv.parse("mb1ic96ih7oc40kh1sh2", dir="FWD_D", dt="f16:f16:bf16"),
)


STEPS = [step.name for step in steps("gfx942") if step.kind == OPTIMISING]


@pytest.mark.parametrize(
    ("problem", "name"),
    always(product(PROBLEMS, STEPS), lambda n, _: (n // len(STEPS) + n) % len(PROBLEMS) == 0),
)
def test_a_step_may_be_off(problem: Conv, name: str) -> None:
    assert_right(problem, "gfx942", name)


def test_fences_may_stay() -> None:
    assert_right(PROBLEMS[0], "xehpc", "fences")


def assert_right(problem: Conv, target: str, name: str) -> None:
    outcome = verdict.run(driver.compile(driver.build(problem, target, disable=(name,))))
    assert outcome.passed, (outcome.findings[:1], outcome.first[:1])
