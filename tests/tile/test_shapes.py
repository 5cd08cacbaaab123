"""Arrays of a kernel: in the tensors' shapes, or as rows of elements in memory order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen import tile
from convgen.device.loaded import DeviceKernel
from convgen.ir.error import UserError
from convgen.run.code import Code
from convgen.tile import Tensor
from tests.gen.test_hand_written import saxpy
from tests.tile.kernels import gemm

Array = npt.NDArray[Any]

M, N, K = 40, 24, 36
BLOCKS = {"bm": 32, "bn": 32, "bk": 32}


def product(tag_a: str = "", tag_c: str = "", m: Any = M) -> Code:
    tensors = Tensor((m, K), "f16", tag_a), Tensor((K, N), "f16"), Tensor((m, N), "f32", tag_c)
    return cg.compile(gemm(*tensors, **BLOCKS), "gfx942")


def inputs(m: int = M) -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {n: random.integers(-4, 5, s).astype(np.float16) for n, s in (("a", (m, K)), ("b", (K, N)))}


def right(given: dict[str, Array]) -> Array:
    return given["a"].astype(np.float32) @ given["b"].astype(np.float32)


@pytest.mark.parametrize("tags", [("", ""), ("ba", ""), ("", "ba"), ("40x1", "")])
def test_arrays_have_the_shapes_of_tensors(tags: tuple[str, str]) -> None:
    given = inputs()
    assert np.array_equal(cg.simulate(product(*tags), **given), right(given))


IN_MEMORY: dict[str, Callable[[Array], Array]] = {
    "": np.ravel,
    "ba": lambda a: a.T.ravel(),
    "40x1": lambda a: np.pad(a, ((0, 0), (0, 4))).ravel()[: M * 40 - 4],
}


@pytest.mark.parametrize("tag", IN_MEMORY)
def test_a_row_of_elements_is_in_memory_order(tag: str) -> None:
    given = inputs()
    found = cg.simulate(product(tag), a=IN_MEMORY[tag](given["a"]), b=given["b"].ravel())
    assert np.array_equal(found, right(given))


@pytest.mark.parametrize(
    ("name", "shape", "complaint"),
    [
        ("a", (K, M), "given arrays a 36x40, b 36x24, wanted a 40x36, b 36x24"),
        ("a", (M, K, 1), "given arrays a 40x36x1, b 36x24, wanted a 40x36, b 36x24"),
        ("b", (K * N - 1,), "given arrays a 40x36, b 863, wanted a 40x36, b 36x24"),
        ("c", (M, N), "given arrays a 40x36, b 36x24, c 40x24, wanted a 40x36, b 36x24"),
    ],
)
def test_a_wrong_shape_is_one_line(name: str, shape: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(UserError) as caught:
        cg.simulate(product(), **{**inputs(), name: np.zeros(shape, np.float16)})
    assert str(caught.value) == complaint


def test_shapes_tell_the_sizes_of_a_launch() -> None:
    code = product(m=tile.size("m", 100))
    for m in (1, 33, 100):
        given = inputs(m)
        assert np.array_equal(cg.simulate(code, **given), right(given))
    with pytest.raises(UserError, match="given arrays a 7x36, b 36x24, wanted a 6x36, b 36x24"):
        cg.simulate(code, m=6, **inputs(7))
    with pytest.raises(UserError, match="given m=101, wanted 1 to 100"):
        cg.simulate(code, **inputs(101))


def test_a_buffer_of_a_kernel_by_hand_takes_any_shape() -> None:
    code = cg.compile(saxpy(), target="gfx942", scalars={"n": 3})
    x, y = np.arange(256, dtype=np.int32).reshape(16, 16), np.full((4, 8, 8), 7, np.int32)
    assert np.array_equal(cg.simulate(code, x=x, y=y), 3 * np.arange(256) + 7)
    with pytest.raises(UserError, match="given arrays x 15x16, y 4x8x8, wanted x 256, y 256"):
        cg.simulate(code, x=x[:15], y=y)


def test_results_have_types() -> None:
    """Without Any alone, a misspelt attribute is seen by mypy, which refuses unused ignores."""
    found = cg.simulate(product(), **inputs())
    assert not hasattr(found, "shapes")
    with pytest.raises(AttributeError):
        _ = found.shapes  # type: ignore[union-attr]  # which mypy is to see
    assert get_type_hints(cg.simulate)["return"] is not Any


def sees_types_of_loaded_kernels(kernel: DeviceKernel, array: npt.NDArray[np.float16]) -> object:
    """Never called: mypy checks it."""
    return kernel(src=array).shapes  # type: ignore[union-attr]  # which mypy is to see
