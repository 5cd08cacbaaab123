"""bench/measured.py --write: the constants that come with convgen come out again."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest
from lib import entries
from lib.published.read import read
from rich.console import Console

import convgen
from convgen.ir.record import as_dict
from convgen.profile import constants as shipped
from convgen.profile.constants import Entry

BENCH = Path(__file__).parents[2] / "bench"
MEASURED = Path(__file__).parents[1] / "data" / "measured"
SHIPPED = Path(shipped.__file__).parent / "constants.json"
GIVEN = ("--constants", str(SHIPPED), "--constants", str(entries.REST))
CODE = "_code"  #: at the end of tables that are told from machine code, which is not at hand

FIGURES = 0.02  #: per cent by which errors may differ, of other versions of numpy, say
TERMS = 0.02  #: and of themselves, constants


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("measured")


def same(found: dict[str, Entry], wanted: dict[str, Entry]) -> None:
    assert found.keys() == wanted.keys()
    for kind, entry in found.items():
        for name in ("source", "rows"):
            assert getattr(entry, name) == getattr(wanted[kind], name), kind
        for name in ("median", "mean"):
            assert getattr(entry, name) == pytest.approx(getattr(wanted[kind], name), abs=FIGURES), kind
        assert as_dict(entry.terms) == pytest.approx(as_dict(wanted[kind].terms), rel=TERMS), kind


def test_one_table_is_fitted_as_before(measured: ModuleType, tmp_path: Path) -> None:
    """The others stay as they are; each file holds its own."""
    product, rest = tmp_path / "product.json", tmp_path / "rest.json"
    measured.main([str(MEASURED), "--only", "rocblas_gfx942", "--write", str(product), str(rest)])
    same(entries.read(product), shipped.known())
    same(entries.read(rest), entries.read(entries.REST))


@pytest.mark.sweep
def test_all_constants_that_need_no_machine_code(measured: ModuleType, tmp_path: Path) -> None:
    """Without machine code the product would take others of them, so the two files are compared as one."""
    product, rest = tmp_path / "product.json", tmp_path / "rest.json"
    measured.main([str(MEASURED), "--write", str(product), str(rest)])
    wanted = {kind: entry for kind, entry in entries.known().items() if not entry.source.endswith(CODE)}
    same(entries.read(product) | entries.read(rest), wanted)


def test_errors_stand_in_the_unit_that_predictions_have(measured: ModuleType) -> None:
    """First; then those in clocks, of which a prediction may be off more or less."""
    (table,) = read(MEASURED, ["rocblas_gfx942"])
    first, then = measured.report(table, 2 * table.measured)[:2]
    assert [(f.what, f.unit) for f in (first, then)] == [("all", "eff_pct"), ("all", "clocks")]
    assert (first.median, first.mean, first.bias) == pytest.approx((50, 50, 0.5))
    assert (then.median, then.mean, then.bias) == pytest.approx((100, 100, 2))


def test_tiles_are_chosen_by_the_constants_that_are_given() -> None:
    """Those of rocBLAS on the same chip, which the fit finds before."""
    (table,) = read(MEASURED, ["miopen_gfx90a_nhwc"], entries={})
    row = next(row for row in table.rows if row["solver"].startswith("ConvAsm") and row["dir"] == "F")
    with pytest.raises(KeyError, match="rocblas/mi250x/"):
        table.sample(row)
    (table,) = read(MEASURED, ["miopen_gfx90a_nhwc"])
    assert table.sample(row).numbers["tile_m"] >= 16


def test_clocks_of_a_code_object_are_kept_and_read_back(
    measured: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--clocks FILE holds them as JSON."""
    problem = convgen.Conv.parse("mb1ic64ih14oc64oh14kh3ph1", dir="FWD_D", dt="f16")
    folder, kept = tmp_path / "kernels", tmp_path / "clocks.json"
    folder.mkdir()
    code = convgen.compile(convgen.build(problem, target="gfx942")).object
    assert code is not None
    (folder / "k.hsaco").write_bytes(code)
    arguments = [str(MEASURED), "--only", "aiter_gemm", *GIVEN, "--json"]
    assert measured.main([*arguments, "--kernels", str(folder), "--clocks", str(kept)]) == 0
    first = capsys.readouterr().out
    assert "figures" in first
    assert len(json.loads(kept.read_text())) == 1
    clocks = measured.clocks_of(folder, None, Console())
    assert measured.clocks_of(folder, kept, Console()) == clocks
    ((target, _),) = clocks
    assert target == "gfx942"
    assert clocks[target, _].shared[1].rest > 0
