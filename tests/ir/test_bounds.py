from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings

from convgen.ir import stmt
from convgen.ir.expr import (
    Cast,
    Eq,
    Expr,
    Lane,
    Le,
    Max,
    Min,
    Mod,
    MulHi,
    Ne,
    Shl,
    Shr,
    Var,
    const,
    eq,
    select,
    var,
    zeros,
)
from convgen.ir.program import Kernel
from convgen.ir.simplify.bounds import bounds
from convgen.ir.simplify.variable_ranges import var_ranges
from convgen.ir.types import bool_, f32, s32, u8, u32, vector
from tests.ir.expressions import CASES, Case


@settings(max_examples=400)
@given(CASES)
def test_every_value_lies_in_the_range(case: Case) -> None:
    lo, hi = bounds(case.expr, case.domains)
    values = case.values().astype(int)
    assert lo <= values.min()
    assert values.max() <= hi


X, Y = var("x"), var("y")
_SMALL = [(low, high) for low in range(-3, 4) for high in range(low, 4)]


@pytest.mark.parametrize(
    ("f", "exact"),
    [
        *((f, True) for f in (operator.mul, operator.sub, operator.floordiv)),
        *((f, False) for f in (operator.mod, operator.and_, operator.or_, operator.xor)),
        *((f, True) for f in (operator.lt, operator.le)),
    ],
)
def test_all_values_of_small_ranges_lie_in_the_range(f: Callable[[Any, Any], Any], exact: bool) -> None:
    """At its ends, where the operation is monotone; a divisor of 0 has no result."""
    e, divides = f(X, Y), f in (operator.floordiv, operator.mod)
    for a, b in product(_SMALL, repeat=2):
        operands = product(range(a[0], a[1] + 1), range(b[0], b[1] + 1))
        values = [f(x, y) for x, y in operands if y or not divides]
        if values:
            low, high = bounds(e, {X: a, Y: b})
            assert low <= min(values) <= max(values) <= high
            assert not exact or (low, high) == (min(values), max(values))


@pytest.mark.parametrize(
    ("made", "f"), [(Eq, operator.eq), (Ne, operator.ne), (Min, min), (Max, max), (Shl, operator.lshift)]
)
def test_all_results_of_small_operands(made: Callable[[Expr, Expr], Expr], f: Callable[[int, int], int]) -> None:
    for a, b in product(_SMALL, repeat=2):
        values = [
            f(x, y) for x, y in product(range(a[0], a[1] + 1), range(b[0], b[1] + 1)) if y >= 0 or made is not Shl
        ]
        if values:
            assert bounds(made(X, Y), {X: a, Y: b}) == (min(values), max(values))


