"""Arithmetic, logic, moves, comparisons and math: the instructions that compute lane by lane."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convgen.backends.intel.sim import alu_table as table
from convgen.backends.intel.sim.alu_steps import condition_of, float_type, parts_of, union
from convgen.backends.intel.sim.areas import Operation
from convgen.backends.intel.sim.comparisons import choose, compare, select
from convgen.backends.intel.sim.curves import CURVES
from convgen.backends.intel.sim.decode import SIZES, Instruction, Region
from convgen.backends.intel.sim.execution_masks import active, set_flags
from convgen.backends.intel.sim.operands import FLOATS, KEEPS_DENORMALS, VIEWS, Reader, is_signed, working
from convgen.backends.intel.sim.register_file import byte_bits
from convgen.backends.intel.sim.results import Writer, convert, target
from convgen.backends.intel.sim.rounding import ROUNDED, ROUNDING, redirect
from convgen.backends.intel.sim.split_execution import KIND, Split, overlapped, split_of
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.intel.sim.step import Context, Run, Step, unsupported
from convgen.backends.sim.wave_arrays import Array, Bools, any_along, united
from convgen.ir.record import evolve

SHIFTS = frozenset(("shl", "shr", "asr", "rol", "ror"))
CARRY = frozenset(("addc", "subb"))
HIGH = frozenset(("mach", "macl"))
OVERFLOWING = frozenset(("add", "add3", "mad", "mul", "shl"))  #: integer operations that may overflow
_ONE = Region(0, 0, 1)


def compile_alu(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of an instruction that computes lane by lane; None for all others."""
    step = _compile(instruction, context)
    if step is None:
        return None
    op = Operation.of(instruction, context)
    split = split_of(op)
    if split is not None:
        step.run = _in_two_passes(op, split)
    return step


def _in_two_passes(op: Operation, split: Split) -> Run:
    """Return the function of a compressed instruction whose second pass may read results of the first."""
    windows = ((0, split.lane), (split.lane, op.lanes))
    silent = evolve(op.context, faults=[])  # faults of the whole instruction are recorded already
    steps = [_compile(evolve(op.instruction, window=window), silent) for window in windows]
    runs = [step.run for step in steps if step is not None]

    def run(g: ThreadGroup) -> None:
        for number in split.indirect:
            bad = any_along(overlapped(op, split, number, g), 1)
            g.env.reporter.at_first(KIND, split.message((number,)), op.instruction, g, bad)
        for one in runs:
            one(g)

    return run


def _compile(instruction: Instruction, context: Context) -> Step | None:
    op = instruction.op
    if op in HIGH or op in CARRY:
        return _accumulating(instruction, context)
    if op == "sel":
        return select(instruction, context)
    if op in ("cmp", "cmpn"):
        return compare(instruction, context)
    if op == "csel":
        return choose(instruction, context)
    if op == "mov" and _is_raw(instruction):
        return _copy(instruction, context)
    function = _function(instruction, context)
    return None if function is None else _compute(instruction, context, function)


def _compute(instruction: Instruction, context: Context, function: table.Function) -> Step:
    """Compile an instruction that computes `function` in each lane."""
    sources, destination, step = parts_of(instruction, context)
    active_lanes = active(instruction, context)
    compute = _computing(instruction, sources, function)
    overflow = instruction.condition == "ov"
    if overflow and not _may_carry(instruction):
        raise unsupported(instruction, "overflow of other than a sum of dwords without signs")
    condition = None if overflow else condition_of(instruction, context)
    slots = wide_slots(instruction, instruction.exec_size, context)
    directed = instruction.op in ROUNDED and destination.type in ("f", "df", "hf")
    may_overflow = instruction.op in OVERFLOWING and destination.type not in FLOATS

    def run(g: ThreadGroup) -> None:
        on = active_lanes(g)
        result = compute(g)
        undefined = union(sources, g)
        data = convert(result, destination.type, g.control, saturate=instruction.saturates)
        if directed and g.control & ROUNDING:
            data = redirect(instruction.op, [item.get(g) for item in sources], data, g.control & ROUNDING)
        if overflow:
            set_flags(instruction, g, result != working(destination.type, data), on, undefined)
        if condition is not None:
            stored = working(destination.type, data)
            # Sums and shifts that overflow are wider before they are stored (C for Media, `_gfx_sllv_i32`), and no
            # manual says which of the two a condition sees: then the flag is undefined.
            unsure = united((undefined, result != stored)) if may_overflow else undefined
            set_flags(instruction, g, condition(stored, 0), on, unsure)
        destination.put(g, data, on, undefined)
        if destination.wide:
            keep_wide(g, slots, result, on)

    return step.running(run)


