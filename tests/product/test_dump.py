"""Dumps parse back to the identical object, for every kernel after every pass."""

from __future__ import annotations

import pytest

from convgen import driver
from convgen.ir.node import sweep
from convgen.ir.program import Kernel
from convgen.ir.text import parse, to_text
from convgen.passes import pipeline
from convgen.problem.conv import Conv
from tests.product.problems import chosen, generated


def kernels(problem: Conv) -> list[Kernel]:
    """The kernel as built and after each pass."""
    program = driver.build(problem)
    found = list(program.ir.kernels)
    pipeline.run(found[0], program.target.facts, observe=lambda p, before, after, seconds: found.append(after))
    return found


def assert_round_trip(problem: Conv) -> None:
    for kernel in kernels(problem):
        assert parse(to_text(kernel)) is kernel


@pytest.mark.parametrize("problem", chosen(generated(), 3), ids=str)
def test_dumps_parse_back(problem: Conv) -> None:
    assert_round_trip(problem)


@pytest.mark.sweep
@pytest.mark.parametrize("problem", generated(), ids=str)
def test_all_dumps_parse_back(problem: Conv) -> None:
    assert_round_trip(problem)
    sweep()
