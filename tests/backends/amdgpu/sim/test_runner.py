"""bench/foreign.py: a folder of code objects with a manifest, run strictly and compared with numpy."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUNNER = Path(__file__).parents[4] / "bench" / "foreign.py"
FILES = (
    "triton_gfx942_small_gemm_NT.hsaco",
    "triton_gfx942_small_conv_3x3p1.hsaco",
    "triton_gfx950_small_gemm_NT.hsaco",
    "iree_gfx942_small_gemm_NT.hsaco",
)


def changed(sim: Any, folder: Path, file: str, **changes: Any) -> None:
    """A folder with one of the code objects, its entry changed."""
    (entry,) = (e for e in json.loads((sim.foreign / "manifest.json").read_text()) if e["file"] == file)
    shutil.copy(sim.foreign / file, folder / file)
    (folder / "manifest.json").write_text(json.dumps([entry | changes]))


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUNNER), str(folder), *options], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("strict", ["manual", "llvm"])
def test_a_folder(sim: Any, strict: str) -> None:
    done = run(sim.foreign, "--json", "--strict", strict)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["file"], row["status"], row["checked"]) for row in rows] == [
        (file, "passed", 2048 if "conv" in file else 128 * 128) for file in FILES
    ]
    assert all(row["instructions"] > 1000 and row["seconds"] > 0 for row in rows)


def test_a_table(sim: Any) -> None:
    done = run(sim.foreign, "--match", "iree")
    assert "iree_gfx942_small_gemm_NT" in done.stdout
    assert done.stdout.count("PASSED") == 1


def test_wrong_elements_fail(sim: Any, tmp_path: Path) -> None:
    """With one workgroup only, the other tiles keep what was there."""
    changed(sim, tmp_path, FILES[0], grid=[1, 1, 1])
    done = run(tmp_path, "--json")
    assert done.returncode == 1
    row = json.loads(done.stdout)
    assert (row["status"], row["mismatches"]) == ("failed", 3 * 64 * 64)


def test_what_the_simulator_finds_fails(sim: Any, tmp_path: Path) -> None:
    """Less local memory than the kernel uses."""
    changed(sim, tmp_path, FILES[1], shared=4096)
    done = run(tmp_path, "--json")
    assert done.returncode == 1
    row = json.loads(done.stdout)
    assert row["status"] == "failed"
    assert {f["kind"] for f in row["findings"]} == {"lds-bounds"}
    assert all(f["required"] for f in row["findings"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "error: cannot read"),
        ("[", "that is not JSON"),
        ("{}", "wanted a list of entries"),
        ('[{"file": "gone.hsaco"}]', "cannot read gone.hsaco"),
    ],
)
def test_requests_that_are_wrong(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    done = run(tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
