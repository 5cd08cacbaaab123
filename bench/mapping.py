"""Cache traffic of reference mappings on an MI300X: matrix products of 128x256x64 tiles in f16."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from math import prod

import attrs
from rich.console import Console
from rich.table import Table

from convgen.backends.target import get
from convgen.choose.workgroup_orders import LaunchTraffic, best_order
from convgen.ir.layout.order import Order
from convgen.ir.record import as_dict
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.matmul import Matmul

FACTS = get("gfx942").facts
MIB = 2**20
GEMMS = ((4096, 4096, 4096), (4864, 8192, 4160), (8192, 8192, 8192), (16384, 4096, 8192))  #: M, N, K
CONFIG = "tile=128x256x64 waves=2x2 mma=32x32x8 slots=1 acc=a"

#: As others have them, and what was best before
ORDERS = {
    name: Order.parse(text)
    for name, text in {
        "default": "cols",
        "XCC only": "xcc:8+cols",
        "WGM 8 only": "group:8m",
        "Wave G=8": "xcc:8+group:8m",
        "HipKittens C=64, WGM 8": "chunk:8x64+group:8m",
        "Hilbert + XCC": "xcc:8+hilbert",
        "even groups + XCC": "xcc:8+even:8m:snake",
        "even groups + XCC, K flip": "xcc:8+even:8m:snake+flip:304",
    }.items()
}


@attrs.frozen
class Row:
    """One mapping on one product; MiB but for shares."""

    mapping: str
    order: str
    product: str
    requested: float
    fill: float
    hit_rate: float
    memory: float
    closed_fill: float  #: by the closed form
    closed_memory: float
    bound: float
    over_bound: float  #: fill over the wave bound


def rows() -> Iterator[Row]:
    for m, n, k in GEMMS:
        plan = make_plan(Matmul.parse(f"{m}x{k}:{k}x{n}", dt="f16"), Config.parse(CONFIG), FACTS)
        launch = LaunchTraffic.of(plan)
        best = best_order(launch)
        for name, order in (*ORDERS.items(), ("chosen", best), ("chosen, K flip", Order.parse(f"{best}+flip:304"))):
            closed, moved = launch.traffic(order), launch.simulated(order, plan)
            sizes = moved.requested, moved.fill, moved.memory, closed.fill, closed.memory, closed.bound
            requested, fill, memory, closed_fill, closed_memory, bound = (size / MIB for size in sizes)
            yield Row(name, str(order), f"{m}x{n}x{k}", requested, fill, moved.hit_rate, memory, closed_fill,
                      closed_memory, bound, fill / bound)  # fmt: skip


def geometric_mean(values: list[float]) -> float:
    return float(prod(values) ** (1 / len(values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    found = list(rows())
    names = dict.fromkeys(r.mapping for r in found)
    means = {n: geometric_mean([r.over_bound for r in found if r.mapping == n]) for n in names}
    if parser.parse_args().json:
        print(json.dumps({"rows": [as_dict(r) for r in found], "over_bound_geomean": means}, indent=2))
        return
    table = Table("mapping", title="L2 fill MiB (hit rate) memory MiB / the same in closed form", title_justify="left")
    for product in dict.fromkeys(r.product for r in found):
        table.add_column(product, justify="right")
    table.add_column("x bound", justify="right")
    for name, mean in means.items():
        mine = [r for r in found if r.mapping == name]
        cells = (
            f"{r.fill:.0f} ({r.hit_rate:.3f}) {r.memory:.0f} / {r.closed_fill:.0f} {r.closed_memory:.0f}" for r in mine
        )
        table.add_row(name, *cells, f"{mean:.3f}")
    table.add_row("wave bound", *(f"{bound:.0f}" for bound in {r.product: r.bound for r in found}.values()), "1.000")
    Console(width=190).print(table)


if __name__ == "__main__":
    main()
