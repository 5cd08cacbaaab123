"""Vector and scalar arithmetic against numpy and Python integers, on random and awkward values."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.amdgpu.sim import Unsupported

Array = npt.NDArray[Any]
MASK, WORD64 = 0xFFFFFFFF, (1 << 64) - 1
RNG = np.random.default_rng(1)
AWKWARD = [0, 1, 2, 3, 31, 32, 63, 64, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFF8000]
WORDS = np.concatenate([np.array(AWKWARD, np.uint32), RNG.integers(0, 1 << 32, 48, np.uint32)])
A, B, C = WORDS, RNG.permutation(WORDS), RNG.permutation(WORDS)


def signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def clz(x: int) -> int:
    return 32 - x.bit_length() if x else -1


def perm(a: int, b: int, s: int) -> int:
    both, result = a << 32 | b, 0
    for i in range(4):
        k = s >> (8 * i) & 0xFF
        byte = (
            both >> (8 * k) & 0xFF
            if k < 8
            else 0xFF * (both >> (16 * (k - 8) + 15) & 1)
            if k < 12
            else 0
            if k == 12
            else 0xFF
        )
        result |= byte << (8 * i)
    return result


def bfe_i(a: int, b: int, c: int) -> int:
    width = c & 31
    return signed(signed(a) >> (b & 31), width) if width else 0


def clamped(x: int, bits: int = 32, *, sign: bool) -> int:
    low = -(1 << (bits - 1)) if sign else 0
    return min(max(x, low), low + (1 << bits) - 1) & ((1 << bits) - 1)


def normed(a: int, low: int, scale: int) -> int:
    """The low half, an f16 in -1 or 0 to 1, as a part of `scale`; halves to even, NaN as 0."""
    number = float(np.uint16(a & 0xFFFF).view(np.float16))
    return 0 if math.isnan(number) else round(Fraction(min(max(number, low), 1)) * scale) & 0xFFFF


def halves(function: Callable[[int, int, int], int], *, sign: bool) -> Callable[[int, int, int], int]:
    """A packed function of 16 bits, saturated, from that of one half."""

    def both(*words: int) -> int:
        result = 0
        for shift in (0, 16):
            parts = [w >> shift & 0xFFFF for w in words]
            x, y, z = (signed(p, 16) if sign else p for p in parts)
            result |= clamped(function(x, y, z), 16, sign=sign) << shift
        return result

    return both


def bytes_dot(a: int, b: int, c: int) -> int:
    return sum(signed(a >> s, 8) * signed(b >> s, 8) for s in range(0, 32, 8)) + signed(c)


#: Integer instructions with `clamp`: the meaning on Python integers.
SATURATING: dict[str, Callable[[int, int, int], int]] = {
    "v_add_u32_e64 {d}, {a}, {b} clamp": lambda a, b, c: clamped(a + b, sign=False),
    "v_sub_u32_e64 {d}, {a}, {b} clamp": lambda a, b, c: clamped(a - b, sign=False),
    "v_subrev_u32_e64 {d}, {a}, {b} clamp": lambda a, b, c: clamped(b - a, sign=False),
    "v_add_i32 {d}, {a}, {b} clamp": lambda a, b, c: clamped(signed(a) + signed(b), sign=True),
    "v_sub_i32 {d}, {a}, {b} clamp": lambda a, b, c: clamped(signed(a) - signed(b), sign=True),
    "v_add_u16_e64 {d}, {a}, {b} clamp": lambda a, b, c: clamped((a & 0xFFFF) + (b & 0xFFFF), 16, sign=False),
    "v_sub_u16_e64 {d}, {a}, {b} clamp": lambda a, b, c: clamped((a & 0xFFFF) - (b & 0xFFFF), 16, sign=False),
    "v_subrev_u16_e64 {d}, {a}, {b} clamp": lambda a, b, c: clamped((b & 0xFFFF) - (a & 0xFFFF), 16, sign=False),
    "v_mad_u32_u24 {d}, {a}, {b}, {c} clamp": lambda a, b, c: clamped((a & 0xFFFFFF) * (b & 0xFFFFFF) + c, sign=False),
    "v_mad_i32_i24 {d}, {a}, {b}, {c} clamp": lambda a, b, c: clamped(
        signed(a, 24) * signed(b, 24) + signed(c), sign=True
    ),
    "v_mad_u32_u16 {d}, {a}, {b}, {c} clamp": lambda a, b, c: clamped((a & 0xFFFF) * (b & 0xFFFF) + c, sign=False),
    "v_mad_i32_i16 {d}, {a}, {b}, {c} clamp": lambda a, b, c: clamped(
        signed(a, 16) * signed(b, 16) + signed(c), sign=True
    ),
    "v_sad_u32 {d}, {a}, {b}, {c} clamp": lambda a, b, c: clamped(abs(a - b) + c, sign=False),
    "v_sad_u8 {d}, {a}, {b}, {c} clamp": lambda a, b, c: clamped(
        sum(abs((a >> s & 0xFF) - (b >> s & 0xFF)) for s in range(0, 32, 8)) + c, sign=False
    ),
    "v_add_co_u32_e64 {d}, vcc, {a}, {b} clamp": lambda a, b, c: clamped(a + b, sign=False),
    "v_sub_co_u32_e64 {d}, vcc, {a}, {b} clamp": lambda a, b, c: clamped(a - b, sign=False),
    "v_pk_add_u16 {d}, {a}, {b} clamp": halves(lambda x, y, z: x + y, sign=False),
    "v_pk_add_i16 {d}, {a}, {b} clamp": halves(lambda x, y, z: x + y, sign=True),
    "v_pk_sub_u16 {d}, {a}, {b} clamp": halves(lambda x, y, z: x - y, sign=False),
    "v_pk_sub_i16 {d}, {a}, {b} clamp": halves(lambda x, y, z: x - y, sign=True),
    "v_pk_mad_u16 {d}, {a}, {b}, {c} clamp": halves(lambda x, y, z: x * y + z, sign=False),
    "v_pk_mad_i16 {d}, {a}, {b}, {c} clamp": halves(lambda x, y, z: x * y + z, sign=True),
    "v_dot4_i32_i8 {d}, {a}, {b}, {c} clamp": lambda a, b, c: clamped(bytes_dot(a, b, c), sign=True),
    "v_dot4_u32_u8 {d}, {a}, {b}, {c} clamp": lambda a, b, c: clamped(
        sum((a >> s & 0xFF) * (b >> s & 0xFF) for s in range(0, 32, 8)) + c, sign=False
    ),
    "v_dot2_i32_i16 {d}, {a}, {b}, {c} clamp": lambda a, b, c: clamped(
        sum(signed(a >> s, 16) * signed(b >> s, 16) for s in (0, 16)) + signed(c), sign=True
    ),
    "v_dot8_i32_i4 {d}, {a}, {b}, {c} clamp": lambda a, b, c: clamped(
        sum(signed(a >> s, 4) * signed(b >> s, 4) for s in range(0, 32, 4)) + signed(c), sign=True
    ),
    "v_med3_u16 {d}, 7, 5, 6 clamp": lambda a, b, c: 6,
}


#: One-word integer instructions: text with {d}, {a}, {b}, {c} and the meaning on Python integers.
INTEGER: dict[str, Callable[[int, int, int], int]] = {
    "v_add_u32_e32 {d}, {a}, {b}": lambda a, b, c: a + b,
    "v_sub_u32_e32 {d}, {a}, {b}": lambda a, b, c: a - b,
    "v_subrev_u32_e32 {d}, {a}, {b}": lambda a, b, c: b - a,
    "v_mul_lo_u32 {d}, {a}, {b}": lambda a, b, c: a * b,
    "v_mul_hi_u32 {d}, {a}, {b}": lambda a, b, c: a * b >> 32,
    "v_mul_hi_i32 {d}, {a}, {b}": lambda a, b, c: signed(a) * signed(b) >> 32,
    "v_mul_u32_u24_e32 {d}, {a}, {b}": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mul_i32_i24_e32 {d}, {a}, {b}": lambda a, b, c: signed(a, 24) * signed(b, 24),
    "v_mad_u32_u24 {d}, {a}, {b}, {c}": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_mad_i32_i24 {d}, {a}, {b}, {c}": lambda a, b, c: signed(a, 24) * signed(b, 24) + c,
    "v_lshlrev_b32_e32 {d}, {a}, {b}": lambda a, b, c: b << (a & 31),
    "v_lshrrev_b32_e32 {d}, {a}, {b}": lambda a, b, c: b >> (a & 31),
    "v_ashrrev_i32_e32 {d}, {a}, {b}": lambda a, b, c: signed(b) >> (a & 31),
    "v_lshl_add_u32 {d}, {a}, {b}, {c}": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32 {d}, {a}, {b}, {c}": lambda a, b, c: (a + b) << (c & 31),
    "v_lshl_or_b32 {d}, {a}, {b}, {c}": lambda a, b, c: (a << (b & 31)) | c,
    "v_and_or_b32 {d}, {a}, {b}, {c}": lambda a, b, c: (a & b) | c,
    "v_or3_b32 {d}, {a}, {b}, {c}": lambda a, b, c: a | b | c,
    "v_add3_u32 {d}, {a}, {b}, {c}": lambda a, b, c: a + b + c,
    "v_xad_u32 {d}, {a}, {b}, {c}": lambda a, b, c: (a ^ b) + c,
    "v_bfe_u32 {d}, {a}, {b}, {c}": lambda a, b, c: a >> (b & 31) & ((1 << (c & 31)) - 1),
    "v_bfe_i32 {d}, {a}, {b}, {c}": bfe_i,
    "v_bfi_b32 {d}, {a}, {b}, {c}": lambda a, b, c: (a & b) | (~a & c),
    "v_bfm_b32 {d}, {a}, {b}": lambda a, b, c: ((1 << (a & 31)) - 1) << (b & 31),
    "v_perm_b32 {d}, {a}, {b}, {c}": perm,
    "v_alignbit_b32 {d}, {a}, {b}, {c}": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32 {d}, {a}, {b}, {c}": lambda a, b, c: (a << 32 | b) >> (8 * (c & 3)),
    "v_xnor_b32_e32 {d}, {a}, {b}": lambda a, b, c: ~(a ^ b),
    "v_not_b32_e32 {d}, {a}": lambda a, b, c: ~a,
    "v_bfrev_b32_e32 {d}, {a}": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "v_ffbh_u32_e32 {d}, {a}": lambda a, b, c: clz(a),
    "v_ffbl_b32_e32 {d}, {a}": lambda a, b, c: (a & -a).bit_length() - 1,
    "v_bcnt_u32_b32 {d}, {a}, {b}": lambda a, b, c: a.bit_count() + b,
    "v_min_i32_e32 {d}, {a}, {b}": lambda a, b, c: min(signed(a), signed(b)),
    "v_max_u32_e32 {d}, {a}, {b}": lambda a, b, c: max(a, b),
    "v_min3_u32 {d}, {a}, {b}, {c}": lambda a, b, c: min(a, b, c),
    "v_med3_i32 {d}, {a}, {b}, {c}": lambda a, b, c: sorted(map(signed, (a, b, c)))[1],
    "v_sad_u8 {d}, {a}, {b}, {c}": lambda a, b, c: (
        c + sum(abs((a >> s & 255) - (b >> s & 255)) for s in (0, 8, 16, 24))
    ),
    "v_sad_hi_u8 {d}, {a}, {b}, {c}": lambda a, b, c: (
        c + (sum(abs((a >> s & 255) - (b >> s & 255)) for s in (0, 8, 16, 24)) << 16)
    ),
    "v_mad_legacy_i16 {d}, {a}, {b}, {c}": lambda a, b, c: a * b + c & 0xFFFF,
    "v_mov_b32_e32 {d}, {c}\n v_dot2c_i32_i16_e32 {d}, {a}, {b}": lambda a, b, c: (
        c + sum(signed(a >> s, 16) * signed(b >> s, 16) for s in (0, 16))
    ),
    "v_mov_b32_e32 {d}, {c}\n v_dot8c_i32_i4_e32 {d}, {a}, {b}": lambda a, b, c: (
        c + sum(signed(a >> s, 4) * signed(b >> s, 4) for s in range(0, 32, 4))
    ),
    "v_add_u16_e32 {d}, {a}, {b}": lambda a, b, c: (a + b) & 0xFFFF,
    "v_mul_lo_u16_e32 {d}, {a}, {b}": lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF) & 0xFFFF,
    "v_lshrrev_b16_e32 {d}, {a}, {b}": lambda a, b, c: (b & 0xFFFF) >> (a & 15),
    "v_ashrrev_i16_e32 {d}, {a}, {b}": lambda a, b, c: signed(b, 16) >> (a & 15) & 0xFFFF,
    "v_max_i16_e32 {d}, {a}, {b}": lambda a, b, c: max(signed(a, 16), signed(b, 16)) & 0xFFFF,
    "v_mad_u32_u16 {d}, {a}, {b}, {c} op_sel:[1,0,0,0]": lambda a, b, c: (a >> 16) * (b & 0xFFFF) + c,
    "v_add_u16_sdwa {d}, {a}, {b} dst_sel:WORD_1 src0_sel:WORD_1 src1_sel:BYTE_2": lambda a, b, c: (
        ((a >> 16) + (b >> 16 & 0xFF) & 0xFFFF) << 16
    ),
    "v_and_b32_sdwa {d}, {a}, sext({b}) dst_sel:DWORD src0_sel:DWORD src1_sel:BYTE_1": lambda a, b, c: (
        a & signed(b >> 8, 8)
    ),
    "v_pk_add_u16 {d}, {a}, {b}": lambda a, b, c: (a + b & 0xFFFF) | ((a >> 16) + (b >> 16) & 0xFFFF) << 16,
    "v_pk_mul_lo_u16 {d}, {a}, {b} op_sel:[1,0] op_sel_hi:[0,1]": lambda a, b, c: (
        ((a >> 16) * (b & 0xFFFF) & 0xFFFF) | ((a & 0xFFFF) * (b >> 16) & 0xFFFF) << 16
    ),
    "v_pk_lshlrev_b16 {d}, {a}, {b}": lambda a, b, c: (
        (b << (a & 15) & 0xFFFF) | ((b >> 16) << (a >> 16 & 15) & 0xFFFF) << 16
    ),
    "v_dot4_i32_i8 {d}, {a}, {b}, {c}": lambda a, b, c: (
        c + sum(signed(a >> s, 8) * signed(b >> s, 8) for s in (0, 8, 16, 24))
    ),
    "v_dot2_i32_i16 {d}, {a}, {b}, {c}": lambda a, b, c: (
        c + sum(signed(a >> s, 16) * signed(b >> s, 16) for s in (0, 16))
    ),
    "v_cndmask_b32_e64 {d}, {a}, {b}, s[20:21]": lambda a, b, c: b,
    "v_mov_b32_e32 {d}, 0x12345678": lambda a, b, c: 0x12345678,
    "v_add_u32_e32 {d}, -16, {a}": lambda a, b, c: a - 16,
    "v_xor_b32_e32 {d}, 1.0, {a}": lambda a, b, c: a ^ 0x3F800000,
    "v_sub_u32_e32 {d}, s22, {a}": lambda a, b, c: 1000 - a,
    "v_mbcnt_lo_u32_b32 {d}, -1, {a}": lambda a, b, c: -1,
    "v_lerp_u8 {d}, {a}, {b}, {c}": lambda a, b, c: sum(
        ((a >> s & 255) + (b >> s & 255) + (c >> s & 1)) // 2 << s for s in (0, 8, 16, 24)
    ),
    "v_sad_u16 {d}, {a}, {b}, {c}": lambda a, b, c: (
        c + sum(abs((a >> s & 0xFFFF) - (b >> s & 0xFFFF)) for s in (0, 16))
    ),
    "v_msad_u8 {d}, {a}, {b}, {c}": lambda a, b, c: (
        c + sum(abs((a >> s & 255) - (b >> s & 255)) for s in (0, 8, 16, 24) if b >> s & 255)
    ),
    "v_cvt_off_f32_i4_e32 {d}, {a}": lambda a, b, c: int(np.float32(signed(a, 4) / 16).view(np.uint32)),
    "v_cvt_norm_i16_f16_e32 {d}, {a}": lambda a, b, c: normed(a, -1, 32767),
    "v_cvt_pknorm_u16_f16 {d}, {a}, {b}": lambda a, b, c: normed(a, 0, 65535) | normed(b, 0, 65535) << 16,
}


def kernel(lines: list[str], *, wide: bool = False) -> str:
    """v4 = A, v6 = B, v8 = C (with v5, v7, v9 the rotated arrays where `wide`); each line's result goes to out[k]."""
    text = [
        "s_load_dwordx4 s[4:7], s[0:1], 0x0",
        "v_lshlrev_b32_e32 v1, 2, v0",
        "s_mov_b64 s[20:21], -1",
        "s_movk_i32 s22, 1000",
    ]
    text.append("s_waitcnt lgkmcnt(0)")
    for number in range(6):
        text.append(f"global_load_dword v{4 + number}, v1, s[4:5] offset:{256 * number}")
    text += ["s_waitcnt vmcnt(0)"]
    registers = {"d": "v[10:11]" if wide else "v10", "a": "v[4:5]", "b": "v[6:7]", "c": "v[8:9]"}
    if not wide:
        registers |= {"a": "v4", "b": "v6", "c": "v8"}
    for line in lines:
        text += ["v_mov_b32_e32 v10, 0", "v_mov_b32_e32 v11, 0", "s_nop 3", line.format(**registers), "s_nop 4"]
        text += [f"global_store_dword v1, v{10 + word}, s[6:7] offset:{256 * word}" for word in (0, 1)]
        text += ["s_add_u32 s6, s6, 0x200", "s_addc_u32 s7, s7, 0"]
    return "\n".join(text)


