"""Subgroups along K: each sums parts of a block, and after the last block they reduce these in shared memory."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest

from convgen import driver
from convgen.backends.target import get
from convgen.ir.error import DoesNotFit, UserError
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Overlay
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul
from convgen.run import verdict
from tests.product import test_padding as padding

pytestmark = pytest.mark.in_turn(6)

LINE = "tile=32x32x64 mma=16x16x16 waves={}"
LAYER = "mb2ic40ih9oc24oh9kh3ph1"


def wrong(problem: Conv | Matmul, line: str, target: str = "gfx942") -> int:
    """Mismatches and findings."""
    outcome = verdict.run(driver.compile(driver.build(problem, target, line)))
    return outcome.mismatches + len(outcome.findings)


@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_W"])
@pytest.mark.parametrize("waves", ["1x1x2", "1x1x4", "2x1x2", "1x2x2"])
def test_all_directions_are_right(direction: str, waves: str) -> None:
    assert not wrong(Conv.parse(LAYER, dir=direction, dt="f16"), LINE.format(waves))


@pytest.mark.parametrize(
    ("dt", "line"),
    [
        ("f16", "tile=32x32x64 waves=1x1x2 mma=16x16x16 acc=a slots=1"),
        ("f16", "tile=64x32x64 waves=1x1x4 mma=16x16x16 subtiles=2"),
        ("f16", "tile=32x32x64 waves=1x1x4 mma=16x16x16 slots=0"),
        ("f16", "tile=32x32x64 waves=1x1x4 mma=16x16x16 slices=2"),
        ("f16", "tile=32x32x64 waves=1x1x4 mma=16x16x16 slices=2 sum=launch"),
        ("f16", "tile=32x32x64 waves=1x1x4 mma=16x16x16 slices=2 sum=last"),
        ("f16", "tile=32x32x64 waves=1x1x4 mma=16x16x16 slices=3 sum=last:2"),
        ("f16", "tile=64x32x64 waves=2x1x2 mma=16x16x16 slices=2 sum=last:2 subtiles=2"),
        ("f16", "tile=32x32x64 waves=1x1x4 mma=16x16x16 slots=3 map=stream:5"),
        ("f16", "tile=32x32x64 waves=1x1x4 mma=16x16x16 slots=3 map=persist:3"),
        ("f16", "tile=32x32x64 waves=1x1x4 mma=16x16x16 padding=zeros taps=chunk"),
        ("f16", "tile=64x64x64 waves=1x1x4 mma=32x32x8 slots=1"),
        ("f16", "tile=32x32x360 waves=1x1x2 mma=16x16x16 slots=1 taps=resident"),
        ("s8", "tile=32x32x128 waves=1x1x4 mma=16x16x32"),
        ("f32", "tile=32x32x32 waves=1x1x4 mma=16x16x4"),
    ],
)
def test_other_words_of_a_config_go_with_it(dt: str, line: str) -> None:
    problem = Conv.parse(LAYER.replace("ic40", "ic64") if "resident" in line else LAYER, dir="FWD_B", dt=dt)
    assert not wrong(problem, line.replace("x360 ", "x288 "))


def test_products_with_steps_are_right() -> None:
    problem = Matmul.parse("70x90:90x50", dt="f16", bia_dt="f32", attr_post_ops="relu")
    assert not wrong(problem, LINE.format("1x1x4"))


@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_W"])
@pytest.mark.parametrize("waves", ["1x1x4 slots=2", "2x1x2 slots=1", "1x2x2 slots=2 taps=fused slices=3"])
def test_padding_adds_nothing(direction: str, waves: str) -> None:
    """Sums that are not finite are made again in the subgroup that has them in its share."""
    problem = Conv.parse("mb2ic40ih7oc24oh7kh3ph1", dir=direction, dt="f16")
    padding.check(problem, "gfx942", f"{LINE.format(waves)}", padding.corners(problem))


@pytest.mark.parametrize("waves", ["1x1x2", "1x1x4", "2x1x2", "1x2x2"])
@pytest.mark.parametrize("tile", ["96x32x64", "32x96x64", "64x64x64"])
def test_shares_make_up_the_tile(waves: str, tile: str) -> None:
    """Each element is in one subgroup's share; blocks of K are dealt out, and A and B agree on them."""
    line = f"tile={tile} waves={waves} mma=16x16x16"
    mma = make_plan(Conv.parse(LAYER, dir="FWD_D", dt="f16"), Config.parse(line), get("gfx942").facts).mma
    subgroups = np.arange(mma.teams * mma.teams_k)[:, None, None]

    def held(f: Fragment) -> dict[str, np.ndarray[Any, Any]]:
        lanes, registers = np.arange(64)[None, :, None], np.arange(f.registers)[None, None, :]
        shape = len(subgroups), 64, f.registers
        return {dim: np.broadcast_to(at, shape) for dim, at in f.coords(subgroups, lanes, registers).items()}

    reduced, columns = held(mma.reduced_d), mma.reduced_d.extent("n")
    places = (reduced["m"] * columns + reduced["n"]).ravel()
    assert np.array_equal(np.sort(places), np.arange(mma.reduced_d.extent("m") * columns))
    a, b = held(mma.a)["k"], held(mma.b)["k"]
    shares = [sorted(set(of_one.ravel().tolist())) for of_one in a]
    assert shares == [sorted(set(of_one.ravel().tolist())) for of_one in b]
    assert sorted(chain(*shares[:: mma.teams])) == [*range(64)]


def test_sums_are_reduced_in_the_memory_of_the_blocks() -> None:
    problem, facts = Conv.parse(LAYER, dir="FWD_D", dt="f16"), get("gfx942").facts
    plan = make_plan(problem, Config.parse("tile=96x32x128 waves=1x1x4 mma=16x16x16 slots=2"), facts)
    assert plan.subgroup_reduction
    assert isinstance(plan.subgroup_reduction.tile, Overlay)
    code = driver.compile(driver.build(problem, "gfx942", str(plan.config)))
    assert code.record.launches[0].shared_bytes == plan.shared_bytes == facts.shared_bytes


@pytest.mark.parametrize(
    ("dt", "line", "text"),
    [
        ("f64", "tile=32x32x16 waves=1x1x4 mma=16x16x4 slots=1", "no input's shared memory has room"),
        ("f16", "tile=16x16x64 waves=1x1x2 mma=16x16x16", "instructions of a subgroup over subgroups along K"),
        ("f16", "tile=32x32x32 waves=1x1x4 mma=16x16x16", "tile K over subgroups x the instruction's K"),
        ("f16", "tile=128x128x16 waves=1x1x1x2 mma=16x16x16", "wanted waves=MxN|MxNxK"),
    ],
)
def test_what_does_not_come_out_even_is_refused(dt: str, line: str, text: str) -> None:
    with pytest.raises((UserError, DoesNotFit), match=text.replace("|", r"\|")):
        driver.build(Conv.parse(LAYER, dir="FWD_D", dt=dt), "gfx942", line)


def test_lines_name_subgroups_along_k_where_there_are_several() -> None:
    assert str(Config.parse(LINE.format("1x1x1"))).split()[1] == "waves=1x1"
    config = Config.parse(LINE.format("2x1x2"))
    assert (str(config).split()[1], config.subgroups) == ("waves=2x1x2", 4)
    assert Config.parse(str(config)) == config
