"""What post-ops may make of numbers: for each the least and the most f32 that is right, as arrays.

Operations of exact post-ops are rounded to f32 one by one, as they are on every target. Others are computed in f64, and
what they may be off by makes a range, which those behind carry on: an end of a range lies where one of its own ends, or
a point in it where the function turns, leads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.ir import types
from convgen.problem.post_ops import Eltwise, PostOp, Sum

Floats = npt.NDArray[np.float32]
Range = tuple[Floats, Floats]
_Any = npt.NDArray[np.floating]

_LEAST = 2.0**-126  #: denormal numbers may count as zeros where an operation is approximate


def chained(ops: Sequence[PostOp], values: Floats, old: npt.NDArray[Any] | None = None) -> Range:
    """The ranges behind all post-ops; `old` is what stands in the destination."""
    found = values, values
    with np.errstate(all="ignore"):
        for op in ops:
            if isinstance(op, Eltwise):
                found = _scaled(op, _applied(op, found))
            else:
                assert old is not None
                found = _added(found, _term(op, old))
    return found


def _term(op: Sum, old: npt.NDArray[Any]) -> Any:
    seen = old.view(types.scalar(op.dtype).numpy) if op.dtype else old
    return (seen.astype(np.float32) - np.float32(op.zero_point)) * np.float32(op.scale)


def _added(given: Range, term: Floats) -> Range:
    least = given[0] + term
    return (least, least) if given[0] is given[1] else (least, given[1] + term)


def _applied(op: Eltwise, given: Range) -> Range:
    least, most = given
    if op.is_exact and least is most:
        value = np.asarray(_exact(op, least), np.float32)
        return value, value
    points: list[Floats] = [least, most]
    points += [np.minimum(np.maximum(np.float32(turn), least), most) for turn in _turns(op)]
    if op.is_exact:
        values = np.stack([_exact(op, p) for p in points])
        return _outwards(values.min(0), values.max(0))
    exact = np.stack([_EXACT[op.name](p.astype(np.float64), op.alpha, op.beta) for p in points])
    return _outwards(*(end + sign * _off(op, end) for end, sign in ((exact.min(0), -1), (exact.max(0), 1))))


def _off(op: Eltwise, value: _Any) -> _Any:
    """The most that a result may be off; what is infinite is not."""
    size = np.where(np.isfinite(value), np.abs(value), 0)
    ulp = np.exp2(np.floor(np.log2(np.maximum(size, _LEAST))) - 23)
    off: _Any = np.maximum(op.ulps * ulp, max(op.absolute, _LEAST))
    return off


def _outwards(least: _Any, most: _Any) -> Range:
    low, high = least.astype(np.float32), most.astype(np.float32)
    return np.nextafter(low, np.float32(-np.inf)), np.nextafter(high, np.float32(np.inf))


def _scaled(op: Eltwise, given: Range) -> Range:
    if op.scale == 1:
        return given
    least, most = (end * np.float32(op.scale) for end in given)
    if given[0] is given[1]:
        return least, least
    return (least, most) if op.scale > 0 else (most, least)


def _turns(op: Eltwise) -> tuple[float, ...]:
    """Where a function may stop to rise or to fall."""
    if op.name == "swish":
        return (-1.2784645 / op.alpha,) if op.alpha else ()
    if op.name == "hardswish" and op.alpha:
        return tuple(at / op.alpha for at in (-op.beta, 1 - op.beta, -op.beta / 2))
    return _TURNS.get(op.name, ())


_TURNS = {
    **dict.fromkeys(("abs", "elu", "pow", "relu", "square"), (0.0,)),
    "gelu_erf": (-0.7517916,),
    "gelu_tanh": (-0.7524614,),
    "mish": (-1.1924312,),
}


def _exact(op: Eltwise, x: Floats) -> Any:
    """In f32, operation by operation."""
    alpha, beta = np.float32(op.alpha), np.float32(op.beta)
    linear = x * alpha + beta
    match op.name:
        case "abs":
            return np.abs(x)
        case "clip" | "clip_v2":
            return np.maximum(np.minimum(x, beta), alpha)
        case "hardsigmoid":
            return np.clip(linear, np.float32(0), np.float32(1))
        case "hardswish":
            return x * np.clip(linear, np.float32(0), np.float32(1))
        case "linear":
            return linear
        case "pow":
            return (np.ones_like(x), x, x * x)[int(op.beta)] * alpha
        case "relu":
            return np.where(x > 0, x, x * alpha) if alpha else np.maximum(x, np.float32(0))
        case "round":
            return np.rint(x)
    return x * x


def _sigmoid(x: _Any) -> _Any:
    return 1 / (1 + np.exp(-x))


def _softplus(x: _Any) -> _Any:
    return np.logaddexp(0, x)


_erf = np.vectorize(math.erf, otypes=[np.float64])

#: On f64.
_EXACT: dict[str, Callable[[_Any, float, float], _Any]] = {
    "elu": lambda x, alpha, beta: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "exp": lambda x, alpha, beta: np.exp(x),
    "gelu_erf": lambda x, alpha, beta: x * 0.5 * (1 + _erf(x * math.sqrt(0.5))),
    "gelu_tanh": lambda x, alpha, beta: x * _sigmoid(math.sqrt(8 / math.pi) * x * (1 + 0.044715 * x * x)),
    "log": lambda x, alpha, beta: np.log(x),
    "logistic": lambda x, alpha, beta: _sigmoid(x),
    "mish": lambda x, alpha, beta: x * np.tanh(_softplus(x)),
    "pow": lambda x, alpha, beta: alpha * np.power(x, beta),
    "soft_relu": lambda x, alpha, beta: _softplus(alpha * x) / alpha,
    "sqrt": lambda x, alpha, beta: np.sqrt(x),
    "swish": lambda x, alpha, beta: x * _sigmoid(alpha * x),
    "tanh": lambda x, alpha, beta: np.tanh(x),
}
