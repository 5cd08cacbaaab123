"""Simplification pays: on the ResNet layers it adds no operation anywhere, and leaves the K loop what belongs there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from convgen import driver
from convgen.ir.expr import Const, Div, Expr, Lane, Mma, Mod, Pack, Slice, Splat, Surface, Var
from convgen.ir.mutate import postorder
from convgen.ir.node import Node
from convgen.ir.program import Kernel
from convgen.ir.simplify.sums import Home, Homes
from convgen.ir.stmt import For, Load, Stmt
from convgen.ir.types import VectorType
from convgen.ir.uniform import Uniformity, varying
from convgen.passes import pipeline
from convgen.problem.conv import Conv
from tests.product.problems import listed

RESNET = [p for p in listed() if "resnet_50" in p.descriptor]

FREE = (Const, Var, Lane, Mma, Pack, Slice, Splat, Surface)  #: no arithmetic


@cache
def stages(problem: Conv) -> dict[str, tuple[Kernel, Kernel]]:
    """The kernel before and after each pass, but for sums that are made again where padding spoils them.

    K is in one slice: others begin anywhere within a tap.
    """
    chosen = re.sub(r" (slices|sum)=\S+", "", driver.compile(driver.build(problem)).config)
    program = driver.build(problem, config=f"{chosen} padding=zeros")
    found: dict[str, tuple[Kernel, Kernel]] = {}

    def observe(p: pipeline.Pass, before: Kernel, after: Kernel, seconds: float) -> None:
        found[p.name] = before, after

    for kernel in program.ir.kernels:
        pipeline.run(kernel, program.target.facts, observe=observe)
    return found


def arithmetic(root: Node) -> Iterator[Expr]:
    """The operations on integers and bools under `root`, each once."""
    for n in postorder(root):
        if isinstance(n, Expr) and not isinstance(n, FREE) and not isinstance(n.type, VectorType):
            yield n


def loop_homes(kernel: Kernel) -> Homes:
    """Where each variable of a kernel lives, by the loops around its binder."""
    homes: dict[Var, Home] = {}
    moving = varying(kernel)

    def note(s: Stmt, depth: int) -> None:
        if isinstance(s, For):
            homes.update((v, Home(depth + 1, v in moving)) for v in (s.var, *s.carried))
            homes.update((v, Home(depth, v in moving)) for v in s.results)
            note(s.body, depth + 1)
            return
        if isinstance(bound := getattr(s, "var", None), Var):
            in_loop = isinstance(s, Load) or any(homes.get(v, Home()).depth == depth for v in used(s))
            homes[bound] = Home(depth if in_loop else 0, bound in moving)
        for inner in s.children():
            if isinstance(inner, Stmt):
                note(inner, depth)

    note(kernel.body, 0)
    return Homes(homes)


def used(s: Stmt) -> list[Var]:
    return [v for c in s.children() if isinstance(c, Expr) for v in postorder(c) if isinstance(v, Var)][1:]


def cost(kernel: Kernel) -> Counter[Home]:
    """How many operations have each home."""
    homes = loop_homes(kernel)
    return Counter(homes(e) for e in arithmetic(kernel.body))


@pytest.mark.parametrize("problem", RESNET, ids=lambda p: p.descriptor)
def test_no_home_gets_more_operations(problem: Conv) -> None:
    before, after = map(cost, stages(problem)["simplify"])
    assert sum(after.values()) < sum(before.values())
    for home, count in after.items():
        by_lanes = home._replace(varying=True)
        moved = before[by_lanes] - after[by_lanes]  # operations of lanes may become uniform ones, never the reverse
        allowed = before[home] + (0 if home.varying else moved)
        assert count <= allowed, f"{count} operations at {home}, {before[home]} before"


@pytest.mark.parametrize("problem", RESNET, ids=lambda p: p.descriptor)
def test_the_loop_divides_by_blocks_and_taps_only(problem: Conv) -> None:
    """What is left of the decode of K: block of the tap and tap of the row, uniform; channels and pixels cancel.

    In rounds of six blocks one keeps the remainder by the channels, which is that of fours.
    """
    kernel = stages(problem)["simplify"][1]
    uniform = Uniformity(varying(kernel))
    for loop in loops(kernel):
        moving = [e for e in arithmetic(loop.body) if isinstance(e, (Div, Mod)) and loop.var in postorder(e)]
        assert len(moving) <= 4 * kernel.shared[0].slots, list(map(str, moving))  # one decode a slot
        divisors = [e.b.bits for e in moving if uniform(e) and isinstance(e.b, Const)]
        assert len(divisors) == len(moving)
        assert all(divisor < 8 for divisor in divisors) or sorted(divisors)[-2:] <= [7, problem.ic]


@pytest.mark.parametrize("problem", RESNET, ids=lambda p: p.descriptor)
def test_the_final_loop_holds_no_division_and_no_invariant_vector_work(problem: Conv) -> None:
    kernel = list(stages(problem).values())[-1][1]
    uniform = Uniformity(varying(kernel))
    for loop in loops(kernel):
        bound = {v for s in postorder(loop) if isinstance(s, Stmt) for v in binders(s)}
        for e in arithmetic(loop.body):
            assert not isinstance(e, (Div, Mod))
            assert uniform(e) or any(v in bound for v in postorder(e)), f"{e} does not depend on the loop"


def binders(s: Stmt) -> tuple[Var, ...]:
    if isinstance(s, For):
        return (s.var, *s.carried, *s.results)
    bound = getattr(s, "var", None)
    return (bound,) if isinstance(bound, Var) else ()


def loops(kernel: Kernel) -> list[For]:
    return [s for s in postorder(kernel.body) if isinstance(s, For)]


def test_resnet_is_there() -> None:
    assert len(RESNET) >= 6
    assert any(loops(stages(p)["simplify"][1]) for p in RESNET)
