"""Votes: what they mean, how they look, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import convgen as cg
from convgen.ir.build import KernelBuilder
from convgen.ir.error import UserError
from convgen.ir.expr import Lane, Select, const, select
from convgen.ir.interp import interpret
from convgen.ir.program import Kernel
from convgen.ir.text import parse, to_text
from convgen.ir.types import s32
from convgen.ir.uniform import is_uniform
from convgen.ir.votes import AllLanes


def voting(width: int) -> Kernel:
    """Two subgroups: a lane leaves 1 where all of its own found something, else its number."""
    k = KernelBuilder("votes", subgroups=2, width=width)
    given, out = (k.surface(k.buffer(name, s32, 2 * width)) for name in ("given", "out"))
    at = k.subgroup * (4 * width) + Lane() * 4
    found = k.global_load("found", s32, given, at)
    with k.when(AllLanes(found < 5)):
        k.global_store(out, Lane() * 0 + 1, at)
    with k.otherwise():
        k.global_store(out, Lane(), at)
    return k.done()


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "xehpg"])
def test_one_lane_that_disagrees_decides_for_its_subgroup(target: str) -> None:
    width = cg.facts(target).subgroup_size
    kernel, code = voting(width), cg.compile(voting(width), target)
    for odd in (0, width - 1):
        given = np.zeros(2 * width, np.int32)
        given[width + odd] = 5
        memory = {"given": given.view(np.uint8).copy(), "out": np.zeros(8 * width, np.uint8)}
        interpret(kernel, memory)
        wanted = [*[1] * width, *range(width)]
        assert memory["out"].view(np.int32).tolist() == wanted
        assert cg.simulate(code, given=given).tolist() == wanted


def test_a_vote_is_uniform_and_is_read_again() -> None:
    vote = AllLanes(Lane() < 3)
    assert is_uniform(vote, ())
    assert str(vote) == "all(lane < 3)"
    assert parse(to_text(vote)) is vote
    assert isinstance(select(vote, const(1), 0), Select)


def test_lanes_vote_on_bools() -> None:
    with pytest.raises(UserError, match="all: given s32, wanted a bool of each lane"):
        AllLanes(Lane())
