"""Private shared tiles: each subgroup reads only elements that it wrote itself."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Shared
from convgen.ir.mma_operands import shared_factors
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.stmt import Copy, DirectCopy, LoadPart, LoadShared, StoreShared, TensorCopy


def private_tiles(kernel: Kernel) -> frozenset[Shared]:
    """Return the tiles of a tile-level kernel that need no barrier and no wait before one."""
    layouts: dict[Shared, dict[Fragment, None]] = {}
    accesses = statements(kernel.body)
    parts = {s.tile for s in accesses if isinstance(s, LoadPart)}  # parts overlap
    direct = {s.tile for s in accesses if isinstance(s, (DirectCopy, TensorCopy))}  # by places, or for all subgroups
    factors = shared_factors(kernel.body)  # a team's instruction reads them, not one subgroup
    direct |= {s.tile for s in accesses if isinstance(s, LoadShared) and s.var in factors}
    for s in accesses:
        if isinstance(s, (StoreShared, LoadShared, Copy)):
            layouts.setdefault(s.tile, {}).setdefault(s.layout)
    covered = {region for t in layouts for region in (t.name, t.region) if t.region != t.name}
    return frozenset(
        tile
        for tile, used in layouts.items()
        if tile not in direct | parts
        and tile.name not in covered
        and _is_private(tile.rows, tile.cols, tuple(used), kernel.subgroups, kernel.width)
    )


@lru_cache(maxsize=2**8)
def _is_private(rows: int, cols: int, layouts: tuple[Fragment, ...], subgroups: int, width: int) -> bool:
    """Return whether no element of a tile is accessed by two subgroups, over all accesses.

    Each access writes its subgroup's number to its elements; the tile is private if no access finds another number.
    """
    numbers, lanes = np.arange(subgroups)[:, None, None], np.arange(width)[:, None]
    touched = [
        np.broadcast_arrays(*layout.coords(numbers, lanes, np.arange(layout.registers)).values(), numbers)
        for layout in layouts
    ]
    owner = np.empty((rows, cols), np.int64)
    for row, col, subgroup in touched:
        owner[row, col] = subgroup
    return all((owner[row, col] == subgroup).all() for row, col, subgroup in touched)
