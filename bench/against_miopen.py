"""Compare the predicted times of convgen's default kernels (`convgen profile`) with MIOpen's, measured and modelled.

Takes a table of MIOpen (columns `desc`, `knobs`, `dtype`, `g`, `dir`, `gflop`, and `best_ms` with `best_solver`, or the
`ms` or `ms_110cu` of each `solver`, of which the best counts), picks ungrouped problems of one type evenly over
directions and sizes, generates each for the target and predicts the time of all of its launches. Each ratio is a
prediction over a measurement: docs/time.md says how far predictions are off.

A table that names MIOpen's kernels (miopen_gfx942_igemm) gives a second ratio, kernel against kernel: all launches of
convgen over MIOpen's main kernel, by one model. MIOpen's transposes, zero fills and casts do not count there. With
--kernels DIR, which holds code objects of these kernels, their clocks come from machine code (as in `measured.py`).

    python bench/against_miopen.py DIR/miopen_gfx942_igemm.csv.gz --kernels DIR --clocks FILE --times FILE
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from lib import entries, fitting
from lib.published.read import read
from measured import clocks_of
from rich.console import Console
from rich.progress import track
from rich.table import Table

from convgen import driver
from convgen.backends.target import get
from convgen.choose.choose import candidates
from convgen.choose.search import first_fitting
from convgen.ir.error import ConvgenError
from convgen.ir.record import as_dict
from convgen.problem.conv import Conv
from convgen.profile import launch_times as launches
from convgen.run import prepared

_WORST = 15  #: rows that are shown
_LONG = 50.0  #: us; longer kernels have a line of their own
_KINDS = "F", "B", "W"


@attrs.frozen
class Row:
    """A problem with all times."""

    problem: str
    direction: str
    gflop: float
    solver: str
    measured: float  #: us; MIOpen's whole call
    modelled: float  #: us; MIOpen's whole call by the model; nan where the table names no kernel
    kernel: float  #: us; MIOpen's main kernel by the model
    predicted: float  #: us; all launches of convgen
    config: str
    launches: int
    bound: str

    @property
    def ratio(self) -> float:
        """Return the prediction over the measured whole call."""
        return self.predicted / self.measured

    @property
    def kernels(self) -> float:
        """Return the prediction over that of MIOpen's main kernel."""
        return self.predicted / self.kernel


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
    return row.get("best_ms") or row.get("ms_110cu") or row.get("ms") or ""


def measured_us(row: dict[str, str]) -> float:
    return 1e3 * float(_time(row))


Modelled = Mapping[str, tuple[float, float]]  #: by a row's key: us of the whole call, and of its main kernel


def modelled(path: Path, kernels: Path | None, cache: Path | None) -> Modelled:
    """Return MIOpen's times by the model; empty for a table that names no kernels."""
    name = path.name.removesuffix(".csv.gz")
    with gzip.open(path, "rt") as text:
        if "kernel" not in (csv.DictReader(text).fieldnames or ()):
            return {}
    clocks = clocks_of(kernels, cache, Console(stderr=True)) if kernels else None
    found = {}
    for table in read(path.parent, [name], clocks):
        told = fitting.predict(table, entries.known())
        for row, whole, others in zip(table.rows, told.total.tolist(), told.others.tolist()):
            found[row["key"]] = whole, whole - others
    return found


class Times:
    """Predicted times of convgen's kernels, kept in a file if there is one."""

    def __init__(self, target: str, path: Path | None) -> None:
        self.target, self.path = target, path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self.known: dict[tuple[str, str, str], Any] = {
            (r["target"], r["problem"], r["config"]): r for r in map(json.loads, lines)
        }

    def of(self, line: str) -> Mapping[str, Any]:
        """Return the time, config, number of launches and bound of a problem's default kernel. Raises ConvgenError."""
        problem = Conv.parse(line)
        facts = get(self.target).facts
        first = first_fitting(problem, candidates(problem, facts), facts)
        key = self.target, line, str(first[0].config) if first else ""
        if key not in self.known:
            code = driver.compile(driver.build(problem, self.target))
            times = launches.profile(prepared.of_launches(code.record, code.object, line))
            numbers = {"us": times.total, "launches": len(times.launches), "bound": times.longest.bound}
            self.known[key] = dict(zip(("target", "problem", "config"), key)) | numbers | {"taken": code.config}
            if self.path:
                with self.path.open("a") as file:
                    file.write(json.dumps(self.known[key]) + "\n")
        found: Mapping[str, Any] = self.known[key]
        return found


