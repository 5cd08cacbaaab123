"""Fit the chooser's numbers of a target to configs that were timed on a device, and say how well it chooses.

    python bench/fit_chooser.py tests/data/silicon/configs.txt                        the chooser's choice, and the best
    python bench/fit_chooser.py tests/data/silicon/configs.txt --fit launch,tile      new values of these numbers

A file has a line for each problem, and behind it one for each of its configs: a space, microseconds, and the config
(`bench/configs.py` measures them). Problems of even numbers are fitted, those of odd numbers judge. Regret is the time
of the config that is ranked first among those timed, over the time of the best of them. A fit minimises the expected
logarithm of regret, where configs with scores that differ by little are taken with like probability; it tries a few
factors on each number in turn, and keeps what is better.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from convgen.backends.target import get
from convgen.backends.tuning import Tuning, tuning
from convgen.choose import lane_configs
from convgen.choose.clocks import of_config
from convgen.choose.offers import offers
from convgen.ir.error import ConvgenError
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.node import compiling
from convgen.ir.record import evolve, frozen
from convgen.plan.atoms import input_atoms
from convgen.plan.config import Config, LanePart
from convgen.plan.variants.variant import Offer
from convgen.problem.matmul import Problem, parse_problem

Numbers = npt.NDArray[np.float64]
Place = tuple[Offer, MmaAtom] | Problem

_FACTORS = (0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.4, 2.0)
_ALIKE = 0.03  #: difference of logarithms of scores within which configs are taken with like probability
#: weight of the square of a number's logarithmic change, so that numbers that rows do not determine stay
_PRIOR_WEIGHT = 0.002


@frozen(eq=False)
class Case:
    """A problem with the configs that were timed, which the ranking has."""

    problem: str
    configs: tuple[tuple[Config, Place], ...]
    us: Numbers

    def scores(self, facts: TargetFacts) -> Numbers:
        """Return the clocks by which the chooser ranks the configs."""
        return np.array([_score(config, place, facts) for config, place in self.configs])

    @cache  # noqa: B019  # of a few targets' facts
    def chosen(self, facts: TargetFacts) -> int:
        """Return the number of the config that is ranked first."""
        return int(self.scores(facts).argmin())

    def regret(self, facts: TargetFacts) -> float:
        """Return the time of the config that is ranked first, over that of the best."""
        return float(self.us[self.chosen(facts)] / self.us.min())

    def expected(self, facts: TargetFacts) -> float:
        """Return the expected logarithm of regret."""
        scores = np.log(self.scores(facts))
        weights = np.exp((scores.min() - scores) / _ALIKE)
        return float(weights @ np.log(self.us / self.us.min()) / weights.sum())


def timed_configs(path: Path) -> list[tuple[str, list[tuple[float, str]]]]:
    """Return each problem of a file, with the microseconds of its configs."""
    rows: list[tuple[str, list[tuple[float, str]]]] = []
    for line in path.read_text().splitlines():
        if line.startswith(" "):
            us, _, config = line.strip().partition(" ")
            rows[-1][1].append((float(us), config))
        elif line and not line.startswith("#"):
            rows.append((line, []))
    return rows


def read(path: Path, facts: TargetFacts) -> Iterator[Case]:
    """Yield the cases of a file; configs that the chooser does not offer are left out."""
    for line, timed in timed_configs(path):
        problem = parse_problem(line.partition(" ")[2])
        configs = [(Config.parse(text), us) for us, text in timed]
        found = [(config, place, us) for config, us in configs if (place := _place(problem, config, facts))]
        if len(found) > 1:
            yield Case(line, tuple(each[:2] for each in found), np.array([us for *_, us in found]))


def in_halves(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """Return the cases of problems of even and of odd numbers."""
    numbers = {problem: n for n, problem in enumerate(dict.fromkeys(case.problem for case in cases))}
    return tuple([case for case in cases if numbers[case.problem] % 2 == half] for half in (0, 1))  # type: ignore[return-value]


def _place(problem: Problem, config: Config, facts: TargetFacts) -> Place | None:
    """Return what scores a config, besides the target: its offer and instruction, or the problem of one of lanes."""
    if isinstance(config.mma, LanePart):
        return None if lane_configs.clocks_of(problem, config, facts) is None else problem
    for offer in offers(problem, facts, config.reorder):
        for atom in input_atoms(problem, facts):
            if offer.has(config) and (atom.n, atom.m, atom.k) == config.mma:
                return offer, atom
    return None


def _score(config: Config, place: Place, facts: TargetFacts) -> float:
    """Return the clocks by which the chooser ranks a config."""
    if isinstance(place, tuple):
        offer, atom = place
        return offer.before + offer.form.launches * of_config(offer, config, atom, facts).total
    return lane_configs.clocks_of(place, config, facts) or np.inf


def with_numbers(facts: TargetFacts, numbers: Mapping[str, Any]) -> TargetFacts:
    """Return facts with other values of some of the chooser's numbers."""
    return evolve(facts, tuning=evolve(tuning(facts), **numbers))


