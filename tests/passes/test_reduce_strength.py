"""Quotients of a loop counter carried as digits: the same values, and no division left in the loop."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends.target import get
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Div, Expr, FromLane, Lane, Mod, eq
from convgen.ir.facts import TargetFacts
from convgen.ir.interp import interpret
from convgen.ir.mutate import postorder
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import For
from convgen.ir.types import s32
from convgen.ir.verify import verify
from convgen.passes.reduce_strength import reduce_strength
from convgen.passes.share_lanes import share_lanes

FACTS = get("gfx942").facts
OF_LANES = evolve(FACTS, lane_words=True)
TRIPS = 40
LANES = 64


@attrs.frozen
class Quotient:
    """`(a * i + lanes * lane + rows * (lane // 8) + b) // below`, then `% count` unless that is 0.

    With `inner` what is divided is a quotient by that, and `more`.
    """

    a: int
    b: int
    below: int
    count: int
    lanes: int = 0
    rows: int = 0
    inner: int = 1
    more: int = 0

    def of(self, i: Expr) -> Expr:
        number = i * self.a
        number = number + Lane() * self.lanes if self.lanes else number
        number = number + Lane() // 8 * self.rows if self.rows else number
        number = number + self.b
        number = number // self.inner + self.more if self.inner > 1 else number
        quotient = number // self.below
        return quotient % self.count if self.count else quotient

    def at(self, i: int, lane: int) -> int:
        number = i * self.a + self.lanes * lane + self.rows * (lane // 8) + self.b
        quotient = (number // self.inner + self.more * (self.inner > 1)) // self.below
        return quotient % self.count if self.count else quotient


def kernel(quotients: list[Quotient], begin: int, turns: int = TRIPS) -> Kernel:
    """Stores every quotient of every turn, of which fewer may run than the loop's bounds say."""
    k = KernelBuilder("digits")
    surface = k.surface(k.buffer("out", s32, TRIPS * len(quotients) * LANES))
    with k.loop("i", begin, begin + TRIPS) as loop:
        for n, q in enumerate(quotients):
            row = (loop.var - begin) * len(quotients) + n
            k.global_store(surface, q.of(loop.var), row * (4 * LANES) + Lane() * 4)
        if turns < TRIPS:
            k.exit_if(eq(loop.var, begin + turns - 1))
        loop.yields()
    return k.done()


def stored(k: Kernel, quotients: list[Quotient]) -> list[list[list[int]]]:
    memory = np.zeros(4 * TRIPS * len(quotients) * LANES, np.uint8)
    interpret(k, {"out": memory})
    found: list[list[list[int]]] = memory.view(np.int32).reshape(TRIPS, len(quotients), LANES).tolist()
    return found


def expected(quotients: list[Quotient], begin: int) -> list[list[list[int]]]:
    return [[[q.at(i, lane) for lane in range(LANES)] for q in quotients] for i in range(begin, begin + TRIPS)]


QUOTIENTS = st.builds(
    Quotient,
    st.sampled_from((1, 1, 2, 3, 32)),
    st.integers(0, 70),
    st.sampled_from((1, 2, 3, 4, 6, 9, 12, 27, 64)),
    st.sampled_from((0, 0, 2, 3, 5)),
    st.sampled_from((0, 0, 1, 8)),
    st.sampled_from((0, 0, 0, 24, 108)),
    st.sampled_from((1, 1, 2, 3)),
    st.sampled_from((0, 1, 5)),
)


@settings(max_examples=40)
@given(st.lists(QUOTIENTS, min_size=1, max_size=4), st.integers(0, 9), st.sampled_from((FACTS, OF_LANES)))
def test_the_values_stay(quotients: list[Quotient], begin: int, facts: TargetFacts) -> None:
    reduced = reduce_strength(kernel(quotients, begin), facts)
    assert stored(reduced, quotients) == expected(quotients, begin)
    assert stored(share_lanes(reduced, facts), quotients) == expected(quotients, begin)


@pytest.mark.parametrize(("starts", "in_lanes"), [((1,), False), ((0, 1, 16, 17), True)])
def test_several_numbers_are_lanes_of_one(starts: tuple[int, ...], *, in_lanes: bool) -> None:
    """The digits of a pixel's number in images of 7 x 7, the coordinates of all that a turn loads."""
    pixels = [Quotient(32, b, below, 7) for b in starts for below in (1, 7)]
    before = kernel(pixels, 0)
    reduced = reduce_strength(before, OF_LANES)
    lanes = {n.lane for n in postorder(reduced) if isinstance(n, FromLane)}
    assert len(lanes) == (len(starts) if in_lanes else 0)
    (loop,) = (n for n in postorder(reduced) if isinstance(n, For))
    assert not any(isinstance(e, (Div, Mod)) for e in postorder(loop.body, *loop.yields))
    assert stored(reduced, pixels) == expected(pixels, 0)


def test_numbers_that_lanes_do_not_share_are_carried_by_all() -> None:
    reduced = reduce_strength(kernel([Quotient(32, b, 1, 7, lanes=2) for b in (0, 1, 16)], 0), OF_LANES)
    assert not any(isinstance(n, FromLane) for n in postorder(reduced))


