"""Fit the constants of the time model: least error of a table's rows, each constant within its physical bounds.

The error of a row is 2 (sqrt(r) - 1) with r = predicted / measured. It lies between r - 1, the reported error, by which
predictions near 0 would be cheap, and ln r, by which a prediction of twice the time would cost no more than one of half
of it. Errors of efficiencies are averaged over their two units, per cent of the peak and clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs
import numpy as np
import numpy.typing as npt
from lib.entries import rounded
from lib.products import taken
from lib.published.table import Table
from scipy.optimize import least_squares

from convgen.backends.family import Chip
from convgen.ir.record import evolve, fields_of
from convgen.profile.closed import Estimate, LaunchArrays, Numbers, Terms
from convgen.profile.constants import Entry

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

_FEWEST = 40  #: rows; a kind with fewer takes the constants of a wider one
_MOST = 1500  #: rows; evenly taken of those that one fit sees
_SCALE = 0.02  #: of |predicted / measured - 1|, above which errors count by size and not by square
_FINE = 1e-5  #: relative change of the error, or of constants, below which a search ends
_PRIOR_ROWS = 3.0  #: rows; a constant that is e times its usual value costs as much as so many rows off by 1
_TIMED_ONLY, _CLOCKS = (
    ("clock", "power"),
    {"start": 10_000.0, "memory": 2000.0, "meeting": 10_000.0, "shares": 2000.0, "written_back": 5000.0},
)


def fit(table: Table, among: Mask) -> dict[str, Entry]:
    """Return constants of each kind of the table's rows, fitted to those `among` them that count; wider kinds first.

    A kind of few rows gets none unless it has no wider kind, or its rows must not be fitted with a wider one's.
    """
    rows: dict[str, list[int]] = {}
    wider: dict[str, tuple[str, ...]] = {}
    apart: set[str] = set()
    for number in np.flatnonzero(among & table.judged):
        row = table.rows[number]
        kinds = table.kinds(row)
        for at, kind in enumerate(table.fitted_kinds(row)):
            rows.setdefault(kind, []).append(int(number))
            wider[kind] = kinds[at + 1 :]
        if table.apart(row):
            apart.add(kinds[0])
    found: dict[str, Entry] = {}
    for kind in sorted(rows, key=lambda k: len(wider[k])):
        if len(rows[kind]) >= _FEWEST or kind in apart or not wider[kind]:
            usual = next((found[w].terms for w in wider[kind] if w in found), None)
            found[kind] = _entry(table, kind, np.array(rows[kind]), usual)
    return found


def fit_all(tables: Iterable[Table], found: dict[str, Entry]) -> None:
    """Add the constants of tables to `found`, table by table: reading one may take the constants of earlier ones."""
    for table in tables:
        found |= fit(table, table.judged)


def predict(table: Table, constants: Mapping[str, Entry]) -> Estimate:
    """Return the predicted time of each row.

    Raises KeyError for a row no kind of which has constants.
    """
    chosen = [next((kind for kind in table.kinds(row) if kind in constants), None) for row in table.rows]
    if None in chosen:
        row = table.rows[chosen.index(None)]
        raise KeyError(f"{table.name}: no constants for {' or '.join(table.kinds(row))}")
    found: dict[str, Numbers] = {f.name: np.zeros(len(chosen)) for f in fields_of(Estimate)}
    kinds = np.array(chosen)
    for kind in dict.fromkeys(chosen):
        assert kind is not None
        for part in _parts(table, np.flatnonzero(kinds == kind)):
            estimated = part.estimate(constants[kind].terms)
            for name, values in found.items():
                values[part.rows] = getattr(estimated, name)
    return Estimate(**found)


@attrs.frozen(eq=False)
class _Part:
    """Rows of one chip."""

    table: Table
    rows: Rows
    chip: Chip
    work: LaunchArrays

    @property
    def measured(self) -> Numbers:
        return self.table.measured[self.rows]

    def estimate(self, terms: Terms) -> Estimate:
        return self.work.estimate(self.chip, terms, timed=self.table.timed)


def _parts(table: Table, rows: Rows) -> list[_Part]:
    """Some rows, chip by chip."""
    chips = [table.samples[n].chip for n in rows]
    by_chip = ((chip, rows[[c is chip for c in chips]]) for chip in dict.fromkeys(chips))
    return [_Part(table, r, c, taken(table.work, r)) for c, r in by_chip]


def _entry(table: Table, kind: str, rows: Rows, usual: Terms | None) -> Entry:
    """Return the constants of one kind; those that its rows do not determine stay as `usual`."""
    some = _parts(table, rows[:: max(1, len(rows) // _MOST)])
    fields = [f for f in fields_of(Terms) if _tells(some, f)]
    low, high, start = (np.log([_bound(f, side, table) for f in fields]) for side in ("low", "high", "start"))
    if usual:
        start = np.log([getattr(usual, f.name) for f in fields])

    def terms(point: Numbers) -> Terms:
        return Terms(**dict(zip((f.name for f in fields), map(float, np.exp(point)))))

    def search(begin: Numbers, of: Callable[[Numbers], Terms]) -> Numbers:
        def errors(point: Numbers) -> Numbers:
            own = of(point)
            return np.concatenate([
                *(_off(table.ratios(part.estimate(own).total, part.measured)) for part in some),
                np.sqrt(2 * _SCALE * _PRIOR_ROWS) * (point - start),
            ])  # fmt: skip

        bounds, options = (
            (low - 1e-9, high + 1e-9),
            {"loss": "soft_l1", "f_scale": _SCALE, "ftol": _FINE, "xtol": _FINE},
        )
        return np.asarray(least_squares(errors, begin, bounds=bounds, **options).x)

    best = terms(search(np.clip(start, low, high), terms))
    if _with_limited_clock(some, best) != best:
        begin = np.clip(start, low, high)
        best = _with_limited_clock(some, terms(search(begin, lambda point: _with_limited_clock(some, terms(point)))))
    best = rounded(best)
    by_part = [table.ratios(part.estimate(best).total, part.measured)[table.measure] for part in _parts(table, rows)]
    ratios = np.concatenate(by_part)
    off = 100 * np.abs(ratios - 1)
    median, mean, bias = (round(float(v), 3) for v in (np.median(off), np.mean(off), np.median(ratios)))
    return Entry(kind, table.name, len(rows), median, mean, bias, best)


def _with_limited_clock(parts: list[_Part], terms: Terms) -> Terms:
    """Return constants whose clock at full use of the matrix units is at most the chip's sustained one.

    Rows of several chips do not limit it.
    """
    if len(parts) > 1:
        return terms
    most = parts[0].chip.sustained * parts[0].chip.clock * (1 + terms.power)
    return evolve(terms, clock=min(terms.clock, most))


def _off(ratios: Mapping[str, Numbers]) -> Numbers:
    """Return the error of predicted / measured, averaged over units, with the sign of the first unit."""
    each = [2 * (np.sqrt(ratio) - 1) for ratio in ratios.values()]
    errors: Numbers = np.copysign(np.mean(np.abs(each), axis=0), each[0])
    return errors


def _tells(parts: list[_Part], field: attrs.Attribute[float]) -> bool:
    """Whether a constant changes the prediction of some rows."""
    extremes = (Terms(**{field.name: field.metadata[side]}) for side in ("low", "high"))
    low, high = ([part.estimate(terms).total for part in parts] for terms in extremes)
    return any(np.any(a != b) for a, b in zip(low, high))


def _bound(field: attrs.Attribute[float], side: str, table: Table) -> float:
    if side == "start" and not table.timed and field.name in _CLOCKS:
        return _CLOCKS[field.name]
    return float(field.metadata[side])
