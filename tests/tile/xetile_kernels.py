"""Tile kernels after XeTile's integration tests (docs/tile.md has the table), as a user writes them."""

from __future__ import annotations

from convgen import tile
from convgen.tile import Tensor


@tile.kernel(subgroups=(2, 2))
def gather_scatter(x: Tensor, of: Tensor, to: Tensor, y: Tensor, *, block: int) -> None:
    """y[to] = x[of], -1 where x has no such element; 64 elements a row of numbers."""
    (at,) = tile.grid((of.shape[0],), (block,))
    source, target = (tile.load_tile(tile.init_tile(t, (at, 0), (block, 64))) for t in (of, to))
    inside = tile.less(tile.positions((block, 1), 0) + at, of.shape[0])
    tile.scatter(y, target, tile.gather(x, source, inside, -1), inside)


@tile.kernel(subgroups=(4, 1))
def histogram(x: Tensor, counts: Tensor, *, rows: int) -> None:
    """How many elements of x are each number; what is no number of a count is left out."""
    (at,) = tile.grid((x.shape[0],), (rows,))
    values = tile.load_tile(tile.init_tile(x, (at, 0), (rows, x.shape[1])))
    inside = tile.less(tile.positions((rows, 1), 0) + at, x.shape[0])
    tile.atomic_rmw("add", tile.full(values.shape, 1, "s32"), counts, values, inside)


@tile.kernel(subgroups=(4, 1))
def combine(x: Tensor, y: Tensor, *, kind: str, rows: int) -> None:
    """Each row of blocks, and their sums along rows, into one row and column of y."""
    m, n = tile.grid(x, (rows, 64))
    block = tile.load_tile(tile.init_tile(x, (m, n), (rows, 64)))
    tile.atomic_rmw(kind, block, tile.init_tile(y, (0, n), (rows, 64)))
    tile.atomic_rmw(kind, tile.reduce("max", block, 1), tile.init_tile(y, (0, x.shape[1]), (rows, 1)))


@tile.kernel(subgroups=(2, 2), mma="fma")
def by_lanes(a: Tensor, b: Tensor, c: Tensor, *, bm: int, bn: int, bk: int) -> None:
    """c += a @ b without a matrix instruction."""
    m, n = tile.grid(c, (bm, bn))
    to = tile.init_tile(c, (m, n), (bm, bn))
    acc = tile.load_tile(to)
    for k in tile.range(0, a.shape[1], bk):
        left = tile.load_tile(tile.init_tile(a, (m, k), (bm, bk)))
        acc = tile.tile_mma(left, tile.load_tile(tile.init_tile(b, (k, n), (bk, bn))), acc)
    tile.store_tile(acc, to)


@tile.kernel(subgroups=(2, 2))
def preop_postop(a: Tensor, b: Tensor, c: Tensor, *, bm: int, bn: int, bk: int) -> None:
    """max(exp(a) @ b, 0) + 1; where K ends exp(0) would count as 1."""
    m, n = tile.grid(c, (bm, bn))
    acc = tile.zeros((bm, bn))
    for k in tile.range(0, a.shape[1], bk):
        left = tile.load_tile(tile.init_tile(a, (m, k), (bm, bk)))
        inside = tile.less(tile.positions((1, bk), 1) + k, a.shape[1])
        left = tile.where(inside, tile.exp(left), tile.zeros((1, 1), a.dtype))
        acc = tile.tile_mma(left, tile.load_tile(tile.init_tile(b, (k, n), (bk, bn))), acc)
    tile.store_tile(tile.max(acc, 0.0) + 1.0, tile.init_tile(c, (m, n), (bm, bn)))


