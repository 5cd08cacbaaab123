"""cvt and cvt.pack (PTX ISA, Data Movement and Conversion Instructions: cvt)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.nvidia.sim.float_alu import flushed, saturated
from convgen.backends.nvidia.sim.operands import computed, wrong
from convgen.backends.nvidia.sim.ptx_text import Instruction
from convgen.backends.nvidia.sim.ptx_types import SIGNED, TYPES, UNSIGNED, bits_of
from convgen.backends.nvidia.sim.rounding import FORMATS, decode, encode, rounded
from convgen.backends.nvidia.sim.step import Context, Step, unsupported
from convgen.backends.sim.wave_arrays import Array

Function = Callable[..., Array]
_TO_INTEGER: Mapping[str, Callable[[Array], Array]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_TO_FLOAT = ("rn", "rz", "rm", "rp", "rna")


def compile_conversion(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of cvt; None for other instructions."""
    if instruction.name != "cvt":
        return None
    if instruction.has("pack"):
        return _pack(instruction, context)
    types = instruction.types
    if len(types) != 2:
        raise unsupported(instruction)
    to, of = types
    if TYPES[to].packed == 2 or TYPES[of].packed == 2:
        return _packed(instruction, context, to, of)
    function = _scalar(instruction, to, of)
    # PTX ISA, cvt: registers may be wider than the types of source and destination
    return computed(context, instruction, function, [_read_as(of)], _write_as(to), wide=True, wide_result=True)


def _read_as(kind: str) -> str:
    return f"b{bits_of(kind)}" if kind in ("f16", "bf16", "tf32", "e4m3", "e5m2") else kind


def _write_as(kind: str) -> str:
    return f"b{bits_of(kind)}" if TYPES[kind].kind == "f" else kind


def _limits(kind: str) -> tuple[type[np.integer], int, int]:
    """Return the numpy type of an integer type, its least and its greatest number."""
    bits = bits_of(kind)
    if TYPES[kind].kind == "s":
        return SIGNED[bits], -(1 << bits - 1), (1 << bits - 1) - 1
    return UNSIGNED[bits], 0, (1 << bits) - 1


def _integer(value: Array, kind: str) -> Array:
    """Clamp whole f64 numbers to an integer type; NaN becomes 0 (PTX ISA, cvt: float-to-integer)."""
    dtype, low, high = _limits(kind)
    number = np.where(np.isnan(value), 0.0, value)
    above, below = number >= float(high) + (1 if bits_of(kind) < 64 else 0), number <= float(low)
    safe = np.where(above | below, 0.0, number).astype(dtype)
    return np.where(above, dtype(high), np.where(below, dtype(low), safe))


def _scalar(instruction: Instruction, to: str, of: str) -> Function:
    """Return the function from a number of one type to one of another."""
    into, source = TYPES[to].kind, TYPES[of].kind
    flush, saturate = instruction.has("ftz"), instruction.has("sat", "satfinite")
    modifiers = instruction.modifiers
    whole = next((_TO_INTEGER[m] for m in modifiers if m in _TO_INTEGER), None)
    if source != "f" and into != "f":
        return lambda a: _between_integers(a, to, saturate=saturate)
    if source == "f" and into != "f":
        if whole is None:
            raise wrong(instruction, "no rounding", "one of .rni .rzi .rmi .rpi")
        to_integer = whole

        def integer(a: Array) -> Array:
            value = decode(a, of) if of != "f64" and of != "f32" else a
            if flush and of == "f32":
                value = flushed(value)
            return _integer(to_integer(np.asarray(value, np.float64)), to)

        return integer
    if source != "f":
        mode = next((m for m in modifiers if m in _TO_FLOAT), "rn")
        bounded: Function = saturated if saturate else np.asarray
        return lambda a: encode(bounded(_from_integer(a, to, mode)), to)
    return _between_floats(instruction, to, of, whole, saturate=saturate, flush=flush)


def _between_integers(value: Array, to: str, *, saturate: bool) -> Array:
    dtype, low, high = _limits(to)
    if saturate:
        info = np.iinfo(value.dtype)
        value = np.clip(value, max(low, info.min), min(high, info.max))
    return np.asarray(value).astype(dtype)


def _from_integer(value: Array, to: str, mode: str) -> Array:
    """Round integers to a float type, exactly also from 64 bits."""
    raw = np.asarray(value)
    if raw.dtype.itemsize < 8:
        wide = raw.astype(np.float64)
        return wide if to == "f64" else rounded(wide, FORMATS[to], mode)
    if mode == "rn" and to in ("f32", "f64"):
        return raw.astype({"f32": np.float32, "f64": np.float64}[to])
    negative = raw < 0
    size = np.where(negative, raw.view(np.uint64) * np.uint64(0xFFFFFFFFFFFFFFFF), raw.view(np.uint64))
    if to == "f64":
        return _directed(size, negative, mode)
    sticky = (size & np.uint64(0xFFF)) != 0  # round to odd within 52 bits
    odd = np.where(
        size >> np.uint64(52) != 0, (size & ~np.uint64(0xFFF)) | np.where(sticky, np.uint64(0x1000), np.uint64(0)), size
    )
    wide = np.where(negative, -odd.astype(np.float64), odd.astype(np.float64))
    return rounded(wide, FORMATS[to], mode)


