"""Arithmetic, logic, moves, comparisons and math: everything that computes lane by lane."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from convgen.backends.intel.sim import alu_table as table
from convgen.backends.intel.sim.areas import Operation
from convgen.backends.intel.sim.decode import SIZES, Instruction, Region
from convgen.backends.intel.sim.masks import (
    active,
    check_flag,
    enabled,
    flag_bits,
    predicate,
    set_flags,
    undefined_flags,
)
from convgen.backends.intel.sim.operands import (
    FLOATS,
    VIEWS,
    Reader,
    Writer,
    address_bits,
    convert,
    is_signed,
    source,
    target,
    working,
)
from convgen.backends.intel.sim.passes import KIND, Passes, overlapped, passes_of
from convgen.backends.intel.sim.pipes import pipe_of
from convgen.backends.intel.sim.registers import byte_bits
from convgen.backends.intel.sim.rounding import ROUNDED, ROUNDING, redirect
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.intel.sim.step import Context, Run, Step, unsupported
from convgen.backends.sim.arrays import Array, Bools, any_along

LOGIC = frozenset(("and", "or", "xor", "not"))
SHIFTS = frozenset(("shl", "shr", "asr", "rol", "ror"))
CARRY = frozenset(("addc", "subb"))
HIGH = frozenset(("mach", "macl"))
_ONE = Region(0, 0, 1)


def compile_alu(instruction: Instruction, context: Context) -> Step | None:
    """A step for an instruction that computes, None when it is none."""
    step = _compile(instruction, context)
    if step is None:
        return None
    op = Operation.of(instruction, context)
    passes = passes_of(op)
    if passes is not None:
        step.run = _in_passes(op, passes)
    return step


def _in_passes(op: Operation, passes: Passes) -> Run:
    """What an instruction does whose second pass may read what the first has written."""
    windows = ((0, passes.split), (passes.split, op.lanes))
    silent = attrs.evolve(op.context, faults=[])  # what the whole has broken is noted already
    steps = [_compile(attrs.evolve(op.instruction, window=window), silent) for window in windows]
    runs = [step.run for step in steps if step is not None]

    def run(g: ThreadGroup) -> None:
        for number in passes.indirect:
            bad = any_along(overlapped(op, passes, number, g), 1)
            g.env.reporter.at_first(KIND, passes.message((number,)), op.instruction, g, bad)
        for one in runs:
            one(g)

    return run


def _compile(instruction: Instruction, context: Context) -> Step | None:
    op = instruction.op
    if op in HIGH or op in CARRY:
        return _accumulating(instruction, context)
    if op == "sel":
        return _select(instruction, context)
    if op in ("cmp", "cmpn"):
        return _compare(instruction, context)
    if op == "csel":
        return _choose(instruction, context)
    if op == "mov" and _is_raw(instruction):
        return _copy(instruction, context)
    function = _function(instruction)
    if function is None:
        return None
    sources = operands(instruction, context)
    goal = target(instruction.dst, instruction.exec_size, instruction, context)
    acts = active(instruction, context)
    step = new_step(instruction, context, sources, goal)
    compute = _computing(instruction, sources, function)
    saturate = instruction.dst is not None and instruction.dst.saturate
    condition = condition_of(instruction, context)
    slots = wide_slots(instruction, instruction.exec_size, context)
    directed = instruction.op in ROUNDED and goal.type in ("f", "df", "hf")

    def run(g: ThreadGroup) -> None:
        on = acts(g)
        result = compute(g)
        undefined = union(sources, g)
        data = convert(result, goal.type, g.control, saturate=saturate)
        if directed and g.control & ROUNDING:
            data = redirect(instruction.op, [item.get(g) for item in sources], data, g.control & ROUNDING)
        if condition is not None:
            set_flags(instruction, g, condition(working(goal.type, data), 0), on, undefined)
        goal.put(g, data, on, undefined)
        if goal.wide:
            keep_wide(g, slots, result, on)

    step.run = run
    return step


def _is_raw(instruction: Instruction) -> bool:
    """Whether a move copies bits."""
    dst, (value,) = instruction.dst, instruction.sources
    if dst is None or dst.kind == "null" or dst.saturate or instruction.condition or value.kind != "reg":
        return False
    same = dst.type == value.type or not {dst.type, value.type} & FLOATS
    plain = not (value.negate or value.absolute or value.file in ("acc", "ce") or dst.file in ("acc", "cr"))
    return same and plain and dst.size == value.size


def _copy(instruction: Instruction, context: Context) -> Step:
    """A move of bits: what is undefined moves along byte by byte; denormals of floating-point types flush."""
    sources = operands(instruction, context)
    goal = target(instruction.dst, instruction.exec_size, instruction, context)
    acts = active(instruction, context)
    step = new_step(instruction, context, sources, goal)
    raw, marks, values = sources[0].raw, sources[0].marks, sources[0].get
    keeps = {"df": 1 << 6, "f": 1 << 7, "hf": 1 << 10}.get(goal.type, 0)
    if raw is None or marks is None:  # the source is out of range
        return step
    view = VIEWS[goal.type]

    def run(g: ThreadGroup) -> None:
        on = acts(g)
        if keeps and not g.control & keeps:
            data = convert(values(g), goal.type, g.control, saturate=False)
        else:
            data = raw(g).view(view)
        goal.put(g, data, on, marks(g))

    step.run = run
    return step


def operands(instruction: Instruction, context: Context) -> list[Reader]:
    """The sources of an instruction."""
    logical = instruction.op in LOGIC or instruction.op == "bfn"
    return [source(o, instruction.exec_size, instruction, context, logical=logical) for o in instruction.sources]


def new_step(instruction: Instruction, context: Context, sources: list[Reader], goal: Writer) -> Step:
    """A step with the registers that an instruction touches; `run` is filled in later."""
    reads, writes = context.layout.control_bits, goal.bits
    for item in sources:
        reads |= item.bits
    if instruction.predicate or (instruction.op == "sel" and not instruction.condition):
        reads |= flag_bits(instruction, context)
    if instruction.condition and instruction.op not in ("sel", "csel"):
        check_flag(instruction, context)
        writes |= flag_bits(instruction, context)
    if instruction.dst is not None and instruction.dst.kind == "indirect":
        reads |= address_bits(instruction.dst, 1, context)
    pipe = pipe_of(instruction, context.platform)
    kind = "math" if instruction.op == "math" else "alu"
    return Step(instruction, kind, lambda g: None, pipe=pipe, reads=reads, writes=writes)


def union(sources: list[Reader], g: ThreadGroup) -> Bools | None:
    """The lanes that any source leaves undefined."""
    found: Bools | None = None
    for item in sources:
        bad = item.undefined(g)
        if bad is not None:
            found = bad if found is None else found | bad
    return found


def condition_of(instruction: Instruction, context: Context) -> Callable[[Array, Array | int], Array] | None:
    """The comparison with zero that a conditional modifier asks for."""
    if not instruction.condition:
        return None
    check_flag(instruction, context)
    if instruction.condition == "eo":
        return lambda value, zero: np.ones(value.shape, np.bool_)
    if instruction.condition in ("un", "uo"):
        return lambda value, zero: np.isnan(value)
    if instruction.condition not in table.COMPARE:
        raise unsupported(instruction, f"condition {instruction.condition}")
    return table.COMPARE[instruction.condition]


def float_type(instruction: Instruction) -> str:
    """The floating-point type that an instruction computes in, "" for integers."""
    kinds = {o.type for o in instruction.sources if o.type in FLOATS}
    for name in ("df", "f", "vf", "hf", "bf"):
        if name in kinds:
            return "f" if name == "vf" else name
    return ""


def _computing(instruction: Instruction, sources: list[Reader], function: table.Function) -> Callable[..., Array]:
    """Fetch, bring to one working type, compute."""
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


def _function(instruction: Instruction) -> table.Function | None:
    """What an instruction computes, None when it is not one of these."""
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
        if instruction.sub not in table.MATH:
            raise unsupported(instruction, "math function")
        return table.MATH[instruction.sub]
    if op in ("mad", "madm") and kind:
        return table.FUSED[kind]
    if (op == "mul" and kind in ("f", "df")) or not kind:
        return (table.FLOAT if kind else table.INTEGER).get(op)
    return table.FLOAT.get(op)


def _shift(instruction: Instruction) -> table.Function:
    """Shifts work on 8 bytes when the value or the result has them, else on 4."""
    op, value = instruction.op, instruction.sources[0]
    assert instruction.dst is not None
    size = max(SIZES[value.type], SIZES[instruction.dst.type], 4)
    size = max(SIZES[value.type], SIZES[instruction.dst.type]) if op in ("rol", "ror") else size
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
    """The wide accumulator slots of a destination, or those of acc0 for an implicit one."""
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
    """addc, subb, mach, macl: they read or write acc0 without naming it."""
    op, platform, lanes = instruction.op, context.platform, instruction.exec_size
    sources = operands(instruction, context)
    goal = target(instruction.dst, lanes, instruction, context)
    keeps = not platform.acc_wr_en or "AccWrEn" in instruction.options
    if op in CARRY and not keeps:
        context.fault("acc-wr-en", f"{op} without AccWrEn loses the carry")
    acts = active(instruction, context)
    step = new_step(instruction, context, sources, goal)
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
        on = acts(g)
        a, b = (item.get(g) for item in sources)
        undefined = union(sources, g)
        if op in HIGH:
            bad = acc_undefined(g)
            if bad is not None:
                undefined = bad if undefined is None else undefined | bad
            total = g.wide[:, slots] + ((a * (b >> 16)) << 16)
            result, kept = (total if low else total >> 32), total
        elif op == "addc":
            result = table.unsigned(a, size) + table.unsigned(b, size)
            kept = result >> (8 * size)
        else:
            a, b = table.unsigned(a, size), table.unsigned(b, size)
            result, kept = a - b, (a < b).astype(np.int64)
        data = convert(result, goal.type, g.control, saturate=False)
        if condition is not None:
            set_flags(instruction, g, condition(working(goal.type, data), 0), on, undefined)
        goal.put(g, data, on, undefined)
        if keeps:
            implied.put(g, convert(kept, "ud", g.control, saturate=False), on, undefined)
            keep_wide(g, slots, kept, on)

    start = context.layout.acc // 4
    units = context.layout.units(context.layout.acc, 4 * lanes)

    def acc_undefined(g: ThreadGroup) -> Bools | None:
        if not g.dirty & units:
            return None
        bad: Bools = g.poisons[4][:, start : start + lanes] != 0
        return bad if bad.any() else None

    step.run = run
    return step


def _implicit(instruction: Instruction, context: Context) -> Writer:
    """acc0 as a destination of 32-bit integers."""
    assert instruction.dst is not None
    operand = attrs.evolve(
        instruction.dst, kind="reg", file="acc", reg=0, sub=0, type="ud", region=_ONE, saturate=False
    )
    return target(operand, instruction.exec_size, instruction, context)


def _select(instruction: Instruction, context: Context) -> Step:
    """sel: by predicate, or the smaller or larger with a condition (a NaN loses against a number)."""
    sources = operands(instruction, context)
    goal = target(instruction.dst, instruction.exec_size, instruction, context)
    step = new_step(instruction, context, sources, goal)
    on_lanes = enabled(instruction)
    kind = float_type(instruction)
    saturate = instruction.dst is not None and instruction.dst.saturate
    unsigned_long = all(s.type == "uq" for s in sources)
    compare = None if not instruction.condition else table.COMPARE[instruction.condition]
    if compare is None:
        check_flag(instruction, context)
    chosen = predicate(instruction) if compare is None else None

    def run(g: ThreadGroup) -> None:
        on = on_lanes(g)
        a, b = _alike([item.get(g) for item in sources], kind)
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
            undefined = bad_a if bad_b is None else bad_b if bad_a is None else bad_a | bad_b
        data = convert(np.where(first, a, b), goal.type, g.control, saturate=saturate)
        goal.put(g, data, on, undefined)

    step.run = run
    return step


def _pick(first: Bools, a: Bools | None, b: Bools | None) -> Bools | None:
    if a is None and b is None:
        return None
    none = np.zeros((1, 1), np.bool_)
    return np.where(first, none if a is None else a, none if b is None else b)


def _alike(values: list[Array], kind: str) -> list[Array]:
    """Numbers in one working type."""
    if not kind:
        return values
    dtype = np.float64 if kind == "df" else np.float32
    return [value if value.dtype == dtype else value.astype(dtype) for value in values]


def _compare(instruction: Instruction, context: Context) -> Step:
    """cmp: flags of acting lanes, and all ones or zeros for the destination."""
    sources = operands(instruction, context)
    goal = target(instruction.dst, instruction.exec_size, instruction, context)
    acts = active(instruction, context)
    step = new_step(instruction, context, sources, goal)
    kind = float_type(instruction)
    unsigned_long = all(s.type == "uq" for s in sources)
    unordered = instruction.condition in ("un", "uo")
    if not unordered and instruction.condition not in table.COMPARE:
        raise unsupported(instruction, f"condition {instruction.condition or '(none)'}")
    compare = np.equal if unordered else table.COMPARE[instruction.condition]

    def run(g: ThreadGroup) -> None:
        on = acts(g)
        a, b = _alike([item.get(g) for item in sources], kind)
        undefined = union(sources, g)
        if unordered:
            truth = np.isnan(a) | np.isnan(b)
        elif unsigned_long:
            truth = compare(a.view(np.uint64), b.view(np.uint64))
        else:
            truth = compare(a, b)
        set_flags(instruction, g, truth, on, undefined)
        if goal.bits:
            ones = -truth.astype(np.int64)
            size = SIZES[goal.type]
            goal.put(g, ones.astype(f"i{size}").view(VIEWS[goal.type]), on, undefined)

    step.run = run
    return step


def _choose(instruction: Instruction, context: Context) -> Step:
    """csel: the first source where the third compares with zero as asked, else the second."""
    sources = operands(instruction, context)
    goal = target(instruction.dst, instruction.exec_size, instruction, context)
    on_lanes = enabled(instruction)
    step = new_step(instruction, context, sources, goal)
    condition = condition_of(instruction, context)
    if condition is None:
        raise unsupported(instruction, "no condition")
    saturate = instruction.dst is not None and instruction.dst.saturate

    def run(g: ThreadGroup) -> None:
        a, b, c = (item.get(g) for item in sources)
        data = convert(np.where(condition(c, 0), a, b), goal.type, g.control, saturate=saturate)
        goal.put(g, data, on_lanes(g), union(sources, g))

    step.run = run
    return step
