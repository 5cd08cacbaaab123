"""bench/published.py: what was quicker when others measured it is quicker by convgen's models."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"
DATA = Path(__file__).parents[1] / "data"
FOLDER = DATA / "measured"

#: What is told wrong: an address that is no multiple of 16 is served lane by lane, which nobody counts here.
MISSED = {"Gluon LDS: rows of 1024 B, 32 B a lane, 1024:+4"}
#: Part -> how many figures it compares.
PARTS = {"windows": 4, "reorders": 5, "phases": 4, "paddings": 9, "hit_rates": 11}


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("published")


@pytest.mark.parametrize("part", PARTS)
def test_all_but_the_known_misses_are_right(published: ModuleType, part: str) -> None:
    found = list(getattr(published, part)(FOLDER))
    assert len(found) == PARTS[part]
    wrong = {f"{row.source}: {row.what}" for row in found if not row.right}
    assert wrong == {row for row in MISSED if row in {f"{r.source}: {r.what}" for r in found}}


@pytest.mark.sweep
def test_steps_of_the_ladder_that_configs_take(published: ModuleType) -> None:
    found = list(published.ladder(FOLDER, None))
    assert [row.what for row in found if row.right] == [
        "v3_lds to v4_global_prefetch",
        "v5_local_prefetch to v5_local_prefetch, scheduled",
        "v8_sliceMN to v9_beyond_hotloop",
    ]


def test_the_ladder_from_machine_code(published: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kernels stand for two of it: each has a level, and the second is compared with the first."""
    monkeypatch.setattr(published, "_taken", lambda table: ())
    for name, file in (("v2_async_copy", "small_gemm_NT"), ("v5_local_prefetch", "small_conv_3x3p1")):
        shutil.copy(DATA / "foreign" / f"triton_gfx942_{file}.hsaco", tmp_path / f"{name}.hsaco")
    first, second, step = published.ladder(FOLDER, tmp_path)
    assert (first.what, second.what) == ("v2_async_copy", "v5_local_prefetch")
    assert 0 < second.told < first.told < 100
    assert first.right is None
    assert step.told == pytest.approx(second.told / first.told)
    assert step.measured == pytest.approx(58.35 / 32.81)
    assert not step.right


def test_levels_are_near(published: ModuleType) -> None:
    """No verdict, but the closed form is not far from the best library."""
    found = list(published.levels(FOLDER))
    assert len(found) == 10
    assert all(row.right is None and 0.6 < row.told / row.measured < 1.6 for row in found)


@pytest.mark.parametrize(
    ("unit", "measured", "told", "right"),
    [
        ("times", 1.1, 1.001, True),
        ("times", 1.1, 0.999, False),
        ("times", 0.8, 0.9, True),
        ("times", 1.005, 0.995, True),
        ("times", 1.1, 1.0, False),
        ("% hits", 60.0, 64.9, True),
        ("% hits", 60.0, 54.9, False),
        ("clocks", 32.0, 33.0, False),
        ("TFLOP/s", 100.0, 1.0, None),
    ],
)
def test_verdicts(published: ModuleType, unit: str, measured: float, told: float, right: bool | None) -> None:
    assert published.Row("", "", unit, measured, told).right is right


def test_lanes_that_do_not_wait_as_measured_are_counted(published: ModuleType, tmp_path: Path) -> None:
    """One pair of lanes changed in the matrix: both of its halves say the same, one is read."""
    folder = tmp_path / "hipkittens" / "phases"
    folder.mkdir(parents=True)
    text = (FOLDER / "hipkittens" / "phases" / "ds_read_b64_phase.txt").read_text().splitlines()
    last = text[-1].split()
    assert (last[0], last[1]) == ("63", "0")
    last[1] = "1"
    (folder / "ds_read_b64_phase.txt").write_text("\n".join([*text[:-1], " ".join(last)]))
    (row,) = published.phases(tmp_path)
    assert (row.measured, row.told, row.right) == (2016, 2015, False)


def test_a_folder_without_figures_is_refused(published: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as refused:
        published.main([str(tmp_path)])
    assert refused.value.code == 2


def test_figures_as_json(published: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of what a folder has, and of nothing else."""
    (tmp_path / "hipkittens").mkdir()
    shutil.copy(FOLDER / "hipkittens" / "grid_micro.json", tmp_path / "hipkittens")
    assert published.main([str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["rows"]
    assert [row["what"] for row in found] == ["32 to 0", "0 to 2", "2 to 4", "4 to 8"]
    assert all(row["right"] for row in found)
