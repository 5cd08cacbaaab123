"""Late loads: a load returns the memory content at the time of its wait.

Under an `adversary` every load reads twice: when it is issued, and when a wait, or a fence that orders loads, shows
that it is complete. If the two differ, the kernel's result depends on timing. A later store of the thread to the loaded
bytes makes the load read first, unless the store may overtake it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.sim.wave_arrays import U64, Array, Bools
from convgen.ir.record import define, evolve

LINE_BITS = 6  #: overlaps are searched by lines of 64 bytes, which may report more than there are

#: (group, addresses [threads, lanes], lanes): reads memory without a finding, and writes the registers.
Reread = Callable[[ThreadGroup, U64, "Bools | None"], None]


@define(eq=False)
class LateLoad:
    """A load that will read memory again."""

    step: int  #: index of its instruction
    order: int
    local: bool
    address: U64  #: [threads, lanes]
    size: int  #: bytes at an address
    lanes: Bools | None
    reread: Reread

    def take(self, rows: Array) -> LateLoad:
        """Return the load for some of the threads."""
        lanes = None if self.lanes is None else self.lanes[rows]
        return evolve(self, address=self.address[rows], lanes=lanes)

    def joined(self, other: LateLoad) -> LateLoad:
        """Return the load for the threads of both groups."""
        lanes = None
        if self.lanes is not None or other.lanes is not None:
            lanes = np.concatenate([load.active_lanes() for load in (self, other)])
        return evolve(self, address=np.concatenate((self.address, other.address)), lanes=lanes)

    def active_lanes(self) -> Bools:
        """Return the active lanes [threads, lanes]."""
        return np.ones(self.address.shape, np.bool_) if self.lanes is None else self.lanes

    def lines(self) -> Array:
        """Return the lines of memory that are read, with repetitions."""
        return lines_of(self.address, self.size, self.lanes)


def lines_of(address: U64, size: int, lanes: Bools | None) -> Array:
    """Return the lines that `size` bytes at each address touch, with repetitions."""
    first = (address if lanes is None else address[lanes]).ravel() >> np.uint64(LINE_BITS)
    return np.unique(first) + np.arange((size >> LINE_BITS) + 2, dtype=np.uint64)[:, None]


def note_late(
    g: ThreadGroup, index: int, address: U64, size: int, lanes: Bools | None, reread: Reread, *, local: bool
) -> None:
    """Register a load to read again when it is known to be complete."""
    if g.env.adversary is not None and g.env.adversary.late:
        g.order += 1
        kept = None if lanes is None else lanes.copy()  # registers and flags may change meanwhile
        g.late.append(LateLoad(index, g.order, local, address.copy(), size, kept, reread))


def _read_again(g: ThreadGroup, due: Callable[[LateLoad], bool]) -> None:
    ready = [load for load in g.late if due(load)]
    if ready:
        g.late = [load for load in g.late if not due(load)]
        for load in ready:
            load.reread(g, load.address, load.lanes)


def read_completed(g: ThreadGroup, complete: frozenset[int]) -> None:
    """Let loads that are known to be complete read memory again: `complete` ones, and those before complete fences."""
    orders_local = g.env.platform.slm_fence_orders_loads
    upto = {"slm": 0, "ugm": 0, "tgm": 0}  # unit -> order of its last completed fence
    for index, order, unit in g.fences:
        if index in complete and (orders_local or unit != "slm"):
            upto[unit] = max(upto[unit], order)
    _read_again(g, lambda load: load.step in complete or load.order < upto["slm" if load.local else "ugm"])


def read_before_store(g: ThreadGroup, address: U64, size: int, lanes: Bools | None, *, local: bool) -> None:
    """Before a store, let the threads' loads of its bytes read memory again, unless the store may overtake them."""
    if not g.late or (local and not g.env.platform.slm_fence_orders_loads):
        return
    stored = lines_of(address, size, lanes)
    _read_again(g, lambda load: load.local == local and bool(np.isin(load.lines(), stored).any()))