@tile.kernel(subgroups=(2, 2))
def preop_b(a: Tensor, b: Tensor, c: Tensor, *, bm: int, bn: int, bk: int) -> None:
    """a @ (2 b + 1) where b is there, with a row of b added to all: both are broadcast."""
    m, n = tile.grid(c, (bm, bn))
    acc = tile.zeros((bm, bn))
    first = tile.load_tile(tile.init_tile(b, (0, n), (1, bn)))
    for k in tile.range(0, a.shape[1], bk):
        right = tile.load_tile(tile.init_tile(b, (k, n), (bk, bn))) * 2.0 + first
        acc = tile.tile_mma(tile.load_tile(tile.init_tile(a, (m, k), (bm, bk))), right, acc)
    tile.store_tile(acc, tile.init_tile(c, (m, n), (bm, bn)))


@tile.kernel(subgroups=(2, 2))
def broadcast_b(a: Tensor, b: Tensor, c: Tensor, *, bm: int, bn: int, bk: int) -> None:
    """Each column of a's partner is one and the same, or each row: b has one position along that dim."""
    m, n = tile.grid(c, (bm, bn))
    acc = tile.zeros((bm, bn))
    rows, cols = b.shape
    for k in tile.range(0, a.shape[1], bk):
        at = (0 if rows == 1 else k, 0 if cols == 1 else n)
        few = tile.load_tile(tile.init_tile(b, at, (min(rows, bk), min(cols, bn))))
        left = tile.load_tile(tile.init_tile(a, (m, k), (bm, bk)))
        acc = tile.tile_mma(left, tile.broadcast(few, (bk, bn)), acc)
    tile.store_tile(acc, tile.init_tile(c, (m, n), (bm, bn)))


@tile.kernel(subgroups=(2, 2))
def transposed(x: Tensor, y: Tensor, *, rows: int, cols: int) -> None:
    """y = (2 x)', block by block through shared memory."""
    m, n = tile.grid(x, (rows, cols))
    block = tile.load_tile(tile.init_tile(x, (m, n), (rows, cols)))
    tile.store_tile(tile.transpose(block + block), tile.init_tile(y, (n, m), (cols, rows)))


@tile.kernel(subgroups=(4, 1))
def stencil(x: Tensor, y: Tensor, *, rows: int, cols: int) -> None:
    """The four neighbours of each element less four times itself; zero beyond the edges."""
    m, n = tile.grid(y, (rows, cols))

    def at(down: int, right: int) -> tile.Value:
        return tile.load_tile(tile.init_tile(x, (m + down, n + right), (rows, cols)))

    around = at(-1, 0) + at(1, 0) + at(0, -1) + at(0, 1)
    tile.store_tile(around - at(0, 0) * 4, tile.init_tile(y, (m, n), (rows, cols)))


@tile.kernel(subgroups=(2, 2))
def nested(x: Tensor, y: Tensor, *, rows: int, cols: int) -> None:
    """For each block of columns, the greatest of the sums of its rows' blocks; and the last block of all."""
    best, last = tile.full((rows, cols), -1000, x.dtype), tile.zeros((rows, cols), x.dtype)
    at = tile.init_tile(x, (0, 0), (rows, cols))
    for _ in tile.range(0, x.shape[1], cols):
        total = tile.zeros((rows, cols), x.dtype)
        for _ in tile.range(0, x.shape[0], rows):
            last = tile.load_tile(at)
            total = total + last
            at = tile.update_tile_offset(at, (rows, 0))
        best = tile.max(best, total)
        at = tile.update_tile_offset(at, (-x.shape[0], cols))
    tile.store_tile(best, tile.init_tile(y, (0, 0), (rows, cols)))
    tile.store_tile(last, tile.init_tile(y, (rows, 0), (rows, cols)))


@tile.kernel(subgroups=(2, 2))
def integer_operations(a: Tensor, b: Tensor, c: Tensor, *, rows: int, cols: int) -> None:
    """Operations on integers of any width, which wrap."""
    m, n = tile.grid(c, (rows, cols))
    x, y = (tile.load_tile(tile.init_tile(t, (m, n), (rows, cols))) for t in (a, b))
    z = (x + y) * x - tile.max(x, y) + tile.min(x, 3)
    z = tile.where(tile.less(x, y), z, tile.abs(y))
    tile.store_tile(z, tile.init_tile(c, (m, n), (rows, cols)))


