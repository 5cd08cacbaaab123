"""Sums of the products of matrix instructions.

PTX leaves order and rounding of floating-point sums open. An H200 follows this rule: all products of an instruction
and C are aligned to the greatest exponent with some bits below it and cut toward zero; their sum is cut toward zero to
f32. The exponent of a product is the sum of its factors' exponents, and subnormal factors have the least one of their
format. mma.sync of all types keeps 25 bits below the greatest exponent (tests/data/silicon), as wgmma does of f16, bf16
and tf32; wgmma of 8-bit floats keeps 13 (2^13 - 2^13 + 1 is 1, and 2^14 - 2^14 + 1 is 0).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from convgen.backends.nvidia.sim.ptx_types import TYPES
from convgen.backends.nvidia.sim.rounding import FORMATS, rounded
from convgen.backends.sim.numbers import fma_f64
from convgen.backends.sim.wave_arrays import Array

#: Returns C + A B of A [.., m, k], B [.., k, n] and C [.., m, n].
Multiply = Callable[[Array, Array, Array], Array]
_BELOW, _BELOW_NARROW = 25, 13  #: bits below the greatest exponent that a sum keeps; of 8-bit floats in wgmma
_NO_TERM = -1000  #: exponent given to zero terms, below all others, so that they do not align a sum
_F32_BITS = 24


def multiplier(a_type: str, b_type: str, *, saturates: bool) -> Multiply:
    """Return the function by which mma.sync multiplies; integers saturate or wrap."""
    if a_type == "f64":
        return _sum_f64
    if TYPES[a_type].kind != "f":
        return partial(_sum_integers, saturates=saturates)
    if a_type in ("e4m3", "e5m2"):
        return partial(_sum_emulated, least=_least(a_type, b_type))
    return partial(_sum_aligned, least=_least(a_type, b_type), below=_BELOW)


def warpgroup_multiplier(a_type: str, b_type: str, *, saturates: bool) -> Multiply:
    """Return the function by which wgmma multiplies; integers saturate or wrap."""
    if TYPES[a_type].kind != "f":
        return partial(_sum_integers, saturates=saturates)
    below = _BELOW_NARROW if a_type in ("e4m3", "e5m2") else _BELOW
    return partial(_sum_aligned, least=_least(a_type, b_type), below=below)


def _least(a_type: str, b_type: str) -> tuple[int, int]:
    return FORMATS[a_type].least, FORMATS[b_type].least


def _sum_f64(a: Array, b: Array, c: Array) -> Array:
    """Sum in f64 with one rounding a product, in ascending k (an assumption)."""
    total = c
    for k in range(a.shape[2]):
        total = fma_f64(a[:, :, k, None], b[:, k, None, :], total)
    return total


def _sum_integers(a: Array, b: Array, c: Array, *, saturates: bool) -> Array:
    products = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)
    total = products + c
    if saturates:
        total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    return np.asarray(total).astype(np.int32)


def _is_exact(a: Array, b: Array, c: Array, below: int) -> bool:
    """Return whether all are whole and so small that no sum loses a bit."""
    if not (np.isfinite(a).all() and np.isfinite(b).all() and np.isfinite(c).all()):
        return False
    bound = float(np.abs(a).max()) * float(np.abs(b).max()) * a.shape[2] + float(np.abs(c).max())
    limit = float(1 << min(_F32_BITS, below + 1))
    return bound < limit and all(bool((np.trunc(value) == value).all()) for value in (a, b, c))


def _sum_aligned(a: Array, b: Array, c: Array, *, least: tuple[int, int], below: int) -> Array:
    """Return C + A B in f32; `least` are the least exponents of normal numbers of A's and B's formats.

    Terms keep `below` bits below the greatest exponent.
    """
    if _is_exact(a, b, c, below):
        plain: Array = (np.matmul(a, b) + c).astype(np.float32)
        return plain
    with np.errstate(all="ignore"):
        a, b, c = a.astype(np.float64), np.moveaxis(b.astype(np.float64), 1, 2), c.astype(np.float64)
        products = a[:, :, None, :] * b[:, None, :, :]
        exponents = _exponents(a, least[0])[:, :, None, :] + _exponents(b, least[1])[:, None, :, :]
        terms = np.concatenate((products, c[..., None]), axis=3)
        exponents = np.concatenate((exponents, _exponents(c, FORMATS["f32"].least)[..., None]), axis=3)
        unit = np.where(terms == 0, _NO_TERM, exponents).max(axis=3) - below
        fine = np.isfinite(terms).all(axis=3)
        cut = np.trunc(np.ldexp(np.where(np.isfinite(terms), terms, 0.0), -unit[..., None])).sum(axis=3)
        return np.where(fine, _cut(np.ldexp(cut, unit)), terms.sum(axis=3)).astype(np.float32)


def _exponents(numbers: Array, least: int) -> Array:
    """Return the exponents of numbers of a format; subnormal ones have that of the least normal number."""
    exponents: Array = np.maximum(np.frexp(np.where(np.isfinite(numbers), numbers, 0.0))[1] - 1, least)
    return exponents


def _cut(total: Array) -> Array:
    """Cut f64 numbers toward zero to f32; too large ones become infinite."""
    beyond = np.abs(total) >= 2.0 * (1 << 127)
    return np.where(beyond, np.copysign(np.inf, total), rounded(total, FORMATS["f32"], "rz"))


def _sum_emulated(a: Array, b: Array, c: Array, *, least: tuple[int, int]) -> Array:
    """Return C + A B of 8-bit floats as mma.sync on sm_90 emulates it.

    Products with k % 4 below 2 (two elements of each register) are summed as f16 products are, the others onto that
    sum, which is then added to C in f32.
    """
    total = np.zeros(c.shape, np.float32)
    for of_first in (True, False):
        in_half = np.arange(a.shape[2]) % 4 < 2
        in_half = in_half if of_first else ~in_half
        total = _sum_aligned(a[:, :, in_half], b[:, in_half, :], total, least=least, below=_BELOW)
    result: Array = (total + c.astype(np.float32)).astype(np.float32)
    return result
