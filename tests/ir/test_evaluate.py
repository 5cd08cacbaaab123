"""The value of each kind of expression in a subgroup, and the expressions without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convgen.ir.error import UserError
from convgen.ir.evaluate import Evaluator, Value
from convgen.ir.expr import (
    Div,
    Expr,
    Lane,
    Max,
    Min,
    Mod,
    MulHi,
    Pack,
    Shl,
    Shr,
    Shuffle,
    Slice,
    Splat,
    Uniform,
    const,
    eq,
    ne,
    select,
    var,
)
from convgen.ir.interp import InterpError
from convgen.ir.types import bf16, bool_, f16, f32, f64, s8, s32, s64, u8, u16, u32, vector

LANE = Lane()


def value(e: Expr, **given: Any) -> list[Any]:
    """The value of `e` in a subgroup of as many lanes as the given arrays have."""
    width = len(next(iter(given.values()))) if given else 4
    ev = Evaluator(width)
    for name, data in given.items():
        v = VARS[name]
        ev.env[v] = Value(np.array(data).astype(v.type.elem.numpy))
    return ev(e).data.tolist()  # type: ignore[no-any-return]


VARS = {"a": var("a"), "b": var("b"), "u": var("u", u32), "c": var("c", s8), "f": var("f", f32), "d": var("d", f64)}
A, B, U, C, F, D = VARS.values()


def test_division_floors_and_modulus_has_the_sign_of_the_divisor() -> None:
    a, b = [7, -7, 7, -7, -1], [2, 2, -2, -2, 2]
    assert value(A // B, a=a, b=b) == [3, -4, -4, 3, -1]
    assert value(A % B, a=a, b=b) == [1, 1, -1, -1, 1]


def test_integers_wrap() -> None:
    assert value(C + 1, c=[127, -128]) == [-128, -127]
    assert value(C * 2, c=[100, -100]) == [-56, 56]
    assert value(C // -1, c=[-128, 5]) == [-128, -5]
    assert value(U - 1, u=[0, 5]) == [2**32 - 1, 4]


def test_shifts_are_arithmetic_for_signed_and_logical_for_unsigned() -> None:
    assert value(A >> 1, a=[-3, 3]) == [-2, 1]
    assert value(U >> 31, u=[2**31, 1]) == [1, 0]
    assert value(A << 31, a=[1, 3]) == [-(2**31)] * 2


def test_mulhi_is_unsigned() -> None:
    assert value(MulHi(A, B), a=[-1, 3], b=[-1, 5]) == [-2, 0]
    assert value(MulHi(U, const(1 << 16, u32)), u=[1 << 31]) == [1 << 15]


def test_casts() -> None:
    assert value(A.to(u8), a=[-1, 257]) == [255, 1]
    assert value(C.to(s64), c=[-1]) == [-1]
    assert value(C.to(u8).to(s32), c=[-1]) == [255]
    assert value(A.to(bool_), a=[0, 2, -1]) == [False, True, True]
    assert value(F.to(s32), f=[0.5, 1.5, -2.5, 3e9, -3e9, np.nan, np.inf]) == [0, 2, -2, s32.max, s32.min, 0, s32.max]
    assert value(F.to(u8), f=[-1.0, 300.0, 254.5]) == [0, 255, 254]
    assert value(F.to(f16), f=[2049.0, 2051.0, 1e6]) == [2048.0, 2052.0, np.inf]
    assert value(A.to(f32), a=[2**24 + 1]) == [2.0**24]


def test_casts_to_bfloat16_round_once() -> None:
    just_above_half = 1 + 2**-8 + 2**-40  # rounds to the tie in f32, and then down
    assert value(D.to(bf16).to(f32), d=[just_above_half, 1 + 2**-8]) == [1 + 2**-7, 1.0]
    assert value(A.to(bf16).to(f32), a=[(1 << 30) + (1 << 22) + 1]) == [float((1 << 30) + (1 << 23))]


def test_min_and_max_prefer_numbers() -> None:
    nan = [np.nan, 1.0, np.nan]
    assert value(Min(F, const(2.0, f32)), f=nan) == [2.0, 1.0, 2.0]
    assert value(Max(const(2.0, f32), F), f=nan) == [2.0, 2.0, 2.0]


def test_vectors() -> None:
    wide = Pack(vector(u16, 4), (U, U + 1))
    assert value(wide, u=[0x00020001]) == [[1, 2, 2, 2]]
    assert value(Slice(wide, 1, 2), u=[0x00020001]) == [[2, 2]]
    assert value(Pack(u32, (Slice(wide, 0, 2),)), u=[0x00020001]) == [0x00020001]
    assert value(Splat(vector(s32, 2), A), a=[3]) == [[3, 3]]
    assert value(select(A < 0, Splat(vector(s32, 2), A), Splat(vector(s32, 2), B)), a=[-1, 1], b=[5, 6]) == [
        [-1, -1],
        [6, 6],
    ]


def test_a_shuffle_picks_elements() -> None:
    wide = Pack(vector(u16, 4), (U, U + 1))  # 1, 2, 2, 2 from 0x00020001 and 0x00020002
    assert value(Shuffle(wide, (1, 0, 3, 2)), u=[0x00020001]) == [[2, 1, 2, 2]]
    assert value(Shuffle(wide, (0, 0, 0)), u=[0x00020001, 0x00050003]) == [[1, 1, 1], [3, 3, 3]]
    assert value(Shuffle(wide, (3,)), u=[0x00070001]) == [[7]]
    assert value(Shuffle(Shuffle(wide, (2, 1, 0)), (2, 0)), u=[0x00020001]) == [[1, 2]]


def test_a_shuffle_moves_poison_along() -> None:
    ev, v = Evaluator(2), var("v", vector(f32, 3))
    ev.env[v] = Value(np.arange(6, dtype=np.float32).reshape(2, 3), np.array([[True, False, False]] * 2))
    found = ev(Shuffle(v, (2, 0, 0, 1)))
    assert found.data.tolist() == [[2, 0, 0, 1], [5, 3, 3, 4]]
    assert found.poison is not None
    assert found.poison.tolist() == [[False, True, True, False]] * 2


@pytest.mark.parametrize("order", [(), (4,), (0, -1)])
def test_a_shuffle_takes_what_is_there(order: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="shuffle: elements"):
        Shuffle(Pack(vector(u16, 4), (U, U)), order)


def test_comparisons_and_lane() -> None:
    assert value(LANE * 4) == [0, 4, 8, 12]
    assert value(eq(A, B) | (A < B), a=[1, 2, 3], b=[1, 3, 2]) == [True, True, False]
    assert value(~(ne(A, B)), a=[1, 2], b=[1, 3]) == [True, False]


@pytest.mark.parametrize(
    ("e", "message"),
    [
        (Div(A, LANE), "division by zero"),
        (Mod(A, LANE), "division by zero"),
        (Shl(A, LANE + 30), "shift of s32 by 32, 33"),
        (Shr(A, LANE - 1), "shift of s32 by -1"),
        (Uniform(LANE), "differs between lanes: 0, 1, 2, 3"),
        (var("free") + 1, "is not bound"),
    ],
    ids=str,
)
def test_expressions_without_a_value(e: Expr, message: str) -> None:
    with pytest.raises(InterpError, match=message):
        value(e, a=[1, 2, 3, 4])
