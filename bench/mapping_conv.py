"""Traffic saved by the chosen order of workgroups in convolutions, against rows of tiles: L2 fills and memory."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from math import exp, log
from pathlib import Path

import attrs
from rich.console import Console
from rich.progress import track
from rich.table import Table

from convgen.backends.target import get
from convgen.choose.choose import candidates
from convgen.choose.search import first_fitting
from convgen.choose.supported import check_supported
from convgen.choose.workgroup_orders import LaunchTraffic, best_order
from convgen.ir.error import ConvgenError
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.order import IN_ROWS
from convgen.ir.record import as_dict
from convgen.plan.config import LanePart
from convgen.problem.conv import Conv

MIB = 2**20


@attrs.frozen
class Row:
    problem: str
    direction: str
    tiles: str
    order: str
    fill: float  #: MiB; into L2, of the chosen order
    default_fill: float  #: MiB; of rows of tiles
    memory: float  #: MiB
    default_memory: float  #: MiB


def rows(file: Path, mb: int, dt: str, facts: TargetFacts) -> Iterator[Row]:
    """The 2-D problems of a file, in each direction."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    for line in track(lines, transient=True):
        for direction in ("FWD_D", "BWD_D", "BWD_W"):
            problem = Conv.parse(line, dir=direction, dt=dt, mb=mb)
            try:
                check_supported(problem, facts)
                fitting = first_fitting(problem, candidates(problem, facts), facts)
            except ConvgenError:
                continue
            if problem.ndims != 4 or not fitting or not fitting[1].parts:
                continue
            if isinstance(fitting[1].config.mma, LanePart):  # sums by lanes read no panels
                continue
            launch = LaunchTraffic.of(fitting[1], fitting[0].together)
            best = best_order(launch)
            found, default = launch.traffic(best), launch.traffic(IN_ROWS)
            m, n = launch.tiles
            sizes = found.fill, default.fill, found.memory, default.memory
            yield Row(problem.name or problem.descriptor, direction, f"{m}x{n}x{launch.slices}", str(best),
                      *(size / MIB for size in sizes))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="problems, one a line, as benchdnn has them")
    parser.add_argument("--mb", type=int, default=32)
    parser.add_argument("--dt", default="f16")
    parser.add_argument("--target", default="gfx942")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    found = list(rows(options.file, options.mb, options.dt, get(options.target).facts))
    worse = [r for r in found if r.fill > r.default_fill]
    saved = exp(sum(log(r.fill / r.default_fill) for r in found) / len(found))
    if options.json:
        print(json.dumps({"rows": [as_dict(r) for r in found], "worse": len(worse), "geomean": saved}, indent=2))
        return
    table = Table("problem", "direction", "tiles", "order", title="MiB, rows of tiles / chosen", title_justify="left")
    table.add_column("L2 fill", justify="right")
    table.add_column("memory", justify="right")
    for r in found:
        sizes = f"{r.default_fill:.1f} / {r.fill:.1f}", f"{r.default_memory:.1f} / {r.memory:.1f}"
        table.add_row(r.problem, r.direction, r.tiles, r.order, *sizes)
    Console(width=140).print(table)
    print(f"{len(found)} launches, {len(worse)} with more fill than in rows; geometric mean of the ratio {saved:.3f}")


if __name__ == "__main__":
    main()
