"""Lines of windows, whose few channels and taps are padded to whole chunks."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import convgen as cg
from convgen import driver
from convgen.backends.target import get
from convgen.choose.choose import candidates
from convgen.ir.error import UserError
from convgen.passes.messages.linear import linearize
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.conv import Conv
from convgen.run import reference
from tests.product import test_padding as padding
from tests.product.problems import right

pytestmark = pytest.mark.in_turn(6)

LAST = {"stag": "axb", "wtag": "axb", "dtag": "axb"}
FIRST = "mb1ic3ih9oc16oh9kh3ph1"  #: a first layer whose rows of pixels are no whole words
GRIDS = {
    "gfx942": ("2x1", "16x16x16"),
    "xehpg": ("2x2", "16x8x16"),
    "xehpc": ("2x1", "16x8x16"),
}
WAYS = "slots=2", "slots=1", "slots=2 stages=2", "slots=2 slices=2"


def convolution(random: Random) -> Conv:
    """A problem of few channels in windows of any stride."""
    ic, oc, k = random.choice((1, 2, 3, 5, 7)), random.choice((3, 16, 40)), random.choice((1, 2, 3, 5))
    stride, size = random.choice((1, 1, 2, 3)), random.randint(5, 12)
    line = f"mb{random.randint(1, 3)}ic{ic}oc{oc}ih{size}kh{k}sh{stride}ph{random.randint(0, k // 2)}"
    direction = random.choice(("FWD_D", "FWD_D", "BWD_W"))
    dt = random.choice(("f16", "bf16", "s8", "u8:s8:s32")) if direction == "FWD_D" else "f16"
    return Conv.parse(line, dir=direction, dt=dt, **LAST)


@pytest.mark.parametrize("target", GRIDS)
def test_convolutions_are_right(target: str) -> None:
    assert_right(target, 2)


@pytest.mark.sweep
@pytest.mark.parametrize("target", GRIDS)
def test_more_convolutions_are_right(target: str) -> None:
    assert_right(target, 16)


def assert_right(target: str, count: int) -> None:
    """Run so many convolutions, of which at least half fit."""
    random, ran = Random(f"lines {target}"), 0
    waves, mma = GRIDS[target]
    for n in range(count):
        problem = convolution(random)
        forward, k = problem.direction.is_forward, 32
        packed = random.choice(("", " packed=src", " packed=src+wei") if forward else ("", " packed=src"))
        unit = mma
        if problem.inputs[0].dtype not in ("f16", "bf16"):
            unit, k = ("16x16x32" if target[0] == "g" else "16x8x32"), 64
        line = (
            f"tile={random.choice((32, 64))}x32x{k} waves={waves} mma={unit} taps=lines {WAYS[n % len(WAYS)]}{packed}"
        )
        ran += right(problem, target, line) is not None
    assert ran >= count // 2


@pytest.mark.parametrize(("ic", "k", "padded"), [(3, 3, (4, 4)), (1, 5, (8, 2)), (5, 3, (4, 8)), (3, 7, (8, 4))])
def test_lines_are_whole_chunks(ic: int, k: int, padded: tuple[int, int]) -> None:
    """Of 16 elements: (taps, channels), as many as make 16 or 32."""
    problem = Conv.parse(f"mb2ic{ic}ih24oc16kh{k}ph{k // 2}", dir="FWD_D", dt="f16", **LAST)
    config = Config.parse("tile=64x16x32 waves=2x1 mma=16x8x16 taps=lines packed=src+wei")
    (part,) = make_plan(problem, config, get("xehpc").facts).parts
    *_, tap, channels = part.product.of_m.axes[1]
    assert (tap.padded, channels.padded) == padded
    line = linearize(part.of_m.view).axes[1][-1]
    assert (line.stride, line.size) == (2, padded[0] * padded[1])  # one run of memory
    assert not linearize(part.of_m.view).halos


def test_infinities_meet_no_padding() -> None:
    problem = Conv.parse(FIRST, dir="FWD_D", dt="f16", **LAST)
    line = "tile=64x16x32 waves=2x1 mma=16x8x16 taps=lines packed=src+wei"
    padding.check(problem, "xehpc", line, padding.corners(problem))
    backward = Conv.parse(FIRST, dir="BWD_W", dt="f16", **LAST)
    line = "tile=16x64x32 waves=2x2 mma=16x8x16 taps=lines packed=src"
    padding.check(backward, "xehpc", line, padding.corners(backward))


@pytest.mark.parametrize(
    ("line", "tags", "direction", "why"),
    [
        ("mb1ic16ih8oc8oh8kh3ph1", LAST, "FWD_D", "16 channels fill chunks of 16"),
        ("mb1ic3ih8oc8oh8kh3ph1", {**LAST, "stag": "abx"}, "FWD_D", "wanted taps contiguous in memory"),
        ("mb1ic3ih8oc8oh8kh3ph1dh1", LAST, "BWD_D", "wanted taps contiguous in memory"),
    ],
)
def test_what_has_no_lines_is_refused(line: str, tags: dict[str, str], direction: str, why: str) -> None:
    problem = Conv.parse(line, dir=direction, dt="f16", **tags)
    with pytest.raises(UserError, match=why):
        driver.build(problem, "xehpc", "tile=32x16x32 waves=2x1 mma=16x8x16 taps=lines")


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("mb32ic3ih224oc64oh224kh3ph1", True),  # each third pixel begins with a word
        ("mb32ic3ih224oc64oh112kh7sh2ph3", False),  # runs of each window do
        ("mb32ic64ih56oc64oh56kh3ph1", False),
    ],
)
def test_lines_are_taken_where_windows_begin_within_words(line: str, *, lines: bool) -> None:
    best = candidates(Conv.parse(line, dir="FWD_D", dt="f16", **LAST), get("xehpc").facts)[0].config
    assert (best.taps == "lines") == lines
    assert best.packed == (("src", "wei") if lines else best.packed)


@pytest.mark.parametrize(
    ("target", "config"),
    [
        ("sm_90", "tile=32x32x32 waves=2x2 mma=8x16x16 slots=2 taps=lines packed=src+wei"),
        ("gfx942", "tile=32x32x32 waves=2x1 mma=16x16x16 slots=2 taps=lines packed=src+wei"),
        ("xehpc", "tile=32x32x32 waves=2x2 mma=16x8x16 slots=2 taps=lines packed=src"),
    ],
)
@pytest.mark.parametrize(("size", "pad"), [(32, 3), (37, 0)])
def test_a_pixel_behind_a_window_adds_nothing(target: str, config: str, size: int, pad: int) -> None:
    """In a packed image the zeros that fill up a line of weights meet the pixel behind the window.

    Only one output of the NaN's rows meets it there, so the sums of no other weights tell of it.
    """
    problem = Conv.parse(f"mb1ic3oc32ih{size}oh16kh7sh2ph{pad}", dir="FWD_D", dt="f16")
    inputs = reference.fill(problem)
    inputs["src"] = inputs["src"].copy()
    inputs["src"][0, 1, -1, 27 - pad] = np.nan
    found = cg.simulate(driver.compile(driver.build(problem, target, config)), **inputs)
    with np.errstate(invalid="ignore"):
        right = reference.whole(problem, inputs, "dst")
    np.testing.assert_array_equal(np.asarray(found, np.float64), np.asarray(right, np.float64))
