"""Operands by type: fetching sources with their modifiers, writing destinations under EXEC.

Types name the interpretation of a register: `u32 i32 f32` one word; `u16 i16 f16 bf16` the low half (f16 and bf16 are
computed in f32, which rounds innocuously for one operation); `u24 i24` the low 24 bits; `u64 i64 f64 b64` a pair;
`mask` a lane mask in a scalar pair. `b32` is `u32` whose float modifiers act on the sign bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from convgen.backends.amdgpu.sim.decode import GENERAL_SCALARS, Instruction, Operand
from convgen.backends.amdgpu.sim.state import WaveGroup, pack_lanes, unpack_lanes
from convgen.backends.amdgpu.sim.step import Context, unsupported
from convgen.backends.sim.numbers import bf16_to_f32, f32_to_bf16, f32_to_half, half_to_f32
from convgen.backends.sim.wave_arrays import Array, Bools, united
from convgen.ir.record import frozen

Fetch = Callable[[WaveGroup], Array]
Move = Callable[[WaveGroup, Array], Array]  #: rearranges lanes of raw words (DPP) or picks parts of them (SDWA)

FP16_OVFL = 1 << 23  #: bit of MODE: conversions to formats of 8 bits saturate
WIDE = frozenset("u64 i64 f64 b64".split())
FLOATS = frozenset("f16 bf16 f32 f64".split())
_SIGN: Mapping[str, int] = {"b32": 0x80000000, "b64": 0x8000000000000000}


def words_of(kind: str) -> int:
    """Return the registers that a value of a type occupies."""
    return 2 if kind in WIDE or kind == "mask" else 1


def constant_bits(operand: Operand, kind: str, instruction: Instruction) -> int:
    """Return a constant's bits, in the width of its type (CDNA3 ISA, "Inline Constants", "Literal Constant")."""
    wide = kind in WIDE or kind == "mask"
    if operand.kind == "int":
        return operand.value & (0xFFFFFFFFFFFFFFFF if wide else 0xFFFFFFFF)
    if operand.kind == "float":
        if kind in ("f16", "u16", "i16"):
            return int(np.float16(operand.number).view(np.uint16))
        if wide:
            return int(np.float64(operand.number).view(np.uint64))
        if kind == "bf16":
            return int(np.float32(operand.number).view(np.uint32)) >> 16
        return int(np.float32(operand.number).view(np.uint32))
    if operand.kind == "literal":
        low = operand.value & 0xFFFFFFFF
        if kind == "f64":
            return low << 32 if operand.value <= 0xFFFFFFFF else operand.value
        if kind == "i64" and operand.value <= 0xFFFFFFFF and low & 0x80000000:
            return low | 0xFFFFFFFF00000000
        return operand.value if wide else low
    if operand.kind == "aperture" and wide:
        return operand.value
    raise unsupported(instruction, f"operand {operand.text}")


def _as_i16(raw: Array) -> Array:
    return ((raw << np.uint32(16)).view(np.int32)) >> 16


def _as_i24(raw: Array) -> Array:
    return ((raw << np.uint32(8)).view(np.int32)) >> 8


#: From raw words (u32, or u64 for pairs) to the numbers that the tables compute with.
DOMAIN: Mapping[str, Callable[[Array], Array]] = {
    "u32": lambda raw: raw,
    "b32": lambda raw: raw,
    "i32": lambda raw: raw.view(np.int32),
    "f32": lambda raw: raw.view(np.float32),
    "u16": lambda raw: raw & np.uint32(0xFFFF),
    "i16": _as_i16,
    "u24": lambda raw: raw & np.uint32(0xFFFFFF),
    "i24": _as_i24,
    "f16": half_to_f32,
    "bf16": bf16_to_f32,
    "u64": lambda raw: raw,
    "b64": lambda raw: raw,
    "i64": lambda raw: raw.view(np.int64),
    "f64": lambda raw: raw.view(np.float64),
}

