"""Numbering global stores, so that a fence can order them."""

from __future__ import annotations

from convgen.backends.intel.sim.state import ThreadGroup


def new_store(g: ThreadGroup) -> int:
    """Number a global store; a fence orders it later."""
    g.env.tickets += 1
    if g.env.waves > 1:
        g.order += 1
        g.stores.append((g.order, g.env.tickets))
    return g.env.tickets
