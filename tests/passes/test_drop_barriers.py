"""Which barriers stay: those between conflicting accesses of a shared tile, on any path, with no other in between."""

from __future__ import annotations

import pytest

from convgen.backends.target import get
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Lane, const
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.mutate import postorder
from convgen.ir.stmt import Barrier
from convgen.ir.types import f32, vector
from convgen.passes.drop_barriers import drop_barriers

FACTS = get("gfx942").facts
#: Every subgroup the whole tile, so that it is shared; and each its own row.
ALL = Fragment(("row", "col"), (Digit("col", 16, Space.LANE, 1), Digit("row", 2, Space.REGISTER, 1)))
OWN = Fragment(("row", "col"), (Digit("col", 16, Space.LANE, 1), Digit("row", 2, Space.SUBGROUP, 1)))


class Body(KernelBuilder):
    """Statements by letter: r and w read and write slot 0, R and W slot 1, ? and ! a slot that nobody knows.

    p and q read and write a tile of which each subgroup has its part, m and n the same by messages, M and N by messages
    of a site that is private, l is something else, E an exit. Words in F(...) are a loop, in I(...) an arm.
    """

    def __init__(self, subgroups: int = 2) -> None:
        super().__init__("k", subgroups=subgroups, width=16)
        self.tile = self.shared("tile", f32, 2, 16, slots=2)
        self.own = self.shared("own", f32, 2, 16)
        self.words = self.shared("words", f32, 2, 16)
        self.n = self.scalar("n")

    def letter(self, c: str) -> None:
        slot = self.n if c in "?!" else const(int(c in "RW"))
        match c:
            case "b":
                self.barrier()
            case "r" | "R" | "?":
                self.load_shared("v", self.tile, ALL, slot)
            case "w" | "W" | "!":
                self.store_shared(self.tile, self.zeros(vector(f32, 2)), ALL, slot)
            case "p":
                self.load_shared("v", self.own, OWN)
            case "q":
                self.store_shared(self.own, self.zeros(vector(f32, 1)), OWN)
            case "m":
                self.shared_read("v", f32, self.words, Lane() * 4)
            case "n":
                self.shared_write(self.words, const(0.0, f32), Lane() * 4)
            case "l":
                self.let("v", self.n + 1)
            case "E":
                self.exit_if(self.n < 3)

    def body(self, text: str) -> None:
        at = 0
        while at < len(text):
            if text[at] not in "FI":
                self.letter(text[at])
                at += 1
                continue
            depth, end = 1, at + 2
            while depth:
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
            with self.loop("i", 0, 4) if text[at] == "F" else self.when(self.n < 5):
                self.body(text[at + 2 : end - 1])
            at = end


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("wbr", [1]),
        ("rbw", [1]),
        ("wbw", [1]),
        ("rbr", []),  # two reads order nothing
        ("bwr", []),
        ("wrb", []),
        ("wbR", []),  # another slot
        ("wb?", [1]),
        ("!bR", [1]),
        ("?bR", []),
        ("wbqbr", [2]),  # one of two suffices, the last
        ("wblbr", [2]),
        ("wbrbw", [1, 2]),
        ("qbp", []),  # each its own part
        ("nbm", [1]),
        ("mbm", []),
        ("F(wbr)", [1]),
        ("F(brbw)", [1, 2]),
        ("F(bwbr)", [1, 2]),  # the first for the next iteration
        ("F(bwR)", [1]),  # what an iteration writes the next one writes again
        ("F(rb)w", [1]),
        ("F(b)", []),
        ("wF(br)", [1]),
        ("wF(l)br", [1]),  # past a loop
        ("wF(bl)r", [1]),
        ("F(wEbl)r", [1]),
        ("F(wblE)br", [1, 2]),  # whoever leaves may have come by no barrier
        ("F(blEw)br", [1, 2]),
        ("I(w)br", [1]),
        ("wI(b)r", [1]),
        ("wbI(l)r", [1]),
        ("I(wb)r", [1]),
        ("wbI(r)", [1]),
        ("I(bw)I(br)", [2]),
        ("lblbl", []),
    ],
)
def test_what_stays(text: str, kept: list[int]) -> None:
    k = Body()
    k.body(text)
    kernel = k.done()
    numbers = [s.site.number for s in postorder(kernel.body) if isinstance(s, Barrier)]
    after = drop_barriers(kernel, FACTS)
    assert [numbers.index(s.site.number) + 1 for s in postorder(after.body) if isinstance(s, Barrier)] == kept
    assert (after is kernel) == (len(kept) == len(numbers))


def test_one_subgroup_needs_none() -> None:
    k = Body(subgroups=1)
    k.body("wbrbF(wbr)")
    assert not any(isinstance(s, Barrier) for s in postorder(drop_barriers(k.done(), FACTS).body))
