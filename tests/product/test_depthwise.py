"""Convolutions of small groups by lanes, all the way: edge cases on every target, and random ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convgen import driver
from convgen.backends import target as targets
from convgen.choose import lane_configs
from convgen.ir.error import UserError
from convgen.plan.config import LanePart
from convgen.problem.conv import Conv
from convgen.run import verdict
from convgen.run.code import Code
from tests.product.problems import expect_right
from tests.strategies import SWEEP, always

TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpc", "xehpg", "sm_90")
OF_EACH_VENDOR = ("gfx942", "xehpc")  #: on one of them all cases run always; on all others the first of each result

#: (problem, knobs, what each lane has)
CASES: tuple[tuple[str, dict[str, str], tuple[int, ...]], ...] = (
    ("mb2g16ic16oc16ih9oh9kh3ph1", {"dir": "FWD_B", "dt": "f16", "attr_post_ops": "relu"}, (8, 2, 2)),
    ("mb1g13ic13oc13ih9oh9kh3ph1", {"dir": "FWD_D", "dt": "bf16"}, (4, 1, 4)),
    ("mb1g8ic8oc16ih9oh5kh3sh2ph1", {"dir": "BWD_D", "dt": "f32"}, (2, 2, 2)),
    ("mb1g8ic8oc24ih9oh5kh3sh2ph1", {"dir": "FWD_B", "dt": "s8"}, (6, 1, 2)),
    ("mb1g4ic4oc4ih16oh16kh3ph1", {"dir": "FWD_D", "dt": "f16", "stag": "abx", "dtag": "abx"}, (2, 1, 8)),
    ("mb1g8ic8oc8ih7oh5kh5ph3dh1", {"dir": "BWD_D", "dt": "f16"}, (4, 1, 2)),
    ("mb1g16ic16oc16iw9ow13kw5pw4", {"dir": "FWD_D", "dt": "f16"}, (8, 1, 4)),
    ("mb1g8ic8oc8id4od4kd3pd1ih5oh5kh3ph1iw5ow5kw3pw1", {"dir": "FWD_D", "dt": "f32"}, (4, 1, 2)),
    ("mb2g32ic32oc32ih5oh5kh3ph1", {"dir": "FWD_D", "dt": "f16", "stag": "aBcd16b", "dtag": "aBcd16b"}, (8, 1, 2)),
    ("mb1g2ic2oc2ih3oh9kh1ph3", {"dir": "FWD_D", "dt": "f16"}, (2, 1, 2)),
    ("mb3g16ic16oc16ih9oh9kh3ph1", {"dir": "BWD_WB", "dt": "f16"}, (4, 2, 4)),
    ("mb1g8ic8oc16ih9oh5kh3sh2ph1", {"dir": "BWD_W", "dt": "f32"}, (4, 1, 2)),
    ("mb2g8ic16oc8ih9oh9kh3ph2dh1", {"dir": "BWD_W", "dt": "bf16", "stag": "abx", "dtag": "abx"}, (1, 2, 8)),
    ("mb1g16ic16oc16id3od2kd2ih5oh5kh3ph1iw5ow5kw3pw1", {"dir": "BWD_W", "dt": "f16"}, (8, 1, 4)),
    ("mb1g32ic128oc128ih5oh5kh3ph1", {"dir": "BWD_W", "dt": "f16"}, (4, 1, 2)),
    ("mb1g8ic16oc24ih9oh5kh3sh2ph1", {"dir": "FWD_B", "dt": "f16"}, (3, 1, 2)),
    ("mb1g8ic8oc16ih9oh9kh3ph1", {"dir": "FWD_B", "dt": "s8:s8:f16", "attr_scales": "src:per_oc"}, (4, 1, 2)),
    ("mb1g8ic8oc8iw5ow3kw3", {"dir": "BWD_W", "dt": "f16"}, (4, 1, 4)),  # one block, which is not whole
)
FIRST = CASES[0], next(case for case in CASES if case[1]["dir"] == "BWD_WB")


#: The same by matrix instructions of blocks, with what each lane has and how far its tile goes.
OF_BLOCKS = (
    (
        "mb1g32ic128oc128ih9oh9kh3ph1",
        {"dir": "FWD_B", "dt": "f16", "attr_post_ops": "relu"},
        LanePart(4, 2, 4, (4, 4, 4)),
    ),
    ("mb1g16ic128oc128ih9oh5kh3sh2ph1", {"dir": "BWD_D", "dt": "bf16"}, LanePart(8, 1, 2, (4, 4, 4))),
    ("mb1g8ic32oc64ih9oh9kh3ph2dh1", {"dir": "FWD_B", "dt": "s8"}, LanePart(8, 2, 2, (4, 4, 4))),
    ("mb1g8ic64oc32id5od5kd3pd1ih5oh5kh3ph1iw5ow5kw3pw1", {"dir": "FWD_D", "dt": "f16"}, LanePart(4, 1, 4, (4, 4, 4))),
)


def assert_right(code: Code) -> None:
    outcome = verdict.run(code, groups=4)
    assert outcome.checked
    expect_right(outcome)


@pytest.mark.parametrize(
    ("line", "knobs", "own", "target"),
    always(
        [(*case, target) for case, target in product(CASES, TARGETS)],
        lambda n, row: row[-1] == OF_EACH_VENDOR[n // len(TARGETS) % 2] or row[:-1] in FIRST,
    ),
)
@pytest.mark.in_turn(2)
def test_edge_cases(line: str, knobs: dict[str, str], own: tuple[int, int, int], target: str) -> None:
    """By the best config with such lanes."""
    assert_best_is_right(Conv.parse(line, **knobs), LanePart(*own), target)


@pytest.mark.parametrize(
    ("line", "knobs", "own", "target"),
    always(
        [(*case, target) for case, target in product(OF_BLOCKS, TARGETS[:3])],
        lambda n, row: row[-1] == TARGETS[n // 3 % 3],
    ),
)
def test_blocks_of_lanes(line: str, knobs: dict[str, str], own: LanePart, target: str) -> None:
    assert_best_is_right(Conv.parse(line, **knobs), own, target)


def assert_best_is_right(problem: Conv, own: LanePart, target: str) -> None:
    ranked = (scored for scored in lane_configs.configs(problem, targets.get(target).facts, ()) if scored[1].mma == own)
    _, config = min(ranked, key=lambda scored: scored[0])
    code = driver.compile(driver.build(problem, target, str(config)))
    assert code.config == str(config)
    assert_right(code)


@pytest.mark.parametrize("target", OF_EACH_VENDOR)
def test_taps_in_a_loop(target: str) -> None:
    """Of 25, a row at a time; in backward data the weights are seen from their end."""
    for direction in ("FWD_D", "BWD_D"):
        problem = Conv.parse("mb1g8ic8oc8ih9oh9kh5ph2", dir=direction, dt="f16")
        wide = targets.get(target).facts.subgroup_size
        config = f"tile={wide}x8x5 waves=1x1 mma=fma:4x1x2 slots=0 taps=fused acc=v"
        assert_right(driver.compile(driver.build(problem, target, config)))


@st.composite
def depthwise(draw: st.DrawFn, *directions: str, types: Sequence[str] = ("f16", "bf16", "f32")) -> Conv:
    """Groups with one channel, or few, on either side."""
    groups, axes = draw(st.sampled_from([2, 3, 8, 16, 17, 33])), draw(st.integers(1, 3))
    ic, oc = (groups * draw(st.sampled_from([1, 1, 1, 2, 3, 4, 4, 8])) for _ in "io")
    text = f"mb{draw(st.integers(1, 3))}g{groups}ic{ic}oc{oc}"
    for name in "dhw"[3 - axes :]:
        k, s, d = (draw(st.integers(*span)) for span in ((1, 3 if axes > 2 else 5), (1, 3), (0, 2)))
        p = draw(st.integers(0, k + 1))
        window = (k - 1) * (d + 1) + 1
        i = draw(st.integers(max(1, window - 2 * p), window + 9))
        text += f"i{name}{i}o{name}{(i + 2 * p - window) // s + 1}k{name}{k}s{name}{s}p{name}{p}d{name}{d}"
    knobs = {
        "dir": draw(st.sampled_from(directions)),
        "dt": draw(st.sampled_from(types)),
    }
    return Conv.parse(text, **knobs, **{tag: draw(st.sampled_from(["any", "abx"])) for tag in ("stag", "dtag")})


def fitting(problem: Conv, target: str, number: int) -> Code | None:
    """By one of the configs of lanes, if there is any and registers suffice."""
    configs = [config for _, config in lane_configs.configs(problem, targets.get(target).facts, ())]
    if not configs:  # nothing is summed
        return None
    try:
        return driver.compile(driver.build(problem, target, str(configs[number % len(configs)])))
    except UserError as error:
        if "wanted one that fits" not in str(error):
            raise
        return None


_EVERY = depthwise("FWD_B", "BWD_D", "BWD_W", "BWD_WB", types=("f16", "bf16", "f32", "s8"))


@pytest.mark.sweep
@SWEEP
@given(_EVERY, st.sampled_from(TARGETS), st.integers(0, 1 << 16))
def test_random_ones(problem: Conv, target: str, number: int) -> None:
    if code := fitting(problem, target, number):
        assert_right(code)


@pytest.mark.parametrize(
    ("line", "knobs", "config"),
    [
        ("g16mb1ic16oc16ih13kh1ph0", {"dir": "BWD_W", "stag": "abCD4c4d"}, "tile=1x8x256 waves=4x2 mma=fma:1x1x4"),
        ("g16mb1ic16oc16ih13kh1ph0", {"dir": "BWD_D", "stag": "abCD3c8d"}, "tile=256x1x1 waves=4x1 mma=fma:1x1x1"),
        ("g4mb1ic8oc32ih5kh1dh1", {"dir": "BWD_D", "stag": "CBda3b8c4b"}, "tile=896x2x8 waves=1x1 mma=fma:2x14x1"),
        ("g16mb1ic16oc16ih7kh4ph1", {"dir": "FWD_D", "wtag": "abcDe2d"}, "tile=4x16x16 waves=1x1 mma=fma:1x1x1"),
    ],
)
def test_positions_and_taps_in_blocks_are_no_neighbours(line: str, knobs: dict[str, str], config: str) -> None:
    """Lanes take no such windows, and the chooser leaves these to the matrix unit."""
    problem = Conv.parse(line, dt="f16", **knobs)
    with pytest.raises(UserError, match="wanted positions and taps that are not in blocks"):
        driver.build(problem, "gfx942", f"{config} slots=0 taps=fused")
    assert_right(driver.compile(driver.build(problem, "gfx942")))
