"""The instructions of mbarriers, and cp.async.mbarrier.arrive (PTX ISA, mbarrier).

A state, as mbarrier.arrive returns it, has the phase in its upper half and the pending arrivals in its lower one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.nvidia.sim.fences import order_lanes
from convgen.backends.nvidia.sim.mbarriers import SIZE, Transfer, lanes_as_bits
from convgen.backends.nvidia.sim.memory_access import SHARED_WINDOW, addresses, space_of
from convgen.backends.nvidia.sim.operands import Getter, computed, numbers_of, report_undefined, source, target, wrong
from convgen.backends.nvidia.sim.ptx_text import Instruction, Operand, Sink
from convgen.backends.nvidia.sim.shared_access import Access, located
from convgen.backends.nvidia.sim.state import WarpGroup
from convgen.backends.nvidia.sim.step import Context, Maker, Step, maker_of, wants_target
from convgen.backends.sim.wave_arrays import Array

_PHASE = np.uint64(32)


def compile_mbarrier(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of an instruction of mbarriers; None for other instructions."""
    if instruction.name == "cp" and instruction.modifiers[:3] == ("async", "mbarrier", "arrive"):
        return _copies_arrive(instruction, context)
    if instruction.name != "mbarrier":
        return None
    makers: Mapping[str, Maker] = {
        "init": _init,
        "inval": _inval,
        "arrive": _arrive,
        "arrive_drop": _arrive,
        "expect_tx": _expect,
        "complete_tx": _expect,
        "test_wait": _wait,
        "try_wait": _wait,
        "pending_count": _pending_count,
    }
    maker = maker_of(makers, instruction)
    if instruction.has("expect_tx", "complete_tx", "try_wait"):
        wants_target(instruction, context, "sm_90")
    return maker(instruction, context)


def shared_operand(context: Context, instruction: Instruction, operand: Operand, *, space: str | None = None) -> Getter:
    """Return a function that computes offsets in shared memory of a shared or generic address."""
    space = space_of(instruction) if space is None else space
    if space not in ("shared", ""):
        raise wrong(instruction, f"an address in .{space}", "one in .shared")
    if space:
        return addresses(context, instruction, operand)
    wide, window = addresses(context, instruction, operand, wide=True), np.uint64(SHARED_WINDOW)
    return lambda g: (wide(g) - window).view(np.int64)


def _objects(
    instruction: Instruction, context: Context, operand: Operand
) -> Callable[[WarpGroup, Step], Access | None]:
    """Return a function that locates the objects which lanes name."""
    where, numbers = shared_operand(context, instruction, operand), numbers_of(operand)

    def locate(g: WarpGroup, step: Step) -> Access | None:
        report_undefined(g, step, numbers, "the address of an mbarrier")
        return located(g, step, where(g), SIZE, g.active)

    return locate


def _number(instruction: Instruction, context: Context, place: int) -> tuple[Getter, tuple[int, ...]]:
    """Return how to read operand `place`, a count, 1 where it is left out; and its registers."""
    operands = instruction.operands
    if place >= len(operands):
        return (lambda g: np.array(1)), ()
    return source(context, instruction, operands[place], "u32"), numbers_of(operands[place])


def _init(instruction: Instruction, context: Context) -> Step:
    locate = _objects(instruction, context, instruction.operands[0])
    count, numbers = _number(instruction, context, 1)
    step = Step(instruction, "barrier", lambda g: None)

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, numbers, "the count of an mbarrier")
        access = locate(g, step)
        if access is not None:
            counts = np.broadcast_to(count(g), g.shape)[access.row, access.lane]
            g.env.mbarriers.initialise(g, step, access, counts)

    return step.running(run)


def _inval(instruction: Instruction, context: Context) -> Step:
    locate = _objects(instruction, context, instruction.operands[0])
    step = Step(instruction, "barrier", lambda g: None)

    def run(g: WarpGroup) -> None:
        access = locate(g, step)
        if access is not None:
            g.env.mbarriers.invalidate(g, step, access)

    return step.running(run)


def _expect(instruction: Instruction, context: Context) -> Step:
    """Return the step of mbarrier.expect_tx or complete_tx."""
    locate = _objects(instruction, context, instruction.operands[0])
    size, numbers = _number(instruction, context, 1)
    completes = instruction.has("complete_tx")
    step = Step(instruction, "barrier", lambda g: None)

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, numbers, "the bytes of an mbarrier")
        access = locate(g, step)
        if access is None:
            return
        sizes = np.broadcast_to(size(g), g.shape)[access.row, access.lane].astype(np.int64)
        change = g.env.mbarriers.complete if completes else g.env.mbarriers.expect
        for use in g.env.mbarriers.uses(g, step, access):
            change(g, step, use, int(sizes[use.columns].sum()))

    return step.running(run)


