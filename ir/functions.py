"""Functions built from IR operations, for scalars and fragments alike, each with its largest error.

>>> from convgen.ir.expr import var
>>> from convgen.ir.types import f32
>>> print(log(var("x", f32)))
log2(x) * 0.6931472

On f32 the error is within `Function.accuracy` if approximate operations are within theirs (`ir/floats.py`). On f16 and
bf16 functions are computed in f32 and rounded: one ulp, or twice the absolute error of f32. Denormal f32 operands and
results may be flushed to zero. NaN gives NaN.

Polynomials: fitted to functions in f64 by weighted least squares on 4000 Chebyshev points, the weights iterated towards
the minimax error (Lawson's algorithm); coefficients rounded to f32. No script in this repository repeats the fit;
`tests/ir/test_functions.py` checks the accuracies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from convgen.ir.error import UserError
from convgen.ir.expr import Expr, Max, Min, Number, lift, select
from convgen.ir.floats import Abs, Accuracy, Cos, Exp2, Log2, Rcp, Round, Sin, fma
from convgen.ir.record import frozen
from convgen.ir.types import Type, bf16, f16, f32, vector

_LOG2E = math.log2(math.e)
_LOG_ERROR = 2.0**-21  #: absolute error of the logarithm near 1, as of `floats.Log2`


@frozen
class Function:
    """A function of floats; `make` builds it on f32, with an error of `accuracy` against the exact result."""

    name: str
    make: Callable[..., Expr]
    accuracy: Accuracy
    where: str = ""  #: operands for which the accuracy holds, if not all

    def __call__(self, a: Expr, *others: Expr | Number) -> Expr:
        """Return the value for operands of one type. Raises UserError if their elements are not f32, f16 or bf16."""
        elem = a.type.elem
        if elem not in (f32, f16, bf16):
            raise UserError(f"given {self.name} of {a.type}, wanted elements of f32, f16 or bf16")
        wide = f32 if isinstance(a.type, Type) else vector(f32, a.type.lanes)
        operands = [a, *(lift(o, a) for o in others)]
        return self.make(*(o.to(wide) for o in operands)).to(a.type)

    def accuracy_of(self, elem: Type) -> Accuracy:
        """Return the accuracy on f32, f16 or bf16."""
        return self.accuracy if elem is f32 else Accuracy(1, 2 * self.accuracy.absolute)


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Return the sum of `coefficients[n] * x**n`, by Horner's rule."""
    *lower, top = coefficients
    found = lift(top, x)
    for c in reversed(lower):
        found = fma(found, x, c)
    return found


def _split(value: float) -> tuple[float, float]:
    """Return the f32 nearest to `value` and the remainder."""
    high = float(np.float32(value))
    return high, value - high


def _exp(x: Expr) -> Expr:
    """Return 2**(x * log2(e)) with the product's rounding error compensated for x within +-128."""
    high, low = _split(_LOG2E)
    inside = Min(Max(x, lift(-128.0, x)), lift(128.0, x))
    rounded = inside * high
    rest = fma(inside, low, fma(inside, high, -rounded))
    return Exp2(x * high) * fma(rest, math.log(2), 1.0)


def _coarse_exp(x: Expr) -> Expr:
    """Return exp(x) with an error that grows with the size of x, in ulps, for uses that tolerate it."""
    return Exp2(x * _LOG2E)


def _divide(a: Expr, b: Expr) -> Expr:
    """Return a quotient corrected by its remainder, unless the remainder is not finite."""
    reciprocal = Rcp(b)
    quotient = a * reciprocal
    rest = fma(-b, quotient, a)
    return select(Abs(rest) < float("inf"), fma(rest, reciprocal, quotient), quotient)


def _sigmoid(x: Expr) -> Expr:
    return Rcp(lift(1.0, x) + _exp(-x))


