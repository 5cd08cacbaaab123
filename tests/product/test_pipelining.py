"""Loads that run several blocks of K ahead: exact results, also of loops shorter than that and of unknown length."""

from __future__ import annotations

import numpy as np
import pytest

import convgen as cg
from convgen.backends import target as targets
from convgen.ir.error import DoesNotFit
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.matmul import parse_problem
from convgen.run import reference, verdict

pytestmark = pytest.mark.in_turn(6)

TILE = "tile=32x32x32 waves=2x1 mma=16x16x16"
DEEP = (
    *("slots=1 stages=2", "slots=2 stages=2", "slots=2 stages=3", "slots=2 stages=4"),
    *("slots=3 stages=2", "slots=3 stages=3", "slots=4", "slots=4 stages=4"),
)


@pytest.mark.parametrize("words", DEEP)
@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 19])
def test_any_number_of_blocks(blocks: int, words: str) -> None:
    """The last block is not full."""
    problem = parse_problem(f"--dt=f16 40x{32 * blocks - 8}:{32 * blocks - 8}x48")
    code = cg.compile(cg.build(problem, target="gfx942", config=f"{TILE} {words}"))
    assert verdict.run(code).passed


@pytest.mark.parametrize("words", DEEP)
@pytest.mark.parametrize(
    ("line", "more"),
    [
        ("--dir=FWD_D --dt=f16 mb2ic40oc40ih7kh3ph1", ""),
        ("--dir=BWD_D --dt=f16 mb4ic32oc64iw20kw3sw2pw1", ""),
        ("--dir=BWD_W --dt=f16 mb4ic24oc40ih12kh3ph1", "taps=fused slices=2"),
        ("--dir=FWD_D --dt=f16 mb2ic40oc40ih7kh3ph1", "map=stream:3"),
        ("--dt=f16 96x400:400x72", "map=stream:5:all"),
        ("--dt=f16 96x400:400x72", "map=persist:4"),
    ],
)
def test_directions_and_maps(line: str, more: str, words: str) -> None:
    code = cg.compile(cg.build(parse_problem(line), target="gfx942", config=f"{TILE} {words} {more} padding=zeros"))
    assert verdict.run(code).passed


@pytest.mark.parametrize("words", DEEP)
def test_depths_known_at_launch(words: str) -> None:
    line = "--dt=f16 --runtime_dims_masks=2:1 32x{k}:{k}x32"
    code = cg.compile(cg.build(parse_problem(line.format(k=640)), target="gfx942", config=f"{TILE} {words}"))
    for k in (32, 96, 128, 320, 640):
        problem = parse_problem(f"--dt=f16 32x{k}:{k}x32")
        inputs = {name: np.asarray(tensor) for name, tensor in reference.fills(problem, 1).items()}
        wanted = inputs["src"].astype(np.float32) @ inputs["wei"].astype(np.float32)
        assert np.array_equal(cg.simulate(code, k=k, **inputs), wanted.astype(np.float16))


@pytest.mark.parametrize("target", ["gfx90a", "gfx950", "xehpc", "xehpg", "sm_90"])
def test_other_targets(target: str) -> None:
    atom = {"xehpc": "16x8x16", "xehpg": "8x8x16", "sm_90": "8x16x16"}.get(target, "16x16x16")
    waves = "4x2" if target == "xehpg" else "2x1"
    config = f"tile=32x32x32 waves={waves} mma={atom} slots=2 stages=2 padding=zeros"
    problem = parse_problem("--dir=FWD_D --dt=f16 mb2ic64oc40ih7kh3ph1")
    assert verdict.run(cg.compile(cg.build(problem, target=target, config=config))).passed


def test_what_straight_loads_refuse() -> None:
    problem = parse_problem("--dt=f16 32x64:64x32")
    with pytest.raises(cg.UserError, match=r"stages=2: with slots=0 nothing is on its way"):
        cg.build(problem, target="gfx942", config=f"{TILE} slots=0 stages=2")


def test_a_plan_counts_what_is_held() -> None:
    """Registers for each block on its way, and shared memory for each slot."""
    problem, facts = parse_problem("--dt=f16 256x512:512x256"), targets.get("gfx942").facts
    tile = "tile=128x128x32 waves=2x2 mma=32x32x8 acc=a"
    two, three, more = (
        make_plan(problem, Config.parse(f"{tile} {words}"), facts)
        for words in ("slots=2", "slots=2 stages=3", "slots=4 stages=3")
    )
    block = 2 * 128 * 32 * 2  # bytes
    assert three.registers - two.registers == 2 * block // (4 * 256)
    assert (two.shared_bytes, more.shared_bytes) == (2 * block, 4 * block)
    assert more.registers == three.registers
    with pytest.raises(DoesNotFit, match="81920 bytes of shared memory, at most 65536"):
        make_plan(problem, Config.parse("tile=256x64x32 waves=4x1 mma=32x32x8 slots=4"), facts)
