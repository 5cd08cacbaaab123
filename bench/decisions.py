"""Count how often `convgen profile` predicts which of two configs is faster, where they differ in one decision.

Two configs of a problem that were timed on an H200 (`bench/configs.py`) make a pair if one takes 5 % longer and they
differ in nothing but the slices of K, the order of workgroups or their number. A pair is right if the model predicts
the shorter time for the faster one.

    python bench/decisions.py tests/data/silicon/configs.txt [--clocks DIR] [--show]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from fit_chooser import timed_configs
from lib import entries, silicon_fit
from rich.console import Console
from rich.progress import track
from rich.table import Table

from convgen.ir.layout.turns import SharedOut
from convgen.ir.record import frozen
from convgen.plan.config import Config

_DIFFERENT = 0.05  #: least difference of measured times, of the shorter one
#: words of a config line that one decision sets
_DECISIONS = {"slices": {"slices", "sum"}, "order": {"map"}}


@frozen
class Pair:
    """Two configs of a problem that differ in one decision, the faster one first."""

    decision: str
    problem: str
    faster: str
    slower: str
    us: tuple[float, float]  #: measured


def decision(one: str, other: str) -> str:
    """Return the decision in which two configs differ; "" where they differ in more."""
    words: tuple[Mapping[str, str], ...] = tuple(
        dict(word.split("=", 1) for word in config.split()) for config in (one, other)
    )
    differ = {key for key in words[0].keys() | words[1].keys() if words[0].get(key) != words[1].get(key)}
    name = next((name for name, keys in _DECISIONS.items() if differ and differ <= keys), "")
    if name != "order":
        return name
    persists = [Config.parse(config).map.persist for config in (one, other)]
    if any(each and each.shared is not SharedOut.NONE for each in persists):
        return "stream-K"
    return "persistent workgroups" if persists[0] != persists[1] else name


def pairs(file: Path) -> Iterator[Pair]:
    """Yield all pairs of a file's configs that differ in one decision, and by enough."""
    for problem, timed in timed_configs(file):
        for (us, one), (longer, other) in combinations(sorted(timed, key=lambda each: each[0]), 2):
            if longer > (1 + _DIFFERENT) * us and (name := decision(one, other)):
                yield Pair(name, problem, one, other, (us, longer))


def predicted(timed_pairs: Sequence[Pair], cache: Path | None, console: Console) -> dict[tuple[str, str], float]:
    """Return the predicted microseconds of all configs of some pairs, by problem and config."""
    terms = entries.known()[silicon_fit.KIND].terms
    times = {
        (pair.problem, config): us
        for pair in timed_pairs
        for config, us in zip((pair.faster, pair.slower), pair.us, strict=True)
    }
    return {
        key: silicon_fit.profiled({"problem": key[0], "config": key[1], "ours_us": us}, cache).predicted(terms)
        for key, us in track(times.items(), "profiles", console=console)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="microseconds of configs, as bench/fit_chooser.py reads them")
    parser.add_argument("--clocks", type=Path, metavar="DIR", help="keep profiles here")
    parser.add_argument("--show", action="store_true", help="print the pairs that are wrong, too")
    asked = parser.parse_args()
    console = Console()
    if asked.clocks:
        asked.clocks.mkdir(parents=True, exist_ok=True)
    timed_pairs = list(pairs(asked.file))
    if not timed_pairs:
        parser.error(f"given {asked.file} without two configs that differ in one decision, wanted some")
    us_of = predicted(timed_pairs, asked.clocks, console)
    grid = Table("decision", "pairs", "problems", "right", "right, of those 10 % apart")
    for name in (*sorted({pair.decision for pair in timed_pairs}), "all"):
        row = [pair for pair in timed_pairs if name in (pair.decision, "all")]
        is_right = np.array([us_of[pair.problem, pair.faster] < us_of[pair.problem, pair.slower] for pair in row])
        is_apart = np.array([pair.us[1] > 1.1 * pair.us[0] for pair in row])
        of_apart = f"{is_right[is_apart].mean():.0%} of {is_apart.sum()}" if is_apart.any() else ""
        problems = {pair.problem for pair in row}
        grid.add_row(name, str(len(row)), str(len(problems)), f"{is_right.mean():.0%}", of_apart)
    console.print(grid)
    for pair in timed_pairs if asked.show else ():
        times = us_of[pair.problem, pair.faster], us_of[pair.problem, pair.slower]
        if times[0] >= times[1]:
            console.print(
                f"{pair.problem}\n  {pair.us[0]:.2f} us, {times[0]:.2f} predicted: {pair.faster}"
                f"\n  {pair.us[1]:.2f} us, {times[1]:.2f} predicted: {pair.slower}",
                soft_wrap=True,
            )


if __name__ == "__main__":
    main()
