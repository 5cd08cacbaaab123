"""What reference mappings read through the caches of an MI300X: matrix products of 128x256x64 tiles in f16."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from math import prod

import attrs
from lib.mappings import ELEM, GEMMS, REFERENCES, TILE, backwards
from rich.console import Console
from rich.table import Table

from convgen.backends.target import get
from convgen.plan.lru import Steps, simulate
from convgen.plan.traffic import Operands, count
from convgen.plan.views import products
from convgen.problem.matmul import Matmul

FACTS = get("gfx942").facts
MIB = 2**20


@attrs.frozen
class Row:
    """One mapping on one product; MiB but for shares."""

    mapping: str
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
    in_flight = FACTS.compute_units // FACTS.caches.xcds
    steps = {"rows": TILE[0] * TILE[2] * ELEM, "columns": TILE[1] * TILE[2] * ELEM, "depth": TILE[2] * ELEM}
    for m, n, k in GEMMS:
        (part,) = products(Matmul.parse(f"{m}x{k}:{k}x{n}", dt="f16"), 1)
        operands = Operands.of(part, (TILE[0], TILE[1]), FACTS.caches)
        shape = -(-m // TILE[0]), -(-n // TILE[1])
        for name, mapping in REFERENCES.items():
            tiles, flip = mapping(*shape), backwards(name, prod(shape), FACTS.caches.xcds, in_flight)
            closed = count(tiles, operands, FACTS.caches, FACTS.compute_units, k_reversed=flip)
            moved = simulate(tiles, Steps(count=-(-k // TILE[2]), **steps), FACTS.caches, FACTS.compute_units,
                             k_reversed=flip)  # fmt: skip
            sizes = moved.requested, moved.fill, moved.memory, closed.fill, closed.memory, closed.bound
            requested, fill, memory, closed_fill, closed_memory, bound = (size / MIB for size in sizes)
            yield Row(name, f"{m}x{n}x{k}", requested, fill, moved.hit_rate, memory, closed_fill, closed_memory, bound,
                      fill / bound)  # fmt: skip


def geometric_mean(values: list[float]) -> float:
    return float(prod(values) ** (1 / len(values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    found = list(rows())
    means = {n: geometric_mean([r.over_bound for r in found if r.mapping == n]) for n in REFERENCES}
    if parser.parse_args().json:
        print(json.dumps({"rows": [attrs.asdict(r) for r in found], "over_bound_geomean": means}, indent=2))
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
