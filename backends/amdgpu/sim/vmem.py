"""Vector memory: buffer, global and flat loads, stores and LDS DMA (CDNA3 ISA, "Vector Memory Operations")."""

from __future__ import annotations

import re

import numpy as np

from convgen.backends.amdgpu.sim import transfer
from convgen.backends.amdgpu.sim.addressing import Address, buffer_address, global_address, scratch_address
from convgen.backends.amdgpu.sim.alu.operands import check_tuple
from convgen.backends.amdgpu.sim.atomics import atomic_step
from convgen.backends.amdgpu.sim.decode import M0, Instruction, Operand, require_plain
from convgen.backends.amdgpu.sim.ds_access import locate, read_lds, write_lds
from convgen.backends.amdgpu.sim.hazards import Consumes
from convgen.backends.amdgpu.sim.scopes import land_observed, publish_and_observe
from convgen.backends.amdgpu.sim.scratch import Where
from convgen.backends.amdgpu.sim.sources import ALIGNED
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup, scalar_bits
from convgen.backends.amdgpu.sim.step import Context, Step, unsupported
from convgen.backends.amdgpu.sim.stores import store_checked
from convgen.backends.amdgpu.sim.waits import issue
from convgen.backends.sim.global_access import LoadKind, issue_store, load_lanes
from convgen.backends.sim.local import Stretch
from convgen.backends.sim.wave_arrays import Array, Bools, any_along, united

_NAME = re.compile(r"(buffer|global|flat|scratch)_(load|store|atomic)_(.+)$")
_ADDRESSES = {"buffer": buffer_address, "global": global_address, "flat": global_address, "scratch": scratch_address}
_M0_ADDRESS = np.uint32(0x3FFFF)  #: bits of M0 that hold an address in LDS
_MODIFIERS = frozenset("offen idxen offset glc slc scc sc0 sc1 nt lds".split())


