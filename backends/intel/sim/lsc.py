"""LSC loads, stores and atomic operations, gathered by lane or as blocks, on global and local memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convgen.backends.intel.sim import messages as msg
from convgen.backends.intel.sim.atomics import atomic
from convgen.backends.intel.sim.block2d import compile_block2d
from convgen.backends.intel.sim.decode import Instruction, Message
from convgen.backends.intel.sim.execution_masks import Lanes, active, flag_bits
from convgen.backends.intel.sim.late import note_late
from convgen.backends.intel.sim.messages import Lsc
from convgen.backends.intel.sim.payload import (
    Landing,
    check_length,
    check_range,
    elements,
    fill,
    land,
    mark_undefined,
    registers,
    report_undefined,
    undefined,
)
from convgen.backends.intel.sim.slm import load_local, peek_local, store_local
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.intel.sim.step import Context, Step, send_step, unsupported
from convgen.backends.intel.sim.stores import store_global
from convgen.backends.sim.global_access import load_lanes, peek_lanes
from convgen.backends.sim.wave_arrays import U64, Array, Bools, any_along
from convgen.ir.record import define, evolve


def compile_lsc(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of an LSC message; None for other sends."""
    message = instruction.message
    if message is None or message.unit not in ("ugm", "slm", "tgm"):
        return None
    if message.unit == "tgm":
        raise unsupported(instruction, "typed message, whose addresses are coordinates")
    if message.descriptor is None:
        raise unsupported(instruction, "descriptor in a register")
    decoded = Lsc.decode(message.descriptor)
    if decoded.op in (msg.LOAD_2D, msg.STORE_2D):
        return compile_block2d(instruction, message, decoded, context)
    if decoded.op not in (msg.LOAD, msg.LOAD_QUAD, msg.STORE, msg.STORE_QUAD, *msg.ATOMICS):
        raise unsupported(instruction, f"LSC operation {decoded.op}")
    if not decoded.address_bytes or not decoded.memory_bytes:
        raise unsupported(instruction, "LSC address or data size")
    if decoded.surface in (msg.SURFACE_STATE, msg.BINDLESS):
        raise unsupported(instruction, "bindless surface")
    binding = msg.STATELESS
    if decoded.surface == msg.BINDING_TABLE:
        if message.extended is None:
            raise unsupported(instruction, "binding table index in a register")
        binding = message.extended >> 24
    width = 1 if decoded.transposed else instruction.exec_size
    return compile_access(instruction, message, decoded, binding, width, context, local=message.unit == "slm")


@define(eq=False)
class Access:
    """An LSC message: the data that it moves, and the places of its payloads."""

    instruction: Instruction
    message: Message
    lsc: Lsc
    context: Context
    step: Step
    lanes: Lanes
    count: int  #: addresses
    width: int  #: lanes that payloads have room for
    vector: int  #: elements of an address
    address: Callable[[ThreadGroup, Bools | None], U64]
    local: bool

    @property
    def size(self) -> int:
        """Return the bytes in memory at an address."""
        return self.vector * self.lsc.memory_bytes

    @property
    def data_registers(self) -> int:
        """Return the registers that the data of all lanes take."""
        if self.lsc.transposed:
            return registers(self.lsc.register_bytes, self.vector, self.context)
        return self.vector * registers(self.lsc.register_bytes, self.width, self.context)


def compile_access(
    instruction: Instruction, message: Message, lsc: Lsc, binding: int, width: int, context: Context, *, local: bool
) -> Step:
    """Return the step of a message with one address per lane, whose payloads have room for `width` lanes."""
    layout = context.layout
    vector = len(lsc.channels) or lsc.vector
    if vector > 1 and lsc.memory_bytes < 4:
        raise unsupported(instruction, "vector of narrow elements")
    _check_sizes(instruction, lsc, context, local=local)
    count = 1 if lsc.transposed else instruction.exec_size
    step = send_step(instruction, "send_slm" if local else "send_ugm")
    active_lanes = active(instruction, context)
    address = _addresses(instruction, message, lsc, binding, count)
    access = Access(instruction, message, lsc, context, step, active_lanes, count, width, vector, address, local)
    address_registers = registers(lsc.address_bytes, width, context)
    check_length(context, "an address payload", lsc.address_registers, address_registers)
    fits = check_range(context, "address payload", message.src0.reg, address_registers)
    loads, stores = lsc.op in (msg.LOAD, msg.LOAD_QUAD), lsc.op in (msg.STORE, msg.STORE_QUAD)
    operands = 1 if stores else 0 if loads else msg.ATOMICS[lsc.op][1]
    data = access.data_registers
    check_length(context, "a data payload", message.src1.length, operands * data)
    fits &= check_range(context, "data payload", message.src1.reg, operands * data)
    returns = message.dst.reg >= 0
    if not stores and returns:
        check_length(context, "a response", lsc.response, min(data, 31))
        fits &= check_range(context, "response", message.dst.reg, data)
        step.writes = layout.grf_bits(message.dst.reg, data)
    elif lsc.response:
        context.fault("message-length", "a response goes nowhere")
    step.reads = layout.grf_bits(message.src0.reg, address_registers) | layout.grf_bits(
        message.src1.reg, operands * data
    )
    if instruction.predicate:
        step.reads |= flag_bits(instruction, context)
    if fits:
        step.run = _load(access, returns) if loads else _store(access) if stores else _atomic(access, returns)
    return step


