"""The tile language: kernels in Python that work on blocks of tensors.

A function decorated with `@tile.kernel` describes what one workgroup does with blocks of tensors. Calling it with
tensors returns a `TileProgram`, which `cg.compile` accepts for any target. The operations decide which lane holds which
element.
"""

from __future__ import annotations

if __name__ != "convgen.tile":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.tile, not as {__name__}")

from convgen.tile.indexed import atomic_rmw, gather, scatter
from convgen.tile.language import (
    absolute,
    broadcast,
    ceil,
    convert,
    convert_layout,
    cos,
    divide,
    equal,
    erf,
    exp,
    exp2,
    floor,
    fma,
    full,
    gelu,
    gelu_tanh,
    grid,
    init_tile,
    less,
    load_scalar,
    load_tile,
    log,
    log2,
    maximum,
    minimum,
    positions,
    prefetch_tile,
    reciprocal,
    reduce,
    rounded,
    rsqrt,
    sigmoid,
    sin,
    softplus,
    sqrt,
    steps,
    store_tile,
    swish,
    tanh,
    tile_mma,
    transpose,
    update_tile_offset,
    where,
    zeros,
)
from convgen.tile.parsing import parse
from convgen.tile.tile_kernel import TileProgram, kernel
from convgen.tile.tiles import Index, Tensor, Tile, size
from convgen.tile.trace import Value

abs, max, min, round, range = absolute, maximum, minimum, rounded, steps

__all__ = [
    "Index",
    "Tensor",
    "Tile",
    "TileProgram",
    "Value",
    "abs",
    "atomic_rmw",
    "broadcast",
    "ceil",
    "convert",
    "convert_layout",
    "cos",
    "divide",
    "equal",
    "erf",
    "exp",
    "exp2",
    "floor",
    "fma",
    "full",
    "gather",
    "gelu",
    "gelu_tanh",
    "grid",
    "init_tile",
    "kernel",
    "less",
    "load_scalar",
    "load_tile",
    "log",
    "log2",
    "max",
    "min",
    "parse",
    "positions",
    "prefetch_tile",
    "range",
    "reciprocal",
    "reduce",
    "round",
    "rsqrt",
    "scatter",
    "sigmoid",
    "sin",
    "size",
    "softplus",
    "sqrt",
    "store_tile",
    "swish",
    "tanh",
    "tile_mma",
    "transpose",
    "update_tile_offset",
    "where",
    "zeros",
]
