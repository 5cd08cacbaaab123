"""Errors of the time model against published run times, on rows that it was not fitted to.

DIR holds the tables (their README says what columns mean). Rows are cut in four by shape; each part is predicted by
constants fitted to the others. Errors are |predicted / measured - 1|, bias is the median of predicted / measured,
ranks are Spearman's, of times or clocks, over all rows and within a problem. Errors, and predictions of --predict, are
in the unit of the measured column; those of efficiencies are reported in clocks, too.

    measured.py DIR                                        errors of each part by constants fitted to the others
    measured.py DIR --constants FILE                       errors of given constants (again for more), nothing fitted
    measured.py DIR --write PRODUCT REST                   constants fitted to all of it (--only: others stay), in two
                                                           files: those that the product reaches, and the others
    measured.py --predict DIR --constants FILE --out DIR   a CSV a table: what tells rows apart, and `pred` in its unit

    measured.py --silicon docs/silicon.json                errors of NVIDIA's launches, fitted to the even rows, on the
                                                           odd ones (--write: the fitted constants; --clocks DIR keeps
                                                           profiles, which take minutes)

With --kernels DIR, which holds code objects (.hsaco, .co) of the kernels that the column `kernel` names, rows of these
kernels are predicted from machine code, others by the closed form from problem and tile; the column `by` says which.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
from lib import entries, fitting, plots, silicon_fit
from lib.products import Products, bounds
from lib.published.read import read
from lib.published.table import Table
from rich.console import Console
from rich.progress import track
from rich.table import Table as Grid
from scipy.stats import spearmanr

from convgen.backends.amdgpu.family import FAMILY
from convgen.backends.amdgpu.timing.kernel import loop_clocks
from convgen.backends.timing import LoopClocks, Pace
from convgen.ir.error import UserError
from convgen.ir.record import as_dict, fields_of
from convgen.profile.closed import Estimate, Numbers
from convgen.profile.constants import Entry
from convgen.profile.loop_times import Loops

Mask = npt.NDArray[np.bool_]

_FOLDS = 4  #: parts of a table, each predicted by constants fitted to the others
_TRIM = 0.02  #: of the rows, with the largest errors, that the trimmed mean leaves out
_WORST = 10
_CODE_OBJECTS = (".hsaco", ".co")  #: endings of files
_FEWEST = 15  #: rows that get a line of their own


@attrs.frozen
class Figures:
    """The errors of the predictions of some rows."""

    what: str
    unit: str  #: of errors and bias
    rows: int
    median: float  #: per cent
    mean: float  #: per cent
    trimmed: float  #: per cent
    bias: float
    rank: float
    rank_within: float | None  #: mean over problems with three rows and more, if there are any

    @classmethod
    def of(cls, what: str, table: Table, predicted: Numbers, rows: npt.NDArray[np.intp]) -> list[Figures]:
        """Some of a table's rows, in each unit; ticks of all of them are predicted."""
        predicted, measured = predicted[rows], table.measured[rows]
        rank = float(spearmanr(predicted, measured).statistic) if len(rows) > 2 else float("nan")
        within = _rank_within(predicted, measured, [table.shape(table.rows[n]) for n in rows])
        found = []
        for unit, ratio in table.ratios(predicted, measured).items():
            off = np.sort(100 * np.abs(ratio - 1))
            kept = off[: max(1, round(len(off) * (1 - _TRIM)))]
            own = float(np.median(off)), float(off.mean()), float(kept.mean()), float(np.median(ratio))
            found.append(cls(what, unit, len(off), *own, rank, within))
        return found


def _rank_within(predicted: Numbers, measured: Numbers, problems: Sequence[str]) -> float | None:
    members: dict[str, list[int]] = {}
    for n, problem in enumerate(problems):
        members.setdefault(problem, []).append(n)
    groups = [rows for rows in members.values() if len(rows) > 2 and len({measured[n] for n in rows}) > 1]
    found = [float(spearmanr(predicted[g], measured[g]).statistic) for g in groups if np.ptp(predicted[g]) > 0]
    return float(np.mean(found)) if found else None


def folds(table: Table) -> npt.NDArray[np.intp]:
    """The part of each row, by a hash of its shape."""
    digests = (hashlib.sha256(f"part {table.shape(row)}".encode()).digest() for row in table.rows)
    return np.array([digest[0] % _FOLDS for digest in digests])


def crossed(table: Table) -> Estimate:
    """Return the predicted time of each row, by constants fitted to the parts without it."""
    part = folds(table)
    by_fold = [fitting.predict(table, fitting.fit(table, part != n)) for n in range(_FOLDS)]
    own = part, np.arange(len(part))
    return Estimate(*(np.array([getattr(each, f.name) for each in by_fold])[own] for f in fields_of(Estimate)))


