"""Memory of a process that compiles one problem after the other: interned nodes and resident bytes."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path

from lib.figures import Figure, main

from convgen import driver
from convgen.ir.node import table_size
from convgen.problem.conv import Conv

COUNT = 500
WARM = 25  #: problems after which modules, tables and small caches are there: the peer of all later figures
STEPS = 5  #: lines printed
PEER = f"after {WARM}"
BUDGET = 1.2  #: a process is to stay flat; caches with a bound still fill

TARGETS = ("gfx942", "xehpc")


def problems() -> Iterator[tuple[Conv, str]]:
    """Small convolutions, no two alike, each with a target."""
    sizes = product(range(5, 64), ("kh3ph1", "kh1"), (32, 48, 64), ("FWD_D", "BWD_D", "BWD_W"), TARGETS)
    for size, kernel, channels, direction, target in sizes:
        yield Conv.parse(f"mb1ic{channels}ih{size}oc32{kernel}", dir=direction, dt="f16"), target


def resident() -> float:
    """MiB of the process; the most so far where the system does not say how many there are now."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def measure(count: int) -> Iterator[Figure]:
    """The most nodes between two compiles, and what is resident, as multiples of what they were when warm."""
    most, warm = 0, (0, 0.0)
    shown = {WARM + (count - WARM) * step // STEPS for step in range(1, STEPS + 1)}
    for done, (problem, target) in enumerate(islice(problems(), count), 1):
        driver.compile(driver.build(problem, target))
        most = max(most, table_size())
        if done == WARM:
            warm = most, resident()
            yield Figure(f"nodes after {done} problems", most, "")
            yield Figure(f"resident after {done} problems", warm[1], "MiB")
        elif done in shown:
            yield Figure(f"nodes after {done} problems", most, "", PEER, most / warm[0], BUDGET)
            yield Figure(f"resident after {done} problems", resident(), "MiB", PEER, resident() / warm[1], BUDGET)


if __name__ == "__main__":
    main("Memory of a process that compiles", measure, COUNT)
