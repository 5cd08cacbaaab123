"""The semantics of the operations of `ir/floats.py`: exact results, rounded once.

Approximate operations are computed in f64. Its own error changes about one result in 2^29: one that lies that close to
the midpoint of two floats.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.ir import floats as fl
from convgen.ir.expr import Unary

Array = npt.NDArray[Any]


def _turns(data: Array) -> Array:
    """Return the exact distance to the nearest whole turn, in [-0.5, 0.5]."""
    return data - np.rint(data)


def _sine(quarter: Array) -> Array:
    """Return the sine of at most a quarter turn; exactly 0 and 1 at its ends."""
    found: Array = np.sin(2 * np.pi * quarter)
    return found


def _sin(data: Array) -> Array:
    """Return the sine of `data` turns; beyond a quarter turn by the symmetry sin(1/2 - t) = sin(t)."""
    turns = _turns(data)
    back = np.copysign(0.5, turns) - turns
    return np.copysign(_sine(np.where(np.abs(turns) > 0.25, back, turns)), turns)


def _cos(data: Array) -> Array:
    return _sine(0.25 - np.abs(_turns(data)))


#: Functions on elements in their own type.
EXACT: dict[type[Unary], Callable[[Array], Array]] = {
    fl.Neg: np.negative,
    fl.Abs: np.abs,
    fl.Floor: np.floor,
    fl.Ceil: np.ceil,
    fl.Round: np.rint,
}
#: Functions on f64.
APPROXIMATE: dict[type[Unary], Callable[[Array], Array]] = {
    fl.Exp2: np.exp2,
    fl.Log2: np.log2,
    fl.Rcp: lambda data: 1 / data,
    fl.Sqrt: np.sqrt,
    fl.Rsqrt: lambda data: 1 / np.sqrt(data),
    fl.Sin: _sin,
    fl.Cos: _cos,
}


def round_odd(total: Array, error: Array) -> Array:
    """Round f64 sums to odd, given the rounding `error` each lacks: a further rounding then acts like a single one."""
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & (bits & 1 == 0)
    nearer_zero = (error < 0) == (total > 0)
    return np.where(inexact, bits + np.where(nearer_zero, -1, 1), bits).view(np.float64)


def fma(a: Array, b: Array, c: Array) -> Array:
    """Return `a * b + c`: for elements of at most 32 bits in f64, rounded to odd; for f64 rounded to nearest even."""
    if a.dtype == np.float64:
        return _fma_f64(a, b, c)
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + addend
    seen = total - product
    return round_odd(total, (product - (total - seen)) + (addend - seen))


def _fma_f64(a: Array, b: Array, c: Array) -> Array:
    """Compute exactly, element by element, with fractions; zero, infinite and NaN results need no fractions."""
    plain = a * b + c
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    out: Array = plain.copy()
    for at in zip(*np.nonzero(finite)):
        exact = Fraction(float(a[at])) * Fraction(float(b[at])) + Fraction(float(c[at]))
        if exact:
            out[at] = _nearest(exact)
    return out


def _nearest(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")
