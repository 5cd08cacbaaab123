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
from convgen.ir.expr import MulHi
from convgen.ir.types import Type, f16, f32, s32, s64, u32, u64, vector
from tests import arithmetic as ar
from tests import trees as trees_on
from tests.functions import check_bounds
from tests.strategies import FIXED, SWEEP, Tree, trees

_MANY = 1 << 12  #: operands of a function
TARGET = targets.get("sm_90")


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("elem", [*ar.FLOATS, *ar.INTEGERS], ids=str)
def test_exact_operations(elem: Type) -> None:
    cases = {f"{name}, {t}": ar.Case(f, t, 32) for name, f in ar.kept(elem).items() for t in ar.widths(elem)}
    ar.check_exact(TARGET, cases, elem)


def test_exact_operations_on_widened_halves() -> None:
    """Results are f32, whose NaN has other bits than the interpreter's."""
    cases = {name: ar.Case(f, vector(f16, 8), 32) for name, f in ar.WIDENED.items()}
    ar.check_exact(TARGET, cases, f32)


@pytest.mark.parametrize("elem", [s32, u32], ids=str)
def test_the_upper_half_of_a_product_is_that_of_unsigned_factors(elem: Type) -> None:
    ar.check_exact(TARGET, {"mulhi(a, b)": ar.Case(lambda a, b, c: MulHi(a, b), elem, 32)}, elem)


def test_wide_integers_are_shifted_by_numbers_of_their_own_type() -> None:
    cases = {
        "<<": ar.Case(lambda a, b, c: (a.to(u64) << (b.to(u64) & 7)).to(u32), u32, 32),
        ">>": ar.Case(lambda a, b, c: (a.to(s64) >> (b.to(s64) & 7)).to(s32), s32, 32),
    }
    for name, case in cases.items():
        assert isinstance(case.type, Type)
        ar.check_exact(TARGET, {name: case}, case.type)


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
