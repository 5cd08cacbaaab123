"""Typed buffer accesses: memory formats of 1 to 4 components, which registers hold as f32, f16 or integers.

A tbuffer instruction names its format (bits 22:19 data, 25:23 numbers). buffer_*_format_* use the descriptor's format,
loads also its selection of components (CDNA3 ISA 9.1, "Buffer Data Formats", "Buffer Resource Descriptor"). A load's
missing components are 0, its missing fourth one is 1. A store writes every component of the format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from convgen.backends.amdgpu.sim import transfer
from convgen.backends.amdgpu.sim.addressing import buffer_address
from convgen.backends.amdgpu.sim.alu.operands import check_tuple
from convgen.backends.amdgpu.sim.decode import Instruction, require_plain
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step, unsupported
from convgen.backends.amdgpu.sim.stores import store_checked
from convgen.backends.amdgpu.sim.waits import issue
from convgen.backends.sim import numbers as num
from convgen.backends.sim.errors import Unsupported
from convgen.backends.sim.global_access import issue_store, load_lanes
from convgen.backends.sim.wave_arrays import Array, any_along
from convgen.ir.record import frozen

_NAME = re.compile(r"(t?)buffer_(load|store)_format_(d16_)?(hi_)?(x|xy|xyz|xyzw)$")
_MODIFIERS = frozenset("offen idxen offset glc slc scc sc0 sc1 nt format".split())
#: Bits of the components by data format, the lowest first.
DATA_FORMATS: Mapping[int, tuple[int, ...]] = {
    1: (8,),
    2: (16,),
    3: (8, 8),
    4: (32,),
    5: (16, 16),
    6: (11, 11, 10),
    7: (10, 11, 11),
    8: (2, 10, 10, 10),
    9: (10, 10, 10, 2),
    10: (8, 8, 8, 8),
    11: (32, 32),
    12: (16, 16, 16, 16),
    13: (32, 32, 32),
    14: (32, 32, 32, 32),
}
UNORM, SNORM, USCALED, SSCALED, UINT, SINT, FLOAT = 0, 1, 2, 3, 4, 5, 7
_INTEGERS = (UINT, SINT)
_ONE = 1  #: selector of the constant 1 in a descriptor; 0 selects 0, 4 and above select components


@frozen
class Format:
    """A memory format; `chosen` has the component that each register loads, -1 for the constant 0, -2 for 1."""

    bits: tuple[int, ...]
    numbers: int
    chosen: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return the bytes in memory."""
        return sum(self.bits) // 8

    def load(self, words: Array) -> list[Array]:
        """Convert memory words [words, ...] to registers: numbers as f32, or integers."""
        parts, place = [], 0
        for bits in self.bits:
            word, shift = divmod(place, 32)
            field = words[word] >> np.uint32(shift)
            parts.append(_decoded(field & np.uint32((1 << bits) - 1), bits, self.numbers))
            place += bits
        one = np.uint32(1) if self.numbers in _INTEGERS else np.float32(1)
        constants = {-1: np.zeros_like(parts[0]), -2: np.full_like(parts[0], one)}
        return [parts[at] if at >= 0 else constants[at] for at in self.chosen]

    def store(self, values: Sequence[Array]) -> Array:
        """Convert one number or integer per component to memory words [words, ...]."""
        words = [np.zeros(values[0].shape, np.uint32) for _ in range(max(self.size // 4, 1))]
        place = 0
        for bits, value in zip(self.bits, values, strict=False):
            word, shift = divmod(place, 32)
            field = _encoded(value, bits, self.numbers) & np.uint32((1 << bits) - 1)
            words[word] = words[word] | field << np.uint32(shift)
            place += bits
        return np.stack(words)


def _decoded(field: Array, bits: int, numbers: int) -> Array:
    signed = (field << np.uint32(32 - bits)).view(np.int32) >> (32 - bits)
    if numbers == FLOAT:
        return _small_float(field, bits)
    if numbers in _INTEGERS:
        return field if numbers == UINT else signed.view(np.uint32)
    value = (signed if numbers in (SNORM, SSCALED) else field).astype(np.float64)
    if numbers == UNORM:
        value = value / ((1 << bits) - 1)
    elif numbers == SNORM:
        value = np.maximum(value / ((1 << (bits - 1)) - 1), -1.0)
    return value.astype(np.float32)


def _encoded(value: Array, bits: int, numbers: int) -> Array:
    if numbers in _INTEGERS:
        return value
    if numbers == FLOAT:
        if bits not in (16, 32):
            raise Unsupported(f"storing floats of {bits} bits")
        return value.view(np.uint32) if bits == 32 else num.f32_to_half(value)
    low, high = {
        UNORM: (0, (1 << bits) - 1),
        SNORM: (-(1 << bits - 1) + 1, (1 << bits - 1) - 1),
        USCALED: (0, (1 << bits) - 1),
        SSCALED: (-(1 << bits - 1), (1 << bits - 1) - 1),
    }[numbers]
    exact = np.nan_to_num(value.astype(np.float64), nan=0.0) * (high if numbers in (UNORM, SNORM) else 1)
    return np.clip(np.rint(exact), low, high).astype(np.int64).astype(np.uint32)


def _small_float(field: Array, bits: int) -> Array:
    """Decode floats of 32 or 16 bits, or unsigned ones of 11 or 10 bits, which have the exponent of f16."""
    if bits == 32:
        return field.view(np.float32)
    if bits == 8:
        raise Unsupported("floats of 8 bits in a buffer's format")
    return num.half_to_f32(field << np.uint32(15 - bits) if bits < 16 else field)


def compile_typed(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a typed buffer load or store; None for other mnemonics."""
    match = _NAME.match(instruction.name)
    if match is None:
        return None
    require_plain(instruction, _MODIFIERS)
    return _Typed(instruction, context, len(match[5]), half=bool(match[3]), high=bool(match[4])).step(match[2])


class _Typed:
    """One typed access being compiled."""

    def __init__(self, instruction: Instruction, context: Context, count: int, *, half: bool, high: bool) -> None:
        self.instruction, self.context = instruction, context
        self.count, self.half, self.high = count, half, high
        self.data, *rest = instruction.operands
        check_tuple(self.data, self.data.count, context)
        self.address = buffer_address(instruction, context, rest)
        self.descriptor = rest[1].index

    def step(self, action: str) -> Step:
        context, loads = self.context, action == "load"
        if loads and self.data.count != (self.count if not self.half else -(-self.count // 2)):
            raise unsupported(self.instruction, "the number of data registers")
        kind, stored = ("vmem_load", 0) if loads else ("vmem_store", context.bits(self.data))
        step = transfer.memory_step(self.instruction, context, kind, self.address, self.data if loads else None, stored)
        return step.running(self._load(step) if loads else self._store(step))

    def _format(self, g: WaveGroup) -> Format:
        """Return the format of the instruction or of its descriptor. Raises Unsupported."""
        if self.instruction.name.startswith("t"):
            word = self.instruction.words[0]
            data, numbers = word >> 19 & 15, word >> 23 & 7
            choices = [4 + component for component in range(self.count)]
        else:
            word3 = {int(word) for word in g.s[self.descriptor + 3]}
            if len(word3) != 1:
                raise Unsupported(f"`{self.instruction.text}`: waves of one group with different formats")
            (word,) = word3
            data, numbers = word >> 15 & 15, word >> 12 & 7
            choices = [word >> 3 * component & 7 for component in range(self.count)]
        if data not in DATA_FORMATS or numbers == 6:
            raise Unsupported(f"`{self.instruction.text}`: data format {data} with number format {numbers}")
        bits = DATA_FORMATS[data]
        chosen = tuple(
            choice - 4 if 4 <= choice < 4 + len(bits) else -2 if choice in (_ONE, 7) else -1 for choice in choices
        )
        return Format(bits, numbers, chosen)

    def _load(self, step: Step) -> Callable[[WaveGroup], None]:
        half = "" if not self.half or self.count > 1 else "hi" if self.high else "lo"
        land = transfer.landing(transfer.Width(2, half=half))

        def run(g: WaveGroup) -> None:
            transfer.check_address(g, step, self.address)
            form = self._format(g)
            where = self.address.resolve(g, step, form.size, transfer.active(g))
            data, poison = load_lanes(g, step, where.address, form.size, where.lanes)
            g.env.counters["global_read_bytes"] += where.moved(g.active_lanes(), form.size)
            registers = np.stack(self._packed(form, form.load(data)))
            if where.lanes is not None:
                registers = np.where(where.lanes, registers, np.uint32(0))
            spoiled = None if poison is None else np.broadcast_to(any_along(poison, 0), registers.shape)
            kept = None if g.exec_full else g.exec.copy()
            issue(g, Pending(step, "vm", step.writes, (registers, spoiled, kept), land))

        return run

    def _packed(self, form: Format, values: list[Array]) -> list[Array]:
        """Pack components into register words: one per word, or two halves per word, the first one low."""
        if not self.half:
            return [value.view(np.uint32) for value in values]
        integer = form.numbers in _INTEGERS
        halves = [value & np.uint32(0xFFFF) if integer else num.f32_to_half(value) for value in values]
        if self.high:
            return [halves[0] << np.uint32(16)]
        halves += [np.zeros_like(halves[0])] * (len(halves) % 2 if len(halves) > 1 else 0)
        if len(halves) == 1:
            return halves
        return [low | high << np.uint32(16) for low, high in zip(halves[::2], halves[1::2], strict=True)]

    def _store(self, step: Step) -> Callable[[WaveGroup], None]:
        registers = self.context.registers(self.data)

        def run(g: WaveGroup) -> None:
            transfer.check_address(g, step, self.address)
            form = self._format(g)
            if len(form.bits) > self.count:
                raise Unsupported(f"`{self.instruction.text}`: fewer components than the format's {len(form.bits)}")
            where = self.address.resolve(g, step, form.size, transfer.active(g))
            transfer.refuse_poison(g, step, self.context.bits(self.data), registers, "the stored value")
            ticket, values = issue_store(g), form.store(self._values(g, form))
            store_checked(g, step, where.address, form.size, values, where.lanes, ticket)
            g.env.counters["global_write_bytes"] += where.moved(g.active_lanes(), form.size)
            issue(g, Pending(step, "vm", 0, (), transfer.land_stores, (ticket,)))

        return run

    def _values(self, g: WaveGroup, form: Format) -> list[Array]:
        """Return a store's components from its registers: f32 numbers, or integer words."""
        words = [g.v[register] for register in self.context.registers(self.data)]
        if self.half:
            shifts = (16,) if self.high else (0, 16)
            words = [word >> np.uint32(shift) & np.uint32(0xFFFF) for word in words for shift in shifts][: self.count]
        if form.numbers in _INTEGERS:
            return words
        return [num.half_to_f32(word) if self.half else word.view(np.float32) for word in words]