def _may_carry(instruction: Instruction) -> bool:
    """Return whether an instruction adds unsigned dwords, the only overflow that is simulated (IGC, ADD3O.md)."""
    operands = (instruction.dst, *instruction.sources)
    plain = all(o is not None and o.type == "ud" and not (o.negate or o.absolute) for o in operands)
    return plain and instruction.op in ("add", "add3") and not instruction.saturates


def _is_raw(instruction: Instruction) -> bool:
    """Return whether a move copies bits."""
    dst, (value,) = instruction.dst, instruction.sources
    if dst is None or dst.kind == "null" or dst.saturate or instruction.condition or value.kind != "reg":
        return False
    same = dst.type == value.type or not {dst.type, value.type} & FLOATS
    plain = not (value.negate or value.absolute or value.file in ("acc", "ce") or dst.file in ("acc", "cr"))
    return same and plain and dst.size == value.size


def _copy(instruction: Instruction, context: Context) -> Step:
    """Compile a move of bits: undefined bytes stay undefined; floating-point denormals are flushed."""
    sources, destination, step = parts_of(instruction, context)
    active_lanes = active(instruction, context)
    raw, marks, values = sources[0].raw, sources[0].marks, sources[0].get
    keeps = KEEPS_DENORMALS.get(destination.type, 0)
    if raw is None or marks is None:  # the source is out of range
        return step
    view = VIEWS[destination.type]

    def run(g: ThreadGroup) -> None:
        on = active_lanes(g)
        if keeps and not g.control & keeps:
            data = convert(values(g), destination.type, g.control, saturate=False)
        else:
            data = raw(g).view(view)
        destination.put(g, data, on, marks(g))

    return step.running(run)


def _computing(instruction: Instruction, sources: list[Reader], function: table.Function) -> Callable[..., Array]:
    """Return a function that fetches the sources, converts them to one working type, and computes."""
    kind = float_type(instruction)
    dtype = {"": np.int64, "df": np.float64}.get(kind, np.float32)
    mixed = (kind and any(s.type not in FLOATS for s in sources)) or kind == "df"
    gets = [item.get for item in sources]
    if mixed:
        return lambda g: function(*(get(g).astype(dtype) for get in gets))
    if len(gets) == 1:
        (first,) = gets
        return lambda g: function(first(g))
    if len(gets) == 2:
        one, two = gets
        return lambda g: function(one(g), two(g))
    return lambda g: function(*(get(g) for get in gets))


def _function(instruction: Instruction, context: Context) -> table.Function | None:
    """Return the function that an instruction computes; None for instructions of other modules."""
    op, kind = instruction.op, float_type(instruction)
    if op in SHIFTS:
        return _shift(instruction)
    if op == "bfn":
        return table.boolean(int(instruction.sub, 0))
    if op == "bfe":
        signed = is_signed(instruction.sources[2].type)
        return lambda width, offset, value: table.extract(width, offset, value, signed=signed)
    if op == "fbh":
        return table.first_high_signed if is_signed(instruction.sources[0].type) else table.first_high_unsigned
    if op == "dp4a":
        return table.dot4((is_signed(instruction.sources[1].type), is_signed(instruction.sources[2].type)))
    if op == "math":
        return _math(instruction, context)
    if op in ("mad", "madm") and kind:
        return table.FUSED[kind]
    if (op == "mul" and kind in ("f", "df")) or not kind:
        return (table.FLOAT if kind else table.INTEGER).get(op)
    return table.FLOAT.get(op)


def _math(instruction: Instruction, context: Context) -> table.Function:
    """Return a function of the math unit; with a seed its results err within the documented bound."""
    curve = CURVES.get(instruction.sub)
    if curve is None and instruction.sub not in table.MATH:
        raise unsupported(instruction, "math function")
    if curve is None:
        return table.MATH[instruction.sub]
    assert instruction.dst is not None
    seed = context.rules.approximate
    return curve if seed is None else curve.within(seed, instruction.dst.type)


