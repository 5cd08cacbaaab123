"""The text of kernels comes back as the identical node: as built, after each pass, and of the kept kernels."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen import driver
from convgen.backends.target import get
from convgen.ir.facts import TargetFacts
from convgen.ir.node import sweep
from convgen.ir.program import Kernel
from convgen.ir.text import parse, to_text
from convgen.passes import pipeline
from convgen.problem.conv import Conv
from convgen.problem.matmul import parse_problem
from tests import samples
from tests.passes.running import tile_kernels
from tests.product.problems import chosen, generated
from tests.product.test_kept import kept_cases
from tests.strategies import FIXED, SWEEP, Case, cases

pytestmark = pytest.mark.in_turn(2)

IN_EVERY_RUN = 2  #: kept cases a target


def kernels(program: driver.Build) -> list[Kernel]:
    """The kernels as built and after each pass that changes them."""
    built = program.ir.kernels
    found = [*built, *(after for kernel in built for after in behind_passes(kernel, program.target.facts))]
    return list(dict.fromkeys(found))


def behind_passes(kernel: Kernel, facts: TargetFacts) -> list[Kernel]:
    """The kernel after each pass."""
    found: list[Kernel] = []
    pipeline.run(kernel, facts, observe=lambda p, before, after, seconds: found.append(after))
    return found


def assert_round_trip(program: driver.Build) -> None:
    for kernel in kernels(program):
        assert parse(to_text(kernel)) is kernel
    whole = to_text(program.ir)
    assert parse(whole) == program.ir
    sweep()


@pytest.mark.parametrize("problem", chosen(generated(), 3), ids=str)
def test_kernels_come_back(problem: Conv) -> None:
    assert_round_trip(driver.build(problem))


@pytest.mark.sweep
@pytest.mark.parametrize("problem", generated(), ids=str)
def test_all_kernels_come_back(problem: Conv) -> None:
    assert_round_trip(driver.build(problem))


def kept(number: int | None) -> list[tuple[str, str, str]]:
    """(target, problem, config) of so many kept cases a target, of all if None; the shortest problems first."""
    rows = [(target, sorted(kept_cases(target), key=lambda case: len(case[2]))) for target in samples.TARGETS]
    return [(target, problem, config) for target, cases in rows for _, _, problem, config in cases[:number]]


@pytest.mark.parametrize(("target", "problem", "config"), kept(IN_EVERY_RUN))
def test_kept_kernels_come_back(target: str, problem: str, config: str) -> None:
    assert_round_trip(driver.build(parse_problem(problem), target, config))


@pytest.mark.sweep
@pytest.mark.parametrize(("target", "problem", "config"), kept(None))
def test_all_kept_kernels_come_back(target: str, problem: str, config: str) -> None:
    assert_round_trip(driver.build(parse_problem(problem), target, config))


def check_random(case: Case, target: str) -> None:
    """The kernels of a random problem and config come back, as built and behind each pass."""
    problem, config = case
    facts = get(target).facts
    for kernel in tile_kernels(problem, config, facts):
        found = [kernel, *behind_passes(kernel, facts)]
        for each in dict.fromkeys(found):
            assert parse(to_text(each)) is each


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
@settings(FIXED, max_examples=4)
@given(data=st.data())
def test_random_problems_come_back(target: str, data: st.DataObject) -> None:
    check_random(data.draw(cases(get(target).facts)), target)


@pytest.mark.sweep
@pytest.mark.parametrize("target", samples.TARGETS)
@settings(SWEEP, max_examples=60)
@given(data=st.data())
def test_many_random_problems_come_back(target: str, data: st.DataObject) -> None:
    check_random(data.draw(cases(get(target).facts)), target)
