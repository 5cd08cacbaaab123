"""Congruences: what two of them say together, and what operations make of them, against all values of a range."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir.expr import Expr, const, maximum, minimum, select, var
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.simplify.congruence import ANYTHING, Congruence, Congruences, conjunction, disjunction, normal
from convgen.ir.types import s32, u32
from tests.ir.expressions import Case
from tests.strategies import FIXED

NUMBERS = range(-60, 61)


def holds(c: Congruence, value: int) -> bool:
    m, r = c
    return value == r if m == 0 else value % m == r


def values(c: Congruence) -> set[int]:
    return {v for v in NUMBERS if holds(c, v)}


@pytest.mark.parametrize(("m", "n"), [*itertools.product(range(7), repeat=2)])
def test_knowing_both(m: int, n: int) -> None:
    """Exactly the values that have both, if any."""
    for r, t in itertools.product(range(m or 5), range(n or 5)):
        a, b = (m, r), (n, t)
        common = values(a) & values(b)
        found = conjunction(a, b)
        assert found == normal(*found)
        if common:
            assert values(found) == common
        else:
            assert found in (a, b)


@pytest.mark.parametrize(("m", "n"), [*itertools.product(range(7), repeat=2)])
def test_knowing_either(m: int, n: int) -> None:
    """The narrowest congruence with all values of both."""
    for r, t in itertools.product(range(m or 5), range(n or 5)):
        found = disjunction((m, r), (n, t))
        every = values((m, r)) | values((n, t))
        assert every <= values(found)
        narrower = [(k, e) for k in range(found[0] + 1, 13) for e in range(k) if every <= values((k, e))]
        assert narrower == [] or len(every) < 3


A, B = var("a", s32), var("b", s32)
U = var("u", u32)
OPERATIONS: dict[str, Expr] = {
    "add": A + B,
    "subtract": A - B,
    "multiply": A * B,
    "shift left": A << const(3),
    "shift by a variable": A << B,
    "divide": A // const(2),
    "divide by four": A // const(4),
    "remainder": A % const(6),
    "remainder by a variable": A % B,
    "minimum": minimum(A, B),
    "maximum": maximum(A, B),
    "select": select(A < B, A, B),
    "mask": A & const(12),
    "or": A | const(3),
    "nested": (A * 4 + B * 6 + 2) % const(8),
    "converted": A.to(u32) + U * 2,
}


@settings(FIXED, max_examples=8)
@given(a=st.tuples(st.integers(0, 8), st.integers(0, 7)), b=st.tuples(st.integers(0, 8), st.integers(0, 7)))
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str, a: Congruence, b: Congruence) -> None:
    """What is said of a result holds of all results."""
    e = OPERATIONS[name]
    known: dict[Expr, Congruence] = {A: normal(*a), B: normal(*b)}
    ranges = {A: (0, 40), B: (1 if "variable" in name else 0, 20), U: (0, 3)}
    said = Congruences(Bounds(ranges), known)(e)
    case = Case(e, ranges)
    results, *operands = (case.values(v).tolist() for v in (e, A, B))
    for result, n, m in zip(results, *operands):
        assert not (holds(known[A], n) and holds(known[B], m)) or holds(said, result), (n, m)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", (2, 1)),
        ("subtract", (2, 1)),
        ("multiply", (4, 0)),
        ("shift left", (32, 0)),
        ("divide", (2, 0)),
        ("divide by four", (1, 0)),
        ("remainder", (2, 0)),
        ("mask", (4, 0)),
    ],
)
def test_what_is_known_of_results(name: str, expected: Congruence) -> None:
    """Of a = 0 modulo 4 and b = 1 modulo 2; multiplied, b may be anything odd."""
    known: dict[Expr, Congruence] = {A: (4, 0), B: (2, 1)}
    assert Congruences(Bounds({A: (0, 40), B: (0, 20)}), known)(OPERATIONS[name]) == expected


def test_what_may_wrap_keeps_powers_of_two_only() -> None:
    wide = {A: (-(1 << 31), (1 << 31) - 1), B: (-(1 << 31), (1 << 31) - 1)}
    assert Congruences(Bounds(wide), {A: (12, 0), B: (12, 0)})(A + B) == (4, 0)
    assert Congruences(Bounds({A: (0, 99), B: (0, 99)}), {A: (12, 0), B: (12, 0)})(A + B) == (12, 0)
    assert Congruences(Bounds(wide), {})(A + B) == ANYTHING
