"""Branches, returns and barriers (PTX ISA, Control Flow Instructions; bar, barrier, bar.warp.sync).

A step gives each lane the place where it goes on: twice the index of an instruction, plus one if it waits there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convgen.backends.nvidia.sim.environment import BARRIERS
from convgen.backends.nvidia.sim.fences import order_lanes
from convgen.backends.nvidia.sim.lanes import members
from convgen.backends.nvidia.sim.operands import Getter, numbers_of, report_undefined, source, target
from convgen.backends.nvidia.sim.ptx_text import Instruction, Name
from convgen.backends.nvidia.sim.state import LANES, WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step, unsupported
from convgen.backends.nvidia.sim.warpgroup_products import check_end
from convgen.backends.sim.errors import SimulatorError
from convgen.backends.sim.findings import LaunchStopped
from convgen.backends.sim.wave_arrays import Array

ABSENT, ENDED = -1, -2  #: targets of lanes that are not in the group, and of threads that end


def place(context: Context, label: str) -> int:
    """Return the index in the program of a label, which `flow.blocks_of` has checked."""
    return context.place_of[context.kernel.labels[label]]


def compile_control(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a branch, an end or a barrier; None for other instructions."""
    name = instruction.name
    if name == "bra":
        return _branch(instruction, context)
    if name == "brx":
        return _indexed(instruction, context)
    if name in ("ret", "exit"):
        return _end(instruction)
    if name == "trap":
        return _trap(instruction)
    if name in ("bar", "barrier"):
        return _barrier(instruction, context)
    if name == "nanosleep":
        return Step(instruction, "other", lambda g: None, control="sleep")
    if name in ("pmevent", "brkpt"):
        return Step(instruction, "other", lambda g: None)
    if name == "call":
        raise unsupported(
            instruction, "only calls of functions whose body the text has, and no recursion, are simulated"
        )
    return None


def guard_of(g: WarpGroup, step: Step) -> Array:
    """Return the lanes of a group in which the instruction's predicate holds; report undefined predicates."""
    guard = step.instruction.guard
    if guard is None:
        return g.mask
    register, negated = guard
    flags = g.read(register.number)
    undefined = g.p[register.number]
    if undefined is not None and (undefined & g.mask).any():
        finding = f"the predicate {g.env.names[register.number]} is undefined"
        g.env.reporter.at_first("poison", finding, step.instruction, g, undefined & g.mask)
    return g.mask & (~flags if negated else flags)


def _branch(instruction: Instruction, context: Context) -> Step:
    """Return the step of bra."""
    (label,) = instruction.operands
    if not isinstance(label, Name):
        raise unsupported(instruction)
    to = place(context, label.name)
    step = Step(instruction, "branch", lambda g: None, control="branch")
    uniform = instruction.has("uni")

    def run(g: WarpGroup) -> None:
        g.targets = None
        if instruction.guard is None:
            g.pc = to
            return
        guarded = guard_of(g, step)
        if not guarded.any():
            return
        if (guarded == g.mask).all():
            g.pc = to
            return
        if uniform:
            split = guarded.any(axis=1) & (guarded != g.mask).any(axis=1)
            finding = "threads of a warp take a branch with .uni differently"
            g.env.reporter.at_first("divergence", finding, step.instruction, g, split)
        g.targets = np.where(g.mask, np.where(guarded, 2 * to, 2 * g.pc), ABSENT)

    return step.running(run)


def _indexed(instruction: Instruction, context: Context) -> Step:
    """Return the step of brx.idx."""
    index, table = instruction.operands
    if not isinstance(table, Name) or table.name not in context.kernel.tables:
        raise unsupported(instruction)
    places = np.array([2 * place(context, label) for label in context.kernel.tables[table.name]])
    read, numbers = source(context, instruction, index, "u32"), numbers_of(index)
    step = Step(instruction, "branch", lambda g: None, control="branch")

    def run(g: WarpGroup) -> None:
        guarded = guard_of(g, step)
        g.active, g.every = guarded, bool(guarded.all())
        report_undefined(g, step, numbers, "the index of a branch")
        number = np.broadcast_to(read(g), g.shape).astype(np.int64)
        bad = guarded & (number >= len(places))
        if bad.any():
            finding = f"the index of a branch is beyond its {len(places)} targets"
            g.env.reporter.at_first("control", finding, step.instruction, g, bad)
            raise LaunchStopped
        g.ready()
        to = places[np.where(guarded, number, 0)]
        g.targets = np.where(g.mask, np.where(guarded, to, 2 * g.pc), ABSENT)

    return step.running(run)


def _end(instruction: Instruction) -> Step:
    step = Step(instruction, "branch", lambda g: None, control="branch")

    def run(g: WarpGroup) -> None:
        guarded = guard_of(g, step)
        check_end(g, step.instruction, guarded)
        g.targets = np.where(g.mask, np.where(guarded, ENDED, 2 * g.pc), ABSENT)
        alive = g.env.alive[g.thread]
        g.env.alive[g.thread] = alive & ~guarded
        g.env.register_pool.check_end(g, step.instruction)

    return step.running(run)


def _trap(instruction: Instruction) -> Step:
    step = Step(instruction, "other", lambda g: None, control="branch")

    def run(g: WarpGroup) -> None:
        g.targets = None
        guarded = guard_of(g, step)
        if guarded.any():
            g.env.reporter.at_first("trap", "trap ends the kernel", step.instruction, g, guarded)
            raise LaunchStopped

    return step.running(run)


# ---------------------------------------------------------------- barriers


