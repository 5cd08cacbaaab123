"""Launch expressions, and division by magic numbers that a host computes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir.error import UserError
from convgen.ir.evaluate import Evaluator
from convgen.ir.expr import const
from convgen.ir.layout.argument import divided, evaluate, magic, shift
from convgen.ir.types import u32
from tests.strategies import FIXED

NUMBERS = st.integers(0, 2**31 - 1) | st.integers(0, 300)
DIVISORS = st.integers(1, 2**31 - 1) | st.integers(1, 300)


@settings(FIXED, max_examples=300)
@given(NUMBERS, DIVISORS)
def test_division_by_magic_numbers(number: int, d: int) -> None:
    """On integers, on arrays and as an expression, also around multiples of the divisor."""
    assert 0 <= magic(d) < 2**32
    near = [n for n in (number, number // d * d, number // d * d - 1, 2**31 - 1) if 0 <= n < 2**31]
    assert [divided(n, magic(d), shift(d)) for n in near] == [n // d for n in near]
    written = divided(const(number), const(magic(d), u32), const(shift(d), u32))
    assert int(Evaluator(64)(written).data.flat[0]) == number // d


@pytest.mark.parametrize("d", [1, 2, 3, 7, 64, 1000, 2**20 + 1, 2**31 - 1])
def test_division_of_arrays(d: int) -> None:
    numbers = np.array([0, 1, d - 1, d % 2**31, 5 * d % 2**31, 2**31 - 1])
    assert (divided(numbers, magic(d), shift(d)) == numbers // d).all()


@pytest.mark.parametrize(
    ("expr", "value"),
    [("7", 7), ("wgm * 3 - 1", 17), ("min(wgm, 4) + max(wgm, 4)", 10), ("20 // wgm % 2", 1), ("shift(wgm)", 3)],
)
def test_expressions(expr: str, value: int) -> None:
    assert evaluate(expr, {"wgm": 6}) == value


@pytest.mark.parametrize(
    "expr", ["", "wgm +", "other", "wgm / 2", "1.5", "magic(0)", "__import__('os')", "wgm.real", "min()", "(" * 500]
)
def test_what_is_no_expression(expr: str) -> None:
    with pytest.raises(UserError, match="given the launch expression"):
        evaluate(expr, {"wgm": 6})
