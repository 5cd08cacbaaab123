"""Payloads of messages in whole registers: addresses, stored data, loaded data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convgen.backends.intel.sim.decode import Instruction
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.intel.sim.step import Context
from convgen.backends.sim.wave_arrays import Array, Bools


def registers(size: int, count: int, context: Context) -> int:
    """Return the registers that `count` elements of `size` bytes take."""
    return -(-size * count // context.layout.grf)


def check_range(context: Context, payload: str, reg: int, count: int) -> bool:
    """Report a payload that leaves the register file."""
    if reg >= 0 and reg + count > context.layout.registers:
        last = context.layout.registers - 1
        context.fault("register-range", f"the {payload} r{reg}..r{reg + count - 1} reaches beyond r{last}")
        return False
    return True


def check_length(context: Context, payload: str, registers: int, expected: int) -> None:
    """Report a payload length that does not fit the message."""
    if registers != expected:
        context.fault("message-length", f"{payload} of {registers} registers; the message has {expected}")


def elements(g: ThreadGroup, reg: int, size: int, count: int) -> Array:
    """Return `count` unsigned numbers of `size` bytes from a register on [threads, count]."""
    first = reg * g.layout.grf // size
    return g.views[f"u{size}"][:, first : first + count]


def undefined(g: ThreadGroup, reg: int, size: int, count: int) -> Bools | None:
    """Return flags of undefined numbers among `count` of `size` bytes from a register on; None if all are defined."""
    start = reg * g.layout.grf
    if not g.dirty & g.layout.units(start, size * count):
        return None
    first = start // size
    found: Bools = g.poisons[size][:, first : first + count] != 0
    return found if found.any() else None


def report_undefined(
    g: ThreadGroup, instruction: Instruction, bad: Bools | None, lanes: Bools | None, name: str
) -> None:
    """Report undefined numbers in active lanes; `name` is theirs in the finding."""
    if bad is None:
        return
    if lanes is not None:
        bad = bad & lanes
    if bad.any():
        g.env.reporter.at_first("poison", f"{name} is undefined", instruction, g, bad)


#: (group, register, size, values, lanes, undefined): writes what a message brings.
Landing = Callable[[ThreadGroup, int, int, Array, "Bools | None", "Bools | None"], None]


def fill(g: ThreadGroup, reg: int, size: int, values: Array, lanes: Bools | None, bad: Bools | None = None) -> None:
    """Write numbers [threads, count] from a register on; leave poison as it is, whatever `bad` says (a `Landing`)."""
    first = reg * g.layout.grf // size
    place = g.views[f"u{size}"][:, first : first + values.shape[1]]
    if lanes is None:
        place[...] = values
    else:
        np.copyto(place, values, where=lanes)


def land(g: ThreadGroup, reg: int, size: int, values: Array, lanes: Bools | None, bad: Bools | None) -> None:
    """Write numbers [threads, count] from a register on, and their poison; idle lanes keep their values."""
    count = values.shape[1]
    first = reg * g.layout.grf // size
    fill(g, reg, size, values, lanes)
    units = g.layout.units(reg * g.layout.grf, size * count)
    if bad is None and not g.dirty & units:
        return
    marks = g.poisons[size][:, first : first + count]
    ones = ~marks.dtype.type(0)
    value = np.zeros(1, marks.dtype) if bad is None else np.where(bad, ones, marks.dtype.type(0))
    if lanes is None:
        marks[...] = value
    else:
        np.copyto(marks, value, where=lanes)
    if bad is None:
        g.clean(units)
    else:
        g.dirty |= units


def mark_undefined(g: ThreadGroup, start: int, end: int) -> None:
    """Mark bytes of whole registers as undefined that a message returns without defining them."""
    if start < end:
        g.poison[:, start:end] = 1
        g.dirty |= g.layout.units(start, end - start)
