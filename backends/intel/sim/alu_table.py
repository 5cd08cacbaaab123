"""Functions of arithmetic instructions on numbers of the working types (int64, float32, float64).

Integers keep their sign in int64 and wrap when the result is stored, so that 32-bit sums and products are exact before.
Intel's programmer's reference manuals, "Instruction Set Reference"; mnemonics as IGA prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.sim import numbers as num
from convgen.backends.sim.wave_arrays import Array

Function = Callable[..., Array]
_MASK = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFFFFFF}


def unsigned(value: Array, size: int) -> Array:
    """Return the `size` bytes of a value as an unsigned number; 8 bytes are returned unchanged."""
    return value & _MASK[size] if size < 8 else value


def shift_right(value: Array, count: Array, size: int) -> Array:
    """Return `size` bytes shifted right, zeros from the left."""
    if size < 8:
        return np.asarray(unsigned(value, size) >> count)
    return np.asarray(value.view(np.uint64) >> count.astype(np.uint64)).view(np.int64)


def rotate_left(value: Array, count: Array, size: int) -> Array:
    """Return `size` bytes rotated left."""
    bits = 8 * size
    value = unsigned(value, size)
    back = (bits - count) % bits
    return np.where(count == 0, value, (value << count) | shift_right(value, back, size))


def leading_zeros(value: Array) -> Array:
    """Return the leading zeros of the low 32 bits; 32 if no bit is set."""
    return 32 - np.frexp(unsigned(value, 4).astype(np.float64))[1].astype(np.int64)


def first_low(value: Array) -> Array:
    """Return the number of the lowest bit set, 0xFFFFFFFF if none is set (fbl)."""
    bits = unsigned(value, 4)
    return np.where(bits == 0, 0xFFFFFFFF, 31 - leading_zeros(bits & -bits))


def first_high_unsigned(value: Array) -> Array:
    """Return the zeros above the highest bit set, 0xFFFFFFFF if none is set (fbh on ud)."""
    return np.where(unsigned(value, 4) == 0, 0xFFFFFFFF, leading_zeros(value))


def first_high_signed(value: Array) -> Array:
    """Return the bits above the highest bit that differs from the sign (fbh on d)."""
    return first_high_unsigned(np.where(value < 0, ~value, value))


def count_bits(value: Array) -> Array:
    """Return how many of the low 32 bits are set."""
    raw = np.ascontiguousarray(unsigned(value, 4).astype(np.uint32))
    bits = np.unpackbits(raw.view(np.uint8).reshape(*raw.shape, 4), axis=-1)
    return np.asarray(bits.sum(axis=-1, dtype=np.int64))


def reverse_bits(value: Array) -> Array:
    """Return the low 32 bits in reverse."""
    raw = np.ascontiguousarray(unsigned(value, 4).astype(np.uint32))
    bits = np.unpackbits(raw.view(np.uint8).reshape(*raw.shape, 4), axis=-1, bitorder="little")
    return np.asarray(np.asarray(np.packbits(bits, axis=-1)).view(">u4")[..., 0], np.int64)


def extract(width: Array, offset: Array, value: Array, *, signed: bool) -> Array:
    """Return `width` bits from `offset` (bfe)."""
    width, offset = width & 31, offset & 31
    ones = (np.int64(1) << width) - 1
    bits = (unsigned(value, 4) >> offset) & ones
    if signed:
        bits = np.where((width > 0) & (bits >> np.maximum(width - 1, 0) & 1 == 1), bits - ones - 1, bits)
    return np.asarray(bits)


def insert(mask: Array, value: Array, into: Array) -> Array:
    """Return the low bits of `value` where `mask` has ones, `into` elsewhere (bfi2)."""
    mask = unsigned(mask, 4)
    shift = np.where(mask == 0, 0, first_low(mask))
    return (unsigned(value, 4) << shift & mask) | (into & ~mask)


def bit_mask(width: Array, offset: Array) -> Array:
    """Return `width` ones from `offset` (bfi1)."""
    return (((np.int64(1) << (width & 31)) - 1) << (offset & 31)) & 0xFFFFFFFF


def boolean(table: int) -> Function:
    """Return a function of three bits (bfn): bit n of the table is the result for s0 + 2 s1 + 4 s2 = n."""

    def function(a: Array, b: Array, c: Array) -> Array:
        result = np.zeros(np.broadcast(a, b, c).shape, np.int64)
        for minterm in range(8):
            if table >> minterm & 1:
                term = (a if minterm & 1 else ~a) & (b if minterm & 2 else ~b) & (c if minterm & 4 else ~c)
                result |= term
        return result

    return function


def dot4(signs: tuple[bool, bool]) -> Function:
    """Return the sum of an accumulator and four products of bytes, as a function (dp4a)."""

    def bytes_of(value: Array, signed: bool) -> list[Array]:
        parts = [value >> (8 * at) & 0xFF for at in range(4)]
        return [np.where(part > 127, part - 256, part) for part in parts] if signed else parts

    def function(c: Array, a: Array, b: Array) -> Array:
        pairs = zip(bytes_of(a, signs[0]), bytes_of(b, signs[1]), strict=True)
        return c + sum((x * y for x, y in pairs), np.int64(0))

    return function


def _wide(function: Callable[[Array], Array]) -> Function:
    """Return a function of one f32 evaluated in f64; storing rounds it."""
    return lambda a: function(a.astype(np.float64))


INTEGER: Mapping[str, Function] = {
    "mov": lambda a: a,
    "add": lambda a, b: a + b,
    "add3": lambda a, b, c: a + b + c,
    "mul": lambda a, b: a * b,
    "mad": lambda a, b, c: a + b * c,
    "avg": lambda a, b: (a + b + 1) >> 1,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a,
    "cbit": count_bits,
    "lzd": leading_zeros,
    "fbl": first_low,
    "bfrev": reverse_bits,
    "bfi1": bit_mask,
    "bfi2": insert,
}
FLOAT: Mapping[str, Function] = {
    "mov": lambda a: a,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "frc": lambda a: a - np.floor(a),
    "rndd": np.floor,
    "rndu": np.ceil,
    "rnde": np.rint,
    "rndz": np.trunc,
}
#: Fused multiply-add (c + a * b) by the type of the sources: one rounding.
FUSED: Mapping[str, Function] = {
    "f": lambda c, a, b: num.fma_f32(a, b, c),
    "df": lambda c, a, b: num.fma_f64(a, b, c),
    "hf": lambda c, a, b: num.fma_f16(a, b, c),
    "bf": lambda c, a, b: num.fma_f16(a, b, c),
}
#: math.* beside `CURVES`. invm and rsqtm begin IEEE division and square root: they give the final result and say so in
#: their flag (early out), so that the steps behind them are skipped.
MATH: Mapping[str, Function] = {"invm": lambda a, b: a.astype(np.float64) / b, "rsqtm": _wide(np.sqrt)}
COMPARE: Mapping[str, Function] = {
    "eq": np.equal,
    "ze": np.equal,
    "ne": np.not_equal,
    "nz": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
}
