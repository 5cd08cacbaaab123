"""Runs of pixels along K, of images (`pixels=joined`) and rows (`taps=shifted`).

Sums are right, and memory beside a run contributes nothing.
"""

from __future__ import annotations

from itertools import islice
from random import Random

import numpy as np
import pytest

import convgen as cg
from convgen import driver
from convgen.backends.target import get
from convgen.choose.choose import candidates
from convgen.ir.error import UserError
from convgen.plan.config import APART, JOINED
from convgen.plan.views import products
from convgen.problem.conv import Conv
from convgen.run import reference, verdict
from tests import samples

pytestmark = pytest.mark.in_turn(6)

CONFIG = {
    "amdgpu": "tile=32x32x32 waves=1x2 mma=16x16x16 slots=2 pixels=joined",
    "intel": "tile=32x32x32 waves=2x2 mma=16x8x16 slots=1 pixels=joined",
    "nvidia": "tile=32x32x32 waves=1x2 mma=8x16x16 slots=2 pixels=joined",
}
CHANNELS_FIRST = dict.fromkeys(("stag", "wtag", "dtag"), "abx")
CHANNELS_LAST = dict.fromkeys(("stag", "wtag", "dtag"), "axb")


def weights(shape: str, **tags: str) -> Conv:
    return Conv.parse(shape, dir="BWD_W", dt="f16", **tags)


def drawn(random: Random) -> Conv:
    """Gradients of weights of 1x1 layers, of images with any number of pixels."""
    height, width = random.choice(((7, 7), (14, 14), (9, 5), (6, 10), (3, 4), (1, 13)))
    groups = random.choice((1, 1, 2))
    ic, oc = (groups * random.choice((3, 8, 24, 33)) for _ in range(2))
    tags = random.choice((CHANNELS_FIRST, CHANNELS_LAST, CHANNELS_FIRST | {"dtag": "axb"}))
    return weights(f"g{groups}mb{random.randint(1, 5)}ic{ic}ih{height}iw{width}oc{oc}kh1kw1ph0pw0", **tags)


def wrong(problem: Conv, target: str, config: str) -> int | None:
    """Return mismatches and findings; None where the config does not fit."""
    try:
        code = driver.compile(driver.build(problem, target, config))
    except UserError:
        return None
    outcome = verdict.run(code)
    return outcome.mismatches + len(outcome.findings)


@pytest.mark.parametrize("target", samples.SIMULATED)
def test_sums_over_joined_pixels_are_right(target: str) -> None:
    random, results = Random(f"pixels {target}"), []
    for taps in ("split", "fused", "chunk", "runs"):
        config = f"{samples.of_family(target, CONFIG)} taps={taps}"
        tried = (wrong(drawn(random), target, config) for _ in range(6))
        results += list(islice((n for n in tried if n is not None), 1))
    assert len(results) > 2
    assert not any(results)


@pytest.mark.parametrize("other", ["", "slices=2", "slices=3 sum=last:2", "map=stream:5"])
def test_slices_end_inside_an_image(other: str) -> None:
    problem = weights("mb3ic40ih14oc48kh1ph0", **CHANNELS_FIRST)
    for taps in ("chunk", "runs"):
        assert wrong(problem, "gfx942", f"{CONFIG['amdgpu']} taps={taps} {other}") == 0


@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("shape", ["mb2ic16ih14oc24kh1ph0", "mb2ic6ih7oc10kh1ph0"])
def test_pixels_of_the_next_image_are_not_multiplied(target: str, shape: str) -> None:
    """The last message of an image may load pixels of the next one: none of them, finite or not, may count there."""
    problem = weights(shape, **CHANNELS_FIRST)
    code = driver.compile(driver.build(problem, target, f"{samples.of_family(target, CONFIG)} taps=runs"))
    inputs = reference.fill(problem)
    for name, value in (("src", np.inf), ("diff_dst", np.nan)):
        inputs[name] = inputs[name].copy()
        inputs[name][1, 2, 0, :2] = value
    result = cg.simulate(code, **inputs)
    with np.errstate(all="ignore"):
        right = reference.whole(problem, inputs, "diff_wei")
    np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize(
    ("tags", "pixels"),
    [(CHANNELS_FIRST, (3, 70)), (CHANNELS_LAST, (210,)), ({**CHANNELS_FIRST, "dtag": "axb"}, (3, 70))],
)
def test_k_is_the_pixels_that_memory_has_side_by_side(tags: dict[str, str], pixels: tuple[int, ...]) -> None:
    (product,) = products(weights("mb3ic8ih7iw10oc8kh1ph0kw1pw0", **tags), 1, pixels=JOINED)
    assert tuple(d.size for d in product.of_m.axes[1] if d.size > 1) == pixels


