"""Values at their edges: rounding of sums to the output's type, and how far a NaN or an infinity reaches.

Spatial padding contributes nothing, whatever it is multiplied with. With `padding=zeros` it holds zeros, for both
operands of a product: then a weight that is not finite spoils the windows whose padding it meets (zero times infinity).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen import driver
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul
from convgen.run import reference
from tests import samples
from tests.strategies import always

pytestmark = pytest.mark.in_turn(2)

Array = npt.NDArray[Any]

LIMIT = 65520.0  #: the tie between the largest f16 and what would follow
VALUES = np.array(
    [
        *(0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan),
        *(65504, 65519.996, LIMIT, -LIMIT, 1e30, -1e30),  # f16 overflows to infinity
        *(1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-11, 1 + 2**-11 + 2**-20, 2049, 2051),  # ties of f16
        *(1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-20, 257, 259),  # ties of bf16
        *(3.3895e38, 3.4e38, -3.4e38),  # bf16 overflows to infinity
        *(2**-14, 2**-24, 2**-25, 2**-25 + 2**-40, 3 * 2**-25, 2**-26, -(2**-26)),  # subnormals of f16; -0
        *(1e-39, -1e-40, 2**-133, 2**-134, 3 * 2**-134, 2**-149),  # subnormals of bf16
    ],
    np.float32,
)


def bits(values: Array) -> Array:
    """Bits, with all NaN alike."""
    integers = values.view(f"u{values.dtype.itemsize}")
    return np.where(np.isnan(values), np.array(7, integers.dtype), integers)


def rounded(values: Array, dtype: str) -> Array:
    """To the nearest, ties to even; a sum that begins with zero is never -0 itself."""
    with np.errstate(all="ignore"):
        return (values + np.float32(0)).astype(reference.numpy_type(dtype))


@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950", "sm_90"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("slices", [1, pytest.param(2, marks=pytest.mark.sweep)])
def test_sums_are_rounded_once_to_nearest_even(dtype: str, target: str, slices: int) -> None:
    """In the product's kernel, and in the one that sums slices."""
    problem = Conv.parse(
        f"mb1ic1iw{len(VALUES)}oc1kw1", dir="FWD_D", dt=f"f32:f32:{dtype}", attr_deterministic=slices > 1
    )
    atom = samples.of_family(target, {"amdgpu": "16x16x4", "nvidia": "8x4x4"})
    config = f"tile=32x32x16 waves=1x1 mma={atom} slots=1 taps=fused slices={slices}"
    code = driver.compile(driver.build(problem, target, config))
    found = cg.simulate(code, src=VALUES.reshape(1, 1, -1), wei=np.ones((1, 1, 1), np.float32)).ravel()
    wrong = bits(found) != bits(rounded(VALUES, dtype))
    assert not wrong.any(), [*zip(VALUES[wrong], found[wrong])]


def test_the_values_reach_every_edge() -> None:
    half, brain = rounded(VALUES, "f16"), rounded(VALUES, "bf16")
    assert np.isinf(half).sum() > np.isinf(VALUES).sum() < np.isinf(brain).sum()
    assert (np.signbit(half) & (half == 0)).any()
    ties = {float(value): (float(a), float(b)) for value, a, b in zip(VALUES, half, brain)}
    assert (ties[257][1], ties[259][1], ties[2049][0], ties[2051][0]) == (256, 260, 2048, 2052)
    assert 2**-24 in half
    assert 2.0**-133 in brain.astype(np.float64)


def test_a_sum_that_overflows_f16_is_infinite_and_one_that_comes_back_is_not() -> None:
    """Sums are f32: 3 * 65504 - 2 * 65504 is right, and 2 * 65504 is out of range only where it is rounded."""
    problem = Conv.parse("mb1ic40iw4oc2kw1", dir="FWD_D", dt="f16")
    src = np.zeros((1, 40, 4), np.float16)
    src[0, [0, 7, 20], :] = 65504
    src[0, [21, 39], :2] = -65504
    wei = np.ones((2, 40, 1), np.float16)
    wei[1] = -1
    found = cg.simulate(driver.compile(driver.build(problem)), src=src, wei=wei)
    assert found[0].tolist() == [[65504, 65504, np.inf, np.inf], [-65504, -65504, -np.inf, -np.inf]]


