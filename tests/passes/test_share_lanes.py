"""What lanes' words make of themselves in the same way is computed once, and nothing else is moved."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from convgen.backends.target import get
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, FromLane, Lane, Uniform, Var, const
from convgen.ir.interp import interpret
from convgen.ir.mutate import postorder, statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import For, Let
from convgen.ir.types import s32
from convgen.ir.verify import verify
from convgen.passes.share_lanes import share_lanes

FACTS = get("xehpc").facts
LANES, TRIPS = FACTS.subgroup_size, 5


def of_lane(v: Expr, lane: int) -> Expr:
    return Uniform(FromLane(v, const(lane)))


def kernel(stored: Callable[[KernelBuilder, Expr, Var], list[Expr]]) -> Kernel:
    """Stores in each turn what is made of a word that lanes carry, and of a scalar."""
    k = KernelBuilder("lanes", width=LANES)
    n = k.scalar("n")
    out = k.surface(k.buffer("out", s32, 8 * TRIPS * LANES))
    with k.loop("i", 0, TRIPS, word=Lane() * 3) as loop:
        for at, value in enumerate(stored(k, loop["word"], n)):
            k.global_store(out, value + Lane(), (loop.var * 8 + at) * (4 * LANES) + Lane() * 4)
        loop.yields(loop["word"] + 1)
    return k.done()


def memory(k: Kernel) -> bytes:
    out = np.zeros(4 * 8 * TRIPS * LANES, np.uint8)
    interpret(k, {"out": out}, {"n": 7})
    return out.tobytes()


def shifted(word: Expr, n: Expr, lane: int) -> Expr:
    return (const(1 << 20) >> of_lane(word, lane)) + n * 2


CASES: dict[str, tuple[Callable[[KernelBuilder, Expr, Var], list[Expr]], int]] = {
    "two lanes": (lambda k, w, n: [shifted(w, n, 0), shifted(w, n, 2)], 1),
    "the greatest part alone": (lambda k, w, n: [shifted(w, n, at) * 5 for at in (1, 3)], 1),
    "two ways": (lambda k, w, n: [e for at in (0, 1) for e in (of_lane(w, at) + n, of_lane(w, at) - 1)], 2),
    "one lane": (lambda k, w, n: [shifted(w, n, 1), of_lane(w, 2) + 1], 0),
    "words as they are": (lambda k, w, n: [of_lane(w, 1), of_lane(w, 2)], 0),
    "of two lanes at a time": (lambda k, w, n: [of_lane(w, at) + of_lane(w, at + 1) for at in (0, 1)], 0),
    "what differs between lanes": (lambda k, w, n: [of_lane(w, at) + Lane() for at in (0, 1)], 0),
    "what the body binds": (lambda k, w, n: [of_lane(w, at) + k.let("m", n + w) for at in (0, 1)], 0),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_alike_is_computed_once(case: str) -> None:
    values, lets = CASES[case]
    before = kernel(values)
    after = verify(share_lanes(before, FACTS), "message")
    made = [s for s in statements(after.body) if isinstance(s, Let)]
    assert len(made) - len([s for s in statements(before.body) if isinstance(s, Let)]) == lets
    assert memory(after) == memory(before)
    assert (after is before) == (lets == 0)


def test_what_the_next_turn_takes_counts_too() -> None:
    k = KernelBuilder("lanes", width=LANES)
    out = k.surface(k.buffer("out", s32, LANES))
    with k.loop("i", 0, TRIPS, word=Lane() * 3, a=const(0), b=const(0)) as loop:
        loop.yields(loop["word"] + 1, of_lane(loop["word"], 0) * 5, of_lane(loop["word"], 1) * 5)
    k.global_store(out, loop.result("a") + loop.result("b"), Lane() * 4)
    before = k.done()
    after = share_lanes(before, FACTS)
    (inside,) = (n for n in postorder(after) if isinstance(n, For))
    assert sum(isinstance(s, Let) for s in statements(inside.body)) == 1
    assert memory_of(after) == memory_of(before)


def test_nothing_is_shared_where_no_instruction_reads_one_lane() -> None:
    values, lets = CASES["two lanes"]
    before = kernel(values)
    assert lets
    assert share_lanes(before, evolve(FACTS, lane_words=False)) is before


def memory_of(k: Kernel) -> bytes:
    out = np.zeros(4 * LANES, np.uint8)
    interpret(k, {"out": out})
    return out.tobytes()
