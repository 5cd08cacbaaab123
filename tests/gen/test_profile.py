"""The time model: signs of its terms, its constants, and how far it is off on what it was fitted to."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lib import entries
from lib.products import Products, bounds, taken
from lib.published.mlir import tile_of
from lib.published.read import read
from lib.published.table import ALONE, Table
from lib.published.transposes import Transpose, transposes_of
from lib.usual_tiles import tiled

from convgen.backends.amdgpu.sim.mfma_table import BITS
from convgen.backends.family import chip_of, chips
from convgen.backends.timing import LoopClocks, Pace
from convgen.ir.error import UserError
from convgen.ir.record import evolve, fields_of
from convgen.profile import constants, launch_times
from convgen.profile.closed import Terms, at_clock
from convgen.profile.loop_times import Loops, LoopsOfClosedForm

MEASURED = Path(__file__).parents[1] / "data" / "measured"
CHIP = chips()["mi300x"]
FIELDS = fields_of(Terms)

#: Terms that make everything slower as they grow, and rates that make it quicker.
COSTS = (
    *("start", "matrix", "serial", "far", "run", "load", "shared", "arrange", "rest", "store", "put", "round"),
    *("slower", "dirty", "meeting", "other"),
)
RATES = (
    *("operands", "fabric", "memory", "cached", "written_back", "shares", "other_groups", "reads", "writes", "clock"),
)


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
        launches=one_of(1, 3),
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
        k_piece_m=one_of(2, 1000),
        lane_m=one_of(2, 16),
        lane_n=one_of(4, 16),
        lane_out=one_of(2, 16),
        others=one_of(0, 2),
        other_groups=one_of(0, 1000),
        other_read=one_of(0, 1e6),
        other_written=one_of(0, 1e9),
    )
    return Products(**{name: np.array([value]) for name, value in numbers.items()})


def one_product(**numbers: float) -> Products:
    """Two tiles of 128 x 128 a unit of f16, unless told otherwise."""
    usual = dict.fromkeys(("batch", "launches", "split", "k_runs_m", "k_runs_n"), 1.0)
    usual |= dict.fromkeys(("lane_m", "lane_n", "lane_out"), 16.0)
    usual |= dict.fromkeys(("waves_m", "waves_n", "elem", "result"), 2.0)
    usual |= {"m": 128.0 * CHIP.units, "n": 256.0, "k": 4096.0, "k_piece_m": 4096.0, "rate": 2048.0, "waves": 4.0}
    usual |= {**ALONE, "tile_m": 128.0, "tile_n": 128.0, "tile_k": 64.0}
    return Products(**{name: np.array([value]) for name, value in (usual | numbers).items()})


def total(p: Products, terms: Terms) -> float:
    return float(p.estimate(CHIP, terms).total[0])


@given(products(), st.sampled_from(COSTS), st.floats(1.01, 3))
def test_costs_make_it_slower(p: Products, name: str, times: float) -> None:
    usual = Terms()
    more = evolve(usual, **{name: getattr(usual, name) * times})
    assert total(p, more) >= total(p, usual)


@given(products(), st.sampled_from(RATES), st.floats(1.01, 3))
def test_rates_make_it_quicker(p: Products, name: str, times: float) -> None:
    usual = Terms()
    more = evolve(usual, **{name: getattr(usual, name) * times})
    assert total(p, more) <= total(p, usual)


@given(products(), st.sampled_from(["m", "n", "k", "batch", "other_groups", "other_read", "other_written"]))
def test_more_work_takes_longer(p: Products, name: str) -> None:
    """Twice the work takes at most a fifth less: tiles may become full, and more workgroups share what they read."""
    twice = evolve(p, **{name: 2 * getattr(p, name)})
    assert total(twice, Terms(rest=1)) >= 0.8 * total(p, Terms(rest=1))


#: Terms with which nothing but what is asked for takes long.
QUICK = Terms(
    start=1e-3,
    serial=1,
    far=1,
    operands=1e9,
    fabric=1e9,
    load=1e-3,
    put=1e-3,
    store=1e-9,
    shared=1e-3,
    round=1e-3,
    memory=1e12,
    written_back=1e12,
    clock=2100,
    power=1e-9,
)


def test_waits_hide_behind_matrix_instructions() -> None:
    """Two workgroups of 1024 matrix clocks an iteration each: waits of 500 clocks are free, of 4000 they are all."""
    busy, hidden, waiting = (total(one_product(), evolve(QUICK, serial=c)) for c in (1, 500, 4000))
    assert busy == pytest.approx(64 * 2 * 1024 / 2100, rel=1e-3)
    assert hidden == pytest.approx(busy, rel=1e-2)
    assert waiting == pytest.approx(64 * 4000 / 2100, rel=2e-2)


def test_a_workgroup_of_one_wave_has_one_simd() -> None:
    four, one = (total(one_product(n=128, waves=w, waves_m=w / 2, waves_n=w / 2), QUICK) for w in (4, 1))
    assert one == pytest.approx(4 * four, rel=1e-3)


def test_rows_that_do_not_exist_are_not_loaded() -> None:
    narrow, wide = (total(one_product(n=n), evolve(QUICK, operands=1)) for n in (1, 128))
    assert narrow == pytest.approx(wide * 129 / 256, rel=1e-2)


def test_launches_in_a_row_do_not_share_rounds() -> None:
    """Of 304 units, 152 each work in one of two launches; in one launch all do."""
    half = CHIP.units / 2
    numbers = {"m": 128 * half, "n": 128, "batch": 2}
    one, two = (total(one_product(**numbers, launches=n), QUICK) for n in (1, 2))
    assert two == pytest.approx(2 * one, rel=1e-3)


def test_pieces_of_k_bring_what_lies_between() -> None:
    whole, cut = (total(one_product(k_piece_m=n), evolve(QUICK, operands=8, run=64)) for n in (64, 2))
    assert cut > 5 * whole


@given(products())
def test_causes_are_parts_of_the_time(p: Products) -> None:
    found = p.estimate(CHIP, Terms())
    parts = [found.start, found.matrix, found.kernel, found.memory, found.written_back, found.reduction, found.others]
    assert all(0 <= float(part[0]) <= float(found.total[0]) for part in parts if part is not found.matrix)
    causes = ("start", "memory", "written back", "meeting", "others", "matrix", "operands and results")
    assert bounds(found)[0] in causes
    assert float(found.clock[0]) <= CHIP.clock


@given(st.floats(0, 1), st.floats(0, 1))
def test_clocks_fall_as_matrix_units_are_used(a: float, b: float) -> None:
    low, high = (at_clock(CHIP, Terms(), np.array([used]))[0] for used in sorted((a, b)))
    assert CHIP.clock >= low >= high > 0


def loops(**numbers: float) -> Loops:
    usual = {
        "groups": 700.0,
        "iterations": 20.0,
        "uneven": 1.0,
        "resident": 2.0,
        "matrix": 512.0,
        "operands": 8192.0,
        "iteration_full": 1200.0,
        "rest_full": 4000.0,
        "exposed_full": 1.0,
        "iteration_last": 700.0,
        "rest_last": 3000.0,
        "exposed_last": 1.0,
        "bytes_in": 1e6,
        "bytes_out": 1e5,
        "added": 0.0,
        **ALONE,
    }
    return Loops(**{name: np.array([value]) for name, value in (usual | numbers).items()})


def of_loops(terms: Terms, **numbers: float) -> float:
    return float(loops(**numbers).estimate(CHIP, terms).total[0])


@pytest.mark.parametrize("name", [f.name for f in fields_of(Loops) if f.name not in ("resident", "matrix")])
def test_more_of_anything_in_a_loop_takes_longer(name: str) -> None:
    values = [of_loops(Terms(), **{name: value}) for value in (1e5, 2e5, 4e5)]
    assert values == sorted(values)


def test_whole_rounds_and_the_last_one() -> None:
    """608 workgroups are one round of two a unit; 609 begin another, of one."""
    rates = {"operands": 1e9, "memory": 1e12, "written_back": 1e12}
    terms = Terms(**rates, far=0.001, start=1e-3, clock=2100, power=1e-9, matrix=1, store=1e-9)
    one = (20 * 1200 + 4000) / 2100
    assert of_loops(terms, groups=608) == pytest.approx(one, rel=1e-3)
    assert of_loops(terms, groups=609) == pytest.approx(one + (20 * 700 + 3000) / 2100, rel=1e-3)


def test_memory_is_further_away_only_as_far_as_a_loop_exposes_it() -> None:
    """What loads take longer that come from memory, 400 clocks, times what an iteration of 1200 exposes of them."""
    terms = Terms(operands=1e9, far=400, clock=1e4, power=1e-9, matrix=1)
    hidden, half, all_of_it = (
        loops(groups=608, bytes_in=1e12, exposed_full=each).estimate(CHIP, terms).kernel[0] for each in (0, 0.5, 1)
    )
    assert half - hidden == pytest.approx(20 * 200 / CHIP.clock)
    assert all_of_it - hidden == pytest.approx(20 * 400 / CHIP.clock)


@pytest.mark.parametrize("kept", ["bytes_out", "added"])
def test_a_unit_writes_the_results_of_its_workgroups(kept: str) -> None:
    """Two of 608, whether they are stored or added to sums."""
    work = loops(**{"groups": 608, "bytes_out": 0, "added": 0, kept: 608 * 65536})
    fast, slow = (Terms(clock=1e4, power=1e-9, store=clocks) for clocks in (0.1, 0.3))
    longer = work.estimate(CHIP, slow).kernel - work.estimate(CHIP, fast).kernel
    assert longer[0] == pytest.approx(2 * 65536 * 0.2 / CHIP.clock)


def test_constants_of_the_closed_form_have_stores_within_the_code_around_a_loop() -> None:
    work = loops(groups=608, bytes_out=608 * 65536)
    borrowed = LoopsOfClosedForm(**{f.name: getattr(work, f.name) for f in fields_of(Loops)})
    fast, slow = (Terms(clock=1e4, power=1e-9, store=clocks) for clocks in (0.1, 0.3))
    assert borrowed.estimate(CHIP, slow).kernel == borrowed.estimate(CHIP, fast).kernel
    assert work.estimate(CHIP, slow).kernel > borrowed.estimate(CHIP, slow).kernel


def test_clocks_between_those_known() -> None:
    one, two, four = Pace(100.0, 10.0, 0.0), Pace(200.0, 30.0, 0.4), Pace(300.0, 50.0, 1.0)
    known = LoopClocks("k", "gfx942", 256, 4, 1, 1.0, {1: one, 2: two, 4: four})
    assert [known.of(n) for n in (0, 1, 3, 4, 9)] == [one, one, (250, 40, 0.7), four, four]


# ---------------------------------------------------------------- constants and tables


def test_transposes_move_what_the_table_says(tables: list[Table]) -> None:
    """Where nothing else is launched beside a kernel; whole sectors hold at least these bytes."""
    table = next(t for t in tables if t.name == "miopen_gfx942_igemm")
    seen = 0
    for row in table.rows:
        found = [t for t in transposes_of(row) if min(t.rows, t.columns) > 1]
        moved = sum(2 * t.count * t.rows * t.columns * t.elem for t in found)
        if len(found) == int(row["aux_kernels"]):
            assert moved == float(row["aux_bytes"]), row["key"]
            seen += 1
        assert sum(t.read + t.written for t in found) >= moved
    assert seen > 2000


@pytest.mark.parametrize(
    ("transpose", "groups", "read"),
    [
        (Transpose(16, 128, 3136, 2), 16 * 4 * 98, 16 * 128 * 6272),  # tiles of 32 x 32
        (Transpose(16, 3136, 24, 4), 16 * 98 * 2, 16 * 3136 * 96),  # 32 x 16: more than 128 times as long as wide
        (Transpose(1, 3, 50176, 4), 196, 3 * 200704),  # 4 x 256
        (Transpose(1, 50176, 3, 4), 196, 50176 * 3 * 4),  # 256 x 4; rows of 12 bytes share sectors
        (Transpose(1, 40, 64, 2), 6, 40 * 128),  # 16 x 32 pads least
    ],
)
def test_tiles_of_transposes(transpose: Transpose, groups: int, read: float) -> None:
    """Of sizes for which the library's rules were followed by hand; what is read is never less than the matrix."""
    assert transpose.groups == groups
    assert transpose.read >= read