def loss(cases: Sequence[Case], facts: TargetFacts, numbers: Mapping[str, float]) -> float:
    """Return the mean expected regret of cases under some numbers, and what their change from the target's costs."""
    changed, before = with_numbers(facts, numbers), tuning(facts)
    moved = sum(np.log(value / getattr(before, name)) ** 2 for name, value in numbers.items())
    return float(np.mean([case.expected(changed) for case in cases])) + _PRIOR_WEIGHT * float(moved)


def fit(cases: Sequence[Case], facts: TargetFacts, names: Sequence[str], console: Console) -> dict[str, float]:
    """Return better values of some numbers, by trying factors on each in turn until none helps."""
    numbers: dict[str, float] = {name: getattr(tuning(facts), name) for name in names}
    least, again = loss(cases, facts, numbers), True
    while again:
        again = False
        for name in names:
            for factor in _FACTORS:
                tried = {**numbers, name: _rounded(numbers[name] * factor, like=numbers[name])}
                if (found := loss(cases, facts, tried)) < least - 1e-5:
                    least, numbers, again = found, tried, True
                    console.print(f"{found:.5f}  {name} = {numbers[name]}")
    return numbers


def _rounded(value: float, like: float) -> float:
    """Return a number with four digits, an integer where `like` is one."""
    return round(value) if isinstance(like, int) else float(f"{value:.4g}")


def figures(cases: Sequence[Case], facts: TargetFacts) -> str:
    """Return the geometric mean of regret, the 90th percentile, and the worst."""
    regrets = np.array([case.regret(facts) for case in cases])
    return f"{np.exp(np.log(regrets).mean()):.3f}, 90 % {np.percentile(regrets, 90):.3f}, worst {regrets.max():.3f}"


def table(cases: Sequence[Case], facts: TargetFacts) -> Table:
    """Return a row for each case whose choice is not the best config."""
    shown = Table("problem", "regret", "chosen", "best")
    for case in sorted(cases, key=lambda case: -case.regret(facts)):
        chosen, best = case.chosen(facts), int(case.us.argmin())
        if chosen != best:
            configs = (f"{case.us[n]:.1f}  {case.configs[n][0]}" for n in (chosen, best))
            shown.add_row(case.problem, f"{case.regret(facts):.3f}", *configs)
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--fit", default="", metavar="NAME,...", help=f"numbers of {Tuning.__name__}")
    parser.add_argument("--all", action="store_true", help="fit all problems, when a fit of half of them was judged")
    asked = parser.parse_args()
    facts, console = get(asked.target).facts, Console(soft_wrap=True)
    with compiling():
        cases = list(read(asked.file, facts))
        fitted, judging = (cases, cases) if asked.all else in_halves(cases)
        if asked.fit:
            try:
                facts = with_numbers(facts, fit(fitted, facts, asked.fit.split(","), console))
            except (AttributeError, ConvgenError) as error:
                parser.error(str(error))
        else:
            console.print(table(cases, facts))
        by_lanes = [case for case in cases if any(not isinstance(place, tuple) for _, place in case.configs)]
        by_instructions = [case for case in cases if case not in by_lanes]
        units = {"by instructions": by_instructions, "by lanes": by_lanes}
        for what, some in {"fitted": fitted, "judging": judging, **units, "all": cases}.items():
            console.print(f"{what}: {len(some)} problems, regret {figures(some, facts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
