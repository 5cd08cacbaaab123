"""LDS instructions (CDNA3 ISA, "Local Data Share")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convgen.backends.amdgpu.sim import transfer
from convgen.backends.amdgpu.sim.alu.operands import check_tuple
from convgen.backends.amdgpu.sim.decode import Instruction, require_plain
from convgen.backends.amdgpu.sim.ds_access import LdsAddress, data_poison, ds_step, read_lds, write_lds
from convgen.backends.amdgpu.sim.ds_atomics import compile_ds_atomic
from convgen.backends.amdgpu.sim.ds_table import ATOMICS, Elements, elements_of
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step, unsupported
from convgen.backends.amdgpu.sim.waits import issue
from convgen.backends.sim.wave_arrays import Array, Bools

_MODIFIERS = frozenset("offset offset0 offset1 gds".split())


def _compile_reads(instruction: Instruction, context: Context, elements: Elements) -> Step:
    offsets, width, size = elements.offsets, elements.width, elements.width.size
    target, source = instruction.operands
    check_tuple(target, target.count, context)
    check_tuple(source, 1, context)
    step = ds_step(instruction, context, "ds_read", target, source)
    register, source_bits, writes = context.vector(source), context.bits(source), context.bits(target)
    phases = context.arch.banks.get(("read", size))
    addresses = [LdsAddress(register, offset, size, phases) for offset in offsets]
    land, guess = transfer.landing(width), context.text.has_lds_swaps and size in (4, 8)

    def run(g: WaveGroup) -> None:
        transfer.refuse_poison(g, step, source_bits, (register,), "the LDS address")
        lanes = transfer.active(g)
        parts, poisons, units = [], [], []
        for address in addresses:
            at, cycles = address.of(g, step)
            data, poison = read_lds(g, step, at, guess=guess)
            if at.lanes is not None and at.lanes is not lanes:
                data = np.where(at.lanes, data, np.uint32(0))
            parts.append(data)
            poisons.append(poison)
            units.append(at.units)
            g.env.counters["lds_bank_conflict_cycles"] += cycles
        g.env.counters["lds_read_bytes"] += g.active_lanes() * size * len(offsets)
        data = transfer.expand(_joined(parts), width)
        poison = _joined_poison(poisons, parts)
        kept = None if lanes is None else lanes.copy()
        issue(g, Pending(step, "ds", writes, (data, poison, kept, _joined(units)), land))

    return step.running(run)


def _joined(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _joined_poison(poisons: Sequence[Bools | None], parts: Sequence[Array]) -> Bools | None:
    """Return the undefined words of all parts; None if there are none."""
    if all(poison is None for poison in poisons):
        return None
    clean = (np.zeros(part.shape, np.bool_) for part in parts)
    return np.concatenate([none if poison is None else poison for poison, none in zip(poisons, clean)])


def _compile_writes(instruction: Instruction, context: Context, elements: Elements) -> Step:
    offsets, width, size = elements.offsets, elements.width, elements.width.size
    source, *data = instruction.operands
    check_tuple(source, 1, context)
    for operand in data:
        check_tuple(operand, width.registers, context)
    step = ds_step(instruction, context, "ds_write", None, source, *data)
    register, source_bits = context.vector(source), context.bits(source)
    fetches = [transfer.store_words(operand, width, context) for operand in data]
    registers = [context.registers(operand)[: width.registers] for operand in data]
    data_bits = step.reads
    phases = context.arch.banks.get(("write", size))
    addresses = [LdsAddress(register, offset, size, phases) for offset in offsets]

    def run(g: WaveGroup) -> None:
        transfer.refuse_poison(g, step, source_bits, (register,), "the LDS address")
        units = []
        kept = None if g.exec_full else g.exec.copy()
        for address, fetch, regs in zip(addresses, fetches, registers, strict=True):
            at, cycles = address.of(g, step)
            poison = data_poison(g, regs) if g.poison & data_bits else None
            write_lds(g, step, at, fetch(g), poison)
            units.append(at.units)
            g.env.counters["lds_bank_conflict_cycles"] += cycles
        g.env.counters["lds_write_bytes"] += g.active_lanes() * size * len(offsets)
        issue(g, Pending(step, "ds", 0, (None, None, kept, _joined(units)), transfer.land_nothing))

    return step.running(run)


def compile_ds(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of an LDS instruction; None for other mnemonics."""
    name = instruction.name
    if not name.startswith("ds_"):
        return None
    require_plain(instruction, _MODIFIERS)
    if "gds" in instruction.modifiers:
        raise unsupported(instruction, "global data share")
    if elements := elements_of(instruction):
        return (_compile_reads if elements.reads else _compile_writes)(instruction, context, elements)
    if name in ATOMICS:
        return compile_ds_atomic(instruction, context, *ATOMICS[name])
    raise unsupported(instruction)