def report(table: Table, predicted: Numbers) -> list[Figures]:
    """All rows that count, then those of each value of the table's labels and of its subsets."""
    use = table.judged
    chosen: dict[str, Mask] = {}
    for label in table.labels:
        column = np.array([row[label] for row in table.rows])
        values = sorted(set(column[use]), key=lambda v: -int((column[use] == v).sum()))
        chosen |= {f"{label} {v}": use & (column == v) for v in values}
    chosen |= {name: use & np.array([holds(row) for row in table.rows]) for name, holds in table.subsets.items()}
    some = {"all": use} | {name: mask for name, mask in chosen.items() if mask.sum() >= _FEWEST}
    return [f for what, mask in some.items() for f in Figures.of(what, table, predicted, np.flatnonzero(mask))]


def worst(table: Table, predicted: Numbers, bounds: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows whose predictions are furthest off."""
    off = np.where(table.judged, np.abs(np.log(predicted / table.measured)), -1.0)
    in_unit = table.in_measured_unit(predicted)
    rows = np.argsort(-off)[:_WORST]
    return [
        {
            "row": table.rows[n]["key"],
            "measured": float(table.rows[n][table.measure]),
            "predicted": float(in_unit[n]),
            "ratio": float(in_unit[n]) / float(table.rows[n][table.measure]),
            "bound": bounds[n],
        }
        for n in rows
    ]


def show(table: Table, found: Sequence[Figures], bad: Sequence[Mapping[str, Any]], console: Console) -> None:
    columns = ("unit", "rows", "median %", "mean %", "trimmed %", "bias", "rank", "rank within a problem")
    grid = Grid(table.name, *columns, title=f"{table.name}: errors")
    for f in found:
        errors = f"{f.median:.1f}", f"{f.mean:.1f}", f"{f.trimmed:.1f}", f"{f.bias:.3f}", f"{f.rank:.3f}"
        grid.add_row(f.what, f.unit, str(f.rows), *errors, "" if f.rank_within is None else f"{f.rank_within:.2f}")
    console.print(grid)
    grid = Grid("row", f"measured {table.measure}", "predicted", "times", "bound", title="furthest off")
    for row in bad:
        grid.add_row(
            row["row"], f"{row['measured']:.4g}", f"{row['predicted']:.4g}", f"{row['ratio']:.2f}", row["bound"]
        )
    console.print(grid)


def write_predictions(tables: Sequence[Table], by: Mapping[str, Entry], folder: Path) -> list[Path]:
    """Write a CSV for each file; return their paths. Columns identify rows; `pred` is in the measured column's unit.

    Column `by` says whether a row is predicted from machine code or by the closed form.
    """
    files: dict[str, list[Table]] = {}
    for table in tables:
        files.setdefault(table.name.removesuffix("_code"), []).append(table)
    folder.mkdir(parents=True, exist_ok=True)
    for name, parts in files.items():
        columns = [c for c in parts[0].rows[0] if c not in parts[0].results]
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*columns, "by", "pred"])
            for table in parts:
                how = "closed form" if table.model is Products else "machine code"
                in_unit = table.in_measured_unit(fitting.predict(table, by).total)
                writer.writerows([*(row[c] for c in columns), how, f"{v:.6g}"] for row, v in zip(table.rows, in_unit))
    return [folder / f"{name}.csv" for name in files]


def clocks_of(folder: Path, cache: Path | None, console: Console) -> dict[tuple[str, str], LoopClocks]:
    """Return the clocks of a folder's kernels, by target and name; `cache`, a file, keeps them by code object."""
    known = json.loads(cache.read_text()) if cache and cache.exists() else {}
    files = sorted(path for path in folder.rglob("*") if path.suffix in _CODE_OBJECTS)
    found = []
    for file in track(files, "kernels", console=console):
        code = file.read_bytes()
        digest = hashlib.sha256(code).hexdigest()
        try:
            known[digest] = known.get(digest) or as_dict(loop_clocks(code, FAMILY.load_latency), recurse=False)
        except UserError as error:
            console.print(f"{file}: {error}; its rows are predicted by the closed form")
            continue
        found.append(known[digest])
    if cache:
        cache.write_text(json.dumps(known))
    kernels = (LoopClocks(**{**k, "shared": {int(n): Pace(*c) for n, c in k["shared"].items()}}) for k in found)
    return {(kernel.target, kernel.kernel): kernel for kernel in kernels}


def silicon(file: Path, cache: Path | None, write: Sequence[Path] | None, console: Console) -> None:
    """Fit the constants of NVIDIA to one half of the rows that a GPU measured; show the errors of both halves."""
    if cache:
        cache.mkdir(parents=True, exist_ok=True)
    measured = track(silicon_fit.measured_rows(file), "profiles", console=console)
    rows = [silicon_fit.profiled(row, cache) for row in measured]
    fitted, judged = rows[::2], rows[1::2]
    terms = silicon_fit.fit(fitted)
    grid = Grid("rows", "", "count", "median |ln|", "90th percentile", "bias", title="ln(predicted / measured)")
    for half, some in (("fitted", fitted), ("held out", judged)):
        for f in silicon_fit.figures(some, terms):
            grid.add_row(half, f.what, str(f.rows), f"{f.median:.3f}", f"{f.worst:.3f}", f"{f.bias:+.3f}")
    console.print(grid)
    bad = Grid("held out: furthest off", "measured us", "predicted", "ln")
    errors = silicon_fit.off(judged, terms)
    for n in np.argsort(-np.abs(errors))[:_WORST]:
        bad.add_row(
            judged[n].problem, f"{judged[n].measured:.1f}", f"{judged[n].predicted(terms):.1f}", f"{errors[n]:+.2f}"
        )
    console.print(bad)
    if write:
        write_entries(write, entries.known() | {silicon_fit.KIND: silicon_fit.entry_of(fitted, terms)})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="the tables")
    parser.add_argument("--only", action="append", default=[], metavar="TABLE", help="this table (again for more)")
    parser.add_argument(
        "--constants", action="append", default=[], type=Path, metavar="FILE", help="fit nothing, take these"
    )
    what = "fit to all rows; write the constants that the product reaches, and the others"
    parser.add_argument("--write", type=Path, nargs=2, metavar=("PRODUCT", "REST"), help=what)
    parser.add_argument("--predict", type=Path, metavar="DIR", help="predict the rows of these tables")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where predictions go (default: here)")
    parser.add_argument("--kernels", type=Path, metavar="DIR", help="code objects of kernels that rows name")
    parser.add_argument("--clocks", type=Path, metavar="FILE", help="with --kernels: keep their clocks here")
    parser.add_argument("--silicon", type=Path, metavar="FILE", help="rows of bench/silicon.py, for NVIDIA")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the errors (.svg)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(arguments)
    folder = given.predict or given.folder
    if given.silicon:
        silicon(given.silicon, given.clocks, given.write, Console())
        return 0
    if folder is None:
        parser.error("wanted DIR or --predict DIR")
    console = Console(stderr=given.json)
    try:
        clocks = clocks_of(given.kernels, given.clocks, console) if given.kernels else None
        by = {kind: e for file in given.constants for kind, e in entries.read(file).items()} or None
        tables = read(folder, given.only, clocks, entries.known() | (by or {}))
    except UserError as error:
        parser.error(str(error))
    if given.predict:
        for path in write_predictions(tables, by or entries.known(), given.out):
            console.print(str(path))
        return 0
    if given.write:
        fitted = dict(entries.known()) if given.only else {}
        coded = [table for table in tables if table.model is Loops]  # of the closed form, all rows
        fitting.fit_all(track([*read(folder, given.only, entries=fitted), *coded], "fitting", console=console), fitted)
        fitted.setdefault(silicon_fit.KIND, entries.known()[silicon_fit.KIND])  # no table gives it
        write_entries(given.write, fitted)
        return 0
    show_errors(tables, by, given, console)
    return 0


