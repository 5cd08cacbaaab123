"""Which shared tiles no other subgroup touches, against a look at every element."""

from __future__ import annotations

from itertools import product

import pytest

from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.ring import ring_of
from convgen.ir.types import f32, vector
from convgen.passes.messages.ownership import private_tiles

_WIDTH, _SUBGROUPS = 16, 2
_LANES = Digit("col", 16, Space.LANE, 1)

#: Of a tile of 4 x 16: every subgroup all of it; two neighbouring rows; every second row; the first two rows, all.
LAYOUTS = {
    "all": (Digit("row", 4, Space.REGISTER, 1),),
    "near": (Digit("row", 2, Space.REGISTER, 1), Digit("row", 2, Space.SUBGROUP, 1)),
    "far": (Digit("row", 2, Space.SUBGROUP, 1), Digit("row", 2, Space.REGISTER, 1)),
    "first": (Digit("row", 2, Space.REGISTER, 1), Digit("row", 2, Space.FIXED, 0)),
}


@pytest.mark.parametrize("names", [*product(LAYOUTS, LAYOUTS)], ids="-".join)
def test_tiles_are_private_where_each_element_has_one_subgroup(names: tuple[str, str]) -> None:
    stored, loaded = (Fragment(("row", "col"), (*LAYOUTS[name], _LANES)) for name in names)
    kernel = KernelBuilder("k", subgroups=_SUBGROUPS, width=_WIDTH)
    tile = kernel.shared("tile", f32, 4, 16)
    kernel.store_shared(tile, kernel.zeros(vector(f32, stored.registers)), stored)
    kernel.load_shared("v", tile, loaded)
    owners: dict[tuple[int, int], set[int]] = {}
    for layout in (stored, loaded):
        for subgroup, lane, register in product(range(_SUBGROUPS), range(_WIDTH), range(layout.registers)):
            row, col = layout.coords(subgroup, lane, register).values()
            owners.setdefault((row, col), set()).add(subgroup)
    alone = all(len(subgroups) == 1 for subgroups in owners.values())
    assert private_tiles(kernel.done()) == ({tile} if alone else set())


def test_a_tile_that_bulk_copies_bring_is_not_private() -> None:
    """One subgroup starts the copies, and every subgroup reads them, behind a barrier."""
    kernel = KernelBuilder("k", subgroups=_SUBGROUPS, width=_WIDTH)
    memory, tile = kernel.buffer("src", f32, 4 * 16), kernel.shared("tile", f32, 4, 16)
    kernel.copy_as_tensor(tile, matrix(memory, 4, 16), (0, 0), 4, ring_of("ring", 1))
    kernel.load_shared("v", tile, Fragment(("row", "col"), (*LAYOUTS["near"], _LANES)))
    assert private_tiles(kernel.done()) == set()