def _directed(size: Array, negative: Array, mode: str) -> Array:
    """Round 64-bit magnitudes with signs to f64: toward zero (rz), up (rp) or down (rm)."""
    shift = sum(((size >> np.uint64(bits)) != 0 for bits in range(53, 64)), np.zeros_like(size))  # f64 has 53 bits
    cut = (size >> shift) << shift
    away = (cut != size) & (negative if mode == "rm" else ~negative if mode == "rp" else np.zeros_like(negative))
    magnitude = cut.astype(np.float64)
    magnitude = np.where(away, np.nextafter(magnitude, np.inf), magnitude)
    return np.where(negative, -magnitude, magnitude)


def _between_floats(
    instruction: Instruction, to: str, of: str, whole: Callable[[Array], Array] | None, *, saturate: bool, flush: bool
) -> Function:
    """Return the function from a float type to another, or within one to whole numbers."""
    mode = next((m for m in instruction.modifiers if m in _TO_FLOAT), "rn")
    relu = instruction.has("relu")
    finite = instruction.has("satfinite")

    def convert(a: Array) -> Array:
        value = np.asarray(decode(a, of) if of not in ("f32", "f64") else a)
        if flush and of == "f32":
            value = flushed(value)
        wide = np.asarray(value, np.float64)
        if whole is not None:
            result = np.where(np.isfinite(wide), whole(wide), wide)
        elif bits_of(to) > bits_of(of) or to == of:
            result = wide
        else:
            result = _narrowed(wide, to, mode, finite=finite)
        if relu:
            result = np.where(result > 0, result, np.where(np.isnan(result), result, 0.0))
        if saturate and not finite:
            result = saturated(result)
        if flush and to == "f32":
            result = flushed(result.astype(np.float32))
        return encode(result, to)

    return convert


def _narrowed(wide: Array, to: str, mode: str, *, finite: bool) -> Array:
    """Round to a format; with .satfinite too large numbers become the greatest one (PTX ISA, cvt)."""
    format_ = FORMATS[to]
    result = rounded(wide, format_, mode)
    if finite:
        result = np.where(np.isinf(result), np.copysign(format_.greatest, result), result)
    elif not format_.has_infinity:
        result = np.where(np.isinf(result), np.nan, result)
    return result


def _packed(instruction: Instruction, context: Context, to: str, of: str) -> Step:
    """Return the step of a conversion of two numbers: `cvt d, a, b` puts a into the upper half."""
    base_to, base_of = to.removesuffix("x2"), of.removesuffix("x2")
    scalar = _between_floats(
        instruction, base_to, base_of, None, saturate=instruction.has("satfinite"), flush=instruction.has("ftz")
    )
    width = bits_of(base_to)
    total = UNSIGNED[2 * width]

    def join(low: Array, high: Array) -> Array:
        return np.asarray(np.asarray(low).astype(total) | (np.asarray(high).astype(total) << total(width)))

    if TYPES[of].packed == 1:
        if len(instruction.operands) != 3:
            raise unsupported(instruction)
        return computed(context, instruction, lambda a, b: join(scalar(b), scalar(a)), [of, of], f"b{2 * width}")
    size = bits_of(base_of)
    part = UNSIGNED[size]

    def split(a: Array) -> Array:
        return join(scalar(a.astype(part)), scalar((a >> a.dtype.type(size)).astype(part)))

    return computed(context, instruction, split, [f"b{2 * size}"], f"b{2 * width}")


def _pack(instruction: Instruction, context: Context) -> Step:
    """cvt.pack: saturate two s32 to a narrow type and shift them into the word c."""
    to = instruction.types[0]
    bits = bits_of(to)
    if bits not in (8, 16) or instruction.types[1] != "s32":
        raise unsupported(instruction)
    mask = np.uint32((1 << bits) - 1)

    def narrow(value: Array) -> Array:
        return _between_integers(value, to, saturate=True).astype(np.int64).astype(np.uint32) & mask

    def both(a: Array, b: Array) -> Array:
        return np.asarray(narrow(b) | (narrow(a) << np.uint32(bits)))

    if len(instruction.operands) == 3:
        return computed(context, instruction, both, ["s32", "s32"], "b32")
    if bits == 16:
        raise unsupported(instruction)
    return computed(
        context, instruction, lambda a, b, c: both(a, b) | (c << np.uint32(16)), ["s32", "s32", "u32"], "b32"
    )
