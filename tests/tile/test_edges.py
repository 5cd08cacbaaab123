"""Rows that end within a block: wide messages where all is inside, narrow ones at the edge, none outside."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

import convgen as cg
from convgen import tile
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