# ---------------------------------------------------------------- what is not finite

#: what makes K: taps, channels and positions that no message divides; slices that end behind K
CONFIGS = {
    "chosen": None,
    "split": "slots=1 taps=split",
    "chunk": "slots=2 taps=chunk",
    "fused": "slots=3 taps=fused",
    "sliced": "slots=2 taps=fused slices=3",
}
#: the same, of gradients of weights alone
BY_IMAGES = {
    "images": "slots=2 taps=images",
    "sliced images": "slots=3 taps=images slices=2",
}
#: direction -> the input that is masked in padding, the other one
INPUTS = {"FWD_D": ("src", "wei"), "BWD_D": ("diff_dst", "wei"), "BWD_W": ("src", "diff_dst")}
DENSE, STRIDED = "mb2ic5ih7oc6kh3ph1", "mb2ic5ih9oc6kh3sh2ph1"


def spoiled(problem: Conv, config: str | None, name: str, index: tuple[int, ...], value: float) -> tuple[Array, Array]:
    """Which outputs are not finite with one value of an input changed, and which are because of the law; both logical.

    All others are as they were.
    """
    shape = "16x16x4" if problem.inputs[0].dtype == "f32" else "16x16x16"
    whole = config is None or config.startswith("tile=")
    line = config if whole else f"tile=32x32x32 waves=1x1 mma={shape} {config}"
    code = driver.compile(driver.build(problem, config=line))
    inputs = reference.fill(problem)
    before = cg.simulate(code, **inputs)
    inputs[name] = inputs[name].copy()
    inputs[name][index] = value
    after = cg.simulate(code, **inputs)
    with np.errstate(all="ignore"):
        right = reference.whole(problem, inputs, problem.outputs[0].name)
    found = ~np.isfinite(after)
    assert np.array_equal(after[~found], before[~found])
    return found, ~np.isfinite(right)


