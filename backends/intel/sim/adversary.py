"""An adversary: delays and orders of threads that the hardware may have, and that kernels like least.

Threads run in squads, one after the other, each until it can do no more: first one squad is ahead, behind the next
barrier another. The squad that is behind is held at its signal of a barrier until all others have passed it and can do
no more. The two threads of a fused pair are of one squad. Loads read late (`late`).
"""

from __future__ import annotations

import numpy as np

from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.sim.wave_arrays import Array
from convgen.ir.record import frozen

SQUADS = 3


@frozen
class Adversary:
    """The delays and thread orders of an adversary; one `seed` repeats them."""

    seed: int = 0
    late: bool = True  #: loads read as late as their waits
    ordered: bool = True  #: squads run one after the other

    def squads(self, g: ThreadGroup, *, fused: bool) -> Array:
        """The squad of each thread: neighbours are in different ones, the two of a fused pair in one."""
        units = g.wave >> 1 if fused else g.wave
        return (units + self.seed) % SQUADS

    def parts(self, g: ThreadGroup, *, fused: bool) -> list[ThreadGroup]:
        """A group's squads."""
        if not self.ordered:
            return [g]
        parts, squads = [], self.squads(g, fused=fused)
        for squad in np.unique(squads):
            rows = np.flatnonzero(squads == squad)
            # Atomic operations meet in the order of rows: workgroups go up in one thread of a pair, down in the other.
            places = np.where(g.wave[rows] & 1, -g.slot[rows], g.slot[rows])
            part = g.select(rows[np.lexsort((places, g.wave[rows]))])
            part.squad = int(squad)
            parts.append(part)
        return parts

    def rank(self, g: ThreadGroup, phase: int) -> tuple[bool, int]:
        """The group with the least rank runs first; `phase` counts the barriers that were passed."""
        return g.held, (g.squad + phase) % SQUADS

    def holds(self, g: ThreadGroup, phase: int) -> bool:
        """Whether a group that has signalled a barrier waits for all others to pass it."""
        return self.ordered and not g.held and self.rank(g, phase)[1] == SQUADS - 1
