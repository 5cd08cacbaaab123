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
