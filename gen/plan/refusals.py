"""Words of a config that do not go together, or not with problem or target: known before anything is laid out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.order import IN_ROWS
from convgen.ir.types import scalar
from convgen.plan.config import APART, FUSED, RESIDENT, RUNS, Config, Own
from convgen.plan.directions import product_count
from convgen.plan.lane_tile import sums_weights
from convgen.problem.matmul import Problem


def check_words(problem: Problem, config: Config, facts: TargetFacts) -> None:
    """Raise DoesNotFit by the first rule that the config breaks."""
    refusals = chain(
        _of_target(config, facts),
        _on_the_way(config),
        _by_lanes(problem, config),
        _of_slices(problem, config),
        _resident(problem, config),
        _moved(problem, config),
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


def _on_the_way(config: Config) -> Iterator[str]:
    """How blocks come into shared memory."""
    if config.stages > 1 and not config.slots:
        yield f"stages={config.stages}: with slots=0 nothing is on its way to shared memory"
    if config.stages > 1 and all(config.direct):
        yield f"stages={config.stages}: with copy=direct nothing is on its way in registers"
    if config.taps == RUNS and (not config.slots or any(config.direct)):
        yield f"taps={config.taps}: wanted copies through registers"


#: What words are where lanes multiply by themselves, and nothing is on its way.
_IDLE = {"slots": 0, "acc": "v", "subtiles": 1, "stages": 1, "prefetch": 0, "taps": FUSED}


def _by_lanes(problem: Problem, config: Config) -> Iterator[str]:
    """Where each lane multiplies for itself."""
    if not isinstance(config.mma, Own):
        return
    idle = _IDLE if sums_weights(problem) else _IDLE | {"slices": 1}
    for name, value in idle.items():
        if getattr(config, name) != value:
            yield f"{name}={getattr(config, name)}: mma={config.mma} has {name}={value}"
    if config.phases != APART:
        yield f"phases={config.phases}: mma={config.mma} has sums over windows of each phase"
    if config.waves_k > 1:
        yield f"{config.waves_k} subgroups along K: mma={config.mma} has one"
    if config.sum not in ("", "launch"):
        yield f"sum={config.sum}: slices of mma={config.mma} meet in a launch"
    if config.map.shares:
        yield f"map={config.map}: mma={config.mma} does not share K out"
    if config.types:
        yield f"in={':'.join(config.types)}: mma={config.mma} multiplies in {problem.acc_type}"
    if config.packed:
        yield f"packed={config.packed[0]}: mma={config.mma} reads tensors where they are"


def _of_slices(problem: Problem, config: Config) -> Iterator[str]:
    """Who has which part of K."""
    if config.map.shares and config.slices > 1:
        yield f"slices={config.slices}: map={config.map} shares K out itself"
    if config.sum and config.slices == 1 and not config.map.shares:
        yield f"sum={config.sum}: there is one slice"
    if problem.runtime and (config.slices > 1 or config.reorder or config.map != IN_ROWS):
        yield f"sizes are known at launch: wanted one slice, no reorder and map={IN_ROWS}"
    if not isinstance(config.mma, Own) and product_count(problem) > 1 and (config.slices > 1 or config.map.shares):
        what = f"slices={config.slices}" if config.slices > 1 else f"map={config.map}"
        yield f"{what}: there are several products"


def _resident(problem: Problem, config: Config) -> Iterator[str]:
    """Where windows are resident in shared memory."""
    if config.taps != RESIDENT:
        return
    if not config.slots or any(config.direct):
        yield f"taps={config.taps}: wanted rows of shared memory, that registers bring"
    if config.slices > 1 or config.map.shares:
        yield f"taps={config.taps}: wanted one slice"
    if config.types or problem.runtime:
        yield f"taps={config.taps}: wanted inputs that are not converted, of sizes that are known"


def _moved(problem: Problem, config: Config) -> Iterator[str]:
    """Inputs that are moved before, or brought in runs of memory."""
    types = {t.name: scalar(t.dtype) for t in problem.factors}
    for word, moved in (("reorder", config.reorder), ("packed", config.packed)):
        for name in moved:
            if name not in types:
                yield f"{word}={name}: the problem has no such input"
            elif types[name].bits < 8:
                yield f"{word}={name}: wanted elements of whole bytes"
    if config.taps == RUNS and any(elem.bits < 8 for elem in types.values()):
        yield f"taps={config.taps}: wanted elements of whole bytes"
    for name in config.packed:
        if name in config.reorder:
            yield f"packed={name}: it is reordered"
