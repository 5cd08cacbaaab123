"""Output of benchmarks: figures, each beside a peer measured in the same run."""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter

import attrs

from convgen.ir.record import as_dict


@attrs.frozen
class Figure:
    """One measurement; `times` says how often the peer's cost it is, `budget` how often it may be."""

    name: str
    value: float
    unit: str
    peer: str = ""
    times: float | None = None
    budget: float | None = None


def best(run: Callable[[], object], rounds: int = 5) -> float:
    """Seconds of the quickest of some runs, the collector off."""
    was = gc.isenabled()
    gc.disable()
    try:
        return min(_once(run) for _ in range(rounds))
    finally:
        if was:
            gc.enable()


def _once(run: Callable[[], object]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start


def main(
    title: str, measure: Callable[..., Iterable[Figure]], count: int | None = None, path: tuple[str, str] | None = None
) -> None:
    """Measure and print: a table, or JSON with --json.

    With `count`, `--count` gives another number of problems; with `path`, its name and what is there, one may be given.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    if count is not None:
        parser.add_argument("--count", type=int, default=count, help=f"problems to measure (default {count})")
    if path is not None:
        name, there = path
        parser.add_argument("path", nargs="?", type=Path, metavar=name, help=there)
    arguments = vars(parser.parse_args())
    as_json = arguments.pop("json")
    figures = list(measure(*arguments.values()))
    if as_json:
        print(json.dumps({"title": title, "figures": [as_dict(f) for f in figures]}, indent=2))
        return
    print(title)
    for f in figures:
        times = "" if f.times is None else f"{f.times:8.2f} x {f.peer}"
        budget = "" if f.budget is None else f" (budget {f.budget:.2f})"
        print(f"  {f.name:<44}{f.value:>10.2f} {f.unit:<6}{times}{budget}")
