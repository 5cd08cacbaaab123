"""Active lanes of an instruction: channel enables, predicates, conditional flags."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convgen.backends.intel.sim.decode import Instruction
from convgen.backends.intel.sim.register_file import byte_bits
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.intel.sim.step import Context, unsupported
from convgen.backends.sim.wave_arrays import Array, Bools
from convgen.ir.record import evolve

Lanes = Callable[[ThreadGroup], "Bools | None"]


def flag_place(instruction: Instruction) -> int:
    """Return the first flag bit of an instruction's lanes."""
    reg, half = instruction.flag
    return reg * 32 + half * 16 + instruction.offset


def flag_bits(instruction: Instruction, context: Context) -> int:
    """Return the flag bytes that an instruction's lanes lie in."""
    first = flag_place(instruction)
    start, end = first // 8, (first + instruction.exec_size + 7) // 8
    return byte_bits(context.layout.flag + start, end - start)


def check_flag(instruction: Instruction, context: Context) -> None:
    """Report a flag register that the platform does not have."""
    if instruction.flag[0] >= context.platform.flags:
        context.fault("register-range", f"f{instruction.flag[0]}; there are {context.platform.flags} flag registers")


def enabled(instruction: Instruction) -> Lanes:
    """Return a function that gives the running lanes, before predication; None if all run."""
    if instruction.window is not None:
        return _windowed(instruction, instruction.window)
    if instruction.no_mask:
        return lambda g: None
    first, end = instruction.offset, instruction.offset + instruction.exec_size

    def lanes(g: ThreadGroup) -> Bools | None:
        return None if g.on >= end else g.mask[:, first:end]

    return lanes


def _windowed(instruction: Instruction, window: tuple[int, int]) -> Lanes:
    """Return the running lanes of one pass."""
    every = enabled(evolve(instruction, window=None))
    number = np.arange(instruction.exec_size)
    inside = (number >= window[0]) & (number < window[1])

    def lanes(g: ThreadGroup) -> Bools | None:
        running = every(g)
        return np.broadcast_to(inside, (g.count, len(inside))) if running is None else running & inside

    return lanes


def predicate(instruction: Instruction) -> Callable[[ThreadGroup], Bools]:
    """Return the predicate's value by lane."""
    first, count = flag_place(instruction), instruction.exec_size
    inverted, function = instruction.predicate == "-", instruction.predicate_function
    if (function and not function.startswith(("any", "all"))) or function.endswith("v"):
        raise unsupported(instruction, f"predicate .{function}")
    width = int("".join(c for c in function if c.isdigit()) or count)
    join = np.logical_or if function.startswith("any") else np.logical_and

    def value(g: ThreadGroup) -> Bools:
        bits: Bools = g.flags[:, first : first + count]
        if function:
            groups = join.reduce(bits.reshape(g.count, -1, min(width, count)), axis=2)
            bits = np.repeat(groups, min(width, count), axis=1)
        return ~bits if inverted else bits

    return value


def undefined_flags(instruction: Instruction, g: ThreadGroup, lanes: Bools | None) -> Bools | None:
    """Return the lanes among some whose flag is undefined."""
    if not g.flags_dirty:
        return None
    first = flag_place(instruction)
    bad: Bools = g.flag_poison[:, first : first + instruction.exec_size]
    if instruction.predicate_function:
        bad = np.broadcast_to(bad.any(axis=1, keepdims=True), bad.shape)
    if lanes is not None:
        bad = bad & lanes
    return bad if bad.any() else None


def active(instruction: Instruction, context: Context) -> Lanes:
    """Return a function that gives the active lanes: running, and selected by the predicate, if there is one.

    An undefined predicate is reported.
    """
    on = enabled(instruction)
    if not instruction.predicate:
        return on
    check_flag(instruction, context)
    chosen = predicate(instruction)

    def lanes(g: ThreadGroup) -> Bools | None:
        running = on(g)
        if g.flags_dirty:
            bad = undefined_flags(instruction, g, running)
            if bad is not None:
                g.env.reporter.at_first("poison", "the predicate is undefined", instruction, g, bad)
        selected = chosen(g)
        return selected if running is None else selected & running

    return lanes


def set_flags(
    instruction: Instruction, g: ThreadGroup, values: Array, lanes: Bools | None, undefined: Bools | None
) -> None:
    """Write the condition of each acting lane."""
    first, count = flag_place(instruction), instruction.exec_size
    place = g.flags[:, first : first + count]
    if lanes is None:
        place[...] = values
    else:
        np.copyto(place, values, where=lanes)
    if undefined is None and not g.flags_dirty:
        return
    marks = g.flag_poison[:, first : first + count]
    value = np.zeros(1, np.bool_) if undefined is None else undefined
    if lanes is None:
        marks[...] = value
    else:
        np.copyto(marks, value, where=lanes)
    g.flags_dirty = bool(g.flag_poison.any())
