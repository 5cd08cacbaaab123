"""The time model: signs of its terms, its constants, and how far it is off on what it was fitted to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convgen.backends.timing import LoopClocks
from convgen.ir.error import UserError
from convgen.profile import constants
from convgen.profile.chips import CHIPS, chip_of
from convgen.profile.closed import Products, Terms, at_clock
from convgen.profile.loops import Loops
from convgen.profile.published.read import read
from convgen.profile.published.table import Table

MEASURED = Path(__file__).parents[1] / "data" / "measured"
CHIP = CHIPS["mi300x"]
FIELDS = attrs.fields(Terms)

#: Terms that make everything slower as they grow, and rates that make it quicker.
COSTS = ("start", "matrix", "serial", "far", "run", "shared", "arrange", "rest", "store", "round", "meeting", "other")
RATES = ("operands", "fabric", "memory", "shares", "others", "clock")


@pytest.fixture(scope="module")
def tables() -> list[Table]:
    return read(MEASURED)


@st.composite
def products(draw: st.DrawFn) -> Products:
    """One product, ragged in every way."""

    def one_of(*values: float) -> float:
        return draw(st.sampled_from(values))

    numbers = dict(
        rate=one_of(256, 2048, 4096),
        **{size: float(draw(st.integers(1, 5000))) for size in "mnk"},
        batch=one_of(1, 3, 64),
        tile_m=one_of(16, 64, 256),
        tile_n=one_of(16, 128, 256),
        tile_k=one_of(8, 32, 64),
        split=one_of(1, 4),
        waves=4.0,
        waves_m=one_of(1, 2, 4),
        waves_n=one_of(1, 2),
        elem=one_of(1, 2, 4),
        result=one_of(2, 4),
        k_runs_m=one_of(0, 1),
        k_runs_n=one_of(0, 1),
        others=one_of(0, 2),
        other_bytes=one_of(0, 1e6),
    )
    return Products(**{name: np.array([value]) for name, value in numbers.items()})


def total(p: Products, terms: Terms) -> float:
    return float(p.estimate(CHIP, terms).total[0])


@given(products(), st.sampled_from(COSTS), st.floats(1.01, 3))
def test_costs_make_it_slower(p: Products, name: str, times: float) -> None:
    usual = Terms()
    more = attrs.evolve(usual, **{name: getattr(usual, name) * times})
    assert total(p, more) >= total(p, usual)


@given(products(), st.sampled_from(RATES), st.floats(1.01, 3))
def test_rates_make_it_quicker(p: Products, name: str, times: float) -> None:
    usual = Terms()
    more = attrs.evolve(usual, **{name: getattr(usual, name) * times})
    assert total(p, more) <= total(p, usual)


@given(products(), st.sampled_from(["m", "n", "k", "batch", "other_bytes"]))
def test_more_work_takes_longer(p: Products, name: str) -> None:
    """Twice the work, that is: where a little more fills a block of K that was not full, it may take less."""
    twice = attrs.evolve(p, **{name: 2 * getattr(p, name)})
    assert total(twice, Terms(rest=1)) >= 0.999 * total(p, Terms(rest=1))


@given(products())
def test_causes_are_parts_of_the_time(p: Products) -> None:
    found = p.estimate(CHIP, Terms())
    parts = [found.start, found.matrix, found.kernel, found.memory, found.meeting, found.others]
    assert all(0 <= float(part[0]) <= float(found.total[0]) for part in parts if part is not found.matrix)
    assert found.bound()[0] in ("start", "memory", "meeting", "others", "matrix", "operands and results")
    assert float(found.clock[0]) <= CHIP.clock


@given(st.floats(0, 1), st.floats(0, 1))
def test_clocks_fall_as_matrix_units_are_used(a: float, b: float) -> None:
    low, high = (at_clock(CHIP, Terms(), np.array([used]))[0] for used in sorted((a, b)))
    assert CHIP.clock >= low >= high > 0


def loops(**numbers: float) -> Loops:
    usual = {
        "groups": 700.0,
        "iterations": 20.0,
        "resident": 2.0,
        "matrix": 512.0,
        "operands": 8192.0,
        "each_full": 1200.0,
        "rest_full": 4000.0,
        "each_last": 700.0,
        "rest_last": 3000.0,
        "result": 32768.0,
        "bytes_once": 1e6,
        "added": 0.0,
        "others": 0.0,
        "other_bytes": 0.0,
    }
    return Loops(**{name: np.array([value]) for name, value in (usual | numbers).items()})


def of_loops(terms: Terms, **numbers: float) -> float:
    return float(loops(**numbers).estimate(CHIP, terms).total[0])


@pytest.mark.parametrize("name", [f.name for f in attrs.fields(Loops) if f.name not in ("resident", "matrix")])
def test_more_of_anything_in_a_loop_takes_longer(name: str) -> None:
    values = [of_loops(Terms(), **{name: value}) for value in (1e5, 2e5, 4e5)]
    assert values == sorted(values)


def test_whole_rounds_and_the_last_one() -> None:
    """608 workgroups are one round of two a unit; 609 begin another, of one."""
    terms = Terms(far=0.001, operands=1e9, start=1e-3, store=1e-9, clock=2100, power=1e-9, matrix=1)
    one = (20 * 1200 + 4000) / 2100
    assert of_loops(terms, groups=608) == pytest.approx(one, rel=1e-3)
    assert of_loops(terms, groups=609) == pytest.approx(one + (20 * 700 + 3000) / 2100, rel=1e-3)


def test_clocks_between_those_known() -> None:
    known = LoopClocks(256, 4, 1, 1.0, {1: (100.0, 10.0), 2: (200.0, 30.0), 4: (300.0, 50.0)})
    assert [known.of(n) for n in (0, 1, 3, 4, 9)] == [(100, 10), (100, 10), (250, 40), (300, 50), (300, 50)]


# ---------------------------------------------------------------- constants and tables


def test_constants_are_physical() -> None:
    """Within their bounds; at full use of the matrix units a chip keeps .35 to .85 of its clock."""
    for kind, entry in constants.known().items():
        for f in FIELDS:
            low, high = f.metadata["low"], f.metadata["high"]
            assert 0.99 * low <= getattr(entry.terms, f.name) <= 1.01 * high, (kind, f.name)
        chip = CHIPS[kind.split("/")[1]]
        if entry.source != "rocblas" and not entry.source.startswith("rocblas"):
            full = float(at_clock(chip, entry.terms, np.ones(1))[0])
            assert 0.35 * chip.clock <= full <= 0.85 * chip.clock, (kind, full)


def test_errors_are_those_recorded(tables: list[Table]) -> None:
    """On the rows that each entry was fitted to; the file's own figures must come out."""
    for table in tables:
        by_kind: dict[str, list[int]] = {}
        for n in np.flatnonzero(table.judged):
            for kind in table.kinds(table.rows[n]):
                by_kind.setdefault(kind, []).append(int(n))
        for kind, rows in by_kind.items():
            entry = constants.known().get(kind)
            if entry is None:
                continue
            assert entry.rows == len(rows)
            off = 100 * np.abs(_ratios(table, np.array(rows), entry.terms) - 1)
            assert (np.median(off), off.mean()) == pytest.approx((entry.median, entry.mean), abs=0.15), kind


