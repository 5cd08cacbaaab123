"""What a target's facts promise of messages, its selection has."""

from __future__ import annotations

from importlib import import_module

import pytest

from convgen import driver
from convgen.backends import target as targets
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Lane, minimum
from convgen.ir.node import CLASSES
from convgen.ir.types import s32
from tests import samples

MESSAGES = [
    c for c in CLASSES.values() if issubclass(c, s.Stmt) and (c.level == "message" or (c.needs and not c.level))
]


def taken(target: str) -> set[type[s.Stmt]]:
    """The messages of a target by its facts."""
    return {c for c in MESSAGES if targets.get(target).facts.takes(c)}


def selected(target: str) -> set[type[s.Stmt]]:
    """The messages that its family's selection has a method for."""
    family = type(targets.get(target)).__module__.rpartition(".")[0]
    return set(import_module(f"{family}.select").MESSAGES) - {s.Barrier}


@pytest.mark.parametrize("target", samples.TARGETS)
def test_what_a_target_takes_is_selected(target: str) -> None:
    assert taken(target) <= selected(target)


@pytest.mark.parametrize("target", ["gfx950", "xehpc", "sm_90a"])
def test_what_is_selected_some_target_takes(target: str) -> None:
    assert selected(target) == taken(target)


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
def test_bounds_of_a_loop_with_something_twice_in_them_stand_in_one_comment(target: str) -> None:
    width = targets.get(target).facts.subgroup_size
    k = KernelBuilder("loop", width=width)
    y, half = k.surface(k.buffer("y", s32, width)), ((k.scalar("n") >> 1) + 5) * 3
    end = minimum(half * half, half + 7)
    with k.loop("i", 0, end, total=Lane() + 0) as loop:
        loop.yields(loop["total"] + loop.var)
    k.global_store(y, loop.result("total"), Lane() * 4)
    assert "\n" in str(end)
    options = driver.Options(disable=("simplify", "place_lets"))
    assert driver.compile(driver.wrap(k, target, {"n": 3}, options)).object