def test_a_product_gets_the_tile_of_least_clocks() -> None:
    """Large tiles for large products; narrow ones, and K cut, where there is little else."""
    terms = entries.known()["rocblas/mi250x/f16"].terms
    sizes = {**ALONE, "rate": 1024.0, "elem": 2.0, "result": 2.0, "batch": 1.0, "launches": 1.0}
    sizes |= {"k_runs_m": 1.0, "k_runs_n": 1.0, "k_piece_m": 8192.0, "lane_m": 16.0, "lane_n": 16.0, "lane_out": 16.0}
    large = tiled({**sizes, "m": 8192.0, "n": 8192.0, "k": 4096.0}, chips()["mi250"], terms)
    assert large["tile_m"] * large["tile_n"] >= 128 * 128
    assert large["split"] == 1
    narrow = tiled({**sizes, "m": 64.0, "n": 16.0, "k": 65536.0}, chips()["mi250"], terms)
    assert narrow["tile_n"] <= 32
    assert narrow["split"] > 8


@pytest.mark.parametrize(
    ("product", "elem", "tile", "padded"),
    [
        ((256, 12544, 64), 2, (128, 128, 16), False),
        ((64, 12544, 64), 2, (32, 64, 16), False),
        ((256, 49, 64), 2, (32, 64, 16), True),
        ((256, 77, 64), 2, (16, 16, 16), True),
        ((256, 128, 4), 4, (32, 64, 4), False),
        ((16, 16, 4), 2, (16, 16, 16), True),  # there is no instruction of so few positions
        ((16, 16, 4), 4, (16, 16, 4), False),
    ],
)
def test_tiles_of_mlir_pad_least(
    product: tuple[int, int, int], elem: float, tile: tuple[int, int, int], padded: bool
) -> None:
    found = tile_of(*product, elem)
    assert (found.rows, found.columns, found.depth) == tile
    assert found.padded == padded


