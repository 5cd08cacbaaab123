"""Constants of the time model for NVIDIA, fitted to times that were measured on a GPU (docs/silicon.json).

Each row is a problem with its config and the median time of its launches together. A row's kernels are generated, and
their launches profiled: a few workgroups are executed, and run on the model of an SM. Of all rows the even ones are
fitted, the odd ones judge.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lib.entries import rounded
from scipy.optimize import least_squares

from convgen import driver
from convgen.backends import family as families
from convgen.backends import target as targets
from convgen.backends.timing import LaunchProfile
from convgen.ir.record import evolve, fields_of, frozen
from convgen.problem.matmul import parse_problem
from convgen.profile import launch_times
from convgen.profile.closed import Numbers, Terms
from convgen.profile.constants import Entry
from convgen.run import prepared

TARGET, CHIP, SOURCE = "sm_90a", "h200", "silicon"
KIND = f"convgen code/{CHIP}"
PARTS = ("times", "models")
#: Constants that are fitted.
FREE = ("start", "far", "operands", "store", "around", "memory", "other", "power", "shares")
#: Constants that the rows do not show: the clock is the data sheet's, no memory is slower than other memory, and L2 has
#: no results to write back that the next launch waits for.
FIXED = {
    "matrix": 1.0,
    "clock": 1980.0,
    "cached": 1e9,
    "slower": 1.0,
    "dirty": 1e5,
    "written_back": 1e9,
    "meeting": 1e-3,
}
_SCALE = 0.05  #: of |ln(predicted / measured)|, above which errors count by size and not by square
_PRIOR_WEIGHT = 0.02  #: weight of the logarithmic distance of each constant from its start


@frozen(eq=False)
class Row:
    """A problem that was measured, and the profiles of its launches."""

    problem: str
    measured: float  #: us
    launches: tuple[LaunchProfile, ...]

    @property
    def kind(self) -> str:
        """Return the direction of a convolution, or GEMM."""
        if self.problem.startswith("gemm"):
            return "GEMM"
        return self.problem.partition("--dir=")[2].split()[0]

    def predicted(self, terms: Terms) -> float:
        """Return us by some constants."""
        chip, caches = families.chips()[CHIP], targets.get(TARGET).facts.caches
        entry = Entry(KIND, SOURCE, 0, 0.0, 0.0, 1.0, terms)
        times = (
            launch_times.timed(each, chip, caches, entry, terms, further=number > 0)
            for number, each in enumerate(self.launches)
        )
        return sum(time.total for time in times)


def measured_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of `bench/silicon.py --write` that have a time."""
    content = json.loads(file.read_text())
    return [row for part in PARTS for row in content[part] if "ours_us" in row]


def profiled(row: Mapping[str, Any], cache: Path | None) -> Row:
    """Profile the launches of a row, or take their profiles from a folder."""
    key = hashlib.sha256(f"{row['problem']} {row['config']}".encode()).hexdigest()[:16]
    kept = cache / f"{key}.profiles" if cache else None
    if kept and kept.exists():
        return Row(row["problem"], row["ours_us"], pickle.loads(kept.read_bytes()))
    problem = parse_problem(row["problem"].partition(" ")[2])
    code = driver.compile(driver.build(problem, TARGET, config=row["config"]))
    given = prepared.of_launches(code.record, code.object, row["problem"])
    times = launch_times.profile(given, CHIP)
    launches = tuple(_without_events(time.profile) for time in times.launches)
    if kept:
        kept.write_bytes(pickle.dumps(launches))
    return Row(row["problem"], row["ours_us"], launches)


def _without_events(launch: LaunchProfile) -> LaunchProfile:
    """Return a profile that a file can hold."""
    units = {count: evolve(unit, slices=_nothing, waves=_nothing) for count, unit in launch.units.items()}
    return evolve(launch, units=units)


def _nothing() -> Sequence[Any]:
    return ()


def fit(rows: Sequence[Row]) -> Terms:
    """Return the constants with the least errors on some rows."""
    metadata = {field.name: field.metadata for field in fields_of(Terms)}
    bounds = {name: (each["low"], each["high"]) for name, each in metadata.items()}
    bounds["power"] = (1.01 / families.chips()[CHIP].sustained - 1, bounds["power"][1])
    low, high = (np.log([bounds[name][side] for name in FREE]) for side in (0, 1))
    start = np.log([metadata[name]["start"] for name in FREE])

    def terms(point: Numbers) -> Terms:
        return Terms(**FIXED, **dict(zip(FREE, map(float, np.exp(point)))))

    def errors(point: Numbers) -> Numbers:
        return np.concatenate([off(rows, terms(point)), _PRIOR_WEIGHT * (point - start)])

    begin = np.clip(start, low + 1e-6, high - 1e-6)
    return rounded(terms(least_squares(errors, begin, bounds=(low, high), loss="soft_l1", f_scale=_SCALE).x))


def off(rows: Iterable[Row], terms: Terms) -> Numbers:
    """Return ln(predicted / measured) of each row."""
    return np.log([row.predicted(terms) / row.measured for row in rows])


def entry_of(rows: Sequence[Row], terms: Terms) -> Entry:
    """Return constants with their error on the rows that they were fitted to."""
    ratios = np.exp(off(rows, terms))
    errors = 100 * np.abs(ratios - 1)
    median, mean, bias = (round(float(v), 3) for v in (np.median(errors), np.mean(errors), np.median(ratios)))
    return Entry(KIND, SOURCE, len(rows), median, mean, bias, terms)


@frozen
class Figures:
    """The errors of some rows."""

    what: str
    rows: int
    median: float  #: median of |ln(predicted / measured)|
    worst: float  #: 90th percentile of it
    bias: float  #: median of ln(predicted / measured)


def figures(rows: Sequence[Row], terms: Terms) -> list[Figures]:
    """Return the errors of all rows, then of each kind."""
    errors = off(rows, terms)
    kinds = np.array([row.kind for row in rows])
    parts = {"all": np.ones(len(rows), np.bool_), **{kind: kinds == kind for kind in sorted(set(kinds.tolist()))}}
    return [
        Figures(what, int(own.sum()), *(float(v) for v in (*_middle(np.abs(errors[own])), np.median(errors[own]))))
        for what, own in parts.items()
    ]


def _middle(values: Numbers) -> tuple[float, float]:
    return float(np.median(values)), float(np.percentile(values, 90))
