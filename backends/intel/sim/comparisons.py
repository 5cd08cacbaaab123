"""Comparisons and selections: cmp, sel, csel."""

from __future__ import annotations

import numpy as np

from convgen.backends.intel.sim import alu_table as table
from convgen.backends.intel.sim.alu_steps import condition_of, float_type, parts_of, union
from convgen.backends.intel.sim.decode import SIZES, Instruction
from convgen.backends.intel.sim.execution_masks import (
    active,
    check_flag,
    enabled,
    predicate,
    set_flags,
    undefined_flags,
)
from convgen.backends.intel.sim.operands import VIEWS
from convgen.backends.intel.sim.results import convert
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.intel.sim.step import Context, Step, unsupported
from convgen.backends.sim.wave_arrays import Array, Bools, united


def select(instruction: Instruction, context: Context) -> Step:
    """Compile sel: a source by predicate, or with a condition the smaller or larger one (a number beats a NaN)."""
    sources, destination, step = parts_of(instruction, context)
    enabled_lanes = enabled(instruction)
    kind = float_type(instruction)
    unsigned_long = all(s.type == "uq" for s in sources)
    compare = None if not instruction.condition else table.COMPARE[instruction.condition]
    if compare is None:
        check_flag(instruction, context)
    chosen = predicate(instruction) if compare is None else None

    def run(g: ThreadGroup) -> None:
        on = enabled_lanes(g)
        a, b = _to_common_type([item.get(g) for item in sources], kind)
        bad_a, bad_b = sources[0].undefined(g), sources[1].undefined(g)
        if chosen is not None:
            bad = undefined_flags(instruction, g, on)
            if bad is not None:
                g.env.reporter.at_first("poison", "the predicate is undefined", instruction, g, bad)
            first = chosen(g)
            undefined = _pick(first, bad_a, bad_b)
        else:
            assert compare is not None
            first = compare(a.view(np.uint64), b.view(np.uint64)) if unsigned_long else compare(a, b)
            if kind:
                first = (first & ~np.isnan(a)) | np.isnan(b)
            undefined = united((bad_a, bad_b))
        data = convert(np.where(first, a, b), destination.type, g.control, saturate=instruction.saturates)
        destination.put(g, data, on, undefined)

    return step.running(run)


def _pick(first: Bools, a: Bools | None, b: Bools | None) -> Bools | None:
    if a is None and b is None:
        return None
    none = np.zeros((1, 1), np.bool_)
    return np.where(first, none if a is None else a, none if b is None else b)


def _to_common_type(values: list[Array], kind: str) -> list[Array]:
    """Convert numbers to one working type."""
    if not kind:
        return values
    dtype = np.float64 if kind == "df" else np.float32
    return [value if value.dtype == dtype else value.astype(dtype) for value in values]


def compare(instruction: Instruction, context: Context) -> Step:
    """Compile cmp: set the flags of active lanes, and the destination to all ones or zeros."""
    sources, destination, step = parts_of(instruction, context)
    active_lanes = active(instruction, context)
    kind = float_type(instruction)
    unsigned_long = all(s.type == "uq" for s in sources)
    unordered = instruction.condition in ("un", "uo")
    if not unordered and instruction.condition not in table.COMPARE:
        raise unsupported(instruction, f"condition {instruction.condition or '(none)'}")
    compare = np.equal if unordered else table.COMPARE[instruction.condition]

    def run(g: ThreadGroup) -> None:
        on = active_lanes(g)
        a, b = _to_common_type([item.get(g) for item in sources], kind)
        undefined = union(sources, g)
        if unordered:
            truth = np.isnan(a) | np.isnan(b)
        elif unsigned_long:
            truth = compare(a.view(np.uint64), b.view(np.uint64))
        else:
            truth = compare(a, b)
        set_flags(instruction, g, truth, on, undefined)
        if destination.bits:
            ones = -truth.astype(np.int64)
            size = SIZES[destination.type]
            destination.put(g, ones.astype(f"i{size}").view(VIEWS[destination.type]), on, undefined)

    return step.running(run)


def choose(instruction: Instruction, context: Context) -> Step:
    """Compile csel: the first source in lanes whose third source compares with zero as asked, else the second."""
    sources, destination, step = parts_of(instruction, context)
    enabled_lanes = enabled(instruction)
    condition = condition_of(instruction, context)
    if condition is None:
        raise unsupported(instruction, "no condition")

    def run(g: ThreadGroup) -> None:
        a, b, c = (item.get(g) for item in sources)
        data = convert(np.where(condition(c, 0), a, b), destination.type, g.control, saturate=instruction.saturates)
        destination.put(g, data, enabled_lanes(g), union(sources, g))

    return step.running(run)