def _check_sizes(instruction: Instruction, lsc: Lsc, context: Context, *, local: bool) -> None:
    """Report combinations of address and element sizes that messages do not have."""
    if lsc.transposed and instruction.exec_size != 1:
        context.fault("message", f"a block message has one address, not {instruction.exec_size}")
    if lsc.transposed and lsc.memory_bytes != lsc.register_bytes:
        context.fault("message", "a block message moves whole d32 or d64 elements")
    if local and lsc.address_bytes == 8:
        context.fault("message", "local memory has 32-bit addresses")


def _addresses(
    instruction: Instruction, message: Message, lsc: Lsc, binding: int, count: int
) -> Callable[[ThreadGroup, Bools | None], U64]:
    """Return a function that fetches addresses [threads, count]; offsets into a surface become addresses."""
    reg, size = message.src0.reg, lsc.address_bytes

    def fetch(g: ThreadGroup, lanes: Bools | None) -> U64:
        report_undefined(g, instruction, undefined(g, reg, size, count), lanes, "the address")
        values = elements(g, reg, size, count).astype(np.uint64)
        return values if binding == msg.STATELESS else values + surface_base(g, instruction, binding)

    return fetch


def surface_base(g: ThreadGroup, instruction: Instruction, binding: int) -> np.uint64:
    """Return the address of the buffer of a binding table entry."""
    allocation = g.env.surfaces.get(binding)
    if allocation is None:
        raise unsupported(instruction, f"binding table entry {binding} belongs to no argument")
    return np.uint64(allocation.base)


def memory_load(
    access: Access, g: ThreadGroup, at: U64, lanes: Bools | None, *, again: bool = False
) -> tuple[Array, Bools | None]:
    """Load words or narrow values [n, threads, count] and their undefined ones; `again` skips all checks."""
    channels = access.lsc.channels
    if channels and channels[-1] >= len(channels):  # they skip one
        whole = evolve(access, vector=1, lsc=evolve(access.lsc, channels=()))
        parts = [memory_load(whole, g, at + np.uint64(4 * channel), lanes, again=again) for channel in channels]
        none = np.zeros((1, *at.shape), np.bool_)
        bad = np.concatenate([none if mark is None else mark for _, mark in parts])
        return np.concatenate([data for data, _ in parts]), bad if bad.any() else None
    if again and access.local:
        return peek_local(g, at, access.size, access.lsc.memory_bytes), None
    if again:
        return peek_lanes(g, at, access.size, lanes), None
    if access.local:
        return load_local(g, access.step, at, access.size, access.lsc.memory_bytes, lanes)
    return load_lanes(g, access.step, at, access.size, lanes, access.lsc.memory_bytes)


def _load(access: Access, returns: bool) -> Callable[[ThreadGroup], None]:
    """Return the function that executes a load, or without `returns` a prefetch."""
    lsc = access.lsc
    counter = f"{'slm' if access.local else 'global'}_read_bytes"
    first, registers_of_element = access.message.dst.reg, registers(lsc.register_bytes, access.width, access.context)

    def place(g: ThreadGroup, words: Array, lanes: Bools | None, bad: Bools | None, put: Landing) -> None:
        if lsc.transposed:  # one thread's consecutive words into consecutive registers
            put(g, first, 4, words[:, :, 0].T, lanes, None if bad is None else bad[:, :, 0].T)
            return
        values, spoilt = element_values(words, bad, lsc.memory_bytes, access.vector, lsc.register_bytes)
        for number in range(access.vector):
            mark = None if spoilt is None else spoilt[number]
            put(g, first + number * registers_of_element, lsc.register_bytes, values[number], lanes, mark)

    def reread(g: ThreadGroup, at: U64, lanes: Bools | None) -> None:
        words, _ = memory_load(access, g, at, lanes, again=True)
        place(g, words, lanes, None, fill)

    def run(g: ThreadGroup) -> None:
        lanes = access.lanes(g)
        if lanes is not None and not lanes.any():
            return
        at = access.address(g, lanes)
        if not returns:  # a prefetch
            g.env.counters["prefetch_bytes"] += active_count(g, lanes, access.count) * access.size
            return
        words, bad = memory_load(access, g, at, lanes)
        g.env.counters[counter] += active_count(g, lanes, access.count) * access.size
        place(g, words, lanes, bad, land)
        if lsc.transposed:  # the rest of the last register is undefined
            grf = g.layout.grf
            mark_undefined(g, first * grf + 4 * len(words), (first + access.data_registers) * grf)
        note_late(g, access.step.index, at, access.size, lanes, reread, local=access.local)

    return run


