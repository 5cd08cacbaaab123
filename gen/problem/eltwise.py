"""Element-wise and binary post-ops on f32, by name: functions of the sums, alpha and beta, or of a second number."""

from __future__ import annotations

import operator
from collections.abc import Callable

from convgen.ir import functions
from convgen.ir.expr import Expr, Max, Min, Pack, eq, lift, minimum, ne, select
from convgen.ir.floats import Abs, Neg, Rcp, Round, Sqrt
from convgen.ir.types import f16, u16, vector


def _relu(x: Expr, alpha: float, beta: float) -> Expr:
    """Return relu by a select: a maximum would drop NaN. Zero is unsigned unless alpha scales it."""
    if x.type.elem is f16 and not alpha:
        return _above_zero(x)
    return select(x > 0.0, x, x * alpha) if alpha else select(x <= 0.0, lift(0.0, x), x)


def _above_zero(x: Expr) -> Expr:
    """Return relu of f16 as its bits minus those of min(x, 0): two elements at a time, and a NaN stays."""
    halves = vector(u16, x.type.lanes)
    bits, below = (Pack(halves, (each,)) for each in (x, minimum(x, 0.0)))
    return Pack(x.type, (bits - below,))


def _elu(x: Expr, alpha: float, beta: float) -> Expr:
    return select(x < 0.0, (functions.exp(minimum(x, 0.0)) - 1.0) * alpha, x)


def _linear(x: Expr, alpha: float, beta: float) -> Expr:
    scaled = x if alpha == 1 else x * alpha
    return scaled + beta if beta else scaled


def _clip(x: Expr, alpha: float, beta: float) -> Expr:
    above = select(x < alpha, lift(alpha, x), x)
    return select(above > beta, lift(beta, x), above)


def _hardsigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    return _clip(_linear(x, alpha, beta), 0.0, 1.0)


def _soft_relu(x: Expr, alpha: float, beta: float) -> Expr:
    return functions.softplus(x * alpha) * (1 / alpha)


def _swish(x: Expr, alpha: float, beta: float) -> Expr:
    return x * functions.sigmoid(x * alpha)


def _mish(x: Expr, alpha: float, beta: float) -> Expr:
    """Return x * tanh(log(1 + e)) as x * n / (n + 2) with n = e * (e + 2); from 20 on it is x."""
    e = functions.exp(minimum(x, 20.0))
    n = e * (e + 2.0)
    return x * (n * Rcp(n + 2.0))


def _power(x: Expr, alpha: float, beta: float) -> Expr:
    """Return x to the power of beta; a negative x needs a whole exponent, and keeps its sign for an odd one."""
    if beta in _POWERS:
        return _POWERS[beta](x) * alpha
    if not beta.is_integer():
        return functions.power(x, beta) * alpha
    magnitude = functions.power(Abs(x), beta)
    return (select(x < 0.0, Neg(magnitude), magnitude) if beta % 2 else magnitude) * alpha


#: Exponents that need no logarithm.
_POWERS: dict[float, Callable[[Expr], Expr]] = {
    0.0: lambda x: lift(1.0, x),
    0.5: Sqrt,
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    -1.0: Rcp,
}


def _one_or_zero(holds: Callable[[Expr, Expr], Expr]) -> Callable[[Expr, Expr], Expr]:
    """Return a comparison with the result 1 or 0."""
    return lambda x, y: select(holds(x, y), lift(1.0, x), 0.0)


BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": operator.add,
    "div": functions.divide,
    "max": Max,
    "min": Min,
    "mul": operator.mul,
    "sub": operator.sub,
    "eq": _one_or_zero(eq),
    "ge": _one_or_zero(operator.ge),
    "gt": _one_or_zero(operator.gt),
    "le": _one_or_zero(operator.le),
    "lt": _one_or_zero(operator.lt),
    "ne": _one_or_zero(ne),
}

#: Every element-wise function by benchdnn's name, of x, alpha and beta; requests are parsed by these names.
FUNCTIONS: dict[str, Callable[[Expr, float, float], Expr]] = {
    "abs": lambda x, alpha, beta: Abs(x),
    "clip": _clip,
    "clip_v2": _clip,
    "elu": _elu,
    "exp": lambda x, alpha, beta: functions.exp(x),
    "gelu_erf": lambda x, alpha, beta: functions.gelu(x),
    "gelu_tanh": lambda x, alpha, beta: functions.gelu_tanh(x),
    "hardsigmoid": _hardsigmoid,
    "hardswish": lambda x, alpha, beta: x * _hardsigmoid(x, alpha, beta),
    "linear": _linear,
    "log": lambda x, alpha, beta: functions.log(x),
    "logistic": lambda x, alpha, beta: functions.sigmoid(x),
    "mish": _mish,
    "pow": _power,
    "relu": _relu,
    "round": lambda x, alpha, beta: Round(x),
    "soft_relu": _soft_relu,
    "sqrt": lambda x, alpha, beta: Sqrt(x),
    "square": lambda x, alpha, beta: x * x,
    "swish": _swish,
    "tanh": lambda x, alpha, beta: functions.tanh(x),
}

OF_DST = ("clip_v2", "elu", "exp", "logistic", "relu", "sqrt", "tanh")  #: functions that have a form on the destination
