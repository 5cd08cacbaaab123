"""Vector instructions for pictures, video and the reduction of large angles (CDNA3 ISA, "Vector ALU Operations")."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from convgen.backends.amdgpu.sim.alu.vector_rows import Function, VectorRow, row
from convgen.backends.sim.wave_arrays import Array

U32, U64 = np.uint32, np.uint64
_FRACTION_BITS = 1201  #: bits of 2/pi in V_TRIG_PREOP_F64
_KEPT_BITS = 53  #: bits of a result, the mantissa of an f64
_FIRST_SHIFT = 1077  #: exponent field of an f64 up to which an angle needs the first bits of 2/pi
_SCALED = 1968  #: exponent field from which an angle comes scaled by 2^-128, so that its result is scaled by 2^128


def _byte(word: Array, number: int) -> Array:
    result: Array = word >> word.dtype.type(8 * number) & word.dtype.type(0xFF)
    return result


def _lerp(a: Array, b: Array, c: Array) -> Array:
    """V_LERP_U8: averages of bytes, rounded up where the third operand's byte is odd."""
    result = np.zeros((), U32)
    for number in range(4):
        average = (_byte(a, number) + _byte(b, number) + (_byte(c, number) & U32(1))) >> U32(1)
        result = result | average << U32(8 * number)
    return result


def _distance(a: Array, b: Array) -> Array:
    return np.maximum(a, b) - np.minimum(a, b)


def _sad_u16(a: Array, b: Array, c: Array) -> Array:
    return _distance(a & U32(0xFFFF), b & U32(0xFFFF)) + _distance(a >> U32(16), b >> U32(16)) + c


def _byte_distances(a: Array, b: Array, *, masked: bool = False) -> Array:
    """Return the sum of the distances of four bytes; `masked` leaves out those where `b` is 0."""
    total = np.zeros((), U32)
    for number in range(4):
        x, y = _byte(a, number), _byte(b, number)
        distance = _distance(x, y)
        total = total + (np.where(y == 0, U32(0), distance) if masked else distance)
    return total


def _four_distances(*, masked: bool) -> Function:
    """V_QSAD_PK_U16_U8: four bytes of the second operand against those of the first from byte 0, 1, 2 and 3 on."""

    def function(a: Array, b: Array, c: Array) -> Array:
        result = np.zeros((), U64)
        for number in range(4):
            window = (a >> U64(8 * number)).astype(U32)
            added = (c >> U64(16 * number)).astype(U32) + _byte_distances(window, b, masked=masked)
            result = result | (added & U32(0xFFFF)).astype(U64) << U64(16 * number)
        return result

    return function


def _major(x: Array, y: Array, z: Array) -> tuple[Array, Array]:
    """Return whether z, and whether y, is the major axis of a direction."""
    by_z = (np.abs(z) >= np.abs(x)) & (np.abs(z) >= np.abs(y))
    return by_z, ~by_z & (np.abs(y) >= np.abs(x))


def _cube_id(x: Array, y: Array, z: Array) -> Array:
    by_z, by_y = _major(x, y, z)
    face = np.where(by_z, np.where(z < 0, 5, 4), np.where(by_y, np.where(y < 0, 3, 2), np.where(x < 0, 1, 0)))
    return face.astype(np.float32)


def _cube_major(x: Array, y: Array, z: Array) -> Array:
    by_z, by_y = _major(x, y, z)
    return np.where(by_z, z, np.where(by_y, y, x)) * np.float32(2)


def _cube_s(x: Array, y: Array, z: Array) -> Array:
    by_z, by_y = _major(x, y, z)
    return np.where(by_z, np.where(z < 0, -x, x), np.where(by_y, x, np.where(x < 0, z, -z)))


def _cube_t(x: Array, y: Array, z: Array) -> Array:
    by_z, by_y = _major(x, y, z)
    return np.where(by_z, -y, np.where(by_y, np.where(y < 0, -z, z), -y))


def _normed(low: int, high: int) -> Function:
    """Return the conversion of a number in [-1, 1] or [0, 1] to a 16-bit integer in [low, high]."""
    return lambda a: np.rint(np.clip(np.nan_to_num(a), -1.0 if low else 0.0, 1.0) * high).astype(np.int32)


def _normed_pair(low: int, high: int) -> Function:
    one = _normed(low, high)

    def function(a: Array, b: Array) -> Array:
        x, y = one(a).view(U32) & U32(0xFFFF), one(b).view(U32) & U32(0xFFFF)
        result: Array = x | y << U32(16)
        return result

    return function


