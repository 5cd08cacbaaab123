"""Sources of a redistribution: the lane and register that hold each element that a lane needs.

Every subgroup, lane and register is checked, so any two layouts will do.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from convgen.ir.expr import Expr, Lane, const, lift
from convgen.ir.layout.digits import Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.record import frozen


@frozen
class Sources:
    """For each register of `to`: the source register, equal in all lanes, and the source lane of each lane."""

    of: Fragment
    to: Fragment
    registers: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...]

    @property
    def stay(self) -> bool:
        """Return whether every lane already holds its elements."""
        return all(lanes == tuple(range(len(lanes))) for lanes in self.lanes)

    def lane(self, register: int) -> Expr:
        """Return the lane that holds this lane's element of a register."""
        place = self.of.place(self.to.coords(0, Lane(), register))
        return lift(place.get(Space.LANE, 0), const(0))


@lru_cache(maxsize=2**8)
def sources(of: Fragment, to: Fragment, width: int, subgroups: int) -> Sources | None:
    """Return sources within each lane's subgroup; None unless subgroups agree and registers do not depend on lanes."""
    grid: Any = np.meshgrid(np.arange(subgroups), np.arange(width), np.arange(to.registers), indexing="ij")
    subgroup, lane, _ = grid
    wanted = to.coords(*grid)
    place = of.place(wanted)
    register = np.broadcast_to(place.get(Space.REGISTER, 0), lane.shape)
    if (register != register[:1, :1]).any():
        return None
    for source in (lane, np.broadcast_to(place.get(Space.LANE, 0), lane.shape)):
        found = of.coords(subgroup, source, register)
        if all(np.all(found[d] == wanted[d]) for d in of.dims):
            if (source != source[:1]).any():
                return None
            lanes = tuple(map(tuple, source[0].T.tolist()))
            return Sources(of, to, tuple(register[0, 0].tolist()), lanes)
    return None
