"""Bytes that each die reads under each mapping, from the addresses of simulated accesses."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

import convgen as cg
from convgen.backends.amdgpu.sim.simulate import simulate
from convgen.backends.target import get
from convgen.choose.workgroup_orders import LaunchTraffic
from convgen.ir.layout.order import Order
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.matmul import Matmul

LINE = 128  #: bytes of a line of L2 (CDNA3 white paper)
TARGET, PRODUCT = "gfx942", "2048x64:64x1024"
CONFIG = "tile=64x64x32 waves=2x2 mma=32x32x8 slots=2"
ORDERS = ("rows", "cols", "xcc:8", "group:8m", "xcc:8+group:8m", "xcc:8+even:5n", "xcc:8+hilbert", "zorder:8x8")


def lines_read(order: str) -> tuple[int, list[set[tuple[str, int]]]]:
    """(stores of result bytes, lines that each die reads) of a run of the kernel in an order."""
    code = cg.compile(cg.build(Matmul.parse(PRODUCT, dt="f16"), target=TARGET, config=f"{CONFIG} map={order}"))
    dies, written = get(TARGET).facts.caches.dies, 0
    read: dict[int, set[tuple[str, int]]] = defaultdict(set)

    def observe(
        kind: str, buffer: str, groups: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], size: int
    ) -> None:
        nonlocal written
        if kind == "store":
            written += size * len(offsets)
            return
        for die, line in np.unique(np.stack((groups % dies, offsets // LINE)), axis=1).T.tolist():
            read[die].add((buffer, line))

    memory = {name: np.zeros(buffer.tensor.bytes, np.uint8) for name, buffer in code.record.buffers.items()}
    assert code.object is not None
    report = simulate(code.object, code.record.requests(None), memory, observe=observe)
    assert not report.findings, str(report.findings[0])
    return written, [read[die] for die in range(dies)]


def rows() -> Iterator[dict[str, str | float]]:
    facts, problem = get(TARGET).facts, Matmul.parse(PRODUCT, dt="f16")
    launch = LaunchTraffic.of(make_plan(problem, Config.parse(CONFIG), facts))
    for order in ORDERS:
        written, read = lines_read(order)
        yield {
            "order": order,
            "KiB read by all dies, traced": sum(map(len, read)) * LINE / 1024,
            "modelled": launch.traffic(Order.parse(order)).fill / 1024,
            "by the die with most": max(map(len, read)) * LINE / 1024,
            "result KiB": written / 1024,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    found = list(rows())
    if parser.parse_args().json:
        print(json.dumps(found, indent=2))
        return
    table = Table(*found[0], title=f"{PRODUCT}, {CONFIG}")
    for row in found:
        table.add_row(*(f"{v:.0f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
