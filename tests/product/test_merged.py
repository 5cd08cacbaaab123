"""Products of stride phases in one grid: each workgroup has a tile of one of them, those of most work first."""

from __future__ import annotations

import re
from itertools import islice
from random import Random

import pytest

from convgen import driver
from convgen.backends.target import get
from convgen.ir.error import UserError
from convgen.ir.layout.mapping import WorkgroupMapping
from convgen.ir.layout.order import Order
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.conv import Conv
from convgen.run import verdict
from tests import samples

pytestmark = pytest.mark.in_turn(2)

CONFIG = {
    "amdgpu": "tile=32x32x32 waves=1x1 mma=16x16x16 slots=2 taps=fused grids=merged",
    "intel": "tile=32x32x32 waves=2x2 mma=16x8x16 slots=1 taps=split grids=merged",
    "nvidia": "tile=32x32x32 waves=1x2 mma=8x16x16 slots=3 taps=fused grids=merged copy=direct",
}


def strided(random: Random) -> Conv:
    """Backward data of strides, with the gaps that no window reaches, channels that leave tails, and groups."""
    groups, kernel, stride = random.choice((1, 1, 2)), random.randint(1, 4), random.choice((2, 2, 3))
    ic, oc = (groups * random.choice((3, 8, 16, 33)) for _ in range(2))
    size = random.randint(6, 10)
    pad = random.randint(0, kernel - 1)
    line = f"g{groups}mb2ic{ic}oc{oc}ih{size}kh{kernel}sh{stride}ph{pad}dh{random.choice((0, 0, 1))}"
    tag = random.choice(("axb", "abx"))
    return Conv.parse(line, dir="BWD_D", dt="f16", stag=tag, wtag="axb", dtag=tag)


def found(problem: Conv, target: str, words: str = "") -> tuple[int, int] | None:
    """Launches and mismatches of a merged program, all findings counted; None where the config does not fit."""
    config = f"{samples.of_family(target, CONFIG)}{words}"
    try:
        code = driver.compile(driver.build(problem, target, config=config))
    except UserError:
        return None
    outcome = verdict.run(code)
    return len(code.record.launches), outcome.mismatches + len(outcome.findings)


@pytest.mark.parametrize("target", samples.SIMULATED)
def test_strided_problems_are_right(target: str) -> None:
    assert_right(target, 1)


@pytest.mark.parametrize("order", ["persist:3", "persist:4:snake"])
@pytest.mark.parametrize("target", samples.SIMULATED)
def test_persistent_workgroups_take_tiles_of_all_products(target: str, order: str) -> None:
    assert_right(target, 1, f" map={order}")


def test_bulk_copies_fill_one_ring_for_all_products() -> None:
    config = "tile=64x64x64 waves=1x4 mma=64x64x16 slots=3 grids=merged copy=tensor"
    problem = Conv.parse("mb3ic64oc64ih15oh8kh3sh2ph1", dir="BWD_D", dt="f16", stag="axb", wtag="axb", dtag="axb")
    for order in ("", " map=persist:3", " map=persist:2:snake"):
        code = driver.compile(driver.build(problem, "sm_90a", config=config + order))
        outcome = verdict.run(code)
        assert (outcome.mismatches, outcome.findings) == (0, ())


@pytest.mark.sweep
@pytest.mark.parametrize("target", samples.SIMULATED)
def test_more_strided_problems_are_right(target: str) -> None:
    assert min(assert_right(target, 5)) == 1  # some need no launch ahead


def assert_right(target: str, count: int, words: str = "") -> list[int]:
    """Run so many problems, of those drawn that fit; return the launches of each."""
    random = Random(f"merged {target}")
    results = (found(strided(random), target, words) for _ in range(8 * count))
    ran = list(islice(filter(None, results), count))
    assert len(ran) == count
    assert all(wrong == 0 for _, wrong in ran)
    return [launches for launches, _ in ran]


def test_one_tile_needs_workgroups_of_its_own_product() -> None:
    problem = Conv.parse("mb2ic32ih16oc32kh3sh2ph1", dir="BWD_D", dt="f16", stag="axb", wtag="axb", dtag="axb")
    code = driver.with_tiles(driver.compile(driver.build(problem, config=CONFIG["amdgpu"])))
    assert code.tiles is not None
    (grid,) = [launch.grid for launch in code.record.launches]
    groups = [
        code.tiles.groups(part, tile)[0]
        for part, (down, across) in enumerate(code.tiles.grids)
        for tile in range(down * across)
    ]
    assert sorted(group for each in groups for group in each) == list(range(grid[0]))
    outcome = verdict.run(code, groups=3)
    assert (outcome.mismatches, outcome.findings) == (0, ())


