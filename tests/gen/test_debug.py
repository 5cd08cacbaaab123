"""`-g`: every line that the code refers to is a statement of the listing beside it; the code itself stays."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from convgen.backends import target as targets
from convgen.backends.toolchain import LLVM_OBJDUMP
from convgen.commands.cli import main

OBJDUMP = LLVM_OBJDUMP.find() or LLVM_OBJDUMP.name
DWARFDUMP = OBJDUMP.replace("objdump", "dwarfdump")
DESC = ("mb1ic64ih8oc64kh3ph1", "--dir", "FWD_D", "--dt", "f16")


def generate(folder: Path, *knobs: str) -> str:
    assert main(["conv", *DESC, "-o", f"{folder}/k", *knobs]) == 0
    return (folder / "k.s").read_text()


def instructions(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(r" {4}[a-z]", line)]


def test_lines_lead_into_the_listing(tmp_path: Path) -> None:
    text = generate(tmp_path, "-g")
    (name,) = re.findall(r'\.file 1 "(.*)"', text)
    listing = (tmp_path / name).read_text().splitlines()
    lines = [int(n) for n in re.findall(r"\.loc 1 (\d+)", text)]
    assert len(lines) > 50
    assert any("global" in listing[n - 1] for n in lines)
    assert any("shared" in listing[n - 1] for n in lines)
    assert any("mma." in listing[n - 1] for n in lines)


def test_each_kernel_has_a_listing_of_its_own(tmp_path: Path) -> None:
    apart = ["--config", "tile=32x32x32 waves=1x1 mma=16x16x16 slots=1 taps=fused"]
    line = ["conv", "mb1ic8oc8ih6kh3ph1sh2", "--dir", "BWD_D", "--dt", "f16", *apart]
    assert main([*line, "-o", f"{tmp_path}/k", "-g"]) == 0
    text = (tmp_path / "k.s").read_text()
    files = re.findall(r'\.file ([1-9]) "(.*)"', text)
    assert [int(number) for number, _ in files] == [1, 2, 3, 4]
    assert all((tmp_path / name).exists() for _, name in files)


def test_the_code_is_the_same(tmp_path: Path) -> None:
    assert instructions(generate(tmp_path, "-g")) == instructions(generate(tmp_path))


def test_the_object_holds_a_line_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conv", *DESC, "-g", "-o", f"{tmp_path}/k"]) == 0
    code = targets.get("gfx942").assemble((tmp_path / "k.s").read_text())
    assert code is not None
    assert b".debug_line" in code
    assert code == (tmp_path / "k.hsaco").read_bytes()  # no folder of this machine is in it
    assert capsys.readouterr().err == ""


TWO_KERNELS = ("mb1ic8oc8ih6kh3ph1sh2", "--dir", "BWD_D", "--dt", "f16")


@pytest.mark.parametrize("request_", [DESC, TWO_KERNELS])
def test_the_disassembler_interleaves_statements(request_: tuple[str, ...], tmp_path: Path) -> None:
    """It looks for the listings where it runs."""
    assert main(["conv", *request_, "-g", "-o", f"{tmp_path}/k"]) == 0
    command = [OBJDUMP, "-S", "k.hsaco"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()
    statements = {line.strip() for file in tmp_path.glob("*.ir") for line in file.read_text().splitlines()}
    quoted = [line[1:].strip() for line in shown if line.startswith(";")]
    assert len(quoted) > 50
    assert set(quoted) <= statements
    load = next(n for n, line in enumerate(shown) if "buffer_load" in line)
    assert "global" in next(line for line in reversed(shown[:load]) if line.startswith(";"))


@pytest.mark.skipif(shutil.which(DWARFDUMP) is None, reason="llvm-dwarfdump is not installed")
@pytest.mark.parametrize("request_", [DESC, TWO_KERNELS])
def test_the_debug_information_is_well_formed(request_: tuple[str, ...], tmp_path: Path) -> None:
    assert main(["conv", *request_, "-g", "-o", f"{tmp_path}/k"]) == 0
    checked = subprocess.run(
        [DWARFDUMP, "--verify", f"{tmp_path}/k.hsaco"], capture_output=True, text=True, check=False
    )
    assert checked.stdout.splitlines()[-1] == "No errors."
    assert checked.returncode == 0