def _arrive(instruction: Instruction, context: Context) -> Step:
    """mbarrier.arrive and arrive_drop, also with .expect_tx, which lets the phase expect bytes ahead of the arrival."""
    first, where = (Sink(), 0) if len(instruction.operands) < 2 else (instruction.operands[0], 1)
    write = target(context, instruction, first, "b64")
    locate = _objects(instruction, context, instruction.operands[where])
    number, numbers = _number(instruction, context, where + 1)
    expects, drops = instruction.has("expect_tx"), instruction.has("arrive_drop")
    completes, releases = not instruction.has("noComplete"), not instruction.has("relaxed")
    step = Step(instruction, "barrier", lambda g: None)

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, numbers, "a count or the bytes of an mbarrier")
        access = locate(g, step)
        if access is None:
            return
        amounts = np.broadcast_to(number(g), g.shape)[access.row, access.lane].astype(np.int64)
        states: Array = np.zeros(g.shape, np.uint64)
        order_lanes(g, g.active, waits=False)
        for use in g.env.mbarriers.uses(g, step, access):
            mbarrier, lanes = use.mbarrier, use.lanes
            pending = np.maximum(mbarrier.pending - np.arange(len(lanes)), 0)
            states[use.row, lanes] = np.uint64(mbarrier.phase) << _PHASE | pending.astype(np.uint64)
            if expects:
                g.env.mbarriers.expect(g, step, use, int(amounts[use.columns].sum()))
            count = len(lanes) if expects else int(amounts[use.columns].sum())
            if drops:
                mbarrier.count -= count
            view = g.env.local.pass_on(mbarrier.slot, use.warp, lanes_as_bits(lanes)) if releases else None
            g.env.mbarriers.arrive(g, step, use, count, view, completes=completes)
        write(g, states, None)

    return step.running(run)


def _copies_arrive(instruction: Instruction, context: Context) -> Step:
    """cp.async.mbarrier.arrive: an arrival once all earlier cp.async of the lane are complete.

    Without .noinc the phase takes one more arrival.
    """
    locate = _objects(instruction, context, instruction.operands[0])
    adds = not instruction.has("noinc")
    step = Step(instruction, "cp_async", lambda g: None)

    def run(g: WarpGroup) -> None:
        access = locate(g, step)
        if access is None:
            return
        for use in g.env.mbarriers.uses(g, step, access):
            count = len(use.lanes)
            if adds:
                use.mbarrier.pending += count
            land = g.env.copies.landing(g, use.row, use.lanes)
            g.env.mbarriers.attach(g, use.mbarrier, Transfer(step, 0, count, land))

    return step.running(run)


def _wait(instruction: Instruction, context: Context) -> Step:
    """mbarrier.test_wait and try_wait, of a state or a parity. A hint of time makes no difference."""
    first, second, third = instruction.operands[:3]
    write = target(context, instruction, first, "pred")
    locate = _objects(instruction, context, second)
    parity = instruction.has("parity")
    read, numbers = source(context, instruction, third, "u32" if parity else "b64"), numbers_of(third)
    orders = not instruction.has("relaxed")
    step = Step(instruction, "wait", lambda g: None, control="wait")

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, numbers, "the phase of an mbarrier")
        access = locate(g, step)
        if access is None:
            return
        phases = np.broadcast_to(read(g), g.shape)[access.row, access.lane]
        ended = np.zeros(g.shape, np.bool_)
        for use in g.env.mbarriers.uses(g, step, access):
            for value in np.unique(phases[use.columns]).tolist():
                lanes = use.lanes[phases[use.columns] == value]
                if parity and value > 1:
                    finding = f"a parity of {value}, not of 0 or 1"
                    g.env.reporter.add("operand", finding, step.instruction, g, use.row, int(lanes[0]))
                if parity:
                    done = g.env.mbarriers.has_ended(g, step, use, value & 1, orders=orders)
                else:
                    done = g.env.mbarriers.has_ended_since(g, step, use, value >> int(_PHASE), orders=orders)
                ended[use.row, lanes] = done
        if orders:
            order_lanes(g, ended)
        g.polled = bool((g.active & ~ended).any())
        write(g, ended, None)

    return step.running(run)


def _pending_count(instruction: Instruction, context: Context) -> Step:
    low = np.uint64(0xFFFFFFFF)
    return computed(context, instruction, lambda a: (a & low).astype(np.uint32), ["b64"], "u32")
