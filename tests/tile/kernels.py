"""Tile kernels that the tests run, as a user writes them."""

from __future__ import annotations

from convgen import tile
from convgen.tile import Tensor


@tile.kernel(subgroups=(2, 2))
def gemm(a: Tensor, b: Tensor, c: Tensor, *, bm: int, bn: int, bk: int) -> None:
    m, n = tile.grid(c, (bm, bn))
    ta, tb = tile.init_tile(a, (m, 0), (bm, bk)), tile.init_tile(b, (0, n), (bk, bn))
    acc = tile.zeros((bm, bn), "s32" if a.dtype == "s8" else "f32")
    for _ in tile.range(0, a.shape[1], bk):
        acc = tile.tile_mma(tile.load_tile(ta), tile.load_tile(tb), acc)
        ta, tb = tile.update_tile_offset(ta, (0, bk)), tile.update_tile_offset(tb, (bk, 0))
    tile.store_tile(acc, tile.init_tile(c, (m, n), (bm, bn)))


@tile.kernel(subgroups=(2, 2))
def fused(a: Tensor, b: Tensor, bias: Tensor, c: Tensor, *, bm: int, bn: int, bk: int) -> None:
    """a @ b + bias, halved, as c's type; offsets by the loop's variable."""
    m, n = tile.grid(c, (bm, bn), map="group:2m")
    acc = tile.zeros((bm, bn))
    for k in tile.range(0, a.shape[1], bk):
        left = tile.load_tile(tile.init_tile(a, (m, k), (bm, bk)))
        right = tile.load_tile(tile.init_tile(b, (k, n), (bk, bn)))
        acc = tile.tile_mma(left, right, acc)
    row = tile.load_tile(tile.init_tile(bias, (0, n), (1, bn)))
    tile.store_tile(tile.convert((acc + row) * 0.5, c.dtype), tile.init_tile(c, (m, n), (bm, bn)))


@tile.kernel(subgroups=(4, 1))
def saxpy(x: Tensor, y: Tensor, *, bm: int, bn: int) -> None:
    m, n = tile.grid(y, (bm, bn))
    to = tile.init_tile(y, (m, n), (bm, bn))
    tile.store_tile(tile.load_tile(tile.init_tile(x, (m, n), (bm, bn))) * 3.0 + tile.load_tile(to), to)
