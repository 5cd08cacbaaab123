"""Functions of integers that scalar and vector instructions share (CDNA3 ISA, "Scalar" and "Vector ALU Operations")."""

from __future__ import annotations

import numpy as np

from convgen.backends.amdgpu.sim.alu.vector_rows import Function
from convgen.backends.sim.wave_arrays import Array

Word = type[np.uint32] | type[np.uint64]
U32_MAX = np.uint32(0xFFFFFFFF)


def add(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the sum of unsigned words, and its carry."""
    total = a + b
    return total, total < a


def subtract(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the difference of unsigned words, and its borrow."""
    return a - b, b > a


def add_carry(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    """Return the sum of words and a carry, and its carry."""
    total = a.astype(np.uint64) + b + carry
    return total.astype(np.uint32), total > U32_MAX


def subtract_borrow(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    """Return the difference of words less a borrow, and its borrow."""
    taken = b.astype(np.uint64) + borrow
    return (a - taken.astype(np.uint32)).astype(np.uint32), taken > a


def high_product(a: Array, b: Array) -> Array:
    """Return the upper word of a product of words, signed or unsigned by their dtype."""
    return (a.astype(a.dtype.str.replace("4", "8")) * b) >> 32


def left(bits: int) -> Function:
    """Return a shift to the left, by the amount modulo `bits`."""
    return lambda a, b: a << (b & np.uint32(bits - 1)).astype(a.dtype, copy=False)


def right(bits: int) -> Function:
    """Return a shift to the right, by the amount modulo `bits`; of signed values with their sign."""
    return lambda a, b: a >> (b & np.uint32(bits - 1)).astype(a.dtype, copy=False)


def ones(width: Array, offset: Array, word: Word = np.uint32) -> Array:
    """Return a run of `width` ones from bit `offset` on, both modulo the bits of `word`."""
    most = np.uint32(8 * word().itemsize - 1)
    one: Array = np.asarray(1, word)
    run: Array = ((one << (width & most).astype(word)) - one) << (offset & most).astype(word)
    return run


def bit_reverse(a: Array, word: Word = np.uint32) -> Array:
    """Return the bits of each word in opposite order."""
    flat = np.ascontiguousarray(a).astype(word)
    bits = np.unpackbits(flat[..., None].view(np.uint8), axis=-1, bitorder="little")
    return np.packbits(bits[..., ::-1], axis=-1, bitorder="little").view(word)[..., 0]


def first_one(a: Array) -> Array:
    """Return the index of the lowest set bit, -1 when there is none."""
    wide = a.astype(np.uint64)
    lowest = wide & (~wide + np.uint64(1))
    return np.where(a == 0, -1, np.log2(np.maximum(lowest, 1).astype(np.float64)).astype(np.int64)).astype(np.int32)


def leading_zeros(a: Array, bits: int = 32) -> Array:
    """Return the number of zeros above the highest set bit, -1 when there is none (V_FFBH_U32, S_FLBIT_I32)."""
    value = a.astype(np.uint64)
    count = np.zeros(a.shape, np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        if step < bits:
            empty = value < (np.uint64(1) << np.uint64(bits - step))
            count += np.where(empty, step, 0)
            value = np.where(empty, value << np.uint64(step), value)
    return np.where(a == 0, -1, count).astype(np.int32)


def redundant_signs(a: Array) -> Array:
    """Return the number of leading bits that equal the sign bit; -1 for 0 and -1 (V_FFBH_I32, S_FLBIT_I32)."""
    return leading_zeros(np.where(a < 0, ~a, a).view(np.uint32))
