"""The canonical order of operands: total, by content, numbers as numbers."""

from __future__ import annotations

from itertools import permutations

from convgen.ir.expr import Expr, Lane, Var, const
from convgen.ir.simplify.operand_order import CanonicalOrder
from convgen.ir.types import s32

NAMED = [Var("a", 9, s32), Var("a", 10, s32), Var("b", 1, s32)]


def sorted_by(order: CanonicalOrder, given: tuple[Expr, ...]) -> list[Expr]:
    out: list[Expr] = []
    for e in given:
        at = next((n for n, other in enumerate(out) if order.before(e, other)), len(out))
        out.insert(at, e)
    return out


def test_numbers_count_as_numbers() -> None:
    assert CanonicalOrder().before(NAMED[0], NAMED[1])
    assert not CanonicalOrder().before(NAMED[1], NAMED[0])
    assert CanonicalOrder().before(const(9), const(10))


def test_the_order_does_not_depend_on_what_came_first() -> None:
    a, b, c = NAMED
    lane: Expr = Lane()
    for given in ((a, b, c, const(3)), (a * 2, lane, b + c, const(1)), (lane * 2 + a, lane * 3 + a, b * c)):
        found = {tuple(sorted_by(CanonicalOrder(), order)) for order in permutations(given)}
        assert len(found) == 1


def test_what_depends_on_the_lane_comes_last() -> None:
    assert CanonicalOrder().before(NAMED[2], Lane())
    assert not CanonicalOrder().before(Lane() * 2, NAMED[0])
