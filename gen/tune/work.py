"""The work on one problem: its configs timed, the quickest kept. It runs in any process, also on another machine."""

from __future__ import annotations

import threading
from time import perf_counter
from typing import Any

import attrs

from convgen.ir.error import DoesNotFit, UserError
from convgen.ir.record import frozen
from convgen.plan.config import Config
from convgen.problem.matmul import parse_problem
from convgen.tune import trials
from convgen.tune.registry import Entry

_ONE_AT_A_TIME = threading.Lock()  #: kernels are built from nodes that a process shares; Dask has threads


@frozen
class Task:
    """A problem, and the config that is known for it, which is timed again beside the others; empty if none is."""

    target: str
    configs: int
    problem: str
    known: str = ""


@frozen
class Timed:
    """A config and its time."""

    config: str
    us: float
    bound: str


@frozen
class Result:
    """All that were timed, the chooser's first, and the registry's entry of the quickest."""

    entry: Entry
    timed: tuple[Timed, ...]
    seconds: float

    @property
    def chosen(self) -> Timed:
        return self.timed[0]


def perform(task: Task) -> Result:
    """Time the configs of a problem. Raises ConvgenError where none can be timed."""
    start = perf_counter()
    with _ONE_AT_A_TIME:
        timed, chip = _timed(task)
    if not timed:
        raise UserError(f"given {task.configs} configs, wanted more: none of them fits the registers, at --configs")
    best = min(timed, key=lambda each: each.us)
    entry = Entry.found(task.target, task.problem, best.config, best.us, chip)
    return Result(entry, tuple(timed), perf_counter() - start)


def _timed(task: Task) -> tuple[list[Timed], str]:
    """Those that fit, and the chip whose time it is."""
    problem = parse_problem(task.problem)
    configs = trials.worth_timing(problem, task.target, task.configs)
    known = [Config.parse(task.known)] if task.known else []
    timed: list[Timed] = []
    chip = ""
    for config in dict.fromkeys([*configs, *known]):
        try:
            times = trials.times(problem, task.target, config)
        except DoesNotFit:
            continue
        timed.append(Timed(str(config), times.total, times.longest.bound))
        chip = times.chip.name
    return timed, chip


def describe(result: Result) -> dict[str, Any]:
    """For `--json`."""
    entry, chosen = result.entry, result.chosen
    return {
        "config": entry.config,
        "us": entry.us,
        "model": entry.model,
        "chosen": {"config": chosen.config, "us": round(chosen.us, 3)},
        "timed": [{**attrs.asdict(each), "us": round(each.us, 3)} for each in result.timed],
        "seconds": round(result.seconds, 3),
    }
