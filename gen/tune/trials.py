"""Trials of tuning: configs worth timing, and the time of compiled code by the model of launches or on a device."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from convgen import driver
from convgen.backends.target import get
from convgen.choose.choose import Candidate, candidates, fitting
from convgen.choose.workgroup_orders import ordered
from convgen.device.devices import open_device
from convgen.device.executor import Executor
from convgen.device.loaded import load
from convgen.ir.error import DoesNotFit, UserError
from convgen.ir.facts import TargetFacts
from convgen.ir.node import compiling
from convgen.ir.record import frozen
from convgen.plan.config import Config
from convgen.plan.variants.variant import variant_of
from convgen.problem.matmul import Problem, check_single
from convgen.profile import summary
from convgen.run import verdict
from convgen.run.code import Code

MEASURED = "measured"  #: in place of the bound that the model reports
_COMPARED = 8  #: output tiles; sampled from those of the fastest config


def worth_timing(problem: Problem, target: str, count: int) -> list[Config]:
    """Return up to `count` configs that fit, each with its best order of workgroups; the first is the chooser's.

    Half of them are the chooser's best. The rest are the best of each other kind of config (`_kind`), because
    neighbours in rank differ little.
    """
    check_single(problem)
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
    """Return a key that is equal for configs that distribute the work nearly alike."""
    taps = "" if variant_of(config).is_plain else config.taps
    launches = config.reorder, config.packed, config.grids, config.phases
    return config.tile[:2], taps, config.slots > 0, config.copy, config.slices, launches


def _of_each_kind(ranked: Iterable[Candidate], known: Collection[tuple[object, ...]]) -> Iterator[Candidate]:
    """Yield the best config of each kind that is not in `known`."""
    kinds = set(known)
    for candidate in ranked:
        if (kind := _kind(candidate.config)) not in kinds:
            kinds.add(kind)
            yield candidate


@frozen
class Time:
    """The time of all launches of a problem under a config."""

    us: float
    bound: str  #: by the model a pipe, a level of memory or `latency`; on a device MEASURED
    by: str  #: the model's chip, or the device


def compiled(problem: Problem, target: str, config: Config) -> Code:
    """Return the code of a config. Raises DoesNotFit if it does not fit the registers."""
    try:
        return driver.compile(driver.build(problem, target, config))
    except UserError as error:
        if isinstance(error.__cause__, DoesNotFit):
            raise error.__cause__ from None
        raise


def predicted(code: Code) -> Time:
    """Return the time by the model. Raises UserError if the target has no model of launches."""
    predicted_times = summary.times(code)
    return Time(predicted_times.total, predicted_times.longest.bound, predicted_times.chip.name)


def measured(code: Code, device: str) -> Time:
    """Return the median time of calls on a device, with cold caches. Raises UserError if the device does not run it."""
    kernel = load(code, device=device)
    try:
        median = kernel.benchmark(predict=False).median
    finally:
        kernel.unload()
    return Time(median, MEASURED, re.sub(r"[^\w.+-]+", "-", kernel.device.title))


def mismatches(code: Code, device: str) -> int:
    """Return the number of wrong outputs on a device, in a sample of tiles."""
    return verdict.run(code, groups=_COMPARED, on=Executor(open_device(device))).mismatches