#: Coefficients of (tanh(x) / x - 1) / x^2 as a polynomial in x^2, for x up to 0.65.
_TANH = (-0.333333283662796, 0.1333262175321579, -0.05382813140749931, 0.020889827981591225, -0.00594296446070075)
#: Coefficients of erf(x) / x - 1 as a polynomial in x^2, for x up to 0.9.
_ERF = (
    *(0.12837915122509003, -0.3761253356933594, 0.11282230168581009),
    *(-0.02678195759654045, 0.005016228184103966, -0.000611129158642143),
)
#: Coefficients of log2(1 - erf(x)) as a polynomial in x, from 0.9 to 4.
_ERFC = (
    *(-0.000256059953244403, -1.626998782157898, -0.9190828800201416, -0.15009427070617676),
    *(0.03213908523321152, -0.004408321809023619, 0.00028447440126910806),
)


def _tanh(x: Expr) -> Expr:
    size, square = Abs(x), x * x
    near = fma(_polynomial(square, _TANH) * square, x, x)
    far = fma(Rcp(_coarse_exp(size * 2.0) + 1.0), -2.0, 1.0)
    return select(size < 0.625, near, _signed(far, x))


def _signed(size: Expr, like: Expr) -> Expr:
    return select(like < 0.0, -size, size)


def _erf(x: Expr) -> Expr:
    """Return erf(x); NaN fails the comparison and so takes the `near` branch, which is computed from the operand."""
    square = x * x
    near = fma(_polynomial(square, _ERF), x, x)
    far = lift(1.0, x) - Exp2(_polynomial(Min(Abs(x), lift(4.0, x)), _ERFC))
    return select(square >= 0.81, _signed(far, x), near)


def _gelu(x: Expr) -> Expr:
    return x * fma(_erf(x * math.sqrt(0.5)), 0.5, 0.5)


def _gelu_tanh(x: Expr) -> Expr:
    """Return gelu by tanh: x * (1 + tanh(u)) / 2 is x * sigmoid(2 * u)."""
    scale = 2 * math.sqrt(2 / math.pi)
    return x * _sigmoid(x * fma(x * x, scale * 0.044715, scale))


def _softplus(x: Expr) -> Expr:
    """Return log(1 + exp(x)), arranged so that exp cannot overflow."""
    return Max(x, lift(0.0, x)) + Log2(_coarse_exp(-Abs(x)) + 1.0) * math.log(2)


def _power(x: Expr, y: Expr) -> Expr:
    return Exp2(y * Log2(x))


def _turns(x: Expr) -> Expr:
    """Return radians as turns in about [-0.5, 0.5], with the rounding error of the conversion compensated."""
    high, low = _split(1 / (2 * math.pi))
    turns = x * high
    return (turns - Round(turns)) + fma(x, low, fma(x, high, -turns))


exp = Function("exp", _exp, Accuracy(6))
log = Function("log", lambda x: Log2(x) * math.log(2), Accuracy(9, _LOG_ERROR))
divide = Function("divide", _divide, Accuracy(1), "operands and quotients from 2^-100 to 2^100, zeros and infinities")
sigmoid = Function("sigmoid", _sigmoid, Accuracy(16))
tanh = Function("tanh", _tanh, Accuracy(8))
erf = Function("erf", _erf, Accuracy(4))
gelu = Function("gelu", _gelu, Accuracy(6, 2.0**-21), "all but minus infinity")
gelu_tanh = Function("gelu_tanh", _gelu_tanh, Accuracy(10, 2.0**-21), "all but minus infinity")
swish = Function("swish", lambda x: x * _sigmoid(x), Accuracy(18, 2.0**-119), "all but minus infinity")
softplus = Function("softplus", _softplus, Accuracy(6, 2.0**-20))
power = Function("power", _power, Accuracy(2.0**10), "x > 0, |y| <= 64")
sin = Function("sin", lambda x: Sin(_turns(x)), Accuracy(1, 0.001), "|x| <= 2^16")
cos = Function("cos", lambda x: Cos(_turns(x)), Accuracy(1, 0.001), "|x| <= 2^16")

LIBRARY = {f.name: f for f in (exp, log, divide, sigmoid, tanh, erf, gelu, gelu_tanh, swish, softplus, power, sin, cos)}
