"""Tensors whose dims lie in any order, groups included: each kind of config becomes a kernel, or does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, permutations
from random import Random

import pytest

from convgen import driver
from convgen.backends.target import get
from convgen.choose.choose import candidates
from convgen.choose.supported import check_supported
from convgen.ir.error import DoesNotFit, Unsupported
from convgen.kernels.launches import build as build_launches
from convgen.passes import pipeline
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.conv import Conv
from convgen.problem.matmul import Problem
from convgen.run import verdict
from tests import samples

_CANDIDATES = 100  #: of a problem, among which one of each kind is lowered


@pytest.mark.parametrize(("target", "dt"), [("gfx90a", "s8:s8:s32"), ("gfx942", "f16"), ("gfx950", "f16")])
def test_weights_in_runs_may_have_groups_innermost(target: str, dt: str) -> None:
    """They come element by element: their neighbours in memory are in other groups."""
    problem = Conv.parse("g8mb1ic8oc8ih8kh7ph3", dir="FWD_D", dt=dt, stag="nchw", wtag="hwigo", dtag="nchw")
    config = "tile=32x16x64 waves=2x1 mma=16x16x16 slots=2 taps=runs"
    assert verdict.run(driver.compile(driver.build(problem, target, config)), groups=2).passed


def kinds(problem: Problem, target: str) -> Iterator[Config]:
    """The best config of each way to cut K, to pack and to combine products, and the last resort."""
    ranking, seen = candidates(problem, get(target).facts), set()
    for config in (*(c.config for c in islice(ranking, _CANDIDATES)), ranking[-1].config):
        kind = type(config.mma), config.taps, config.packed, config.phases, config.grids, config.slots > 0
        if kind not in seen:
            seen.add(kind)
            yield config


def lower(problem: Problem, target: str) -> int:
    """Lower the kernels of each kind of config, return how many; other errors than DoesNotFit and Unsupported pass."""
    facts, count = get(target).facts, 0
    try:
        check_supported(problem, facts)
    except Unsupported:
        return 0
    for config in kinds(problem, target):
        try:
            plan = make_plan(problem, config, facts)
            for kernel in build_launches(plan)[0].kernels:
                pipeline.run(kernel, facts)
                count += 1
        except (DoesNotFit, Unsupported):
            pass
    return count


def drawn(random: Random) -> Conv:
    """A small problem in groups whose tensors have their dims in any order."""
    groups, of_input, of_output = random.choice((2, 3, 8, 16)), random.choice((1, 1, 2, 4)), random.choice((1, 2, 8))
    kernel, stride = random.choice((1, 3, 5, 7)), random.choice((1, 1, 2))
    channels = f"g{groups}mb{random.choice((1, 2))}ic{groups * of_input}oc{groups * of_output}"
    letters = {"stag": "abcd", "wtag": "abcde", "dtag": "abcd"}
    tags = {tag: "".join(random.choice([*permutations(dims)])) for tag, dims in letters.items()}
    knobs = {"dir": random.choice(("FWD_D", "BWD_D", "BWD_W")), "dt": random.choice(("f16", "bf16", "f32"))}
    return Conv.parse(f"{channels}ih{random.choice((6, 9))}kh{kernel}sh{stride}ph{kernel // 2}", **knobs, **tags)


@pytest.mark.sweep
@pytest.mark.parametrize("target", samples.TARGETS)
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_dims_is_lowered(target: str, seed: int) -> None:
    random = Random(seed)
    assert sum(lower(drawn(random), target) for _ in range(8)) > 8