#: From numbers to raw words; the inverse of DOMAIN with wrapping or rounding.
ENCODE: Mapping[str, Callable[[Array], Array]] = {
    "u32": lambda value: np.asarray(value).astype(np.uint32, copy=False),
    "b32": lambda value: np.asarray(value).astype(np.uint32, copy=False),
    "i32": lambda value: np.asarray(value).astype(np.int32, copy=False).view(np.uint32),
    "f32": lambda value: np.asarray(value).astype(np.float32, copy=False).view(np.uint32),
    "u16": lambda value: np.asarray(value).astype(np.uint32, copy=False) & np.uint32(0xFFFF),
    "i16": lambda value: np.asarray(value).astype(np.int32, copy=False).view(np.uint32) & np.uint32(0xFFFF),
    "f16": f32_to_half,
    "bf16": f32_to_bf16,
    "u64": lambda value: np.asarray(value).astype(np.uint64, copy=False),
    "b64": lambda value: np.asarray(value).astype(np.uint64, copy=False),
    "i64": lambda value: np.asarray(value).astype(np.int64, copy=False).view(np.uint64),
    "f64": lambda value: np.asarray(value).astype(np.float64, copy=False).view(np.uint64),
}


def join_words(low: Array, high: Array) -> Array:
    """Return two 32-bit words as one 64-bit number."""
    return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))


def split_words(value: Array) -> tuple[Array, Array]:
    """Return a 64-bit number as two 32-bit words."""
    return value.astype(np.uint32), (value >> np.uint64(32)).astype(np.uint32)


def check_tuple(operand: Operand, count: int, context: Context) -> None:
    """Report a register tuple that is misaligned, or registers that the kernel descriptor does not allocate.

    Vector tuples start at even registers on gfx90a and later; scalar pairs are even, longer scalar tuples start at
    multiples of four. v[n] counts from the start of the wave's whole allocation, a[n] from accum_offset: a v at and
    above accum_offset is an accumulator (AMDGPUUsage, accum_offset; MIOpen's kernels for gfx942, which ship, use that).
    """
    limits = context.descriptor
    if operand.is_vector:
        if count > 1 and operand.index % 2:
            context.faults.append(("register-alignment", f"{operand.text} does not start at an even register"))
        room = limits.vgprs - (limits.accum_offset if operand.kind == "a" else 0)
        if operand.index + operand.count > room:
            context.faults.append(
                ("register-range", f"{operand.text}: the kernel has {max(room, 0)} of these registers")
            )
    elif operand.kind == "s":
        if operand.index < GENERAL_SCALARS and operand.index % min(count if count < 3 else 4, 4):
            context.faults.append(("register-alignment", f"{operand.text} is not aligned"))
        if operand.index < GENERAL_SCALARS and operand.index + operand.count > limits.sgprs:
            context.faults.append(("register-range", f"{operand.text}: the kernel has {limits.sgprs} scalar registers"))


def raw_fetch(operand: Operand, kind: str, context: Context, instruction: Instruction) -> Fetch:
    """Return a fetch of a source's raw bits: [waves, lanes] of vector, [waves, 1] of scalar registers, or a number."""
    if operand.is_register:
        check_tuple(operand, words_of(kind), context)
    if operand.is_vector:
        first = context.vector(operand)
        if words_of(kind) == 2:
            return lambda g: join_words(g.v[first], g.v[first + 1])
        return lambda g: g.v[first]
    if operand.kind == "s":
        row = operand.index
        if kind == "mask":
            return lambda g: unpack_lanes(g.s[row], g.s[row + 1])
        if words_of(kind) == 2:
            return lambda g: join_words(g.s[row], g.s[row + 1])[:, None]
        return lambda g: g.s[row][:, None]
    bits = constant_bits(operand, kind, instruction)
    if kind == "mask":
        lanes = np.array([[bits >> lane & 1 for lane in range(64)]], np.bool_)
        return lambda g: lanes
    number = np.uint64(bits) if kind in WIDE else np.uint32(bits)
    constant = np.asarray(number)
    return lambda g: constant


def modified(fetch: Fetch, kind: str, *, negate: bool, absolute: bool) -> Fetch:
    """Return a fetch that applies the sign modifiers."""
    if kind in _SIGN:
        bit = np.uint64(_SIGN[kind]) if kind == "b64" else np.uint32(_SIGN[kind])
        if absolute:
            inner = fetch
            fetch = lambda g: inner(g) & ~bit  # noqa: E731
        if negate:
            outer = fetch
            return lambda g: outer(g) ^ bit
        return fetch
    if absolute and negate:
        return lambda g: -np.abs(fetch(g))
    if absolute:
        return lambda g: np.abs(fetch(g))
    if negate:
        return lambda g: -fetch(g)
    return fetch


