"""Rows that end within a block: wide messages where all is inside, narrow ones at the edge, none outside."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

import convgen as cg
from convgen import tile
from convgen.ir.error import UserError
from convgen.tile import Tensor


@tile.kernel(subgroups=(2, 1))
def doubled(x: Tensor, y: Tensor, *, cols: int) -> None:
    m, _ = tile.grid(y, (2, cols))
    value = tile.load_tile(tile.init_tile(x, (m, 0), (2, cols)))
    tile.store_tile(value + value, tile.init_tile(y, (m, 0), (2, cols)))


@pytest.mark.parametrize(
    ("length", "loads"),
    [
        (1024, {"dwordx4": 4}),
        (1000, {"dwordx4": 4}),
        (1023, {"dwordx4": 3, "dword": 4}),
        (513, {"dwordx4": 2, "dword": 4}),
        (511, {"dwordx4": 1, "dword": 4}),
    ],
)
def test_messages_are_as_wide_as_rows_allow(length: int, loads: dict[str, int]) -> None:
    x = np.random.default_rng(1).integers(-9, 9, (3, length)).astype(np.float32)
    code = cg.compile(doubled(Tensor(x.shape, "f32"), Tensor(x.shape, "f32"), cols=1024))
    for what in ("load", "store"):
        assert Counter(re.findall(rf"buffer_{what}_(\w+)", code.asm)) == loads
    assert np.array_equal(cg.simulate(code, x=x.ravel()).reshape(x.shape), x + x)


@pytest.mark.parametrize("target", ["xehpc", "xehpg"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_on_xe(dtype: str, target: str) -> None:
    x = np.random.default_rng(1).integers(-9, 9, (3, 311)).astype({"f32": np.float32, "f16": np.float16}[dtype])
    code = cg.compile(doubled(Tensor(x.shape, dtype), Tensor(x.shape, dtype), cols=512), target)
    assert np.array_equal(cg.simulate(code, x=x.ravel()).reshape(x.shape), x + x)


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
@pytest.mark.parametrize("shift", [(0, 1, 0, 0), (2, 0, 0, 0), (0, 0, 40, 0), (0, 0, 3, 0), (1, 1, -3, -2)])
def test_tiles_of_one_position_along_some_dims_may_begin_anywhere(shift: tuple[int, ...], target: str) -> None:
    """What is beyond a dim is not what the next position of those around it has."""
    shape = (3, 2, 12, 20)

    @tile.kernel()
    def moved(x: Tensor, y: Tensor, z: Tensor) -> None:
        at = tile.grid(y, (1, 1, 8, 16))
        block, there = (None, None, 8, 16), tuple(a + s for a, s in zip(at, shift))
        tile.store_tile(tile.load_tile(tile.init_tile(x, there, block)), tile.init_tile(y, at, block))
        tile.atomic_rmw("add", tile.load_tile(tile.init_tile(x, at, block)), tile.init_tile(z, there, block))

    x = np.arange(1, 1 + np.prod(shape), dtype=np.int32).reshape(shape)
    loaded, added = np.zeros_like(x), np.zeros_like(x)
    for at in np.ndindex(*shape):
        there = tuple(a + s for a, s in zip(at, shift))
        if all(0 <= t < size for t, size in zip(there, shape)):
            loaded[at], added[there] = x[there], x[at]
    zeros = np.zeros(x.size, np.int32)
    out = cg.simulate(cg.compile(moved(*[Tensor(shape, "s32")] * 3), target), x=x.ravel(), z=zeros)
    assert np.array_equal(out["y"].reshape(shape), loaded)
    assert np.array_equal(out["z"].reshape(shape), added)


def test_how_far_tiles_may_begin() -> None:
    @tile.kernel()
    def far(x: Tensor, y: Tensor) -> None:
        g, m, n = tile.grid(y, (1, 8, 16))
        block = (None, 8, 16)
        value = tile.load_tile(tile.init_tile(x, (g, m + (1 << 29), n), block))
        tile.store_tile(value, tile.init_tile(y, (g, m, n), block))

    with pytest.raises(UserError, match="given a tile of x at one position along some dims, that may reach 3x5368"):
        cg.compile(far(*[Tensor((3, 8, 16), "s32")] * 2))