#: Each direction with every second config, and the other way round.
IN_TURN = always(
    [(d, *way) for d in INPUTS for way in (*((DENSE, c) for c in CONFIGS), (STRIDED, "chunk"))],
    lambda n, case: (n // 6 + n) % 2 == 0,
)


@pytest.mark.parametrize(("dir", "shape", "config"), IN_TURN)
def test_a_nan_or_infinity_reaches_what_it_is_multiplied_into(dir: str, shape: str, config: str) -> None:
    """The last channel of the first image's edge: behind it in memory and in K comes what is not its own."""
    dt = "f32" if config == "chosen" else {"FWD_D": "f16", "BWD_D": "f32:f16:f16", "BWD_W": "f16:f32:f16"}[dir]
    problem = Conv.parse(shape, dir=dir, dt=dt)
    masked, _ = INPUTS[dir]
    dims = problem.tensor(masked).dims
    value = np.inf if config in ("chunk", "sliced") else np.nan
    found, right = spoiled(problem, CONFIGS[config], masked, (0, dims[1] - 1, 2, dims[3] - 1), value)
    assert right.any()
    assert not right.all()
    assert np.array_equal(found, right)


@pytest.mark.parametrize("config", BY_IMAGES.values(), ids=BY_IMAGES)
@pytest.mark.parametrize("name", INPUTS["BWD_W"])
def test_by_images_padding_contributes_nothing_either(name: str, config: str) -> None:
    problem = Conv.parse(STRIDED, dir="BWD_W", dt="f32")
    found, right = spoiled(problem, config, name, (1, 4, 0, 0), np.inf)
    assert right.any()
    assert not right.all()
    assert np.array_equal(found, right)


@pytest.mark.parametrize("dir", ["FWD_D", "BWD_D"])
def test_an_infinity_stays_in_its_group(dir: str) -> None:
    """Also where 16 groups share a matrix instruction: no zero is multiplied with another group's elements."""
    problem = Conv.parse("mb1g16ic64oc64ih7oh7kh3ph1", dir=dir, dt="f16")
    lanes = "tile=32x64x36 waves=1x1 mma=4x4x4:4x2x4 slots=0 taps=fused acc=v"
    found, right = spoiled(problem, lanes, INPUTS[dir][0], (0, 5, 6, 6), np.inf)
    assert right.any()
    assert np.array_equal(found, right)


@pytest.mark.parametrize(("dir", "tile"), [("FWD_D", "512x4x9"), ("BWD_D", "512x4x9"), ("BWD_W", "9x4x512")])
def test_lanes_count_nothing_of_positions_that_do_not_exist(dir: str, tile: str) -> None:
    """The last of two rows, and of four columns, lies behind an image of 7 x 7, but sees what is in it."""
    problem = Conv.parse("mb1g4ic4oc4ih7oh7kh3ph1", dir=dir, dt="f16")
    lanes = f"tile={tile} waves=1x1 mma=fma:4x2x4 slots=0 taps=fused acc=v"
    found, right = spoiled(problem, lanes, INPUTS[dir][0], (0, 3, 6, 6), np.inf)
    assert right.any()
    assert np.array_equal(found, right)


@pytest.mark.parametrize("dir", INPUTS)
@pytest.mark.parametrize("config", ["chosen", "chunk", "sliced"])
def test_padding_contributes_nothing_to_what_is_not_finite(dir: str, config: str) -> None:
    """A value of the other input at a corner: of the windows that it meets there some are in padding."""
    problem = Conv.parse(DENSE, dir=dir, dt="f32")
    name = INPUTS[dir][1]
    index = (5, 2, 0, 2) if name == "wei" else (1, 5, 0, 6)
    found, right = spoiled(problem, CONFIGS[config], name, index, np.nan if config == "chunk" else -np.inf)
    assert right.any()
    assert not right.all()
    assert np.array_equal(found, right)


def test_padding_of_zeros_spoils_a_channel() -> None:
    problem = Conv.parse(DENSE, dir="FWD_D", dt="f32")
    found, right = spoiled(problem, "slots=1 taps=fused padding=zeros", "wei", (5, 2, 0, 2), np.nan)
    assert right[:, 5].any()
    assert not right[:, 5].all()
    assert found[:, 5].all()
    assert not found[:, :5].any()


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_nan_of_diff_dst_reaches_its_channel_of_the_bias_gradient_only(deterministic: bool) -> None:
    problem = Conv.parse("mb2ic5ih7oc7kh3ph1", dir="BWD_WB", dt="f32", attr_deterministic=deterministic)
    inputs = reference.fill(problem)
    inputs["diff_dst"][1, 3, 6, 6] = np.nan
    found = cg.simulate(driver.compile(driver.build(problem)), **inputs)
    assert np.flatnonzero(np.isnan(found["diff_bia"])).tolist() == [3]
    assert np.unique(np.argwhere(np.isnan(found["diff_wei"]))[:, 0]).tolist() == [3]


@pytest.mark.parametrize("target", ["gfx942", "xehpg", "xehpc", "sm_90"])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_a_sum_of_minus_zeros_is_zero(dtype: str, target: str) -> None:
    """It begins with zero, also where K is one block and no product is of padding."""
    problem = Matmul.parse("16x16:16x16", dt=dtype)
    src, wei = (np.full((16, 16), value, reference.numpy_type(dtype)) for value in (0, -1))
    found = cg.simulate(driver.compile(driver.build(problem, target)), src=src, wei=wei)
    assert np.array_equal(bits(found), bits(reference.whole(problem, {"src": src, "wei": wei}, "dst")))
    assert not np.signbit(found).any()