def compile_vmem(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a vector memory instruction; None for other mnemonics."""
    match = _NAME.match(instruction.name)
    if match is None:
        return None
    require_plain(instruction, _MODIFIERS)
    space, action, what = match[1], match[2], match[3]
    dma = "lds" in instruction.modifiers
    if what.startswith("lds_"):
        dma, what = True, what.removeprefix("lds_")
    operands = list(instruction.operands)
    make = _ADDRESSES[space]
    if space == "scratch" and (dma or action == "atomic"):
        raise unsupported(instruction)
    if action == "atomic":
        return atomic_step(instruction, context, space, what, operands, make)
    widths = transfer.LOADS if action == "load" else transfer.STORES
    width = widths.get(what)
    if width is None:
        raise unsupported(instruction)
    if action == "store":
        data = operands.pop(0 if space == "buffer" else 1)
        return _store(instruction, context, width, data, make(instruction, context, operands), space)
    if dma:
        return _dma(instruction, context, width, make(instruction, context, operands))
    target = operands.pop(0)
    return _load(instruction, context, width, target, make(instruction, context, operands), space)


def load_words(
    g: WaveGroup, step: Step, where: Where, size: int, kind: LoadKind = LoadKind.PLAIN
) -> tuple[Array, Bools | None]:
    """Load `size` bytes per lane; words outside a descriptor's range read 0."""
    if where.local is not None:
        return _load_flat(g, step, where, size)
    if where.pieces is not None:
        return _load_pieces(g, step, where)
    if where.words is None:
        return load_lanes(g, step, where.address, size, where.lanes, kind=kind)
    data, poison = [], []
    for word, lanes in enumerate(where.words):
        got, bad = load_lanes(g, step, where.address + np.uint64(where.stride * word), 4, lanes)
        data.append(got[0])
        poison.append(np.zeros(got[0].shape, np.bool_) if bad is None else bad[0])
    return np.stack(data), np.stack(poison)


def _load_pieces(g: WaveGroup, step: Step, where: Where) -> tuple[Array, Bools | None]:
    """Load byte by byte; return words [words, waves, lanes], or values of two bytes [1, waves, lanes]."""
    assert where.pieces is not None
    got = [load_lanes(g, step, address, 1, where.lanes) for address in where.pieces]
    words = [
        [data[0] << np.uint32(8 * number) for number, (data, _) in enumerate(got[first : first + 4])]
        for first in range(0, len(got), 4)
    ]
    bad = united(None if poison is None else poison[0] for _, poison in got)
    data = np.stack([np.bitwise_or.reduce(word) for word in words])
    return data, None if bad is None else np.broadcast_to(bad, data.shape)


def _store_pieces(g: WaveGroup, step: Step, where: Where, values: Array, ticket: int) -> None:
    assert where.pieces is not None
    for number, address in enumerate(where.pieces):
        byte = values[number // 4] >> np.uint32(8 * (number % 4)) & np.uint32(0xFF)
        store_checked(g, step, address, 1, byte[None], where.lanes, ticket)


def _may_be_atomic(instruction: Instruction, context: Context, width: transfer.Width) -> bool:
    """Return whether a store may be a flag that other workgroups wait for."""
    modifier = context.arch.scope.store
    return context.text.acquires and width.size >= 4 and (not modifier or modifier in instruction.modifiers)


def _publish(g: WaveGroup, where: Where, size: int, ticket: int, kind: str) -> Array | None:
    """Publish by an atomic load or store; return what each wave observes (`scopes.publish_and_observe`)."""
    observed: Array | None = None
    for allocation, some in g.env.memory.resolve(where.address, size, where.lanes)[0]:
        taken = some if some is not None else where.lanes
        offset = (where.address - np.uint64(allocation.base)).astype(np.int64)
        if taken is not None:
            offset = np.where(taken, offset, 0)
        observed = publish_and_observe(g, allocation, offset, size, taken, ticket, kind)
    return observed


def _load_flat(g: WaveGroup, step: Step, where: Where, size: int) -> tuple[Array, Bools | None]:
    """Load by a flat instruction of which some lanes address LDS."""
    assert where.local is not None
    data, poison = load_lanes(g, step, where.address, size, where.device_lanes)
    got, bad = read_lds(g, step, locate(g, step, where.local_offset, size, lanes=where.local))
    return np.where(where.local, got, data), united((poison, None if bad is None else bad & where.local))


def _store_flat(g: WaveGroup, step: Step, where: Where, size: int, values: Array, ticket: int) -> None:
    """Store by a flat instruction of which some lanes address LDS."""
    store_checked(g, step, where.address, size, values, where.device_lanes, ticket)
    write_lds(g, step, locate(g, step, where.local_offset, size, lanes=where.local), values, None)


def _load(
    instruction: Instruction, context: Context, width: transfer.Width, target: Operand, address: Address, space: str
) -> Step:
    check_tuple(target, width.registers, context)
    step = transfer.memory_step(instruction, context, "vmem_load", address, target)
    registers = context.registers(target)[: width.registers]
    writes, land = step.writes, transfer.landing(width)
    scope = context.arch.scope
    atomic = context.text.acquires and width.size >= 4 and scope.load in instruction.modifiers
    kind = LoadKind.GUESS if context.text.has_global_swaps and width.size in (4, 8) else LoadKind.PLAIN
    if atomic:
        kind = LoadKind.ATOMIC if scope.store else LoadKind.ATOMIC_UNMARKED
    if atomic:
        plain = land

        def land(g: WaveGroup, pending: Pending) -> None:
            plain(g, pending)
            land_observed(g, pending)

    def run(g: WaveGroup) -> None:
        transfer.check_address(g, step, address)
        where = address.resolve(g, step, width.size, transfer.active(g))
        data, poison = load_words(g, step, where, width.size, kind)
        g.env.counters["global_read_bytes"] += where.moved(g.active_lanes(), width.size)
        if poison is not None and where.private:
            g.env.scratch.restore_undefined(g, where, registers, poison)
        kept = None if g.exec_full else g.exec.copy()
        payload: tuple[Array | None, ...] = (transfer.expand(data, width), poison, kept)
        if atomic:
            payload += (None, _publish(g, where, width.size, 0, "load"))
        issue(g, Pending(step, transfer.queue_of(space, where), writes, payload, land))

    return step.running(run)


def _store(
    instruction: Instruction, context: Context, width: transfer.Width, data: Operand, address: Address, space: str
) -> Step:
    check_tuple(data, width.registers, context)
    bits = context.bits(data)
    step = transfer.memory_step(instruction, context, "vmem_store", address, None, bits)
    fetch, registers = transfer.store_words(data, width, context), context.registers(data)[: width.registers]
    publishes = _may_be_atomic(instruction, context, width)
    atomic = publishes and bool(context.arch.scope.store)

    def run(g: WaveGroup) -> None:
        transfer.check_address(g, step, address)
        where = address.resolve(g, step, width.size, transfer.active(g))
        values = fetch(g)
        ticket = issue_store(g)
        undefined = bool(g.poison & bits) and g.env.strict
        if undefined and not where.private:
            _refuse_poisoned_data(g, step, registers, where.words, where.lanes)
        if where.local is not None:
            _store_flat(g, step, where, width.size, values, ticket)
        elif where.pieces is not None:
            _store_pieces(g, step, where, values, ticket)
        elif where.words is None:
            store_checked(g, step, where.address, width.size, values, where.lanes, ticket, atomic=atomic)
            if publishes and g.env.strict:
                _publish(g, where, width.size, ticket, "store")
        else:
            for word, lanes in enumerate(where.words):
                at = where.address + np.uint64(where.stride * word)
                store_checked(g, step, at, 4, values[word : word + 1], lanes, ticket)
        if undefined and where.private:
            g.env.scratch.note_undefined(g, where, registers, width.size)
        g.env.counters["global_write_bytes"] += where.moved(g.active_lanes(), width.size)
        issue(g, Pending(step, transfer.queue_of(space, where), 0, (), transfer.land_stores, (ticket,)))

    return step.running(run)


def _refuse_poisoned_data(
    g: WaveGroup, step: Step, registers: tuple[int, ...], words: list[Bools] | None, lanes: Bools | None
) -> None:
    for number, register in enumerate(registers):
        bad = g.vector_poison(register)
        if bad is None:
            continue
        taking = words[number] if words is not None else lanes
        bad = bad if taking is None else bad & taking
        if bad.any():
            g.env.reporter.at_first("poison", "the stored value is undefined", step.instruction, g, bad)
            return


def _dma(instruction: Instruction, context: Context, width: transfer.Width, address: Address) -> Step:
    """Compile a load straight into LDS: lane l of a wave writes at M0 + instruction offset + l * size."""
    step = transfer.memory_step(instruction, context, "lds_dma", address, None)
    m0 = scalar_bits(M0)
    step.reads |= m0
    step.consumes += (Consumes("m0_buffer" if instruction.name.startswith("buffer_") else "m0_use", m0),)
    lds_size = max(width.size, 4)  # bytes of a lane in LDS
    lane_offset = np.arange(64, dtype=np.int64) * lds_size + instruction.number("offset")

    def run(g: WaveGroup) -> None:
        transfer.check_address(g, step, address)
        transfer.refuse_scalar_poison(g, step, m0, (M0,), "M0")
        data, poison = load_words(g, step, address.resolve(g, step, width.size, transfer.active(g)), width.size)
        data = transfer.expand(data, width)
        if poison is not None and (poison & g.exec).any():
            g.env.reporter.at_first(
                "poison", "undefined memory is copied to LDS", step.instruction, g, any_along(poison & g.exec, 0)
            )
        base = (g.s[M0] & _M0_ADDRESS).astype(np.int64)[:, None] + lane_offset
        at = locate(g, step, base, lds_size, alignment=4, aligned=ALIGNED)
        g.env.counters["global_read_bytes"] += g.active_lanes() * width.size
        g.env.counters["lds_write_bytes"] += g.active_lanes() * lds_size
        units = at.units if g.env.strict else None
        if units is not None:
            _stamp(g, step, units, at.lanes, pending=True)
        kept = None if at.lanes is None else at.lanes.copy()
        issue(g, Pending(step, "vm", 0, (data, at.place, kept, units), _land_dma))

    return step.running(run)


def _stamp(g: WaveGroup, step: Step, units: Array, lanes: Bools | None, *, pending: bool) -> None:
    """Stamp the LDS that a DMA load writes: undefined while `pending`, defined once complete."""
    mine = g.stamp
    if lanes is not None:
        where = np.broadcast_to(lanes, units.shape)
        units, mine = units[where], np.broadcast_to(g.stamp, units.shape)[where]
    if pending:
        g.env.local.note_write(g, step, units, mine, 0)
    else:
        g.env.local.stamp_write(units, mine, 1)


def _land_dma(g: WaveGroup, pending: Pending) -> None:
    data, place, lanes, units = pending.payload
    assert data is not None
    assert place is not None
    size = 4 * len(data)
    if lanes is None:
        g.env.local.store(Stretch.of(place, size), data)
    else:
        g.env.local.store(Stretch.of(place[lanes], size), data[:, lanes])
    if units is not None:
        _stamp(g, pending.step, units, lanes, pending=False)
