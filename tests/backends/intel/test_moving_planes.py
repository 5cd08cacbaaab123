"""Planes that move in loops: what the loop does not change of where they begin is added up before it."""

from __future__ import annotations

import re

from convgen.backends import target as targets
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import AddressOf, Expr, Lane, const
from convgen.ir.layout.memory import Plane, Rectangle, RectangleOrder
from convgen.ir.program import Kernel
from convgen.ir.types import bool_, u32, u64, vector
from convgen.ir.verify import verify
from tests.backends.intel.random_kernels import assert_simulates

ROWS, PITCH, IMAGES, LANES = 8, 64, 6, 16
IMAGE = ROWS * PITCH


def kernel(*, in_loop: bool) -> Kernel:
    """Rectangles of images `steady` and further on, one after the other, are stored as they are."""
    k = KernelBuilder("moving", width=LANES)
    given, out = k.buffer("given", u32, IMAGES * IMAGE // 4), k.buffer("out", u32, 4 * IMAGE // 4)
    plane = Plane(given, 0, PITCH, ROWS, PITCH)
    shape = Rectangle(ROWS, LANES, RectangleOrder.ROWS)

    def moved(steady: Expr, n: Expr) -> None:
        v = k.var("v", vector(u32, ROWS))
        k.add(s.PlaneLoad(v, plane, steady + n * IMAGE, shape, const(0), const(0), k.site()))
        at = AddressOf(out) + ((n * LANES + Lane()) * (4 * ROWS)).to(u64)
        k.add(s.FlatStore(out, at, const(True, bool_), v, k.site()))

    steady = k.let("steady", (k.scalar("n") & 1) * IMAGE + IMAGE)
    if in_loop:
        with k.loop("i", 0, 4) as loop:
            moved(steady, loop.var)
            loop.yields()
    else:
        with k.when(steady > 0):
            moved(steady, steady >> 10)
    return verify(k.done(), "message")


def sums(text: str, body: str) -> int:
    """Sums of 64 bits in a block from its label on."""
    _, _, behind = text.partition(f"\n{body}")
    block = re.split(r"\n\w+:", behind)[0]
    return len(re.findall(r"add \(1\|M0\) +\S+:q", block))


def test_a_pointer_with_what_stays_is_made_once() -> None:
    """One sum of 64 bits a turn, that of the payload, and none of 32 bits before it."""
    k = kernel(in_loop=True)
    assert_simulates("xehpc", k)
    text = targets.get("xehpc").emit(k).text
    assert sums(text, "i") == 1
    loop = re.split(r"\n\w+:", text.partition("\ni")[2])[0]
    assert not re.search(r"add \(1\|M0\) +\S+:d ", loop.partition("load_block2d")[0])


def test_outside_of_loops_nothing_is_made_before() -> None:
    k = kernel(in_loop=False)
    assert_simulates("xehpc", k)
    assert len(re.findall(r"add \(1\|M0\) +\S+:q", targets.get("xehpc").emit(k).text)) == 1