def test_no_product_waits_for_those_of_other_workgroups() -> None:
    """Nor does it compute what they need: on each way there is one product, and its first barrier publishes."""
    problem = Conv.parse("mb2ic32ih8oc32kh3ph1sh2", dir="BWD_D", dt="f16")
    config = "tile=32x16x64 waves=2x1 mma=16x16x16 slots=3 stages=2 taps=fused grids=merged padding=zeros"
    code = driver.compile(driver.build(problem, config=config))
    ways = re.split(r"^\.L\S+\.(?:then|else)_\d+:", code.asm, flags=re.MULTILINE)[1:]
    barriers = [re.findall(r"s_barrier *// (\w+)", way) for way in ways]
    assert sorted(filter(None, barriers)) == [["publish"]] * 3 + [["publish"] * 2]
    assert (
        code.asm.count("s_cmp_lt_i32") == len(make_plan(problem, Config.parse(config), get("gfx942").facts).parts) - 1
    )


def test_products_of_most_work_come_first() -> None:
    problem = Conv.parse("mb2ic32ih16oc32kh3sh2ph1", dir="BWD_D", dt="f16")
    plan = make_plan(problem, Config.parse(CONFIG["amdgpu"]), get("gfx942").facts)
    blocks = [part.k_blocks for part in plan.parts]
    assert blocks == sorted(blocks, reverse=True)
    assert len(set(blocks)) > 1
    assert plan.parts[0].mapping.first == 0


def test_the_chooser_merges_few_phases() -> None:
    problem = Conv.parse("mb8ic64ih28oc64kh3sh2ph1", dir="BWD_D", dt="f16", stag="axb", wtag="axb", dtag="axb")
    assert "grids=merged" in driver.build(problem).config
    many = Conv.parse("mb1ic16iw400oc16kw32sw16", dir="BWD_D", dt="f16")
    assert "grids=merged" not in driver.build(many).config


@pytest.mark.parametrize(
    ("line", "direction", "config", "why"),
    [
        ("mb2ic32ih16oc32kh3ph1", "BWD_D", CONFIG["amdgpu"], "wanted several products"),
        ("mb2ic32ih16oc32kh3sh2ph1", "FWD_D", CONFIG["amdgpu"], "wanted several products"),
        ("mb2ic32ih16oc64kh3sh2ph1", "BWD_D", f"{CONFIG['amdgpu']} slices=2", "one slice"),
        ("mb2ic32ih16oc64kh3sh2ph1", "BWD_D", f"{CONFIG['amdgpu']} map=stream:4", "workgroups of whole tiles"),
    ],
)
def test_others_are_refused_in_a_line(line: str, direction: str, config: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as refused:
        driver.build(Conv.parse(line, dir=direction, dt="f16"), config=config)
    assert "\n" not in str(refused.value)


def test_persistent_workgroups_of_a_shared_grid_take_each_number_once() -> None:
    order = Order.parse("cols+persist:9:snake")
    mappings = [
        WorkgroupMapping((1, m, n, 1), order, first=first, together=47)
        for (m, n), first in (((5, 7), 0), ((2, 4), 35), ((4, 1), 43))
    ]
    taken = dict.fromkeys(range(47), 0)
    for group in range(9):
        for turn in range(mappings[0].turns.count):
            share = mappings[0].turns.share(turn, group)
            if all(share.exists):
                taken[share.number] += 1
    assert set(taken.values()) == {1}
    for mapping in mappings:
        assert mapping.grid == (9, 1, 1)
        assert mapping.first is not None
        for number, (_, m, n, _) in enumerate(mapping.tiles().tolist(), mapping.first):
            (group,) = mapping.groups({"m": [m], "n": [n]})
            turns = (mapping.turns.share(turn, group) for turn in range(mapping.turns.count))
            assert number in [share.number for share in turns]


def test_a_mapping_in_a_shared_grid_counts_from_its_first() -> None:
    for order in ("rows", "cols", "xcc:8+group:3m"):
        alone = WorkgroupMapping.of(5, 7, k=2, order=Order.parse(order))
        shared = WorkgroupMapping((1, 5, 7, 2), Order.parse(order), first=100)
        assert shared.grid == (70, 1, 1)
        numbers = sorted(g for m in range(5) for n in range(7) for g in shared.groups({"m": [m], "n": [n]}))
        assert numbers == list(range(100, 170))
        here = shared.tile((13, 0, 0))
        assert {dim: int(at) for dim, at in here.items()} == dict(zip(("batch", "m", "n", "k"), shared.tiles()[13]))
        assert len(alone.groups({"m": [2], "n": [3]})) == len(shared.groups({"m": [2], "n": [3]})) == 2
