"""Which loads leave lanes undefined, for stores to shared memory to fill: the results are the same."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convgen.backends.target import get
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import AddressOf, Expr, Lane, const, zeros
from convgen.ir.interp import interpret
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.types import bool_, u32, u64, vector
from convgen.ir.verify import verify
from convgen.passes.fill_stores import fill_stores
from tests.strategies import FIXED

FACTS = get("xehpc").facts
LANES, WORDS, TRIPS = FACTS.subgroup_size, 4, 3
BYTES = 4 * WORDS
ROOM = 1 << 13  #: bytes of each buffer


class Body(KernelBuilder):
    """Words: `l` loads a value in some lanes, `L` in all, `w` stores the last one to shared memory, `o` what is
    there to a buffer, `g` the last value itself. `(wol)` is a loop that carries the last value.
    """

    def __init__(self, text: str) -> None:
        super().__init__("k", width=LANES)
        self.of, self.to = (self.buffer(name, u32, ROOM // 4) for name in ("of", "to"))
        self.tile = self.shared("tile", u32, 1, WORDS * LANES)
        self.value: Expr | None = None
        self.number = 0
        self.words(text, const(0, u32))

    def at(self, buffer: object, trip: Expr) -> Expr:
        self.number += 1
        start = (trip * 7 + self.number) * (BYTES * 16) + Lane().to(u32) * BYTES
        return AddressOf(buffer) + start.to(u64)  # type: ignore[arg-type]

    def words(self, text: str, trip: Expr) -> None:
        for word in text.split():
            match word[0]:
                case "l" | "L":
                    everywhere = const(True, bool_)
                    mask = everywhere if word == "L" else Lane().to(u32) < trip * 3 + (self.number % 3 + 1) * 4
                    self.value = v = self.var("loaded", vector(u32, WORDS))
                    self.add(s.FlatLoad(v, self.of, self.at(self.of, trip), mask, self.site()))
                case "w":
                    assert self.value is not None
                    self.shared_write(self.tile, self.value, Lane() * BYTES)
                case "o":
                    read = self.shared_read("read", vector(u32, WORDS), self.tile, Lane() * BYTES)
                    self.out(read, trip)
                case "g":
                    assert self.value is not None
                    self.out(self.value, trip)
                case "(":
                    assert self.value is not None
                    with self.loop("i", 0, TRIPS, value=self.value) as loop:
                        self.value = loop["value"]
                        self.words(" ".join(word[1:-1]), loop.var.to(u32))
                        loop.yields(self.value)
                    self.value = loop.result("value")

    def out(self, value: Expr, trip: Expr) -> None:
        self.add(s.FlatStore(self.to, self.at(self.to, trip), const(True, bool_), value, self.site()))


def kernel(text: str) -> Kernel:
    return verify(Body(text).done(), "message")


def results(k: Kernel) -> bytes:
    given = np.random.default_rng(5).integers(1, 255, ROOM, dtype=np.uint8)
    memory = {"of": given, "to": np.zeros(ROOM, np.uint8)}
    interpret(k, memory, {})
    return memory["to"].tobytes()


def filled(text: str) -> tuple[int, int, int]:
    """How many loads leave lanes undefined, stores fill them, and masks loops carry; the results are compared."""
    before = kernel(text)
    after = verify(fill_stores(before, FACTS), "message")
    assert results(after) == results(before)
    kinds = Counter(type(x) for x in statements(after.body))
    masks = [v for x in statements(after.body) if isinstance(x, s.For) for v in x.carried if v.type is bool_]
    return kinds[s.PartialLoad], kinds[s.FilledWrite], len(masks)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("l w o", (1, 1, 0)),
        ("l w w o", (1, 2, 0)),
        ("L w o", (0, 0, 0)),  # which exists in all lanes
        ("l w o g", (0, 0, 0)),  # of which something else is made
        ("l (wol) w o", (2, 2, 1)),
        ("L (wol) w o", (1, 2, 1)),
        ("L (woL) w o", (0, 0, 0)),
        ("l (wogl) w o", (0, 0, 0)),
        ("l (wol) w o g", (0, 0, 0)),
        ("l (wolwol) w o", (3, 3, 1)),
    ],
)
def test_what_is_filled(text: str, counts: tuple[int, int, int]) -> None:
    assert filled(text) == counts


def test_short_values_get_their_zeros_at_once() -> None:
    k = KernelBuilder("k", width=LANES)
    of, tile = k.buffer("of", u32, LANES), k.shared("tile", u32, 1, LANES)
    v = k.var("v", u32)
    k.add(s.FlatLoad(v, of, AddressOf(of) + (Lane().to(u32) * 4).to(u64), Lane().to(u32) < 3, k.site()))
    k.shared_write(tile, v, Lane() * 4)
    made = k.done()
    assert fill_stores(made, FACTS) is made


def test_values_that_a_loop_with_an_exit_carries_get_their_zeros_at_once() -> None:
    k = KernelBuilder("k", width=LANES)
    of, tile, n = k.buffer("of", u32, ROOM // 4), k.shared("tile", u32, 1, WORDS * LANES), k.scalar("n")
    v = k.var("v", vector(u32, WORDS))
    k.add(s.FlatLoad(v, of, AddressOf(of), Lane() < 3, k.site()))
    with k.loop("i", 0, TRIPS, v=v) as loop:
        k.shared_write(tile, loop["v"], Lane() * BYTES)
        k.exit_if(loop.var < n, zeros(vector(u32, WORDS)))
        loop.yields(loop["v"])
    k.shared_write(tile, loop.result("v"), Lane() * BYTES)
    made = k.done()
    assert fill_stores(made, FACTS) is made


def test_what_has_surfaces_stays_as_it_is() -> None:
    made = kernel("l w o")
    assert fill_stores(made, get("gfx942").facts) is made


@FIXED
@given(st.lists(st.sampled_from("lLwog"), max_size=4), st.lists(st.sampled_from("lLwog"), min_size=1, max_size=5))
def test_results_are_the_same(ahead: list[str], inside: list[str]) -> None:
    filled(" ".join(["l", "w", *ahead, f"({''.join(inside)})", "w", "o"]))
