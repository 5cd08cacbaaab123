"""LDS instructions (CDNA3 ISA, "Local Data Share")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convgen.backends.amdgpu.sim import transfer
from convgen.backends.amdgpu.sim.alu.operands import check_tuple
from convgen.backends.amdgpu.sim.decode import Instruction, require_plain
from convgen.backends.amdgpu.sim.ds_access import Conflicts, data_poison, ds_step, locate, read_places, write_places
from convgen.backends.amdgpu.sim.ds_atomics import compile_ds_atomic
from convgen.backends.amdgpu.sim.ds_table import ATOMICS, READ2, READS, WRITE2, WRITES
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step, unsupported
from convgen.backends.amdgpu.sim.waits import issue
from convgen.backends.sim.arrays import Array, Bools

_MODIFIERS = frozenset("offset offset0 offset1 gds".split())


def _elements(instruction: Instruction, row: tuple[int, int]) -> tuple[tuple[int, int], int]:
    """Byte offsets of the two elements of read2/write2, and the element size."""
    size, scale = row
    first, second = instruction.number("offset0"), instruction.number("offset1")
    return (first * size * scale, second * size * scale), size


def _compile_reads(
    instruction: Instruction, context: Context, offsets: Sequence[int], size: int, width: transfer.Width
) -> Step:
    target, source = instruction.operands
    check_tuple(target, target.count, context)
    check_tuple(source, 1, context)
    step = ds_step(instruction, context, "ds_read", target, source)
    register, source_bits, writes = context.vector(source), context.bits(source), context.bits(target)
    conflicts = [Conflicts(context.arch.banks.get(("read", size)), max(size // 4, 1)) for _ in offsets]
    land = transfer.landing(width)

    def run(g: WaveGroup) -> None:
        transfer.refuse_poison(g, step, source_bits, (register,), "the LDS address")
        base = g.v[register].astype(np.int64)
        lanes = transfer.active(g)
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
        data = transfer.expand(parts[0] if len(parts) == 1 else np.concatenate(parts), width)
        poison = _stack_poison(poisons, parts)
        noted = None if units[0] is None else np.concatenate([unit for unit in units if unit is not None])
        kept = None if lanes is None else lanes.copy()
        issue(g, Pending(step, "ds", writes, (data, poison, kept, noted), land))

    return step.running(run)


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
    instruction: Instruction, context: Context, offsets: Sequence[int], size: int, width: transfer.Width
) -> Step:
    source, *data = instruction.operands
    check_tuple(source, 1, context)
    for operand in data:
        check_tuple(operand, width.registers, context)
    step = ds_step(instruction, context, "ds_write", None, source, *data)
    register, source_bits = context.vector(source), context.bits(source)
    fetches = [transfer.store_words(operand, width, context) for operand in data]
    registers = [context.registers(operand)[: width.registers] for operand in data]
    data_bits = step.reads
    conflicts = [Conflicts(context.arch.banks.get(("write", size)), max(size // 4, 1)) for _ in offsets]

    def run(g: WaveGroup) -> None:
        transfer.refuse_poison(g, step, source_bits, (register,), "the LDS address")
        base = g.v[register].astype(np.int64)
        units = []
        kept = None if g.exec_full else g.exec.copy()
        for offset, fetch, regs, conflict in zip(offsets, fetches, registers, conflicts, strict=True):
            place, taking = locate(g, step, base + offset, size)
            poison = data_poison(g, regs) if g.poison & data_bits else None
            units.append(write_places(g, step, place, size, fetch(g), poison, taking))
            g.env.counters["lds_bank_conflict_cycles"] += conflict.count(g, base + offset)
        g.env.counters["lds_write_bytes"] += g.active_lanes() * size * len(offsets)
        noted = None if units[0] is None else np.concatenate([unit for unit in units if unit is not None])
        issue(g, Pending(step, "ds", 0, (None, None, kept, noted), transfer.land_nothing))

    return step.running(run)


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
        return _compile_reads(instruction, context, offsets, size, transfer.Width(size))
    if name in WRITES:
        width = WRITES[name]
        return _compile_writes(instruction, context, (instruction.number("offset"),), width.size, width)
    if name in WRITE2:
        offsets, size = _elements(instruction, WRITE2[name])
        return _compile_writes(instruction, context, offsets, size, transfer.Width(size))
    if name in ATOMICS:
        return compile_ds_atomic(instruction, context, *ATOMICS[name])
    raise unsupported(instruction)