def test_weight_gradients_of_mlir_share_out_images() -> None:
    """Up to 20 workgroups a unit, as many as divide images and leave whole blocks; none where tiles are padded."""
    product = (256.0, 256.0, 64.0 * 256)
    assert tile_of(*product, 2).split(product, 1, 64, 104) == 64
    assert tile_of(*product, 2).split(product, 32, 64, 104) == 16
    assert tile_of(250, 256, 64 * 256, 2).split((250, 256, 64 * 256), 1, 64, 104) == 1


def test_constants_are_physical() -> None:
    """Within their bounds; at full use of the matrix units .35 to .85 of the clock is kept (a die of an MI250: all)."""
    for kind, entry in entries.known().items():
        for f in FIELDS:
            low, high = f.metadata["low"], f.metadata["high"]
            assert 0.99 * low <= getattr(entry.terms, f.name) <= 1.01 * high, (kind, f.name)
        if entry.source.startswith("rocblas") or "/" not in kind:
            continue  # clocks of no chip, or of several
        chip = chips()[kind.split("/")[1]]
        full = float(at_clock(chip, entry.terms, np.ones(1))[0])
        assert 0.35 * chip.clock <= full <= 1.001 * chip.sustained * chip.clock, (kind, full)


def test_the_product_carries_the_constants_that_it_reaches_and_no_others() -> None:
    assert entries.reached(constants.known()) == constants.known().keys()
    assert entries.reached(entries.known()) == constants.known().keys()


