"""Vector ALU instructions with plain semantics: one function over typed sources (CDNA3 ISA, "Vector ALU Operations").

`signature` is "results = sources"; types are those of `operands`. `acc` is the destination read as an addend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

from convgen.backends.amdgpu.sim.alu import numbers as num
from convgen.backends.amdgpu.sim.alu.salu_table import bit_reverse, first_one, leading_zeros
from convgen.backends.amdgpu.sim.state import Array

U32, U64 = np.uint32, np.uint64
Function = Callable[..., Any]


@attrs.frozen
class VectorRow:
    """One vector instruction: result types, source types, function."""

    results: tuple[str, ...]
    sources: tuple[str, ...]
    function: Function
    poison: str = "all"  #: "all", "words" (result word k from source words k), "low" (low word from low words)
    transcendental: bool = False
    dot: bool = False


def row(signature: str, function: Function, **flags: Any) -> VectorRow:
    """A row from its signature, such as "f32 = f32 f32"."""
    results, _, sources = signature.partition("=")
    return VectorRow(tuple(results.split()), tuple(sources.split()), function, **flags)


def _reversed(function: Function) -> Function:
    return lambda a, b: function(b, a)


def _shl(a: Array, b: Array) -> Array:
    result: Array = a << (b & U32(31))
    return result


def _shr(a: Array, b: Array) -> Array:
    result: Array = a >> (b & U32(31))
    return result


def _ashr(a: Array, b: Array) -> Array:
    return a >> (b & U32(31)).view(np.int32)


def _shl16(a: Array, b: Array) -> Array:
    result: Array = a << (b & U32(15))
    return result


def _shr16(a: Array, b: Array) -> Array:
    result: Array = a >> (b & U32(15))
    return result


def _ashr16(a: Array, b: Array) -> Array:
    return a >> (b & U32(15)).view(np.int32)


def _add_co(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    return total, total < a


def _sub_co(a: Array, b: Array) -> tuple[Array, Array]:
    return a - b, b > a


def _addc_co(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    total = a.astype(U64) + b + carry
    return total.astype(U32), total > U64(0xFFFFFFFF)


def _subb_co(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    taken = b.astype(U64) + borrow
    return a - taken.astype(U32), taken > a


def _mul_hi_u(a: Array, b: Array) -> Array:
    return (a.astype(U64) * b) >> U64(32)


def _mul_hi_i(a: Array, b: Array) -> Array:
    return (a.astype(np.int64) * b) >> 32


def _mul_wide(a: Array, b: Array) -> Array:
    return a.astype(U64) * b


def _mul_i_wide(a: Array, b: Array) -> Array:
    return a.astype(np.int64) * b


def _mad_u64(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    total = a.astype(U64) * b + c
    return total, total < c


def _mad_i64(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    product = a.astype(np.int64) * b
    total = product + c
    return total, ((product ^ total) & (c ^ total)) < 0


def _bfe_u(a: Array, b: Array, c: Array) -> Array:
    width = c & U32(31)
    result: Array = (a >> (b & U32(31))) & ((U32(1) << width) - U32(1))
    return result


def _bfe_i(a: Array, b: Array, c: Array) -> Array:
    width = (c & U32(31)).view(np.int32)
    spare = 32 - width
    field = (a.view(U32) >> (b & U32(31))).view(np.int32)
    return np.where(width == 0, 0, (field << (spare & 31)) >> (spare & 31))


def _bfi(a: Array, b: Array, c: Array) -> Array:
    return (a & b) | (~a & c)


def _perm(a: Array, b: Array, select: Array) -> Array:
    """V_PERM_B32: bytes 0..3 from the second source, 4..7 from the first, 8..11 signs, 12 zero, 13 and up 0xff."""
    both = (a.astype(U64) << U64(32)) | b
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, select.shape), U32)
    for byte in range(4):
        index = (select >> U32(8 * byte)) & U32(0xFF)
        plain = ((both >> ((index & U32(7)) * U32(8)).astype(U64)) & U64(0xFF)).astype(U32)
        sign_at = (U32(15) + U32(16) * (index & U32(3))).astype(U64)
        sign = ((both >> sign_at) & U64(1)).astype(U32) * U32(0xFF)
        chosen = np.where(index < 8, plain, np.where(index < 12, sign, np.where(index == 12, U32(0), U32(0xFF))))
        result = result | (chosen.astype(U32) << U32(8 * byte))
    return result


def _align(step: int) -> Function:
    def function(a: Array, b: Array, c: Array) -> Array:
        both = (a.astype(U64) << U64(32)) | b
        return both >> ((c & U32(31 if step == 1 else 3)) * U32(step)).astype(U64)

    return function


def _sad_u8(a: Array, b: Array, c: Array) -> Array:
    total = c
    for shift in (0, 8, 16, 24):
        x = ((a >> U32(shift)) & U32(0xFF)).astype(np.int32)
        y = ((b >> U32(shift)) & U32(0xFF)).astype(np.int32)
        total = total + np.abs(x - y).astype(U32)
    return total


def _ubyte(number: int) -> Function:
    return lambda a: ((a >> U32(8 * number)) & U32(0xFF)).astype(np.float32)


def _pkrtz(a: Array, b: Array) -> Array:
    return num.half_toward_zero(a) | (num.half_toward_zero(b) << U32(16))


def _pk_norm(scale: int, low: int) -> Function:
    def function(a: Array, b: Array) -> Array:
        x, y = (np.rint(np.clip(np.nan_to_num(v), low, 1.0) * scale).astype(np.int32).view(U32) for v in (a, b))
        result: Array = (x & U32(0xFFFF)) | (y << U32(16))
        return result

    return function


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


def _sine(function: Function) -> Function:
    return lambda a: function(np.asarray(a, np.float64) * (2 * np.pi))


def _dot(bits: int, *, signed: bool) -> Function:
    def function(a: Array, b: Array, c: Array) -> Array:
        total = c
        for shift in range(0, 32, bits):
            x, y = (v << U32(32 - bits - shift) for v in (a, b))
            if signed:
                total = total + (x.view(np.int32) >> (32 - bits)) * (y.view(np.int32) >> (32 - bits))
            else:
                total = total + (x >> U32(32 - bits)) * (y >> U32(32 - bits))
        return total

    return function


def _dot2_half(a: Array, b: Array, c: Array) -> Array:
    low = num.half_to_f32(a).astype(np.float64) * num.half_to_f32(b)
    high = num.half_to_f32(a >> U32(16)).astype(np.float64) * num.half_to_f32(b >> U32(16))
    return low + high + c


def _dot2_bf16(a: Array, b: Array, c: Array) -> Array:
    low = num.bf16_to_f32(a).astype(np.float64) * num.bf16_to_f32(b)
    high = num.bf16_to_f32(a >> U32(16)).astype(np.float64) * num.bf16_to_f32(b >> U32(16))
    return low + high + c


def _class(a: Array, mask: Array) -> Array:
    """V_CMP_CLASS: one bit of `mask` for each kind of number."""
    tiny = np.finfo(a.dtype).tiny
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


def _div_fixup(quotient: Array, divisor: Array, dividend: Array) -> Array:
    """V_DIV_FIXUP: put right what the Newton iteration gives for zeros, infinities and NaNs."""
    exact = dividend / divisor
    return np.where(np.isfinite(exact) & (exact != 0), quotient, exact).astype(quotient.dtype)


def _div_scale(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """V_DIV_SCALE away from the exponent limits: the value unscaled and VCC clear."""
    return a, np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.bool_)


def _ldexp(a: Array, b: Array) -> Array:
    return np.ldexp(a, b)


def _mbcnt_bits(a: Array, b: Array, high: bool) -> Array:
    lane = np.arange(64)
    below = np.clip(lane - (32 if high else 0), 0, 32).astype(U64)
    mask = ((U64(1) << below) - U64(1)).astype(U32)
    result: Array = np.bitwise_count(a & mask[None, :]).astype(U32) + b
    return result


def _select(a: Array, b: Array, lanes: Array) -> Array:
    return np.where(lanes, b, a)


_PLAIN: dict[str, VectorRow] = {
    "v_mov_b32": row("u32 = b32", lambda a: a),
    "v_mov_b64": row("u64 = b64", lambda a: a, poison="words"),
    "v_not_b32": row("u32 = u32", lambda a: ~a),
    "v_bfrev_b32": row("u32 = u32", bit_reverse),
    "v_ffbl_b32": row("i32 = u32", first_one),
    "v_ffbh_u32": row("i32 = u32", leading_zeros),
    "v_ffbh_i32": row("i32 = i32", lambda a: leading_zeros(np.where(a < 0, ~a, a).view(U32))),
    "v_bcnt_u32_b32": row("u32 = u32 u32", lambda a, b: np.bitwise_count(a) + b),
    "v_mbcnt_lo_u32_b32": row("u32 = u32 u32", lambda a, b: _mbcnt_bits(a, b, high=False)),
    "v_mbcnt_hi_u32_b32": row("u32 = u32 u32", lambda a, b: _mbcnt_bits(a, b, high=True)),
    "v_and_b32": row("u32 = u32 u32", lambda a, b: a & b),
    "v_or_b32": row("u32 = u32 u32", lambda a, b: a | b),
    "v_xor_b32": row("u32 = u32 u32", lambda a, b: a ^ b),
    "v_xnor_b32": row("u32 = u32 u32", lambda a, b: ~(a ^ b)),
    "v_cndmask_b32": row("u32 = b32 b32 mask", _select),
    "v_add_u32": row("u32 = u32 u32", lambda a, b: a + b),
    "v_sub_u32": row("u32 = u32 u32", lambda a, b: a - b),
    "v_subrev_u32": row("u32 = u32 u32", lambda a, b: b - a),
    "v_add_i32": row("i32 = i32 i32", lambda a, b: a + b),
    "v_sub_i32": row("i32 = i32 i32", lambda a, b: a - b),
    "v_add_co_u32": row("u32 mask = u32 u32", _add_co),
    "v_sub_co_u32": row("u32 mask = u32 u32", _sub_co),
    "v_subrev_co_u32": row("u32 mask = u32 u32", _reversed(_sub_co)),
    "v_addc_co_u32": row("u32 mask = u32 u32 mask", _addc_co),
    "v_subb_co_u32": row("u32 mask = u32 u32 mask", _subb_co),
    "v_subbrev_co_u32": row("u32 mask = u32 u32 mask", lambda a, b, c: _subb_co(b, a, c)),
    "v_mul_lo_u32": row("u32 = u32 u32", lambda a, b: a * b),
    "v_mul_hi_u32": row("u32 = u32 u32", _mul_hi_u),
    "v_mul_hi_i32": row("i32 = i32 i32", _mul_hi_i),
    "v_mul_u32_u24": row("u32 = u24 u24", lambda a, b: a * b),
    "v_mul_i32_i24": row("i32 = i24 i24", lambda a, b: a * b),
    "v_mul_hi_u32_u24": row("u32 = u24 u24", _mul_hi_u),
    "v_mul_hi_i32_i24": row("i32 = i24 i24", _mul_hi_i),
    "v_mad_u32_u24": row("u32 = u24 u24 u32", lambda a, b, c: a * b + c),
    "v_mad_i32_i24": row("i32 = i24 i24 i32", lambda a, b, c: a * b + c),
    "v_mad_u64_u32": row("u64 mask = u32 u32 u64", _mad_u64, poison="low"),
    "v_mad_i64_i32": row("i64 mask = i32 i32 i64", _mad_i64, poison="low"),
    "v_lshlrev_b32": row("u32 = u32 u32", _reversed(_shl)),
    "v_lshrrev_b32": row("u32 = u32 u32", _reversed(_shr)),
    "v_ashrrev_i32": row("i32 = u32 i32", _reversed(_ashr)),
    "v_lshlrev_b64": row("u64 = u32 u64", lambda a, b: b << (a & U32(63)).astype(U64)),
    "v_lshrrev_b64": row("u64 = u32 u64", lambda a, b: b >> (a & U32(63)).astype(U64)),
    "v_ashrrev_i64": row("i64 = u32 i64", lambda a, b: b >> (a & U32(63)).astype(np.int64)),
    "v_lshl_add_u64": row("u64 = u64 u32 u64", lambda a, b, c: (a << (b & U32(7)).astype(U64)) + c, poison="low"),
    "v_lshl_add_u32": row("u32 = u32 u32 u32", lambda a, b, c: _shl(a, b) + c),
    "v_add_lshl_u32": row("u32 = u32 u32 u32", lambda a, b, c: _shl(a + b, c)),
    "v_lshl_or_b32": row("u32 = u32 u32 u32", lambda a, b, c: _shl(a, b) | c),
    "v_and_or_b32": row("u32 = u32 u32 u32", lambda a, b, c: (a & b) | c),
    "v_or3_b32": row("u32 = u32 u32 u32", lambda a, b, c: a | b | c),
    "v_add3_u32": row("u32 = u32 u32 u32", lambda a, b, c: a + b + c),
    "v_xad_u32": row("u32 = u32 u32 u32", lambda a, b, c: (a ^ b) + c),
    "v_bfe_u32": row("u32 = u32 u32 u32", _bfe_u),
    "v_bfe_i32": row("i32 = i32 u32 u32", _bfe_i),
    "v_bfi_b32": row("u32 = u32 u32 u32", _bfi),
    "v_bfm_b32": row("u32 = u32 u32", lambda a, b: ((U32(1) << (a & U32(31))) - U32(1)) << (b & U32(31))),
    "v_perm_b32": row("u32 = u32 u32 u32", _perm),
    "v_alignbit_b32": row("u32 = u32 u32 u32", _align(1)),
    "v_alignbyte_b32": row("u32 = u32 u32 u32", _align(8)),
    "v_sad_u8": row("u32 = u32 u32 u32", _sad_u8),
    "v_sad_u32": row("u32 = u32 u32 u32", lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c),
    "v_pack_b32_f16": row("u32 = f16 f16", lambda a, b: num.f32_to_half(a) | (num.f32_to_half(b) << U32(16))),
    **{
        f"v_{n}_{t}": row(f"{t} = {t} {t}", f)
        for n, f in (("min", np.minimum), ("max", np.maximum))
        for t in ("u32", "i32", "u16", "i16")
    },
    **{
        f"v_{n}3_{t}": row(f"{t} = {t} {t} {t}", lambda a, b, c, f=f: f(f(a, b), c))
        for n, f in (("min", num.minimum), ("max", num.maximum))
        for t in ("u32", "i32", "u16", "i16", "f32", "f16")
    },
    **{f"v_med3_{t}": row(f"{t} = {t} {t} {t}", num.median) for t in ("u32", "i32", "u16", "i16", "f32", "f16")},
    # 16-bit integers
    "v_add_u16": row("u16 = u16 u16", lambda a, b: a + b),
    "v_sub_u16": row("u16 = u16 u16", lambda a, b: a - b),
    "v_subrev_u16": row("u16 = u16 u16", lambda a, b: b - a),
    "v_add_i16": row("i16 = i16 i16", lambda a, b: a + b),
    "v_sub_i16": row("i16 = i16 i16", lambda a, b: a - b),
    "v_mul_lo_u16": row("u16 = u16 u16", lambda a, b: a * b),
    "v_mad_u16": row("u16 = u16 u16 u16", lambda a, b, c: a * b + c),
    "v_mad_i16": row("i16 = i16 i16 i16", lambda a, b, c: a * b + c),
    "v_mad_legacy_u16": row("u16 = u16 u16 u16", lambda a, b, c: a * b + c),
    "v_mad_u32_u16": row("u32 = u16 u16 u32", lambda a, b, c: a * b + c),
    "v_mad_i32_i16": row("i32 = i16 i16 i32", lambda a, b, c: a * b + c),
    "v_lshlrev_b16": row("u16 = u16 u16", _reversed(_shl16)),
    "v_lshrrev_b16": row("u16 = u16 u16", _reversed(_shr16)),
    "v_ashrrev_i16": row("i16 = u16 i16", _reversed(_ashr16)),
    "v_sat_pk_u8_i16": row(
        "u32 = u32",
        lambda a: (
            np.clip((a << U32(16)).view(np.int32) >> 16, 0, 255).astype(U32)
            | (np.clip(a.view(np.int32) >> 16, 0, 255).astype(U32) << U32(8))
        ),
    ),
    # dot products
    "v_dot2_f32_f16": row("f32 = u32 u32 f32", _dot2_half, dot=True),
    "v_dot2c_f32_f16": row("f32 = u32 u32 acc", _dot2_half, dot=True),
    "v_dot2_f32_bf16": row("f32 = u32 u32 f32", _dot2_bf16, dot=True),
    "v_dot2c_f32_bf16": row("f32 = u32 u32 acc", _dot2_bf16, dot=True),
    "v_dot2_i32_i16": row("i32 = u32 u32 i32", _dot(16, signed=True), dot=True),
    "v_dot2_u32_u16": row("u32 = u32 u32 u32", _dot(16, signed=False), dot=True),
    "v_dot4_i32_i8": row("i32 = u32 u32 i32", _dot(8, signed=True), dot=True),
    "v_dot4c_i32_i8": row("i32 = u32 u32 acc", _dot(8, signed=True), dot=True),
    "v_dot4_u32_u8": row("u32 = u32 u32 u32", _dot(8, signed=False), dot=True),
    "v_dot8_i32_i4": row("i32 = u32 u32 i32", _dot(4, signed=True), dot=True),
    "v_dot8_u32_u4": row("u32 = u32 u32 u32", _dot(4, signed=False), dot=True),
}

_UNARY: dict[str, Function] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rndne": np.rint,
    "fract": _fract,
    "frexp_mant": _frexp_mant,
}
_ROOTS: dict[str, Function] = {
    "rcp": lambda a: 1 / a,
    "rsq": lambda a: 1 / np.sqrt(a),
    "sqrt": np.sqrt,
}
_TRANSCENDENTAL: dict[str, Function] = {
    "exp": np.exp2,
    "log": np.log2,
    "sin": _sine(np.sin),
    "cos": _sine(np.cos),
}

_FLOAT: dict[str, VectorRow] = {
    **{
        f"v_{name}_{t}": row(f"{t} = {t} {t}", function)
        for t in ("f16", "f32")
        for name, function in {
            "add": lambda a, b: a + b,
            "sub": lambda a, b: a - b,
            "subrev": lambda a, b: b - a,
            "mul": lambda a, b: a * b,
            "min": num.minimum,
            "max": num.maximum,
        }.items()
    },
    **{
        f"v_{n}_f64": row("f64 = f64 f64", f)
        for n, f in {
            "add": lambda a, b: a + b,
            "mul": lambda a, b: a * b,
            "min": num.minimum,
            "max": num.maximum,
        }.items()
    },
    "v_minimum3_f32": row("f32 = f32 f32 f32", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "v_maximum3_f32": row("f32 = f32 f32 f32", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "v_mul_legacy_f32": row("f32 = f32 f32", lambda a, b: np.where((a == 0) | (b == 0), np.float32(0), a * b)),
    "v_fma_f32": row("f32 = f32 f32 f32", num.fma_f32),
    "v_fma_f64": row("f64 = f64 f64 f64", num.fma_f64),
    "v_fma_f16": row("f16 = f16 f16 f16", num.fma_f16),
    "v_mad_f16": row("f16 = f16 f16 f16", lambda a, b, c: num.half_to_f32(num.f32_to_half(a * b)) + c),
    "v_mad_f32": row("f32 = f32 f32 f32", lambda a, b, c: a * b + c),
    "v_fmac_f32": row("f32 = f32 f32 acc", num.fma_f32),
    "v_fmac_f16": row("f16 = f16 f16 acc", num.fma_f16),
    "v_fmac_f64": row("f64 = f64 f64 acc", num.fma_f64),
    "v_fmaak_f32": row("f32 = f32 f32 f32", num.fma_f32),
    "v_fmamk_f32": row("f32 = f32 f32 f32", num.fma_f32),
    "v_mac_f32": row("f32 = f32 f32 acc", lambda a, b, c: a * b + c),
    "v_ldexp_f32": row("f32 = f32 i32", _ldexp),
    "v_ldexp_f64": row("f64 = f64 i32", _ldexp),
    "v_ldexp_f16": row("f16 = f16 i16", _ldexp),
    "v_div_fixup_f32": row("f32 = f32 f32 f32", _div_fixup),
    "v_div_fixup_f16": row("f16 = f16 f16 f16", _div_fixup),
    "v_div_fixup_f64": row("f64 = f64 f64 f64", _div_fixup),
    "v_div_scale_f32": row("f32 mask = f32 f32 f32", _div_scale),
    "v_div_scale_f64": row("f64 mask = f64 f64 f64", _div_scale),
    "v_div_fmas_f32": row(
        "f32 = f32 f32 f32 vcc",
        lambda a, b, c, v: num.fma_f32(a, b, c) * np.where(v, np.float32(2.0**32), np.float32(1)),
    ),
    "v_div_fmas_f64": row("f64 = f64 f64 f64 vcc", lambda a, b, c, v: num.fma_f64(a, b, c) * np.where(v, 2.0**64, 1.0)),
    **{
        f"v_{name}_{t}": row(f"{t} = {t}", function) for t in ("f16", "f32", "f64") for name, function in _UNARY.items()
    },
    **{
        f"v_{name}_{t}": row(f"{t} = {t}", function, transcendental=True)
        for t in ("f16", "f32", "f64")
        for name, function in _ROOTS.items()
    },
    **{
        f"v_{name}_{t}": row(f"{t} = {t}", function, transcendental=True)
        for t in ("f16", "f32")
        for name, function in _TRANSCENDENTAL.items()
    },
    "v_rcp_iflag_f32": row("f32 = f32", lambda a: 1 / a, transcendental=True),
    "v_exp_legacy_f32": row("f32 = f32", np.exp2, transcendental=True),
    "v_log_legacy_f32": row("f32 = f32", np.log2, transcendental=True),
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
    "v_cvt_pknorm_i16_f32": row("u32 = f32 f32", _pk_norm(32767, -1)),
    "v_cvt_pknorm_u16_f32": row("u32 = f32 f32", _pk_norm(65535, 0)),
    "v_cvt_pk_u16_u32": row("u32 = u32 u32", _pk_int(0, 0xFFFF)),
    "v_cvt_pk_i16_i32": row("u32 = i32 i32", _pk_int(-0x8000, 0x7FFF)),
}


def _comparisons() -> dict[str, VectorRow]:
    """All v_cmp_* and v_cmpx_* (the latter also write EXEC, which the compiler adds)."""
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
        for t in ("f32", "f64"):
            rows[f"{prefix}_class_{t}"] = row(f"mask = {t} u32", _class)
        for t in ("i16", "u16", "i32", "u32", "i64", "u64"):
            rows.update({f"{prefix}_{n}_{t}": row(f"mask = {t} {t}", f) for n, f in integer.items()})
    return rows


#: VOP3-only 16-bit instructions, which leave the high half of their destination alone; the others clear it.
KEEPS_HIGH = frozenset(
    "v_fma_f16 v_mad_f16 v_mad_u16 v_mad_i16 v_div_fixup_f16 v_add_i16 v_sub_i16 v_med3_f16 v_med3_u16 v_med3_i16 "
    "v_min3_f16 v_min3_u16 v_min3_i16 v_max3_f16 v_max3_u16 v_max3_i16".split()
)
VECTOR_ROWS: Mapping[str, VectorRow] = {**_PLAIN, **_FLOAT, **_CONVERT, **_comparisons()}
