"""Vector instructions on floating-point numbers: arithmetic, conversions, comparisons of all types."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from convgen.backends.amdgpu.sim.alu import division_steps
from convgen.backends.amdgpu.sim.alu.curves import CURVES
from convgen.backends.amdgpu.sim.alu.vector_rows import Function, VectorRow, row
from convgen.backends.sim import numbers as num
from convgen.backends.sim.wave_arrays import Array

U32 = np.uint32


def _ubyte(number: int) -> Function:
    return lambda a: ((a >> U32(8 * number)) & U32(0xFF)).astype(np.float32)


def _pkrtz(a: Array, b: Array) -> Array:
    return num.half_toward_zero(a) | (num.half_toward_zero(b) << U32(16))


def _pk_int(low: int, high: int) -> Function:
    def function(a: Array, b: Array) -> Array:
        x, y = (np.clip(v, low, high).astype(np.int64).astype(U32) for v in (a, b))
        return (x & U32(0xFFFF)) | (y << U32(16))

    return function


def _frexp_exp(a: Array) -> Array:
    exponent = np.frexp(a)[1]
    return np.where(np.isfinite(a), exponent, 0).astype(np.int32)


def _frexp_mant(a: Array) -> Array:
    return np.where(np.isfinite(a), np.frexp(a)[0], a).astype(a.dtype)


def _fract(a: Array) -> Array:
    one_less = np.nextafter(a.dtype.type(1), a.dtype.type(0))
    result: Array = np.minimum(a - np.floor(a), one_less)
    return result


def minimum(a: Array, b: Array) -> Array:
    """V_MIN of floats: a NaN loses against a number, and 0 against -0."""
    return np.where(a == b, np.where(np.signbit(a), a, b), num.minimum(a, b))


def maximum(a: Array, b: Array) -> Array:
    """V_MAX of floats: a NaN loses against a number, and -0 against 0."""
    return np.where(a == b, np.where(np.signbit(a), b, a), num.maximum(a, b))


def _class(tiny: float, a: Array, mask: Array) -> Array:
    """V_CMP_CLASS: one bit of `mask` for each kind of number; `tiny` is the smallest normal one."""
    negative = np.signbit(a)
    normal, small = np.isfinite(a) & (np.abs(a) >= tiny), (a != 0) & (np.abs(a) < tiny)
    kinds = (
        *(np.zeros(a.shape, np.bool_), np.isnan(a)),
        *(np.isinf(a) & negative, normal & negative, small & negative, (a == 0) & negative),
        *((a == 0) & ~negative, small & ~negative, normal & ~negative, np.isinf(a) & ~negative),
    )
    found = np.zeros(np.broadcast_shapes(a.shape, mask.shape), np.bool_)
    for bit, kind in enumerate(kinds):
        found |= kind & ((mask >> U32(bit)) & U32(1) == 1)
    return found


def _mad_f16(a: Array, b: Array, c: Array) -> Array:
    """Return a sum whose product is rounded to f16 first; the caller rounds the sum."""
    return num.half_to_f32(num.f32_to_half(a * b)) + c


_BINARY: dict[str, Function] = {"add": lambda a, b: a + b, "mul": lambda a, b: a * b, "min": minimum, "max": maximum}
_DIFFERENCE: dict[str, Function] = {"sub": lambda a, b: a - b, "subrev": lambda a, b: b - a}
_UNARY: dict[str, Function] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rndne": np.rint,
    "fract": _fract,
    "frexp_mant": _frexp_mant,
}
_FORMATS = {"f32": division_steps.F32, "f64": division_steps.F64}
_FLOAT: dict[str, VectorRow] = {
    **{f"v_{name}_{t}": row(f"{t} = {t} {t}", f) for t in ("f16", "f32", "f64") for name, f in _BINARY.items()},
    **{f"v_{name}_{t}": row(f"{t} = {t} {t}", f) for t in ("f16", "f32") for name, f in _DIFFERENCE.items()},
    "v_minimum3_f32": row("f32 = f32 f32 f32", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "v_maximum3_f32": row("f32 = f32 f32 f32", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "v_mul_legacy_f32": row("f32 = f32 f32", lambda a, b: np.where((a == 0) | (b == 0), np.float32(0), a * b)),
    "v_fma_f32": row("f32 = f32 f32 f32", num.fma_f32),
    "v_fma_f64": row("f64 = f64 f64 f64", num.fma_f64),
    "v_fma_f16": row("f16 = f16 f16 f16", num.fma_f16),
    **{f"v_{n}_f16": row("f16 = f16 f16 f16", _mad_f16) for n in ("mad", "mad_legacy", "madak", "madmk")},
    "v_fma_legacy_f16": row("f16 = f16 f16 f16", num.fma_f16),
    **{f"v_{name}_f32": row("f32 = f32 f32 f32", lambda a, b, c: a * b + c) for name in ("mad", "madak", "madmk")},
    "v_fmac_f32": row("f32 = f32 f32 acc", num.fma_f32),
    "v_fmac_f16": row("f16 = f16 f16 acc", num.fma_f16),
    "v_fmac_f64": row("f64 = f64 f64 acc", num.fma_f64),
    "v_fmaak_f32": row("f32 = f32 f32 f32", num.fma_f32),
    "v_fmamk_f32": row("f32 = f32 f32 f32", num.fma_f32),
    "v_mac_f32": row("f32 = f32 f32 acc", lambda a, b, c: a * b + c),
    "v_mac_f16": row("f16 = f16 f16 acc", _mad_f16),
    "v_ldexp_f32": row("f32 = f32 i32", np.ldexp),
    "v_ldexp_f64": row("f64 = f64 i32", np.ldexp),
    "v_ldexp_f16": row("f16 = f16 i16", np.ldexp),
    **{f"v_div_fixup_{t}": row(f"{t} = {t} {t} {t}", division_steps.fixup) for t in ("f16", "f32", "f64")},
    "v_div_fixup_legacy_f16": row("f16 = f16 f16 f16", division_steps.fixup),
    **{f"v_div_scale_{t}": row(f"{t} mask = {t} {t} {t}", division_steps.scale(f)) for t, f in _FORMATS.items()},
    **{f"v_div_fmas_{t}": row(f"{t} = {t} {t} {t} vcc", division_steps.fmas(f)) for t, f in _FORMATS.items()},
    **{f"v_{name}_{t}": row(f"{t} = {t}", f) for t in ("f16", "f32", "f64") for name, f in _UNARY.items()},
    "v_prng_b32": row("u32 = u32", lambda a: (a << U32(1)) ^ np.where(a >> U32(31), U32(197), U32(0))),
    "v_frexp_exp_i32_f32": row("i32 = f32", _frexp_exp),
    "v_frexp_exp_i32_f64": row("i32 = f64", _frexp_exp),
    "v_frexp_exp_i16_f16": row("i16 = f16", _frexp_exp),
}

_I32 = num.to_integer(-(1 << 31), (1 << 31) - 1, np.int32)
_U32 = num.to_integer(0, (1 << 32) - 1, np.uint32)
_CONVERT: dict[str, VectorRow] = {
    "v_cvt_f32_u32": row("f32 = u32", lambda a: a.astype(np.float32)),
    "v_cvt_f32_i32": row("f32 = i32", lambda a: a.astype(np.float32)),
    "v_cvt_f64_u32": row("f64 = u32", lambda a: a.astype(np.float64)),
    "v_cvt_f64_i32": row("f64 = i32", lambda a: a.astype(np.float64)),
    "v_cvt_u32_f32": row("u32 = f32", _U32),
    "v_cvt_i32_f32": row("i32 = f32", _I32),
    "v_cvt_u32_f64": row("u32 = f64", _U32),
    "v_cvt_i32_f64": row("i32 = f64", _I32),
    "v_cvt_rpi_i32_f32": row("i32 = f32", lambda a: _I32(np.floor(a + np.float32(0.5)))),
    "v_cvt_flr_i32_f32": row("i32 = f32", lambda a: _I32(np.floor(a))),
    "v_cvt_f32_f64": row("f32 = f64", lambda a: a.astype(np.float32)),
    "v_cvt_f64_f32": row("f64 = f32", lambda a: a.astype(np.float64)),
    "v_cvt_f32_f16": row("f32 = f16", lambda a: a),
    "v_cvt_f16_f32": row("f16 = f32", lambda a: a),
    "v_cvt_f32_bf16": row("f32 = bf16", lambda a: a),
    "v_cvt_f16_u16": row("f16 = u16", lambda a: a.astype(np.float32)),
    "v_cvt_f16_i16": row("f16 = i16", lambda a: a.astype(np.float32)),
    "v_cvt_u16_f16": row("u16 = f16", num.to_integer(0, 0xFFFF, np.uint32)),
    "v_cvt_i16_f16": row("i16 = f16", num.to_integer(-0x8000, 0x7FFF, np.int32)),
    **{f"v_cvt_f32_ubyte{n}": row("f32 = u32", _ubyte(n)) for n in range(4)},
    "v_cvt_pkrtz_f16_f32": row("u32 = f32 f32", _pkrtz),
    "v_cvt_pk_f16_f32": row("u32 = f32 f32", lambda a, b: num.f32_to_half(a) | (num.f32_to_half(b) << U32(16))),
    "v_cvt_pk_bf16_f32": row("u32 = f32 f32", lambda a, b: num.f32_to_bf16(a) | (num.f32_to_bf16(b) << U32(16))),
    "v_cvt_pk_u16_u32": row("u32 = u32 u32", _pk_int(0, 0xFFFF)),
    "v_cvt_pk_i16_i32": row("u32 = i32 i32", _pk_int(-0x8000, 0x7FFF)),
}


def _comparisons() -> dict[str, VectorRow]:
    """Return the rows of v_cmp_* and v_cmpx_*; that the latter also write EXEC, `valu` adds."""
    plain: dict[str, Function] = {
        "f": lambda a, b: np.zeros(np.broadcast_shapes(a.shape, b.shape), np.bool_),
        "lt": lambda a, b: a < b,
        "eq": lambda a, b: a == b,
        "le": lambda a, b: a <= b,
        "gt": lambda a, b: a > b,
        "ge": lambda a, b: a >= b,
    }
    floating: dict[str, Function] = {
        **plain,
        "lg": lambda a, b: (a < b) | (a > b),
        "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
        "u": lambda a, b: np.isnan(a) | np.isnan(b),
        "nge": lambda a, b: ~(a >= b),
        "nlg": lambda a, b: ~((a < b) | (a > b)),
        "ngt": lambda a, b: ~(a > b),
        "nle": lambda a, b: ~(a <= b),
        "neq": lambda a, b: a != b,
        "nlt": lambda a, b: ~(a < b),
        "tru": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), np.bool_),
    }
    integer: dict[str, Function] = {**plain, "ne": lambda a, b: a != b, "t": floating["tru"]}
    rows: dict[str, VectorRow] = {}
    for prefix in ("v_cmp", "v_cmpx"):
        for t in ("f16", "f32", "f64"):
            rows.update({f"{prefix}_{n}_{t}": row(f"mask = {t} {t}", f) for n, f in floating.items()})
        for t, dtype in (("f16", np.float16), ("f32", np.float32), ("f64", np.float64)):
            rows[f"{prefix}_class_{t}"] = row(f"mask = {t} u32", partial(_class, float(np.finfo(dtype).tiny)))
        for t in ("i16", "u16", "i32", "u32", "i64", "u64"):
            rows.update({f"{prefix}_{n}_{t}": row(f"mask = {t} {t}", f) for n, f in integer.items()})
    return rows


FLOAT_ROWS: Mapping[str, VectorRow] = {**_FLOAT, **CURVES, **_CONVERT, **_comparisons()}
