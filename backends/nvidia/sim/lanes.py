"""Exchange between the lanes of a warp (PTX ISA: shfl.sync, vote.sync, match.sync, redux.sync, activemask).

Lanes that a member mask names must execute the instruction together; a lane that is not named may not execute it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.nvidia.sim.operands import Getter, numbers_of, report_undefined, source, target
from convgen.backends.nvidia.sim.ptx_text import Instruction, Pair, Sink
from convgen.backends.nvidia.sim.state import LANES, WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step, unsupported
from convgen.backends.sim.wave_arrays import Array, Bools, any_along

_BIT = np.arange(LANES, dtype=np.uint32)


def packed_flags(flags: Bools) -> Array:
    """Return words [..] with a bit for each of the lanes' flags [.., lanes]."""
    words: Array = np.packbits(flags, axis=-1, bitorder="little").view(np.uint32)[..., 0]
    return words


def members(g: WarpGroup, step: Step, mask: Array) -> Bools:
    """Return flags [rows, lane, lane]: whether the first lane's member mask names the second; report wrong masks."""
    named = (np.broadcast_to(mask, g.shape)[..., None] >> _BIT & np.uint32(1)).astype(np.bool_)
    active = g.active
    self_named = np.diagonal(named, axis1=1, axis2=2)
    if (active & ~self_named).any():
        finding = "executes the instruction, but its member mask does not name it"
        g.env.reporter.at_first("member-mask", finding, step.instruction, g, active & ~self_named)
    alive = g.env.alive[g.thread]
    absent = named & (alive & ~active)[:, None, :] & active[..., None]
    if absent.any():
        where = absent.any(axis=2)
        row, _lane = (int(i) for i in np.argwhere(where)[0])
        lost = int(absent[row, _lane].argmax())
        finding = f"its member mask names lane {lost}, which does not execute the instruction"
        g.env.reporter.add("member-mask", finding, step.instruction, g, row, _lane)
    return named & active[:, None, :]


