from __future__ import annotations

from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Lane, Uniform, const, select, var
from convgen.ir.types import f32, s32
from convgen.ir.uniform import Uniformity, is_uniform, uniformity, varying


def test_only_lanes_and_memory_diverge() -> None:
    k = KernelBuilder("k", subgroups=4)
    x = k.surface(k.buffer("x", f32, 64))
    shared = k.shared("t", s32, 64, 1, chunk=4)
    n = k.scalar("n")
    base = k.let("base", k.group[0] * 64 + k.subgroup * n)
    offset = k.let("offset", base + Lane())
    loaded = k.global_load("loaded", f32, x, 0)
    read = k.shared_read("read", s32, shared, 0)
    agreed = k.let("agreed", Uniform(read) + base)
    picked = k.let("picked", select(Lane() < 3, n, n))
    found = varying(k.done())
    assert [v for v in (n, base, offset, loaded, read, agreed, picked) if v in found] == [offset, loaded, read, picked]
    assert is_uniform(base * 2 + Uniform(Lane()), found)
    assert not is_uniform(base * 2 + offset, found)


def test_a_let_that_is_told_of_varies_as_its_value_does() -> None:
    uniform = Uniformity(())
    same, apart = var("same"), var("apart")
    uniform.let(same, const(3))
    uniform.let(apart, Lane() + same)
    assert (uniform(same), uniform(apart), uniform(apart + 1)) == (True, False, False)


def test_loops_carry_divergence_back_to_their_start() -> None:
    """a takes b's value, b takes c's, c takes the lane's: three iterations later all vary."""
    k = KernelBuilder("k")
    zero = const(0)
    with k.loop("i", 0, 8, a=zero, b=zero, c=zero, d=zero) as loop:
        first = k.let("first", loop["a"] + 1)
        loop.yields(loop["b"], loop["c"], Lane() + loop.var, loop["d"] + 1)
    found = varying(k.done())
    names = [*(loop[n] for n in "abcd"), first, loop.var, *(loop.result(n) for n in "abcd")]
    assert [v in found for v in names] == [True, True, True, False, True, False, True, True, True, False]


def test_what_varies_still_does_when_more_has_been_found_to_vary() -> None:
    k = KernelBuilder("k")
    with k.loop("i", 0, 8, a=const(0), b=const(0)) as loop:
        k.let("first", loop["a"] + 1)
        loop.yields(Lane() + loop.var, loop["b"] + 1)
    uniform = uniformity(k.done())
    assert not uniform(Lane() + loop.var)
    assert uniform(loop["b"] + 1)


def test_an_exit_may_make_results_diverge() -> None:
    """And with them what the loop carries, for a result has the register of its carried variable."""
    k = KernelBuilder("k")
    with k.loop("i", 0, 8, a=const(0), b=const(0)) as outer:
        with k.loop("j", 0, 8, c=const(0)) as inner:
            k.exit_if(inner.var > 3, Lane())
            inner.yields(inner["c"])
        k.exit_if(outer.var > 3, inner.result("c"), const(1))
        outer.yields(outer["a"], outer["b"])
    found = varying(k.done())
    names = inner["c"], inner.result("c"), outer["a"], outer.result("a"), outer.result("b")
    assert [v in found for v in names] == [True, True, True, True, False]