def _shift(instruction: Instruction) -> table.Function:
    """Return a shift or rotation: on 8 bytes if value or result has 8, else on 4; rotations on the wider of the two."""
    op, value = instruction.op, instruction.sources[0]
    assert instruction.dst is not None
    least = 1 if op in ("rol", "ror") else 4
    size = max(SIZES[value.type], SIZES[instruction.dst.type], least)
    wrap = 8 * size - 1
    narrow = min(size, 4) if SIZES[value.type] < 8 and not is_signed(value.type) else size
    if op == "shl":
        return lambda a, n: a << (n & wrap)
    if op == "asr":
        return lambda a, n: a >> (n & wrap)
    if op == "shr":
        return lambda a, n: table.shift_right(a, n & wrap, narrow)
    if op == "rol":
        return lambda a, n: table.rotate_left(a, n & wrap, size)
    return lambda a, n: table.rotate_left(a, (8 * size - (n & wrap)) % (8 * size), size)


def wide_slots(instruction: Instruction, lanes: int, context: Context) -> slice:
    """Return the slots of `wide` of an accumulator destination, else those of acc0."""
    dst, grf = instruction.dst, context.layout.grf
    first = (dst.reg * grf + dst.sub * 4) // 4 if dst is not None and dst.file == "acc" else 0
    return slice(first, first + lanes)


def keep_wide(g: ThreadGroup, slots: slice, value: Array, on: Bools | None) -> None:
    """Keep all bits of an integer accumulator."""
    if on is None:
        g.wide[:, slots] = value
    else:
        np.copyto(g.wide[:, slots], value, where=on)


def _accumulating(instruction: Instruction, context: Context) -> Step:
    """Compile addc, subb, mach and macl, which read or write acc0 without naming it."""
    op, platform, lanes = instruction.op, context.platform, instruction.exec_size
    sources, destination, step = parts_of(instruction, context)
    keeps = not platform.acc_wr_en or "AccWrEn" in instruction.options
    if op in CARRY and not keeps:
        context.fault("acc-wr-en", f"{op} without AccWrEn loses the carry")
    active_lanes = active(instruction, context)
    acc = byte_bits(context.layout.acc, 4 * lanes)
    if op in HIGH:
        step.reads |= acc
    if keeps:
        step.writes |= acc
    low = op == "macl" or (op == "mach" and platform.mach_low and "AccWrEn" not in instruction.options)
    slots = slice(0, lanes)
    implied = _implicit(instruction, context)
    size = max(SIZES[o.type] for o in instruction.sources)
    condition = condition_of(instruction, context)

    def run(g: ThreadGroup) -> None:
        on = active_lanes(g)
        a, b = (item.get(g) for item in sources)
        undefined = union(sources, g)
        if op in HIGH:
            undefined = united((undefined, _undefined_acc0(g, lanes)))
            total = g.wide[:, slots] + ((a * (b >> 16)) << 16)
            result, accumulated = (total if low else total >> 32), total
        else:
            result, accumulated = _with_carry(op, table.unsigned(a, size), table.unsigned(b, size), size)
        data = convert(result, destination.type, g.control, saturate=False)
        if condition is not None:
            set_flags(instruction, g, condition(working(destination.type, data), 0), on, undefined)
        destination.put(g, data, on, undefined)
        if keeps:
            implied.put(g, convert(accumulated, "ud", g.control, saturate=False), on, undefined)
            keep_wide(g, slots, accumulated, on)

    return step.running(run)


def _undefined_acc0(g: ThreadGroup, lanes: int) -> Bools | None:
    """Return flags of undefined dwords among the first of acc0; None if all are defined."""
    acc = g.layout.acc
    if not g.dirty & g.layout.units(acc, 4 * lanes):
        return None
    bad: Bools = g.poisons[4][:, acc // 4 : acc // 4 + lanes] != 0
    return bad if bad.any() else None


def _with_carry(op: str, a: Array, b: Array, size: int) -> tuple[Array, Array]:
    """Return the result of addc or subb on unsigned numbers of `size` bytes, and its carry or borrow."""
    if op == "addc":
        total = a + b
        return total, total >> (8 * size)
    return a - b, (a < b).astype(np.int64)


def _implicit(instruction: Instruction, context: Context) -> Writer:
    """Return acc0 as a destination of 32-bit integers."""
    assert instruction.dst is not None
    operand = evolve(instruction.dst, kind="reg", file="acc", reg=0, sub=0, type="ud", region=_ONE, saturate=False)
    return target(operand, instruction.exec_size, instruction, context)
