"""Which loops become straight-line code, and what the copies carry from one to the next."""

from __future__ import annotations

import pytest

from convgen.ir.build import KernelBuilder
from convgen.ir.expr import const
from convgen.ir.mutate import postorder
from convgen.ir.program import Kernel
from convgen.ir.stmt import For, block
from convgen.ir.types import u32
from convgen.passes.unroll import unroll
from tests.passes.texts import statements


def looping(begin: int, end: int, lets: int = 1) -> Kernel:
    k = KernelBuilder("k")
    n = k.scalar("n")
    with k.loop("i", begin, end):
        for number in range(lets):
            k.let(f"v{number}", n + number)
    return k.done()


@pytest.mark.parametrize(
    ("begin", "end", "lets", "unrolled"),
    [
        (0, 1, 1, True),
        (0, 4, 1, True),
        (0, 5, 1, False),
        (3, 7, 1, True),
        (3, 8, 1, False),
        (0, 0, 1, False),
        (4, 0, 1, False),
        (0, 4, 16, True),  # 64 statements
        (0, 4, 17, False),
        (0, 2, 32, True),
        (0, 2, 33, False),
    ],
)
def test_few_trips_of_few_statements(begin: int, end: int, lets: int, unrolled: bool) -> None:
    kernel = looping(begin, end, lets)
    after = unroll(kernel)
    assert any(isinstance(s, For) for s in postorder(after.body)) is not unrolled
    if unrolled:
        assert len(statements(after)) == (end - begin) * lets


def test_copies_count_and_carry() -> None:
    k = KernelBuilder("k")
    n = k.scalar("n")
    with k.loop("i", 2, 4, a=n, b=const(7)) as loop:
        v = k.let("v", loop["a"] * loop.var)
        loop.yields(loop["b"], v + loop["a"])
    k.let("last", loop.result("a") + loop.result("b"))
    assert statements(unroll(k.done())) == [
        "v.1: s32 = n * 2",
        "v.2: s32 = 7 * 3",
        "a: s32 = v.1 + n",
        "b: s32 = v.2 + 7",
        "last: s32 = a + b",
    ]


def test_loops_within_loops_and_arms() -> None:
    k = KernelBuilder("k")
    n = k.scalar("n")
    with k.loop("i", 0, n):
        with k.loop("j", 0, 2) as inner:
            k.let("v", n + inner.var)
        with k.when(n < 3), k.loop("l", 0, 1):
            k.let("w", n)
    assert statements(unroll(k.done())) == [
        "for i in [0, n):",
        "  v.1: s32 = n + 0",
        "  v.2: s32 = n + 1",
        "  if n < 3:",
        "    w: s32 = n",
    ]


def test_an_exit_keeps_its_loop() -> None:
    k = KernelBuilder("k")
    n = k.scalar("n")
    with k.loop("i", 0, 2):
        k.exit_if(n < 3)
    kernel = k.done()
    assert str(unroll(kernel)) == str(kernel)


def test_a_counter_keeps_its_type() -> None:
    k = KernelBuilder("k")
    counter = k.var("i", u32)
    with k.suite() as body:
        k.let("next", counter + 1)
    k.add(For(counter, const(1, u32), const(3, u32), (), (), block(*body), (), (), "i", False))
    assert statements(unroll(k.done())) == ["next.1: u32 = 1_u32 + 1", "next.2: u32 = 2_u32 + 1"]


def test_nothing_to_do_gives_the_kernel_itself() -> None:
    k = KernelBuilder("k")
    k.let("v", k.scalar("n") + 1)
    kernel = k.done()
    assert unroll(kernel) is kernel
