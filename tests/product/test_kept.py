"""Refactoring keeps instructions: the code of 360 kernels' worth of problems, digested without comments and names.

tests/golden/kept/TARGET.txt has a line a case: the digest of the assembly text, the problem, the config. Changes that
mean to alter code bless the digests; changes that do not must leave every line alone.
"""

from __future__ import annotations

import hashlib
import re
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

_COMMENT = re.compile(r"[ \t]*(?:;|//).*")


def instructions(text: str, names: list[str]) -> str:
    """Assembly text without comments and empty lines, its kernels named by their number."""
    for number, name in enumerate(names):
        text = text.replace(name, f"kernel{number}")
    lines = (_COMMENT.sub("", line) for line in text.splitlines())
    return "\n".join(line for line in lines if line.strip())


def digest(target: str, problem: str, config: str) -> str:
    """Of the module's instructions, with padding that takes part in sums: kernels of before it was kept out."""
    program = driver.build(parse_problem(problem), target, f"{config} padding=zeros")
    to = targets.get(target)
    restart_ids(greatest_id(*program.ir.kernels))
    emitted = [to.emit(pipeline.run(kernel, to.facts)) for kernel in program.ir.kernels]
    text = instructions(to.module(emitted), [e.name for e in emitted])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _file(target: str) -> Path:
    return FOLDER / "kept" / f"{target}.txt"


def kept_cases(target: str) -> list[tuple[str, str, str]]:
    """(digest, problem, config) of a target's lines."""
    rows = (line.split(" | ") for line in _file(target).read_text().splitlines())
    return [(was, problem, config) for was, problem, config in rows]


def _compare(target: str, cases: list[tuple[str, str, str]]) -> None:
    now = [(digest(target, problem, config), problem, config) for _, problem, config in cases]
    if blessing():
        kept = {case[1:]: case for case in kept_cases(target)} | {case[1:]: case for case in now}
        _file(target).write_text("".join(" | ".join(case) + "\n" for case in kept.values()))
    assert now == cases or blessing()


@pytest.mark.parametrize("target", TARGETS)
def test_a_few_keep_their_instructions(target: str) -> None:
    cases = kept_cases(target)
    _compare(target, cases[:: len(cases) // IN_EVERY_RUN])


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_all_keep_their_instructions(target: str) -> None:
    _compare(target, kept_cases(target))
