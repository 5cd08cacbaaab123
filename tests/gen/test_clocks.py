"""What the chooser counts of launches whose workgroups differ: stride phases of data gradients in one grid."""

from __future__ import annotations

import attrs
import pytest

from convgen.backends.target import get
from convgen.plan.choose import clocks_of
from convgen.plan.clocks import Clocks
from convgen.plan.config import Config
from convgen.problem.conv import Conv

LINE = "mb64ic256ih19oc512oh10kh3sh2ph1"  #: phases of 4, 2, 2 and 1 taps
TAGS = {"stag": "axb", "wtag": "axb", "dtag": "axb"}
CONFIG = "tile={} waves=2x2 mma=32x32x8 slots=2 stages=2 taps=split acc=a grids=merged"
DEEPEST = 4 * 512 // 32  # blocks of K


def counted(tile: str, units: int) -> Clocks:
    facts = attrs.evolve(get("gfx90a").facts, compute_units=units)
    problem = Conv.parse(LINE, dir="BWD_D", dt="f16", **TAGS)
    found = clocks_of(problem, Config.parse(CONFIG.format(tile)), facts)
    assert found is not None
    return found


def test_a_workgroup_a_unit_takes_as_long_as_the_deepest() -> None:
    assert counted("128x128x32", 1000).blocks == DEEPEST


def test_many_workgroups_a_unit_take_as_long_as_the_average() -> None:
    """Of 82, 90, 90 and 100 tiles: 9 x 9, 9 x 10, 10 x 9 and 10 x 10 pixels an image, two over 256 channels."""
    mean = (82 * 4 + 90 * 2 + 90 * 2 + 100) / 362 / 4 * DEEPEST
    found = counted("128x128x32", 3)
    assert found.blocks == pytest.approx(mean, rel=0.02)
    assert found.rounds * found.together + found.left == -(-362 // 3)


def test_a_unit_that_gets_two_has_the_first_and_one_that_follows() -> None:
    """121 tiles on 110 units: the first 27 are the deepest, and who ends first takes one more."""
    found = counted("192x256x32", 110)
    assert (found.rounds, found.together, found.left) == (2, 1, 0)
    assert found.blocks == DEEPEST / 2