def compile_lanes(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of an exchange between lanes; None for other instructions."""
    name = instruction.name
    if name == "activemask":
        write = target(context, instruction, instruction.operands[0], "b32")
        return Step(
            instruction, "alu", lambda g: write(g, np.repeat(packed_flags(g.active)[:, None], LANES, axis=1), None)
        )
    if name not in ("shfl", "vote", "match", "redux"):
        return None
    if not instruction.has("sync"):
        raise unsupported(instruction, "a form without .sync, which sm_70 and later lack")
    if name == "shfl":
        return _shuffle(instruction, context)
    *_, mask_operand = instruction.operands
    mask = source(context, instruction, mask_operand, "b32")
    makers: Mapping[str, Callable[[Instruction, Context, Getter], Step]] = {
        "vote": _vote,
        "match": _match,
        "redux": _reduce,
    }
    return makers[name](instruction, context, mask)


def _shuffle(instruction: Instruction, context: Context) -> Step:
    """shfl.sync: each lane takes the value of a lane of its segment; out of range, its own, with a false predicate."""
    operands = instruction.operands
    first = operands[0]
    into, flag = (first.first, first.second) if isinstance(first, Pair) else (first, Sink())
    write, write_flag = target(context, instruction, into, "b32"), target(context, instruction, flag, "pred")
    value, amount, clamp, mask = (source(context, instruction, o, "b32") for o in operands[1:5])
    mode = next(m for m in instruction.modifiers if m in ("up", "down", "bfly", "idx"))
    numbers, controls = numbers_of(operands[1]), numbers_of(*operands[2:])
    step = Step(instruction, "alu", lambda g: None)

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, controls, "an operand of an exchange")
        named = members(g, step, mask(g))
        partners, inside = _partners(mode, np.broadcast_to(amount(g), g.shape), np.broadcast_to(clamp(g), g.shape))
        data = np.broadcast_to(value(g), g.shape)
        result = np.take_along_axis(data, partners, axis=1)
        lost = inside & ~np.take_along_axis(named, partners[..., None], axis=2)[..., 0]
        poison: Bools | None = lost if (lost & g.active).any() else None
        undefined = g.undefined(numbers)
        if undefined is not None:
            spoiled = np.take_along_axis(undefined, partners, axis=1)
            poison = spoiled if poison is None else poison | spoiled
        write(g, result, poison)
        write_flag(g, inside, None)

    return step.running(run)


def _partners(mode: str, amount: Array, clamp: Array) -> tuple[Array, Bools]:
    """Return the lane from which each lane takes its value, and whether that is within its segment (PTX ISA, shfl)."""
    lane = np.arange(LANES)
    offset, limit = (amount & np.uint32(31)).astype(np.int64), (clamp & np.uint32(31)).astype(np.int64)
    segment = (clamp >> np.uint32(8) & np.uint32(31)).astype(np.int64)
    most = (lane & segment) | (limit & ~segment)
    if mode == "idx":
        partner = (lane & segment) | (offset & ~segment & 31)
    else:
        partner = {"up": lane - offset, "down": lane + offset, "bfly": lane ^ offset}[mode]
    inside = partner >= most if mode == "up" else partner <= most
    return np.where(inside, partner, lane), inside


def _vote(instruction: Instruction, context: Context, mask: Getter) -> Step:
    """vote.sync: all, any and uni give a predicate, ballot a word."""
    mode = next(m for m in instruction.modifiers if m in ("all", "any", "uni", "ballot"))
    write = target(context, instruction, instruction.operands[0], "b32" if mode == "ballot" else "pred")
    read = source(context, instruction, instruction.operands[1], "pred")
    numbers = numbers_of(*instruction.operands[1:])
    step = Step(instruction, "alu", lambda g: None)

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, numbers, "an operand of a vote")
        named = members(g, step, mask(g))
        flags = np.broadcast_to(read(g), g.shape)[:, None, :]
        if mode == "ballot":
            write(g, packed_flags(flags & named), None)
            return
        some, every = any_along(flags & named, 2), ~any_along(~flags & named, 2)
        result = {"all": every, "any": some, "uni": every | ~some}[mode]
        write(g, result, None)

    return step.running(run)


def _match(instruction: Instruction, context: Context, mask: Getter) -> Step:
    """match.sync: the lanes with an equal value (.any), or all lanes if all have it (.all)."""
    kind = instruction.types[-1]
    first = instruction.operands[0]
    into, flag = (first.first, first.second) if isinstance(first, Pair) else (first, Sink())
    write, write_flag = target(context, instruction, into, "b32"), target(context, instruction, flag, "pred")
    read = source(context, instruction, instruction.operands[1], kind)
    numbers = numbers_of(*instruction.operands[1:])
    step = Step(instruction, "alu", lambda g: None)
    everything = instruction.has("all")

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, numbers, "an operand of a match")
        named = members(g, step, mask(g))
        data = np.broadcast_to(read(g), g.shape)
        equal = (data[:, :, None] == data[:, None, :]) & named
        if not everything:
            write(g, packed_flags(equal), None)
            return
        same = (equal == named).all(axis=2)
        write(g, np.where(same, packed_flags(named), np.uint32(0)), None)
        write_flag(g, same, None)

    return step.running(run)


_REDUCED: Mapping[str, tuple[np.ufunc, int]] = {
    "add": (np.add, 0),
    "and": (np.bitwise_and, -1),
    "or": (np.bitwise_or, 0),
    "xor": (np.bitwise_xor, 0),
}


def _reduce(instruction: Instruction, context: Context, mask: Getter) -> Step:
    """redux.sync: a sum, minimum, maximum or logical combination over the named lanes."""
    kind = instruction.types[-1]
    if kind not in ("s32", "u32", "b32"):
        raise unsupported(instruction)
    operation = next(m for m in instruction.modifiers if m in (*_REDUCED, "min", "max"))
    write = target(context, instruction, instruction.operands[0], kind)
    read = source(context, instruction, instruction.operands[1], kind)
    numbers = numbers_of(*instruction.operands[1:])
    step = Step(instruction, "alu", lambda g: None)

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, numbers, "an operand of a reduction")
        named = members(g, step, mask(g))
        data = np.broadcast_to(read(g), g.shape)
        if operation in ("min", "max"):
            info = np.iinfo(data.dtype)
            neutral = data.dtype.type(info.max if operation == "min" else info.min)
            function: np.ufunc = np.minimum if operation == "min" else np.maximum
        else:
            function, start = _REDUCED[operation]
            neutral = np.asarray(start).astype(data.dtype)[()]
        spread = np.where(named, data[:, None, :], neutral)
        write(g, function.reduce(spread, axis=2, dtype=data.dtype), None)

    return step.running(run)
