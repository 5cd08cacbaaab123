"""Bit patterns and numbers: narrow formats, saturating conversions, exact fused multiply-add."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from convgen.backends.sim.wave_arrays import U32, Array

F32 = npt.NDArray[np.float32]


def _table(dtype: Any, bits: int) -> F32:
    """Return all values of a format of `bits` bits, indexed by their bits."""
    raw = np.arange(1 << bits, dtype=np.uint16 if bits > 8 else np.uint8)
    values: F32 = raw.view(dtype).astype(np.float32)
    return values


HALF: F32 = _table(np.float16, 16)
_NARROW_TYPES: dict[str, Any] = {
    "fp8_fnuz": ml_dtypes.float8_e4m3fnuz,
    "bf8_fnuz": ml_dtypes.float8_e5m2fnuz,
    "fp8_ocp": ml_dtypes.float8_e4m3fn,
    "bf8_ocp": ml_dtypes.float8_e5m2,
    "fp6": ml_dtypes.float6_e2m3fn,
    "bf6": ml_dtypes.float6_e3m2fn,
    "fp4": ml_dtypes.float4_e2m1fn,
}
_BITS = {"fp6": 6, "bf6": 6, "fp4": 4}  #: of formats below 8 bits
#: Values of fp8, fp6 and fp4 formats by bits, keyed by their names here.
NARROW: dict[str, F32] = {name: _table(kind, _BITS.get(name, 8)) for name, kind in _NARROW_TYPES.items()}
#: Bits of mantissa, and the exponent of the least normal number.
_PRECISION: dict[str, tuple[int, int]] = {
    "f16": (10, -14),
    "bf16": (7, -126),
    "fp8_fnuz": (3, -7),
    "bf8_fnuz": (2, -15),
    "fp8_ocp": (3, -6),
    "bf8_ocp": (2, -14),
    "fp6": (3, 0),
    "bf6": (2, -2),
    "fp4": (1, 0),
}


def half_to_f32(bits: Array) -> F32:
    """Return the value of the low half of each word as an f16."""
    values: F32 = HALF.take(bits & np.uint32(0xFFFF))
    return values


def f32_to_half(value: Array) -> U32:
    """Round to nearest even f16; the bits in the low half."""
    rounded: U32 = np.asarray(value).astype(np.float16).view(np.uint16).astype(np.uint32)
    return rounded


def half_toward_zero(value: Array) -> U32:
    """Round an f32 toward zero to f16 bits (v_cvt_pkrtz_f16_f32)."""
    source = np.asarray(value, np.float32)
    bits = f32_to_half(source)
    back = half_to_f32(bits)
    too_far = np.abs(back) > np.abs(source)
    result: U32 = bits - too_far.astype(np.uint32)
    return result


def bf16_to_f32(bits: Array) -> F32:
    """Return the value of the low half of each word as a bf16."""
    values: F32 = (np.asarray(bits, np.uint32) << np.uint32(16)).view(np.float32)
    return values


def f32_to_bf16(value: Array) -> U32:
    """Round to nearest even bf16; the bits in the low half; NaNs stay NaNs."""
    source = np.asarray(value, np.float32)
    rounded: U32 = source.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32)
    return rounded


def f32_to_narrow(value: Array, name: str, *, saturate: bool, random: Array | None = None) -> U32:
    """Round to a narrow format, to nearest even or stochastically by `random` / 2^32; return bits.

    Finite values beyond the largest number become that number with `saturate` (MODE.FP16_OVFL) or in a format that has
    neither NaN nor infinity, else NaN or infinity, whichever the format has.
    """
    dtype, table = _NARROW_TYPES[name], NARROW[name]
    source = np.asarray(value, np.float32)
    if random is not None:
        source = _dithered(source, name, random)
    if saturate or np.isfinite(table).all():
        largest = np.nanmax(np.where(np.isinf(table), 0, table))
        source = np.where(np.isfinite(source) | np.isfinite(table).all(), np.clip(source, -largest, largest), source)
    rounded: U32 = source.astype(np.float32).astype(dtype).view(np.uint8).astype(np.uint32)
    return rounded


def f32_to_bits(value: Array, name: str, *, saturate: bool, random: Array | None) -> U32:
    """Round to f16, bf16 or a narrow format (`f32_to_narrow`); return bits."""
    if name not in ("f16", "bf16"):
        return f32_to_narrow(value, name, saturate=saturate, random=random)
    source = np.asarray(value, np.float32)
    if random is not None:
        source = _dithered(source, name, random)
    return f32_to_half(source) if name == "f16" else f32_to_bf16(source)


def _dithered(source: F32, name: str, random: Array) -> F32:
    """Round stochastically to the format: toward zero, or away if the fraction plus `random` / 2^32 reaches 1."""
    kept, least = _PRECISION[name]
    fine = np.isfinite(source)
    wide = np.where(fine, source, np.float32(0)).astype(np.float64)
    unit = np.ldexp(1.0, np.maximum(np.frexp(wide)[1] - 1, least) - kept)
    steps = np.floor(np.abs(wide) / unit + random * 2.0**-32)
    result: F32 = np.where(fine, np.copysign(steps * unit, wide), source).astype(np.float32)
    return result


def narrow_to_f32(bits: Array, name: str) -> F32:
    """Return the value of the low byte of each word in an 8-bit format."""
    values: F32 = NARROW[name].take(bits & np.uint32(0xFF))
    return values


def to_integer(low: int, high: int, dtype: Any) -> Callable[[Array], Array]:
    """Truncate to an integer with saturation; NaN gives 0 (CDNA3 ISA, V_CVT_I32_F32 and its kin)."""

    def convert(value: Array) -> Array:
        wide = np.nan_to_num(np.trunc(np.asarray(value, np.float64)), nan=0.0, posinf=high, neginf=low)
        result: Array = np.clip(wide, low, high).astype(np.int64).astype(dtype)
        return result

    return convert


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded sum of two f64 numbers and the rounding error."""
    total = np.asarray(a + b)
    virtual = total - a
    return total, (a - (total - virtual)) + (b - virtual)


