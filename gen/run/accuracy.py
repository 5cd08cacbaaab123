"""Error bounds of element-wise functions, within which results count as right.

The reference sets these bounds; kernels know nothing of them. benchdnn allows 4e-6 of the result, and 4e-5 for
functions in which terms cancel (tests/benchdnn/eltwise/eltwise.cpp, `get_eltwise_threshold`). Where results are near
zero it compares differences (`check_abs_err`). All bounds except that of `pow` are within benchdnn's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from convgen.ir.record import frozen
from convgen.problem.post_ops import Eltwise, PostOp

#: Functions of few operations, each rounded once: results have equal bits on every target.
_EXACT = ("abs", "clip", "clip_v2", "hardsigmoid", "hardswish", "linear", "relu", "round", "square")


@frozen
class Accuracy:
    """The error bound of an f32 result: `ulps` of it or `absolute`, whichever is more; exact if both are 0."""

    ulps: float = 0
    absolute: float = 0

    @property
    def is_exact(self) -> bool:
        """Whether results must equal the reference's bit for bit."""
        return not self.ulps


def of(op: Eltwise) -> Accuracy:
    """Return the error bound of a function with its alpha and beta."""
    return ACCURACIES[op.name](op.alpha, op.beta)


def is_curved(post_ops: Iterable[PostOp]) -> bool:
    """Whether any post-op is a function whose results are approximate."""
    return any(isinstance(op, Eltwise) and not of(op).is_exact for op in post_ops)


def _bound(ulps: float, absolute: float = 0.0) -> Callable[[float, float], Accuracy]:
    """Return a function that gives a bound for every alpha and beta."""
    return lambda alpha, beta: Accuracy(ulps, absolute)


def _power(alpha: float, beta: float) -> Accuracy:
    """Return the bound of `pow`: exact for few multiplications, else growing with the exponent beta."""
    return Accuracy(0 if beta in (0, 1, 2) else 16 * max(64, abs(beta)))


#: Every element-wise function by its name.
ACCURACIES = {
    **dict.fromkeys(_EXACT, _bound(0)),
    "elu": lambda alpha, beta: Accuracy(8, abs(alpha) * 2.0**-20),
    "exp": _bound(6),
    "gelu_erf": _bound(8, 2.0**-21),
    "gelu_tanh": _bound(12, 2.0**-21),
    "log": _bound(9, 2.0**-21),
    "logistic": _bound(16),
    "mish": _bound(32, 2.0**-118),
    "pow": _power,
    "soft_relu": lambda alpha, beta: Accuracy(12, 2.0**-20 / abs(alpha)),
    "sqrt": _bound(4),
    "swish": lambda alpha, beta: Accuracy(20, 2.0**-22 / abs(alpha or 1)),
    "tanh": _bound(8),
}
