"""Division in steps (V_DIV_SCALE, V_DIV_FMAS, V_DIV_FIXUP): scaled away from the limits of exponents, and back.

Where the manual's text would not give right quotients, this module follows tests of tinygrad on hardware: a divisor
whose reciprocal is denormal is scaled down, and the result is scaled back by 2^-64 unless the addend is 2 or more.
"""

from __future__ import annotations

import numpy as np

from convgen.backends.amdgpu.sim.alu.vector_rows import Function
from convgen.backends.sim import numbers as num
from convgen.backends.sim.wave_arrays import Array
from convgen.ir.record import frozen


@frozen
class Format:
    """The limits of f32 or f64 that division depends on."""

    step: int  #: powers of two by which an operand is scaled
    gap: int  #: the least distance of exponents at which the quotient is near the largest number
    tiny: int  #: the exponent field of dividends of which a Newton step would lose bits
    words: type
    mantissa: int


F32 = Format(64, 96, 23, np.uint32, 23)
F64 = Format(128, 768, 53, np.uint64, 52)


def fixup(quotient: Array, divisor: Array, dividend: Array) -> Array:
    """V_DIV_FIXUP: correct the result of the Newton iteration for zeros, infinities and NaNs."""
    exact = dividend / divisor
    return np.where(np.isfinite(exact) & (exact != 0), quotient, exact).astype(quotient.dtype)


def scale(form: Format) -> Function:
    """V_DIV_SCALE: scale divisor `b` or dividend `c`, whichever `a` equals; VCC: whether to scale the quotient back."""

    def function(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
        x, divisor, dividend = np.broadcast_arrays(a, b, c)
        up, down = np.ldexp(x, form.step), np.ldexp(x, -form.step)
        is_divisor, is_dividend = x == divisor, x == dividend
        inverse_tiny, quotient_tiny = _is_denormal(1 / divisor), _is_denormal(dividend / divisor)
        field = _exponent_field(dividend, form)
        far = field - _exponent_field(divisor, form) >= form.gap
        cases = (
            ((dividend == 0) | (divisor == 0), np.full(x.shape, np.nan, x.dtype)),
            (far, np.where(is_divisor, up, x)),
            (_is_denormal(divisor), up),
            (inverse_tiny & quotient_tiny, np.where(is_divisor, down, x)),
            (inverse_tiny, down),
            (quotient_tiny, np.where(is_dividend, up, x)),
            (field <= form.tiny, up),
        )
        back = far | quotient_tiny & ~_is_denormal(divisor)
        scaled = np.select([case for case, _ in cases], [value for _, value in cases], x)
        return scaled.astype(x.dtype), back & (dividend != 0) & (divisor != 0)

    return function


def fmas(form: Format) -> Function:
    """V_DIV_FMAS: a * b + c, scaled back where VCC says so."""
    multiply_add = num.fma_f32 if form is F32 else num.fma_f64

    def function(a: Array, b: Array, c: Array, back: Array) -> Array:
        exponent = np.where(np.abs(c) >= 2, form.step, -form.step)
        factor = np.where(back, np.ldexp(1.0, exponent), 1.0)
        if form is F32:  # powers of two leave f64 exact, so that there is one rounding
            return multiply_add(np.asarray(a, np.float64) * factor, b, np.asarray(c, np.float64) * factor)
        return multiply_add(a, b, c) * factor

    return function


def _exponent_field(a: Array, form: Format) -> Array:
    """Return the biased exponents as signed integers."""
    bits = np.ascontiguousarray(a).view(form.words) << form.words(1)
    field: Array = (bits >> form.words(form.mantissa + 1)).astype(np.int64)
    return field


def _is_denormal(a: Array) -> Array:
    result: Array = (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny)
    return result
