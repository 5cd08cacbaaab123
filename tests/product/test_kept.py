"""Refactoring keeps instructions: the code of problems, digested without comments and names.

tests/golden/kept/TARGET.txt has a line a case: the digest of the assembly text, the problem, the config. Changes that
mean to alter code bless the digests (`./dev bless` rewrites all lines); changes that do not must leave each alone.

Each run compares a few lines of a target. Which ones follows from the sources of the product: two runs of one commit
compare the same lines, and commits go through all of them, so that lines that went stale unnoticed come up.
"""

from __future__ import annotations

import hashlib
import re
import sys
import zlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from convgen import driver
from convgen.backends import target as targets
from convgen.ir.expr import restart_ids
from convgen.ir.mutate import greatest_id
from convgen.passes import pipeline
from convgen.problem.matmul import parse_problem
from tests import samples
from tests.conftest import FOLDER, blessing

TARGETS = samples.TARGETS
IN_EVERY_RUN = 4  #: cases a target; `./dev test-all` takes all
IN_EVERY_LINE = 16  #: cases between two lines of `./dev bless` that say how far it is

Case = tuple[str, str, str, str]  #: digest, target, problem, config

_COMMENT = re.compile(r"[ \t]*(?:;|//).*")


def instructions(text: str, names: list[str]) -> str:
    """Assembly text without comments and empty lines, its kernels named by their number."""
    for number, name in enumerate(names):
        text = text.replace(name, f"kernel{number}")
    lines = (_COMMENT.sub("", line) for line in text.splitlines())
    return "\n".join(line for line in lines if line.strip())


def digest(target: str, problem: str, config: str) -> str:
    """Return the digest of a module's instructions, with padding that takes part in sums (`padding=zeros`)."""
    program = driver.build(parse_problem(problem), target, f"{config} padding=zeros")
    to = targets.get(target)
    restart_ids(greatest_id(*program.ir.kernels))
    emitted = [to.emit(pipeline.run(kernel, to.facts)) for kernel in program.ir.kernels]
    text = instructions(to.module(emitted), [e.name for e in emitted])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _file(target: str) -> Path:
    return FOLDER / "kept" / f"{target}.txt"


def kept_cases(target: str) -> list[Case]:
    rows = (line.split(" | ") for line in _file(target).read_text().splitlines())
    return [(was, target, problem, config) for was, problem, config in rows]


@cache
def _turn() -> int:
    """Return a number that the sources of the product determine."""
    root = Path(__file__).parents[2]
    sources = sorted(path for room in ("ir", "passes", "gen", "backends") for path in (root / room).rglob("*.py"))
    turn = 0
    for path in sources:
        turn = zlib.crc32(path.read_bytes(), turn)
    return turn


def some_of(cases: list[Case], turn: int) -> list[Case]:
    """Return `IN_EVERY_RUN` cases, evenly spaced; `turn` says where they begin."""
    return [cases[(turn + n * len(cases) // IN_EVERY_RUN) % len(cases)] for n in range(IN_EVERY_RUN)]


def digested(cases: Iterable[Case]) -> list[Case]:
    """Return the cases with the digests of today's code."""
    return [(digest(target, problem, config), target, problem, config) for _, target, problem, config in cases]


def test_runs_come_to_every_line() -> None:
    cases = kept_cases("gfx942")
    runs = [some_of(cases, turn) for turn in range(1000)]
    assert {len(run) for run in runs} == {IN_EVERY_RUN}
    assert {case for run in runs for case in run} == set(cases)


@pytest.mark.parametrize("target", TARGETS)
def test_a_few_keep_their_instructions(target: str) -> None:
    if not blessing():  # when all are rewritten
        cases = some_of(kept_cases(target), _turn())
        assert digested(cases) == cases


@pytest.mark.sweep
@pytest.mark.blesses
@pytest.mark.parametrize("target", TARGETS)
def test_all_keep_their_instructions(target: str, capfd: pytest.CaptureFixture[str]) -> None:
    cases, now = kept_cases(target), list[Case]()
    for first in range(0, len(cases), IN_EVERY_LINE):
        now += digested(cases[first : first + IN_EVERY_LINE])
        if blessing():
            changed = sum(a != b for a, b in zip(cases, now))
            with capfd.disabled():
                print(f"kept/{target}.txt: {len(now)} of {len(cases)} kernels, {changed} changed", file=sys.stderr)
    if blessing():
        _file(target).write_text("".join(f"{was} | {problem} | {config}\n" for was, _, problem, config in now))
    else:
        assert now == cases
