"""Compare the predicted times of convgen's default kernels (`convgen profile`) with the best times measured by MIOpen.

Takes a table of MIOpen's find database (columns `desc`, `knobs`, `dtype`, `g`, `dir`, `gflop`, and `best_ms` with
`best_solver`, or the `ms_110cu` of each `solver`, of which the best counts), picks ungrouped problems of one type
evenly over directions and sizes, generates each for the target and predicts the time of all of its launches. Each ratio
is a prediction over a measurement: what the prediction is worth says docs/time.md.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from convgen import driver
from convgen.ir.error import ConvgenError
from convgen.ir.record import as_dict
from convgen.problem.conv import Conv
from convgen.profile import launch_times as launches
from convgen.run import prepared

_WORST = 15  #: rows that are shown


@attrs.frozen
class Row:
    """A problem with both times."""

    problem: str
    gflop: float
    solver: str
    measured: float  #: us
    predicted: float  #: us
    config: str
    launches: int
    bound: str

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured


def problems(path: Path, dtype: str, count: int) -> list[dict[str, str]]:
    """Ungrouped problems of a type: of each direction as many, evenly from the smallest to the largest."""
    with gzip.open(path, "rt") as text:
        all_rows = [row for row in csv.DictReader(text) if row["dtype"] == dtype and row["g"] == "1" and _time(row)]
    best: dict[str, dict[str, str]] = {}
    for row in all_rows:  # where several solvers were measured, the best
        name = f"{row['knobs']} {row['desc']}"
        if name not in best or measured_us(row) < measured_us(best[name]):
            best[name] = row
    found = list(best.values())
    chosen: list[dict[str, str]] = []
    directions = sorted({row["dir"] for row in found})
    for direction in directions:
        rows = sorted(
            (row for row in found if row["dir"] == direction), key=lambda row: (float(row["gflop"]), row["key"])
        )
        each = min(len(rows), count // len(directions))
        chosen += [rows[n] for n in np.linspace(0, len(rows) - 1, each).astype(int).tolist()]
    return chosen


def _time(row: dict[str, str]) -> str:
    """Return the time in a row of a table, ms; None if its measurement was disturbed."""
    return row.get("best_ms") or row.get("ms_110cu") or ""


def measured_us(row: dict[str, str]) -> float:
    return 1e3 * float(_time(row))


def rows(chosen: list[dict[str, str]], target: str) -> Iterator[Row]:
    for row in track(chosen, transient=True, console=Console(stderr=True)):
        line = f"{row['knobs']} {row['desc']}"
        try:
            code = driver.compile(driver.build(Conv.parse(line), target))
            times = launches.profile(prepared.of_launches(code.record, code.object, line))
        except ConvgenError as error:
            Console(stderr=True).print(f"{line}: {error}")
            continue
        bound = times.longest.bound
        solver, gflop = row.get("best_solver") or row["solver"], float(row["gflop"])
        yield Row(line, gflop, solver, measured_us(row), times.total, code.config, len(times.launches), bound)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="a .csv.gz")
    parser.add_argument("--target", default="gfx942")
    parser.add_argument("--type", default="f16")
    parser.add_argument("--count", type=int, default=300, help="problems, of all directions together")
    parser.add_argument("--json", action="store_true", help="print one JSON object a problem, too")
    options = parser.parse_args()
    found = []
    for row in rows(problems(options.table, options.type, options.count), options.target):
        found.append(row)
        if options.json:
            print(json.dumps(as_dict(row)), flush=True)
    ratios = np.array([row.ratio for row in found])
    table = Table("problem", "config", "GFLOP", "MIOpen us", "convgen us", "ratio", "launches", "bound", "solver")
    for row in sorted(found, key=lambda row: -row.ratio)[:_WORST]:
        numbers = f"{row.gflop:.1f}", f"{row.measured:.1f}", f"{row.predicted:.1f}", f"{row.ratio:.2f}"
        table.add_row(row.problem, row.config, *numbers, str(row.launches), row.bound, row.solver)
    Console(width=240).print(table)
    below, mean = 100 * np.mean(ratios < 1), np.exp(np.mean(np.log(ratios)))
    print(f"{len(found)} problems: geomean of predicted / measured {mean:.3f}, below 1: {below:.0f} %")


if __name__ == "__main__":
    main()
