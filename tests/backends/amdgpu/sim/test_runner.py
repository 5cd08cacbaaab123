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
TENSORS = [
    {"n": "A", "t": "f16*", "shape": [128, 128]},
    {"n": "B", "t": "f16*", "shape": [128, 128]},
    {"n": "C", "t": "*fp32", "shape": [128, 128]},
]
ENTRIES: dict[str, dict[str, Any]] = {
    "triton_gfx942_small_gemm_NT.hsaco": {
        "kernel": "gemm",
        "grid": [4, 1, 1],
        "args": TENSORS + [{"n": n, "t": "i32", "value": 128} for n in ("M", "N", "K", "sa", "sb", "sc")],
        "shared": 8192,
    },
    "triton_gfx942_small_conv_3x3p1.hsaco": {
        "kernel": "conv",
        "grid": [1, 1, 1],
        "args": [
            {"n": "X", "t": "f16*", "shape": [1, 8, 8, 32]},
            {"n": "Wt", "t": "f16*", "shape": [32, 3, 3, 32]},
            {"n": "Y", "t": "*fp32", "shape": [1, 8, 8, 32]},
        ],
        "shared": 6144,
    },
    "iree_gfx942_small_gemm_NT.hsaco": {
        "kernel": None,
        "args": None,
        "launches": [{"kernel": "mm_dispatch_0_matmul_like_128x128x128_f16xf16xf32", "grid": [2, 1, 1]}],
    },
}


def manifest(sim: Any, folder: Path, **changes: Any) -> None:
    """The folder with its code objects; `changes` go into every entry, those of `grid` into the launch."""
    entries = []
    for file, entry in ENTRIES.items():
        shutil.copy(sim.foreign / file, folder / file)
        made = json.loads(json.dumps({"file": file, **entry}))
        where = made["launches"][0] if "launches" in made else made
        where.update({"block": [256, 1, 1], **changes})
        entries.append(made)
    (folder / "manifest.json").write_text(json.dumps(entries))


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUNNER), str(folder), *options], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("strict", ["manual", "llvm"])
def test_a_folder(sim: Any, tmp_path: Path, strict: str) -> None:
    manifest(sim, tmp_path)
    done = run(tmp_path, "--json", "--strict", strict)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["file"], row["status"], row["checked"]) for row in rows] == [
        (file, "passed", 2048 if "conv" in file else 128 * 128) for file in ENTRIES
    ]
    assert all(row["instructions"] > 1000 and row["seconds"] > 0 for row in rows)


def test_a_table(sim: Any, tmp_path: Path) -> None:
    manifest(sim, tmp_path)
    done = run(tmp_path, "--match", "iree")
    assert "iree_gfx942_small_gemm_NT" in done.stdout
    assert done.stdout.count("PASSED") == 1


def test_wrong_elements_fail(sim: Any, tmp_path: Path) -> None:
    """With one workgroup only, the other tiles keep what was there."""
    manifest(sim, tmp_path, grid=[1, 1, 1])
    done = run(tmp_path, "--json", "--match", "triton_gfx942_small_gemm")
    assert done.returncode == 1
    row = json.loads(done.stdout)
    assert (row["status"], row["mismatches"]) == ("failed", 3 * 64 * 64)


def test_what_the_simulator_finds_fails(sim: Any, tmp_path: Path) -> None:
    manifest(sim, tmp_path, block=[192, 1, 1])
    done = run(tmp_path, "--json", "--match", "conv")
    assert done.returncode == 1
    assert json.loads(done.stdout)["status"] == "failed"


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
