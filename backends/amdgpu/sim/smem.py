"""Scalar memory: s_load, s_buffer_load and the cache and time instructions (CDNA3 ISA, "Scalar Memory Operations")."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from convgen.backends.amdgpu.sim.alu.operands import check_tuple, join_words
from convgen.backends.amdgpu.sim.alu.salu import scalar_fetch
from convgen.backends.amdgpu.sim.decode import Instruction, Operand, require_plain
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup, scalar_bits
from convgen.backends.amdgpu.sim.step import Context, Step, scalar_registers
from convgen.backends.amdgpu.sim.transfer import refuse_scalar_poison
from convgen.backends.amdgpu.sim.waits import issue
from convgen.backends.sim.global_access import check_stores, check_updates
from convgen.backends.sim.wave_arrays import U64, Array

_LOAD = re.compile(r"s_(buffer_)?load_dword(?:x(\d+))?$")
_CACHE = frozenset(
    "s_dcache_inv s_dcache_wb s_dcache_inv_vol s_dcache_wb_vol s_dcache_discard s_dcache_discard_x2".split()
)
_TIME = frozenset("s_memtime s_memrealtime".split())
_MODIFIERS = frozenset("offset glc".split())


def land_scalars(g: WaveGroup, pending: Pending) -> None:
    """Write a scalar load's data to its registers. Payload: data [registers, waves, 1] and its undefined words."""
    data, poison = pending.payload[:2]
    assert data is not None
    first = (pending.writes >> scalar_bits(0).bit_length() - 1).bit_length() - len(data)
    for number in range(len(data)):
        g.s[first + number] = data[number, :, 0]
        g.poison_scalar(first + number, None if poison is None else poison[number, :, 0])


def _load(g: WaveGroup, step: Step, address: U64, count: int, inside: Array | None) -> Pending:
    """Read `count` words at one address per wave; waves outside `inside` read 0."""
    lanes = address[:, None]
    active = None if inside is None else inside[:, None]
    parts, missing = g.env.memory.resolve(lanes, 4 * count, active)
    data = np.zeros((count, g.count, 1), np.uint32)
    poison = None
    if missing is not None:
        row = int(np.argwhere(missing)[0][0])
        g.env.reporter.add(
            "out-of-bounds",
            f"scalar load of {4 * count} bytes at {int(address[row]):#x} is outside every buffer",
            step.instruction,
            g,
            row,
        )
    for allocation, some in parts:
        taken = some if some is not None else (active if active is not None else np.ones(lanes.shape, np.bool_))
        offset = np.where(taken, lanes - np.uint64(allocation.base), np.uint64(0)).astype(np.int64)
        data = np.where(taken, allocation.load(offset, 4 * count), data)
        if g.env.strict:
            check_stores(g, step, allocation, offset, 4 * count, taken, "loads", queued=False)
            check_updates(g, step, allocation, offset, 4 * count, taken, "loads", queued=False)
        undefined = allocation.load_poison(offset, 4 * count)
        if undefined is not None:
            poison = (undefined & taken) if poison is None else poison | (undefined & taken)
    g.env.counters["scalar_read_bytes"] += 4 * count * g.count
    return Pending(step, "smem", step.writes, (data, poison), land_scalars)


def compile_smem(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a scalar memory instruction; None for other mnemonics."""
    if instruction.name in _CACHE:
        return Step(instruction, "smem", lambda g: None)
    if instruction.name in _TIME:
        return _time(instruction, context)
    match = _LOAD.match(instruction.name)
    if match is None:
        return None
    require_plain(instruction, _MODIFIERS)
    target, base, offset = instruction.operands
    count = int(match[2] or 1)
    check_tuple(target, count, context)
    check_tuple(base, base.count, context)
    address_of = scalar_address(instruction, context, base, offset)
    registers = scalar_registers(base, offset)
    reads = context.bits(base, offset)
    step = Step(instruction, "smem", lambda g: None, reads, context.bits(target))

    def run(g: WaveGroup) -> None:
        refuse_scalar_poison(g, step, reads, registers, "the scalar address", always=True)
        address, shift = address_of(g)
        inside = None
        if match[1]:
            inside = shift + 4 * count <= g.s[base.index + 2].astype(np.int64)
            inside = None if inside.all() else inside
        issue(g, _load(g, step, address, count, inside))

    return step.running(run)


def scalar_address(
    instruction: Instruction, context: Context, base: Operand, offset: Operand
) -> Callable[[WaveGroup], tuple[U64, Array]]:
    """Return a function that computes each wave's address, and its distance from the base, in bytes [waves]."""
    offset_of, immediate = scalar_fetch(offset, "u32", context, instruction), instruction.number("offset")
    signed, buffered = offset.kind != "s", "_buffer_" in instruction.name

    def address(g: WaveGroup) -> tuple[U64, Array]:
        given = np.broadcast_to(offset_of(g), (g.count,))
        shift = (given.view(np.int32) if signed else given).astype(np.int64) + immediate
        start = join_words(g.s[base.index], g.s[base.index + 1])
        start = start & np.uint64(0xFFFFFFFFFFFF) if buffered else start
        return (start + shift.astype(np.uint64)) & np.uint64(0xFFFFFFFFFFFFFFFC), shift

    return address


def _time(instruction: Instruction, context: Context) -> Step:
    """Compile a time stamp; the wait-state counter stands in for the clock."""
    (target,) = instruction.operands
    check_tuple(target, 2, context)
    step = Step(instruction, "smem", lambda g: None, 0, context.bits(target))

    def run(g: WaveGroup) -> None:
        data = np.zeros((2, g.count, 1), np.uint32)
        data[0] = g.now & 0xFFFFFFFF
        issue(g, Pending(step, "smem", step.writes, (data, None), land_scalars))

    return step.running(run)