def rows(chosen: list[dict[str, str]], times: Times, known: Modelled, tag: str) -> Iterator[Row]:
    for row in track(chosen, transient=True, console=Console(stderr=True)):
        knobs = re.sub(r"(--[swd]tag)=\S+", rf"\1={tag}", row["knobs"]) if tag else row["knobs"]
        line = f"{knobs} {row['desc']}"
        try:
            own = times.of(line)
        except ConvgenError as error:
            Console(stderr=True).print(f"{line}: {error}")
            continue
        solver, gflop = row.get("best_solver") or row["solver"], float(row["gflop"])
        miopen = known.get(row["key"], (float("nan"), float("nan")))
        about = line, row["dir"], gflop, solver, measured_us(row), *miopen
        yield Row(*about, own["us"], own["taken"], own["launches"], own["bound"])


def _mean(ratios: list[float]) -> str:
    return f"{np.exp(np.mean(np.log(ratios))):.3f}" if ratios else ""


def summary(found: list[Row]) -> Table:
    """Return geometric means of ratios: by direction, and of kernels that take MIOpen long."""
    table = Table("rows", "count", "convgen / measured", "below 1", "kernel / kernel", "model / measured")
    is_modelled = any(row.kernel == row.kernel for row in found)
    parts = {"all": found} | {kind: [row for row in found if row.direction == kind] for kind in _KINDS}
    by = "kernel" if is_modelled else "measured"
    parts |= {
        f"{name}, above {_LONG:.0f} us": [r for r in some if getattr(r, by) > _LONG] for name, some in parts.items()
    }
    for name, some in parts.items():
        below = f"{100 * np.mean([row.ratio < 1 for row in some]):.0f} %" if some else ""
        kernels = (
            (_mean([r.kernels for r in some]), _mean([r.modelled / r.measured for r in some]))
            if is_modelled
            else ("", "")
        )
        table.add_row(name, str(len(some)), _mean([row.ratio for row in some]), below, *kernels)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="a .csv.gz")
    parser.add_argument("--target", default="gfx942")
    parser.add_argument("--type", default="f16")
    parser.add_argument("--count", type=int, default=300, help="problems, of all directions together")
    parser.add_argument("--dir", choices=_KINDS, help="only this direction of the problems that are picked")
    parser.add_argument(
        "--tag", default="", help="layout of convgen's tensors (axb: channels last); default: the table's"
    )
    parser.add_argument("--kernels", type=Path, metavar="DIR", help="code objects of kernels that rows name")
    parser.add_argument("--clocks", type=Path, metavar="FILE", help="with --kernels: keep their clocks here")
    parser.add_argument("--times", type=Path, metavar="FILE", help="keep convgen's times here")
    parser.add_argument("--json", action="store_true", help="print one JSON object a problem, too")
    options = parser.parse_args()
    picked = [r for r in problems(options.table, options.type, options.count) if options.dir in (None, r["dir"])]
    known = modelled(options.table, options.kernels, options.clocks)
    found = []
    for row in rows(picked, Times(options.target, options.times), known, options.tag):
        found.append(row)
        if options.json:
            print(json.dumps(as_dict(row)), flush=True)
    by = "kernels" if known else "ratio"
    names = "GFLOP", "MIOpen us", "its kernel", "convgen us", "ratio", "launches", "bound", "solver"
    table = Table("problem", "config", *names)
    for row in sorted(found, key=lambda row: -getattr(row, by))[:_WORST]:
        us = f"{row.measured:.1f}", f"{row.kernel:.1f}", f"{row.predicted:.1f}", f"{getattr(row, by):.2f}"
        table.add_row(row.problem, row.config, f"{row.gflop:.1f}", *us, str(row.launches), row.bound, row.solver)
    Console(width=240).print(table)
    Console(width=120).print(summary(found))


if __name__ == "__main__":
    main()
