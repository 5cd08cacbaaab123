"""Kernels of one's own in Python, in blocks: the tile language.

A function with `@tile.kernel` says what one workgroup does with blocks of tensors; calling it with tensors makes a
`TileProgram`, which `cg.compile` takes for any target. Who holds which element follows from what is done with it.
"""

from __future__ import annotations

from convgen.tile.kernel import TileProgram, kernel
from convgen.tile.operations import (
    convert,
    full,
    grid,
    init_tile,
    load_tile,
    prefetch_tile,
    store_tile,
    tile_mma,
    update_tile_offset,
    zeros,
)
from convgen.tile.operations import (
    maximum as max,
)
from convgen.tile.operations import (
    minimum as min,
)
from convgen.tile.operations import (
    steps as range,
)
from convgen.tile.trace import Tensor, Tile, Value

__all__ = [
    "Tensor",
    "Tile",
    "TileProgram",
    "Value",
    "convert",
    "full",
    "grid",
    "init_tile",
    "kernel",
    "load_tile",
    "max",
    "min",
    "prefetch_tile",
    "range",
    "store_tile",
    "tile_mma",
    "update_tile_offset",
    "zeros",
]
