"""Random kernels of lets, loops, branches and exits compute the same before and after, in every workgroup."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, Lane, Select, Var, const, eq, minimum, select, var
from convgen.ir.interp import interpret
from convgen.ir.mutate import postorder, statements
from convgen.ir.program import Kernel
from convgen.ir.simplify.simplify import simplify
from convgen.ir.simplify.variable_ranges import Scope, VarRanges
from convgen.ir.stmt import For, GlobalStore, block
from convgen.ir.types import s32, u32
from convgen.ir.verify import verify
from tests.ir.expressions import Draw, Grower
from tests.strategies import FIXED, SWEEP

WIDTH = 8
STATEMENTS = 12
PLACES = 16  #: elements a lane that one store may reach, so that iterations do not all overwrite each other


class KernelGrower:
    """Grows the statements of a kernel. Conditions and bounds use uniform variables only."""

    def __init__(self, draw: Draw) -> None:
        self.draw, self.left, self.stores = draw, STATEMENTS, 0
        self.k = KernelBuilder("k", grid=(5, 2, 1), width=WIDTH)
        self.out = self.k.buffer("out", s32, 10 * STATEMENTS * PLACES * WIDTH * 4)
        self.window = self.k.surface(self.out)
        self.uniform: list[Var] = [*self.k.group[:2], self.k.scalar("n")]
        self.loops: list[Var] = []
        self.conditions: list[Expr] = []  # of branches and exits: what is stored asks for them again

    def grower(self, *more: Expr) -> Grower:
        grower = Grower(self.draw, s32, self.uniform)
        grower.made.extend(more)
        return grower

    def number(self, most: int) -> int:
        return self.draw(st.integers(0, most))

    def suite(self, depth: int) -> None:
        """A few statements; what they bind is visible until the suite ends."""
        visible, known = len(self.uniform), len(self.conditions)
        for _ in range(1 + self.number(3)):
            if self.left:
                self.left -= 1
                self.statement(depth)
        del self.uniform[visible:], self.conditions[known:]

    def statement(self, depth: int) -> None:
        match self.number(6 if depth < 3 else 3):
            case 0 | 1:
                self.uniform.append(self.k.let("t", self.grower().value(2)))
            case 2 | 3:
                self.store()
            case 4:
                with self.k.when(self.condition()):
                    self.suite(depth + 1)
            case _:
                self.loop(depth)

    def condition(self) -> Expr:
        v = self.draw(st.sampled_from(self.uniform))
        match self.number(3):
            case 0:
                new = eq(v % const(1 + self.number(3)), self.number(2))
            case 1:
                new = v < const(self.number(4))
            case 2:
                new = self.grower().truth(0) & (v >= const(self.number(3)))
            case _:
                new = self.grower().truth(1)
        self.conditions.append(new)
        return new

    def store(self) -> None:
        varying = Lane() + self.grower().value(1)
        value = self.grower(varying, Lane()).value(2) + varying
        if self.conditions:
            again = self.draw(st.sampled_from(self.conditions))
            v = self.draw(st.sampled_from(self.uniform))
            value = select(again, value, v % 3) + minimum(v, self.number(3)) + v // 4
        place = (self.loops[-1] & (PLACES - 1)) if self.loops else const(0)
        group = self.k.group[0] * 2 + self.k.group[1]
        row = (group * STATEMENTS + self.stores) * PLACES + place
        self.stores += 1
        self.k.global_store(self.window, value, (row * WIDTH + Lane()) * 4)

    def loop(self, depth: int) -> None:
        begin = const(self.number(2)) if self.number(1) else self.draw(st.sampled_from(self.uniform[:2]))
        with self.k.loop("i", begin, begin + self.number(3), c=self.grower().value(1)) as loop:
            visible, known = len(self.uniform), len(self.conditions)
            self.uniform += [loop.var, loop["c"]]
            self.loops.append(loop.var)
            self.suite(depth + 1)
            if self.number(3) == 0:
                self.k.exit_if(self.condition(), self.grower().value(1))
                self.suite(depth + 1)
            loop.yields(self.grower(loop["c"] + 1, (loop["c"] + 1) % 3).value(1))
            self.loops.pop()
            del self.uniform[visible:], self.conditions[known:]
        self.uniform.append(loop.result("c"))


@st.composite
def kernels(draw: Draw) -> Kernel:
    grower = KernelGrower(draw)
    grower.suite(0)
    grower.store()
    return grower.k.done()


def results(kernel: Kernel, n: int) -> npt.NDArray[np.uint8]:
    memory = {"out": np.zeros(next(p.bytes for p in kernel.params if hasattr(p, "bytes")), np.uint8)}
    interpret(kernel, memory, {"n": n})
    return memory["out"]


def check(kernel: Kernel) -> None:
    new = verify(simplify(verify(kernel)))
    assert simplify(new) is new
    for n in (-3, 0, 7):
        assert np.array_equal(results(new, n), results(kernel, n))


def test_constants_are_not_carried() -> None:
    k = KernelBuilder("k", width=WIDTH)
    surface = k.surface(k.buffer("out", s32, 8 * WIDTH * 4))
    with k.loop("i", 0, 8, same=const(3), other=const(3)) as loop:
        k.global_store(surface, loop["same"] + loop["other"], (loop.var * WIDTH + Lane()) * 4)
        loop.yields(const(3), loop["other"] + 1)
    k.global_store(surface, loop.result("same") + 4, Lane() * 4)
    kernel = k.done()
    new = simplify(kernel)
    (found,) = (s for s in postorder(new) if isinstance(s, For))
    assert len(found.carried) == len(found.inits) == len(found.yields) == len(found.results) == 1
    assert np.array_equal(results(new, 0), results(kernel, 0))


@settings(FIXED, max_examples=30)
@given(kernels())
def test_kernels_compute_the_same(kernel: Kernel) -> None:
    check(kernel)


@settings(FIXED, max_examples=30)
@given(kernels())
def test_ranges_are_the_same_in_whatever_order_they_are_asked_for(kernel: Kernel) -> None:
    """Those that are found one by one are those of a walk through the whole kernel."""
    walked = dict(VarRanges(kernel))
    for order in (list(walked), list(reversed(walked))):
        one_by_one = VarRanges(kernel)
        assert {v: one_by_one.get(v) for v in order} == walked
    assert all(VarRanges(kernel)[v] == found for v, found in walked.items())
    assert "t" not in VarRanges(kernel)
    assert kernel.width not in VarRanges(kernel)


def test_a_variable_that_is_bound_twice_has_the_hull_of_both() -> None:
    scope, v = Scope(), var("v")
    for bound, held in (((0, 3), (0, 3)), ((5, 9), (0, 9)), ((1, 4), (0, 9))):
        scope.bind(v, bound)
        assert scope.bounds(v + 1) == (held[0] + 1, held[1] + 1)


def test_loops_in_both_arms_may_carry_one_variable() -> None:
    k = KernelBuilder("k")
    v, n, results = k.var("v"), k.scalar("n"), (k.var("r"),)

    def looping(next_value: Expr) -> None:
        k.add(For(k.var("i"), const(0), const(4), (v,), (const(0),), block(), (next_value,), results, "i", False))

    with k.when(n < 3):
        looping(v & 1)
    with k.otherwise():
        looping(v * 3 + 1)
    low, high = VarRanges(k.done())[v]
    assert low <= 0
    assert high >= 13  # 0, 1, 4, 13


def test_bounds_of_a_loop_that_may_not_run_are_not_in_order_behind_it() -> None:
    k = KernelBuilder("k")
    first, end = k.size("first", 10, least=0), k.size("end", 5, least=0)
    out = k.surface(k.buffer("out", s32, 64))
    with k.loop("i", first, end) as loop:
        k.global_store(out, loop.var, Lane() * 4)
    k.global_store(out, select(end - first < -5, const(1), const(2)), Lane() * 4)
    _, behind = (s.value for s in statements(simplify(k.done()).body) if isinstance(s, GlobalStore))
    assert isinstance(behind, Select)


def test_a_variable_that_is_bound_twice_has_no_definition() -> None:
    t, v = var("t", u32), var("v", u32)
    scope = Scope(ranges={t: (0, 9)})
    remainder = minimum(t, v)
    scope.let(v, t - 5)
    assert scope.bounds(remainder) == (0, 4)
    scope.let(v, const(7, u32))
    assert scope.bounds(remainder) == (0, 9)


@pytest.mark.sweep
@settings(SWEEP, max_examples=1000)
@given(kernels())
def test_many_kernels_compute_the_same(kernel: Kernel) -> None:
    check(kernel)
