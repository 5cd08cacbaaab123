"""Code of hosts that compile at run time: from the compile cache, with the registry's config, in parallel."""

from __future__ import annotations

from pathlib import Path

import pytest

import convgen as cg
from convgen import driver
from convgen.cached_code import cached_code, compile_ahead
from convgen.registry import Entry, Registry
from convgen.run import cache

LINES = ["--dir=FWD_D --dt=f16 mb1_ic16oc16_ih4oh2kh3ph0", "--dt=f16 32x32:32x32"]
CONFIG = "tile=32x32x16 waves=1x2 mma=8x16x16 slots=1 taps=split acc=v"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))


def test_the_second_code_comes_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = cg.Matmul.parse("32x32:32x32", dt="f16")
    first = cached_code(problem, "sm_90a")
    monkeypatch.setattr(driver, "build", None)
    second = cached_code(problem, "sm_90a")
    assert (second.asm, second.record, second.config) == (first.asm, first.record, first.config)


def test_problems_are_compiled_ahead_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = "--dir=FWD_D --dt=f16 --attr-post-ops=dw:k3s1p1 mb1_ic16oc16_ih6oh6kh3ph1"
    (line,) = refusals = compile_ahead([*LINES, refused, *LINES], "sm_90a", 2)
    assert line == refused
    assert "dw" in refusals[line]
    monkeypatch.setattr(driver, "build", None)
    for text in LINES:
        problem = cg.Conv.parse(text) if "mb" in text else cg.Matmul.parse(text)
        assert cached_code(problem, "sm_90a").object is not None
    assert compile_ahead([], "sm_90a", 2) == {}


def test_the_registry_chooses_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = cg.Matmul.parse("32x32:32x32", dt="f16")
    config = str(driver.build(problem, "sm_90a", CONFIG).config)
    assert cached_code(problem, "sm_90a").config != config
    entry = Entry.of_result("sm_90a", str(problem), config, 1.0, "test")
    (tmp_path / "r").write_text(str(Registry({entry.key: entry})))
    monkeypatch.setenv("CONVGEN_REGISTRY", str(tmp_path / "r"))
    assert cached_code(problem, "sm_90a").config == config