@pytest.mark.parametrize(
    ("shape", "tags"),
    [
        ("mb2ic8ih7oc8kh3ph1", CHANNELS_LAST),
        ("mb2ic8ih7oc8kh1sh2", CHANNELS_FIRST),
        ("mb1ic8ih9oh7oc8kh1ph0", CHANNELS_FIRST),
        ("mb1ic16ih7oc16kh1ph0", {**CHANNELS_FIRST, "stag": "aBcd8b"}),
    ],
)
def test_windows_and_gaps_between_pixels_are_refused(shape: str, tags: dict[str, str]) -> None:
    problem = weights(shape, **tags)
    with pytest.raises(UserError, match="wanted dims of K that both factors have side by side") as refused:
        driver.build(problem, config=CONFIG["amdgpu"])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("target", "side", "tags", "word"),
    [
        ("gfx942", 14, CHANNELS_FIRST, JOINED),
        ("gfx942", 7, CHANNELS_FIRST, APART),  # each row is a chunk by itself
        ("gfx942", 56, CHANNELS_FIRST, APART),
        ("gfx942", 14, CHANNELS_LAST, APART),
        ("sm_90a", 14, CHANNELS_FIRST, APART),
        ("xehpc", 14, CHANNELS_FIRST, APART),
    ],
)
def test_the_chooser_joins_where_fewer_chunks_hold_k(target: str, side: int, tags: dict[str, str], word: str) -> None:
    problem = weights(f"mb16ic64ih{side}oc64kh1ph0", **tags)
    assert {candidate.config.pixels for candidate in candidates(problem, get(target).facts)[:-1]} == {word}


# ---------------------------------------------------------------- rows of pixels

ROWS = "tile=32x32x32 waves=1x2 mma=16x16x16 slots=2 taps=shifted"
CDNA = ("gfx90a", "gfx942", "gfx950")  #: targets that check bounds, so that windows may begin inside words


def shifted(random: Random) -> Conv:
    """Gradients of weights of windows that taps move along rows of any length."""
    kernel, groups = random.choice((2, 3, 5)), random.choice((1, 1, 2))
    pad, dilation = random.randint(0, kernel - 1), random.choice((0, 0, 1))
    height, width = random.choice(((14, 14), (9, 10), (13, 13), (12, 17)))
    ic, oc = (groups * random.choice((3, 8, 24, 33)) for _ in range(2))
    window = f"kh{kernel}kw{random.choice((2, 3))}ph{pad}pw{random.randint(0, 1)}dh{dilation}dw0"
    return weights(f"g{groups}mb{2 * random.randint(1, 2)}ic{ic}ih{height}iw{width}oc{oc}{window}", **CHANNELS_FIRST)


@pytest.mark.parametrize("target", CDNA)
def test_sums_over_rows_are_right(target: str) -> None:
    random = Random(f"rows {target}")
    tried = (wrong(shifted(random), target, ROWS) for _ in range(12))
    results = list(islice((n for n in tried if n is not None), 2))
    assert len(results) == 2
    assert not any(results)


@pytest.mark.parametrize("target", CDNA)
@pytest.mark.parametrize("shape", ["mb2ic16ih14oc24kh3ph1", "mb2ic4ih13oc9kh5ph2"])
def test_what_is_beside_a_row_is_not_multiplied(target: str, shape: str) -> None:
    """Messages of a moved row may load pixels of the rows beside it: none of them, finite or not, may count there."""
    problem = weights(shape, **CHANNELS_FIRST)
    code = driver.compile(driver.build(problem, target, ROWS))
    inputs = reference.fill(problem)
    for name, value in (("src", np.inf), ("diff_dst", np.nan)):
        inputs[name] = inputs[name].copy()
        inputs[name][1, 2, 3, :1] = value
        inputs[name][0, 1, 5, -1:] = -value
    result = cg.simulate(code, **inputs)
    with np.errstate(all="ignore"):
        right = reference.whole(problem, inputs, "diff_wei")
    np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize(
    ("shape", "tags", "why"),
    [
        ("mb2ic8ih8oc8kh1ph0", CHANNELS_FIRST, "taps among its rows"),
        ("mb2ic8ih8oc8kh3ph1", CHANNELS_LAST, "contiguous in memory"),
        ("mb2ic8ih8oc8kh3sh2ph1", CHANNELS_FIRST, "contiguous in memory"),
    ],
)
def test_rows_that_memory_does_not_have_are_refused(shape: str, tags: dict[str, str], why: str) -> None:
    with pytest.raises(UserError, match=why):
        driver.build(weights(shape, **tags), config=ROWS)


@pytest.mark.parametrize(("target", "offered"), [("gfx942", True), ("sm_90a", False), ("xehpc", False)])
def test_the_chooser_takes_shifted_rows_where_tuning_says_so(target: str, offered: bool) -> None:
    problem = weights("mb16ic64ih14oc64kh3ph1", **CHANNELS_FIRST)
    assert ("shifted" in {candidate.config.taps for candidate in candidates(problem, get(target).facts)}) == offered
