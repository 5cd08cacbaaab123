"""Addresses of vector memory instructions: buffer descriptors with their bounds, global and flat addresses.

Buffer bounds (CDNA3 ISA, "Buffer Addressing", "Range Checking"): a raw access is out of range, word by word, when
voffset + instruction offset (+ index * stride) reaches num_records; loads then return 0, stores are dropped. Documents
disagree on whether the scalar offset takes part, and none states whether voffset + instruction offset wraps at 32 bits,
so an access whose range depends on either is a finding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convgen.backends.amdgpu.sim.alu.operands import check_tuple, join_words
from convgen.backends.amdgpu.sim.alu.salu import scalar_fetch
from convgen.backends.amdgpu.sim.decode import Instruction, Operand
from convgen.backends.amdgpu.sim.scratch import FLAT_SCRATCH, Where, flat_where, is_scratch, scratch_where
from convgen.backends.amdgpu.sim.state import WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step, scalar_registers, unsupported
from convgen.backends.sim.errors import Unsupported
from convgen.backends.sim.wave_arrays import U32, U64, Array, Bools, least, most
from convgen.ir.record import frozen

#: (group, step, bytes, active lanes) -> addresses
Resolve = Callable[[WaveGroup, Step, int, Bools | None], Where]


@frozen
class Address:
    """An address mode: the registers it reads and how to resolve it."""

    vector_bits: int
    vectors: tuple[int, ...]
    scalar_bits: int
    scalars: tuple[int, ...]
    scalar_offset: bool
    resolve: Resolve


def _address(context: Context, operands: list[Operand], resolve: Resolve, *, scalar_offset: bool = False) -> Address:
    """Return an address mode with the registers of its operands."""
    vectors = [operand for operand in operands if operand.kind == "v"]
    scalars = [operand for operand in operands if operand.kind == "s"]
    registers = tuple(register for operand in vectors for register in context.registers(operand))
    bits = context.bits(*vectors), registers, context.bits(*scalars), scalar_registers(*scalars)
    return Address(*bits, scalar_offset, resolve)


def buffer_address(instruction: Instruction, context: Context, operands: list[Operand]) -> Address:
    """Return the address mode of a buffer instruction from `vaddr|off, srsrc, soffset` and its modifiers."""
    vaddr, resource, soffset = operands
    offen, idxen = "offen" in instruction.modifiers, "idxen" in instruction.modifiers
    check_tuple(resource, 4, context)
    if vaddr.kind == "v":
        check_tuple(vaddr, vaddr.count, context)
    elif offen or idxen:
        raise unsupported(instruction, "address operand")
    immediate = instruction.number("offset")
    scalar_of = scalar_fetch(soffset, "u32", context, instruction)
    described = DescriptorCache(resource.index)
    first = context.vector(vaddr) if vaddr.kind == "v" else 0
    index_register = first
    offset_register = first + 1 if idxen else first

    def resolve(g: WaveGroup, step: Step, size: int, active: Bools | None) -> Where:
        buffer = described(g)
        offset: U64 = g.v[offset_register].astype(np.uint64) if offen else np.zeros((g.count, 64), np.uint64)
        offset += immediate
        scalar = scalar_of(g).astype(np.uint64)[:, None]
        base = buffer.base + scalar
        if buffer.swizzled:
            if idxen or not buffer.scratch:
                raise Unsupported(f"`{instruction.text}`: of swizzled buffers only the scratch buffer is simulated")
            return scratch_where(g, step, base[:, 0], offset, size, active, scalar)
        if idxen:
            offset += g.v[index_register] * buffer.stride
        if most(offset) + size + most(scalar) <= buffer.shortest:
            return Where(base + offset, active)
        return Where(base + offset, *_in_range(g, step, buffer, offset, scalar, size, active))

    return _address(context, operands, resolve, scalar_offset=soffset.kind == "s")


def _in_range(
    g: WaveGroup, step: Step, buffer: BufferDescriptor, offset: U64, scalar: U64, size: int, active: Bools | None
) -> tuple[Bools | None, list[Bools] | None]:
    """Return the lanes of an access in range, as `_reaching`; report those on which documents disagree."""
    if g.env.strict and most(offset) + size > 1 << 32:
        _check_wrap(g, step, offset, buffer.records, size, active)
    room = (buffer.records - offset).view(np.int64)
    there = _words_in(room, size)
    if g.env.strict and most(scalar):
        _check_soffset(g, step, there, _words_in(room - scalar.view(np.int64), size), active)
    return _reaching(there, size, active)


@frozen(eq=False)
class BufferDescriptor:
    """The fields of one buffer descriptor per wave: arrays [waves, 1], in bytes."""

    base: U64
    records: U64  #: NUM_RECORDS of a raw buffer: its size
    stride: U64
    shortest: int  #: least of `records`
    swizzled: bool  #: whether any descriptor is swizzled
    scratch: bool

    @classmethod
    def of(cls, words: U32) -> BufferDescriptor:
        wide = words.astype(np.uint64)[:, :, None]
        base = wide[0] | (wide[1] & np.uint64(0xFFFF)) << np.uint64(32)
        stride = wide[1] >> np.uint64(16) & np.uint64(0x3FFF)
        swizzled = bool((words[1] >> np.uint32(31)).any() or (words[3] >> np.uint32(23) & np.uint32(1)).any())
        return cls(base, wide[2], stride, least(wide[2]), swizzled, is_scratch(words))


class DescriptorCache:
    """Decodes the descriptors in four scalar registers, and keeps the result until the words change."""

    def __init__(self, row: int) -> None:
        self.row = row
        self._words = b""
        self._last: BufferDescriptor | None = None

    def __call__(self, g: WaveGroup) -> BufferDescriptor:
        words = g.s[self.row : self.row + 4]
        if self._last is None or words.tobytes() != self._words:
            self._words, self._last = words.tobytes(), BufferDescriptor.of(words)
        return self._last


def _check_wrap(g: WaveGroup, step: Step, offset: U64, records: U64, size: int, active: Bools | None) -> None:
    """Report lanes whose offset exceeds 32 bits and would be in range if it wrapped there."""
    wrapped = (offset & np.uint64(0xFFFFFFFF)) + np.uint64(min(size, 4))
    differs = (offset > np.uint64(0xFFFFFFFF)) & (wrapped <= records)
    if active is not None:
        differs &= active
    if differs.any():
        message = "the access is in range only if voffset + instruction offset wraps at 32 bits, which no manual states"
        g.env.reporter.at_first("buffer-wrap", message, step.instruction, g, differs)


def _words_in(room: Array, size: int) -> Array:
    """Return how many words of an access of `size` bytes lie within `room` bytes; a word has at most 4 bytes."""
    words = np.maximum(room, 0)
    np.minimum(words, size, out=words)
    words >>= min(size, 4).bit_length() - 1
    return words


def _reaching(there: Array, size: int, active: Bools | None) -> tuple[Bools | None, list[Bools] | None]:
    """Return the lanes with all words in range (None: all lanes), and lanes by word if words of a lane differ."""
    count = max(size // 4, 1)
    inside: Bools = there == count
    if not np.count_nonzero(~inside if active is None else active & ~inside):
        return active, None
    lanes = inside if active is None else inside & active
    if not np.count_nonzero((there != 0) != inside):
        return lanes, None
    return lanes, [there > k if active is None else (there > k) & active for k in range(count)]


def _check_soffset(g: WaveGroup, step: Step, there: Array, beyond: Array, active: Bools | None) -> None:
    """Report lanes that have more words in range without soffset than with it."""
    differs = there != beyond
    if active is not None:
        differs &= active
    if np.count_nonzero(differs):
        message = "the access is in range only if soffset takes no part in the check, on which manuals disagree"
        g.env.reporter.at_first("buffer-soffset", message, step.instruction, g, differs)


def global_address(instruction: Instruction, context: Context, operands: list[Operand]) -> Address:
    """Return the address mode of a global or flat instruction: VGPR pair, or scalar base plus 32-bit VGPR offset."""
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

    return _address(context, operands, resolve)


def scratch_address(instruction: Instruction, context: Context, operands: list[Operand]) -> Address:
    """Return the address mode of a scratch instruction: FLAT_SCRATCH, and VGPR + SGPR + instruction offset by lane."""
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

    return _address(context, [FLAT_SCRATCH, *operands], resolve, scalar_offset=row >= 0)
