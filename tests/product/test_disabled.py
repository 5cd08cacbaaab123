"""With any optimising pass switched off, kernels are still exactly right on the simulator."""

from __future__ import annotations

import pytest

from convgen import driver, verify
from convgen.passes.pipeline import OPTIMISING, PASSES
from convgen.problem import Conv

PROBLEMS = (
    Conv.parse("mb1ic64ih8oc64kh3ph1", dir="FWD_D", dt="f16"),
    Conv.parse("mb2ic5ih9oc19kh3ph2sh2", dir="FWD_D", dt="bf16:bf16:f32"),
    Conv.parse("mb1ic96ih7oc40kh1sh2", dir="FWD_D", dt="f16:f16:bf16"),
)


@pytest.mark.parametrize("name", [p.name for p in PASSES if p.kind == OPTIMISING])
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_a_pass_may_be_off(problem: Conv, name: str) -> None:
    outcome = verify.run(driver.compile(driver.build(problem, disable=(name,))))
    assert outcome.passed, (outcome.findings[:1], outcome.first[:1])
