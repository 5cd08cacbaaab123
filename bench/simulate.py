"""Time that the simulator takes per wave instruction: for one wave, and for many waves together."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
from lib.figures import Figure, best, main

from convgen import driver
from convgen.problem.conv import Conv
from convgen.run import verdict
from convgen.run.code import Code

PEER = "a numpy addition of 64 words"
BUDGET_US = 4.0  #: a wave-instruction, with 64 and more waves
BUDGET_ONE_US = 28.0  #: the same of one wave: numpy's calls, which take as long for 64 lanes as for a thousand

ONE = ("mb1ic64ih4oc16kh3ph1", "tile=16x16x32 waves=1x1 mma=16x16x16 slots=2")
MANY = {
    "res2a 3x3": ("mb1ic64ih56oc64oh56kh3ph1", "tile=64x64x32 waves=2x2 mma=16x16x16 slots=2"),
    "res4b 3x3": ("mb1ic256ih14oc256oh14kh3ph1", None),
    "1x1": ("mb1ic64ih28oc256kh1", "tile=64x64x32 waves=2x2 mma=32x32x8 slots=2"),
}


def compiled(descriptor: str, config: str | None) -> Code:
    return driver.compile(driver.build(Conv.parse(descriptor, dir="FWD_D", dt="f16"), config=config))


def microseconds(code: Code) -> tuple[float, int, int]:
    """(µs a wave-instruction, wave-instructions, waves) of the quickest of three strict runs."""
    waves = sum(prod(launch.grid) * launch.workgroup[0] // 64 for launch in code.record.launches)
    outcomes = [verdict.run(code) for _ in range(3)]
    assert all(outcome.passed for outcome in outcomes)
    executed = sum(outcomes[0].instructions.values())
    return min(outcome.seconds for outcome in outcomes) / executed * 1e6, executed, waves


def measure() -> Iterator[Figure]:
    a, b = np.arange(64, dtype=np.uint32), np.ones(64, np.uint32)
    peer = best(lambda: [a + b for _ in range(1000)]) * 1e3  # of 1000: microseconds
    yield Figure(PEER, peer, "us")
    one, executed, waves = microseconds(compiled(*ONE))
    yield Figure(f"{waves} wave, {executed} instructions", one, "us", PEER, one / peer, BUDGET_ONE_US / peer)
    for name, (descriptor, config) in MANY.items():
        each, executed, waves = microseconds(compiled(descriptor, config))
        label = f"{name}, {waves} waves, {executed} instructions"
        yield Figure(label, each, "us", PEER, each / peer, BUDGET_US / peer)


if __name__ == "__main__":
    main("Simulating", measure)
