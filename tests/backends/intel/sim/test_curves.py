"""Functions of the math unit: exact by default, with a seed anywhere within what is documented."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convgen.backends.intel.sim.curves import CURVES

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
TINY = float(np.finfo(np.float32).tiny)


def floats(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


@pytest.mark.parametrize("name", CURVES)
def test_with_a_seed_results_differ_within_the_bound(name: str) -> None:
    curve = CURVES[name]
    given = np.random.default_rng(1).uniform(0.01, 50, 4000).astype(np.float32)
    exact = curve(given)
    first, second = (curve.within(seed, "f")(given).astype(np.float32) for seed in (1, 2))
    assert (first != exact.astype(np.float32)).any()
    assert (first != second).any()
    assert (first == curve.within(1, "f")(given).astype(np.float32)).all()
    ulp = 2.0 ** (np.floor(np.log2(np.abs(exact))) - 23)
    for found in (first, second):
        off = np.abs(found.astype(np.float64) - exact)
        assert (off <= np.maximum(curve.ulps * ulp, curve.absolute)).all()
        assert (off > 0.6 * np.maximum(curve.ulps * ulp, curve.absolute)).any()


def test_what_has_no_error_keeps_none() -> None:
    given = floats(np.inf, 0, -1, np.nan)
    found = CURVES["sqt"].within(3, "f")(given)
    assert found[:2].tolist() == [np.inf, 0]
    assert np.isnan(found[2:]).all()
    assert CURVES["inv"].within(3, "f")(floats(0, -0.0)).tolist() == [np.inf, -np.inf]
    assert CURVES["log"].within(3, "f")(floats(1)).tolist() == [0]


def test_denormals_of_f32_count_as_zeros_with_a_seed() -> None:
    given = floats(TINY / 2, -TINY / 2)
    assert np.isinf(CURVES["inv"].within(1, "f")(given)).all()
    assert CURVES["log"](given)[0] == -127
    assert CURVES["exp"].within(1, "f")(floats(-130)).tolist() == [0]
    half = floats(2.0**-20)  # a denormal half, which the unit keeps
    assert CURVES["sqt"].within(1, "hf")(half)[0] == pytest.approx(2.0**-10, rel=0.01)


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_waves_reach_so_far(name: str) -> None:
    far = floats(32767 * np.pi * 0.999, 32767 * np.pi * 1.001)
    assert np.isnan(CURVES[name](far)).tolist() == [False, True]
