"""Which configs of a problem are worth timing, and the time of one by the model of whole launches (docs/time.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from convgen import driver
from convgen.backends.target import get
from convgen.choose.choose import Candidate, candidates, fitting
from convgen.choose.workgroup_orders import ordered
from convgen.ir.error import DoesNotFit, UserError
from convgen.ir.facts import TargetFacts
from convgen.ir.node import compiling
from convgen.plan.config import Config
from convgen.plan.variants.variant import variant_of
from convgen.problem.matmul import Problem
from convgen.profile import launch_times as launches
from convgen.profile.launch_times import Times
from convgen.run import prepared


def worth_timing(problem: Problem, target: str, count: int) -> list[Config]:
    """Up to so many configs that fit, each in the order of workgroups that suits it: the first is the chooser's.

    Half of them are its best; the others are the best of each further way to share out a tile, for neighbours in rank
    differ little.
    """
    facts = get(target).facts
    with compiling():
        ranked = candidates(problem, facts)
        best = list(islice(_fitting(problem, ranked, facts), -(-count // 2)))
        others = _fitting(problem, _of_each_kind(ranked, {_kind(config) for config in best}), facts)
        return [*best, *islice(others, count - len(best))]


def _fitting(problem: Problem, ranked: Iterable[Candidate], facts: TargetFacts) -> Iterator[Config]:
    for candidate, plan in fitting(problem, ranked, facts):
        yield ordered(plan, candidate.together).config


def _kind(config: Config) -> tuple[object, ...]:
    """What configs that do the same work in about the same way have in common."""
    taps = "" if variant_of(config).is_plain else config.taps
    launches = config.reorder, config.packed, config.grids, config.phases
    return config.tile[:2], taps, config.slots > 0, config.copy, config.slices, launches


def _of_each_kind(ranked: Iterable[Candidate], known: Collection[tuple[object, ...]]) -> Iterator[Candidate]:
    """The best of each kind beside those known."""
    seen = set(known)
    for candidate in ranked:
        if (kind := _kind(candidate.config)) not in seen:
            seen.add(kind)
            yield candidate


def times(problem: Problem, target: str, config: Config) -> Times:
    """What the launches of a problem take under a config. Raises DoesNotFit where it does not fit the registers, and
    UserError where there is no model of launches.
    """
    try:
        code = driver.compile(driver.build(problem, target, config))
    except UserError as error:
        if isinstance(error.__cause__, DoesNotFit):
            raise error.__cause__ from None
        raise
    return launches.profile(prepared.of_launches(code.record, code.object, str(problem)))
