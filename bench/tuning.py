"""Effect of another value of a tuned number: problems that get another config, and the change of their times.

Problems are drawn as `chosen.py` draws them. Of each, the config that the chooser takes first is timed by the model of
whole launches, with the target's value and with each given one; where a family has no such model, configs are counted
only. A time is relative to that with the target's value, as the geometric mean over the problems whose config changes.

    python bench/tuning.py gfx942 shared_exposed 0.2 0.5 --count 150 --seed 3
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import attrs
import numpy as np
from chosen import problems
from rich.console import Console
from rich.progress import track
from rich.table import Table

from convgen.backends.target import get, names
from convgen.backends.tuning import Tuning, tuning
from convgen.choose.choose import candidates, fitting
from convgen.ir.error import ConvgenError, DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.node import compiling
from convgen.ir.record import evolve, fields_of
from convgen.plan.config import Config
from convgen.problem.matmul import Problem
from convgen.profile import summary
from convgen.tune import trials


@attrs.frozen
class Change:
    """Another config by another value, and its time relative to that of the target's config; None without a model."""

    problem: Problem
    config: Config
    ratio: float | None


def taken(problem: Problem, facts: TargetFacts) -> Config:
    """The first config that fits by its plan."""
    with compiling():
        candidate, _ = next(fitting(problem, candidates(problem, facts), facts))
    return candidate.config


def time_of(problem: Problem, target: str, config: Config) -> float | None:
    """Microseconds of a problem's launches, None where there is no model of them."""
    try:
        return summary.times(trials.compiled(problem, target, config)).total
    except (ConvgenError, DoesNotFit):
        return None


def changes(target: str, name: str, value: Any, drawn: Sequence[Problem]) -> Iterator[Change]:
    """The problems that another value gives another config."""
    facts = get(target).facts
    other = evolve(facts, tuning=evolve(tuning(facts), **{name: value}))
    for problem in track(drawn, f"{name}={value}", console=Console(stderr=True), transient=True):
        config, changed = taken(problem, facts), taken(problem, other)
        if changed != config:
            times = time_of(problem, target, config), time_of(problem, target, changed)
            yield Change(problem, changed, times[1] / times[0] if times[0] and times[1] else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=names())
    parser.add_argument("name", choices=[field.name for field in fields_of(Tuning)])
    parser.add_argument("values", nargs="+", type=ast.literal_eval, metavar="VALUE")
    parser.add_argument("--count", type=int, default=60, help="problems (default 60)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-v", dest="verbose", action="store_true", help="show each problem whose config changes")
    options = parser.parse_args()

    drawn = list(islice(problems(options.seed), options.count))
    standing = getattr(tuning(get(options.target).facts), options.name)
    table = Table(
        "value", "problems", "other configs", "their time", title=f"{options.target}, {options.name}={standing}"
    )
    for value in options.values:
        found = list(changes(options.target, options.name, value, drawn))
        ratios = [change.ratio for change in found if change.ratio is not None]
        mean = f"{np.exp(np.mean(np.log(ratios))):.3f}" if ratios else "-"
        table.add_row(str(value), str(len(drawn)), str(len(found)), mean)
        if options.verbose:
            for change in found:
                print(value, change.problem, change.config, change.ratio)
    Console().print(table)


if __name__ == "__main__":
    main()
