"""The last candidate fits every problem, on every target: also where each element is loaded by itself."""

from __future__ import annotations

import pytest

from convgen import choose, driver, verify
from convgen.backends import target
from convgen.problem import Conv

CASES = [(name, dt) for name in target.names() if name != "xe2" for dt in ("f16", "f32", "s8")]


@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_WB"])
@pytest.mark.parametrize(("name", "dt"), CASES)
def test_the_last_candidate_fits(name: str, dt: str, direction: str) -> None:
    problem = Conv.parse("mb2ic19ih9oc21oh5kh3sh2ph1", dir=direction, dt=dt)
    last = choose.candidates(problem, target.get(name).facts)[-1].config
    code = driver.compile(driver.build(problem, name, str(last)))
    assert verify.run(code, groups=6).passed
