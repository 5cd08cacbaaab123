"""Which shared tiles are shared in name only: each subgroup reads nothing but what it wrote itself."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Shared
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.stmt import Copy, DirectCopy, LoadPart, LoadShared, StoreShared


def private_tiles(kernel: Kernel) -> frozenset[Shared]:
    """The tiles of a tile-level kernel that need no barrier and no wait before one."""
    layouts: dict[Shared, dict[Fragment, None]] = {}
    parts = {s.tile for s in statements(kernel.body) if isinstance(s, LoadPart)}  # which overlap
    direct = {s.tile for s in statements(kernel.body) if isinstance(s, DirectCopy)}  # by places, not by elements
    for s in statements(kernel.body):
        if isinstance(s, (StoreShared, LoadShared, Copy)):
            layouts.setdefault(s.tile, {}).setdefault(s.layout)
    covered = {region for t in layouts for region in (t.name, t.region) if t.region != t.name}
    return frozenset(
        tile
        for tile, used in layouts.items()
        if tile not in direct | parts and tile.name not in covered and _is_private(tile, used, kernel)
    )


def _is_private(tile: Shared, layouts: Iterable[Fragment], kernel: Kernel) -> bool:
    """Whether no element is touched by two subgroups, whatever the access."""
    owner = np.full((tile.rows, tile.cols), -1)
    for layout in layouts:
        for subgroup in range(kernel.subgroups):
            lanes, registers = np.meshgrid(np.arange(kernel.width), np.arange(layout.registers), indexing="ij")
            row, col = np.broadcast_arrays(*layout.coords(subgroup, lanes, registers).values())
            if not np.isin(owner[row, col], (-1, subgroup)).all():
                return False
            owner[row, col] = subgroup
    return True
