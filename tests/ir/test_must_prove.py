"""What the simplifier must see: facts of convolution addressing, each as (expression, what it becomes)."""

from __future__ import annotations

import pytest

from convgen.ir.expr import Expr, Lane, Max, Min, const, eq, maximum, minimum, ne, select, var
from convgen.ir.simplify.proof import Knowledge
from convgen.ir.simplify.simplify import prove, simplify
from convgen.ir.types import s64, u32

# An implicit GEMM: pixels of images of 56 x 56 by 256 output channels, over 9 taps of 64 channels in blocks of 32.
GROUP, WAVE, KB, STEP, PIXEL, IMAGE = (var(n) for n in ("group", "wave", "kb", "step", "pixel", "image"))
M0, N0, ROW, OH, OW = (var(n) for n in ("m0", "n0", "row", "oh", "ow"))
IC, OFFSET, SLOT, ANY, OTHER, BITS = (var(n) for n in ("ic", "offset", "slot", "any", "other", "bits"))
KH, KW, LOW, COUNT = (var(n) for n in ("kh", "kw", "low", "count"))
L = Lane()


def facts() -> Knowledge:
    """Ranges and definitions that hold in every row of the table."""
    f = Knowledge(64, {GROUP: (0, 195), WAVE: (0, 3), KB: (0, 17), STEP: (0, 8), PIXEL: (0, 3135), IMAGE: (0, 0)})
    for v, most in ((ROW, 63), (OH, 55), (OW, 55), (IC, 63), (SLOT, 2), (KH, 2), (KW, 2), (LOW, 7), (COUNT, 1000)):
        f.bind(v, (0, most))
    f.let(M0, GROUP // 4 * 64)
    f.let(N0, GROUP % 4 * 64)
    f.bind(OFFSET, (0, 1 << 20))
    f.assume(eq(OFFSET % 128, 0))
    return f


Row = tuple[str, Expr, Expr | int]

DECODE: list[Row] = [
    ("a fused k of one channel block", KB * 32 % 32, 0),
    ("the tap of a block", KB * 32 // 64, KB // 2),
    ("the channel of a block", KB * 32 % 64, KB % 2 * 32),
    ("the row of taps", KB * 32 // 64 // 3, KB // 6),
    ("the row of taps at once", KB * 32 // 192, KB // 6),
    ("within a run of channels", (STEP * 64 + IC) // 64, STEP),
    ("the channel itself", (STEP * 64 + IC) % 64, IC),
    ("two levels", (STEP * 64 + IC) // 64 // 3, STEP // 3),
    ("the tap along a row", (STEP * 64 + IC) // 64 % 3, STEP % 3),
    ("split and joined again", KB // 6 * 6 + KB % 6, KB),
    ("scaled and joined", KB // 3 * 7168 + KB % 3 * (7168 // 3 + 1), KB // 3 * 7168 + KB % 3 * 2390),
    ("rows and pixels that lie side by side", PIXEL // 56 * 7168 + PIXEL % 56 * 128, PIXEL * 128),
    ("a remainder in two digits", L // 4 // 4 * 4 + L // 4 % 4, L // 4),
    ("digits of a coordinate", L // 16 * 256 + L // 4 % 4 * 64 + L % 4 * 16, L * 16),
    ("a fused position", (OH * 56 + OW) // 56, OH),
    ("its inner dim", (OH * 56 + OW) % 56, OW),
    ("three dims, outermost", ((IMAGE * 56 + OH) * 56 + OW) // 3136, 0),
    ("three dims, middle", (STEP * 3136 + OH * 56 + OW) % 3136 // 56, OH),
    ("three dims, innermost", (STEP * 3136 + OH * 56 + OW) % 56, OW),
    ("unrolled by two", ((KB * 2 + 1) * 32) % 64, 32),
    ("unrolled by two, tap", ((KB * 2 + 1) * 32) // 64, KB),
    ("one image", IMAGE * 3136 + PIXEL, PIXEL),
    ("decode of one image", PIXEL // 3136, 0),
    ("no image to add", (PIXEL + IMAGE * 3136) % 3136, PIXEL),
]

GROUPS: list[Row] = [
    ("a tile begins at a multiple", M0 % 64, 0),
    ("of any part of it", M0 % 16, 0),
    ("the number of a tile", M0 // 64, GROUP // 4),
    ("the other number", N0 // 64, GROUP % 4),
    ("last channel", N0 < 256, 1),
    ("a tile and a row of it", (M0 + ROW) // 64, GROUP // 4),
    ("the row", (M0 + ROW) % 64, ROW),
    ("coarser than a tile", (M0 + ROW) // 128, M0 // 128),
    ("finer than a tile", (M0 + ROW) % 32, ROW % 32),
    ("row of a wave", (WAVE * 16 + L % 16) % 16, L % 16),
    ("wave of a row", (WAVE * 16 + L % 16) // 16, WAVE),
    ("group ids packed", (GROUP * 4 + WAVE) // 4, GROUP),
    ("and unpacked", (GROUP * 4 + WAVE) % 4, WAVE),
    ("lanes are few", L // 64, 0),
    ("lanes at all", L % 64, L),
    ("equal sums in two orders", (WAVE * 16 + L) - (L + WAVE * 16), 0),
]

HALOS: list[Row] = [
    ("no padding: below", OH + KH >= 0, 1),
    ("no padding: above", OH + KH < 58, 1),
    ("padded: not always", OH + KH - 1 < 56, OH + KH < 57),
    ("strided", OH * 2 + KH <= 112, 1),
    ("as one unsigned comparison", (OH + KH).to(u32) < const(58, u32), 1),
    ("clamped for nothing", minimum(maximum(OH, 0), 55), OH),
    ("clamped below", maximum(OH - 60, 0), 0),
    ("clamped twice", Min(Min(OH, const(9)), const(5)), Min(OH, const(5))),
    ("clamped past the end", Min(Max(ANY, const(9)), const(5)), 5),
    ("the first tap that is inside", minimum(maximum((0 - OH) // 1, 0), 3), 0),
    ("common term", OH * 56 + OW < OH * 56 + 56, 1),
    ("common factor", OH * 128 < OW * 128, OH < OW),
    ("a factor against a constant", COUNT * 64 < 1000, COUNT < 16),
    ("a quotient against a constant", COUNT // 64 < 3, COUNT < 192),
    ("a quotient that is zero", eq(COUNT // 64, 0), COUNT < 64),
    ("a mask that always holds", select(OH < 56, OFFSET, ANY), OFFSET),
]

ALIGNMENT: list[Row] = [
    ("a pitch of 128", OFFSET % 128, 0),
    ("vectors of 16 bytes", (OFFSET + M0 * 2 + 32) % 16, 0),
    ("a row of a pitch", (ROW * 144 + 16) % 16, 0),
    ("never zero", eq(OFFSET * 2 + 1, 0), 0),
    ("parity", eq(KB * 2, COUNT * 2 + 1), 0),
    ("what is left of a line", (OFFSET + LOW) % 128, LOW),
    ("its line", (OFFSET + LOW) // 128, OFFSET // 128),
    ("bits of a multiple", OFFSET & 127, 0),
    ("swizzle: low bits of a row", WAVE * 16 + L // 4 & 3, L // 4 & 3),
    ("swizzle: a mask after a remainder", L % 16 & 3, L & 3),
    ("swizzle: low bits alone", LOW & 7, LOW),
    ("wrapping does not matter", ANY * 8 % 8, 0),
    ("nor here", (ANY * 8 + OTHER) % 4, OTHER % 4),
    ("64-bit shift of a surface", (STEP.to(s64) * 7168 + 128) % 128, 0),
]

TAILS: list[Row] = [
    ("the last tile", M0 + ROW < 3136, 1),
    ("what is left", Min(const(3136) - M0, const(64)), 64),
    ("a rotating slot", (SLOT + 1) % 3 < 3, 1),
    ("a slot again", SLOT % 3, SLOT),
    ("sum minus a part", (M0 + ROW) - M0, ROW),
    ("constants around", (ROW - 3) + 4, ROW + 1),
    ("factored", COUNT * 64 + ROW * 64, (COUNT + ROW) * 64),
    ("not taken apart", const(1) - ROW, const(1) - ROW),
]

NEGATIVES: list[Row] = [
    ("a halo's first row", (OH - 1) // 1, OH - 1),
    ("floor", (ROW * 4 - 1) // 4, ROW - 1),
    ("remainder of a negative", (ROW * 4 - 1) % 4, 3),
    ("nested", (ROW - 64) // 8 // 8, -1),
    ("a negative divisor", (ROW * 4) % -4, 0),
    ("turned around", 0 - (OH - OW), OW - OH),
    ("offset that cancels", (OH - 8) % 8, OH % 8),
    ("compare with a negative", OH - 100 < -44, 1),
]

TABLE = [*DECODE, *GROUPS, *HALOS, *ALIGNMENT, *TAILS, *NEGATIVES]


@pytest.mark.parametrize(("e", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_must_prove(e: Expr, expected: Expr | int) -> None:
    f = facts()
    new = simplify(e, f)
    if isinstance(expected, int):
        assert f.bounds(new) == (expected, expected)
        assert not new.children()
    else:
        assert new is simplify(expected, f)
        assert operations(new) <= operations(expected)
    if e.type.elem.is_bool and expected == 1:
        assert prove(e, f)


def operations(e: Expr) -> int:
    """How many operators stand in an expression, read as a tree."""
    parts = [c for c in e.children() if isinstance(c, Expr)]
    return bool(parts) + sum(map(operations, parts))


def test_the_table_is_long_enough() -> None:
    assert len(TABLE) >= 60
    assert len({row[0] for row in TABLE}) == len(TABLE)


# ---------------------------------------------------------------- the reference's suspected defects


@pytest.mark.parametrize("e", [eq(ANY % 8, 3), ne(ANY % 8, 3), eq(BITS % 8, 7), eq(BITS % 8, 0)], ids=str)
def test_defect_1_end_points_do_not_decide_equality(e: Expr) -> None:
    assert simplify(e, facts()) is e


def test_defect_2_bounds_of_extrema_look_at_both_operands() -> None:
    f = Knowledge(64, {LOW: (0, 7), COUNT: (5, 1000)})
    assert f.bounds(Min(COUNT, LOW)) == (0, 7)
    assert f.bounds(Max(LOW, COUNT)) == (5, 1000)
    assert f.bounds(Min(ANY, LOW))[1] == 7  # one bound suffices on one side
    assert f.bounds(Max(ANY, COUNT))[0] == 5


def test_defect_3_a_remainder_is_no_greater_than_its_dividend() -> None:
    f = Knowledge(64, {LOW: (0, 7)})
    assert f.bounds(LOW % 100) == (0, 7)
    assert prove((LOW + 3) % 100 < 11, f)


def test_defect_4_a_condition_is_simplified_by_what_surrounds_it() -> None:
    f = Knowledge(64)
    f.assume(ANY < 10)
    assert prove(ANY < 12, f)
    f.assume(ANY >= 9)
    assert simplify(ANY * 2, f) is const(18)


def test_defect_5_compound_conditions_are_negated() -> None:
    f = Knowledge(64)
    f.assume((ANY < 10) | (OTHER < 5), False)
    assert prove(ANY >= 10, f)
    assert prove(OTHER > 4, f)
    f = Knowledge(64, {ANY: (0, 9)})
    f.assume((ANY < 10) & (OTHER < 5), False)  # the first always holds, so the second does not
    assert prove(OTHER >= 5, f)
    f = Knowledge(64)
    f.assume((ANY < 10) & (OTHER < 5), False)
    assert not prove(ANY >= 10, f)
    assert simplify((ANY < 10) & (OTHER < 5), f) is simplify(const(0) > const(1))


def test_defect_8_a_definition_with_a_factor_passes_facts_on() -> None:
    f = Knowledge(64, {GROUP: (0, 195)})
    f.let(M0, GROUP * 64 + 3)
    f.assume(M0 < 131)
    assert prove(GROUP < 2, f)
    assert prove(eq(M0 % 64, 3), f)
    f.assume(eq(M0, 67))
    assert prove(eq(GROUP, 1), f)
    f = Knowledge(64, {COUNT: (0, 1000), OTHER: (0, 1000)})
    f.assume(eq(COUNT * 2, OTHER * 8 + 6))
    assert not prove(eq(COUNT % 16, 12), f)  # what the factor of the other side would say
    assert prove(COUNT >= 3, f)


# ---------------------------------------------------------------- facts


def test_conditions_narrow_quotients_and_copies() -> None:
    f = Knowledge(64, {COUNT: (0, 1000)})
    f.assume(COUNT // 8 < 3)
    assert f.bounds(COUNT) == (0, 23)
    f.assume(ne(COUNT, 0))
    assert f.bounds(COUNT) == (1, 23)
    f.assume(eq(COUNT % 8, 0))
    assert prove(COUNT >= 8, f) is False  # congruences do not narrow ranges
    assert simplify((COUNT + LOW) % 8, f) is simplify(LOW % 8, f)


def test_inequalities_between_variables() -> None:
    f = Knowledge(64, {COUNT: (0, 1000), LOW: (0, 1000), ROW: (0, 9)})
    f.assume(COUNT + ROW < LOW)
    assert prove(COUNT < LOW, f)
    assert prove(LOW >= 1, f)
    assert not prove(COUNT + 1 < LOW, f)


def test_children_do_not_change_their_parents() -> None:
    f = Knowledge(64, {COUNT: (0, 1000)})
    inner = f.child()
    inner.assume(COUNT < 5)
    inner.assume(eq(COUNT % 4, 0))
    assert inner.bounds(COUNT) == (0, 4)
    assert f.bounds(COUNT) == (0, 1000)
    assert f.congruence(COUNT) == (1, 0)


def test_contradictions_are_harmless() -> None:
    f = Knowledge(64, {COUNT: (0, 10)})
    f.assume(COUNT > 20)
    f.assume(eq(COUNT, 3))
    f.assume(COUNT < COUNT)
    simplify(COUNT // 2 + COUNT % 5, f)