def results(sim: Any, arch: str, lines: list[str], inputs: Array, *, wide: bool = False) -> Array:
    """[lines, 2, 64] result words; `inputs` is [6, 64] words."""
    out = np.zeros((len(lines), 2, 64), np.uint32)
    report = sim.run(arch, kernel(lines, wide=wide), {"in": np.ascontiguousarray(inputs), "out": out})
    assert not report.findings, str(report.findings[0])
    return out


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_integers(sim: Any, arch: str) -> None:
    meanings = INTEGER | SATURATING
    lines = list(meanings)
    got = results(sim, arch, lines, np.stack([A, A, B, B, C, C]))
    for number, line in enumerate(lines):
        for lane in range(64):
            a, b, c = int(A[lane]), int(B[lane]), int(C[lane])
            want = meanings[line](a, b, c)
            if "mbcnt" in line:
                want = min(lane, 32) + a
            assert got[number, 0, lane] == want & MASK, (line, hex(a), hex(b), hex(c))


@pytest.mark.parametrize("line", ["v_mul_u32_u24_e64 v2, v0, v0 clamp", "v_pk_lshlrev_b16 v2, v0, v0 clamp"])
def test_clamp_that_no_manual_explains_is_refused(sim: Any, line: str) -> None:
    with pytest.raises(Unsupported, match="clamp"):
        sim.run("gfx942", line, {})


