"""LDS instructions that use the LDS hardware to move data between lanes, and the transposing reads of gfx950."""

from __future__ import annotations

import re

import numpy as np

from convgen.backends.amdgpu.sim.alu.operands import check_tuple
from convgen.backends.amdgpu.sim.banks import bank_conflicts
from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.sim.ds_access import ds_step, locate, read_lds
from convgen.backends.amdgpu.sim.sources import ALIGNED
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step, unsupported
from convgen.backends.amdgpu.sim.transfer import land_registers, refuse_poison
from convgen.backends.amdgpu.sim.waits import issue
from convgen.backends.sim.wave_arrays import Array, Bools

_LANE = np.arange(64)
_TRANSPOSED = re.compile(r"ds_read_b(64|96)_tr_b(16|8|6|4)$")


def swizzle_lanes(offset: int) -> Array:
    """Return the lane that each lane reads under ds_swizzle [64] (CDNA3 ISA, DS_SWIZZLE_B32)."""
    if offset & 0x8000 and not offset & 0x4000:
        order = np.array([offset >> (2 * lane) & 3 for lane in range(4)])
        result: Array = _LANE // 4 * 4 + order[_LANE % 4]
        return result
    if offset & 0xC000 == 0xC000:
        distance = offset >> 5 & 0x1F
        turned = (_LANE % 32 + (-distance if offset >> 10 & 1 else distance)) % 32
        mask = offset & 0x1F
        return _LANE // 32 * 32 + ((_LANE % 32 & mask) | (turned & ~mask))
    keep, set_, flip = offset & 0x1F, offset >> 5 & 0x1F, offset >> 10 & 0x1F
    return _LANE // 32 * 32 + (((_LANE % 32 & keep) | set_) ^ flip)


def compile_ds_lanes(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of ds_bpermute, ds_permute, ds_swizzle or a transposing read; None for other mnemonics."""
    if instruction.name == "ds_swizzle_b32":
        return _swizzle(instruction, context)
    if instruction.name in ("ds_bpermute_b32", "ds_permute_b32"):
        return _permute(instruction, context, backward=instruction.name == "ds_bpermute_b32")
    match = _TRANSPOSED.match(instruction.name)
    if match is None:
        return None
    if not context.arch.transposed_reads:
        raise unsupported(instruction, f"no transposing reads on {context.arch.name}")
    return _transposed(instruction, context, int(match[1]) // 32, int(match[2]))


def _step(instruction: Instruction, context: Context) -> Step:
    target, *sources = instruction.operands
    for operand in sources:
        check_tuple(operand, 1, context)
    return ds_step(instruction, context, "ds_read", target, *sources)


def _finish(g: WaveGroup, step: Step, data: Array, poison: Bools | None) -> None:
    kept = None if g.exec_full else g.exec.copy()
    bad = None if poison is None else poison[None]
    issue(g, Pending(step, "ds", step.writes, (data[None], bad, kept, None), land_registers))


def _swizzle(instruction: Instruction, context: Context) -> Step:
    lanes = swizzle_lanes(instruction.words[0] & 0xFFFF)
    step = _step(instruction, context)
    register = context.vector(instruction.operands[1])

    def run(g: WaveGroup) -> None:
        valid = g.exec[:, lanes]
        bad = g.vector_poison(register)
        data = np.where(valid, g.v[register][:, lanes], np.uint32(0))
        _finish(g, step, data, None if bad is None else bad[:, lanes] & valid)

    return step.running(run)


def _permute(instruction: Instruction, context: Context, *, backward: bool) -> Step:
    """Compile bpermute (lane i reads lane address/4) or permute (lane i writes lane address/4, the last one wins)."""
    step = _step(instruction, context)
    index, source = (context.vector(operand) for operand in instruction.operands[1:3])
    offset = np.uint32(instruction.number("offset"))

    def run(g: WaveGroup) -> None:
        refuse_poison(g, step, 1 << index, (index,), "the lane address")
        other = ((g.v[index] + offset) >> np.uint32(2) & np.uint32(63)).astype(np.int64)
        bad = g.vector_poison(source)
        if backward:
            valid = np.take_along_axis(g.exec, other, axis=1)
            data = np.where(valid, np.take_along_axis(g.v[source], other, axis=1), np.uint32(0))
            poison = None if bad is None else np.take_along_axis(bad, other, axis=1) & valid
        else:
            rows = np.broadcast_to(np.arange(g.count)[:, None], other.shape)[g.exec]
            data = np.zeros_like(g.v[source])
            data[rows, other[g.exec]] = g.v[source][g.exec]
            poison = None
            if bad is not None:
                poison = np.zeros_like(bad)
                poison[rows, other[g.exec]] = bad[g.exec]
        _finish(g, step, data, poison)

    return step.running(run)


def transpose_groups(words: Array, bits: int) -> Array:
    """Transpose the words [words, waves, 64] of a transposing read within each group of 16 lanes.

    Each lane fetches 8 bytes, or 12 bytes of 6-bit elements. End to end, the group's bytes are rows of 16 elements;
    lane l receives column l.
    """
    waves = words.shape[1]
    flat = np.ascontiguousarray(np.moveaxis(words, 0, -1))
    if bits in (8, 16):
        columns = flat.view({16: np.uint16, 8: np.uint8}[bits]).reshape(waves, 4, -1, 16).swapaxes(2, 3)
        back = np.ascontiguousarray(columns).reshape(waves, 64, -1).view(np.uint32)
    else:
        single = np.unpackbits(flat.view(np.uint8), axis=-1, bitorder="little").reshape(waves, 4, -1, 16, bits)
        packed = np.packbits(single.swapaxes(2, 3).reshape(waves, 64, -1), axis=-1, bitorder="little")
        back = np.ascontiguousarray(packed).view(np.uint32)
    return np.moveaxis(back, -1, 0)


def _transposed(instruction: Instruction, context: Context, words: int, bits: int) -> Step:
    target, source = instruction.operands
    check_tuple(target, words, context)
    step = _step(instruction, context)
    register, offset = context.vector(source), instruction.number("offset")
    size, alignment = 4 * words, 8 if words == 2 else 4
    phases = context.arch.banks["read", size]  # assumed to equal those of a plain read of that size

    def run(g: WaveGroup) -> None:
        refuse_poison(g, step, 1 << register, (register,), "the LDS address")
        address = g.v[register].astype(np.int64) + offset
        at = locate(g, step, address, size, alignment, aligned=ALIGNED)
        data, poison = read_lds(g, step, at)
        g.env.counters["lds_read_bytes"] += g.active_lanes() * size
        g.env.counters["lds_bank_conflict_cycles"] += bank_conflicts(phases, address >> 2, words, g.exec)
        if poison is not None:
            groups = poison.any(axis=0).reshape(g.count, 4, 16).any(axis=-1)
            poison = np.broadcast_to(np.repeat(groups, 16, axis=1), data.shape)
        kept = None if g.exec_full else g.exec.copy()
        payload = (transpose_groups(data, bits), poison, kept, at.units)
        issue(g, Pending(step, "ds", step.writes, payload, land_registers))

    return step.running(run)
