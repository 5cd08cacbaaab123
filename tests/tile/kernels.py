"""Tile kernels that the tests run, as a user writes them."""

from __future__ import annotations

from convgen import tile
from convgen.tile import Tensor
from examples.attention import LOW, Keys, attention, softmax_step

__all__ = ["attention"]  # what users copy is what the tests run


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


@tile.kernel(subgroups=(4, 1))
def softmax(x: Tensor, y: Tensor, *, rows: int, cols: int) -> None:
    """Of each row, as wide as one block."""
    m, _ = tile.grid(y, (rows, cols))
    at = tile.init_tile(x, (m, 0), (rows, cols))
    inside = tile.less(tile.positions((1, cols), 1), x.shape[1])
    values = tile.where(inside, tile.load_tile(at), tile.full((1, 1), -1e30))
    e = tile.exp(values - tile.reduce("max", values, 1))
    tile.store_tile(tile.divide(e, tile.reduce("sum", e, 1)), tile.init_tile(y, (m, 0), (rows, cols)))


@tile.kernel(subgroups=(4, 1))
def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, y: Tensor, *, rows: int, cols: int) -> None:
    m, _ = tile.grid(y, (rows, cols))
    values = tile.load_tile(tile.init_tile(x, (m, 0), (rows, cols)))
    mean = tile.reduce("sum", values, 1) * (1 / cols)
    centred = values - mean
    variance = tile.reduce("sum", centred * centred, 1) * (1 / cols)
    scaled = centred * tile.rsqrt(variance + 1e-5)
    scale, shift = (tile.load_tile(tile.init_tile(t, (0, 0), (1, cols))) for t in (gamma, beta))
    tile.store_tile(scaled * scale + shift, tile.init_tile(y, (m, 0), (rows, cols)))


@tile.kernel(subgroups=(4, 1))
def attention_by_parts(q: Tensor, k: Tensor, v: Tensor, o: Tensor, *, bm: int, bn: int, bh: int, causal: bool) -> None:
    """Attention where registers do not hold a block of all of the head: by parts of it, with a loop in the loop."""
    length, head = k.shape
    m, _ = tile.grid(o, (bm, head))
    top, total = tile.full((bm, 1), LOW), tile.zeros((bm, 1))
    acc = tile.zeros((bm, head))
    for n in tile.range(0, m + bm if causal else length, bn):
        scores = tile.zeros((bm, bn))
        for h in tile.range(0, head, bh):
            query = tile.load_tile(tile.init_tile(q, (m, h), (bm, bh)))
            keys = tile.load_tile(tile.init_tile(k, (n, h), (bn, bh)), transpose=True)
            scores = tile.tile_mma(query, keys, scores)
        scores = Keys(length, causal, 0).masked(scores, m, n)
        p, factor, top, total = softmax_step(scores, top, total, head**-0.5)
        values = tile.load_tile(tile.init_tile(v, (n, 0), (bn, head)))
        acc = tile.tile_mma(tile.convert(p, "f16"), values, acc * factor)
    tile.store_tile(tile.convert(tile.divide(acc, total), "f16"), tile.init_tile(o, (m, 0), (bm, head)))


@tile.kernel(subgroups=(2, 2))
def reductions(x: Tensor, rows: Tensor, columns: Tensor, *, kind: str) -> None:
    """Of one block, along each dim."""
    block = tile.load_tile(tile.init_tile(x, (0, 0), x.shape))
    tile.store_tile(tile.reduce(kind, block, 1), tile.init_tile(rows, (0, 0), rows.shape))
    tile.store_tile(tile.reduce(kind, block, 0), tile.init_tile(columns, (0, 0), columns.shape))


@tile.kernel(subgroups=(2, 2))
def batched(a: Tensor, b: Tensor, c: Tensor, *, bm: int, bn: int, bk: int) -> None:
    """c[g] = a[g] @ b[g] for two dims of batches."""
    g, h, m, n = tile.grid(c, (1, 1, bm, bn))
    ta = tile.init_tile(a, (g, h, m, 0), (None, None, bm, bk))
    tb = tile.init_tile(b, (g, h, 0, n), (None, None, bk, bn))
    acc = tile.zeros((bm, bn))
    for _ in tile.range(0, a.shape[3], bk):
        acc = tile.tile_mma(tile.load_tile(ta), tile.load_tile(tb), acc)
        ta, tb = tile.update_tile_offset(ta, (0, 0, 0, bk)), tile.update_tile_offset(tb, (0, 0, bk, 0))
    tile.store_tile(acc, tile.init_tile(c, (g, h, m, n), (None, None, bm, bn)))


@tile.kernel(subgroups=(2, 2))
def sliced(a: Tensor, b: Tensor, c: Tensor, *, slices: int, bm: int, bn: int, bk: int) -> None:
    """Parts of K that add to c."""
    s, m, n = tile.grid((slices, *c.shape), (1, bm, bn))
    each = -(-a.shape[1] // (slices * bk)) * bk
    acc = tile.zeros((bm, bn))
    for k in tile.range(0, each, bk):
        left = tile.load_tile(tile.init_tile(a, (m, s * each + k), (bm, bk)))
        right = tile.load_tile(tile.init_tile(b, (s * each + k, n), (bk, bn)))
        acc = tile.tile_mma(left, right, acc)
    tile.atomic_rmw("add", acc, tile.init_tile(c, (m, n), (bm, bn)))


@tile.kernel(subgroups=(4, 1))
def stencil(x: Tensor, y: Tensor, *, bm: int, bn: int) -> None:
    """The sum of each element's neighbours; tiles begin outside the tensor."""
    m, n = tile.grid(y, (bm, bn))
    total = tile.zeros((bm, bn))
    for row, col in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        total = total + tile.load_tile(tile.init_tile(x, (m + row, n + col), (bm, bn)))
    tile.store_tile(total, tile.init_tile(y, (m, n), (bm, bn)))


@tile.kernel(subgroups=(2, 2))
def triangle(a: Tensor, b: Tensor, c: Tensor, *, block: int) -> None:
    """The lower triangle of a times b."""
    width = 2 * block
    m, n = tile.grid(c, (width, width))
    acc = tile.zeros((width, width))
    for k in tile.range(0, m + width, block):
        left = tile.load_tile(tile.init_tile(a, (m, k), (width, block)))
        below = tile.less(tile.positions((1, block), 1) + k, tile.positions((width, 1), 0) + m + 1)
        left = tile.where(below, left, tile.full((1, 1), 0, "f16"))
        acc = tile.tile_mma(left, tile.load_tile(tile.init_tile(b, (k, n), (block, width))), acc)
    tile.store_tile(acc, tile.init_tile(c, (m, n), (width, width)))
