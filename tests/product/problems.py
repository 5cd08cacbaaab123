"""The problems of the product tests: the shared list (minibatch 1, FWD_D), and how one of any kind is run."""

from __future__ import annotations

import hashlib
from pathlib import Path

from convgen import driver
from convgen.ir.error import Unsupported, UserError
from convgen.problem.conv import Conv
from convgen.problem.matmul import Problem, parse_problem
from convgen.run import verdict
from convgen.run.code import Code

_LIST = Path(__file__).parents[1] / "data" / "problems" / "resnet_and_others.txt"


def listed(dt: str = "f16") -> list[Conv]:
    """All problems, in file order."""
    lines = [line for line in _LIST.read_text().splitlines() if line and not line.startswith("#")]
    return [Conv.parse(line, dir="FWD_D", dt=dt, mb=1) for line in lines]


def generated(dt: str = "f16") -> list[Conv]:
    """Those that convgen generates: ungrouped."""
    return [p for p in listed(dt) if p.groups == 1]


def chosen(problems: list[Conv], count: int) -> list[Conv]:
    """`count` of them, the same ones each time, in no order that anybody arranged."""
    return sorted(problems, key=lambda p: hashlib.sha256(p.descriptor.encode()).digest())[:count]


def right(problem: Problem, target: str, config: str) -> Code | None:
    """Its code, which was run and is right; nothing where the config does not fit the problem."""
    try:
        code = driver.compile(driver.build(problem, target, config))
    except UserError:
        return None
    outcome = verdict.run(code)
    assert (outcome.mismatches, outcome.findings) == (0, ()), (problem, config)
    return code


def expect_right(outcome: verdict.Outcome) -> None:
    """Fail with the first findings, or the first wrong elements, of a run that has any."""
    assert not outcome.findings, "\n".join(map(str, outcome.findings[:3]))
    assert not outcome.mismatches, "\n".join(map(str, outcome.first))


def outcome_of(line: str, target: str, seed: int, config: str | None = None) -> str:
    """Return "passed" or "wrong" for a problem that is run with random data, or the reason why it is refused.

    Without a config the chooser takes one.
    """
    refusals = UserError if config else Unsupported
    try:
        code = driver.compile(driver.build(parse_problem(line), target, config))
    except refusals as refused:
        return str(refused)
    return "passed" if verdict.run(code, seed=seed).passed else "wrong"
