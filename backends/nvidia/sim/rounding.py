"""Round exact results to floating-point formats in all rounding modes of PTX.

An exact result that f64 cannot hold comes rounded to odd: rounding this number to at most 50 bits gives what the exact
result would give (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums").
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from convgen.backends.nvidia.sim.ptx_types import UNSIGNED
from convgen.backends.sim.numbers import HALF, NARROW, bf16_to_f32
from convgen.backends.sim.wave_arrays import Array
from convgen.ir.record import frozen


@frozen
class Format:
    """A floating-point format: bits of its mantissa, least exponent of a normal number, greatest number."""

    mantissa: int
    least: int
    greatest: float
    bits: int
    nan: int  #: bits of the canonical NaN
    has_infinity: bool = True


FORMATS: Mapping[str, Format] = {
    "f64": Format(52, -1022, float(np.finfo(np.float64).max), 64, 0x7FF8 << 48),
    "f32": Format(23, -126, float(np.finfo(np.float32).max), 32, 0x7FFFFFFF),  # PTX ISA, Rounding Modifiers: NaNs
    "tf32": Format(10, -126, float(np.float32(2 - 2.0**-10)) * 2.0**127, 32, 0x7FFFFFFF),
    "f16": Format(10, -14, 65504.0, 16, 0x7FFF),
    "bf16": Format(7, -126, float(np.float64(2 - 2.0**-7)) * 2.0**127, 16, 0x7FFF),
    "e4m3": Format(3, -6, 448.0, 8, 0x7F, has_infinity=False),
    "e5m2": Format(2, -14, 57344.0, 8, 0x7F),
}


def rounded(value: Array, format_: Format, mode: str) -> Array:
    """Round f64 numbers to a format of fewer bits; return f64 numbers. Too large ones become infinite.

    Directed rounding stops at the greatest number where its direction asks for that (IEEE 754, 7.4).
    """
    wide = np.asarray(value, np.float64)
    fine = np.isfinite(wide)
    safe = np.where(fine, wide, 0.0)
    exponent = np.maximum(np.frexp(safe)[1] - 1, format_.least) - format_.mantissa
    scaled = np.ldexp(safe, -exponent)
    if mode == "rn":
        whole = np.rint(scaled)
    elif mode == "rz":
        whole = np.trunc(scaled)
    elif mode == "rm":
        whole = np.floor(scaled)
    elif mode == "rp":
        whole = np.ceil(scaled)
    else:
        whole = np.copysign(np.floor(np.abs(scaled) + 0.5), scaled)
    result = np.copysign(np.ldexp(whole, exponent), safe)
    beyond = np.abs(result) > format_.greatest
    if beyond.any():
        stops = {"rn": False, "rna": False, "rz": True}.get(mode, (result < 0) if mode == "rp" else (result > 0))
        limit = np.where(stops, format_.greatest, np.inf)
        result = np.where(beyond, np.copysign(limit, result), result)
    return np.where(fine, result, wide)


_NUMPY: Mapping[str, type[np.generic]] = {
    "f64": np.float64,
    "f32": np.float32,
    "tf32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


def encode(value: Array, name: str) -> Array:
    """Return the bits of f64 (or f32) numbers that a format holds exactly; NaN becomes the canonical one."""
    format_ = FORMATS[name]
    number = np.asarray(value)
    if name == "bf16":
        single = number.astype(np.float32).view(np.uint32)
        bits = (single >> np.uint32(16)).astype(np.uint16)
    else:
        bits = np.ascontiguousarray(number.astype(_NUMPY[name])).reshape(number.shape).view(UNSIGNED[format_.bits])
    nan = np.isnan(number)
    return np.where(nan, np.asarray(format_.nan, bits.dtype), bits) if nan.any() else bits


_BYTES = {"e4m3": NARROW["fp8_ocp"], "e5m2": NARROW["bf8_ocp"]}  #: values by bits


def decode(bits: Array, name: str) -> Array:
    """Return the numbers that bits stand for: f32 for formats of up to 32 bits, else f64."""
    raw = np.asarray(bits)
    if name == "f16":
        return HALF.take(raw)
    if name == "bf16":
        return bf16_to_f32(raw)
    if name in _BYTES:
        return _BYTES[name].take(raw)
    if name == "tf32":
        return (raw & np.uint32(0xFFFFE000)).view(np.float32)
    return raw.view(np.float32 if name == "f32" else np.float64)