def element_values(words: Array, bad: Bools | None, memory: int, vector: int, size: int) -> tuple[Array, Bools | None]:
    """Convert loaded words to register elements [vector, threads, lanes]."""
    if memory == 8:
        pairs = words.reshape(vector, 2, *words.shape[1:]).astype(np.uint64)
        values = pairs[:, 0] | pairs[:, 1] << np.uint64(32)
        return values, None if bad is None else any_along(bad.reshape(vector, 2, *bad.shape[1:]), 1)
    if memory == 4 or vector == 1:
        return words.astype(f"u{size}"), bad
    raise AssertionError("vectors of narrow elements are refused")


def active_count(g: ThreadGroup, lanes: Bools | None, count: int) -> int:
    """Return the active lanes of all threads, of which each has `count`."""
    return g.count * count if lanes is None else int(lanes.sum())


def store_values(access: Access, g: ThreadGroup, reg: int) -> tuple[Array, Bools | None]:
    """Return a store's data payload as words or narrow values [n, threads, count], and flags of undefined ones."""
    lsc, size = access.lsc, access.lsc.register_bytes
    if lsc.transposed:
        count = access.size // 4
        bad = undefined(g, reg, 4, count)
        return elements(g, reg, 4, count).T[:, :, None], None if bad is None else bad.T[:, :, None]
    registers_of_element = registers(size, access.width, access.context)
    parts = [elements(g, reg + number * registers_of_element, size, access.count) for number in range(access.vector)]
    apart = size // min(size, lsc.memory_bytes)
    elements_undefined = [
        undefined(g, reg + number * registers_of_element, size // apart, access.count * apart)
        for number in range(access.vector)
    ]
    marks = [None if mark is None else mark[:, ::apart] for mark in elements_undefined]
    values = np.stack(parts)
    spoilt = None
    if any(mark is not None for mark in marks):
        none = np.zeros((g.count, access.count), np.bool_)
        spoilt = np.stack([none if mark is None else mark for mark in marks])
    if size == 8:
        low, high = values & np.uint64(0xFFFFFFFF), values >> np.uint64(32)
        values = np.stack((low, high), axis=1).reshape(-1, *values.shape[1:]).astype(np.uint32)
        spoilt = None if spoilt is None else np.repeat(spoilt, 2, axis=0)
    elif lsc.memory_bytes < 4:
        values = values.astype(np.uint32) & np.uint32((1 << 8 * lsc.memory_bytes) - 1)
    return values, spoilt


def _store(access: Access) -> Callable[[ThreadGroup], None]:
    """Return the function that executes a store."""
    counter = f"{'slm' if access.local else 'global'}_write_bytes"
    step, size = access.step, access.lsc.memory_bytes

    def run(g: ThreadGroup) -> None:
        lanes = access.lanes(g)
        if lanes is not None and not lanes.any():
            return
        at = access.address(g, lanes)
        values, bad = store_values(access, g, access.message.src1.reg)
        g.env.counters[counter] += active_count(g, lanes, access.count) * access.size
        if access.local:
            store_local(g, step, at, access.size, size, values, lanes, bad)
            return
        report_undefined(
            g, access.instruction, None if bad is None else any_along(bad, 0), lanes, "the data that is stored"
        )
        store_global(g, step, at, access.size, values, lanes, size)

    return run


def _atomic(access: Access, returns: bool) -> Callable[[ThreadGroup], None]:
    """Return the function that executes an atomic operation."""
    name, operands = msg.ATOMICS[access.lsc.op]
    if access.vector != 1 or access.lsc.transposed:
        raise unsupported(access.instruction, "atomic operation on vectors")

    def run(g: ThreadGroup) -> None:
        lanes = access.lanes(g)
        if lanes is not None and not lanes.any():
            return
        at = access.address(g, lanes)
        reg, registers_of_operand = access.message.src1.reg, access.data_registers
        values = []
        for number in range(operands):
            report_undefined(
                g,
                access.instruction,
                undefined(g, reg + number * registers_of_operand, access.lsc.register_bytes, access.count),
                lanes,
                "an operand of the atomic operation",
            )
            values.append(elements(g, reg + number * registers_of_operand, access.lsc.register_bytes, access.count))
        old = atomic(g, access.step, name, at, access.lsc.memory_bytes, values, lanes, local=access.local)
        g.env.counters["atomics"] += active_count(g, lanes, access.count)
        if returns:
            land(g, access.message.dst.reg, access.lsc.register_bytes, old, lanes, None)

    return run
