"""Scalar stores and atomics: one address per wave, counted in lgkmcnt (CDNA3 ISA, "Scalar Memory Operations").

Scalar caches are not modelled: every wave sees a scalar store at once, without s_dcache_wb.
"""

from __future__ import annotations

import re

import numpy as np

from convgen.backends.amdgpu.sim import transfer
from convgen.backends.amdgpu.sim.alu.operands import check_tuple
from convgen.backends.amdgpu.sim.atomics import ATOMICS
from convgen.backends.amdgpu.sim.decode import Instruction, require_plain
from convgen.backends.amdgpu.sim.smem import land_scalars, scalar_address, scalar_registers
from convgen.backends.amdgpu.sim.sources import ALIGNED
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup, scalar_bits
from convgen.backends.amdgpu.sim.step import Context, Step
from convgen.backends.amdgpu.sim.stores import store_checked
from convgen.backends.amdgpu.sim.waits import issue
from convgen.backends.sim.combine import combine_lanes
from convgen.backends.sim.global_access import is_writable, issue_store, parts_of
from convgen.backends.sim.wave_arrays import U64, Array

_STORE = re.compile(r"s_(buffer_)?store_dword(x[24])?$")
_ATOMIC = re.compile(r"s_(buffer_)?atomic_([a-z]+(?:_x2)?)$")


def compile_scalar_store(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a scalar store or atomic operation; None for other mnemonics."""
    match = _STORE.match(instruction.name) or _ATOMIC.match(instruction.name)
    if match is None:
        return None
    require_plain(instruction, frozenset({"offset", "glc"}))
    data, base, offset = instruction.operands
    for operand in (data, base):
        check_tuple(operand, operand.count, context)
    atomic = "_atomic_" in instruction.name
    reads = context.bits(data, base, offset)
    returns = atomic and "glc" in instruction.modifiers
    kept = data.count // 2 if "cmpswap" in instruction.name else data.count
    writes = scalar_bits(data.index, kept) if returns else 0
    step = Step(instruction, "smem", lambda g: None, reads, writes)
    registers = scalar_registers(data, base, offset)
    address_of = scalar_address(instruction, context, base, offset)
    rows = range(data.index, data.index + data.count)

    def run(g: WaveGroup) -> None:
        transfer.refuse_scalar_poison(g, step, reads, registers, "the scalar address or data", always=True)
        ticket, address = issue_store(g), address_of(g)[0][:, None]
        words = np.stack([g.s[row] for row in rows])[:, :, None]
        if not atomic:
            store_checked(g, step, address, 4 * len(rows), words, None, ticket)
            issue(g, Pending(step, "smem", 0, (), transfer.land_stores, (ticket,)))
            return
        old = _update(g, step, match[2], address, words, ticket)
        land = _land_both if returns else transfer.land_stores
        issue(g, Pending(step, "smem", step.writes, (old, None), land, (ticket,)))

    return step.running(run)


def _land_both(g: WaveGroup, pending: Pending) -> None:
    land_scalars(g, pending)
    transfer.land_stores(g, pending)


def _update(g: WaveGroup, step: Step, what: str, address: U64, words: Array, ticket: int) -> Array:
    """Do an atomic operation on memory; return the old words [words, waves, 1]."""
    function, size = ATOMICS[what]
    count = size // 4
    kind = np.uint64 if size == 8 else np.uint32
    parts = np.split(words, len(words) // count)
    numbers = [np.ascontiguousarray(np.moveaxis(part, 0, -1)).view(kind)[..., 0] for part in parts]
    expected = numbers[1] if "cmpswap" in what else None
    old = np.zeros(address.shape, kind)
    for allocation, offset, taken in parts_of(g, step, address, size, None, size, ALIGNED):
        if is_writable(g, step, allocation, taken):
            lanes = np.ones(address.shape, np.bool_) if taken is None else taken
            memory = allocation.data[: len(allocation.data) // size * size].view(kind)
            allocation.touch(offset[lanes], size)
            old = np.where(lanes, combine_lanes(memory, offset // size, numbers[0], lanes, function, expected), old)
            allocation.define(offset[lanes], size)
            allocation.mark_update(offset[lanes], size, ticket, g.wave_ids()[:, None][lanes])
    g.env.memory.changes += 1
    return np.moveaxis(np.ascontiguousarray(old)[..., None].view(np.uint32), -1, 0)
