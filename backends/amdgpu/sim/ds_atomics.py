"""Atomic LDS instructions: read, combine, write; lanes that meet are combined one after the other."""

from __future__ import annotations

import numpy as np

from convgen.backends.amdgpu.sim.alu.operands import check_tuple
from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.sim.ds_access import ds_step, locate
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step
from convgen.backends.amdgpu.sim.transfer import land_nothing, land_registers, numbers, refuse_poison
from convgen.backends.amdgpu.sim.waits import issue
from convgen.backends.sim.arrays import Array, Bools, any_along
from convgen.backends.sim.combine import Combine, combine_lanes


def compile_ds_atomic(instruction: Instruction, context: Context, function: Combine, size: int) -> Step:
    """A step for ds_OP and ds_OP_rtn; cmpst takes the comparand, then the data (CDNA3 ISA, DS_CMPST_B32)."""
    returning = "_rtn_" in instruction.name
    operands = list(instruction.operands)
    target = operands.pop(0) if returning else None
    source, *data = operands
    for operand in instruction.operands:
        check_tuple(operand, operand.count, context)
    step = ds_step(instruction, context, "ds_write", target, source, *data)
    register, source_bits = context.vector(source), context.bits(source)
    every = tuple(index for operand in data for index in context.registers(operand))
    offset, places = instruction.number("offset"), [context.vector(operand) for operand in data]
    replaces = "wrxchg" in instruction.name

    def run(g: WaveGroup) -> None:
        refuse_poison(g, step, source_bits, (register,), "the LDS address")
        refuse_poison(g, step, step.reads, every, "the data of an atomic operation")
        place, taking = locate(g, step, g.v[register].astype(np.int64) + offset, size)
        lanes = np.ones(place.shape, np.bool_) if taking is None else taking
        units = _note(g, step, place, size, lanes, replaces=replaces) if g.env.strict else None
        values = numbers(g, places[-1], size)
        expected = numbers(g, places[0], size) if len(places) == 2 else None
        old = combine_lanes(g.env.local.data.view(values.dtype), place // size, values, lanes, function, expected)
        g.env.counters["lds_write_bytes"] += int(lanes.sum()) * size
        kept = None if taking is None else taking.copy()
        back = np.moveaxis(old[..., None].view(np.uint32), -1, 0) if returning else None
        land = land_registers if returning else land_nothing
        issue(g, Pending(step, "ds", step.writes, (back, None, kept, units), land))

    return step.running(run)


def _note(g: WaveGroup, step: Step, place: Array, size: int, lanes: Bools, *, replaces: bool) -> Array:
    """Stamp the operation and report undefined memory; gives the stamp units."""
    lds = g.env.local
    units = lds.units(place, size)
    where = np.broadcast_to(lanes, units.shape)
    mine = np.broadcast_to(g.stamp, units.shape)[where]
    flat = lds.note_update(g, step, units[where], mine)
    if flat is not None and not replaces:
        undefined = np.zeros(units.shape, np.bool_)
        undefined[where] = flat
        g.env.reporter.at_first(
            "poison", "the LDS of an atomic operation is undefined", step.instruction, g, any_along(undefined, 0)
        )
    if replaces:
        lds.stamp_write(units[where], lds.written.take(units[where]) & np.uint32(0xFFFFFFFE), 1)
    return units