def write_entries(paths: Sequence[Path], fitted: Mapping[str, Entry]) -> None:
    """Write the constants that the product reaches to the first path, and the others to the second."""
    reached = entries.reached(fitted)
    for path, in_product in zip(paths, (True, False)):
        entries.write(path, (entry for kind, entry in fitted.items() if (kind in reached) == in_product))


def show_errors(
    tables: Sequence[Table], by: Mapping[str, Entry] | None, given: argparse.Namespace, console: Console
) -> None:
    """Print the errors of each table, or of all as JSON, and draw them; without constants `by`, fit them crosswise."""
    told, panels = {}, {}
    for table in tables:
        predicted = fitting.predict(table, by) if by is not None else crossed(table)
        rows = table.judged
        panels[table.name] = plots.Panel("us" if table.timed else "clocks", predicted.total[rows], table.measured[rows])
        found = report(table, predicted.total)
        bad = worst(table, predicted.total, bounds(predicted))
        told[table.name] = {"figures": [as_dict(f) for f in found], "worst": bad}
        if not given.json:
            show(table, found, bad, console)
    if given.plot:
        plots.write(given.plot, panels)
    if given.json:
        json.dump(told, sys.stdout, indent=2)
        print()


if __name__ == "__main__":
    sys.exit(main())