def test_a_loop_may_be_left_early() -> None:
    taps = [Quotient(1, 0, below, count) for below, count in ((1, 2), (2, 3))]
    reduced = reduce_strength(kernel(taps, 0, turns=5), FACTS)
    assert not any(isinstance(e, (Div, Mod)) for e in postorder(reduced))
    assert stored(verify(reduced, "message"), taps)[:5] == expected(taps, 0)[:5]
    assert not np.any(stored(reduced, taps)[5:])


@pytest.mark.parametrize(("outer", "left"), [(4, False), (5, True)])
def test_a_loop_stays_that_divides_what_it_would_carry(outer: int, left: bool) -> None:
    """But by powers of two, for which no range need be known."""
    k = KernelBuilder("scaled")
    surface = k.surface(k.buffer("out", s32, LANES))
    with k.loop("i", 0, TRIPS) as loop:
        row = k.let("row", loop.var // 3 * 2)
        k.global_store(surface, row // outer, Lane() * 4)
        loop.yields()
    before = k.done()
    assert (reduce_strength(before, FACTS) is before) == left


@pytest.mark.parametrize("ahead", [0, 1, 2, 7])
def test_no_division_is_left_where_boundaries_divide_one_another(ahead: int) -> None:
    """The taps of a 3x3 kernel over 2 channel blocks, this iteration and some iterations ahead."""
    taps = [Quotient(1, b, below, count) for b in (0, ahead) for below, count in ((1, 2), (2, 3), (6, 0))]
    reduced = reduce_strength(kernel(taps, 0), FACTS)
    assert not any(isinstance(e, (Div, Mod)) for e in postorder(reduced))
    assert stored(reduced, taps) == expected(taps, 0)


def test_no_division_is_left_of_a_quotient_and_more() -> None:
    reduced = reduce_strength(kernel([Quotient(1, 40, 2, 0, inner=3, more=1)], 0), FACTS)
    assert not any(isinstance(e, (Div, Mod)) for e in postorder(reduced))


def digits_of(reduced: Kernel) -> int:
    """How many values the loop carries."""
    (loop,) = (s for s in postorder(reduced) if isinstance(s, For))
    return len(loop.carried)


def test_numbers_that_are_apart_by_whole_turns_are_one() -> None:
    """A row of seven and its number, and the row's number in an image, 64 rows further on for each eight lanes."""
    rows = [Quotient(2, 3, 1, 7, lanes=1), Quotient(2, 3, 7, 0, lanes=1), Quotient(2, 17, 7, 28, lanes=1, rows=7 * 64)]
    reduced = reduce_strength(kernel(rows, 0), FACTS)
    assert stored(reduced, rows) == expected(rows, 0)
    assert digits_of(reduced) == 3


def test_whole_quotients_are_carried_in_place_of_digits_that_nobody_asks_for() -> None:
    rows = [Quotient(8, 0, 1, 7), Quotient(8, 0, 7, 56), Quotient(8, 0, 7, 0)]
    reduced = reduce_strength(kernel(rows, 0), FACTS)
    assert stored(reduced, rows) == expected(rows, 0)
    assert digits_of(reduced) == 3


def test_boundaries_that_do_not_divide_one_another_are_left_alone() -> None:
    before = kernel([Quotient(1, 0, 2, 0), Quotient(1, 0, 3, 0)], 0)
    assert reduce_strength(before, FACTS) is before


@pytest.mark.parametrize("other", [Quotient(5, 0, 7, 0), Quotient(1, 0, 7, 0, lanes=1)])
def test_those_of_another_number_are_carried(other: Quotient) -> None:
    alone = [Quotient(1, 0, 2, 0), Quotient(1, 0, 3, 0)]
    reduced = reduce_strength(kernel([*alone, other], 0), FACTS)
    assert stored(reduced, [*alone, other]) == expected([*alone, other], 0)
    assert digits_of(reduced) == 2


def test_numbers_are_not_made_one_where_boundaries_would_not_divide_one_another() -> None:
    rows = [Quotient(2, 0, 7, 0, lanes=1), Quotient(2, 0, 3, 0, lanes=1, rows=21)]
    (loop,) = (s for s in postorder(reduce_strength(kernel(rows, 0), FACTS)) if isinstance(s, For))
    assert not any(isinstance(e, (Div, Mod)) for e in postorder(loop.body))


def test_a_loop_without_divisions_is_left_alone() -> None:
    before = kernel([Quotient(1, 5, 1, 0)], 0)
    once = reduce_strength(before, FACTS)
    assert reduce_strength(once, FACTS) is once


def test_divisions_of_a_varying_start_leave_the_loop() -> None:
    reduced = reduce_strength(kernel([Quotient(1, b, 3, 7, lanes=8) for b in (0, 1, 5)], 0), FACTS)
    (loop,) = (s for s in postorder(reduced) if isinstance(s, For))
    assert not any(isinstance(e, (Div, Mod)) for e in postorder(loop.body))
