"""Values are kept on every assignment, a second application changes nothing, and what must fold, folds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir.bounds import bounds
from convgen.ir.expr import Expr, Lane, Max, Min, Splat, Uniform, const, eq, ne, select, var
from convgen.ir.node import table_size
from convgen.ir.simplify import simplify
from convgen.ir.types import f32, s8, s32, s64, u8, u32, vector


@settings(max_examples=1500, deadline=None)
@given(data=st.data())
def test_value_idempotence_identity(data: Any, expression_cases: Any) -> None:
    case = data.draw(expression_cases)
    new = simplify(case.expr, case.domains)
    assert new.type is case.expr.type
    assert np.array_equal(case.values(new), case.values())
    before = table_size()
    assert simplify(new, case.domains) is new
    assert table_size() == before, "made nodes though nothing changed"


X, Y, Z = var("x"), var("y"), var("z")
B = var("b")  # [0, 4)
V = var("v")  # [0, 1000]
U = var("u", u8)
S = var("s", s8)
ENV = {B: (0, 3), V: (0, 1000), Z: (0, 9)}

MUST_FOLD: list[tuple[Expr, Expr | int]] = [
    (X + 0, X),
    (0 + X, X),
    (X * 1, X),
    (X * 0, 0),
    (X - X, 0),
    ((X + Y) - X, Y),
    (X * 2 + X * 3, X * 5),
    (3 + X, X + 3),
    ((X + 3) + 4, X + 7),
    ((X - 3) + 4, X + 1),
    ((X * 3) * 4, X * 12),
    (2 - (X + 3), -1 - X),
    (X + (Y + 3), (X + Y) + 3),
    (X // 1, X),
    (X % 1, 0),
    (B // 4, 0),
    (B % 4, B),
    ((B + 4) % 4, B),
    ((V * 4 + B) // 4, V),
    ((V * 4 + B) % 4, B),
    ((V * 12 + B) // 4, V * 3),
    ((V * 8 + Z * 4 + B) // 4, V * 2 + Z),
    ((V * 8 + B * 2 + 1) // 8, V),
    ((V * 4 + B) // 8, V // 2),
    ((V * 4 + B) % 8, V % 2 * 4 + B),
    ((V + 9) % 8, (V + 1) % 8),
    ((V // 3) // 4, V // 12),
    ((V % 12) % 4, V % 4),
    (V // 8 * 8 + V % 8, V),
    (B < 4, 1),
    (V < -1, 0),
    (V + 1 < V, 0),
    (V + 3 < 10, V < 7),
    (Min(B, 4 + V), B),
    (Max(B, V + 4), V + 4),
    (Min(Min(V, const(9)), const(5)), Min(V, const(5))),
    (select(B < 4, X, Y), X),
    (select(X < Y, Z, Z), Z),
    (~(X < Y), Y <= X),
    (~~X, X),
    (X & 0, 0),
    (X & X, X),
    (X | 0, X),
    (X ^ X, 0),
    (B & 3, B),
    (X << 0, X),
    (X.to(s64).to(s32), X),
    (Uniform(Uniform(X)), Uniform(X)),
    (const(127, s8) + 1, const(-128, s8)),
]


@pytest.mark.parametrize(("e", "expected"), MUST_FOLD, ids=[str(e) for e, _ in MUST_FOLD])
def test_folds(e: Expr, expected: Expr | int) -> None:
    new = simplify(e, ENV)
    if isinstance(expected, int):
        assert bounds(new, {}) == (expected, expected)
    else:
        assert new is simplify(expected, ENV)
        assert str(new) == str(expected)


MUST_STAY: list[Expr] = [
    eq(X % 8, 3),  # the reference decides it from its end points 0 and 7
    ne(X % 8, 3),
    Min(X, Y),  # the reference's range looks at one operand
    Max(V, Z),
    (X * 4 + B) // 4,  # x * 4 may wrap
    (X + 1) // 2,
    X + 1 < X,  # true for the largest x
    (U * 2) // 2,
    (S + 100) % 10,
    (X * 4) % 4 + X // X,  # x may be zero: an error that stays one
    X.to(s8).to(s32),
    select(X < Y, X, Y),
]


@pytest.mark.parametrize("e", MUST_STAY, ids=map(str, MUST_STAY))
def test_stays_the_same_object(e: Expr) -> None:
    assert simplify(e, ENV) is e


def test_floats_are_left_as_written() -> None:
    f = var("f", f32)
    for e in (f + 0.0, f - f, f * 0.0, ~(f < f)):
        assert simplify(e) is e


def test_unsigned_differences_keep_their_range() -> None:
    u = var("u", u32)
    assert bounds(simplify((u + 1) - 4, {u: (3, 9)}), {u: (3, 9)}) == (0, 6)


def test_lane_is_known_to_be_small() -> None:
    assert simplify(Lane() // 64) is const(0)
    assert simplify(Lane() // 32) is Lane() // 32


def test_vectors_fold_like_scalars() -> None:
    v = var("v", vector(s32, 4))
    assert simplify((v + 3) - 3) is v
    assert simplify(v * 0) is Splat(v.type, const(0))  # type: ignore[arg-type]
