"""Config words that exclude one another, or the problem or target; checked before anything is laid out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.order import IN_ROWS
from convgen.ir.layout.walks import Ragged
from convgen.ir.types import scalar
from convgen.plan.config import REGISTERS, TENSOR, Config, LanePart
from convgen.plan.variants.variant import variant_of
from convgen.problem.matmul import Problem, grouping_of


def check_words(problem: Problem, config: Config, facts: TargetFacts) -> None:
    """Raise DoesNotFit for the first rule that the config breaks."""
    refusals = chain(
        _of_target(config, facts),
        _of_copies(config),
        _of_roles(problem, config, facts),
        variant_of(config).refusals(problem, config, facts),
        _of_slices(problem, config),
        _of_groups(problem, config),
        _of_earlier_launches(problem, config),
    )
    if refusal := next(refusals, ""):
        raise DoesNotFit(refusal)


def _of_target(config: Config, facts: TargetFacts) -> Iterator[str]:
    if config.subgroups > facts.max_subgroups:
        yield f"{config.subgroups} subgroups, at most {facts.max_subgroups} make a workgroup"
    if config.separate_accumulators and not facts.accumulators:
        yield f"{facts.name} has no accumulator registers"
    if config.prefetch and not facts.prefetch:
        yield f"{facts.name} has no prefetch"


def _of_copies(config: Config) -> Iterator[str]:
    """Yield conflicts between words for the copy into shared memory."""
    if config.stages > 1 and not config.slots:
        yield f"stages={config.stages}: with slots=0 nothing is on its way to shared memory"
    if config.stages > 1 and REGISTERS not in config.paths:
        yield f"stages={config.stages}: with copy={':'.join(config.copy)} nothing is on its way in registers"


def _of_roles(problem: Problem, config: Config, facts: TargetFacts) -> Iterator[str]:
    """Yield what the roles of a workgroup exclude: one subgroup copies, the others multiply."""
    if TENSOR not in config.paths:
        return
    given = f"copy={TENSOR}"
    if {*config.paths} != {TENSOR}:
        yield f"{given}: wanted bulk copies of both inputs"
    if facts.roles is None:
        yield f"{given}: {facts.name} has no bulk copies of tensors"
    elif config.subgroups % facts.roles.team or config.subgroups + facts.roles.team > facts.max_subgroups:
        most = facts.max_subgroups - facts.roles.team
        yield f"{given}: {config.subgroups} subgroups, wanted a multiple of {facts.roles.team} up to {most}"
    if not config.slots or config.prefetch or config.waves_k > 1 or config.subtiles > 1:
        yield f"{given}: wanted slots in shared memory, no prefetch, one subgroup along K and whole tiles (subtiles=1)"
    if problem.runtime:
        yield f"{given}: sizes are known at launch only"


def _of_slices(problem: Problem, config: Config) -> Iterator[str]:
    """Yield conflicts between words that divide K."""
    if config.map.shares and config.slices > 1:
        yield f"slices={config.slices}: map={config.map} already divides K over workgroups"
    if config.sum and config.slices == 1 and not config.map.shares:
        yield f"sum={config.sum}: there is one slice"
    if problem.runtime and (config.slices > 1 or config.reorder or config.map != IN_ROWS):
        yield f"sizes are known at launch: wanted one slice, no reorder and map={IN_ROWS}"


def _of_groups(problem: Problem, config: Config) -> Iterator[str]:
    """Yield what divides the K of groups of terms, whose length a launch reads, or adds to rows of other groups."""
    grouping = grouping_of(problem)
    if isinstance(config.map.walk, Ragged) and (grouping is None or grouping.dim == "k"):
        yield f"map={config.map}: wanted a product in groups of rows"
    if grouping is None:
        return
    divided = f"slices={config.slices} map={config.map}"
    if grouping.dim == "k" and (config.slices > 1 or config.map.shares or config.map.flip):
        yield f"{divided}: groups of terms want one slice, in the order of K"
    if grouping.dim == "k" and config.packed:
        yield f"packed={'+'.join(config.packed)}: groups of terms begin anywhere in a row of K"
    if grouping.dim == "m" and (config.slices > 1 or config.map.shares) and config.sum != "last":
        yield f"{divided} sum={config.sum}: slices of groups of rows want sum=last"
    if isinstance(config.mma, LanePart):
        yield "groups of uneven sizes want a matrix instruction"


def _of_earlier_launches(problem: Problem, config: Config) -> Iterator[str]:
    """Yield conflicts of inputs that an earlier launch reorders or packs."""
    types = {t.name: scalar(t.dtype) for t in problem.factors}
    for word, names in (("reorder", config.reorder), ("packed", config.packed)):
        for name in names:
            if name not in types:
                yield f"{word}={name}: the problem has no such input"
            elif types[name].bits < 8 and not (config.packs_converted if word == "packed" else types[name].is_by_bytes):
                yield f"{word}={name}: wanted elements of whole bytes"
    for name in config.packed:
        if name in config.reorder:
            yield f"packed={name}: it is reordered"
