"""`clamp` on integers: a result beyond its type becomes the type's nearest number (CDNA3 ISA 6.5).

`EXACT` gives the results of instructions that may leave their type as 64-bit integers, from sources as 64-bit integers.
Comparisons, conversions, minima and maxima never leave theirs, so clamp changes nothing about them; of comparisons it
asks for exceptions, which are not simulated.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.amdgpu.sim.alu.vector_rows import Function
from convgen.backends.sim.wave_arrays import Array

#: Least and greatest value by type of result.
RANGES: Mapping[str, tuple[int, int]] = {
    "u32": (0, (1 << 32) - 1),
    "i32": (-(1 << 31), (1 << 31) - 1),
    "u16": (0, (1 << 16) - 1),
    "i16": (-(1 << 15), (1 << 15) - 1),
}
#: Type of result -> numpy type in which the tables compute.
_COMPUTED_IN: Mapping[str, type] = {"u32": np.uint32, "i32": np.int32, "u16": np.uint32, "i16": np.int32}


def _multiply_add(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


def _fields(word: Array, bits: int, shift: int, *, signed: bool) -> Array:
    field = (word >> shift) & ((1 << bits) - 1)
    sign = 1 << (bits - 1)
    return (field ^ sign) - sign if signed else field


def exact_dot(bits: int, *, signed: bool) -> Function:
    """Return the sum of products of fields of two words, and an addend; all are 64-bit integers."""

    def function(a: Array, b: Array, c: Array) -> Array:
        for shift in range(0, 32, bits):
            c = c + _fields(a, bits, shift, signed=signed) * _fields(b, bits, shift, signed=signed)
        return c

    return function


def _differences(scale: int) -> Function:
    def function(a: Array, b: Array, c: Array) -> Array:
        for shift in range(0, 32, 8):
            c = c + np.abs(_fields(a, 8, shift, signed=False) - _fields(b, 8, shift, signed=False)) * scale
        return c

    return function


EXACT: Mapping[str, Function] = {
    **{f"v_add_{t}": operator.add for t in RANGES},
    **{f"v_sub_{t}": operator.sub for t in RANGES},
    **{f"v_pk_add_{t}": operator.add for t in ("u16", "i16")},
    **{f"v_pk_sub_{t}": operator.sub for t in ("u16", "i16")},
    **dict.fromkeys(("v_subrev_u32", "v_subrev_u16", "v_subrev_co_u32"), lambda a, b: b - a),
    **dict.fromkeys(
        "v_mad_u16 v_mad_i16 v_mad_legacy_u16 v_mad_legacy_i16 v_mad_u32_u24 v_mad_i32_i24 v_mad_u32_u16 "
        "v_mad_i32_i16 v_pk_mad_u16 v_pk_mad_i16".split(),
        _multiply_add,
    ),
    "v_add_co_u32": operator.add,
    "v_sub_co_u32": operator.sub,
    "v_addc_co_u32": lambda a, b, carry: a + b + carry,
    "v_subb_co_u32": lambda a, b, borrow: a - b - borrow,
    "v_subbrev_co_u32": lambda a, b, borrow: b - a - borrow,
    "v_sad_u8": _differences(1),
    "v_sad_hi_u8": _differences(1 << 16),
    "v_sad_u32": lambda a, b, c: np.abs(a - b) + c,
    **{
        f"v_dot{32 // bits}{form}_{'i32_i' if signed else 'u32_u'}{bits}": exact_dot(bits, signed=signed)
        for bits in (16, 8, 4)
        for signed in (True, False)
        for form in ("", "c")
    },
}
_REPRESENTABLE = (
    "v_cmp",
    "v_cvt_u",
    "v_cvt_i",
    "v_cvt_rpi_",
    "v_cvt_flr_",
    "v_min",
    "v_max",
    "v_med3",
    "v_pk_min",
    "v_pk_max",
)


def saturating(name: str, kind: str, wrapping: Function) -> Function | None:
    """Return the saturating function of an instruction from its wrapping one; None if its clamp is not documented.

    If there are two results, the second is a carry, which does not change.
    """
    if name.startswith(_REPRESENTABLE):
        return wrapping
    if name in ("v_mad_u64_u32", "v_mad_i64_i32"):
        return _saturating_64(wrapping)
    exact = EXACT.get(name)
    return None if exact is None else _clipped(exact, kind, wrapping)


def _clipped(exact: Function, kind: str, wrapping: Function) -> Function:
    low, high = RANGES[kind]
    dtype = _COMPUTED_IN[kind]

    def function(*values: Array) -> Array | tuple[Array, Array]:
        result: Array = np.clip(exact(*(value.astype(np.int64) for value in values)), low, high).astype(dtype)
        plain = wrapping(*values)
        return (result, plain[1]) if isinstance(plain, tuple) else result

    return function


def _saturating_64(wrapping: Callable[..., tuple[Array, Array]]) -> Function:
    """Saturate a 64-bit sum whose second result flags overflow: upwards unless the addend is negative."""

    def function(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
        total, overflows = wrapping(a, b, c)
        of_type, limits = total.dtype.type, np.iinfo(total.dtype)
        return np.where(overflows, np.where(c < 0, of_type(limits.min), of_type(limits.max)), total), overflows

    return function