def windows(a: int, b: int, c: int, *, masked: bool) -> int:
    """Distances of b's four bytes from four of a's, from byte 0, 1, 2 and 3 on, each added to a half of c."""
    result = 0
    for n in range(4):
        pairs = [(a >> 8 * (n + k) & 255, b >> 8 * k & 255) for k in range(4)]
        distance = sum(abs(x - y) for x, y in pairs if y or not masked)
        result |= ((c >> 16 * n) + distance & 0xFFFF) << 16 * n
    return result


#: Two-word results on 64-bit operands a, b, c.
WIDE: dict[str, Callable[[int, int, int], int]] = {
    "v_lshlrev_b64 {d}, 5, {b}": lambda a, b, c: b << 5,
    "v_lshrrev_b64 {d}, v4, {b}": lambda a, b, c: b >> (a & 63),
    "v_ashrrev_i64 {d}, v4, {b}": lambda a, b, c: signed(b, 64) >> (a & 63),
    "v_mad_u64_u32 {d}, vcc, v4, v6, {c}": lambda a, b, c: (a & MASK) * (b & MASK) + c,
    "v_mad_i64_i32 {d}, vcc, v4, v6, {c}": lambda a, b, c: signed(a) * signed(b) + c,
    "v_mad_u64_u32 {d}, vcc, v4, v6, {c} clamp": lambda a, b, c: clamped((a & MASK) * (b & MASK) + c, 64, sign=False),
    "v_mad_i64_i32 {d}, vcc, v4, v6, {c} clamp": lambda a, b, c: clamped(
        signed(a) * signed(b) + signed(c, 64), 64, sign=True
    ),
    "v_lshl_add_u64 {d}, {a}, 2, {b}": lambda a, b, c: (a << 2) + b,
    "v_mov_b64_e32 {d}, {b}": lambda a, b, c: b,
    "v_qsad_pk_u16_u8 {d}, {a}, v6, {c}": lambda a, b, c: windows(a, b, c, masked=False),
    "v_mqsad_pk_u16_u8 {d}, {a}, v6, {c}": lambda a, b, c: windows(a, b, c, masked=True),
    "v_pk_mov_b32 {d}, {a}, {b} op_sel:[1,0]": lambda a, b, c: a >> 32 | (b & MASK) << 32,
    "v_add_co_u32_e32 v10, vcc, v4, v6\n s_nop 1\n v_addc_co_u32_e32 v11, vcc, v5, v7, vcc": lambda a, b, c: a + b,
    "v_sub_co_u32_e32 v10, vcc, v4, v6\n s_nop 1\n v_subb_co_u32_e32 v11, vcc, v5, v7, vcc": lambda a, b, c: a - b,
    "v_cmp_gt_i64_e32 vcc, {a}, {b}\n s_nop 1\n v_cndmask_b32_e64 v10, 0, 1, vcc": lambda a, b, c: (
        signed(a, 64) > signed(b, 64)
    ),
}


