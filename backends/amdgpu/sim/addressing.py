"""Addresses of vector memory instructions: buffer descriptors with their bounds, global and flat addresses.

Buffer bounds (CDNA3 ISA, "Buffer Addressing", "Range Checking"): a raw access is out of range, word by word, when
voffset + instruction offset (+ index * stride) reaches num_records; loads then give 0, stores are dropped. Whether the
scalar offset takes part is not agreed on, and whether voffset + instruction offset wraps at 32 bits is not said, so an
access for which that matters is a finding.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from convgen.backends.amdgpu.sim.alu.operands import check_tuple, join_words
from convgen.backends.amdgpu.sim.alu.salu import scalar_fetch
from convgen.backends.amdgpu.sim.decode import Instruction, Operand
from convgen.backends.amdgpu.sim.scratch import FLAT_SCRATCH, Where, flat_where, is_scratch, scratch_where
from convgen.backends.amdgpu.sim.state import WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step, unsupported
from convgen.backends.sim.arrays import U64, Array, Bools
from convgen.backends.sim.errors import Unsupported


@attrs.frozen
class Address:
    """An address mode: the registers it reads and how to resolve it."""

    vector_bits: int
    vectors: tuple[int, ...]
    scalar_bits: int
    scalars: tuple[int, ...]
    scalar_offset: bool
    resolve: Callable[[WaveGroup, Step, int, Bools | None], Where]


def _register_sets(
    context: Context, vectors: list[Operand], scalars: list[Operand]
) -> tuple[int, tuple[int, ...], int, tuple[int, ...]]:
    vector_set, vector_list, scalar_set, scalar_list = 0, [], 0, []
    for operand in vectors:
        vector_set |= context.bits(operand)
        vector_list += list(context.registers(operand))
    for operand in scalars:
        if operand.kind == "s":
            scalar_set |= context.bits(operand)
            scalar_list += list(range(operand.index, operand.index + operand.count))
    return vector_set, tuple(vector_list), scalar_set, tuple(scalar_list)


def buffer_address(instruction: Instruction, context: Context, operands: list[Operand]) -> Address:
    """The address of a buffer instruction from `vaddr|off, srsrc, soffset` and its modifiers."""
    vaddr, resource, soffset = operands
    offen, idxen = "offen" in instruction.modifiers, "idxen" in instruction.modifiers
    check_tuple(resource, 4, context)
    if vaddr.kind == "v":
        check_tuple(vaddr, vaddr.count, context)
    elif offen or idxen:
        raise unsupported(instruction, "address operand")
    immediate = instruction.number("offset")
    scalar_of = scalar_fetch(soffset, "u32", context, instruction)
    no_scalar = soffset.kind != "s" and soffset.value == 0
    row = resource.index
    first = context.vector(vaddr) if vaddr.kind == "v" else 0
    index_register = first
    offset_register = first + 1 if idxen else first

    def resolve(g: WaveGroup, step: Step, size: int, active: Bools | None) -> Where:
        word1, word3 = g.s[row + 1], g.s[row + 3]
        if (word1 >> np.uint32(31)).any() or (word3 >> np.uint32(23) & np.uint32(1)).any():
            given = [g.s[row + n] for n in range(4)]
            own: U64 = np.full((g.count, 64), immediate, np.uint64)
            if offen:
                own += g.v[offset_register]
            if idxen or not is_scratch(given):
                raise Unsupported(f"`{instruction.text}`: of swizzled buffers only the scratch buffer is simulated")
            scalar = np.broadcast_to(scalar_of(g), (g.count,)).astype(np.uint64)
            base = join_words(given[0], given[1] & np.uint32(0xFFFF)) + scalar
            return scratch_where(g, step, base, own, size, active)
        base = g.s[row].astype(np.uint64) | ((word1 & np.uint32(0xFFFF)).astype(np.uint64) << np.uint64(32))
        records = g.s[row + 2].astype(np.uint64)[:, None]
        offset: Array = np.full((g.count, 64), immediate, np.uint64)
        if offen:
            offset += g.v[offset_register]
        if idxen:
            stride = ((word1 >> np.uint32(16)) & np.uint32(0x3FFF)).astype(np.uint64)[:, None]
            offset += g.v[index_register] * stride
        end = offset + np.uint64(size)
        inside = end <= records
        if g.env.strict and int(end.max()) > 1 << 32:
            _check_wrap(g, step, offset, records, size, active)
        lanes = active
        words: list[Bools] | None = None
        if not (inside.all() if active is None else inside[active].all()):
            lanes = inside if active is None else inside & active
            if size > 4 and ((offset + np.uint64(4) <= records) != inside).any():
                some = True if active is None else active
                words = [(offset + np.uint64(4 * k + 4) <= records) & some for k in range(size // 4)]
        address = base[:, None] + offset
        if not no_scalar:
            scalar = np.broadcast_to(scalar_of(g), (g.count,)).astype(np.uint64)[:, None]
            if g.env.strict and scalar.any():
                _check_soffset(g, step, offset, scalar, records, size, active)
            address += scalar
        return Where(address, lanes, words)

    sets = _register_sets(context, [vaddr] if vaddr.kind == "v" else [], [resource, soffset])
    return Address(*sets, soffset.kind == "s", resolve)


def _check_wrap(g: WaveGroup, step: Step, offset: U64, records: U64, size: int, active: Bools | None) -> None:
    """Report lanes whose offset exceeds 32 bits and would be in range if it wrapped there."""
    wrapped = (offset & np.uint64(0xFFFFFFFF)) + np.uint64(min(size, 4))
    differs = (offset > np.uint64(0xFFFFFFFF)) & (wrapped <= records)
    if active is not None:
        differs &= active
    if differs.any():
        message = "whether the access is in range depends on whether voffset + instruction offset wraps at 32 bits"
        g.env.reporter.at_first("buffer-wrap", message, step.instruction, g, differs)


def _check_soffset(
    g: WaveGroup, step: Step, offset: U64, scalar: U64, records: U64, size: int, active: Bools | None
) -> None:
    """Report lanes whose access is in range or not depending on whether soffset is counted, for any of its words."""
    unit = min(size, 4)
    differs = np.zeros(offset.shape, np.bool_)
    for start in range(0, size, unit):
        end = offset + np.uint64(start + unit)
        differs |= (end <= records) != (end + scalar <= records)
    if active is not None:
        differs &= active
    if differs.any():
        message = "whether the access is in range depends on whether soffset takes part in the check"
        g.env.reporter.at_first("buffer-soffset", message, step.instruction, g, differs)


def global_address(instruction: Instruction, context: Context, operands: list[Operand]) -> Address:
    """The address of a global or flat instruction: 64-bit VGPR pair, or scalar base plus 32-bit VGPR offset."""
    vaddr, base = (*operands, None)[:2]
    immediate = np.uint64(instruction.number("offset") & 0xFFFFFFFFFFFFFFFF)
    if vaddr is None or vaddr.kind != "v":
        raise unsupported(instruction, "address operand")
    check_tuple(vaddr, vaddr.count, context)
    first = context.vector(vaddr)
    scalar = base if base is not None and base.kind == "s" else None
    if scalar is not None:
        check_tuple(scalar, 2, context)
    row = 0 if scalar is None else scalar.index
    flat = instruction.name.startswith("flat_")

    def resolve(g: WaveGroup, step: Step, size: int, active: Bools | None) -> Where:
        if scalar is None:
            address = join_words(g.v[first], g.v[first + 1])
        else:
            address = join_words(g.s[row], g.s[row + 1])[:, None] + g.v[first]
        if flat:
            return flat_where(g, step, address + immediate, size, active)
        return Where(address + immediate, active)

    return Address(*_register_sets(context, [vaddr], [] if scalar is None else [scalar]), False, resolve)


def scratch_address(instruction: Instruction, context: Context, operands: list[Operand]) -> Address:
    """The address of a scratch instruction: from FLAT_SCRATCH on, each lane at VGPR + SGPR + instruction offset."""
    vaddr, saddr = operands
    for operand in operands:
        if operand.is_register:
            check_tuple(operand, 1, context)
    immediate = np.uint64(instruction.number("offset") & 0xFFFFFFFFFFFFFFFF)
    first = context.vector(vaddr) if vaddr.kind == "v" else -1
    row = saddr.index if saddr.kind == "s" else -1

    def resolve(g: WaveGroup, step: Step, size: int, active: Bools | None) -> Where:
        offset: Array = np.full((g.count, 64), immediate, np.uint64)
        if first >= 0:
            offset += g.v[first]
        if row >= 0:
            offset += g.s[row][:, None]
        base = join_words(g.s[FLAT_SCRATCH.index], g.s[FLAT_SCRATCH.index + 1])
        return scratch_where(g, step, base, offset, size, active)

    scalars = [FLAT_SCRATCH] + ([saddr] if row >= 0 else [])
    return Address(*_register_sets(context, [vaddr] if first >= 0 else [], scalars), row >= 0, resolve)
