"""Atomic operations on global and local memory; lanes with equal addresses are combined in lane order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from convgen.backends.intel.sim.gateway import note_local
from convgen.backends.intel.sim.late import read_before_store
from convgen.backends.intel.sim.scopes import begin_atomic
from convgen.backends.intel.sim.slm import check_own_loads, places
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.intel.sim.step import Step
from convgen.backends.sim.combine import INTEGER, Combine, combine_lanes
from convgen.backends.sim.global_access import check_stores, is_writable, parts_of
from convgen.backends.sim.wave_arrays import U64, Array, Bools


def _float(function: Combine) -> Combine:
    def apply(old: Array, new: Array) -> Array:
        kind = f"f{old.dtype.itemsize}"
        return function(old.view(kind), new.view(kind)).view(old.dtype)

    return apply


#: Name of an operation -> function of the old value and the operand.
COMBINATIONS: Mapping[str, Combine] = {
    **{name: INTEGER[name] for name in "add sub swap umin umax smin smax and or xor".split()},
    "increment": lambda old, new: old + old.dtype.type(1),
    "decrement": lambda old, new: old - old.dtype.type(1),
    "load": lambda old, new: old,
    "compare": lambda old, new: new,
    "add_f": _float(np.add),
    "sub_f": _float(np.subtract),
    "min_f": _float(np.fmin),
    "max_f": _float(np.fmax),
}


def atomic(
    g: ThreadGroup,
    step: Step,
    name: str,
    address: U64,
    size: int,
    values: list[Array],
    lanes: Bools | None,
    *,
    local: bool,
) -> Array:
    """Do an atomic operation; return the old values [threads, lanes]. A compare takes (expected, new)."""
    kind = f"u{size}"
    function = COMBINATIONS[name]
    expected = values[0].astype(kind) if name == "compare" else None
    operand = values[-1].astype(kind) if values else np.zeros(address.shape, kind)
    if local:
        place, acting = _note_local_update(g, step, address, size, lanes)
        return combine_lanes(g.env.local.data.view(kind), place // size, operand, acting, function, expected)
    read_before_store(g, address, size, lanes, local=False)
    old = np.zeros(address.shape, kind)
    ticket = g.env.ticket()
    for allocation, offset, some in parts_of(g, step, address, size, lanes, size):
        if not is_writable(g, step, allocation, some):
            continue
        acting = np.ones(address.shape, np.bool_) if some is None else some
        check_stores(g, step, allocation, offset, size, some, "atomically updates")
        kind_of = "load" if name == "load" else "update"
        begin_atomic(g, step, allocation, offset, size, acting, kind_of)
        allocation.touch(offset[acting], size)
        memory = allocation.data[: len(allocation.data) // size * size].view(kind)
        found = combine_lanes(memory, offset // size, operand, acting, function, expected)
        old = np.where(acting, found, old)
        waves = np.broadcast_to(g.wave_ids()[:, None], acting.shape)[acting]
        allocation.mark_update(offset[acting], size, ticket, waves)
        allocation.define(offset[acting], size)
    return old


def _note_local_update(g: ThreadGroup, step: Step, address: U64, size: int, lanes: Bools | None) -> tuple[Array, Bools]:
    """Check and record an atomic operation on local memory; return flat byte offsets and the lanes in bounds."""
    place, lanes = places(g, step, address, size, size, lanes)
    acting = np.ones(address.shape, np.bool_) if lanes is None else lanes
    slm, where = g.env.local, np.argwhere(acting)
    units = slm.units(place, size)[:, acting]
    mine = np.broadcast_to(g.stamp, acting.shape)[acting]
    check_own_loads(g, step, where[:, 0], units, address, size, acting)
    if slm.note_update(g, step, units, mine, where) is not None:
        finding = "the memory of an atomic operation is undefined"
        g.env.reporter.add("poison", finding, step.instruction, g, int(where[0][0]))
    note_local(g, step, "update", where[:, 0], units)
    return place, acting
