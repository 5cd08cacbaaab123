"""The tile that the closed form would take for a product: of all that kernels usually have, the one of least time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product

import numpy as np
from lib.products import SUM, Products

from convgen.backends.family import Chip
from convgen.profile.closed import Numbers, Terms

_EDGES = (16, 32, 64, 128, 256)  #: M or N
_LARGEST = 128 * 256  #: M x N
_DEPTHS = (32, 64)  #: bytes along K
_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)  #: of K
_WAVE = 32 * 32  #: M x N of a wave; larger tiles have up to 4 of these


def tiled(sizes: Mapping[str, float], chip: Chip, terms: Terms) -> dict[str, float]:
    """Numbers of `Products`: those given, which say all but the tile, and the tile of least clocks.

    `terms` are in clocks.
    """
    candidates = _candidates(sizes["elem"], sizes["result"])
    count = len(candidates["tile_m"])
    every = {name: np.full(count, value) for name, value in sizes.items()} | candidates
    best = int(Products(**every).estimate(chip, terms, timed=False).total.argmin())
    return {name: float(values[best]) for name, values in every.items()}


@cache
def _candidates(elem: float, result: float) -> dict[str, Numbers]:
    """All tiles of operands of `elem` bytes an element; where K is cut, results are sums of f32."""
    tiles = [(m, n, k, s) for m, n, k, s in product(_EDGES, _EDGES, _DEPTHS, _SPLITS) if m * n <= _LARGEST]
    tile_m, tile_n, depth, split = (np.array(column, np.float64) for column in zip(*tiles))
    waves = np.clip(tile_m * tile_n / _WAVE, 1, 4)
    waves_m = np.where((tile_m >= tile_n) & (waves > 1), 2.0, 1.0)
    return {
        "tile_m": tile_m,
        "tile_n": tile_n,
        "tile_k": depth / elem,
        "split": split,
        "waves": waves,
        "waves_m": waves_m,
        "waves_n": waves / waves_m,
        "result": np.where(split > 1, SUM, result),
    }