def to_odd(total: Array, error: Array) -> Array:
    """Round a sum, given as rounded f64 and error, to odd: a second rounding, to fewer bits, is then correct."""
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & ((bits & 1) == 0) & ~np.isnan(error)
    if not inexact.any():
        return total
    step = np.where(total == 0, 0, np.where((error > 0) == (total > 0), 1, -1))
    odd: Array = np.where(inexact, bits + step, bits).view(np.float64)
    return odd


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in f32 with one rounding: the product is exact in f64, the sum is rounded to odd first."""
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    result: Array = to_odd(*two_sum(product, np.asarray(c, np.float64))).astype(np.float32)
    return result


def _two_product(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the rounded product of two f64 numbers and its error (Veltkamp, Dekker)."""
    product, split = x * y, 134217729.0
    xh = x * split - (x * split - x)
    yh = y * split - (y * split - y)
    xl, yl = x - xh, y - yh
    return product, ((xh * yh - product) + xh * yl + xl * yh) + xl * yl


def _exact_fma(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in f64 with one rounding (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums").

    Numbers so large or small that the steps could over- or underflow go through rational arithmetic.
    """
    x, y, z = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (a, b, c)))
    product, low = _two_product(x, y)
    middle, rest = two_sum(z, low)
    high, tail = two_sum(product, middle)
    result = np.asarray(high + to_odd(*two_sum(rest, tail)))
    plain = ~np.isfinite(x) | ~np.isfinite(y) | ~np.isfinite(z) | (x == 0) | (y == 0)
    result = np.where(plain, x * y + z, result)
    result = np.where(np.isfinite(x) & np.isfinite(y) & np.isinf(z), z, result)  # x * y may overflow the other way
    safe = np.ones(x.shape, np.bool_)
    for value in (x, y, z):
        safe &= (value == 0) | ((np.abs(value) > 2.0**-450) & (np.abs(value) < 2.0**450))
    for at in zip(*np.nonzero(~safe & ~plain), strict=True):
        result[at] = _exact_fma(float(x[at]), float(y[at]), float(z[at]))
    return result


def fma_f16(a: Array, b: Array, c: Array) -> Array:
    """a * b + c for f16 values; the f64 result is exact enough that rounding it to f16 is the only rounding."""
    return np.asarray(a, np.float64) * b + c


def minimum(a: Array, b: Array) -> Array:
    """IEEE minNum: a NaN loses against a number."""
    return np.fmin(a, b)


def maximum(a: Array, b: Array) -> Array:
    """IEEE maxNum: a NaN loses against a number."""
    return np.fmax(a, b)


def median(a: Array, b: Array, c: Array) -> Array:
    """Return the middle one of three; with a NaN, the smallest of the others (v_med3_f32)."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    middle = np.maximum(low, np.minimum(high, c))
    if middle.dtype.kind == "f":
        return np.where(np.isnan(middle), np.fmin(np.fmin(a, b), c), middle)
    return middle