def check_aligned(g: WarpGroup, step: Step, guarded: Array, *, whole: bool = False) -> None:
    """Report warps of which only some threads execute an instruction; `whole`: ended threads count as well."""
    expected = np.ones(g.shape, np.bool_) if whole else g.env.alive[g.thread]
    apart = guarded.any(axis=1) & (expected & ~guarded).any(axis=1)
    if apart.any():
        row = int(apart.argmax())
        count = int((expected & ~guarded)[row].sum())
        finding = f"{count} threads of the warp do not execute an instruction that all of them must execute together"
        g.env.reporter.add("divergence", finding, step.instruction, g, row)


def by_warps(step: Step, run: Callable[[WarpGroup], None]) -> Step:
    """Let whole warps execute a step whose predicate may differ between warps; report others, and return the step."""
    step.control = "branch"

    def selected(g: WarpGroup) -> None:
        g.targets = None
        guarded = guard_of(g, step)
        rows = guarded.any(axis=1)
        check_aligned(g, step, guarded, whole=True)
        if rows.all():
            run(g)
        elif rows.any():
            g.targets = np.where(g.mask, np.where(rows, 2 * (g.pc - 1), 2 * g.pc)[:, None], ABSENT)

    return step.running(selected)


def _barrier(instruction: Instruction, context: Context) -> Step:
    """Return the step of bar and barrier: sync, arrive and red."""
    if instruction.has("warp"):
        return _warp_barrier(instruction, context)
    aligned = instruction.name == "bar" or instruction.has("aligned")
    operands = list(instruction.operands)
    reduces = instruction.has("red")
    write = None
    predicate: Getter | None = None
    operation = next((m for m in instruction.modifiers if m in ("popc", "and", "or")), "")
    if reduces:
        write = target(context, instruction, operands.pop(0), "u32" if operation == "popc" else "pred")
        predicate = source(context, instruction, operands.pop(), "pred")
    number = source(context, instruction, operands[0], "u32")
    counted = source(context, instruction, operands[1], "u32") if len(operands) > 1 else None
    arrives = instruction.has("arrive")
    if arrives and counted is None:
        raise SimulatorError(f"given `{instruction.text}` without a number of threads, wanted one")
    numbers = numbers_of(*instruction.operands[1 if reduces else 0 :])
    step = Step(instruction, "barrier", lambda g: None, control="branch")

    def run(g: WarpGroup) -> None:
        guarded = guard_of(g, step)
        g.active, g.every = guarded, bool(guarded.all())
        if not guarded.any():
            g.targets = None
            return
        report_undefined(g, step, numbers, "an operand of a barrier")
        if aligned:
            check_aligned(g, step, guarded)
        env = g.env
        ids = np.broadcast_to(number(g), g.shape)
        counts = None if counted is None else np.broadcast_to(counted(g), g.shape).astype(np.int64)
        arrive(g, step, guarded, ids, counts, waits=not arrives)
        order_lanes(g, guarded, waits=not arrives)
        if predicate is not None and write is not None:
            flags = np.broadcast_to(predicate(g), g.shape)
            reduction(g, guarded, ids, flags, operation)
            g.awaiting = write, operation
        env.counters["barriers"] += int(guarded.any(axis=1).sum())
        waits = 0 if arrives else 1
        g.ready()
        g.targets = np.where(g.mask, np.where(guarded, 2 * g.pc + waits, 2 * g.pc), ABSENT)

    return step.running(run)


def arrive(g: WarpGroup, step: Step, guarded: Array, ids: Array, counts: Array | None, *, waits: bool) -> None:
    """Count the threads of each warp at its barrier."""
    env = g.env
    for row in np.flatnonzero(guarded.any(axis=1)).tolist():
        lane = int(guarded[row].argmax())
        slot, warp, barrier = int(g.slot[row]), int(g.wave[row]), int(ids[row, lane])
        if barrier >= BARRIERS:
            finding = f"barrier {barrier}, a workgroup has {BARRIERS}"
            env.reporter.add("barrier", finding, step.instruction, g, row, lane)
            raise LaunchStopped
        expected = -1 if counts is None else int(counts[row, lane])
        if counts is not None and (expected % LANES or not expected):
            finding = f"a barrier of {expected} threads, not of a multiple of {LANES}"
            env.reporter.add("barrier", finding, step.instruction, g, row, lane)
        before = int(env.expected[slot, barrier])
        if before and before != expected:
            shown = ["all" if n < 0 else str(n) for n in (expected, before)]
            finding = f"waits for {shown[0]} threads at barrier {barrier}, for which others wait for {shown[1]}"
            env.reporter.add("barrier", finding, step.instruction, g, row, lane)
        env.expected[slot, barrier] = expected
        threads = int(guarded[row].sum())
        env.threads[slot, barrier] += threads
        env.add_arrivals(slot, barrier, warp, guarded[row])
        if waits:
            g.waiting_at[row] = barrier
        else:
            env.passed_on.setdefault((slot, barrier), []).append(env.local.arrive(slot, warp))


def reduction(g: WarpGroup, guarded: Array, ids: Array, flags: Array, operation: str) -> None:
    """Combine the predicates of bar.red."""
    for row in np.flatnonzero(guarded.any(axis=1)).tolist():
        key = int(g.slot[row]), int(ids[row, int(guarded[row].argmax())])
        g.env.reduction.setdefault(key, []).append(flags[row][guarded[row]])


def _warp_barrier(instruction: Instruction, context: Context) -> Step:
    """bar.warp.sync: orders the accesses of the named lanes."""
    (operand,) = instruction.operands
    mask = source(context, instruction, operand, "b32")
    numbers = numbers_of(operand)
    step = Step(instruction, "barrier", lambda g: None)

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, numbers, "the member mask")
        members(g, step, mask(g))
        g.env.local.order_lanes(g, np.flatnonzero(g.active.any(axis=1)))
        order_lanes(g, g.active)

    return step.running(run)
