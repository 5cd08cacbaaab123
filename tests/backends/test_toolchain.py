"""Where tools are found: a variable first, then versioned names, the newest first, plain names, ROCm's folder."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from convgen.backends import toolchain
from convgen.backends.amdgpu import assemble as amdgpu
from convgen.backends.toolchain import CLANG, IGA64, LLVM_OBJDUMP, Tool
from convgen.commands import cli

GEMM = ["gemm", "32x32:32x32", "--dt", "f16"]


def program(path: Path, body: str = "") -> Path:
    """An executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only folder on PATH, empty; no variable is set, and there is no ROCm."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(toolchain, "ROCM", str(tmp_path / "rocm"))
    for tool in (CLANG, IGA64, LLVM_OBJDUMP):
        monkeypatch.delenv(tool.variable, raising=False)
    return folder


def test_the_order(bare: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert LLVM_OBJDUMP.find() is None
    names = ("../rocm/llvm-objdump", "llvm-objdump", "llvm-objdump-19", "llvm-objdump-23")
    for name in names:
        program(bare / name)
        assert Path(str(LLVM_OBJDUMP.find())).resolve() == (bare / name).resolve()
    found = [Path(path).resolve() for path in LLVM_OBJDUMP.all()]
    assert found == [(bare / name).resolve() for name in reversed(names)]
    for given in (str(program(tmp_path / "mine" / "dump")), "llvm-objdump-19"):
        monkeypatch.setenv("CONVGEN_LLVM_OBJDUMP", given)
        assert [Path(path).name for path in LLVM_OBJDUMP.all()] == [Path(given).name]


def test_clang_wants_the_linker_of_its_installation(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amdgpu, "find_spec", lambda name: None)
    program(bare / "clang-23")
    program(bare / "clang-19")
    assert list(amdgpu.available("gfx942")) == []
    program(bare / "ld.lld-19")
    program(bare / "llvm-mc-19")
    assert list(amdgpu.available("gfx942")) == ["llvm-mc-19", "clang-19"]
    monkeypatch.setenv("CONVGEN_CLANG", "clang-23")
    assert next(iter(amdgpu.available("gfx942"))) == "clang-23"


MISSING = {
    "CONVGEN_IGA64": [*GEMM, "--target", "xehpc", "-o", "{folder}/k"],
    "CONVGEN_CLANG": [*GEMM, "-o", "{folder}/k"],
    "CONVGEN_LLVM_OBJDUMP": [*GEMM, "--run", "-o", "{folder}/k"],
}


@pytest.mark.parametrize("variable", MISSING)
def test_a_variable_names_what_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, variable: str
) -> None:
    monkeypatch.setenv(variable, "/nowhere/tool")
    assert cli.main([word.format(folder=tmp_path) for word in MISSING[variable]]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said == [f"convgen: given {variable}=/nowhere/tool, wanted a program that can be run"]


CRASHES = {
    "killed": ("kill -SEGV $$", "crashed: it was killed by SIGSEGV"),
    "garbage": ("echo lorem ipsum; exit 3", "crashed: it cannot assemble a nop: lorem ipsum"),
    "silent": ("exit 0", "given nothing from iga64, wanted machine code"),
    "fine until used": (
        'case "$(cat kernel.asm)" in nop) echo x >kernel.bin;; *) kill -ABRT $$;; esac',
        "crashed: it was killed by SIGABRT",
    ),
    "foolish": (
        'case "$(cat kernel.asm)" in nop) echo x >kernel.bin;; *) echo what; exit 1;; esac',
        "crashed: it cannot do its work: what",
    ),
}


@pytest.mark.parametrize("name", CRASHES)
def test_an_iga64_that_does_not_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    body, message = CRASHES[name]
    monkeypatch.setenv("CONVGEN_IGA64", str(program(tmp_path / "iga64", body)))
    assert cli.main([*GEMM, "--target", "xehpc", "-o", str(tmp_path / "k")]) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert message in said
    assert "iga64" in said


def test_what_is_wanted_names_the_variable() -> None:
    assert IGA64.how_to_install == "Debian: libigc-tools; or CONVGEN_IGA64 names one"
    assert Tool("x", "y").how_to_install == "Debian: y"


def test_an_old_llvm_is_not_taken_for_a_newer_processor(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """LLVM 18 assembles for gfx942, not for gfx950; convgen writes text then, and refuses to run."""
    monkeypatch.setattr(amdgpu, "find_spec", lambda name: None)
    monkeypatch.setattr(amdgpu, "library", lambda first: None)
    for name in ("llvm-mc-18", "ld.lld-18", "llvm-objdump-18"):
        program(bare / name)
    assert list(amdgpu.available("gfx942")) == ["llvm-mc-18"]
    assert list(amdgpu.available("gfx950")) == []
    assert LLVM_OBJDUMP.find("gfx950") is None
    assert cli.main([*GEMM, "--target", "gfx950", "--run", "-o", str(tmp_path / "k")]) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert "LLVM 20 or newer" in said


def test_a_program_without_a_version_says_which_llvm_is_wanted(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program(bare / "clang", "echo \"error: unknown target CPU 'gfx950'\" >&2; exit 1")
    monkeypatch.setenv("CONVGEN_CLANG", "clang")
    assert cli.main([*GEMM, "--target", "gfx950", "-o", str(tmp_path / "k")]) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert "given gfx950 with clang, which does not know it; wanted LLVM 20 or newer" in said
