"""The random problems and the layers that `./dev silicon` runs on a GPU are right on the simulator, too."""

from __future__ import annotations

import pytest
from lib import cuda_checks

from convgen import driver
from convgen.problem.matmul import parse_problem
from convgen.run import verdict

TARGET = "sm_90a"
_SHARES = 40  #: of the sweep
CASES = [*cuda_checks.drawn(), *cuda_checks.listed()]


def is_right(case: cuda_checks.Case) -> bool:
    line, config, _ = case
    outcome = verdict.run(driver.compile(driver.build(parse_problem(line), TARGET, config=config or None)), groups=1)
    return outcome.passed


def test_at_least_600_problems_are_drawn_with_and_without_configs() -> None:
    drawn = cuda_checks.drawn()
    assert len({(line, config) for line, config, _ in drawn}) >= 600
    assert all(sum(bool(config) is wanted for _, config, _ in drawn) >= 200 for wanted in (True, False))


def test_some_problems_of_the_gpu_are_right_on_the_simulator() -> None:
    wrong = [case for case in CASES[:: len(CASES) // 4] if not is_right(case)]
    assert not wrong


@pytest.mark.sweep
@pytest.mark.parametrize("share", range(_SHARES))
def test_all_problems_of_the_gpu_are_right_on_the_simulator(share: int) -> None:
    wrong = [case for case in CASES[share::_SHARES] if not is_right(case)]
    assert not wrong
