"""In which lane, and in which of its registers, elements of a tile are that a lane wants in another distribution.

What holds is checked on every subgroup, lane and register, so any two layouts will do.
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
    """For each register wanted: where its element is, the same in all lanes, and of which lane each lane has it."""

    of: Fragment
    to: Fragment
    registers: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...]

    @property
    def stay(self) -> bool:
        """Whether every lane has what it wants."""
        return all(lanes == tuple(range(len(lanes))) for lanes in self.lanes)

    def lane(self, register: int) -> Expr:
        """The lane that has what this lane wants in a register."""
        place = self.of.place(self.to.coords(0, Lane(), register))
        return lift(place.get(Space.LANE, 0), const(0))


@lru_cache(maxsize=2**8)
def sources(of: Fragment, to: Fragment, width: int, subgroups: int) -> Sources | None:
    """Where within its subgroup a lane finds what it wants; None if that differs, or the register between lanes."""
    grid: Any = np.meshgrid(np.arange(subgroups), np.arange(width), np.arange(to.registers), indexing="ij")
    subgroup, lane, _ = grid
    wanted = to.coords(*grid)
    place = of.place(wanted)
    register = np.broadcast_to(place.get(Space.REGISTER, 0), lane.shape)
    if (register != register[:1, :1]).any():
        return None
    for other in (lane, np.broadcast_to(place.get(Space.LANE, 0), lane.shape)):
        found = of.coords(subgroup, other, register)
        if all(np.all(found[d] == wanted[d]) for d in of.dims):
            if (other != other[:1]).any():
                return None
            lanes = tuple(map(tuple, other[0].T.tolist()))
            return Sources(of, to, tuple(register[0, 0].tolist()), lanes)
    return None
