"""Shared memory of DPAS targets: no two lanes of a message meet in a bank, by the plan and by the simulator."""

from __future__ import annotations

import math

import pytest

from convgen import driver
from convgen.problem.conv import Conv
from convgen.run import execution, reference, verdict

pytestmark = pytest.mark.in_turn(2)

#: Target, problem, direction and config, of tiles in blocks that lanes write by themselves, wherever rows and parts of
#: rows are; most are the defaults of larger layers.
CASES = [
    ("xehpc", "mb1ic64ih8oc64oh8kh3ph1", "BWD_W", "64x192x32 waves=2x4 mma=16x8x16 slots=2 taps=fused"),
    ("xehpc", "mb1ic256ih4oc128oh4kh3ph1", "BWD_W", "256x128x32 waves=4x4 mma=16x8x16 slots=2 taps=fused subtiles=8"),
    ("xehpc", "mb1ic64ih8oc192oh8kh3ph1", "BWD_W", "192x192x16 waves=4x4 mma=16x8x16 slots=2 taps=fused"),
    ("xehpc", "mb1ic32ih14oc320kh1", "BWD_D", "32x64x64 waves=2x4 mma=16x8x16 slots=2 taps=split"),
    ("xehpg", "mb1ic64ih8oc32oh8kh3ph1", "BWD_D", "256x64x144 waves=4x4 mma=16x8x16 slots=2 taps=resident subtiles=4"),
    ("xehpg", "mb1ic64ih8oc64oh8kh3ph1", "BWD_W", "64x128x32 waves=4x4 mma=16x8x16 slots=2 taps=fused"),
]


@pytest.mark.parametrize(("target", "problem", "direction", "config"), CASES)
def test_no_message_meets_a_bank_twice(target: str, problem: str, direction: str, config: str) -> None:
    made = Conv.parse(problem, dir=direction, dt="f16", stag="axb", wtag="axb", dtag="axb")
    built = driver.build(made, target, f"tile={config}")
    assert built.plan is not None
    assert [each.conflicts for part in built.plan.parts for each in (part.of_n, part.of_m)] == [0, 0]
    code = driver.compile(built)
    outcome = verdict.run(code, groups=2)
    assert outcome.passed, outcome
    ends = [sorted({0, math.prod(launch.grid) - 1}) for launch in code.record.launches]
    _, report = execution.execute(code.record, code.object, reference.fills(made, 0), ends)
    assert report.counters["slm_write_bytes"] > 0
    assert report.counters.get("slm_conflict_cycles", 0) == 0
