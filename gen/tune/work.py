"""Tune one problem: time its configs and return the fastest. The work runs in any process, also on another machine."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from time import perf_counter
from typing import Any

from convgen.backends.family import chips_of
from convgen.ir.error import DoesNotFit, UserError
from convgen.ir.record import as_dict, frozen
from convgen.ir.untrusted import shown
from convgen.plan.config import Config
from convgen.problem.matmul import parse_problem
from convgen.registry import Entry
from convgen.run.code import Code
from convgen.tune import trials
from convgen.tune.trials import Time
from convgen.version import __version__

_BOUND = re.compile(r"[a-z0-9][a-z0-9 _-]{0,39}")  #: a pipe, a level of memory or `latency`
_MOST_TIME = 1e9  #: microseconds or seconds
_ONE_AT_A_TIME = threading.Lock()  #: building uses nodes interned per process, and Dask workers have threads


@frozen
class Task:
    """One problem to tune."""

    target: str
    configs: int  #: number of configs to time
    problem: str
    known: str = ""  #: config in the registry, which is timed with the others; "" if there is none
    on: str = ""  #: device that times configs; "" is the model of launches


@frozen
class Timed:
    config: str
    us: float  #: microseconds of all launches
    bound: str  #: as in `trials.Time`


@frozen
class Result:
    """All timed configs, the chooser's first, and the registry entry of the fastest."""

    entry: Entry
    timed: tuple[Timed, ...]
    seconds: float

    @property
    def chosen(self) -> Timed:
        return self.timed[0]


def checked(task: Task, answer: object) -> Result:
    """Return a worker's answer to a task after checking it: workers may run another version, or be untrusted.

    Raises UserError for an answer of another type, to another task, by another convgen, for a chip that the target does
    not have, or with invalid times.
    """
    try:
        if type(answer) is not Result:
            raise UserError(f"given a {shown(type(answer).__name__)} from a worker, wanted a result")
        timed = tuple(_checked_time(each) for each in answer.timed)
        entry = Entry.parse(str(answer.entry), "a worker's result")
        if entry.key != (task.target, task.problem):
            given = f"the problem {shown(entry.problem)} on {entry.target}"
            raise UserError(f"given {given} from a worker, wanted {task.problem} on {task.target}")
        models = [f"convgen {__version__}, {chip.name}" for chip in chips_of(task.target)]
        if entry.model not in models and not (task.on and entry.model.startswith(f"convgen {__version__}, ")):
            raise UserError(f"given a time by {entry.model!r} from a worker, wanted {' or '.join(models)}")
        best = min(timed, key=lambda each: each.us, default=None)
        if best is None or (entry.config, entry.us) != (best.config, round(best.us, 3)):
            raise UserError("given an entry from a worker that is not the fastest of its configs, wanted that one")
        if not _is_time(answer.seconds):
            raise UserError(f"given {shown(answer.seconds)} seconds from a worker, wanted a number from 0")
        return Result(entry, timed, answer.seconds)
    except (AttributeError, TypeError, ValueError, OverflowError) as error:  # objects of another version
        raise UserError(f"given a result from a worker that is damaged: {shown(error, 200)}") from None


def _checked_time(timed: Timed) -> Timed:
    if type(timed) is not Timed or not _BOUND.fullmatch(timed.bound) or not _is_time(timed.us):
        raise UserError(f"given {shown(timed, 200)} from a worker, wanted a config, its time and its bound")
    return Timed(str(Config.parse(timed.config)), timed.us, timed.bound)


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < _MOST_TIME  # type: ignore[operator]  # also False for NaN


def perform(task: Task) -> Result:
    """Time the configs of a problem. Raises ConvgenError if none can be timed."""
    start = perf_counter()
    with _ONE_AT_A_TIME:
        trials_of_task = list(_trials(task))
        if not trials_of_task:
            raise UserError(f"given {task.configs} configs, wanted more: none of them fits the registers, at --configs")
        code, time = min(trials_of_task, key=lambda trial: trial[1].us)
        if task.on and (wrong := trials.mismatches(code, task.on)):
            given = f"given {wrong} wrong outputs of {code.config} on {task.on}"
            raise UserError(f"{given}, wanted none: see `convgen run --on`")
    entry = Entry.of_result(task.target, task.problem, code.config, time.us, time.by)
    timed = tuple(Timed(code.config, time.us, time.bound) for code, time in trials_of_task)
    return Result(entry, timed, perf_counter() - start)


def _trials(task: Task) -> Iterator[tuple[Code, Time]]:
    """Yield the code and time of each config that fits, the chooser's first."""
    problem = parse_problem(task.problem)
    configs = trials.worth_timing(problem, task.target, task.configs)
    known = [Config.parse(task.known)] if task.known else []
    for config in dict.fromkeys([*configs, *known]):
        with suppress(DoesNotFit):
            code = trials.compiled(problem, task.target, config)
            yield code, trials.measured(code, task.on) if task.on else trials.predicted(code)


def describe(result: Result) -> dict[str, Any]:
    """Return a result as the object that `--json` prints."""
    entry, chosen = result.entry, result.chosen
    return {
        "config": entry.config,
        "us": entry.us,
        "model": entry.model,
        "chosen": {"config": chosen.config, "us": round(chosen.us, 3)},
        "timed": [{**as_dict(each), "us": round(each.us, 3)} for each in result.timed],
        "seconds": round(result.seconds, 3),
    }
