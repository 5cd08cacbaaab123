"""Which loads serve for others: equal ones side by side, also from one iteration to the next."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import AddressOf, Expr, Lane, Var, const
from convgen.ir.interp import interpret
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.types import bool_, u32, u64
from convgen.ir.verify import verify
from convgen.passes.share_loads import share_loads
from tests.strategies import FIXED

LANES, TRIPS = 16, 3
ROOM = 1 << 11  #: bytes of each buffer


class Body(KernelBuilder):
    """Words: `a` and `b` load from two places, `A` from the first in other lanes, `n` from the first with an immediate
    in one that has these; `w` stores the sum of all that was loaded, `o` nothing, behind a barrier. `(ab)` is a loop
    that carries the two values loaded last and loads others.
    """

    def __init__(self, text: str, *, flat: bool) -> None:
        super().__init__("k", width=LANES)
        self.of, self.to = (self.buffer(name, u32, ROOM // 4) for name in ("of", "to"))
        self.flat, self.stored, self.values = flat, 0, list[Expr]()
        self.words(text, const(0))

    def words(self, text: str, trip: Expr) -> None:
        for word in text.split():
            if word[0] == "(":
                first, second = self.values[-2:]
                with self.loop("i", 0, TRIPS, first=first, second=second) as loop:
                    self.values = [loop["first"], loop["second"]]
                    self.words(" ".join(["w", *word[1:-1]]), loop.var)
                    loop.yields(*self.values[-2:])
                self.values = [loop.result("first"), loop.result("second")]
            elif word == "w":
                self.write(trip)
            elif word == "o":
                self.barrier("publish")
            else:
                self.load(word, trip)

    def load(self, word: str, trip: Expr) -> None:
        at = (trip * LANES + Lane() + (LANES if word == "b" else 0)) * 4
        v = self.var(word.lower(), u32)
        if self.flat:
            mask = Lane() < (5 if word == "A" else LANES)
            self.add(s.FlatLoad(v, self.of, AddressOf(self.of) + at.to(u32).to(u64), mask, self.site()))
        else:
            self.add(s.GlobalLoad(v, self.of, self.surface(self.of), at, const(0), 8 * (word == "n"), self.site()))
        self.values.append(v)

    def write(self, trip: Expr) -> None:
        total: Expr = const(0, u32)
        for value in self.values:
            total = total * 3 + value
        at = ((trip * 8 + self.stored) * LANES + Lane()) * 4
        self.add(s.FlatStore(self.to, AddressOf(self.to) + at.to(u32).to(u64), Lane() < LANES, total, self.site()))
        self.stored += 1


def shared(text: str, *, flat: bool = True) -> tuple[int, int]:
    """How many loads are left, and how many variables loops carry; the results are compared."""
    before = verify(Body(text, flat=flat).done(), "message")
    after = verify(share_loads(before), "message")
    assert results(after) == results(before)
    left = statements(after.body)
    loads, loops = (
        sum(isinstance(x, s.FlatLoad | s.GlobalLoad) for x in left),
        (x for x in left if isinstance(x, s.For)),
    )
    return loads, sum(len(x.carried) for x in loops)


def results(k: Kernel) -> bytes:
    given = np.random.default_rng(7).integers(1, 255, ROOM, dtype=np.uint8)
    memory = {"of": given, "to": np.zeros(ROOM, np.uint8)}
    interpret(k, memory, {})
    return memory["to"].tobytes()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a a w", (1, 0)),
        ("a b a w", (2, 0)),
        ("a A w", (2, 0)),  # in other lanes
        ("a w a w", (2, 0)),  # not side by side
        ("a o a w", (2, 0)),
        ("a a (aa) w", (2, 1)),
        ("a a (ab) w", (3, 2)),  # that go on in different ways
        ("a b (aa) w", (3, 2)),  # that begin so
        ("a a (aab) w", (3, 2)),
    ],
)
def test_what_is_shared(text: str, left: tuple[int, int]) -> None:
    assert shared(text) == left


@pytest.mark.parametrize(("text", "left"), [("a a w", 1), ("a n w", 2), ("n b n w", 2)])
def test_immediates_tell_places_apart(text: str, left: int) -> None:
    assert shared(text, flat=False) == (left, 0)


def test_what_the_kernel_writes_is_loaded_again() -> None:
    k = KernelBuilder("k", width=LANES)
    both = k.buffer("both", u32, LANES)
    address = AddressOf(both) + (Lane() * 4).to(u32).to(u64)
    one, other = k.var("one", u32), k.var("other", u32)
    k.add(s.FlatLoad(one, both, address, Lane() < LANES, k.site()))
    k.add(s.FlatLoad(other, both, address, Lane() < LANES, k.site()))
    k.add(s.FlatStore(both, address, Lane() < LANES, one + other, k.site()))
    made = k.done()
    assert share_loads(made) is made


def test_a_loop_with_an_exit_carries_all_its_values() -> None:
    k = KernelBuilder("k", width=LANES)
    of, to, n = k.buffer("of", u32, LANES), k.buffer("to", u32, LANES), k.scalar("n")

    def twice() -> list[Var]:
        values = [k.var(name, u32) for name in ("one", "other")]
        for v in values:
            k.add(s.FlatLoad(v, of, AddressOf(of), const(True, bool_), k.site()))
        return values

    one, other = twice()
    with k.loop("i", 0, TRIPS, one=one, other=other) as loop:
        k.exit_if(loop.var < n, loop["one"], loop["other"])
        k.barrier()
        loop.yields(*twice())
    total = loop.result("one") + loop.result("other")
    k.add(s.FlatStore(to, AddressOf(to), const(True, bool_), total, k.site()))
    made = verify(share_loads(k.done()))
    (after,) = (each for each in statements(made.body) if isinstance(each, s.For))
    assert len(after.carried) == 2
    assert sum(isinstance(each, s.FlatLoad) for each in statements(made.body)) == 2


@settings(FIXED, max_examples=40)
@given(st.lists(st.sampled_from("aAbwo"), max_size=5), st.lists(st.sampled_from("aAbo"), max_size=5))
def test_results_are_the_same(ahead: list[str], inside: list[str]) -> None:
    shared(" ".join(["a", "b", *ahead, f"({''.join(inside)})", "w"]))
