"""Global stores: each has a ticket, by which a fence orders it, and is checked against other threads' stores."""

from __future__ import annotations

from convgen.backends.intel.sim.late import read_before_store
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.intel.sim.step import Step
from convgen.backends.sim.global_access import check_collisions, check_overwrites, store_lanes
from convgen.backends.sim.wave_arrays import U64, Array, Bools


def store_global(
    g: ThreadGroup, step: Step, address: U64, size: int, values: Array, lanes: Bools | None, alignment: int
) -> None:
    """Write data [words, threads, lanes] and check it against other threads' accesses."""
    env = g.env
    read_before_store(g, address, size, lanes, local=False)
    ticket = env.ticket()
    if env.waves > 1:
        g.order += 1
        g.stores.append((g.order, ticket))
    check_overwrites(g, step, address, size, values, lanes)
    store_lanes(g, step, address, size, values, lanes, ticket, alignment)
    check_collisions(g, step, address, size, values, lanes)