def typed_fetch(
    operand: Operand, kind: str, context: Context, instruction: Instruction, move: Move | None = None
) -> Fetch:
    """Return a fetch of a source as a number of its type; `move` acts on the raw words, then the sign modifiers."""
    raw = raw_fetch(operand, kind, context, instruction)
    if kind == "mask":
        return raw
    domain = DOMAIN[kind]
    if (operand.negate or operand.absolute) and kind not in FLOATS and kind not in _SIGN:
        raise unsupported(instruction, f"sign modifier on a {kind} operand")
    if move is not None:
        moved = move
        fetch: Fetch = lambda g: domain(moved(g, raw(g)))  # noqa: E731
    elif not operand.is_register:
        constant = domain(raw(None))  # type: ignore[arg-type]
        fetch = lambda g: constant  # noqa: E731
    elif kind in ("u32", "b32", "u64", "b64"):
        fetch = raw
    else:
        fetch = lambda g: domain(raw(g))  # noqa: E731
    return modified(fetch, kind, negate=operand.negate, absolute=operand.absolute)


def computed(function: Callable[..., Any], fetches: Sequence[Fetch]) -> Fetch:
    """Return a fetch that applies `function` to fetched sources."""
    if len(fetches) == 1:
        only = fetches[0]
        return lambda g: function(only(g))
    if len(fetches) == 2:
        first, second = fetches
        return lambda g: function(first(g), second(g))
    if len(fetches) == 3:
        one, two, three = fetches
        return lambda g: function(one(g), two(g), three(g))
    return lambda g: function(*[fetch(g) for fetch in fetches])


def write_vector(g: WaveGroup, register: int, value: Array) -> None:
    """Write a word of the active lanes."""
    if g.exec_full:
        g.v[register] = value
    else:
        np.copyto(g.v[register], value, where=g.exec)


def write_mask(g: WaveGroup, row: int, lanes: Array) -> None:
    """Write a lane mask to a scalar pair; inactive lanes give 0."""
    full = np.broadcast_to(lanes, (g.count, 64)) if g.exec_full else np.logical_and(lanes, g.exec)
    g.s[row], g.s[row + 1] = pack_lanes(full)


@frozen
class PoisonSource:
    """The registers that a source's poison comes from, moved between lanes as the values are."""

    vector: bool
    registers: tuple[int, ...]
    move: Move | None = None
    mask: bool = False  #: whether each lane reads its own bit of the scalar registers

    def lanes(self, g: WaveGroup, words: slice) -> Bools | None:
        chosen = self.registers[words] or self.registers[:1]
        if self.mask:
            low, high = (g.undefined_bits(register) for register in self.registers)
            bits = unpack_lanes(low, high)
            return bits if bits.any() else None
        if not self.vector:
            waves = g.waves_poison(chosen)
            return None if waves is None else waves[:, None]
        found = g.lanes_poison(chosen)
        if found is None or self.move is None:
            return found
        result: Bools | None = self.move(g, found.astype(np.uint32)) != 0
        return result


def mask_poison(operand: Operand) -> PoisonSource | None:
    """Return the poison source of a lane mask, None for constants."""
    return PoisonSource(False, (operand.index, operand.index + 1), mask=True) if operand.kind == "s" else None


def poison_source(operand: Operand, context: Context, count: int = 0, move: Move | None = None) -> PoisonSource | None:
    """Return the poison source of an operand, None for constants; `count` overrides the number of registers."""
    if operand.is_vector:
        first = context.vector(operand)
        return PoisonSource(True, tuple(range(first, first + max(operand.count, count))), move)
    if operand.kind == "s":
        return PoisonSource(False, tuple(range(operand.index, operand.index + max(operand.count, count))))
    return None


def any_poison(g: WaveGroup, sources: tuple[PoisonSource, ...], words: slice = slice(None)) -> Bools | None:
    """Return the lanes, or [waves, 1], in which any of the sources is poisoned."""
    return united([source.lanes(g, words) for source in sources])
