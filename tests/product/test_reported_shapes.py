"""Shapes on which other libraries were reported to fail; each is named after the thread.

oneDNN is uxlfoundation/oneDNN; MIOpen, composable_kernel and rocMLIR are ROCm's.
"""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import convgen as cg
from convgen import driver
from convgen.problem.conv import Conv
from convgen.run import verdict
from tests.product.problems import expect_right


def assert_right(problem: Conv) -> None:
    outcome = verdict.run(driver.compile(driver.build(problem)))
    expect_right(outcome)
    assert outcome.checked == sum(prod(t.dims) for t in problem.outputs)


ALL = ("FWD_B", "BWD_D", "BWD_WB")


@pytest.mark.parametrize(
    ("descriptor", "directions"),
    [
        # "all configs fail": a kernel of 1 in one dimension, a stride in the other
        pytest.param("mb1_ic128oc512_ih83oh28kh5sh3ph2_iw11ow11kw1", ALL, id="oneDNN#5730"),
        # wrong backward data of a first layer: few channels, input tail beyond the last window
        pytest.param("mb1_ic9oc3_ih32oh10kh5sh3ph1", ALL, id="oneDNN#542"),
        # backward data left elements of a 2x2 input unwritten
        pytest.param("mb2ic16ih2oc24kh1sh2", ("BWD_D",), id="MIOpen#1495-1x1"),
        pytest.param("mb2ic16ih2oc24kh3sh2ph1", ("BWD_D",), id="MIOpen#1495-3x3"),
        # backward data of 1x1 filters with stride 2: three quarters of it are zero
        pytest.param("mb1ic32ih14oc64kh1sh2", ("BWD_D",), id="composable_kernel#105-even"),
        pytest.param("mb1ic32ih15oc64kh1sh2", ("BWD_D",), id="composable_kernel#105-odd"),
        # padding on the right only, an exact multiple of the filter
        pytest.param("mb1ic16ih8oh9oc16kh3ph0", ALL, id="rocMLIR-770-once"),
        pytest.param("mb1ic16ih8oh12oc16kh3ph0", ALL, id="rocMLIR-770-twice"),
        pytest.param("mb1ic16_ih8oh8kh3ph1_oc16iw9ow10kw2pw0", ALL, id="rocMLIR-770-one-axis"),
        # backward weights with strides that differ
        pytest.param("mb2ic8oc16_ih12kh3sh2ph1_iw13kw3sw1pw1", ("BWD_WB",), id="MIOpen#77"),
        pytest.param("mb2ic8oc16_ih13kh3sh1ph1_iw12kw3sw2pw1", ("BWD_WB",), id="MIOpen#97"),
        pytest.param("mb2ic8oc16_ih16kh5sh2ph2_iw17kw3sw3pw0", ("BWD_WB",), id="MIOpen#600"),
    ],
)
def test_reported(descriptor: str, directions: tuple[str, ...]) -> None:
    for direction in directions:
        assert_right(Conv.parse(descriptor, dir=direction, dt="f16"))


@pytest.mark.sweep
@pytest.mark.parametrize("dt", ["bf16", "f32"])
@pytest.mark.parametrize("direction", ALL)
def test_onednn_5730_in_other_types(direction: str, dt: str) -> None:
    assert_right(Conv.parse("mb1_ic128oc512_ih83oh28kh5sh3ph2_iw11ow11kw1", dir=direction, dt=dt))


@pytest.mark.parametrize("slices", [1, 4])
def test_onednn_5041_f16_products_are_summed_in_f32(slices: int) -> None:
    """4096 ones and a half are lost in f16 after 2048, and so is what slices leave behind between kernels."""
    problem = Conv.parse("mb1ic4096iw1oc16kw1", dir="FWD_D", dt="f16:f16:f32", attr_deterministic=slices > 1)
    config = f"tile=32x32x64 waves=1x1 mma=16x16x16 slots=2 taps=split slices={slices}"
    src, wei = np.ones((1, 4096, 1), np.float16), np.ones((16, 4096, 1), np.float16)
    src[0, 5] = 0.5
    found = cg.simulate(driver.compile(driver.build(problem, config=config)), src=src, wei=wei)
    assert (found == 4095.5).all()


def test_onednn_5041_f16_gradients_of_weights_are_summed_in_f32() -> None:
    """60000 + 60000 - 60000, in slices: what the first one leaves is out of range of the f16 that is written."""
    problem = Conv.parse("mb48ic16iw1oc16kw1", dir="BWD_W", dt="f16")
    src, diff_dst = np.ones((48, 16, 1), np.float16), np.zeros((48, 16, 1), np.float16)
    diff_dst[[0, 1]] = 60000
    diff_dst[40] = -60000
    for slices in (1, 3):
        config = f"tile=32x32x16 waves=1x1 mma=16x16x16 slots=1 taps=fused slices={slices}"
        found = cg.simulate(driver.compile(driver.build(problem, config=config)), src=src, diff_dst=diff_dst)
        assert (found == 60000).all()
