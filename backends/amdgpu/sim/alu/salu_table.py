"""Scalar ALU instructions: SOP1, SOP2, SOPC and SOPK rows (CDNA3 ISA, "Scalar ALU Operations").

A row gives the result type, the source types and a function of the sources that returns the value, or (value, scc) for
`flag = "given"`. `flag = "nonzero"` sets SCC when the result is not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from convgen.backends.amdgpu.sim.alu import integers
from convgen.backends.sim.wave_arrays import Array
from convgen.ir.record import frozen


@frozen
class ScalarRow:
    """One scalar instruction: the types of its result and sources, its function, and its effect on SCC."""

    result: str  #: type of the destination, "" for none
    sources: tuple[str, ...]
    function: Callable[..., Any]
    flag: str = ""  #: "", "nonzero" or "given"
    bitwise: bool = False  #: each result bit depends on that bit of the sources only, and on SCC


def _row(signature: str, function: Callable[..., Any], flag: str = "", *, bitwise: bool = False) -> ScalarRow:
    result, _, sources = signature.partition("=")
    return ScalarRow(result.strip(), tuple(sources.split()), function, flag, bitwise)


def _add_i(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    return total, ((a ^ total) & (b ^ total)) < 0


def _sub_i(a: Array, b: Array) -> tuple[Array, Array]:
    total = a - b
    return total, ((a ^ b) & (a ^ total)) < 0


def _bfe_unsigned(a: Array, b: Array) -> Array:
    bits, kind = 8 * a.itemsize, a.dtype.type
    width = ((b >> np.uint32(16)) & np.uint32(0x7F)).astype(a.dtype)
    mask = np.where(width >= bits, ~kind(0), (kind(1) << (width & kind(bits - 1))) - kind(1))
    field: Array = (a >> (b & np.uint32(bits - 1)).astype(a.dtype)) & mask
    return field


def _bfe_signed(a: Array, b: Array) -> Array:
    """S_BFE_I32 and S_BFE_I64: the field of the arithmetically shifted number; the sign may fill its upper end."""
    bits, kind = 8 * a.itemsize, a.dtype.type
    width = ((b >> np.uint32(16)) & np.uint32(0x7F)).astype(a.dtype)
    spare = np.where((width == 0) | (width >= bits), kind(0), kind(bits) - width.astype(a.dtype))
    field: Array = a >> (b & np.uint32(bits - 1)).astype(a.dtype)
    result: Array = np.where(width == 0, kind(0), field << spare >> spare)
    return result


def _quads(a: Array) -> Array:
    """Return words whose bit k tells whether any of bits 4 k to 4 k + 3 is set."""
    word = a.dtype.type
    result = np.zeros_like(a)
    for number in range(a.itemsize * 2):
        result = result | ((a >> word(4 * number) & word(15)) != 0).astype(a.dtype) << word(number)
    return result


def _whole_quads(a: Array) -> Array:
    """Set all four bits of each quad that has a bit set."""
    word = a.dtype.type
    result = np.zeros_like(a)
    for number in range(a.itemsize * 2):
        quad = word(15) << word(4 * number)
        result = result | np.where(a & quad != 0, quad, word(0))
    return result


def _replicated(a: Array) -> Array:
    """Repeat each bit."""
    result = np.zeros(a.shape, np.uint64)
    for bit in range(32):
        result = result | (a >> np.uint32(bit) & np.uint32(1)).astype(np.uint64) * np.uint64(3) << np.uint64(2 * bit)
    return result


def _shift_add(shift: int) -> Callable[[Array, Array], tuple[Array, Array]]:
    def function(a: Array, b: Array) -> tuple[Array, Array]:
        total = (a.astype(np.uint64) << np.uint64(shift)) + b
        return total.astype(np.uint32), total > integers.U32_MAX

    return function


def _sext(bits: int) -> Callable[[Array], Array]:
    def function(a: Array) -> Array:
        return (a << (32 - bits)) >> (32 - bits)

    return function


def _pack(low: int, high: int) -> Callable[[Array, Array], Array]:
    def function(a: Array, b: Array) -> Array:
        return ((a >> np.uint32(low)) & np.uint32(0xFFFF)) | (
            ((b >> np.uint32(high)) & np.uint32(0xFFFF)) << np.uint32(16)
        )

    return function


_BITWISE: Mapping[str, Callable[[Array, Array], Array]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
COMPARE: Mapping[str, Callable[[Array, Array], Array]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}

SCALAR_ROWS_BY_NAME: Mapping[str, ScalarRow] = {
    **{f"s_{n}_b32": _row("u32 = u32 u32", f, "nonzero", bitwise=True) for n, f in _BITWISE.items()},
    **{f"s_{n}_b64": _row("u64 = u64 u64", f, "nonzero", bitwise=True) for n, f in _BITWISE.items()},
    **{f"s_cmp_{n}_{t}": _row(f"= {t} {t}", f, "given") for n, f in COMPARE.items() for t in ("i32", "u32")},
    "s_cmp_eq_u64": _row("= u64 u64", lambda a, b: a == b, "given"),
    "s_cmp_lg_u64": _row("= u64 u64", lambda a, b: a != b, "given"),
    **{f"s_cmpk_{n}_i32": _row("= i32 k", f, "given") for n, f in COMPARE.items()},
    **{f"s_cmpk_{n}_u32": _row("= u32 ku", f, "given") for n, f in COMPARE.items()},
    "s_bitcmp0_b32": _row("= u32 u32", lambda a, b: (a >> (b & np.uint32(31))) & 1 == 0, "given"),
    "s_bitcmp1_b32": _row("= u32 u32", lambda a, b: (a >> (b & np.uint32(31))) & 1 == 1, "given"),
    "s_bitcmp0_b64": _row("= u64 u32", lambda a, b: integers.right(64)(a, b) & 1 == 0, "given"),
    "s_bitcmp1_b64": _row("= u64 u32", lambda a, b: integers.right(64)(a, b) & 1 == 1, "given"),
    "s_add_u32": _row("u32 = u32 u32", integers.add, "given"),
    "s_sub_u32": _row("u32 = u32 u32", integers.subtract, "given"),
    "s_add_i32": _row("i32 = i32 i32", _add_i, "given"),
    "s_sub_i32": _row("i32 = i32 i32", _sub_i, "given"),
    "s_addc_u32": _row("u32 = u32 u32 scc", integers.add_carry, "given"),
    "s_subb_u32": _row("u32 = u32 u32 scc", integers.subtract_borrow, "given"),
    "s_addk_i32": _row("i32 = acc k", _add_i, "given"),
    "s_mulk_i32": _row("i32 = acc k", lambda a, b: a * b),
    "s_mul_i32": _row("i32 = i32 i32", lambda a, b: a * b),
    "s_mul_hi_u32": _row("u32 = u32 u32", integers.high_product),
    "s_mul_hi_i32": _row("i32 = i32 i32", integers.high_product),
    "s_min_i32": _row("i32 = i32 i32", lambda a, b: (np.minimum(a, b), a < b), "given"),
    "s_min_u32": _row("u32 = u32 u32", lambda a, b: (np.minimum(a, b), a < b), "given"),
    # s_max sets SCC if it chooses the first number. For equal numbers the manuals say 1; two other emulators give 0
    # (rocjitsu, and one like tinygrad's whose results were compared with hardware), and so does this one.
    "s_max_i32": _row("i32 = i32 i32", lambda a, b: (np.maximum(a, b), a > b), "given"),
    "s_max_u32": _row("u32 = u32 u32", lambda a, b: (np.maximum(a, b), a > b), "given"),
    "s_cselect_b32": _row("u32 = u32 u32 scc", lambda a, b, c: np.where(c, a, b), bitwise=True),
    "s_cselect_b64": _row("u64 = u64 u64 scc", lambda a, b, c: np.where(c, a, b), bitwise=True),
    "s_cmov_b64": _row("u64 = u64 old scc", lambda a, old, c: np.where(c, a, old)),
    "s_cmov_b32": _row("u32 = u32 old scc", lambda a, old, c: np.where(c, a, old)),
    "s_cmovk_i32": _row("i32 = k old scc", lambda a, old, c: np.where(c, a, old)),
    "s_lshl_b32": _row("u32 = u32 u32", integers.left(32), "nonzero"),
    "s_lshr_b32": _row("u32 = u32 u32", integers.right(32), "nonzero"),
    "s_ashr_i32": _row("i32 = i32 u32", integers.right(32), "nonzero"),
    "s_lshl_b64": _row("u64 = u64 u32", integers.left(64), "nonzero"),
    "s_lshr_b64": _row("u64 = u64 u32", integers.right(64), "nonzero"),
    "s_ashr_i64": _row("i64 = i64 u32", integers.right(64), "nonzero"),
    **{f"s_lshl{n}_add_u32": _row("u32 = u32 u32", _shift_add(n), "given") for n in (1, 2, 3, 4)},
    "s_bfe_u32": _row("u32 = u32 u32", _bfe_unsigned, "nonzero"),
    "s_bfe_i32": _row("i32 = i32 u32", _bfe_signed, "nonzero"),
    "s_bfe_u64": _row("u64 = u64 u32", _bfe_unsigned, "nonzero"),
    "s_bfe_i64": _row("i64 = i64 u32", _bfe_signed, "nonzero"),
    "s_bfm_b32": _row("u32 = u32 u32", integers.ones),
    "s_bfm_b64": _row("u64 = u32 u32", lambda a, b: integers.ones(a, b, np.uint64)),
    "s_absdiff_i32": _row("i32 = i32 i32", lambda a, b: np.abs(a - b), "nonzero"),
    "s_pack_ll_b32_b16": _row("u32 = u32 u32", _pack(0, 0)),
    "s_pack_lh_b32_b16": _row("u32 = u32 u32", _pack(0, 16)),
    "s_pack_hh_b32_b16": _row("u32 = u32 u32", _pack(16, 16)),
    "s_mov_b32": _row("u32 = u32", lambda a: a, bitwise=True),
    "s_mov_b64": _row("u64 = b64", lambda a: a, bitwise=True),
    "s_movk_i32": _row("i32 = k", lambda a: a),
    "s_not_b32": _row("u32 = u32", lambda a: ~a, "nonzero", bitwise=True),
    "s_not_b64": _row("u64 = u64", lambda a: ~a, "nonzero", bitwise=True),
    "s_abs_i32": _row("i32 = i32", lambda a: np.abs(a), "nonzero"),
    "s_brev_b32": _row("u32 = u32", integers.bit_reverse),
    "s_bcnt1_i32_b32": _row("u32 = u32", lambda a: np.bitwise_count(a), "nonzero"),
    "s_bcnt1_i32_b64": _row("u32 = u64", lambda a: np.bitwise_count(a), "nonzero"),
    "s_bcnt0_i32_b32": _row("u32 = u32", lambda a: np.bitwise_count(~a), "nonzero"),
    "s_bcnt0_i32_b64": _row("u32 = u64", lambda a: np.bitwise_count(~a), "nonzero"),
    "s_ff1_i32_b32": _row("i32 = u32", integers.first_one),
    "s_ff1_i32_b64": _row("i32 = u64", integers.first_one),
    "s_flbit_i32_b32": _row("i32 = u32", integers.leading_zeros),
    "s_flbit_i32_b64": _row("i32 = u64", lambda a: integers.leading_zeros(a, 64)),
    "s_ff0_i32_b32": _row("i32 = u32", lambda a: integers.first_one(~a)),
    "s_ff0_i32_b64": _row("i32 = u64", lambda a: integers.first_one(~a)),
    "s_flbit_i32_i64": _row("i32 = i64", lambda a: integers.leading_zeros(np.where(a < 0, ~a, a).view(np.uint64), 64)),
    "s_brev_b64": _row("u64 = u64", lambda a: integers.bit_reverse(a, np.uint64)),
    **{f"s_wqm_b{bits}": _row(f"u{bits} = u{bits}", _whole_quads, "nonzero") for bits in (32, 64)},
    **{f"s_quadmask_b{bits}": _row(f"u{bits} = u{bits}", _quads, "nonzero") for bits in (32, 64)},
    "s_bitreplicate_b64_b32": _row("u64 = u32", _replicated),
    "s_flbit_i32": _row("i32 = i32", integers.redundant_signs),
    "s_sext_i32_i8": _row("i32 = i32", _sext(8)),
    "s_sext_i32_i16": _row("i32 = i32", _sext(16)),
    "s_bitset0_b64": _row("u64 = u32 old", lambda a, old: old & ~integers.left(64)(np.uint64(1), a & np.uint32(63))),
    "s_bitset1_b64": _row("u64 = u32 old", lambda a, old: old | integers.left(64)(np.uint64(1), a & np.uint32(63))),
    "s_bitset0_b32": _row("u32 = u32 old", lambda a, old: old & ~(np.uint32(1) << (a & np.uint32(31)))),
    "s_bitset1_b32": _row("u32 = u32 old", lambda a, old: old | (np.uint32(1) << (a & np.uint32(31)))),
}
#: `s_OP_saveexec_b64 d, s`: d = EXEC, EXEC = function(s, EXEC), SCC = EXEC != 0.
SAVEEXEC: Mapping[str, Callable[[Array, Array], Array]] = {
    f"s_{name}_saveexec_b64": function
    for name, function in (*_BITWISE.items(), ("andn1", lambda a, e: ~a & e), ("orn1", lambda a, e: ~a | e))
}
#: `s_OP_wrexec_b64 d, s`: d = EXEC = function(s, EXEC), SCC = EXEC != 0.
WREXEC: Mapping[str, Callable[[Array, Array], Array]] = {
    "s_andn1_wrexec_b64": lambda a, e: ~a & e,
    "s_andn2_wrexec_b64": lambda a, e: a & ~e,
}
