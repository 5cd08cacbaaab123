"""What the commands print, whole, or a digest of what is long: `./dev bless` accepts another text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from convgen.commands.cli import main
from tests import samples

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"
CONV = ["conv", "mb1ic16oc16ih6kh3ph1", "--dir", "FWD_D", "--dt", "f16"]
SHORT = [*CONV, "--config", "tile=32x32x32 waves=1x2 mma=16x16x16"]
BATCH = """\
--dir=FWD_D --dt=f16,f32
mb1ic16oc16ih6kh3ph1 mb1ic16oc16ih6kh3ph1nmiddle
g2ic16oc16ih6kh3ph1 ic2147483640oc16ih6kh3ph1
--reset --dir=BWD_D mb1ic16oc16ih6kh3ph1sh2
--matmul --reset --dt=s8:s8:s32 16x64:64x16
conv nonsense
"""
COMMANDS = {
    "passes": ["passes"],
    "targets": ["targets"],
    "conv": SHORT,
    "conv_ranking": [*CONV, "-v"],
    "conv_run": [*SHORT, "--run"],
    "conv_json": [*SHORT, "--run", "--json"],
    "conv_groups": [*SHORT, "--run-groups=1"],
    "conv_dump": [*SHORT, "--dump=changed"],
    "gemm": ["gemm", "40x24:24x20", "--dt", "f16", "--target", "xehpc"],
    "gemm_refused": ["gemm", "40x24:24x20", "--dt", "f16", "--attr-dropout", "0.5"],
    "batch_check": ["batch", "problems.txt", "--check"],
    "batch_check_json": ["batch", "problems.txt", "--check", "--json"],
    "analyze": ["analyze", str(FOREIGN / "triton_gfx942_small_gemm_NT.hsaco")],
    "analyze_json": ["analyze", str(FOREIGN / "triton_gfx950_small_gemm_NT.hsaco"), "--json"],
    "analyze_lines": ["analyze", str(FOREIGN / "triton_gfx942_small_gemm_NT.hsaco"), "-v"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_output(
    name: str,
    golden: Callable[[str, str], None],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Standard output, then what is told besides; without times and sizes of objects, which differ."""
    monkeypatch.chdir(tmp_path)
    Path("problems.txt").write_text(BATCH)
    try:
        code = main(COMMANDS[name])
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    text = f"{out}--\n{err}exit {code}\n"
    text = re.sub(r'("(?:\w+_s|seconds)": )[0-9.e-]+', r"\1TIME", text)
    text = re.sub(r"(?m)^(stages +).*", r"\1TIMES", text)
    text = re.sub(r"\b[0-9.]+ m?s\b", "TIME", text)
    text = re.sub(r"object of \d+ bytes", "object of SIZE bytes", text)
    text = text.replace(str(FOREIGN), "FOREIGN")
    golden(f"outputs/{name}.txt", text if text.count("\n") < 100 else f"{samples.digest(text)}\n")