def _shifted_bytes(low: int, high: int) -> Function:
    """V_ASHR_PK_I8_I32 and U8: two numbers shifted right, saturated to bytes."""

    def function(a: Array, b: Array, c: Array) -> Array:
        x, y = (np.clip(v >> (c & U32(31)).view(np.int32), low, high).view(U32) & U32(0xFF) for v in (a, b))
        return x | y << U32(8)

    return function


@lru_cache(maxsize=1)
def two_over_pi() -> int:
    """Return the first bits of 2/pi behind the point, from Machin's formula."""
    bits = _FRACTION_BITS + 64
    scale = 1 << bits

    def arctan(inverse: int) -> int:
        power, total, n = scale // inverse, 0, 1
        while power:
            total += power // n if n % 4 == 1 else -(power // n)
            power, n = power // inverse**2, n + 2
        return total

    return (2 * scale * scale // (4 * (4 * arctan(5) - arctan(239)))) >> (bits - _FRACTION_BITS)


def _trig_preop(a: Array, b: Array) -> Array:
    """V_TRIG_PREOP_F64: 53 bits of 2/pi for the magnitude of an angle; `b` counts parts from there on."""
    exponent = (a.view(U64) >> U64(52) & U64(0x7FF)).astype(np.int64)
    shift = (b & U32(31)).astype(np.int64) * _KEPT_BITS + np.maximum(exponent - _FIRST_SHIFT, 0)
    shift, exponent = np.broadcast_arrays(shift, exponent)
    fraction, mask, rest = two_over_pi(), (1 << _KEPT_BITS) - 1, _FRACTION_BITS - _KEPT_BITS
    parts = {int(s): float(fraction << int(s) >> rest & mask) for s in np.unique(shift)}
    whole = np.array([parts[int(s)] for s in shift.ravel()]).reshape(shift.shape)
    result: Array = np.ldexp(whole, np.where(exponent >= _SCALED, 128, 0) - _KEPT_BITS - shift)
    return result


RARE_ROWS: Mapping[str, VectorRow] = {
    "v_lerp_u8": row("u32 = u32 u32 u32", _lerp),
    "v_sad_u8": row("u32 = u32 u32 u32", lambda a, b, c: _byte_distances(a, b) + c),
    "v_sad_hi_u8": row("u32 = u32 u32 u32", lambda a, b, c: (_byte_distances(a, b) << U32(16)) + c),
    "v_sad_u16": row("u32 = u32 u32 u32", _sad_u16),
    "v_sad_u32": row("u32 = u32 u32 u32", lambda a, b, c: _distance(a, b) + c),
    "v_msad_u8": row("u32 = u32 u32 u32", lambda a, b, c: _byte_distances(a, b, masked=True) + c),
    "v_qsad_pk_u16_u8": row("u64 = u64 u32 u64", _four_distances(masked=False)),
    "v_mqsad_pk_u16_u8": row("u64 = u64 u32 u64", _four_distances(masked=True)),
    "v_cubeid_f32": row("f32 = f32 f32 f32", _cube_id),
    "v_cubema_f32": row("f32 = f32 f32 f32", _cube_major),
    "v_cubesc_f32": row("f32 = f32 f32 f32", _cube_s),
    "v_cubetc_f32": row("f32 = f32 f32 f32", _cube_t),
    "v_cvt_norm_i16_f16": row("i16 = f16", _normed(-1, 32767)),
    "v_cvt_norm_u16_f16": row("u16 = f16", _normed(0, 65535)),
    **{f"v_cvt_pknorm_i16_{t}": row(f"u32 = {t} {t}", _normed_pair(-1, 32767)) for t in ("f16", "f32")},
    **{f"v_cvt_pknorm_u16_{t}": row(f"u32 = {t} {t}", _normed_pair(0, 65535)) for t in ("f16", "f32")},
    "v_cvt_off_f32_i4": row("f32 = u32", lambda a: ((a << U32(28)).view(np.int32) >> 28) * np.float32(1 / 16)),
    "v_trig_preop_f64": row("f64 = f64 u32", _trig_preop),
    "v_ashr_pk_i8_i32": row("u16 = i32 i32 u32", _shifted_bytes(-128, 127)),
    "v_ashr_pk_u8_i32": row("u16 = i32 i32 u32", _shifted_bytes(0, 255)),
    "v_mad_legacy_f32": row(
        "f32 = f32 f32 f32", lambda a, b, c: np.where((a == 0) | (b == 0), np.float32(0), a * b) + c
    ),
}