U = var("u", u8)
ENV = {X: (0, 100), Y: (-7, 9), U: (200, 250)}


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        (X + Y, (-7, 109)),
        (X - Y, (-9, 107)),
        (X * Y, (-700, 900)),
        (Y // 4, (-2, 2)),
        (Y // -4, (-3, 1)),
        (Y % 4, (0, 3)),
        (Y % -4, (-3, 0)),
        (Y % 100, (0, 99)),
        (X % 1000, (0, 100)),
        ((X + 1000) % 2000, (1000, 1100)),
        (X // (Y + 8), (0, 100)),
        (Min(X, Y), (-7, 9)),  # the reference looks at one operand only
        (Max(X, Y), (0, 100)),
        (Min(Y, X), (-7, 9)),
        (X & 15, (0, 15)),
        (X & Y, (0, 100)),
        (X | 128, (128, 228)),
        (X ^ 3, (0, 103)),
        (~X, (-101, -1)),
        (~U, (5, 55)),
        (X << 3, (0, 800)),
        (X >> 3, (0, 12)),
        (Y >> 1, (-4, 4)),
        (U + 1, (201, 251)),
        (U + 6, (0, 255)),  # may wrap
        (U.to(s32) + 6, (206, 256)),
        (X.to(u8), (0, 100)),
        (Y.to(u8), (0, 255)),
        (Y.to(bool_), (0, 1)),
        ((X + 1).to(bool_), (1, 1)),
        (Lane(), (0, 63)),
        (select(X < Y, X, Y), (-7, 100)),
        (select(X < 101, X, Y), (0, 100)),
        (X < -1, (0, 0)),
        (eq(X, -1), (0, 0)),
        (MulHi(var("m", u32), const(1 << 20, u32)), (0, (1 << 20) - 1)),
        (MulHi(X, const(-1)), (s32.min, s32.max)),
        (MulHi(U.to(u32) * (1 << 24), const(1 << 31, u32)), (200 << 23, 250 << 23)),
        (X << Y, (0, 100 << 9)),
        (U.to(u32) >> var("any", u32), (0, 250)),
    ],
)
def test_ranges_are_tight(e: Any, expected: tuple[int, int]) -> None:
    assert bounds(e, ENV) == expected


def test_width_bounds_the_lane() -> None:
    assert bounds(Lane() * 4, {}, width=16) == (0, 60)


def test_mod_of_anything() -> None:
    assert bounds(Mod(var("free"), const(8)), {}) == (0, 7)


def test_variables_of_a_kernel() -> None:
    gx, gy, gz, sub, i, slot, out, late = (var(n) for n in ("gx", "gy", "gz", "sub", "i", "slot", "out", "late"))
    acc, total = var("acc", vector(f32, 4)), var("total", vector(f32, 4))
    base = var("base")
    body = stmt.block(
        stmt.Let(base, gx * 64 + sub * 16),
        stmt.For(
            i,
            const(2),
            gx + 3,
            (slot, acc),
            (const(0), zeros(vector(f32, 4))),
            stmt.ExitIf(eq(i, 5), (const(7), acc)),
            ((slot + 1) % 3, acc),
            (out, total),
            "loop",
            False,
        ),
        stmt.Let(late, out + 1),
    )
    kernel = Kernel("k", (), (4, 1, 1), 2, 64, (gx, gy, gz), sub, (), body, ())
    assert var_ranges(kernel) == {
        gx: (0, 3),
        gy: (0, 0),
        gz: (0, 0),
        sub: (0, 1),
        base: (0, 208),
        i: (2, 5),
        slot: (0, 2),
        out: (0, 7),
        late: (1, 8),
    }


def _in_a_loop(carried: Var, begin: Expr, after: Expr, *lets: stmt.Let) -> Mapping[Var, tuple[int, int]]:
    """The ranges of a kernel in which a value begins somewhere and is `after` in each of five iterations."""
    gy, gz, sub, i, out = (var(n) for n in ("gy", "gz", "sub", "i", "out"))
    body = stmt.For(i, const(0), const(5), (carried,), (begin,), stmt.block(*lets), (after,), (out,), "loop", False)
    kernel = Kernel("k", (), (4, 1, 1), 2, 64, (GX, gy, gz), sub, (), body, ())
    return {v: range for v, range in var_ranges(kernel).items() if v in (carried, out)}


GX = var("gx")  #: from 0 to 3
ZERO = const(0)


def _counted(digit: Var, radix: int, begin: Expr) -> Mapping[Var, tuple[int, int]]:
    """The same of a digit that is counted up, modulo its radix, by a select."""
    after = digit + 1
    return _in_a_loop(digit, begin, select(Le(const(radix), after), const(0), after))


def test_digits_that_are_counted_by_selects_stay_digits() -> None:
    digit = var("digit")
    assert _counted(digit, 6, GX % 6)[digit] == (0, 5)
    assert _counted(digit, 6, const(3))[digit] == (0, 5)
    assert _counted(digit, 6, const(-2))[digit] == (-2, 5)
    assert _counted(digit, 6, const(9))[digit] == (0, 9)  # begins beyond: what is counted is no digit until it wraps


@pytest.mark.parametrize("cast_last", [True, False])
def test_digits_that_are_counted_by_the_smaller_word_stay_digits(*, cast_last: bool) -> None:
    digit, radix = var("digit"), 7

    def counted(step: Expr, begin: Expr = ZERO) -> tuple[int, int]:
        total = digit + step
        word = Cast(u32, total)
        left = Cast(u32, total - radix) if cast_last else word + (2**32 - radix)
        return _in_a_loop(digit, begin, Cast(s32, Min(word, left)))[digit]

    assert counted(const(4)) == (0, 6)
    assert counted(GX + 4, GX) == (0, 6)
    assert counted(const(7)) == (0, 6)
    assert counted(const(8))[1] == 2**31 - 1  # twice the radix: one subtraction leaves more than a digit


def test_names_of_what_digits_are_made_of_hide_nothing() -> None:
    digit, total, less, smaller = var("digit"), var("total"), var("less"), var("smaller", u32)
    named = (
        stmt.Let(total, digit + 4),
        stmt.Let(less, total - 7),
        stmt.Let(smaller, Min(Cast(u32, total), Cast(u32, less))),
    )
    assert _in_a_loop(digit, GX, Cast(s32, smaller), *named)[digit] == (0, 6)
    carry = stmt.Let(var("carry"), Shr(less, const(31)))
    assert _in_a_loop(digit, GX, total + carry.var, *named[:2], carry)[digit] == (0, 19)


@pytest.mark.parametrize("d", [3, 7, 112, 641])
def test_remainders_are_known_however_they_are_written(d: int) -> None:
    """As `expand_division` writes them; not where the quotient may be another, or is that of another number."""
    shift = (d - 1).bit_length()
    magic = (1 << 31 + shift) // d + 1

    def left(of: Expr, n: Expr = GX, magic: int = magic, by: int = d) -> Expr:
        return of - Cast(s32, Shr(MulHi(Cast(u32, n), const(magic, u32)), const(shift - 1, u32))) * by

    assert bounds(left(GX), {GX: (0, 2**31 - 1)}) == (0, d - 1)
    for other in (left(GX, GX + 1), left(GX, magic=magic - 1), left(GX, by=d + 1), left(GX, magic=magic + 2**25)):
        assert bounds(other, {GX: (0, 2**30)}) != (0, d - 1)
    assert bounds(left(GX), {GX: (-1, 2**31 - 1)}) != (0, d - 1)


def test_what_grows_does_so_once_an_iteration() -> None:
    total = var("total")
    assert _in_a_loop(total, const(2), total + GX)[total] == (2, 14)
    assert _in_a_loop(total, GX, GX + 1 + total - 3)[total] == (-8, 7)
    assert _in_a_loop(total, const(0), total + 2**29)[total] == (-(2**31), 2**31 - 1)  # it may wrap
    assert _in_a_loop(total, const(0), total + total)[total] == (-(2**31), 2**31 - 1)
