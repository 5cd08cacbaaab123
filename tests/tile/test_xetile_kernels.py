"""Kernels after XeTile's integration tests on the strict simulators: what numpy says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen import tile
from convgen.ir.error import Unsupported, UserError
from convgen.tile import Tensor, Value
from convgen.tile.kernel import TileProgram
from tests.tile import xetile_kernels as kernels

TARGETS = ("gfx942", "gfx950", "xehpc", "xehpg")
Arrays = dict[str, npt.NDArray[Any]]


def run(program: TileProgram, target: str, **given: npt.NDArray[Any]) -> Any:
    return cg.simulate(cg.compile(program, target), **{name: data.ravel() for name, data in given.items()})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f16", "f32", "s8"])
def test_gather_and_scatter(dtype: str, target: str) -> None:
    """Numbers on either side of the tensor read the other value, and store nothing."""
    rng, rows, size = np.random.default_rng(1), 11, 700
    elem: Any = {"f16": np.float16, "f32": np.float32, "s8": np.int8}[dtype]
    x = rng.integers(-9, 9, size).astype(elem)
    of = rng.integers(-100, size + 100, (rows, 64)).astype(np.int32)
    to = rng.permutation(np.arange(-50, 950))[: rows * 64].astype(np.int32).reshape(rows, 64)
    tensors = Tensor((size,), dtype), Tensor((rows, 64), "s32"), Tensor((rows, 64), "s32"), Tensor((900,), dtype)
    found = run(kernels.gather_scatter(*tensors, block=4), target, x=x, of=of, to=to)
    exists = (of >= 0) & (of < size)
    values = np.where(exists, x[np.where(exists, of, 0)], np.array(-1, elem))
    there = (to >= 0) & (to < 900)
    assert np.array_equal(found[to[there]], values[there])


@pytest.mark.parametrize("target", TARGETS)
def test_histogram(target: str) -> None:
    x = np.random.default_rng(1).integers(-5, 25, (13, 128)).astype(np.int32)
    found = run(
        kernels.histogram(Tensor(x.shape, "s32"), Tensor((20,), "s32"), rows=4),
        target,
        x=x,
        counts=np.zeros(20, np.int32),
    )
    assert np.array_equal(found, np.bincount(x[(x >= 0) & (x < 20)], minlength=20))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["add", "min", "max", "and", "or", "xor"])
def test_atomic_operations(kind: str, target: str) -> None:
    """Workgroups meet in a block, and in a column, which more lanes have than it has elements."""
    rng = np.random.default_rng(1)
    x, y = (rng.integers(-1000, 1000, shape).astype(np.int32) for shape in ((16, 128), (4, 129)))
    program = kernels.combine(Tensor(x.shape, "s32"), Tensor(y.shape, "s32"), kind=kind, rows=4)
    code = cg.compile(program, target)
    found = cg.simulate(code, x=x.ravel(), y=y.ravel()).reshape(y.shape)
    numpy: Any = {"add": np.add, "min": np.minimum, "max": np.maximum,
                  "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[kind]  # fmt: skip
    wanted = y.copy()
    for block in x.reshape(4, 4, 2, 64):
        for n, each in enumerate(block.swapaxes(0, 1)):
            wanted[:, 64 * n : 64 * n + 64] = numpy(wanted[:, 64 * n : 64 * n + 64], each)
            wanted[:, 128] = numpy(wanted[:, 128], each.max(1))
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(("target", "dtype"), [("gfx942", "f32"), ("xehpc", "f64"), ("xehpg", "f64")])
def test_atomic_operations_that_a_target_lacks(target: str, dtype: str) -> None:
    program = kernels.combine(Tensor((16, 128), dtype), Tensor((4, 129), dtype), kind="max", rows=4)
    with pytest.raises(
        Unsupported, match=rf"^given atomic max of {dtype}\S*, wanted one element a message, on {target} of"
    ):
        cg.compile(program, target)


X = Tensor((64, 64), "f16")


def _block(x: Tensor) -> Value:
    return tile.load_tile(tile.init_tile(x, (0, 0), (8, 32)))


REFUSED: list[tuple[Callable[[Tensor], object], str]] = [
    (
        lambda x: tile.gather(x, _block(x)),
        "given f16, wanted indices of s32 and a mask of bool, at gather of x",
    ),
    (
        lambda x: tile.gather(x, tile.zeros((8, 32), "s32"), _block(x)),
        "given s32 and f16, wanted indices of s32 and a mask of bool, at gather of x",
    ),
    (
        lambda x: tile.gather(x, tile.zeros((8, 32), "s32"), tile.less(tile.zeros((8, 16)), 1.0)),
        "given blocks of 8x32 and 8x16, wanted the same shape, or 1 along a dim, at gather",
    ),
    (
        lambda x: tile.scatter(x, tile.zeros((8, 32), "s32"), tile.zeros((8, 32))),
        "given values of f32, wanted f16, at scatter to x",
    ),
    (
        lambda x: tile.atomic_rmw("add", _block(x), tile.init_tile(x, (0, 0), (8, 32))),
        "given add of f16, wanted one of f32 f64 s32 u32, at atomic_rmw",
    ),
    (
        lambda x: tile.atomic_rmw("nand", tile.zeros((8, 32)), tile.init_tile(x, (0, 0), (8, 32))),
        "given nand of f32, wanted one of add, min, max, and, or, xor, at atomic_rmw",
    ),
    (
        lambda x: tile.atomic_rmw("add", tile.zeros((8, 32)), x),
        "given neither a tile alone nor a tensor with indices, wanted one of these, at atomic_rmw",
    ),
    (lambda x: tile.broadcast(_block(x), (16, 32)), "given 8x32, wanted 16x32, or 1 along a dim, at broadcast"),
    (lambda x: tile.transpose(tile.zeros((8,))), "given 8, wanted a block of two dims, at transpose"),
]


@pytest.mark.parametrize(("function", "said"), REFUSED, ids=lambda p: p if isinstance(p, str) else "")
def test_what_is_refused(function: Callable[[Tensor], None], said: str) -> None:
    with pytest.raises(UserError) as refused:
        tile.kernel()(function)(X)
    assert str(refused.value) == said
