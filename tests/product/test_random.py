"""Random problems and configs all the way: generated, assembled, run on the strict simulator, exactly right."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given, note, reject, settings

from convgen import driver, verify
from convgen.backends.target import get
from convgen.config import Config
from convgen.ir.error import UserError
from convgen.problem import Conv
from tests.strategies import FIXED, Case, cases, problems

FACTS = get("gfx942").facts

FEW = settings(FIXED, max_examples=12)
MANY = settings(FEW, max_examples=150)


def check(problem: Conv, config: Config | None) -> None:
    program = driver.build(problem, config=config)
    try:
        code = driver.compile(program)
    except UserError as error:  # the plan only estimates registers
        if config is None or "free words" not in str(error):
            raise
        reject()
    note(f"{problem}\n{code.config}")
    outcome = verify.run(code)
    assert outcome.checked == sum(prod(t.dims) for t in problem.outputs)
    assert not outcome.findings, "\n".join(map(str, outcome.findings[:3]))
    assert not outcome.mismatches, "\n".join(map(str, outcome.first))


@FEW
@given(problems(most=12, channels=64))
def test_problems(problem: Conv) -> None:
    check(problem, None)


@FEW
@given(cases(FACTS, work=1000))
def test_problems_with_configs(case: Case) -> None:
    check(*case)


@pytest.mark.sweep
@MANY
@given(problems(most=16, channels=96))
def test_many_problems(problem: Conv) -> None:
    check(problem, None)


@pytest.mark.sweep
@MANY
@given(cases(FACTS, most=12, work=2000))
def test_many_problems_with_configs(case: Case) -> None:
    check(*case)
