"""`mma=fma:...`: each lane, or block of lanes, sums over whole windows; inputs bypass shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from convgen.ir.facts import TargetFacts
from convgen.plan.config import APART, FUSED, Config, LanePart
from convgen.plan.contraction import Product
from convgen.plan.inputs import InputPath
from convgen.plan.lane_tile import LaneTile, sums_weights
from convgen.plan.variants.variant import Inputs, Packings, Variant, read_views
from convgen.plan.window_views import windows
from convgen.problem.matmul import Problem

#: config words without effect where lanes multiply by themselves -> the value that they must have
_IDLE = {"slots": 0, "acc": "v", "subtiles": 1, "stages": 1, "prefetch": 0, "taps": FUSED}


class Lanes(Variant):
    word = "lanes"
    summary = "no blocks: each lane sums over the taps of its own windows"

    def refusals(self, problem: Problem, config: Config, facts: TargetFacts) -> Iterator[str]:
        mma = f"mma={config.mma}"
        idle = _IDLE if sums_weights(problem) else _IDLE | {"slices": 1}
        for name, value in idle.items():
            if getattr(config, name) != value:
                yield f"{name}={getattr(config, name)}: {mma} has {name}={value}"
        if config.phases != APART:
            yield f"phases={config.phases}: {mma} computes each phase by itself"
        if config.joined_groups > 1:
            yield f"groups={config.joined_groups}: {mma} computes each group by itself"
        if config.waves_k > 1:
            yield f"{config.waves_k} subgroups along K: {mma} takes one"
        if config.sum not in ("", "launch"):
            yield f"sum={config.sum}: a second launch sums the slices of {mma}, wanted sum=launch"
        if config.map.shares:
            yield f"map={config.map}: {mma} does not divide K over workgroups"
        if config.types:
            yield f"in={':'.join(config.types)}: {mma} multiplies in {problem.acc_type}"
        if config.packed:
            yield f"packed={config.packed[0]}: {mma} takes no packed inputs"

    def lay_out(self, problem: Problem, config: Config, facts: TargetFacts) -> tuple[LaneTile, Sequence[Product]]:
        assert isinstance(config.mma, LanePart)
        tile = LaneTile.of(problem, config, config.mma, facts)
        return tile, windows(problem, tile.lane_part, config, facts.chunk_bytes)

    def inputs(
        self, problem: Problem, product: Product, packings: Packings, unit: Any, config: Config, facts: TargetFacts
    ) -> Inputs:
        """Return both inputs, read directly from global memory."""
        of_n, of_m = (InputPath(view, view.memory.elem, None, None) for view in read_views(product, packings))
        return of_n, of_m


VARIANT = Lanes()
