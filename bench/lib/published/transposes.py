"""The kernels that MIOpen launches around an implicit GEMM of tensors with channels first: transposes and fills.

A tensor goes between channels first and channels last image by image, as a matrix of `rows` x `columns` that is
transposed in tiles, one a workgroup. Facts: MIOpen@2d1fd997a6fc, src/hip/batched_transpose_sol.cpp; on gfx942 it takes
the tiles that move one element a lane and access.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, reduce
from math import ceil, gcd

from lib.published.table import BYTES, Row

from convgen.ir.record import frozen

_SECTOR = 32  #: bytes; the least that memory moves
_NARROW = 8  #: rows or columns up to which a long matrix takes tiles of 4 of these
_LONG = 12  #: times as long as it is wide, and longer
#: Times as long as it is wide, up to -> length of tiles of 4; beyond them 256.
_LENGTHS = ((48, 64), (128, 128))
_LONGEST = 256
_VERY_LONG = 128  #: times as long as it is wide; beyond, padding of oblong tiles counts half
#: (rows, columns) of tiles; the first that pads least is taken.
_TILES = {2: ((32, 32), (32, 16), (16, 32), (16, 16)), 4: ((32, 32), (16, 32), (32, 16), (16, 16))}


@frozen
class Transpose:
    """Matrices that are transposed one by one."""

    count: int
    rows: int
    columns: int
    elem: int  #: bytes

    @property
    def groups(self) -> int:
        """Workgroups, each of a tile."""
        height, width = self._tile
        return self.count * ceil(self.rows / height) * ceil(self.columns / width)

    @property
    def read(self) -> float:
        """Bytes in sectors that rows of tiles touch."""
        return self.count * self.rows * _touched(self.columns, self._tile[1], self.elem)

    @property
    def written(self) -> float:
        """Likewise columns of tiles, which are rows of the result."""
        return self.count * self.columns * _touched(self.rows, self._tile[0], self.elem)

    @property
    def _tile(self) -> tuple[int, int]:
        return _tile(self.rows, self.columns, self.elem)


def beside(row: Row) -> dict[str, float]:
    """Launches beside the kernel of a row: how many, their workgroups, and bytes that they move.

    What `aux_bytes` counts beside transposes is zeroes, or sums that become results.
    """
    found = [t for t in transposes_of(row) if min(t.rows, t.columns) > 1]
    moved = sum(2 * t.count * t.rows * t.columns * t.elem for t in found)
    return {
        "others": float(row["aux_kernels"]),
        "other_groups": float(sum(t.groups for t in found)),
        "other_read": sum((t.read for t in found), 0.0),
        "other_written": sum((t.written for t in found), 0.0) + max(0.0, float(row["aux_bytes"]) - moved),
    }


def transposes_of(row: Row) -> Iterator[Transpose]:
    """Yield transposes: of operands to channels last, of the result back to channels first."""
    names = "n c h w k y x ho wo g".split()
    n, c, h, w, k, y, x, ho, wo, g = (int(row[name]) for name in names)
    tensors = {"src": (n, c, h * w), "wei": (k, c // g, y * x), "dst": (n, k, ho * wo)}
    result = {"F": "dst", "B": "src", "W": "wei"}[row["dir"]]
    for name, (count, channels, pixels) in tensors.items():
        sizes = (pixels, channels) if name == result else (channels, pixels)
        yield Transpose(count, *sizes, int(BYTES[row["dtype"]]))


def _tile(rows: int, columns: int, elem: int) -> tuple[int, int]:
    """Rows and columns of the tiles of a matrix."""
    long = max(rows, columns) / min(rows, columns)
    if long >= _LONG and min(rows, columns) <= _NARROW:
        length = next((length for most, length in _LENGTHS if long <= most), _LONGEST)
        return (length, 4) if columns <= _NARROW else (4, length)

    def cost(tile: tuple[int, int]) -> float:
        padded = ceil(rows / tile[0]) * tile[0] * ceil(columns / tile[1]) * tile[1]
        return (padded - rows * columns) * (1.0 if long <= _VERY_LONG or tile[0] == tile[1] else 0.5)

    def along(tile: tuple[int, int]) -> int:
        """Above 0 for tiles that are long where the matrix is, below for those that lie across."""
        return (1 if columns > rows else -1) * (tile[1] - tile[0])

    def better(best: tuple[int, int], tile: tuple[int, int]) -> tuple[int, int]:
        if long <= _VERY_LONG:
            return tile if cost(tile) < cost(best) else best
        if cost(tile) == cost(best):
            return tile if along(tile) > 0 > along(best) else best
        narrower = along(tile) == 0 != along(best)
        return tile if cost(tile) < cost(best) and not narrower else best

    return reduce(better, _TILES[elem])


@lru_cache(maxsize=4096)
def _touched(length: int, tile: int, elem: int) -> float:
    """Bytes of sectors that a row touches when it is read tile by tile, on average over rows that follow each other."""
    step = gcd(length * elem, _SECTOR)
    begins = range(0, _SECTOR, step)
    total = 0
    for begin in begins:
        for at in range(0, length, tile):
            first, last = begin + at * elem, begin + min(length, at + tile) * elem - 1
            total += last // _SECTOR - first // _SECTOR + 1
    return _SECTOR * total / len(begins)
