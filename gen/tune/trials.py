"""Candidates of tuning: configs worth timing, and the time of a config by the model of launches (docs/time.md)."""

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
    """Return up to `count` configs that fit, each with its best order of workgroups; the first is the chooser's.

    Half of them are the chooser's best. The rest are the best of each other kind of config (`_kind`), because
    neighbours in rank differ little.
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
    """Return a key that configs share if they distribute the work in nearly one way."""
    taps = "" if variant_of(config).is_plain else config.taps
    launches = config.reorder, config.packed, config.grids, config.phases
    return config.tile[:2], taps, config.slots > 0, config.copy, config.slices, launches


def _of_each_kind(ranked: Iterable[Candidate], known: Collection[tuple[object, ...]]) -> Iterator[Candidate]:
    """Yield the best config of each kind that is not in `known`."""
    seen = set(known)
    for candidate in ranked:
        if (kind := _kind(candidate.config)) not in seen:
            seen.add(kind)
            yield candidate


def times(problem: Problem, target: str, config: Config) -> Times:
    """Return the times of a problem's launches under a config, by the model.

    Raises DoesNotFit if the config does not fit the registers, UserError if the target has no model of launches.
    """
    try:
        code = driver.compile(driver.build(problem, target, config))
    except UserError as error:
        if isinstance(error.__cause__, DoesNotFit):
            raise error.__cause__ from None
        raise
    return launches.profile(prepared.of_launches(code.record, code.object, str(problem)))