def test_wide_integers(sim: Any) -> None:
    inputs = np.stack([A, B, C, A[::-1], B[::-1], C[::-1]])
    lines = list(WIDE)
    got = results(sim, "gfx942", lines, inputs, wide=True)
    for number, line in enumerate(lines):
        for lane in range(64):
            a, b, c = (int(inputs[2 * i, lane]) | int(inputs[2 * i + 1, lane]) << 32 for i in range(3))
            have = int(got[number, 0, lane]) | int(got[number, 1, lane]) << 32
            assert have == int(WIDE[line](a, b, c)) & 0xFFFFFFFFFFFFFFFF, (line, hex(a), hex(b), hex(c))


#: 2/pi behind the point (LLVM's `instCombineIntrinsic` for amdgcn_trig_preop has the same words).
TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424DD2E0
TWO_OVER_PI_BITS = 320


def test_parts_of_two_over_pi(sim: Any) -> None:
    """A segment is 53 bits of 2/pi: segment 0 the first ones, of large angles later ones."""
    angles = np.array([1.0, -3.0, 2.0**55, 2.0**100, 2.0**130, *[2.0**54] * 59], np.float64)
    words = angles.view(np.uint32).reshape(64, 2).T
    inputs = np.stack([words[0], words[1], *[B] * 4])
    got = results(sim, "gfx942", [f"v_trig_preop_f64 {{d}}, {{a}}, {n}" for n in (0, 1, 2)], inputs, wide=True)
    for segment in range(3):
        for lane in range(64):
            shift = 53 * segment + max(math.frexp(angles[lane])[1] - 55, 0)
            part = TWO_OVER_PI >> (TWO_OVER_PI_BITS - 53 - shift) & (1 << 53) - 1
            have = np.ascontiguousarray(got[segment, :, lane]).view(np.float64)[0]
            assert have == math.ldexp(part, -53 - shift), (segment, angles[lane])
    assert abs(np.ascontiguousarray(got[0, :, 0]).view(np.float64)[0] - 2 / math.pi) <= 2.0**-53


