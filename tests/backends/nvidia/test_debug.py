"""`-g`: `.loc` lines of PTX are statements of the listing beside it; the code itself stays, and ptxas takes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import convgen as cg
from convgen.backends import target as targets
from convgen.backends.nvidia.assemble import compiled
from convgen.backends.toolchain import PTXAS
from convgen.commands import cli
from convgen.problem.matmul import parse_problem

CONV = ["conv", "mb1ic64ih8oc64kh3ph1", "--dir", "FWD_D", "--dt", "f16", "--target", "sm_90"]
PHASES = ["conv", "mb1ic8oc8ih6kh3ph1sh2", "--dir", "BWD_D", "--dt", "f16", "--target", "sm_90"]
APART = ["--config", "tile=32x32x32 waves=1x1 mma=8x16x16 slots=1 taps=fused"]
_LOC = re.compile(r"\s*\.loc (\d+) (\d+) 0$")


def generate(folder: Path, *words: str) -> str:
    assert cli.main([*words, "-o", f"{folder}/k"]) == 0
    return (folder / "k.ptx").read_text()


def test_lines_lead_to_the_statements_that_instructions_came_from(tmp_path: Path) -> None:
    text = generate(tmp_path, *CONV, "-g")
    (name,) = re.findall(r'^\.file 1 "(.*)"$', text, re.M)
    listing = (tmp_path / name).read_text().splitlines()
    statement, seen = "", set()
    for line in text.splitlines():
        if loc := _LOC.match(line):
            statement = listing[int(loc[2]) - 1]
        for mnemonic, word in (
            ("mma.sync", "mma."),
            ("st.global", "flat dst"),
            ("ldmatrix", "matrices"),
            ("bar.sync", "barrier"),
        ):
            if mnemonic in line and _LOC.match(line) is None:
                seen.add(mnemonic)
                assert word in statement, (line, statement)
    assert {"mma.sync", "st.global", "bar.sync"} <= seen


def test_the_code_is_the_same(tmp_path: Path) -> None:
    with_lines = [
        line for line in generate(tmp_path, *CONV, "-g").splitlines() if not re.match(r"\s*\.(loc|file) ", line)
    ]
    assert with_lines == generate(tmp_path, *CONV).splitlines()


def test_each_kernel_has_a_listing_of_its_own(tmp_path: Path) -> None:
    text = generate(tmp_path, *PHASES, *APART, "-g")
    files = re.findall(r'^\.file (\d) "(.*)"$', text, re.M)
    assert [int(number) for number, _ in files] == [*range(1, len(files) + 1)]
    assert len(files) > 1
    assert all((tmp_path / name).exists() for _, name in files)
    kernels = text.split(".visible .entry ")[1:]
    assert [{loc[1] for loc in map(_LOC.match, k.splitlines()) if loc} for k in kernels] == [{n} for n, _ in files]


def test_the_analysis_knows_the_lines(tmp_path: Path) -> None:
    generate(tmp_path, *CONV, "-g")
    (kernel,) = targets.analyze(tmp_path / "k.ptx").kernels
    places = {kernel.sources[line.offset] for line in kernel.lines if line.kind == "mma"}
    listing = (tmp_path / f"{kernel.name}.ir").read_text().splitlines()
    assert places
    for place in places:
        name, _, number = place.partition(":")
        assert name == f"{kernel.name}.ir"
        assert "mma." in listing[int(number) - 1]


@pytest.mark.skipif(PTXAS.find() is None, reason="ptxas is not installed")
def test_ptxas_makes_a_line_table(tmp_path: Path) -> None:
    text = generate(tmp_path, *CONV, "-g")
    cubin = (tmp_path / "k.cubin").read_bytes()
    assert b".debug_line" in cubin
    assert re.findall(r'^\.file 1 "(.*)"$', text, re.M)[0].encode() in cubin
    again = compiled(text)
    assert again is not None
    assert again.content == cubin
    plain = compiled(cg.compile(cg.build(parse_problem("--dt=f16 32x32:32x32"), "sm_90")).asm)
    assert plain is not None
    assert b".debug_line" not in plain.content


def test_the_simulator_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*CONV, "-g", "--run-groups", "1"]) == 0
    assert "PASSED" in capsys.readouterr().out
