"""Subgroups 2k and 2k + 1 that branch together: what has one value in both, and where they would part."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from convgen.backends import target as targets
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, Lane, Uniform, const, eq
from convgen.ir.lockstep import parting
from convgen.ir.types import s32
from convgen.ir.votes import AllLanes
from convgen.kernels.agree import all_agree, one_finds

FACTS = targets.get("xehpg").facts
WIDTH = FACTS.subgroup_size


def kernel(subgroups: int = 4) -> KernelBuilder:
    return KernelBuilder("k", (4, 1, 1), subgroups, WIDTH)


def loaded(k: KernelBuilder, place: Expr) -> Expr:
    return k.global_load("found", s32, k.surface(k.buffer("x", s32, 64)), place * 4)


@pytest.mark.parametrize(
    ("condition", "parts"),
    [
        (lambda k: eq(k.subgroup, 0), True),
        (lambda k: eq(k.subgroup & 1, 0), True),
        (lambda k: eq(k.subgroup >> 1, 0), False),
        (lambda k: eq(k.subgroup // 2, 0), False),
        (lambda k: eq(k.subgroup & 2, 0), False),
        (lambda k: eq(k.subgroup // 3, 0), True),
        (lambda k: eq(k.group[0], 0), False),
        (lambda k: AllLanes(eq(loaded(k, Lane()), 0)), False),  # both look in the same places
        (lambda k: AllLanes(eq(loaded(k, Lane() + k.subgroup * 8), 0)), True),
        (lambda k: eq(Uniform(loaded(k, k.subgroup + 0 * Lane())), 0), True),
        (lambda k: all_agree(k, FACTS, eq(loaded(k, Lane() + k.subgroup * 8), 0)), False),
        (lambda k: one_finds(k, FACTS, eq(k.subgroup, 3)), False),
    ],
)
def test_what_depends_on_the_subgroup_parts(condition: Callable[[KernelBuilder], Expr], parts: bool) -> None:
    k = kernel()
    with k.when(condition(k)):
        k.barrier()
    assert bool([*parting(k.done(), 2)]) == parts


def test_a_loop_carries_what_differs_back_to_its_start() -> None:
    k = kernel()
    with k.loop("i", 0, 8, seen=const(0)) as loop:
        with k.when(eq(loop["seen"], 3)):
            k.barrier()
        loop.yields(loop["seen"] + k.subgroup)
    (found,) = parting(k.done(), 2)
    assert found[1] == eq(loop["seen"], 3)


def test_bounds_of_loops_part_too() -> None:
    k = kernel()
    with k.loop("i", 0, k.subgroup):
        k.barrier()
    assert len([*parting(k.done(), 2)]) == 1


def test_one_subgroup_has_nobody_to_part_with() -> None:
    k = kernel(subgroups=1)
    with k.when(eq(k.subgroup, 0)):
        k.barrier()
    assert not [*parting(k.done(), 2)]
