"""LDS instructions (CDNA3 ISA, "Local Data Share")."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np

from convgen.backends.amdgpu.sim.alu.operands import check_tuple
from convgen.backends.amdgpu.sim.archs import BankPhases
from convgen.backends.amdgpu.sim.combine import combine_lanes
from convgen.backends.amdgpu.sim.decode import EXEC, Instruction, Operand, require_plain
from convgen.backends.amdgpu.sim.ds_table import ATOMICS, READ2, READS, WRITE2, WRITES
from convgen.backends.amdgpu.sim.hazards import Consumes
from convgen.backends.amdgpu.sim.lds import bank_conflicts
from convgen.backends.amdgpu.sim.state import Array, Bools, Pending, WaveGroup, any_along, scalar_bits
from convgen.backends.amdgpu.sim.step import Context, Step, unsupported
from convgen.backends.amdgpu.sim.transfer import (
    Width,
    active,
    expand,
    land_nothing,
    land_registers,
    landing,
    refuse_poison,
    store_words,
)
from convgen.backends.amdgpu.sim.waits import issue

_MODIFIERS = frozenset("offset offset0 offset1 gds".split())
#: Alignment that an LDS access of so many bytes needs.
ALIGNMENT: Mapping[int, int] = {1: 1, 2: 2, 4: 4, 8: 8, 12: 16, 16: 16}


@attrs.define
class Conflicts:
    """Counts an instruction's bank conflicts; a pattern of addresses that repeats is counted from memory."""

    phases: BankPhases | None
    width: int
    pattern: Array | None = None
    cycles: int = 0

    def count(self, g: WaveGroup, address: Array) -> int:
        if self.phases is None:
            return 0
        if g.exec_full:
            relative = address - address[:, :1]
            if self.pattern is not None and np.array_equal(relative, self.pattern):
                return self.cycles
            self.pattern = relative
            self.cycles = bank_conflicts(self.phases, address >> 2, self.width, g.exec)
            return self.cycles
        return bank_conflicts(self.phases, address >> 2, self.width, g.exec)


def locate(g: WaveGroup, step: Step, address: Array, size: int, alignment: int = 0) -> tuple[Array, Bools | None]:
    """Flat LDS places of byte addresses, and the lanes that take part (None: all).

    Reports accesses beyond the workgroup's allocation or not aligned (by default to what their size needs); the former
    take no part.
    """
    alignment = alignment or ALIGNMENT[size]
    lds, lanes = g.env.lds, active(g)
    used = address if lanes is None else np.where(lanes, address, 0)
    if int(used.max()) + size > lds.size:
        bad = used + size > lds.size if lanes is None else (used + size > lds.size) & lanes
        if bad.any():
            row, lane = (int(i) for i in np.argwhere(bad)[0])
            g.env.reporter.add(
                "lds-bounds",
                f"{size} bytes at LDS address {int(used[row, lane]):#x}; the workgroup has {lds.size:#x}",
                step.instruction,
                g,
                row,
                lane,
            )
            lanes = ~bad if lanes is None else lanes & ~bad
            used = np.where(lanes, used, 0)
    if int(np.bitwise_or.reduce(used, axis=None)) & (alignment - 1):
        bad = (used & (alignment - 1)) != 0
        g.env.reporter.at_first(
            "misaligned", f"LDS access of {size} bytes not aligned to {alignment}", step.instruction, g, bad
        )
    return used + (g.slot * lds.stride)[:, None], lanes


