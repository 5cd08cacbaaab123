"""Every operation on every type, as vectors and as one element a lane: simulated as the interpreter says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends import target as targets
from convgen.backends.nvidia.sim import simulate
from convgen.backends.simulation import LaunchRequest, SimReport
from convgen.ir.types import Type, f16, f32, vector
from tests import arithmetic as ar
from tests import trees as trees_on
from tests.functions import check_bounds
from tests.strategies import FIXED, SWEEP, Tree, trees

_MANY = 1 << 12  #: operands of a function
TARGET = targets.get("sm_90")


@pytest.mark.parametrize("elem", [*ar.FLOATS, *ar.INTEGERS], ids=str)
def test_exact_operations(elem: Type) -> None:
    cases = {f"{name}, {t}": ar.Case(f, t, 32) for name, f in ar.kept(elem).items() for t in ar.widths(elem)}
    ar.check_exact(TARGET, cases, elem)


def test_exact_operations_on_widened_halves() -> None:
    """Results are f32, whose NaN has other bits than the interpreter's."""
    cases = {name: ar.Case(f, vector(f16, 8), 32) for name, f in ar.WIDENED.items()}
    ar.check_exact(TARGET, cases, f32)


@settings(FIXED, max_examples=4)
@given(st.lists(trees(), min_size=10, max_size=10), st.integers(0, 1 << 16))
def test_random_trees(drawn: list[Tree], seed: int) -> None:
    trees_on.check(TARGET, drawn, seed)


@pytest.mark.sweep
@settings(SWEEP, max_examples=60)
@given(st.lists(trees(12), min_size=10, max_size=10), st.integers(0, 1 << 16))
def test_many_random_trees(drawn: list[Tree], seed: int) -> None:
    trees_on.check(TARGET, drawn, seed)


@pytest.mark.parametrize("elem", [f16, f32], ids=str)
def test_functions_keep_their_bounds(elem: Type) -> None:
    """With approximate operations as the simulator rounds them, which is correctly."""

    def exactly(code: bytes, launches: Sequence[LaunchRequest], memory: Any, *, approximate: int) -> SimReport:
        return simulate(code, launches, memory)

    check_bounds(TARGET, exactly, 32, elem, _MANY)
