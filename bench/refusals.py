"""Count the configs that the back end refuses before it takes one, for problems drawn at random.

Each refusal is a kernel that was lowered in vain. Problems are drawn as tests draw them (`tests/strategies.py`): small
ones of all directions and attributes, larger ones, which registers bound, and ones with types of a byte and less.

    python bench/refusals.py --count 500
    python bench/refusals.py --count 60 --target xehpg --list
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import attrs
import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.append(str(Path(__file__).parents[1]))

from convgen import driver
from convgen.backends import target as targets
from convgen.choose.supported import check_supported
from convgen.ir.error import ConvgenError, Unsupported
from convgen.problem.matmul import Problem
from tests import strategies

TARGETS = "gfx90a", "gfx942", "gfx950", "xehpg", "xehpc", "xe2"
_NARROW = (
    *("f16:s4", "s4:f16", "bf16:u4", "u4:f32", "f16:s8", "s8:bf16", "f8_e4m3", "f8_e5m2:f8_e4m3", "f16:f8_e5m2"),
    *("f4_e2m1", "f16:f4_e2m1", "f4_e2m1:bf16", "s4:u8", "f8_e4m3:f4_e2m1"),
)
_DRAWS = 8  #: times as many problems as are taken, for those drawn one after the other may be much alike
_SHOWN = 110  #: characters of a problem, and of a reason


@attrs.frozen
class Row:
    """The outcome of the search for one problem."""

    target: str
    problem: Problem
    planned: int  #: configs that the plan refused
    refusals: tuple[str, ...]  #: why, of configs that the back end refused
    config: str  #: empty where none was taken
    seconds: float


def drawn(target: str, count: int, number: int) -> list[Problem]:
    """Return `count` problems that a target supports; equal seeds draw equal problems."""
    facts, found = targets.get(target).facts, list[Problem]()
    types = strategies.input_types(facts)
    kinds = (
        strategies.problems(most=12, channels=64, types=types, unusual=True),
        strategies.products(types=types),
        strategies.problems(most=40, channels=320, types=types),
        strategies.problems(most=12, channels=64, types=_NARROW),
        strategies.products(most=1200, types=(*types, *_NARROW)),
    )

    @seed(number)
    @settings(
        max_examples=_DRAWS * count, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None
    )
    @given(st.one_of(*kinds))
    def draw(problem: Problem) -> None:
        try:
            check_supported(problem, facts)
        except Unsupported:
            return
        if not problem.is_empty and problem not in found:
            found.append(problem)

    draw()
    return found[:: max(1, len(found) // count)][:count]


def refused(problem: Problem, target: str) -> Row:
    """Generate a problem's kernels, and count the configs tried on the way."""
    planned, refusals, taken, start = 0, list[str](), "", perf_counter()

    def tried(attempt: driver.Attempt) -> None:
        nonlocal planned, taken
        if attempt.actual is not None:
            taken = str(attempt.config)
        elif attempt.refused is not None and attempt.registers is None:
            planned += 1
        elif attempt.refused is not None:
            refusals.append(f"{attempt.refused.partition(': ')[2]} ({attempt.config}, about {attempt.registers})")

    try:
        driver.compile(driver.build(problem, target, tried=tried))
    except ConvgenError as error:
        if not taken:
            refusals.append(f"nothing taken: {error}")
    return Row(target, problem, planned, tuple(refusals), taken, perf_counter() - start)


def report(rows: Sequence[Row]) -> Table:
    head = (
        "problems",
        "none taken",
        "refused: mean",
        "95 %",
        "99 %",
        "most",
        "by the plan: mean",
        "seconds: mean",
        "most",
    )
    table = Table("target", *head, title="configs that the back end refused")
    for target in (*dict.fromkeys(row.target for row in rows), "all"):
        of_target = [row for row in rows if target in (row.target, "all")]
        counts = [len(row.refusals) for row in of_target]
        seconds = [row.seconds for row in of_target]
        none = sum(not row.config for row in of_target)
        high = (f"{np.percentile(counts, p, method='higher'):.0f}" for p in (95, 99))
        planned = np.mean([row.planned for row in of_target])
        times = f"{np.mean(seconds):.2f}", f"{max(seconds):.1f}"
        table.add_row(
            target,
            str(len(of_target)),
            str(none),
            f"{np.mean(counts):.2f}",
            *high,
            str(max(counts)),
            f"{planned:.1f}",
            *times,
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", choices=TARGETS, help="default: all")
    parser.add_argument("--count", type=int, default=60, help="problems, of all targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="also each problem of which a config was refused, and why")
    options = parser.parse_args()
    chosen, rows = options.target or TARGETS, list[Row]()
    for n, target in enumerate(chosen):
        count = options.count // len(chosen) + (n < options.count % len(chosen))
        for problem in track(drawn(target, count, options.seed), target, transient=True, console=Console(stderr=True)):
            rows.append(row := refused(problem, target))
            if options.list and row.refusals:
                print(f"{target} {problem}: {len(row.refusals)} refused in {row.seconds:.1f} s, then {row.config}")
                for why, times in Counter(why[:_SHOWN] for why in row.refusals).items():
                    print(f"    {times} x {why}", flush=True)
    Console(width=140).print(report(rows))


if __name__ == "__main__":
    main()
