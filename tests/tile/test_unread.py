"""Loops carry the names that a later statement or iteration reads, and no others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import convgen as cg
from convgen import tile
from convgen.tile import Tensor, Value
from convgen.tile.tile_kernel import TileProgram
from convgen.tile.trace import Loop, all_statements


def carried(body: Callable[[Value], Value]) -> list[list[str]]:
    """Return the names that each loop of a kernel carries; `body` computes a block from one that it loads."""

    @tile.kernel(subgroups=(2, 1))
    def kernel(x: Tensor, y: Tensor) -> None:
        m, n = tile.grid(y, (16, 16))
        tile.store_tile(body(tile.load_tile(tile.init_tile(x, (m, n), (16, 16)))), tile.init_tile(y, (m, n), (16, 16)))

    program = kernel(Tensor((32, 32), "f32"), Tensor((32, 32), "f32"))
    return [[name for name, *_ in s.carried] for s in all_statements(program.trace.statements) if isinstance(s, Loop)]


def twice(x: Value) -> Value:
    total = x + 1.0
    for _ in tile.range(0, 3):
        square = x * x
        total = total + square
    for _ in tile.range(0, 3):
        square = x * 2.0
        total = total + square
    return total


def read_by_the_next_iteration(x: Value) -> Value:
    total, before = x + 1.0, x * 2.0
    for _ in tile.range(0, 3):
        total = total + before
        before = total * 0.5
    return total


def read_behind(x: Value) -> Value:
    last = x + 1.0
    for i in tile.range(0, 3):
        last = x * tile.convert(tile.positions((16, 1), 0) + i, "f32")
    return last


def swapped(x: Value) -> Value:
    a, b = x * 1.0, x * 2.0
    for _ in tile.range(0, 3):
        a, b = b, a
    return a


def inner(x: Value) -> Value:
    total, late = x + 1.0, x * 3.0
    for _ in tile.range(0, 2):
        for _ in tile.range(0, 2):
            total, late = total + x, total * 2.0
    return total if late is not None else late


def read_by_an_outer_iteration(x: Value) -> Value:
    total, late = x + 1.0, x * 3.0
    for _ in tile.range(0, 2):
        total = total + late
        for _ in tile.range(0, 2):
            late = x * 5.0
    return total


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (twice, [["total"], ["total"]]),
        (read_by_the_next_iteration, [["total", "before"]]),
        (read_behind, [["last"]]),
        (swapped, [["a", "b"]]),
        (inner, [["total"], ["total"]]),
        (read_by_an_outer_iteration, [["total", "late"], ["late"]]),
    ],
)
def test_loops_carry_what_is_read(body: Callable[[Value], Value], names: list[list[str]]) -> None:
    assert carried(body) == names


def squares(rows: int) -> TileProgram:
    """Return a kernel with two loops that use the same names: twice the sum of squares of q times blocks of k."""

    @tile.kernel(subgroups=(4, 1), slots=2, copy="tensor")
    def squares(q: Tensor, k: Tensor, o: Tensor) -> None:
        m, _ = tile.grid(o, (64, 64))
        query = tile.load_tile(tile.init_tile(q, (m, 0), (64, 64)))
        total: Value = tile.zeros((64, 64))
        for n in tile.range(0, rows, 64):
            keys = tile.load_tile(tile.init_tile(k, (n, 0), (64, 64)), transpose=True)
            scores = tile.tile_mma(query, keys)
            total = total + scores * scores
        for n in tile.range(0, rows, 64):
            keys = tile.load_tile(tile.init_tile(k, (n, 0), (64, 64)), transpose=True)
            scores = tile.tile_mma(query, keys)
            total = total + scores * scores
        tile.store_tile(total, tile.init_tile(o, (m, 0), (64, 64)))

    return squares(*[Tensor((rows, 64), "f16")] * 2, Tensor((rows, 64), "f32"))


def test_instructions_read_factors_in_place_though_loops_share_names() -> None:
    """A factor that a loop carried was no factor of one product alone, so no warpgroup's instruction suited."""
    code = cg.compile(squares(128), "sm_90a")
    q, k = (np.random.default_rng(n).integers(-3, 4, (128, 64)).astype(np.float16) for n in range(2))
    wanted = 2 * sum((q.astype(np.float32) @ k[n : n + 64].T.astype(np.float32)) ** 2 for n in (0, 64))
    assert "wgmma" in code.asm
    assert np.array_equal(cg.simulate(code, q=q, k=k), wanted)
