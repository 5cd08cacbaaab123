"""Windows resident in shared memory: convolutions whose taps read one tile at distances."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from convgen import driver
from convgen.backends.target import get
from convgen.ir.error import UserError
from convgen.plan import views
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.plan.variants.resident import resident
from convgen.problem.conv import Conv
from convgen.run import verdict
from tests.product import test_padding as padding
from tests.product.problems import right

pytestmark = pytest.mark.in_turn(6)

TARGETS = "gfx90a", "gfx942", "gfx950"
XE = {"xehpg": ("2x2", "4x2", "1x2"), "xehpc": ("2x1", "2x2", "1x1")}  #: and grids of subgroups
CHANNELS_LAST = {"stag": "axb", "wtag": "axb", "dtag": "axb"}
WAYS = (
    "slots=1", "slots=1 acc=a", "slots=2", "slots=1 stages=2", "slots=1 subtiles=2", "slots=2 map=xcc:2+group:3m",
)  # fmt: skip


def windows(random: Random) -> tuple[Conv, int]:
    """A problem of stride 1 (or backward data whose phases are columns), and how many taps it has."""
    groups, direction = random.choice((1, 1, 2)), random.choice(("FWD_D", "BWD_D"))
    ic, oc = (groups * random.choice((16, 32, 48)) for _ in range(2))
    taps, line = 1, f"g{groups}mb{random.randint(1, 3)}ic{ic}oc{oc}"
    for name in random.choice(("hw", "hw", "w", "dhw")):
        k, d = random.randint(1, 3), random.choice((0, 0, 1, 2))
        reach = (k - 1) * (d + 1)
        size = random.randint(max(2, reach), 9) if name != "d" else reach + 1
        p = random.randint(0, reach)
        out = max(1, size + 2 * p - reach + random.choice((0, 0, -1, 1)))
        line += f"i{name}{size}o{name}{out}k{name}{k}p{name}{p}d{name}{d}"
        taps *= k
    return Conv.parse(line, dir=direction, dt=random.choice(("f16", "bf16")), **CHANNELS_LAST), taps


def fitting(target: str, mma: str, grids: Sequence[str], depths: Sequence[int], ways: Sequence[str], count: int) -> int:
    """Of so many random problems and configs those that fit; all of them are right."""
    random, ran = Random(f"resident {target}"), 0
    for n in range(count):
        problem, taps = windows(random)
        depth = random.choice(depths)
        tile = f"tile={random.choice((64, 96, 128))}x32x{depth * taps} waves={random.choice(grids)}"
        config = f"{tile} mma={mma} taps=resident {ways[n % len(ways)]}"
        ran += right(problem, target, config) is not None
    return ran


@pytest.mark.parametrize("target", TARGETS)
def test_convolutions_are_right(target: str) -> None:
    assert fitting(target, "16x16x16", ("2x1", "2x2", "1x1"), (16,), WAYS, 5) >= 1


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_more_convolutions_are_right(target: str) -> None:
    assert fitting(target, "16x16x16", ("2x1", "2x2", "1x1"), (16,), WAYS, 36) >= 12


@pytest.mark.parametrize("target", XE)
def test_blocks_of_shared_memory_may_begin_at_any_row(target: str) -> None:
    ways = "slots=1", "slots=2", "slots=1 packed=wei", "slots=1 stages=2", "slots=1 subtiles=2", "slots=2 packed=wei"
    assert fitting(target, "16x8x16", XE[target], (16, 32), ways, 4) >= 1


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("mb2ic64ih14oc64oh14kh3ph1", 16),  # 15 would do
        ("mb2ic64ih7oc64oh7kh3ph1", 8),
        ("mb2ic12ih7oc64oh7kh3ph1", 8),  # 8 anyway
        ("mb2ic12ih9oc64oh9kh3ph1", 10),  # rows of 24 bytes, which are no plane's
    ],
)
def test_rectangles_stay_within_a_line_where_messages_bring_such(line: str, rows: int) -> None:
    problem = Conv.parse(line, dir="FWD_D", dt="f16", **CHANNELS_LAST)
    (part,) = views.products(problem, 1)
    assert resident(part, part.k, get("xehpc").facts.planes).source.axes[0][-1].padded == rows


def test_windows_come_as_rectangles() -> None:
    """No lane looks for its place; blocks go out as they are, to banks of their own."""
    problem = Conv.parse("mb1ic64ih14oc32oh14kh3ph1", dir="FWD_D", dt="f16", **CHANNELS_LAST)
    config = "tile=128x32x144 waves=4x1 mma=16x8x16 slots=1 taps=resident packed=wei"
    code = driver.compile(driver.build(problem, "xehpc", config))
    main = code.asm[code.asm.index("_main") :]
    assert "load_block2d" in main
    assert "store.slm.d32x8" not in main


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("shape", "direction", "config"),
    [
        ("mb2ic16ih7oc32kh3ph1", "FWD_D", "tile=64x32x144"),
        ("mb1ic16ih9oc16kh3ph2dh1", "BWD_D", "tile=64x16x144"),
        ("mb1ic3ih11oc16kh7sh2ph3", "BWD_D", "tile=64x16x256 phases=columns"),
    ],
)
def test_padding_is_not_multiplied(target: str, shape: str, direction: str, config: str) -> None:
    problem = Conv.parse(shape, dir=direction, dt="f16", **CHANNELS_LAST)
    line = f"{config} waves=2x1 mma=16x16x16 slots=1 taps=resident"
    padding.check(problem, target, line, padding.corners(problem))


def test_the_source_is_brought_once_for_all_taps() -> None:
    problem = Conv.parse("mb4ic64ih28oc64oh28kh3ph1", dir="FWD_D", dt="f16", **CHANNELS_LAST)
    config = Config.parse("tile=256x64x288 waves=4x1 mma=32x32x16 slots=1 taps=resident")
    (part,) = make_plan(problem, config, get("gfx950").facts).parts
    assert part.k_blocks == 2
    assert part.of_m.tile is not None
    assert part.of_m.tile.cols == 32
    assert 256 + 2 * 29 + 2 <= part.of_m.tile.rows < 9 * 256


@pytest.mark.parametrize(
    ("columns", "run", "mma"), [(64, 16, "16x16x16"), (32, 32, "16x16x32"), (64, 32, "16x16x32"), (32, 64, "32x32x16")]
)
def test_weights_of_gradients_are_turned_by_their_reads_at_each_tap(columns: int, run: int, mma: str) -> None:
    """Their swizzle is the same where each tap begins."""
    problem = Conv.parse(f"mb1ic{columns}ih7oc{2 * run}kh3ph1", dir="BWD_D", dt="f16", **CHANNELS_LAST)
    config = f"tile=64x{columns}x{9 * run} waves=2x1 mma={mma} slots=1 taps=resident"
    (part,) = make_plan(problem, Config.parse(config), get("gfx950").facts).parts
    assert part.of_n.tile is not None
    assert part.of_n.tile.is_transposed
    assert run % part.of_n.tile.swizzle.period == 0
    code = driver.compile(driver.build(problem, "gfx950", config))
    assert "ds_read_b64_tr_b16" in code.asm
    assert verdict.run(code).passed


def test_the_chooser_takes_resident_windows_where_they_are_read_often() -> None:
    problem = Conv.parse("mb32ic64ih56oc64oh56kh3ph1", dir="FWD_D", dt="f16", **CHANNELS_LAST)
    assert "taps=resident" in driver.build(problem, "gfx950").config
    few = Conv.parse("mb32ic64ih56oc64oh56kh1", dir="FWD_D", dt="f16", **CHANNELS_LAST)
    assert "taps=resident" not in driver.build(few, "gfx950").config


@pytest.mark.parametrize(
    ("line", "target", "config", "why"),
    [
        ("mb1ic32ih9oc32kh3ph1", "gfx942", "tile=64x32x288 waves=2x1 mma=16x16x16 slots=0", "wanted shared memory"),
        ("mb1ic32ih9oc32kh3ph1", "gfx950", "tile=64x32x288 waves=2x1 mma=16x16x32 copy=direct", "through registers"),
        ("mb1ic32ih9oc32kh3ph1", "gfx942", "tile=64x32x288 waves=2x1 mma=16x16x16 slices=2", "one slice"),
        ("mb1ic32ih9oc32kh3ph1", "gfx942", "tile=64x32x256 waves=2x1 mma=16x16x16", "3 x 3 taps times a divisor"),
        ("mb1ic32ih9oc32oh4kh3ph1sh2", "gfx942", "tile=64x32x288 waves=2x1 mma=16x16x16", "steps of 1"),
        ("mb1ic32ih9oc32kh3ph1", "xehpc", "tile=64x32x288 waves=2x2 mma=16x8x16 slots=0", "wanted shared memory"),
    ],
)
def test_others_are_refused_in_a_line(line: str, target: str, config: str, why: str) -> None:
    problem = Conv.parse(line, dir="FWD_D", dt="f16", **CHANNELS_LAST)
    with pytest.raises(UserError, match=why) as refused:
        driver.build(problem, target, f"{config} taps=resident")
    assert "\n" not in str(refused.value)
