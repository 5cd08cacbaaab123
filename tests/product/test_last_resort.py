"""The last candidate fits every problem, on every target: also where each element is loaded by itself."""

from __future__ import annotations

from itertools import product

import pytest

from convgen import driver
from convgen.backends import target
from convgen.choose import choose
from convgen.problem.conv import Conv
from convgen.run import verdict
from tests import samples
from tests.strategies import always

pytestmark = pytest.mark.in_turn(6)

TARGETS = samples.SIMULATED
TYPES, DIRECTIONS = ("f16", "f32", "s8"), ("FWD_B", "BWD_D", "BWD_WB")

#: Each target meets each type and each direction in every run.
CASES = always(
    product(TARGETS, TYPES, DIRECTIONS),
    lambda n, case: (TARGETS.index(case[0]) + TYPES.index(case[1]) + DIRECTIONS.index(case[2])) % 3 == 0,
)


@pytest.mark.parametrize(("name", "dt", "direction"), CASES)
def test_the_last_candidate_fits(name: str, dt: str, direction: str) -> None:
    problem = Conv.parse("mb2ic19ih9oc21oh5kh3sh2ph1", dir=direction, dt=dt)
    last = choose.candidates(problem, target.get(name).facts)[-1].config
    code = driver.compile(driver.build(problem, name, str(last)))
    assert verdict.run(code, groups=6).passed
