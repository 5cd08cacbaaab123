"""Atomic LDS instructions: read, combine, write; lanes with equal addresses are combined one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from convgen.backends.amdgpu.sim.alu.operands import check_tuple
from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.sim.ds_access import ds_step, locate
from convgen.backends.amdgpu.sim.ds_table import EXCHANGE2, TWO_OPERANDS
from convgen.backends.amdgpu.sim.sources import ALIGNED
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step
from convgen.backends.amdgpu.sim.transfer import land_nothing, land_registers, refuse_poison, register_values
from convgen.backends.amdgpu.sim.waits import issue
from convgen.backends.sim.combine import Combine, combine_lanes
from convgen.backends.sim.wave_arrays import Array, Bools, any_along


def compile_ds_atomic(instruction: Instruction, context: Context, function: Combine, size: int) -> Step:
    """Return the step of ds_OP or ds_OP_rtn; cmpst reads the comparand, then the data (CDNA3 ISA, DS_CMPST_B32)."""
    name = instruction.name
    operands = list(instruction.operands)
    target = operands.pop(0) if "_rtn_" in name else None
    source, *data = operands
    for operand in instruction.operands:
        check_tuple(operand, operand.count, context)
    step = ds_step(instruction, context, "ds_write", target, source, *data)
    register, source_bits = context.vector(source), context.bits(source)
    data_registers = tuple(index for operand in data for index in context.registers(operand))
    offsets = [instruction.number("offset")]
    if name in EXCHANGE2:
        far = EXCHANGE2[name][0] * size
        offsets = [instruction.number("offset0") * far, instruction.number("offset1") * far]
    exchange = _exchange(
        name, function, size, [context.vector(operand) for operand in data], pairwise=len(offsets) == 2
    )
    land = land_nothing if target is None else land_registers

    def run(g: WaveGroup) -> None:
        refuse_poison(g, step, source_bits, (register,), "the LDS address")
        refuse_poison(g, step, step.reads, data_registers, "the data of an atomic operation")
        old_words, noted = [], []
        for number, offset in enumerate(offsets):
            at = locate(g, step, g.v[register].astype(np.int64) + offset, size, aligned=ALIGNED)
            lanes = np.ones(at.place.shape, np.bool_) if at.lanes is None else at.lanes
            noted.append(at.units)
            if g.env.strict:
                note_update(g, step, at.units, lanes, replaces="wrxchg" in name)
            old = exchange(g, number, at.place, lanes)
            if g.env.strict and name.startswith("ds_cmpst_rtn_"):
                _check_guesses(g, at.units, lanes)
            old_words.append(np.moveaxis(np.ascontiguousarray(old)[..., None].view(np.uint32), -1, 0))
            g.env.counters["lds_write_bytes"] += int(lanes.sum()) * size
        kept = None if at.lanes is None else at.lanes.copy()
        back = None if target is None else np.concatenate(old_words)
        issue(g, Pending(step, "ds", step.writes, (back, None, kept, np.concatenate(noted)), land))

    return step.running(run)


Exchange = Callable[[WaveGroup, int, Array, Bools], Array]


def _exchange(name: str, function: Combine, size: int, places: Sequence[int], *, pairwise: bool) -> Exchange:
    """Return a function that does the operation on LDS, number 0 or 1 of a pair, and returns the old values.

    `places` are the first registers of the data; with `pairwise` each operation has its own.
    """
    compares = "cmpst" in name
    real = {4: np.float32, 8: np.float64}[size] if compares and name.endswith(("f32", "f64")) else None

    def exchange(g: WaveGroup, number: int, place: Array, lanes: Bools) -> Array:
        values = register_values(g, places[number if pairwise else -1], size)
        expected = register_values(g, places[0], size) if compares else None
        if real is not None and expected is not None:
            values, expected = values.view(real), expected.view(real)
        memory, combine = g.env.local.data.view(values.dtype), function
        if name in TWO_OPERANDS:
            first, second = register_values(g, places[0], size).reshape(-1), values.reshape(-1)
            meaning = TWO_OPERANDS[name][0]
            combine = lambda old, at: meaning(old, first[at], second[at])  # noqa: E731
            values = np.arange(values.size).reshape(values.shape)
        return combine_lanes(memory, place // size, values, lanes, combine, expected)

    return exchange


def _check_guesses(g: WaveGroup, units: Array, lanes: Bools) -> None:
    """Note that a compare-and-swap shows whether earlier reads of LDS were stale."""
    where = np.broadcast_to(lanes, units.shape)
    g.env.local.check_guesses(units[where], np.broadcast_to(g.stamp, units.shape)[where])


def note_update(g: WaveGroup, step: Step, units: Array, lanes: Bools, *, replaces: bool) -> None:
    """Stamp an atomic operation and report undefined LDS, unless the operation `replaces` the old value."""
    lds = g.env.local
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
