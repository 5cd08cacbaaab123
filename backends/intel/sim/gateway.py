"""Barriers, fences and the end of a thread, which order memory accesses of the threads of a workgroup.

A barrier orders a store to local memory if the thread issued a fence after it and waited for the fence before the
signal. It orders a load, or an atomic operation with a result, if the thread waited for the destination. Any other
access is carried over into the epoch after the barrier, where it races (`backends.sim.local`). A global store needs a
fence of the global unit; `scopes` orders workgroups.

IGC's LSC_FENCE.md has a fence wait for all earlier accesses of the thread to its unit, but its scoreboard pass (visa,
SWSB_G4IR.cpp, clearSLMWARWAissue) has every SLM store and fence wait for the destinations of all SLM loads in flight on
DG2, MTL, ARL and PVC (HWCaps.inc, hasSLMWARIssue). On these platforms a fence therefore orders stores only, and a later
store may overtake a load of its own thread (`Platform.slm_fence_orders_loads`).
"""

from __future__ import annotations

import numpy as np

from convgen.backends.intel.sim.decode import Instruction, Message
from convgen.backends.intel.sim.messages import FENCE, Lsc
from convgen.backends.intel.sim.register_file import byte_bits
from convgen.backends.intel.sim.scopes import begin_fence, order_of
from convgen.backends.intel.sim.state import LocalAccess, ThreadGroup
from convgen.backends.intel.sim.step import Context, Step, send_step, unsupported
from convgen.backends.sim.global_access import land_store
from convgen.backends.sim.local import EPOCH_BIT
from convgen.backends.sim.wave_arrays import Array, any_along

SIGNAL, END = 0x4, 0x10
NEXT_EPOCH = np.uint32(1) << EPOCH_BIT  #: the next epoch's stamp, less this one's
END_REGISTERS = 16  #: the end-of-thread message comes from the last so many registers


