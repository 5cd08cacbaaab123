"""Extents of sizes: what is known of them holds for every size that keeps its promise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convgen.ir.error import Unsupported, UserError
from convgen.ir.expr import Var, const, maximum, minimum
from convgen.ir.layout.argument import evaluate, launch_expression
from convgen.ir.simplify.extents import divisor, is_multiple, lower_bound, never_less, upper_bound, value_of
from convgen.ir.sizes import Extent, Size
from convgen.ir.types import s32

M, N = Size("m", 0, s32, 1, 100, 1), Size("n", 0, s32, 0, 64, 8)
VALUES = st.tuples(st.integers(1, 100), st.integers(0, 8).map(lambda n: 8 * n))

EXTENTS = st.recursive(
    st.sampled_from([M, N]) | st.integers(0, 9).map(const),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, b: (a + (b - 1)) // b, inner, st.integers(1, 9)),
        st.builds(minimum, inner, inner),
        st.builds(maximum, inner, inner),
    ),
    max_leaves=5,
)


def _sizes(values: tuple[int, int]) -> dict[Var, int]:
    return {M: values[0], N: values[1]}


@given(EXTENTS, VALUES)
def test_what_is_known_holds(extent: Extent, values: tuple[int, int]) -> None:
    found = value_of(extent, _sizes(values))
    assert lower_bound(extent) <= found <= upper_bound(extent)
    assert not isinstance(extent, int)
    assert found % divisor(extent, {}) == 0 if divisor(extent, {}) else found == 0
    assert evaluate(launch_expression(extent), dict(zip("mn", values))) == found


@given(EXTENTS, EXTENTS, VALUES)
def test_comparisons_hold(a: Extent, b: Extent, values: tuple[int, int]) -> None:
    sizes = _sizes(values)
    assert not never_less(a, b) or value_of(a, sizes) >= value_of(b, sizes)


def test_products_are_compared_as_such() -> None:
    assert never_less(M * (N * 2), N * M * 2)
    assert never_less(M * N + 1, N * M)
    assert not never_less(M, N)
    assert is_multiple(N * 2, 16)
    assert not is_multiple(M, 2)
    assert (N.range, Size("r", 0, s32, 1, 30, 4).range) == ((0, 64), (4, 28))


def test_what_is_no_extent_is_refused() -> None:
    with pytest.raises(Unsupported, match="wanted"):
        upper_bound(M << 2)
    with pytest.raises(UserError, match="wanted"):
        launch_expression(M << 2)
    with pytest.raises(UserError, match="least value of m"):
        Size("m", 0, s32, -1, 4, 1)
