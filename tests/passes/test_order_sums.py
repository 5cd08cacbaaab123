"""Which sums are added up in another order: those of terms that become known in different blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends.target import get
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, Lane
from convgen.ir.interp import interpret
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.stmt import Let
from convgen.ir.types import f32, s32
from convgen.passes.order_sums import order_sums
from tests.strategies import FIXED

FACTS = get("xehpc").facts
LANES = FACTS.subgroup_size
TRIPS = 3

Terms = tuple[Expr, Expr, Expr]  #: a scalar, a loop's counter, and that of a loop in it


def sums(*made: Callable[[Terms], Expr]) -> Kernel:
    """Lets of what `made` makes of its terms, and a store of them, in the inner loop."""
    k = KernelBuilder("sums", width=LANES)
    to, a = k.surface(k.buffer("to", s32, _elements(len(made)))), k.scalar("a")
    with k.loop("i", 0, TRIPS) as outer, k.loop("j", 0, TRIPS) as inner:
        values = [k.let(f"v{n}", make((a, outer.var, inner.var))) for n, make in enumerate(made)]
        for n, value in enumerate(values):
            row = (outer.var * TRIPS + inner.var) * len(made) + n
            k.global_store(to, value + Lane() * 0, (row * LANES + Lane()) * 4)
    return k.done()


def _elements(stored: int) -> int:
    return TRIPS * TRIPS * stored * LANES


def values(kernel: Kernel) -> list[str]:
    return [str(s.value) for s in statements(kernel.body) if isinstance(s, Let)]


def results(kernel: Kernel, stored: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    memory = {"to": np.zeros(4 * _elements(stored), np.uint8)}
    interpret(kernel, memory, {"a": -5})
    return memory["to"]


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda t: t[0] + t[2] + -1, "a + -1 + j"),
        (lambda t: t[2] + t[0], "a + j"),
        (lambda t: (t[2] * 2 + t[0]) * 8 + -1, "a * 8 + -1 + j * 16"),
        (lambda t: ((t[2] + t[0]) * 8 + 3) * 4, "(a * 8 + 3 + j * 8) * 4"),
        (lambda t: t[2] * 8 + t[1] * 4 + t[0] + 7, "a + 7 + i * 4 + j * 8"),
        (lambda t: t[1] + (t[2] + 3), "i + 3 + j"),
        (lambda t: t[2] + 3 + t[2] * 2, "j + 3 + j * 2"),  # all of one block
        (lambda t: (t[0] - t[2]) + t[1] + 5, "i + 5 + (a - j)"),  # a difference is one term
        (lambda t: (t[2] + Lane()) * 8 + t[0], "a + (lane + j) * 8"),  # one multiplication of all lanes
        (lambda t: (t[2].to(f32) + t[0].to(f32)).to(s32), "s32(f32(j) + f32(a))"),  # which floats round
    ],
)
def test_what_becomes_known_first_is_added_first(make: Callable[[Terms], Expr], wanted: str) -> None:
    (value,) = values(order_sums(sums(make), FACTS))
    assert value == wanted


def test_a_sum_that_others_use_stays_whole() -> None:
    before = sums(lambda t: t[0] + t[2] + -1, lambda t: (t[0] + t[2]) * 2)
    assert values(order_sums(before, FACTS)) == values(before)
    of_lanes = sums(lambda t: Lane() + t[2] + -1, lambda t: Lane() + t[2] + 9)  # whose registers are dear
    assert values(order_sums(of_lanes, FACTS)) == values(of_lanes)
    multiples = sums(lambda t: (t[0] + t[2]) * 8 + 3, lambda t: (t[0] + t[2]) * 4 + 5)
    assert values(order_sums(multiples, FACTS)) == values(multiples)


def test_a_sum_to_which_all_add_constants_is_none_of_its_own() -> None:
    """So that the constants are added outside of the loop."""
    before = sums(lambda t: t[2] * 64 + t[0] + 64, lambda t: t[2] * 64 + t[0] + 96)
    assert values(order_sums(before, FACTS)) == ["a + 64 + j * 64", "a + 96 + j * 64"]
    assert np.array_equal(results(before, 2), results(order_sums(before, FACTS), 2))


def test_what_is_ordered_stays_as_it_is() -> None:
    once = order_sums(sums(lambda t: t[2] + t[1] + t[0] + 7, lambda t: t[0] + 4 + t[2]), FACTS)
    assert order_sums(once, FACTS) is once


def test_where_messages_have_immediates_all_stays() -> None:
    before = sums(lambda t: t[0] + t[2] + -1)
    assert order_sums(before, get("gfx942").facts) is before


@st.composite
def made(draw: st.DrawFn, depth: int = 4) -> Callable[[Terms], Expr]:
    """Sums, differences and multiples of terms and of numbers near the ends of what 32 bits hold."""
    kind = draw(st.sampled_from(("term", "sum", "sum", "sum", "difference", "multiple")[: 6 if depth else 1]))
    if kind == "term":
        n, more = draw(st.integers(0, 2)), draw(st.sampled_from([0, 1, -1, (1 << 31) - 1, -(1 << 31)]))
        return lambda t: t[n] + more if more else t[n]
    if kind == "multiple":
        inner, factor = draw(made(depth - 1)), draw(st.sampled_from([2, -3, 1 << 30]))
        return lambda t: inner(t) * factor
    one, other = draw(made(depth - 1)), draw(made(depth - 1))
    return (lambda t: one(t) + other(t)) if kind == "sum" else lambda t: one(t) - other(t)


@settings(FIXED, max_examples=25)
@given(st.lists(made(), min_size=1, max_size=3))
def test_the_sums_stay(some: list[Callable[[Terms], Expr]]) -> None:
    before = sums(*some)
    assert np.array_equal(results(before, len(some)), results(order_sums(before, FACTS), len(some)))