def compile_gateway(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a fence, a gateway message or a barrier wait; None for other instructions."""
    message = instruction.message
    if instruction.op == "sync" and instruction.sub == "bar":
        return _wait(instruction, context)
    if message is None:
        return None
    if message.unit == "gtwy":
        _refuse_predicate(instruction)
        operation = None if message.descriptor is None else message.descriptor & 0xFF
        if operation == SIGNAL:
            return _signal(instruction, message, context)
        if operation == END and "EOT" in instruction.options:
            return _end(instruction, message, context)
        raise unsupported(instruction, "gateway message")
    if "EOT" in instruction.options:
        raise unsupported(instruction, "end of thread on another message than the gateway's")
    if message.unit in ("ugm", "slm", "tgm") and message.descriptor is not None:
        decoded = Lsc.decode(message.descriptor)
        if decoded.op == FENCE:
            _refuse_predicate(instruction)
            return _fence(instruction, message, decoded, context)
    return None


def _refuse_predicate(instruction: Instruction) -> None:
    """Refuse a message that orders all threads of a group, or ends them, for some of them only."""
    if instruction.predicate:
        raise unsupported(instruction, "predicate")


def _fence(instruction: Instruction, message: Message, decoded: Lsc, context: Context) -> Step:
    layout = context.layout
    unit = message.unit
    kind = f"send_{unit}" if unit in ("ugm", "slm") else "send_other"
    reads = layout.grf_bits(message.src0.reg, decoded.address_registers)
    step = send_step(instruction, kind, reads, layout.grf_bits(message.dst.reg, decoded.response))
    order = order_of(instruction, context.platform, trust_igc=context.rules.trust_igc)
    first = message.dst.reg * layout.grf
    size = decoded.response * layout.grf if message.dst.reg >= 0 else 0

    def run(g: ThreadGroup) -> None:
        g.order += 1
        g.fences.append((step.index, g.order, unit))
        begin_fence(g, step, order)
        if size:
            g.regs[:, first : first + size] = 0
            g.poison[:, first : first + size] = 0
            g.clean(layout.units(first, size))

    return step.running(run)


def epoch_of(stamps: Array) -> Array:
    """Return the epochs of stamps."""
    return np.asarray(stamps >> EPOCH_BIT)


def retire(g: ThreadGroup, complete: frozenset[int]) -> None:
    """Forget local accesses that the `complete` instructions order, and land the stores before their fences."""
    for index, order, unit in g.fences:
        if index not in complete:
            continue
        if unit == "slm":
            orders_loads = g.env.platform.slm_fence_orders_loads
            g.local = [a for a in g.local if a.order > order or (a.returns and not orders_loads)]
        elif unit == "ugm":
            land_store(g, [ticket for when, ticket in g.stores if when < order])
            g.stores = [(when, ticket) for when, ticket in g.stores if when > order]
    g.fences = [fence for fence in g.fences if fence[0] not in complete]
    g.local = [access for access in g.local if access.access == "write" or access.step not in complete]


def note_local(g: ThreadGroup, step: Step, access: str, rows: Array, units: Array) -> None:
    """Remember an access to local memory until it is ordered."""
    returns = bool(step.writes)
    if g.env.waves == 1 and not (returns and not g.env.platform.slm_fence_orders_loads):
        return
    g.order += 1
    shape = np.broadcast_shapes(rows.shape, units.shape)
    flat_rows, flat_units = np.broadcast_to(rows, shape).reshape(-1), np.broadcast_to(units, shape).reshape(-1)
    made = LocalAccess(step.index, access, flat_rows, flat_units, g.order, step.instruction, returns)
    g.local.append(made)
    if g.signalled:
        _carry_over(g, made)


def _carry_over(g: ThreadGroup, access: LocalAccess) -> None:
    ahead = g.stamp[:, 0] + NEXT_EPOCH
    g.env.local.cross_barrier(access.units, ahead[access.rows], access.access)
    if access.returns:
        g.env.local.remember(g, access)


def _signal(instruction: Instruction, message: Message, context: Context) -> Step:
    """Compile a barrier signal; dword 2 of the payload holds the number of threads, in bytes 2 and 3."""
    layout = context.layout
    step = send_step(instruction, "send_gtwy", layout.grf_bits(message.src0.reg, 1))
    step.control = "wait"
    if message.src0.length != 1:
        context.fault("message-length", f"a barrier signal takes 1 register, not {message.src0.length}")
    at = message.src0.reg * layout.grf + 8

    def run(g: ThreadGroup) -> None:
        env = g.env
        _check_signal(g, instruction, at)
        g.signalled = True
        np.add.at(env.arrived, g.slot, 1)
        env.counters["barriers"] += g.count
        for access in g.local:
            _carry_over(g, access)

    return step.running(run)


def _check_signal(g: ThreadGroup, instruction: Instruction, at: int) -> None:
    """Report a barrier signal with a wrong number of threads at byte `at`, or out of turn."""
    env = g.env
    if g.dirty & g.layout.units(at, 4):
        bad = any_along(g.poison[:, at : at + 4], 1)
        env.reporter.at_first("poison", "dword 2 of the barrier header is undefined", instruction, g, bad)
    header, needed = g.views["u4"][:, at // 4], env.waves << 24 | env.waves << 16
    wrong = header != needed
    if wrong.any():
        finding = f"header dword 2 is {int(header[wrong.argmax()]):#x}, {env.waves} threads need {needed:#x}"
        env.reporter.at_first("barrier", finding, instruction, g, wrong)
    if not env.barriers:
        env.reporter.add("barrier", "the kernel declares no barrier: .ze_info has barrier_count 0", instruction, g)
    if g.signalled:
        env.reporter.add("barrier", "signals a barrier again before it has waited for it", instruction, g)


def _wait(instruction: Instruction, context: Context) -> Step:
    step = Step(instruction, "sync", lambda g: None, control="barrier")
    source = instruction.sources[0] if instruction.sources else None
    if source is not None and source.kind == "imm" and source.value:
        raise unsupported(instruction, "named barrier")

    def run(g: ThreadGroup) -> None:
        if not g.signalled:
            g.env.reporter.add("barrier", "waits at a barrier that it has not signalled", instruction, g)
        g.blocked = True

    return step.running(run)


def _end(instruction: Instruction, message: Message, context: Context) -> Step:
    layout = context.layout
    first = layout.registers - END_REGISTERS
    if message.src0.reg < first:
        last = layout.registers - 1
        context.fault("end-of-thread", f"the payload must lie in r{first} to r{last}, not r{message.src0.reg}")
    at, size = message.src0.reg * layout.grf, message.src0.length * layout.grf

    def run(g: ThreadGroup) -> None:
        if g.dirty & layout.units(at, size):
            bad = any_along(g.poison[:, at : at + 4], 1)
            g.env.reporter.at_first("poison", "the end-of-thread payload is undefined", instruction, g, bad)
        if g.signalled:
            g.env.reporter.add("barrier", "ends between the signal and the wait of a barrier", instruction, g)

    step = send_step(instruction, "send_gtwy", byte_bits(at, size))
    step.control = "end"
    return step.running(run)
