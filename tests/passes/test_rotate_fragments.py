"""Reads at a loop's head go to the end of the iteration before: what moves, what is carried, and what stays."""

from __future__ import annotations

import pytest

from convgen.backends.target import get
from convgen.ir.build import KernelBuilder
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.program import Kernel
from convgen.ir.types import f32
from convgen.passes.rotate_fragments import rotate_fragments

ALL = Fragment(("row", "col"), (Digit("col", 16, Space.LANE, 1), Digit("row", 2, Space.REGISTER, 1)))
TURNED = Fragment(("row", "col"), (Digit("row", 2, Space.LANE, 1), Digit("col", 16, Space.REGISTER, 1)))


def kernel(head: str, follower: str, leaves: bool = False) -> Kernel:
    """A loop with that head, and behind it another: b a barrier, a and c reads of slot 0 and 1, t of another layout."""
    k = KernelBuilder("k", subgroups=2, width=16)
    tile = k.shared("tile", f32, 2, 16, slots=2)
    n = k.scalar("n")

    def reads(letters: str) -> list[object]:
        found: list[object] = []
        for c in letters:
            if c == "b":
                k.barrier()
            else:
                found.append(k.load_shared(c, tile, TURNED if c == "t" else ALL, int(c == "c")))
        return found

    with k.loop("i", 0, n, total=n) as loop:
        values = reads(head)
        k.let("used", loop["total"] + 1)
        for v in values:
            k.let("more", v + v)  # type: ignore[operator]
        if leaves:
            k.exit_if(n < 3, n)
        loop.yields(loop["total"] + loop.var)
    for v in reads(follower):
        k.let("last", v + v)  # type: ignore[operator]
    k.let("end", loop.result("total"))
    return k.done()


@pytest.mark.parametrize(
    ("head", "follower", "rotates"),
    [
        ("a", "a", True),
        ("ba", "ba", True),
        ("ba", "a", False),
        ("a", "ba", False),
        ("a", "c", False),
        ("a", "t", False),
        ("ac", "a", False),
        ("b", "b", False),
        ("", "", False),
        ("aba", "aba", True),
    ],
)
def test_heads_that_are_alike(head: str, follower: str, rotates: bool) -> None:
    given = kernel(head, follower)
    assert (str(rotate_fragments(given, get("gfx942").facts)) != str(given)) is rotates


def test_an_exit_keeps_the_loop_as_it_is() -> None:
    given = kernel("ba", "ba", leaves=True)
    assert str(rotate_fragments(given, get("gfx942").facts)) == str(given)
