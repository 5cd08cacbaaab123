"""The Python flow of the README, step by step, and what it says when arrays are wrong."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen.backends.target import get
from convgen.ir.error import UserError
from convgen.ir.record import evolve
from convgen.run.code import Code
from convgen.simulated_calls import SimulationError

DESCRIPTOR = "mb2ic5ih7oc6oh7kh3ph1"


@pytest.fixture(scope="module")
def code() -> Code:
    problem = cg.Conv.parse(DESCRIPTOR, dir="FWD_D", dt="f16:f16:f32")
    return cg.compile(cg.build(problem, target="gfx942"))


def arrays(dtype: npt.DTypeLike = np.float16) -> dict[str, npt.NDArray[np.generic]]:
    random = np.random.default_rng(7)
    return {
        "src": random.integers(-5, 6, (2, 5, 7, 7)).astype(dtype),
        "wei": random.integers(-5, 6, (6, 5, 3, 3)).astype(dtype),
    }


def convolved(src: npt.NDArray[np.generic], wei: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """3x3 windows, padding 1, in a way that has nothing in common with the product's reference."""
    padded = np.pad(src.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    product: npt.NDArray[np.float64] = np.einsum("nchwij,ocij->nohw", windows, wei.astype(np.float64))
    return product


def test_the_readme_flow(code: Code) -> None:
    given = arrays()
    out = cg.simulate(code, **given)
    assert out.dtype == np.float32
    assert np.array_equal(out, convolved(**given))


def test_inputs_stay_as_they_are(code: Code) -> None:
    given, again = arrays(), arrays()
    cg.simulate(code, **given)
    assert all(np.array_equal(given[name], again[name]) for name in again)


def test_bf16() -> None:
    problem = cg.Conv.parse(DESCRIPTOR, dir="FWD_D", dt="bf16")
    given = arrays(ml_dtypes.bfloat16)
    out = cg.simulate(cg.compile(cg.build(problem)), **given)
    assert out.dtype == ml_dtypes.bfloat16
    assert np.array_equal(out, convolved(**given).astype(np.float32).astype(ml_dtypes.bfloat16))


def test_rounding_is_to_nearest_even() -> None:
    """Sums that bf16 and f16 cannot hold, ties among them."""
    problem = cg.Conv.parse("mb1ic16ih16oc16kh1", dir="FWD_D", dt="f16:f16:bf16")
    src = np.arange(16 * 16 * 16, dtype=np.float16).reshape(1, 16, 16, 16) % 1031
    wei = np.eye(16, dtype=np.float16).reshape(16, 16, 1, 1)
    out = cg.simulate(cg.compile(cg.build(problem)), src=src, wei=wei)
    assert np.array_equal(out, src.astype(np.float32).astype(ml_dtypes.bfloat16))


def test_every_step_prints_itself(code: Code) -> None:
    problem = cg.Conv.parse(DESCRIPTOR, dir="FWD_D", dt="f16")
    assert str(cg.Conv.parse(str(problem))) == str(problem)
    assert "for kb in" in str(cg.build(problem))
    assert "gfx942" in str(code)
    assert "bytes of shared memory" in str(code)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"src": np.zeros((2, 7, 7, 5), np.float16)}, r"given arrays src 2x7x7x5.*wanted src 2x5x7x7"),
        ({"wei": np.zeros((6, 5, 3), np.float16)}, r"given arrays .*wei 6x5x3, wanted .*wei 6x5x3x3"),
        ({"wei": None}, r"wanted src 2x5x7x7, wei 6x5x3x3"),
        ({"bias": np.zeros(6, np.float16)}, r"given arrays .*bias 6, wanted src 2x5x7x7, wei 6x5x3x3"),
        ({"src": np.zeros((2, 5, 7, 7), np.float32)}, r"given src of float32.*wanted float16"),
    ],
    ids=["shape", "rank", "missing", "unknown", "type"],
)
def test_wrong_arrays(code: Code, changes: dict[str, npt.NDArray[np.generic] | None], complaint: str) -> None:
    given = {name: array for name, array in {**arrays(), **changes}.items() if array is not None}
    with pytest.raises(UserError, match=complaint):
        cg.simulate(code, **given)


def test_arrays_may_come_in_any_order(code: Code) -> None:
    given = arrays()
    out = cg.simulate(code, wei=given["wei"], src=given["src"])
    assert np.array_equal(out, convolved(**given))


@pytest.mark.parametrize("strides", ["700x1x90x12::400x1x50x7", ":54x9x3x1:", "400x70x9x1:50x10x3x1:500x60x8x1"])
def test_strided_tensors(strides: str) -> None:
    """Rows, pixels and filters that lie apart, and sizes that no message divides."""
    problem = cg.Conv.parse(DESCRIPTOR, dir="FWD_D", dt="f16:f16:f32", strides=strides)
    given = arrays()
    assert np.array_equal(cg.simulate(cg.compile(cg.build(problem)), **given), convolved(**given))


def test_a_finding_is_an_error(code: Code) -> None:
    """Code that reads before its loads have landed raises, with the finding as message."""
    text = "\n".join(line for line in code.asm.splitlines() if "s_waitcnt" not in line) + "\n"
    broken = evolve(code, object=get("gfx942").assemble(text))
    with pytest.raises(SimulationError) as caught:
        cg.simulate(broken, **arrays())
    assert caught.value.findings
    assert str(caught.value) == str(caught.value.findings[0])


def test_unknown_names_of_the_package() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cg.nothing
    assert {"Conv", "build", "compile", "simulate"} <= set(dir(cg))
