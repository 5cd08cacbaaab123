"""What is known of the latest kernel is found once, and of none before it."""

from __future__ import annotations

from convgen.ir.build import KernelBuilder
from convgen.ir.expr import const
from convgen.ir.latest import Latest
from convgen.ir.program import Kernel


def kernel(name: str) -> Kernel:
    k = KernelBuilder(name)
    k.let("v", const(1))
    return k.done()


def test_it_is_made_once_for_the_latest_kernel() -> None:
    made: list[str] = []

    def make(k: Kernel) -> str:
        made.append(k.name)
        return k.name

    latest = Latest(make)
    a, b, c = map(kernel, "abc")
    assert [latest(k) for k in (a, a, b, b, a)] == ["a", "a", "b", "b", "a"]
    assert made == ["a", "b", "a"]
    assert latest.handed_on(c, a) is c
    assert (latest(c), latest(c)) == ("a", "a")
    assert made == ["a", "b", "a"]
    assert latest(a) == "a"
    assert made == ["a", "b", "a", "a"]