def test_every_type_that_a_matrix_instruction_multiplies_has_its_constants_in_the_product() -> None:
    for (chip, _), element in product(entries.fitted(), [*BITS, "fp4", ""]):  # fp4: `costs.element`; "": no product
        assert constants.known().keys() >= set(launch_times.kinds_for(chip, element, entries.known())), element


def test_errors_are_those_recorded(tables: list[Table]) -> None:
    """On the rows that each entry was fitted to; the file's own figures must come out."""
    for table in tables:
        by_kind: dict[str, list[int]] = {}
        for n in np.flatnonzero(table.judged):
            for kind in table.fitted_kinds(table.rows[n]):
                by_kind.setdefault(kind, []).append(int(n))
        for kind, rows in by_kind.items():
            entry = entries.known().get(kind)
            if entry is None:
                continue
            assert entry.rows == len(rows)
            off = 100 * np.abs(_ratios(table, np.array(rows), entry.terms) - 1)
            assert (np.median(off), off.mean()) == pytest.approx((entry.median, entry.mean), abs=0.002), kind


def _ratios(
    table: Table, rows: np.ndarray[tuple[int], np.dtype[np.int64]], terms: Terms
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    chips = [table.samples[n].chip for n in rows]
    found = np.zeros(len(rows))
    for chip in dict.fromkeys(chips):
        mine = np.array([c is chip for c in chips])
        estimate = taken(table.work, rows[mine]).estimate(chip, terms, timed=table.timed)
        found[mine] = table.ratios(estimate.total, table.measured[rows[mine]])[table.measure]
    return found


def test_told_is_measured_where_ticks_are(tables: list[Table]) -> None:
    for table in tables:
        column = np.array([float(row[table.measure] or "nan") for row in table.rows])
        assert np.allclose(table.in_measured_unit(table.measured)[table.judged], column[table.judged])


def test_errors_are_told_in_the_unit_of_the_column(tables: list[Table]) -> None:
    """A product that takes twice as long as predicted has half the per cent of the peak."""
    told = {t.name: t.ratios(np.array([100.0]), np.array([200.0])) for t in tables}
    assert told["rocblas_gfx942"] == {"eff_pct": 2.0, "clocks": 0.5}
    assert told["miopen_gfx942_igemm"] == {"ms": 0.5}
    for table in tables:
        predicted = 1.5 * table.measured
        column = table.in_measured_unit(predicted) / table.in_measured_unit(table.measured)
        assert np.allclose(table.ratios(predicted, table.measured)[table.measure][table.judged], column[table.judged])


def test_some_rows_of_the_mi300x_are_from_an_mi300a(tables: list[Table]) -> None:
    table = next(t for t in tables if t.name == "rocblas_gfx942")
    where = {row["key"]: sample.chip.name for row, sample in zip(table.rows, table.samples)}
    assert where["4864x768x8192-NN-f32"] == "mi300a"  # 228 tiles: 97.7 % of the peak
    assert where["768x1024x3072-NN-f32"] == "mi300a"  # 192 tiles: 71 %, of 304 units these would be 63
    assert where["6144x4864x4096-NT-f32"] == "mi300x"  # not ordered in sixes
    assert where["70000x70000x70000-TT-f16"] == "mi300x"  # other types were not tuned there
    assert sum(chip == "mi300a" for chip in where.values()) == 161


def test_launches_of_one_tuning_run_begin_late(tables: list[Table]) -> None:
    """Its rows have constants of their own, and say nothing of those of others."""
    table = next(t for t in tables if t.name == "rocblas_gfx942")
    late = [row for row in table.rows if table.kinds(row)[0] == "rocblas/mi300x/f32/late"]
    assert len(late) == 39
    assert all((row["dtype"], row["trans"]) == ("f32", "NN") for row in late)
    assert {kind for row in late for kind in table.fitted_kinds(row)} == {"rocblas/mi300x/f32/late"}
    own, others = (entries.known()[f"rocblas/mi300x/f32{end}"].terms for end in ("/late", ""))
    assert own.start > 3 * others.start


def test_operands_reach_units_slowly_in_another_run(tables: list[Table]) -> None:
    """Its rows, of all types, have constants of their own, and say nothing of those of others."""
    table = next(t for t in tables if t.name == "rocblas_gfx942")
    slow = [row for row in table.rows if table.kinds(row)[0] == "rocblas/mi300x/slow"]
    assert len(slow) == 81
    assert {row["key"] for row in slow} >= {"1536x384x50432-NT-f16", "196x64x784b768-NT-bf16", "64x784x196b96-NN-f32"}
    assert {kind for row in slow for kind in table.fitted_kinds(row)} == {"rocblas/mi300x/slow"}
    own, others = (entries.known()[f"rocblas/mi300x{end}"].terms for end in ("/slow", ""))
    assert own.operands < others.operands / 2
    assert own.run > 2 * others.run


def test_none_of_an_mi300as_rows_has_more_than_its_units_can(tables: list[Table]) -> None:
    """Of the share of the peak that tiles in whole rounds leave; 304 units would have to do 1.32 times that."""
    table = next(t for t in tables if t.name == "rocblas_gfx942")
    rows = [n for n in np.flatnonzero(table.judged) if table.samples[n].chip.name == "mi300a"]
    work = taken(table.work, np.array(rows))
    assert isinstance(work, Products)
    measured = np.array([float(table.rows[n]["eff_pct"]) for n in rows]) / 100
    for units, most in (228, 0.99), (304, 1.32):
        tiles = np.ceil(work.groups / units) * np.ceil(work.depth / work.tile_k)
        share = work.m * work.n * work.k * work.batch / (units * tiles * work.tile_m * work.tile_n * work.tile_k)
        assert (measured / share).max() == pytest.approx(most, abs=0.005)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: read(Path("nowhere")), "given nowhere without tables, wanted one of rocblas_gfx90a,"),
        (lambda: read(MEASURED, ["sheep"]), "given the table sheep, wanted one of"),
        (lambda: entries.read(Path("nowhere")), "given nowhere that does not hold constants"),
    ],
)
def test_what_is_wrong_is_said(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


def test_chips_are_known_by_target_and_units() -> None:
    assert chip_of("gfx942", 80).name == "mi308x"
    with pytest.raises(UserError, match="given gfx942 with 81 units, wanted one of gfx90a with 104,"):
        chip_of("gfx942", 81)
