"""An adversary: delays and thread orders that the hardware permits and that expose missing synchronisation.

Threads run in squads, one squad after the other, each until it blocks; the leading squad changes at each barrier. The
last squad is held at its barrier signal until all other squads have passed the barrier and block. The two threads of a
fused pair are in one squad. Loads read memory late (`late`).
"""

from __future__ import annotations

import numpy as np

from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.sim.wave_arrays import Array
from convgen.ir.record import frozen

SQUADS = 3  #: squads of a workgroup


@frozen
class Adversary:
    """The delays and thread orders of an adversary; one `seed` repeats them."""

    seed: int = 0
    late: bool = True  #: loads read as late as their waits
    ordered: bool = True  #: squads run one after the other

    def squads(self, g: ThreadGroup, *, fused: bool) -> Array:
        """Return the squad of each thread: neighbours differ, except the two of a fused pair."""
        units = g.wave >> 1 if fused else g.wave
        return (units + self.seed) % SQUADS

    def parts(self, g: ThreadGroup, *, fused: bool) -> list[ThreadGroup]:
        """Split a group into its squads."""
        if not self.ordered:
            return [g]
        parts, squads = [], self.squads(g, fused=fused)
        for squad in np.unique(squads):
            rows = np.flatnonzero(squads == squad)
            # Atomic operations of several threads execute in the order of rows: workgroups ascend in even threads and
            # descend in odd ones.
            places = np.where(g.wave[rows] & 1, -g.slot[rows], g.slot[rows])
            part = g.select(rows[np.lexsort((places, g.wave[rows]))])
            part.squad = int(squad)
            parts.append(part)
        return parts

    def rank(self, g: ThreadGroup, phase: int) -> tuple[bool, int]:
        """Return a key: the group with the least key runs first. `phase` counts the barriers passed."""
        return g.held, (g.squad + phase) % SQUADS

    def holds(self, g: ThreadGroup, phase: int) -> bool:
        """Return whether a group that has signalled a barrier waits for all others to pass it."""
        return self.ordered and not g.held and self.rank(g, phase)[1] == SQUADS - 1
