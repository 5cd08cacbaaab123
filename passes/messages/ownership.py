"""Which shared tiles are shared in name only: each subgroup reads nothing but what it wrote itself."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Shared
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.stmt import Copy, DirectCopy, LoadPart, LoadShared, StoreShared


def private_tiles(kernel: Kernel) -> frozenset[Shared]:
    """The tiles of a tile-level kernel that need no barrier and no wait before one."""
    layouts: dict[Shared, dict[Fragment, None]] = {}
    accesses = statements(kernel.body)
    parts = {s.tile for s in accesses if isinstance(s, LoadPart)}  # which overlap
    direct = {s.tile for s in accesses if isinstance(s, DirectCopy)}  # by places, not by elements
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
    """Whether no element of a tile is touched by two subgroups, whatever the access.

    Each access leaves its subgroup's number at what it touches: none finds that of another where all are alone.
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
