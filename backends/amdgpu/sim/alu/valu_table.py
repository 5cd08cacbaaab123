"""Vector instructions on integers and bits, and the table of all plain vector instructions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from convgen.backends.amdgpu.sim.alu import integers
from convgen.backends.amdgpu.sim.alu.curves import flushed
from convgen.backends.amdgpu.sim.alu.float_table import FLOAT_ROWS
from convgen.backends.amdgpu.sim.alu.rare_table import RARE_ROWS
from convgen.backends.amdgpu.sim.alu.saturate import exact_dot
from convgen.backends.amdgpu.sim.alu.vector_rows import Function, VectorRow, row
from convgen.backends.sim import numbers as num
from convgen.backends.sim.wave_arrays import Array

U32, U64 = np.uint32, np.uint64
_shl = integers.left(32)


def _reversed(function: Function) -> Function:
    return lambda a, b: function(b, a)


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
    field = a >> (b & U32(31)).view(np.int32)
    return np.where(width == 0, 0, (field << (spare & 31)) >> (spare & 31))


def _perm(a: Array, b: Array, select: Array) -> Array:
    """V_PERM_B32: bytes 0..3 from the second source, 4..7 from the first, 8..11 signs, 12 zero, 13 and up 0xff."""
    shape = np.broadcast_shapes(a.shape, b.shape, select.shape)
    second, first, wanted = (np.broadcast_to(x, shape).astype(U32)[..., None].view(np.uint8) for x in (b, a, select))
    choices = np.empty((*shape, 14), np.uint8)
    choices[..., :4], choices[..., 4:8] = second, first
    choices[..., 8:12] = np.where(choices[..., 1:8:2] & 0x80, 0xFF, 0)
    choices[..., 12], choices[..., 13] = 0, 0xFF
    return np.take_along_axis(choices, np.minimum(wanted, 13).astype(np.intp), -1).view(U32)[..., 0]


def _align(step: int) -> Function:
    def function(a: Array, b: Array, c: Array) -> Array:
        both = (a.astype(U64) << U64(32)) | b
        return both >> ((c & U32(31 if step == 1 else 3)) * U32(step)).astype(U64)

    return function


def _dot(bits: int, *, signed: bool) -> Function:
    """Return the sum of products of fields of two words, and an addend, as 64-bit integers, which the caller wraps."""
    exact = exact_dot(bits, signed=signed)
    return lambda a, b, c: exact(*(value.astype(np.int64) for value in (a, b, c)))


def _dot2(decode: Function, tiny: float) -> Function:
    """Two products and an addend, one rounding. Denormals of inputs and results, those below `tiny` and the tiniest
    f32, are 0, whatever the mode (CDNA3 ISA 6.4: V_DOT2 has no denormal mode and flushes)."""

    def number(word: Array) -> Array:
        value = decode(word).astype(np.float64)
        return np.where(np.abs(value) < tiny, 0.0, value)

    def function(a: Array, b: Array, c: Array) -> Array:
        low, high = number(a) * number(b), number(a >> U32(16)) * number(b >> U32(16))
        return flushed(np.asarray(low + high + flushed(c)).astype(np.float32))

    return function


_dot2_half = _dot2(num.half_to_f32, 2.0**-14)
_dot2_bf16 = _dot2(num.bf16_to_f32, 2.0**-126)


def _mbcnt_bits(a: Array, b: Array, high: bool) -> Array:
    lane = np.arange(64)
    below = np.clip(lane - (32 if high else 0), 0, 32).astype(U64)
    mask = ((U64(1) << below) - U64(1)).astype(U32)
    result: Array = np.bitwise_count(a & mask[None, :]).astype(U32) + b
    return result


_PLAIN: dict[str, VectorRow] = {
    "v_mov_b32": row("u32 = b32", lambda a: a),
    "v_mov_b64": row("u64 = b64", lambda a: a, poison="words"),
    "v_not_b32": row("u32 = u32", lambda a: ~a),
    "v_bfrev_b32": row("u32 = u32", integers.bit_reverse),
    "v_ffbl_b32": row("i32 = u32", integers.first_one),
    "v_ffbh_u32": row("i32 = u32", integers.leading_zeros),
    "v_ffbh_i32": row("i32 = i32", integers.redundant_signs),
    "v_bcnt_u32_b32": row("u32 = u32 u32", lambda a, b: np.bitwise_count(a) + b),
    "v_mbcnt_lo_u32_b32": row("u32 = u32 u32", lambda a, b: _mbcnt_bits(a, b, high=False)),
    "v_mbcnt_hi_u32_b32": row("u32 = u32 u32", lambda a, b: _mbcnt_bits(a, b, high=True)),
    "v_and_b32": row("u32 = u32 u32", lambda a, b: a & b),
    "v_or_b32": row("u32 = u32 u32", lambda a, b: a | b),
    "v_xor_b32": row("u32 = u32 u32", lambda a, b: a ^ b),
    "v_xnor_b32": row("u32 = u32 u32", lambda a, b: ~(a ^ b)),
    "v_cndmask_b32": row("u32 = b32 b32 mask", lambda a, b, lanes: np.where(lanes, b, a), poison="select"),
    "v_add_u32": row("u32 = u32 u32", lambda a, b: a + b),
    "v_sub_u32": row("u32 = u32 u32", lambda a, b: a - b),
    "v_subrev_u32": row("u32 = u32 u32", lambda a, b: b - a),
    "v_add_i32": row("i32 = i32 i32", lambda a, b: a + b),
    "v_sub_i32": row("i32 = i32 i32", lambda a, b: a - b),
    "v_add_co_u32": row("u32 mask = u32 u32", integers.add),
    "v_sub_co_u32": row("u32 mask = u32 u32", integers.subtract),
    "v_subrev_co_u32": row("u32 mask = u32 u32", _reversed(integers.subtract)),
    "v_addc_co_u32": row("u32 mask = u32 u32 mask", integers.add_carry),
    "v_subb_co_u32": row("u32 mask = u32 u32 mask", integers.subtract_borrow),
    "v_subbrev_co_u32": row("u32 mask = u32 u32 mask", lambda a, b, c: integers.subtract_borrow(b, a, c)),
    "v_mul_lo_u32": row("u32 = u32 u32", lambda a, b: a * b),
    "v_mul_hi_u32": row("u32 = u32 u32", integers.high_product),
    "v_mul_hi_i32": row("i32 = i32 i32", integers.high_product),
    "v_mul_u32_u24": row("u32 = u24 u24", lambda a, b: a * b),
    "v_mul_i32_i24": row("i32 = i24 i24", lambda a, b: a * b),
    "v_mul_hi_u32_u24": row("u32 = u24 u24", integers.high_product),
    "v_mul_hi_i32_i24": row("i32 = i24 i24", integers.high_product),
    "v_mad_u32_u24": row("u32 = u24 u24 u32", lambda a, b, c: a * b + c),
    "v_mad_i32_i24": row("i32 = i24 i24 i32", lambda a, b, c: a * b + c),
    "v_mad_u64_u32": row("u64 mask = u32 u32 u64", _mad_u64, poison="low"),
    "v_mad_i64_i32": row("i64 mask = i32 i32 i64", _mad_i64, poison="low"),
    "v_lshlrev_b32": row("u32 = u32 u32", _reversed(integers.left(32))),
    "v_lshrrev_b32": row("u32 = u32 u32", _reversed(integers.right(32))),
    "v_ashrrev_i32": row("i32 = u32 i32", _reversed(integers.right(32))),
    "v_lshlrev_b64": row("u64 = u32 u64", _reversed(integers.left(64))),
    "v_lshrrev_b64": row("u64 = u32 u64", _reversed(integers.right(64))),
    "v_ashrrev_i64": row("i64 = u32 i64", _reversed(integers.right(64))),
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
    "v_bfi_b32": row("u32 = u32 u32 u32", lambda a, b, c: (a & b) | (~a & c)),
    "v_bfm_b32": row("u32 = u32 u32", integers.ones),
    "v_perm_b32": row("u32 = u32 u32 u32", _perm),
    "v_alignbit_b32": row("u32 = u32 u32 u32", _align(1)),
    "v_alignbyte_b32": row("u32 = u32 u32 u32", _align(8)),
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
    "v_mad_legacy_i16": row("i16 = i16 i16 i16", lambda a, b, c: a * b + c),
    "v_mad_u32_u16": row("u32 = u16 u16 u32", lambda a, b, c: a * b + c),
    "v_mad_i32_i16": row("i32 = i16 i16 i32", lambda a, b, c: a * b + c),
    "v_lshlrev_b16": row("u16 = u16 u16", _reversed(integers.left(16))),
    "v_lshrrev_b16": row("u16 = u16 u16", _reversed(integers.right(16))),
    "v_ashrrev_i16": row("i16 = u16 i16", _reversed(integers.right(16))),
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
    "v_dot2c_i32_i16": row("i32 = u32 u32 acc", _dot(16, signed=True), dot=True),
    "v_dot2_u32_u16": row("u32 = u32 u32 u32", _dot(16, signed=False), dot=True),
    "v_dot4_i32_i8": row("i32 = u32 u32 i32", _dot(8, signed=True), dot=True),
    "v_dot4c_i32_i8": row("i32 = u32 u32 acc", _dot(8, signed=True), dot=True),
    "v_dot4_u32_u8": row("u32 = u32 u32 u32", _dot(8, signed=False), dot=True),
    "v_dot8_i32_i4": row("i32 = u32 u32 i32", _dot(4, signed=True), dot=True),
    "v_dot8c_i32_i4": row("i32 = u32 u32 acc", _dot(4, signed=True), dot=True),
    "v_dot8_u32_u4": row("u32 = u32 u32 u32", _dot(4, signed=False), dot=True),
}

#: VOP3-only 16-bit instructions, which leave the high half of their destination alone; the others clear it.
KEEPS_HIGH = frozenset(
    "v_fma_f16 v_mad_f16 v_mad_u16 v_mad_i16 v_div_fixup_f16 v_add_i16 v_sub_i16 v_med3_f16 v_med3_u16 v_med3_i16 "
    "v_min3_f16 v_min3_u16 v_min3_i16 v_max3_f16 v_max3_u16 v_max3_i16 v_ashr_pk_i8_i32 v_ashr_pk_u8_i32".split()
)
VECTOR_ROWS: Mapping[str, VectorRow] = {**_PLAIN, **FLOAT_ROWS, **RARE_ROWS}
