"""Which writes to shared memory leave loops, and which parts of them: the results are the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from convgen.backends.target import get
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import AddressOf, Expr, Lane, Pack, const
from convgen.ir.facts import TargetFacts
from convgen.ir.interp import InterpError, interpret
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.types import bool_, u32, u64, vector
from convgen.ir.verify import verify
from convgen.passes.hoist_stores import hoist_stores
from tests.strategies import FIXED

FACTS = get("xehpc").facts
LANES, WORDS, SUBGROUPS = FACTS.subgroup_size, 8, 2
EACH = 4 * WORDS  #: bytes of a lane
SLOT = EACH * LANES * SUBGROUPS
ROOM = 1 << 16  #: bytes of the result


class Body(KernelBuilder):
    """Each lane has eight words in each of two slots, which letters write, of slot 1 in capitals.

    `w` writes what changes with the loop and a constant, `v` only what changes, `c` only constants, and `m` a constant
    between two words that change. `x` writes the last word alone, `?` a word somewhere, `o` another tile. `g` reads all
    words, `r` those that the other subgroup has, and `f` the first of these. `b` is a barrier, `E` an exit. What is in
    (...) is a loop.
    """

    def __init__(self, text: str, trips: int | None) -> None:
        super().__init__("k", width=LANES, subgroups=SUBGROUPS)
        self.to = self.buffer("to", u32, ROOM // 4)
        cols = WORDS * LANES * SUBGROUPS
        self.another, self.tile = (self.shared(name, u32, 1, cols, slots=2) for name in ("another", "tile"))
        self.trips: Expr = self.scalar("n") if trips is None else const(trips)
        self.own = (self.subgroup * LANES + Lane()) * EACH
        self.other = ((1 - self.subgroup) * LANES + Lane()) * EACH
        self.number = 0
        self.letters(text, const(0))

    def letters(self, text: str, trip: Expr) -> None:
        if "(" not in text:
            for c in text:
                self.letter(c, trip)
            return
        before, _, rest = text.partition("(")
        inside, _, behind = rest.rpartition(")")
        self.letters(before, trip)
        with self.loop("i", 0, self.trips) as loop:
            self.letters(inside, loop.var)
        self.letters(behind, trip)

    def letter(self, c: str, trip: Expr) -> None:
        slot = SLOT if c.isupper() and c != "E" else 0
        changing, alike = (trip + Lane() + 3).to(u32), const(7, u32)
        match c if c == "E" else c.lower():
            case "b":
                self.barrier()
            case "E":
                self.exit_if(trip > 1)
            case "w":
                self.write(slot, *[changing] * 3, *[alike] * 5)
            case "v":
                self.write(slot, *[changing] * 8)
            case "c":
                self.write(slot, *[alike] * 8)
            case "m":
                self.write(slot, changing, *[alike] * 6, changing)
            case "x":
                self.shared_write(self.tile, alike + 1, self.own, slot + EACH - 4)
            case "o":
                self.shared_write(self.another, changing, self.own, slot + EACH - 4)
            case "?":
                self.shared_write(self.tile, alike, self.own + (trip & 1) * SLOT)
            case "g":
                self.out(self.shared_read("given", vector(u32, WORDS), self.tile, self.own, slot), trip)
            case "r":
                self.out(self.shared_read("read", vector(u32, WORDS), self.tile, self.other, slot), trip)
            case "f":
                self.out(self.shared_read("first", u32, self.tile, self.other, slot), trip)

    def write(self, slot: int, *words: Expr) -> None:
        self.shared_write(self.tile, self.let("words", Pack(vector(u32, WORDS), words)), self.own, slot)

    def out(self, value: Expr, trip: Expr) -> None:
        self.number += 1
        at = (self.number * 4 + trip) * SLOT + self.own
        address = AddressOf(self.to) + at.to(u32).to(u64)
        self.add(s.FlatStore(self.to, address, const(True, bool_), value, self.site()))


def results(k: Kernel, n: int) -> bytes:
    memory = {"to": np.zeros(ROOM, np.uint8)}
    interpret(k, memory, {"n": n})
    return memory["to"].tobytes()


def hoisted(text: str, trips: int | None = 3, facts: TargetFacts = FACTS) -> tuple[list[int], list[int]]:
    """The bytes that writes before the loop have in addition, and those of all that are left in it."""
    before = verify(Body(text, trips).done(), "message")
    after = verify(hoist_stores(before, facts), "message")
    for n in (0, 1, 3):
        assert results(after, n) == results(before, n)
    assert hoist_stores(after, facts) is after
    (loop,) = [x for x in statements(after.body) if isinstance(x, s.For)]
    given = sum(c in "wvcmxo?" for c in text.partition("(")[0].lower())
    inside = statements(loop)
    ahead = [x for x in statements(after.body) if isinstance(x, s.SharedWrite) and x not in inside][given:]
    return [x.moved.bits // 8 for x in ahead], [x.moved.bits // 8 for x in inside if isinstance(x, s.SharedWrite)]


@pytest.mark.parametrize(
    ("text", "ahead", "inside"),
    [
        ("(wbrb)", [12, 8], [12]),
        ("(cbrb)", [32], []),
        ("(vbrb)", [], [32]),
        ("(mbrb)", [], [32]),
        ("(wWbrRb)", [12, 8, 12, 8], [12, 12]),
        ("v(Wbrb)", [12, 8], [12]),
        ("vb(frWbb)", [12, 8], [12]),  # what is read before is in another slot
        ("(wbfb)", [12, 8], [12]),
        ("(wxbrb)", [], [32, 4]),  # something else is written there
        ("(wXbrb)", [12, 8, 4], [12]),
        ("(w?brb)", [], [32, 4]),  # or may be
        ("(wobrb)", [12, 8], [12, 4]),
        ("vb(rbwb)", [], [32]),  # behind a barrier
        ("vbr(bwbrb)", [], [32]),  # which others that still read come to as well
        ("vVb(rWbwb)", [12, 8], [12, 32]),
        ("v(gwb)", [], [32]),  # it is read before
        ("vV(Gwb)", [12, 8], [12]),
        ("(Ewbrb)", [], [32]),  # the loop may be left before
        ("(wbrbE)", [12, 8], [12]),
    ],
)
def test_what_leaves_a_loop(text: str, ahead: list[int], inside: list[int]) -> None:
    assert hoisted(text) == (ahead, inside)


@pytest.mark.parametrize(("trips", "ahead"), [(0, []), (1, [12, 8]), (None, [12, 8])])
def test_a_loop_that_does_not_run_writes_nothing(trips: int | None, ahead: list[int]) -> None:
    assert hoisted("cCb(wb)brR", trips) == (ahead, [12])


def test_messages_are_such_as_the_target_has() -> None:
    """No message of less than eight dwords that begins with the first has three of them alone."""
    assert hoisted("(wbrb)", facts=get("gfx942").facts) == ([16], [16])


def test_what_a_loop_makes_may_be_written_again_and_again() -> None:
    """A variable of the loop is no constant, though its register be; one from outside is."""
    k = Body("", 3)
    around = k.let("around", Lane().to(u32) * 3)
    with k.loop("i", 0, 3) as loop:
        within = k.let("within", loop.var.to(u32))
        k.shared_write(k.tile, Pack(vector(u32, 2), (within, around)), k.own)
    after = hoist_stores(verify(k.done(), "message"), FACTS)
    ahead, inside = [x for x in statements(after.body) if isinstance(x, s.SharedWrite)]
    assert (ahead.imm, inside.imm) == (4, 0)


@settings(FIXED, max_examples=40)
@given(
    st.text("wWvVcCbrRgG", max_size=3),
    st.text("wWvVcCmMxX?gGrRfFb", max_size=2),
    st.sampled_from("wcWC"),
    st.text("wWvVcCmMxX?gGrRfFbE", max_size=2),
    st.sampled_from([0, 1, 3]),
)
def test_results_are_the_same(before: str, first: str, written: str, rest: str, n: int) -> None:
    """Kernels without races; what has one is of no use here."""
    given = verify(Body(f"vVb{before}({first}{written}{rest}b)brR", None).done(), "message")
    after = verify(hoist_stores(given, FACTS), "message")
    assume(after is not given)
    try:
        expected = results(given, n)
    except InterpError:
        assume(False)
    assert results(after, n) == expected
