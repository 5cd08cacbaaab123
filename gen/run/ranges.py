"""What scales and post-ops may make of numbers: for each the least and the most f32 that is right, as arrays.

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
from convgen.problem.post_ops import Binary, Eltwise, PostOp, Prelu, Sum, operand_name

Floats = npt.NDArray[np.float32]
Range = tuple[Floats, Floats]
Read = Callable[[str], npt.NDArray[Any]]
_Any = npt.NDArray[np.floating]

_LEAST = 2.0**-126  #: denormal numbers may count as zeros where an operation is approximate


def chained(ops: Sequence[PostOp], values: Floats, read: Read) -> Range:
    """The ranges behind all post-ops; `read` gives, by name, the tensors that they need."""
    found = values, values
    with np.errstate(all="ignore"):
        for n, op in enumerate(ops):
            match op:
                case Eltwise():
                    found = _scaled(op, _applied(op, found))
                case Sum():
                    found = _with(np.add, found, _term(op, read("dst")))
                case Prelu():
                    found = _with(_prelu, found, _floats(read(operand_name(n))), turns=[np.float32(0)])
                case Binary():
                    found = _binary(op, found, *(read(operand_name(n, ending)) for ending in op.operands))
    return found


def multiplied(values: Floats, numbers: Sequence[np.float32], tensors: Sequence[npt.NDArray[Any]]) -> Floats:
    """Values by the product of numbers and tensors, which are rounded to f32 one after the other, numbers first."""
    with np.errstate(all="ignore"):
        factor: Any = np.float32(1)
        for term in (*numbers, *tensors):
            factor = factor * np.asarray(term, np.float32)
        found: Floats = values * factor
        return found


def divided(given: Range, by: npt.NDArray[Any]) -> Range:
    """Times the reciprocal of numbers, which is rounded to f32, and off by an ulp if not by a power of two."""
    with np.errstate(all="ignore"):
        factor = np.float32(1) / _floats(by)
        exact = np.abs(np.frexp(factor)[0]) == 0.5
        if by.ndim == 0 or np.all(exact):
            return _with(np.multiply, given, factor)
        ends = [np.where(exact, factor, np.nextafter(factor, np.float32(end))) for end in (-np.inf, np.inf)]
        found = np.stack([end * factor for end in given for factor in ends])
        return found.min(0), found.max(0)


def _floats(given: npt.NDArray[Any]) -> Floats:
    return given.astype(np.float32)


def _term(op: Sum, old: npt.NDArray[Any]) -> Any:
    seen = old.view(types.scalar(op.dtype).numpy) if op.dtype else old
    return (_floats(seen) - np.float32(op.zero_point)) * np.float32(op.scale)


def _with(function: Callable[[Any, Any], Any], given: Range, term: _Any, turns: Sequence[Any] = ()) -> Range:
    """A function of numbers and a term, rounded once; `turns` is where it stops to rise or to fall."""
    if given[0] is given[1]:
        only = np.asarray(function(given[0], term), np.float32)
        return only, only
    points = [*given, *(np.minimum(np.maximum(turn, given[0]), given[1]) for turn in turns)]
    found = np.stack([np.asarray(function(point, term), np.float32) for point in points])
    return found.min(0), found.max(0)


def _prelu(x: Floats, slope: Floats) -> Floats:
    return np.where(x > 0, x, x * slope)


def _binary(op: Binary, given: Range, operand: npt.NDArray[Any], condition: npt.NDArray[Any] | None = None) -> Range:
    term = _floats(operand)
    if condition is not None:
        return _with(lambda x, y: np.where(condition != 0, x, y), given, term)
    if op.name == "div":
        return _outwards(*_with(np.divide, given, term))
    return _with(_BINARY[op.name], given, term, turns=[term] if op.name in ("eq", "ne") else ())


#: `min` and `max` of a NaN and a number are the number.
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "max": np.fmax,
    "min": np.fmin,
    "mul": np.multiply,
    "sub": np.subtract,
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "ne": np.not_equal,
}


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
    low = np.where(np.isinf(low), low, np.nextafter(low, np.float32(-np.inf)))
    return low, np.where(np.isinf(high), high, np.nextafter(high, np.float32(np.inf)))


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
            return np.minimum(np.maximum(x, alpha), beta)
        case "hardsigmoid":
            return np.clip(linear, np.float32(0), np.float32(1))
        case "hardswish":
            return x * np.clip(linear, np.float32(0), np.float32(1))
        case "linear":
            return linear
        case "pow":
            return (np.ones_like(x), x, x * x)[int(op.beta)] * alpha
        case "relu":
            return np.where(x > 0, x, x * alpha) if alpha else np.where(x < 0, np.float32(0), x)
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