FLOATS = np.concatenate(
    [
        np.array(
            [0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, 65504, 65536, 1e-5, -3e-8, np.inf, -np.inf, 255.5, 3e9], np.float32
        ),
        np.array([0x3F800001, 0xBF8083FF, 0x400003FF], np.uint32).view(np.float32),  # their low halves are denormal
        RNG.normal(0, 100, 45).astype(np.float32),
    ]
)
F, G, H = FLOATS, RNG.permutation(FLOATS), RNG.permutation(FLOATS)


def half(x: Array) -> Array:
    return x.astype(np.float16)


def half_bits(x: Array) -> Array:
    return half(x).view(np.uint16).astype(np.uint32)


def low_half(x: Array) -> Array:
    return (x.view(np.uint32) & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float32)


def tiny_halves(x: Array) -> Array:
    """1 for negative and positive denormals of f16."""
    tiny: Array = (x != 0) & (np.abs(x) < 2.0**-14)
    return tiny.astype(np.float32)


def saturating(low: int, high: int) -> Callable[[Array], Array]:
    return lambda x: np.array(
        [0 if math.isnan(v) else int(min(max(v, low), high)) & MASK for v in x.tolist()], np.uint32
    )


#: f32 instructions: numpy meaning on a, b, c giving f32 or words.
FLOATING: dict[str, Callable[[Array, Array, Array], Array]] = {
    "v_add_f32_e32 {d}, {a}, {b}": lambda a, b, c: a + b,
    "v_sub_f32_e64 {d}, -{a}, |{b}|": lambda a, b, c: -a - np.abs(b),
    "v_subrev_f32_e32 {d}, {a}, {b}": lambda a, b, c: b - a,
    "v_mul_f32_e64 {d}, {a}, {b} mul:2": lambda a, b, c: a * b * np.float32(2),
    "v_max_f32_e64 {d}, {a}, {a} clamp": lambda a, b, c: np.clip(a, 0, 1),
    "v_min_f32_e32 {d}, 0.5, {a}": lambda a, b, c: np.fmin(a, np.float32(0.5)),
    "v_med3_f32 {d}, {a}, {b}, 1.0": lambda a, b, c: np.sort([a, b, np.ones_like(a)], axis=0)[1],
    "v_rndne_f32_e32 {d}, {a}": lambda a, b, c: np.rint(a),
    "v_floor_f32_e32 {d}, {a}": lambda a, b, c: np.floor(a),
    "v_cvt_u32_f32_e32 {d}, {a}": lambda a, b, c: saturating(0, MASK)(a),
    "v_cvt_i32_f32_e32 {d}, {a}": lambda a, b, c: saturating(-(1 << 31), (1 << 31) - 1)(a),
    "v_cvt_f32_i32_e32 {d}, {a}": lambda a, b, c: a.view(np.int32).astype(np.float32),
    "v_cvt_f32_ubyte2_e32 {d}, {a}": lambda a, b, c: (a.view(np.uint32) >> 16 & 0xFF).astype(np.float32),
    "v_cvt_f16_f32_e32 {d}, {a}": lambda a, b, c: half_bits(a),
    "v_cvt_f32_f16_e32 {d}, {a}": lambda a, b, c: low_half(a),
    "v_cvt_pk_bf16_f32 {d}, {a}, {b}": lambda a, b, c: (
        a.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32)
        | b.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32) << 16
    ),
    "v_add_f16_e32 {d}, 1.0, {a}": lambda a, b, c: half_bits(low_half(a) + 1),
    "v_pk_mul_f16 {d}, {a}, {b} op_sel_hi:[0,0]": lambda a, b, c: half_bits(low_half(a) * low_half(b)) * 0x10001,
    "v_pk_mul_f32 v[10:11], v[4:5], v[4:5] clamp\n v_mov_b32_e32 {d}, v10": lambda a, b, c: np.clip(
        np.nan_to_num(a * a, nan=0.0), 0, 1
    ),
    "v_pk_add_f16 {d}, {a}, {a} op_sel_hi:[0,0] clamp": lambda a, b, c: (
        half_bits(np.clip(np.nan_to_num(low_half(a) + low_half(a), nan=0.0), 0, 1)) * np.uint32(0x10001)
    ),
    "v_pk_add_f16 {d}, {a}, 2.0 op_sel_hi:[0,0] neg_lo:[1,0]": lambda a, b, c: (
        half_bits(2 - low_half(a)) | half_bits(low_half(a) + 2) << 16
    ),
    "v_fma_mix_f32 {d}, {a}, {b}, {c} op_sel_hi:[1,0,0]": lambda a, b, c: exact_fma(low_half(a), b, c),
    "v_fma_f32 {d}, {a}, {b}, {c}": lambda a, b, c: exact_fma(a, b, c),
    "v_pk_fma_f32 v[10:11], v[4:5], v[6:7], v[8:9] op_sel_hi:[0,0,0]": lambda a, b, c: exact_fma(a, b, c),
    "v_mov_b32_e32 {d}, {c}\n v_mac_f16_e32 {d}, 2.0, {a}": lambda a, b, c: half_bits(
        low_half(half_bits(low_half(a) * 2)) + low_half(c)
    ),
    "v_fma_legacy_f16 {d}, {a}, 2.0, {c}": lambda a, b, c: half_bits(low_half(a) * 2 + low_half(c)),
    "v_madak_f32 {d}, {a}, {b}, 0x40400000": lambda a, b, c: a * b + np.float32(3),
    "v_madmk_f32 {d}, {a}, 0x40400000, {b}": lambda a, b, c: a * np.float32(3) + b,
    "v_mov_b32_e32 v10, 0x90\n v_cmp_class_f16_e32 vcc, {a}, v10\n s_nop 1\n"
    " v_cndmask_b32_e64 v10, 0, 1.0, vcc": lambda a, b, c: tiny_halves(low_half(a)),
    "v_ldexp_f32 {d}, {a}, 3": lambda a, b, c: a * np.float32(8),
    "v_rcp_f32_e32 {d}, {a}": lambda a, b, c: np.float32(1) / a,
    "v_exp_f32_e32 {d}, {a}": lambda a, b, c: np.exp2(a),
    "v_cmp_class_f32_e64 vcc, {a}, 3\n s_nop 1\n v_cndmask_b32_e64 v10, 0, 1.0, vcc": lambda a, b, c: np.isnan(
        a
    ).astype(np.float32),
    "v_cmp_nlt_f32_e32 vcc, {a}, {b}\n s_nop 1\n v_cndmask_b32_e64 v10, 0, 1.0, vcc": lambda a, b, c: (~(a < b)).astype(
        np.float32
    ),
}
ONLY_GFX90A = {line for line in FLOATING if "v_mada" in line or "v_madm" in line}
ONLY_GFX950 = {line for line in FLOATING if "cvt_pk_bf16" in line}


