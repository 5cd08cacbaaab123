"""Element-wise functions by numpy: their values, error bounds of results, and turning points.

The reference sets these bounds; kernels know nothing of them. benchdnn allows 4e-6 of the result, and 4e-5 for
functions in which terms cancel (tests/benchdnn/eltwise/eltwise.cpp, `get_eltwise_threshold`). Where results are near
zero it compares differences (`check_abs_err`). All bounds except that of `pow` are within benchdnn's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from convgen.ir.record import frozen
from convgen.problem.post_ops import Eltwise, Glu, PostOp


@frozen
class Accuracy:
    """The error bound of an f32 result: `ulps` of it or `absolute`, whichever is more; exact if both are 0."""

    ulps: float = 0
    absolute: float = 0

    @property
    def is_exact(self) -> bool:
        """Return whether results must equal the reference's bit for bit."""
        return not self.ulps


@frozen
class Reference:
    """A function of x, alpha and beta with its bound: exact ones take f32, operation by operation, others f64."""

    value: Callable[[Any, Any, Any], Any]
    bound: Callable[[float, float], Accuracy]
    turns: Callable[[float, float], tuple[float, ...]] = lambda alpha, beta: ()  #: turning points other than zero


def of(op: Eltwise) -> Accuracy:
    """Return the accuracy of a function with its alpha and beta."""
    return REFERENCES[op.name].bound(op.alpha, op.beta)


def value(op: Eltwise, x: Any) -> Any:
    """Return the function's values at x, with alpha and beta of x's type."""
    return REFERENCES[op.name].value(x, x.dtype.type(op.alpha), x.dtype.type(op.beta))


def turns(op: Eltwise) -> tuple[float, ...]:
    """Return where the function may stop to rise or to fall, beside zero."""
    return REFERENCES[op.name].turns(op.alpha, op.beta)


def is_curved(post_ops: Iterable[PostOp]) -> bool:
    """Return whether any post-op is a function whose results are approximate."""
    functions = (op.function if isinstance(op, Glu) else op for op in post_ops)
    return any(isinstance(op, Eltwise) and not of(op).is_exact for op in functions)


def _bound(ulps: float, absolute: float = 0.0) -> Callable[[float, float], Accuracy]:
    """Return a function that gives a bound for every alpha and beta."""
    return lambda alpha, beta: Accuracy(ulps, absolute)


def _at(*places: float) -> Callable[[float, float], tuple[float, ...]]:
    """Return a function that gives these turning points for every alpha and beta."""
    return lambda alpha, beta: places


def _exact(value: Callable[[Any, Any, Any], Any]) -> Reference:
    """Return the reference of a function of few operations, each rounded once: equal bits on every target."""
    return Reference(value, _bound(0))


def _linear(x: Any, alpha: Any, beta: Any) -> Any:
    return x * alpha + beta if beta else x * alpha


def _clipped(x: Any, low: Any, high: Any) -> Any:
    above = np.where(x < low, low, x)
    return np.where(above > high, high, above)


def _unit(x: Any, alpha: Any, beta: Any) -> Any:
    """Return alpha x + beta, clamped to [0, 1]."""
    return _clipped(_linear(x, alpha, beta), x.dtype.type(0), x.dtype.type(1))


def _relu(x: Any, alpha: Any, beta: Any) -> Any:
    return np.where(x > 0, x, x * alpha) if alpha else np.where(x <= 0, x.dtype.type(0), x)


def _power(x: Any, alpha: Any, beta: Any) -> Any:
    """Return alpha x^beta, in x's own type for the exponents 0, 1 and 2."""
    if beta in _WHOLE:
        return (np.ones_like(x), x, x * x)[int(beta)] * alpha
    return alpha * np.power(x, beta)


def _power_bound(alpha: float, beta: float) -> Accuracy:
    """Return the error bound: exact for few multiplications; else the rounding of the logarithm grows with the
    exponent.
    """
    return Accuracy(0 if beta in _WHOLE else 16 * max(64, abs(beta)))


def _hardswish_turns(alpha: float, beta: float) -> tuple[float, ...]:
    return tuple(at / alpha for at in (-beta, 1 - beta, -beta / 2)) if alpha else ()


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Any) -> Any:
    return np.logaddexp(0, x)


_WHOLE = (0, 1, 2)  #: exponents of few multiplications
_erf = np.vectorize(math.erf, otypes=[np.float64])

#: Every element-wise function by its name.
REFERENCES: dict[str, Reference] = {
    "abs": _exact(lambda x, alpha, beta: np.abs(x)),
    "clip": _exact(_clipped),
    "clip_v2": _exact(_clipped),
    "elu": Reference(
        lambda x, alpha, beta: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
        lambda alpha, beta: Accuracy(8, abs(alpha) * 2.0**-20),
    ),
    "exp": Reference(lambda x, alpha, beta: np.exp(x), _bound(6)),
    "gelu_erf": Reference(
        lambda x, alpha, beta: x * 0.5 * (1 + _erf(x * math.sqrt(0.5))), _bound(8, 2.0**-21), _at(-0.7517916)
    ),
    "gelu_tanh": Reference(
        lambda x, alpha, beta: x * _sigmoid(math.sqrt(8 / math.pi) * x * (1 + 0.044715 * x * x)),
        _bound(12, 2.0**-21),
        _at(-0.7524614),
    ),
    "hardsigmoid": _exact(_unit),
    "hardswish": Reference(lambda x, alpha, beta: x * _unit(x, alpha, beta), _bound(0), _hardswish_turns),
    "linear": _exact(_linear),
    "log": Reference(lambda x, alpha, beta: np.log(x), _bound(9, 2.0**-21)),
    "logistic": Reference(lambda x, alpha, beta: _sigmoid(x), _bound(16)),
    "mish": Reference(lambda x, alpha, beta: x * np.tanh(_softplus(x)), _bound(32, 2.0**-118), _at(-1.1924312)),
    "pow": Reference(_power, _power_bound, _at(-0.0)),
    "relu": _exact(_relu),
    "round": _exact(lambda x, alpha, beta: np.rint(x)),
    "soft_relu": Reference(
        lambda x, alpha, beta: _softplus(alpha * x) / alpha, lambda alpha, beta: Accuracy(12, 2.0**-20 / abs(alpha))
    ),
    "sqrt": Reference(lambda x, alpha, beta: np.sqrt(x), _bound(4)),
    "square": _exact(lambda x, alpha, beta: x * x),
    "swish": Reference(
        lambda x, alpha, beta: x * _sigmoid(alpha * x),
        lambda alpha, beta: Accuracy(20, 2.0**-22 / abs(alpha or 1)),
        lambda alpha, beta: (-1.2784645 / alpha,) if alpha else (),
    ),
    "tanh": Reference(lambda x, alpha, beta: np.tanh(x), _bound(8)),
}
