"""Atomic operations on device memory. Lanes that meet at one address are combined in lane order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.amdgpu.sim.addressing import Address
from convgen.backends.amdgpu.sim.alu.operands import check_tuple
from convgen.backends.amdgpu.sim.combine import FLOATING, INTEGER, Combine, combine_lanes
from convgen.backends.amdgpu.sim.decode import Instruction, Operand
from convgen.backends.amdgpu.sim.global_access import parts_of
from convgen.backends.amdgpu.sim.hazards import Consumes
from convgen.backends.amdgpu.sim.state import Array, Pending, WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step, unsupported
from convgen.backends.amdgpu.sim.transfer import (
    active,
    land_nothing,
    land_registers,
    refuse_poison,
    refuse_scalar_poison,
)
from convgen.backends.amdgpu.sim.waits import issue

#: function and bytes by the mnemonic's suffix
ATOMICS: Mapping[str, tuple[Combine, int]] = {
    **{name: (function, 4) for name, function in INTEGER.items()},
    **{f"{name}_x2": (function, 8) for name, function in INTEGER.items()},
    **FLOATING,
}


def atomic_step(
    instruction: Instruction,
    context: Context,
    space: str,
    what: str,
    operands: list[Operand],
    make: Callable[[Instruction, Context, list[Operand]], Address],
) -> Step:
    """A step for buffer, global or flat atomics; cmpswap takes data and comparand."""
    compare = what.startswith("cmpswap")
    if compare:
        function, size = INTEGER["swap"], 8 if what.endswith("_x2") else 4
    elif what in ATOMICS:
        function, size = ATOMICS[what]
    else:
        raise unsupported(instruction)
    returning = "glc" in instruction.modifiers or "sc0" in instruction.modifiers
    if space == "buffer":
        data = operands.pop(0)
        target = data if returning else None
    else:
        target = operands.pop(0) if returning else None
        data = operands.pop(1)
    check_tuple(data, data.count, context)
    if target is not None:
        check_tuple(target, size // 4, context)
    address = make(instruction, context, operands)
    data_bits = context.bits(data)
    first, words = context.vector(data), size // 4
    writes = 0 if target is None else ((1 << words) - 1) << context.vector(target)
    reads = data_bits | address.vector_bits | address.scalar_bits
    consumes = (
        Consumes("mem_read", data_bits | address.vector_bits),
        Consumes("mem_write", writes),
        Consumes("vmem_sgpr", address.scalar_bits),
    )
    step = Step(instruction, "atomic", lambda g: None, reads, writes, (), tuple(use for use in consumes if use.mask))
    dtype = np.uint64 if size == 8 else np.uint32

    def numbers(g: WaveGroup, register: int) -> Array:
        raw = np.ascontiguousarray(np.moveaxis(g.v[register : register + words], 0, -1))
        return raw.view(dtype)[..., 0]

    def run(g: WaveGroup) -> None:
        refuse_poison(g, step, address.vector_bits, address.vectors, "the address")
        refuse_scalar_poison(g, step, address.scalar_bits, address.scalars, "the base or descriptor")
        refuse_poison(g, step, data_bits, context.registers(data), "the data of an atomic operation")
        where = address.resolve(g, step, size, active(g))
        values = numbers(g, first)
        expected = numbers(g, first + words) if compare else None
        old = np.zeros(values.shape, dtype)
        for allocation, offset, taken in parts_of(g, step, where.address, size, where.lanes):
            memory = allocation.data[: len(allocation.data) // size * size].view(dtype)
            lanes = np.ones(values.shape, np.bool_) if taken is None else taken
            found = combine_lanes(memory, offset // size, values, lanes, function, expected)
            old = np.where(lanes, found, old)
        g.env.counters["atomic_bytes"] += g.active_lanes() * size
        kind = "flat" if space == "flat" else "vm"
        if writes:
            back = np.moveaxis(old[..., None].view(np.uint32), -1, 0)
            kept = None if g.exec_full else g.exec.copy()
            issue(g, Pending(step, kind, writes, (back, None, kept), land_registers))
        else:
            issue(g, Pending(step, kind, 0, (), land_nothing))

    step.run = run
    return step
