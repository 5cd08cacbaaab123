"""Count how often the chooser takes each value of the config's words, and time values that it does not take.

Problems are drawn as `chosen.py` draws them; gradients of weights among them are taken with channels first, too. With
--rival, each problem gets the configs that are worth timing with the rival's words in place of their own, and the best
of them is compared with the chooser's config by the model of whole launches (docs/time.md). Products of `LARGE`, whose
last rounds are nearly empty, come first.

    python bench/words.py gfx942 --count 300
    python bench/words.py gfx942 --count 20 --rival map=stream:304 --rival sum=launch
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np
from chosen import problems
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tuning import taken, time_of

from convgen.backends.target import get, names
from convgen.ir.error import ConvgenError
from convgen.ir.record import evolve
from convgen.plan.config import ATTRIBUTES, FIELDS, Config
from convgen.problem.conv import Conv, Direction
from convgen.problem.matmul import Matmul, Problem
from convgen.tune import trials

LARGE = "5376x4096:4096x2048", "4864x8192:8192x4160", "5120x5120:5120x2048", "2304x4096:4096x2304"
_SIZES = "tile", "waves", "mma"  #: words that every config has, with values of their own
_NEEDED = "tile=32x32x32 waves=1x1 mma=16x16x16"
_CONFIGS = 3  #: configs of a problem that get a rival's words


def drawn(seed: int) -> Iterator[Problem]:
    """Yield problems without end; each gradient of weights with channels first after it."""
    for problem in problems(seed):
        yield problem
        if isinstance(problem, Conv) and problem.direction is Direction.BWD_W:
            yield evolve(problem, stag="abx", wtag="abx", dtag="abx")


def values_of(config: Config) -> dict[str, str]:
    """Return a config's words with their values; numbers in orders of workgroups, and of slices, do not count."""
    words = dict(word.partition("=")[::2] for word in str(config).split())
    values = {word: words.get(word, "default") for word in FIELDS if word not in _SIZES}
    values["slices"] = "1" if config.slices == 1 else "several"
    values["map"] = re.sub(r"\d+", "N", values["map"])
    values["waves along K"] = str(config.waves_k)
    return values


def count(target: str, chosen: list[Problem]) -> Table:
    """Return how often the chooser takes each value."""
    counts: dict[str, Counter[str]] = {}
    for problem in track(chosen, target, transient=True, console=Console(stderr=True)):
        for word, value in values_of(taken(problem, get(target).facts)).items():
            counts.setdefault(word, Counter())[value] += 1
    table = Table("word", "values and how often each is taken", title=f"{target}: {len(chosen)} problems")
    for word, values in counts.items():
        table.add_row(word, ", ".join(f"{value} {times}" for value, times in values.most_common()))
    return table


def with_words(config: Config, rival: str) -> Config:
    """Return the config with a rival's words; an order that distributes K takes the place of slices."""
    given = Config.parse(f"{_NEEDED} {rival}")
    attributes = [ATTRIBUTES.get(word.partition("=")[0], word.partition("=")[0]) for word in rival.split()]
    values = {name: getattr(given, name) for name in [*attributes, *(["at_a_time"] if "sum" in attributes else [])]}
    if given.map.persist:
        values |= {"slices": 1, "sum": "", "at_a_time": 0}
    return evolve(config, **values)


def rivals(target: str, rival: str, chosen: list[Problem]) -> Iterator[tuple[Problem, Config, float]]:
    """Yield problems with the best config that has a rival's words, and its time over that of the chooser's config."""
    for problem in track(chosen, rival, transient=True, console=Console(stderr=True)):
        try:
            configs = trials.worth_timing(problem, target, _CONFIGS)
        except ConvgenError:
            continue
        own = time_of(problem, target, configs[0])
        changed = {with_words(config, rival) for config in configs} - set(configs)
        times = {config: time_of(problem, target, config) for config in changed}
        known = {config: us for config, us in times.items() if us is not None}
        if own and known:
            best = min(known, key=lambda config: known[config])
            yield problem, best, known[best] / own


def compare(target: str, words: list[str], chosen: list[Problem]) -> Table:
    """Return how rivals do."""
    table = Table(
        "rival", "problems", "its time", "best", "where", title=f"{target}: rivals over the chooser's configs"
    )
    for rival in words:
        found = list(rivals(target, rival, chosen))
        if not found:
            table.add_row(rival, "0")
            continue
        problem, config, best = min(found, key=lambda each: each[2])
        mean = np.exp(np.mean(np.log([ratio for *_, ratio in found])))
        table.add_row(rival, str(len(found)), f"{mean:.3f}", f"{best:.3f}", f"{problem} {config}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=names())
    parser.add_argument("--rival", action="append", default=[], metavar="WORDS", help="words of a config (repeatable)")
    parser.add_argument("--count", type=int, default=100, help="drawn problems (default 100)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen = list(islice(drawn(options.seed), options.count))
    if not options.rival:
        Console(width=160).print(count(options.target, chosen))
        return
    large = [Matmul.parse(line, dt="f16", wtag="ba") for line in LARGE]
    Console(width=200).print(compare(options.target, options.rival, [*large, *chosen]))


if __name__ == "__main__":
    main()