def exact_fma(a: Array, b: Array, c: Array) -> Array:
    """One rounding, by rational arithmetic."""
    found = []
    for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        if not all(map(math.isfinite, (x, y, z))):
            found.append(np.float64(x) * y + z)
            continue
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        best = np.float32(float(exact))
        near = [best, np.nextafter(best, np.float32(-np.inf)), np.nextafter(best, np.float32(np.inf))]
        usable = [n for n in near if np.isfinite(n)]
        found.append(
            min(usable, key=lambda n: (abs(Fraction(float(n)) - exact), int(n.view(np.uint32)) & 1))
            if exact
            else x * y + z
        )
    return np.array(found).astype(np.float32)


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_floats(sim: Any, arch: str) -> None:
    left_out = {"gfx90a": ONLY_GFX950, "gfx942": ONLY_GFX950 | ONLY_GFX90A, "gfx950": ONLY_GFX90A}[arch]
    lines = [line for line in FLOATING if line not in left_out]
    got = results(sim, arch, lines, np.stack([F, F, G, G, H, H]).view(np.uint32))
    with np.errstate(all="ignore"):
        for number, line in enumerate(lines):
            want = FLOATING[line](F, G, H)
            have = got[number, 0].view(want.dtype)
            same = (have == want) | (np.isnan(have) & np.isnan(want)) if want.dtype.kind == "f" else have == want
            close = np.isclose(have, want, rtol=3e-7) if "exp" in line or "rcp" in line else same
            same |= np.isnan(low_half(F)) if "v_pk" in line else False  # packed NaNs: the sign is not defined
            assert (same | close).all(), (line, F[~same], G[~same], have[~same], want[~same])


