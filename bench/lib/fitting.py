"""Constants by least error, each within the bounds where it is physical.

What counts is the error as it is told, |predicted / measured - 1|, by halves: 2 (sqrt(predicted / measured) - 1) weighs
too much and too little between that, by which to tell too little would be cheap, and the logarithm, by which a row told
twice too slow would cost no more than one told twice too quick. Errors of efficiencies are told in per cent of the peak
and in clocks, and weigh what they do in both on average.
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
_HELD = 3.0  #: rows; by how many each constant is held to what is usual (once e more or less: as they, each off by 1)
_TIMED_ONLY, _CLOCKS = (
    ("clock", "power"),
    {"start": 10_000.0, "memory": 2000.0, "meeting": 10_000.0, "shares": 2000.0, "written_back": 5000.0},
)


def fit(table: Table, among: Mask) -> dict[str, Entry]:
    """Constants of each kind of the table's rows, from those `among` them that count; wider kinds first.

    A kind of few rows has no constants but where these say nothing of a wider one.
    """
    rows: dict[str, list[int]] = {}
    wider: dict[str, tuple[str, ...]] = {}
    apart: set[str] = set()
    for number in np.flatnonzero(among & table.judged):
        row = table.rows[number]
        kinds = table.kinds(row)
        for at, kind in enumerate(table.kinds_told(row)):
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
    """Add the constants of tables to those `found`, in their order: a table may be read by those of the ones before."""
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
                np.sqrt(2 * _SCALE * _HELD) * (point - start),
            ])  # fmt: skip

        bounds, ways = (low - 1e-9, high + 1e-9), {"loss": "soft_l1", "f_scale": _SCALE, "ftol": _FINE, "xtol": _FINE}
        return np.asarray(least_squares(errors, begin, bounds=bounds, **ways).x)

    best = terms(search(np.clip(start, low, high), terms))
    if _kept(some, best) != best:
        best = _kept(some, terms(search(np.clip(start, low, high), lambda point: _kept(some, terms(point)))))
    best = rounded(best)
    told = [table.ratios(part.estimate(best).total, part.measured)[table.measure] for part in _parts(table, rows)]
    ratios = np.concatenate(told)
    off = 100 * np.abs(ratios - 1)
    median, mean, bias = (round(float(v), 3) for v in (np.median(off), np.mean(off), np.median(ratios)))
    return Entry(kind, table.name, len(rows), median, mean, bias, best)


def _kept(parts: list[_Part], terms: Terms) -> Terms:
    """Limit the clock at full use of the matrix units to that which the chip keeps, if all rows are of one chip."""
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
