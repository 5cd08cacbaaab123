"""Plans, kernels as built, launches and tiles of the sample problems, and how configs are ranked, stay what they were.

Where a change is meant, look at it and accept it with `./dev bless`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from convgen.backends import target as targets
from convgen.choose.choose import candidates
from convgen.plan.inputs import InputPath
from convgen.plan.plan import Plan
from convgen.problem.matmul import parse_problem
from convgen.run.code import OutputTiles
from tests import samples

Golden = Callable[[str, str], None]


def described(plan: Plan) -> str:
    """What a plan decided, on one line."""
    parts = [
        f"{p.mapping.counts[1]}x{p.mapping.counts[2]} tiles x {p.k_blocks} blocks {held(p.of_n)} {held(p.of_m)}"
        for p in plan.parts[:1]
    ]
    return f"{plan.reduction.name} {plan.registers} registers, {len(plan.parts)} parts: {', '.join(parts)}"


def held(path: InputPath) -> str:
    copy = "straight" if path.copy is None else f"{path.copy.message} a message"
    swizzle = "" if path.tile is None else f" {path.tile.swizzle.shift}:{path.tile.swizzle.mask}"
    return f"({path.view.memory.name} {copy}{swizzle})"


def places(tiles: OutputTiles) -> Iterator[str]:
    """Who makes which part of the outputs, of the first tiles, one in the middle and the last."""
    for part, (down, across) in enumerate(tiles.grids):
        for tile in sorted({*range(min(12, down * across)), down * across // 2, down * across - 1}):
            regions = [(r.output, r.rows.tolist(), r.columns.tolist()) for r in tiles.regions(part, tile)]
            yield f"{part} {tile} {tiles.groups(part, tile)} {regions}"


@pytest.mark.parametrize("target", samples.TARGETS)
def test_plans_and_kernels(target: str, golden: Golden) -> None:
    rows = []
    for name in samples.names(target):
        built = samples.program(target, name)
        assert built.plan is not None
        assert built.tiles is not None
        rows += [f"{name}: {built.config}", f"    {described(built.plan)}"]
        rows += [f"    {samples.digest(str(k))} in {k.name}" for k in built.ir.kernels]
        rows.append(f"    {samples.digest(chr(10).join(places(built.tiles)))} about tiles")
    golden(f"plans/{target}.txt", "\n".join(rows) + "\n")


_TRIED = 500  #: of the best candidates; more are never refused
_RANKED = (
    "--dir=FWD_D --dt=f16 mb16ic64ih56oc64kh3ph1",
    "--dir=FWD_B --dt=bf16 mb1ic3ih224oc64oh112kh7sh2ph3",
    "--dir=BWD_D --dt=f16 mb32ic128ih28oc128oh14kh3sh2ph1",
    "--dir=BWD_W --dt=bf16 mb32ic256ih14oc256kh3ph1",
    "--dir=FWD_D --dt=f16 --stag=abx --wtag=abx mb2ic100ih15oc50kh3",
    "--dt=s8:s8:s32 2048x1024:1024x1000",
    "--dt=f16 4096x4096:4096x4096",
)


@pytest.mark.parametrize("target", samples.TARGETS)
def test_ranking(target: str, golden: Golden) -> None:
    """The best five of each, a digest of those that may be tried, and one of all scores."""
    rows = []
    for line in _RANKED:
        found = candidates(parse_problem(line), targets.get(target).facts)
        ranked = [f"{c.score:12.1f} {c.config}" for c in found[:_TRIED]]
        scores = chr(10).join(f"{score:.1f}" for score in found.scores[found.order].tolist())
        rows += [f"{line}: {samples.digest(chr(10).join(ranked))} {samples.digest(scores)}", *ranked[:5]]
    golden(f"ranking/{target}.txt", "\n".join(rows) + "\n")
