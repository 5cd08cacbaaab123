"""The tiles of MIOpen's kernels compiled from MLIR, where nobody tuned them: of a short list the one that pads least.

Facts: rocMLIR, mlir/lib/Dialect/Rock: Tuning/GridwiseGemmParams.cpp (tiles, and their order by padding) and
utility/loweringUtils.cpp (how the K of weight gradients is cut).
"""

from __future__ import annotations

from math import ceil

from convgen.ir.record import frozen

#: (channels, pixels, K) of a tile and (channels, pixels) of a wave; of equal padding the first is taken.
_TILES = (
    ((128, 128, 16), (64, 64)),
    ((32, 64, 16), (32, 64)),
    ((128, 128, 8), (64, 64)),
    ((8, 64, 8), (8, 64)),
    ((4, 64, 16), (4, 64)),
    ((32, 64, 4), (32, 64)),
    ((16, 16, 16), (16, 16)),
    ((16, 16, 4), (16, 16)),
)
_SMALL, _DEEP = (16, 16), 16  #: waves of that size multiply so many positions of narrow types at once
_WIDE = 4.0  #: bytes of an element that is not narrow
_GROUPS_A_UNIT = 20  #: workgroups of weight gradients, at most; beyond them K is not cut
_LANES = 64


@frozen
class Tile:
    """The tile of a product of `rows` x `columns`, as the compiler names them: channels of the result come first."""

    rows: int
    columns: int
    depth: int
    waves_rows: int
    waves_columns: int
    padded: bool  #: whether tiles reach beyond the product; then each element is checked, and loaded alone

    @property
    def waves(self) -> int:
        return self.waves_rows * self.waves_columns

    def lane(self, edge: int, elem: float) -> float:
        """Bytes of a block of K with that edge that fall to a lane."""
        return edge * self.depth * elem / (self.waves * _LANES)

    def split(self, product: tuple[float, float, float], count: float, images: int, units: int) -> int:
        """Workgroups that share the K of each tile of a weight gradient: images are shared out."""
        rows, columns, depth = product
        if self.padded:
            return 1
        tiles = int(count * (rows // self.rows) * (columns // self.columns))
        most = min(max(1, _GROUPS_A_UNIT * units // tiles), images)
        fits = (n for n in range(most, 1, -1) if images % n == 0 and depth % (n * self.depth) == 0)
        return next(fits, 1)


def tile_of(rows: float, columns: float, depth: float, elem: float) -> Tile:
    """The tile of a product."""

    def volume(tile: tuple[int, int, int]) -> int:
        cells = 1
        for size, edge in zip((rows, columns, depth), tile):
            cells *= ceil(size / edge) * edge
        return cells

    able = [(t, wave) for t, wave in _TILES if wave != _SMALL or elem >= _WIDE or t[2] >= _DEEP]
    tile, wave = min(able, key=lambda candidate: volume(candidate[0]))
    padded = volume(tile) > rows * columns * depth
    return Tile(*tile, tile[0] // wave[0], tile[1] // wave[1], padded)