def read_places(
    g: WaveGroup, step: Step, place: Array, size: int, lanes: Bools | None
) -> tuple[Array, Bools | None, Array | None]:
    """Data, poison ([words, waves, lanes]) and stamp units (None without strictness) of a read."""
    lds = g.env.lds
    data = lds.load(place, size)
    if not g.env.strict:
        return data, None, None
    units = lds.units(place, size)
    if lanes is None:
        undefined = lds.note_read(g, step, units, g.stamp)
    else:
        some = np.broadcast_to(lanes, units.shape)
        mine = np.broadcast_to(g.stamp, units.shape)[some]
        flat = lds.note_read(g, step, units[some], mine)
        undefined = None
        if flat is not None:
            undefined = np.zeros(units.shape, np.bool_)
            undefined[some] = flat
    poison = None
    if undefined is not None:
        words = max(size // 4, 1)
        poison = any_along(undefined.reshape(words, -1, *place.shape), 1) if len(undefined) > words else undefined
        poison = np.repeat(poison, words // len(poison), axis=0)
    return data, poison, units


def write_places(
    g: WaveGroup, step: Step, place: Array, size: int, values: Array, poison: Bools | None, lanes: Bools | None
) -> Array | None:
    """Write data, stamp it and give the stamp units (None without strictness)."""
    lds = g.env.lds
    if lanes is None:
        lds.store(place, size, values)
    else:
        some = lanes & np.ones(place.shape, np.bool_)
        lds.store(place[some], size, values[:, some])
    if not g.env.strict:
        return None
    units = lds.units(place, size)
    clean: Array | int = 1
    if poison is not None:
        per = max(len(units) // len(poison), 1)
        merged = poison if len(units) >= len(poison) else any_along(poison.reshape(len(units), -1, *place.shape), 1)
        clean = (~np.repeat(merged, per, axis=0)).astype(np.uint32)
    if lanes is None:
        lds.note_write(g, step, units, g.stamp, clean)
    else:
        where = np.broadcast_to(lanes, units.shape)
        mine = np.broadcast_to(g.stamp, units.shape)[where]
        lds.note_write(g, step, units[where], mine, clean if isinstance(clean, int) else clean[where])
    return units


def _data_poison(g: WaveGroup, registers: tuple[int, ...]) -> Bools | None:
    """Poison of store data as [registers, waves, lanes]."""
    rows = [g.vector_poison(register) for register in registers]
    if all(row is None for row in rows):
        return None
    clean: Bools = np.zeros((g.count, 64), np.bool_)
    return np.stack([clean if row is None else row for row in rows])


def _step(instruction: Instruction, context: Context, kind: str, loads: Operand | None, *others: Operand) -> Step:
    """A step with the registers and hazards of an LDS instruction; `run` is filled in later."""
    reads = scalar_bits(EXEC, 2)
    touched = 0
    for operand in others:
        touched |= context.bits(operand)
    writes = 0 if loads is None else context.bits(loads)
    consumes = [Consumes("mem_read", touched)]
    if writes:
        consumes.append(Consumes("mem_write", writes))
    return Step(instruction, kind, lambda g: None, reads | touched, writes, (), tuple(consumes))


def _elements(instruction: Instruction, row: tuple[int, int]) -> tuple[tuple[int, int], int]:
    """Byte offsets of the two elements of read2/write2, and the element size."""
    size, scale = row
    first, second = instruction.number("offset0"), instruction.number("offset1")
    return (first * size * scale, second * size * scale), size


def _compile_reads(instruction: Instruction, context: Context, offsets: Sequence[int], size: int, width: Width) -> Step:
    target, source = instruction.operands
    check_tuple(target, target.count, context)
    check_tuple(source, 1, context)
    step = _step(instruction, context, "ds_read", target, source)
    register, source_bits, writes = context.vector(source), context.bits(source), context.bits(target)
    conflicts = [Conflicts(context.arch.banks.get(("read", size)), max(size // 4, 1)) for _ in offsets]
    land = landing(width)

    def run(g: WaveGroup) -> None:
        refuse_poison(g, step, source_bits, (register,), "the LDS address")
        base = g.v[register].astype(np.int64)
        lanes = active(g)
        parts, poisons, units = [], [], []
        taking = lanes
        for offset, conflict in zip(offsets, conflicts, strict=True):
            place, taking = locate(g, step, base + offset, size)
            data, poison, unit = read_places(g, step, place, size, taking)
            if taking is not None and taking is not lanes:
                data = np.where(taking, data, np.uint32(0))
            parts.append(data)
            poisons.append(poison)
            units.append(unit)
            g.env.counters["lds_bank_conflict_cycles"] += conflict.count(g, base + offset)
        g.env.counters["lds_read_bytes"] += g.active_lanes() * size * len(offsets)
        data = expand(parts[0] if len(parts) == 1 else np.concatenate(parts), width)
        poison = _stack_poison(poisons, parts)
        noted = None if units[0] is None else np.concatenate([unit for unit in units if unit is not None])
        kept = None if lanes is None else lanes.copy()
        issue(g, Pending(step, "ds", writes, (data, poison, kept, noted), land))

    step.run = run
    return step


def _stack_poison(poisons: Sequence[Bools | None], parts: Sequence[Array]) -> Bools | None:
    if all(poison is None for poison in poisons):
        return None
    return np.concatenate(
        [
            np.zeros(part.shape, np.bool_) if poison is None else poison
            for poison, part in zip(poisons, parts, strict=True)
        ]
    )


def _compile_writes(
    instruction: Instruction, context: Context, offsets: Sequence[int], size: int, width: Width
) -> Step:
    source, *data = instruction.operands
    check_tuple(source, 1, context)
    for operand in data:
        check_tuple(operand, width.registers, context)
    step = _step(instruction, context, "ds_write", None, source, *data)
    register, source_bits = context.vector(source), context.bits(source)
    fetches = [store_words(operand, width, context) for operand in data]
    registers = [context.registers(operand)[: width.registers] for operand in data]
    data_bits = step.reads
    conflicts = [Conflicts(context.arch.banks.get(("write", size)), max(size // 4, 1)) for _ in offsets]

    def run(g: WaveGroup) -> None:
        refuse_poison(g, step, source_bits, (register,), "the LDS address")
        base = g.v[register].astype(np.int64)
        units = []
        kept = None if g.exec_full else g.exec.copy()
        for offset, fetch, regs, conflict in zip(offsets, fetches, registers, conflicts, strict=True):
            place, taking = locate(g, step, base + offset, size)
            poison = _data_poison(g, regs) if g.poison & data_bits else None
            units.append(write_places(g, step, place, size, fetch(g), poison, taking))
            g.env.counters["lds_bank_conflict_cycles"] += conflict.count(g, base + offset)
        g.env.counters["lds_write_bytes"] += g.active_lanes() * size * len(offsets)
        noted = None if units[0] is None else np.concatenate([unit for unit in units if unit is not None])
        issue(g, Pending(step, "ds", 0, (None, None, kept, noted), land_nothing))

    step.run = run
    return step


def _atomic(instruction: Instruction, context: Context, function: Callable[[Array, Array], Array], size: int) -> Step:
    """ds_OP and ds_OP_rtn: read, combine, write; lanes that meet are combined one after the other."""
    returning = "_rtn_" in instruction.name
    operands = list(instruction.operands)
    target = operands.pop(0) if returning else None
    source, data = operands
    for operand in instruction.operands:
        check_tuple(operand, operand.count, context)
    step = _step(instruction, context, "ds_write", target, source, data)
    register, source_bits = context.vector(source), context.bits(source)
    offset, fetch = instruction.number("offset"), store_words(data, Width(size), context)
    dtype = np.uint64 if size == 8 else np.uint32
    writes = step.writes

    def run(g: WaveGroup) -> None:
        refuse_poison(g, step, source_bits | step.reads, (register, *context.registers(data)), "an operand")
        place, taking = locate(g, step, g.v[register].astype(np.int64) + offset, size)
        lanes = np.ones(place.shape, np.bool_) if taking is None else taking
        memory = g.env.lds.words.view(dtype) if size == 4 else g.env.lds.data.view(np.uint64)
        words = np.moveaxis(np.ascontiguousarray(fetch(g)), 0, -1)
        values = np.ascontiguousarray(words).view(dtype)[..., 0]
        old = combine_lanes(memory, place // size, values, lanes, function)
        g.env.counters["lds_write_bytes"] += int(lanes.sum()) * size
        kept = None if taking is None else taking.copy()
        if returning:
            back = np.moveaxis(old[..., None].view(np.uint32), -1, 0)
            issue(g, Pending(step, "ds", writes, (back, None, kept, None), land_registers))
        else:
            issue(g, Pending(step, "ds", 0, (None, None, None, None), land_nothing))

    step.run = run
    return step


def compile_ds(instruction: Instruction, context: Context) -> Step | None:
    """A step for an LDS instruction, None when the mnemonic is none."""
    name = instruction.name
    if not name.startswith("ds_"):
        return None
    require_plain(instruction, _MODIFIERS)
    if "gds" in instruction.modifiers:
        raise unsupported(instruction, "global data share")
    if name in READS:
        width = READS[name]
        return _compile_reads(instruction, context, (instruction.number("offset"),), width.size, width)
    if name in READ2:
        offsets, size = _elements(instruction, READ2[name])
        return _compile_reads(instruction, context, offsets, size, Width(size))
    if name in WRITES:
        width = WRITES[name]
        return _compile_writes(instruction, context, (instruction.number("offset"),), width.size, width)
    if name in WRITE2:
        offsets, size = _elements(instruction, WRITE2[name])
        return _compile_writes(instruction, context, offsets, size, Width(size))
    if name in ATOMICS:
        return _atomic(instruction, context, *ATOMICS[name])
    raise unsupported(instruction)