@pytest.mark.parametrize(
    ("arch", "fp8", "bf8"),
    [
        ("gfx942", ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz),
        ("gfx950", ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    ],
)
def test_fp8(sim: Any, arch: str, fp8: Any, bf8: Any) -> None:
    values = RNG.normal(0, 20, (2, 64)).astype(np.float32)
    lines = ["v_cvt_pk_fp8_f32 {d}, {a}, {b}", "v_cvt_pk_bf8_f32 {d}, {a}, {b} op_sel:[0,0,1]"]
    got = results(sim, arch, lines, np.stack([values[0]] * 2 + [values[1]] * 4).view(np.uint32))
    for number, (dtype, shift) in enumerate(((fp8, 0), (bf8, 16))):
        low, high = (v.astype(dtype).view(np.uint8).astype(np.uint32) for v in values)
        np.testing.assert_array_equal(got[number, 0], (low | high << 8) << shift)
    codes = np.arange(64, dtype=np.uint32) * 0x01010101
    onto_itself = "v_mov_b32_e32 v10, {a}\n v_cvt_pk_f32_bf8_e32 v[10:11], v10"
    lines = ["v_cvt_f32_fp8_sdwa {d}, {a} src0_sel:BYTE_2", "v_cvt_pk_f32_bf8_e32 v[10:11], {a}", onto_itself]
    got = results(sim, arch, lines, np.stack([codes] * 6))
    narrow = np.arange(64, dtype=np.uint8)
    np.testing.assert_array_equal(got[0, 0].view(np.float32), narrow.view(fp8).astype(np.float32))
    for number, word in ((1, 1), (2, 0), (2, 1)):
        np.testing.assert_array_equal(got[number, word].view(np.float32), narrow.view(bf8).astype(np.float32))


def rows(x: Array) -> Array:
    return x.reshape(4, 16)


DPP: dict[str, Callable[[Array], Array]] = {
    "quad_perm:[1,0,3,2]": lambda x: x.reshape(-1, 4)[:, [1, 0, 3, 2]].ravel(),
    "row_shr:1": lambda x: np.hstack([np.zeros((4, 1), x.dtype), rows(x)[:, :-1]]).ravel(),
    "row_shl:3": lambda x: np.hstack([rows(x)[:, 3:], np.zeros((4, 3), x.dtype)]).ravel(),
    "row_ror:4": lambda x: np.roll(rows(x), 4, axis=1).ravel(),
    "row_mirror": lambda x: rows(x)[:, ::-1].ravel(),
    "row_half_mirror": lambda x: x.reshape(8, 8)[:, ::-1].ravel(),
    "row_newbcast:5": lambda x: np.repeat(rows(x)[:, 5], 16),
    "wave_shr:1": lambda x: np.append(np.zeros(1, x.dtype), x[:-1]),
    "row_bcast:15": lambda x: np.append(np.zeros(16, x.dtype), np.repeat(x[15:63:16], 16)),
    "row_bcast:31": lambda x: np.append(np.zeros(32, x.dtype), np.repeat(x[31:32], 32)),
}


def test_dpp(sim: Any) -> None:
    lines = [f"v_mov_b32_dpp {{d}}, {{a}} {control} row_mask:0xf bank_mask:0xf" for control in DPP]
    got = results(sim, "gfx90a", lines, np.stack([A] * 6))
    for number, control in enumerate(DPP):
        np.testing.assert_array_equal(got[number, 0], DPP[control](A), err_msg=control)


LANES: dict[str, Callable[[Array, Array], Array]] = {
    "ds_swizzle_b32 v10, v4 offset:swizzle(SWAP,16)\n s_waitcnt lgkmcnt(0)": lambda a, b: a[np.arange(64) ^ 16],
    "ds_swizzle_b32 v10, v4 offset:swizzle(QUAD_PERM,3,2,1,0)\n s_waitcnt lgkmcnt(0)": lambda a, b: a[
        np.arange(64) ^ 3
    ],
    "v_lshlrev_b32_e32 v6, 2, v6\n ds_bpermute_b32 v10, v6, v4\n s_waitcnt lgkmcnt(0)": lambda a, b: a[b & 63],
    "v_readlane_b32 s30, v4, 17\n v_mov_b32_e32 v10, 0\n s_nop 1\n v_mov_b32_e32 v10, s30": lambda a, b: np.full(
        64, a[17]
    ),
    "v_readfirstlane_b32 s30, v4\n s_nop 1\n v_writelane_b32 v10, s30, 9": lambda a, b: np.where(
        np.arange(64) == 9, a[0], 0
    ),
    "v_mov_b32_e32 v11, v4\n s_nop 1\n v_permlane32_swap_b32_e32 v11, v10": lambda a, b: np.append(
        a[32:], np.zeros(32, a.dtype)
    ),
    "v_mov_b32_e32 v11, v4\n s_nop 1\n v_permlane16_swap_b32_e32 v11, v10": lambda a, b: (
        np.stack([rows(a)[1], np.zeros(16), rows(a)[3], np.zeros(16)]).astype(a.dtype).ravel()
    ),
    "v_bitop3_b32 v10, v4, v8, v6 bitop3:0x96": lambda a, b: a ^ C ^ b,
}


def test_lane_movement(sim: Any) -> None:
    lines = list(LANES)
    got = results(sim, "gfx950", lines, np.stack([A, A, B, B, C, C]))
    b = B
    for number, line in enumerate(lines):
        np.testing.assert_array_equal(got[number, 0], LANES[line](A, b), err_msg=line)
        b = b << 2 if "v_lshlrev_b32_e32 v6" in line else b


SCALAR: dict[str, Callable[[int, int], tuple[int, int | None]]] = {
    "s_add_u32 s30, s20, s21": lambda a, b: (a + b, a + b > MASK),
    "s_sub_u32 s30, s20, s21": lambda a, b: (a - b, b > a),
    "s_add_i32 s30, s20, s21": lambda a, b: (a + b, signed(a) + signed(b) != signed(a + b)),
    "s_mul_i32 s30, s20, s21": lambda a, b: (a * b, None),
    "s_mul_hi_u32 s30, s20, s21": lambda a, b: (a * b >> 32, None),
    "s_mul_hi_i32 s30, s20, s21": lambda a, b: (signed(a) * signed(b) >> 32, None),
    "s_and_b32 s30, s20, s21": lambda a, b: (a & b, a & b != 0),
    "s_andn2_b32 s30, s20, s21": lambda a, b: (a & ~b, a & ~b != 0),
    "s_lshl_b32 s30, s20, s21": lambda a, b: (a << (b & 31), (a << (b & 31)) & MASK != 0),
    "s_ashr_i32 s30, s20, s21": lambda a, b: (signed(a) >> (b & 31), signed(a) >> (b & 31) != 0),
    "s_bfe_u32 s30, s20, 0x50003": lambda a, b: (a >> 3 & 31, a >> 3 & 31 != 0),
    "s_bfe_i32 s30, s20, 0x50003": lambda a, b: (signed(a >> 3, 5), signed(a >> 3, 5) != 0),
    "s_bfe_i32 s30, s20, 0x14000d": lambda a, b: (signed(signed(a) >> 13, 20), signed(a) >> 13 != 0),
    "s_bfe_i64 s[32:33], s[20:21], 0x1e0026\n s_mov_b32 s30, s33": lambda a, b: (signed(b) >> 31, signed(b) >> 6 != 0),
    "s_min_i32 s30, s20, s21": lambda a, b: (min(signed(a), signed(b)), signed(a) < signed(b)),
    "s_max_u32 s30, s20, s21": lambda a, b: (max(a, b), a > b),
    "s_max_i32 s30, s20, s20": lambda a, b: (signed(a), False),
    "s_lshl2_add_u32 s30, s20, s21": lambda a, b: ((a << 2) + b, (a << 2) + b > MASK),
    "s_absdiff_i32 s30, s20, s21": lambda a, b: (abs(signed(a - b)), a != b),
    "s_flbit_i32_b32 s30, s20": lambda a, b: (clz(a), None),
    "s_ff1_i32_b32 s30, s20": lambda a, b: ((a & -a).bit_length() - 1, None),
    "s_bcnt1_i32_b32 s30, s20": lambda a, b: (a.bit_count(), a != 0),
    "s_brev_b32 s30, s20": lambda a, b: (int(f"{a:032b}"[::-1], 2), None),
    "s_sext_i32_i16 s30, s20": lambda a, b: (signed(a, 16), None),
    "s_pack_ll_b32_b16 s30, s20, s21": lambda a, b: (a & 0xFFFF | b << 16, None),
    "s_cmp_lt_i32 s20, s21": lambda a, b: (0, signed(a) < signed(b)),
    "s_cmp_ge_u32 s20, s21": lambda a, b: (0, a >= b),
    "s_bitcmp1_b32 s20, s21": lambda a, b: (0, a >> (b & 31) & 1),
    "s_movk_i32 s30, 0x8001": lambda a, b: (-0x7FFF, None),
    "s_mov_b32 s30, s20\n s_addk_i32 s30, 0xff80": lambda a, b: (a - 128, signed(a) - 128 != signed(a - 128)),
    "s_cmpk_gt_u32 s20, 0xfff0": lambda a, b: (0, a > 0xFFF0),
    "s_ff0_i32_b32 s30, s20": lambda a, b: (((~a & MASK) & -(~a & MASK)).bit_length() - 1, None),
    "s_ff0_i32_b64 s30, s[20:21]": lambda a, b: ((~(a | b << 32) & WORD64 & (a | b << 32) + 1).bit_length() - 1, None),
    "s_flbit_i32_i64 s30, s[20:21]": lambda a, b: (
        next((n for n in range(1, 64) if b >> 31 != (a | b << 32) >> (63 - n) & 1), -1),
        None,
    ),
    "s_wqm_b32 s30, s20": lambda a, b: (sum(15 << n for n in range(0, 32, 4) if a >> n & 15), a != 0),
    "s_quadmask_b32 s30, s20": lambda a, b: (sum(1 << n // 4 for n in range(0, 32, 4) if a >> n & 15), a != 0),
    "s_quadmask_b64 s[32:33], s[20:21]\n s_mov_b32 s30, s32": lambda a, b: (
        sum(1 << n // 4 for n in range(0, 64, 4) if (a | b << 32) >> n & 15),
        a | b != 0,
    ),
    "s_bitreplicate_b64_b32 s[32:33], s20\n s_mov_b32 s30, s33": lambda a, b: (
        sum((a >> n & 1) * 3 << 2 * (n - 16) for n in range(16, 32)),
        None,
    ),
    "s_brev_b64 s[32:33], s[20:21]\n s_mov_b32 s30, s32": lambda a, b: (int(f"{b:032b}"[::-1], 2), None),
    "s_bfe_i64 s[32:33], s[20:21], 0x90010\n s_mov_b32 s30, s33": lambda a, b: (
        signed((a | b << 32) >> 16, 9) >> 32,
        (a | b << 32) >> 16 & 0x1FF != 0,
    ),
    "s_mov_b64 s[32:33], 0\n s_bitset1_b64 s[32:33], s21\n s_mov_b32 s30, s33": lambda a, b: (
        1 << (b & 63) >> 32,
        None,
    ),
    "s_mov_b32 m0, 1\n s_nop 0\n s_movrels_b32 s30, s20": lambda a, b: (b, None),
    "s_mov_b32 m0, 2\n s_nop 0\n s_movreld_b32 s28, s21": lambda a, b: (b, None),
    "s_cmp_eq_u32 s20, s20\n s_cmov_b64 s[30:31], s[20:21]": lambda a, b: (a, None),
    "s_mov_b64 s[34:35], 6\n s_andn1_wrexec_b64 s[32:33], s[34:35]\n s_mov_b32 s30, s32": lambda a, b: (-7, 1),
}


@pytest.mark.parametrize(
    ("a", "b"), [(5, 7), (0xFFFFFFFF, 1), (0x80000000, 0xFFFFFFFF), (0x7FFFFFFF, 0x7FFFFFF0), (0, 31)]
)
def test_scalars(sim: Any, a: int, b: int) -> None:
    text = ["s_load_dwordx4 s[4:7], s[0:1], 0x0", "v_lshlrev_b32_e32 v1, 2, v0", "s_waitcnt lgkmcnt(0)"]
    text += ["s_load_dwordx2 s[20:21], s[4:5], 0x0", "s_waitcnt lgkmcnt(0)"]
    for number, line in enumerate(SCALAR):
        text += [
            "s_mov_b32 s30, 0",
            line,
            "s_cselect_b32 s31, 1, 0" if SCALAR[line](a, b)[1] is not None else "s_mov_b32 s31, 0",
        ]
        text += ["v_mov_b32_e32 v2, s30", "v_mov_b32_e32 v3, s31", f"v_mov_b32_e32 v4, {8 * number}"]
        text += ["s_mov_b64 exec, 1", "global_store_dwordx2 v4, v[2:3], s[6:7]", "s_mov_b64 exec, -1"]
    out = np.zeros((len(SCALAR), 2), np.uint32)
    report = sim.run("gfx942", "\n".join(text), {"in": np.array([a, b], np.uint32), "out": out})
    assert not report.findings, str(report.findings[0])
    for number, line in enumerate(SCALAR):
        value, flag = SCALAR[line](a, b)
        assert (out[number, 0], out[number, 1]) == (value & MASK, int(flag or 0)), line