@tile.kernel(subgroups=(2, 2))
def bit_operations(a: Tensor, b: Tensor, c: Tensor, *, rows: int, cols: int) -> None:
    m, n = tile.grid(c, (rows, cols))
    x, y = (tile.load_tile(tile.init_tile(t, (m, n), (rows, cols))) for t in (a, b))
    z = ((x & y) | (x << 3)) ^ (~y >> 2)
    tile.store_tile(z, tile.init_tile(c, (m, n), (rows, cols)))


@tile.kernel(subgroups=(2, 2))
def converted(x: Tensor, y: Tensor, *, rows: int, cols: int) -> None:
    """From blocks of rows on subgroups to blocks of columns, and back to what the store says."""
    half, quarter = ((4, 1), (rows // 4, cols)), ((1, 4), (rows, cols // 4))
    m, n = tile.grid(y, (rows, cols))
    block = tile.load_tile(tile.init_tile(x, (m, n), (rows, cols), wg_map=half))
    block = tile.convert_layout(block * 2, wg_map=quarter) + 1
    square = ((2, 2), (rows // 2, cols // 2))
    tile.store_tile(block, tile.init_tile(y, (m, n), (rows, cols), wg_map=square))


@tile.kernel(subgroups=(2, 2))
def mapped(a: Tensor, b: Tensor, c: Tensor, *, size: int) -> None:
    """A product whose blocks lie on subgroups as XeTile's examples have them: A and B on several, C on one each."""
    m, n = tile.grid(c, (size, size))
    half = size // 2
    ta = tile.init_tile(a, (m, 0), (size, size), wg_map=((2, 2), (half, size)))
    tb = tile.init_tile(b, (0, n), (size, size), wg_map=((2, 2), (size, half)))
    acc = tile.zeros((size, size))
    for _ in tile.range(0, a.shape[1], size):
        acc = tile.tile_mma(tile.load_tile(ta), tile.load_tile(tb), acc)
        ta, tb = tile.update_tile_offset(ta, (0, size)), tile.update_tile_offset(tb, (size, 0))
    tile.store_tile(acc, tile.init_tile(c, (m, n), (size, size), wg_map=((2, 2), (half, half))))


@tile.kernel(subgroups=(1, 2))
def in_rounds(x: Tensor, y: Tensor, *, lanes: int) -> None:
    """Three blocks a subgroup, each on lanes as is said; carried through a loop, which has no layout of its own."""
    blocks, units = ((1, 2), (8, 16)), ((lanes // 8, 8), (1, 2))
    total = tile.load_tile(tile.init_tile(x, (0, 0), (24, 32)), wg_map=blocks, sg_map=units)
    for n in tile.range(32, x.shape[1], 32):
        total = total + tile.load_tile(tile.init_tile(x, (0, n), (24, 32)))
    total = tile.convert_layout(total, wg_map=blocks, sg_map=units)
    tile.store_tile(total, tile.init_tile(y, (0, 0), (24, 32)))
    first = tile.init_tile(x, (0, 0), (24, 32), wg_map=blocks, sg_map=units)
    tile.store_tile(tile.load_tile(first, transpose=True), tile.init_tile(y, (0, 32), (32, 24)))


@tile.kernel(subgroups=(2, 2))
def narrowed(a: Tensor, b: Tensor, c: Tensor, *, bm: int, bn: int, bk: int) -> None:
    """Factors in f32, multiplied as f16; b stored by columns, doubled and turned; the result without its signs."""
    m, n = tile.grid(c, (bm, bn))
    acc = tile.zeros((bm, bn))
    for k in tile.range(0, a.shape[1], bk):
        left = tile.load_tile(tile.init_tile(a, (m, k), (bm, bk)))
        right = tile.load_tile(tile.init_tile(b, (n, k), (bn, bk)), transpose=True)
        acc = tile.tile_mma(tile.convert(left, "f16"), tile.convert(right * 2.0, "f16"), acc)
    tile.store_tile(tile.abs(acc), tile.init_tile(c, (m, n), (bm, bn)))


@tile.kernel(subgroups=(2, 2))
def both_preops(a: Tensor, b: Tensor, bias: Tensor, c: Tensor, *, bm: int, bn: int, bk: int) -> None:
    """(a + bias) @ (b - 1), bias a row along K: broadcast before the product."""
    m, n = tile.grid(c, (bm, bn))
    acc = tile.zeros((bm, bn))
    for k in tile.range(0, a.shape[1], bk):
        row = tile.load_tile(tile.init_tile(bias, (0, k), (1, bk)))
        left = tile.load_tile(tile.init_tile(a, (m, k), (bm, bk))) + tile.broadcast(row, (bm, bk))
        right = tile.load_tile(tile.init_tile(b, (k, n), (bk, bn))) - 1.0
        acc = tile.tile_mma(left, right, acc)
    tile.store_tile(acc, tile.init_tile(c, (m, n), (bm, bn)))


@tile.kernel(subgroups=(2, 2))
def broadcasts(row: Tensor, column: Tensor, y: Tensor, *, rows: int, cols: int) -> None:
    """Each element the sum of a row's and a column's."""
    m, n = tile.grid(y, (rows, cols))
    across = tile.load_tile(tile.init_tile(row, (0, n), (1, cols)))
    down = tile.load_tile(tile.init_tile(column, (m, 0), (rows, 1)))
    block = tile.broadcast(across, (rows, cols)) + tile.broadcast(down, (rows, cols))
    tile.store_tile(block, tile.init_tile(y, (m, n), (rows, cols)))


@tile.kernel(subgroups=(2, 2))
def softmax_of_columns(x: Tensor, y: Tensor, *, rows: int, cols: int) -> None:
    """As high as one block."""
    _, n = tile.grid(y, (rows, cols))
    inside = tile.less(tile.positions((rows, 1), 0), x.shape[0])
    loaded = tile.load_tile(tile.init_tile(x, (0, n), (rows, cols)))
    values = tile.where(inside, loaded, tile.full((1, 1), -1e30))
    e = tile.exp(values - tile.reduce("max", values, 0))
    tile.store_tile(tile.divide(e, tile.reduce("sum", e, 0)), tile.init_tile(y, (0, n), (rows, cols)))


@tile.kernel(subgroups=(2, 1))
def doubled(x: Tensor, y: Tensor, *, rows: int, cols: int) -> None:
    """Of any size of blocks, powers of two or not."""
    m, n = tile.grid(y, (rows, cols))
    block = tile.load_tile(tile.init_tile(x, (m, n), (rows, cols)))
    tile.store_tile(block + block, tile.init_tile(y, (m, n), (rows, cols)))


@tile.kernel(subgroups=(2, 2))
def in_two_types(a: Tensor, b: Tensor, c: Tensor, *, size: int) -> None:
    """a @ b by parts of K: as f16, and as f32, whose instructions distribute sums in another way or are none."""
    m, n = tile.grid(c, (size, size))
    acc = tile.zeros((size, size))
    for k in tile.range(0, a.shape[1], 2 * size):
        for narrow in (True, False):
            at = k if narrow else k + size
            left = tile.load_tile(tile.init_tile(a, (m, at), (size, size)))
            right = tile.load_tile(tile.init_tile(b, (at, n), (size, size)))
            if narrow:
                left, right = tile.convert(left, "f16"), tile.convert(right, "f16")
            acc = tile.tile_mma(left, right, acc)
    tile.store_tile(acc, tile.init_tile(c, (m, n), (size, size)))