def _ratios(
    table: Table, rows: np.ndarray[tuple[int], np.dtype[np.int64]], terms: Terms
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    chips = [table.samples[n].chip for n in rows]
    found = np.zeros(len(rows))
    for chip in dict.fromkeys(chips):
        mine = np.array([c is chip for c in chips])
        estimate = table.work.take(rows[mine]).estimate(chip, terms, timed=table.timed)
        found[mine] = estimate.total / table.measured[rows[mine]]
    return found


def test_told_is_measured_where_ticks_are(tables: list[Table]) -> None:
    for table in tables:
        column = np.array([float(row[table.measure]) for row in table.rows])
        assert np.allclose(table.told(table.measured)[table.judged], column[table.judged])


def test_some_rows_of_the_mi300x_are_from_an_mi300a(tables: list[Table]) -> None:
    table = next(t for t in tables if t.name == "rocblas_gfx942")
    where = {row["key"]: sample.chip.name for row, sample in zip(table.rows, table.samples)}
    assert where["4864x768x8192-NN-f32"] == "mi300a"  # 228 tiles: 97.7 % of the peak
    assert where["6144x4864x4096-NT-f32"] == "mi300x"  # 1824 tiles: 8 rounds of 228, 6 of 304
    assert sum(chip == "mi300a" for chip in where.values()) == 29


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: read(Path("nowhere")), "given nowhere without tables, wanted one of rocblas_gfx90a,"),
        (lambda: read(MEASURED, ["sheep"]), "given the table sheep, wanted one of"),
        (lambda: constants.read(Path("nowhere")), "given nowhere that does not hold constants"),
    ],
)
def test_what_is_wrong_is_said(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


def test_chips_are_known_by_target_and_units() -> None:
    assert chip_of("gfx942", 80).name == "mi308x"
    with pytest.raises(UserError, match="given gfx942 with 81 units, wanted one of gfx90a with 104,"):
        chip_of("gfx942", 81)
