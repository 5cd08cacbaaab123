"""What the functions of the library are in f64, and operands for them: for the interpreter and every back end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from convgen.backends.simulation import SimReport
from convgen.backends.target import Target
from convgen.ir.functions import LIBRARY, Function
from convgen.ir.types import Type, f16, f32
from tests import arithmetic as ar
from tests.arithmetic import edges

_COUNT = 1 << 16
_ERF: Any = np.vectorize(math.erf)


def _logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


#: In f64.
EXACT: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "log": np.log,
    "divide": np.divide,
    "sigmoid": _logistic,
    "tanh": np.tanh,
    "erf": _ERF,
    "gelu": lambda x: x * np.vectorize(math.erfc)(-x * math.sqrt(0.5)) / 2,
    "gelu_tanh": lambda x: x * _logistic(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "swish": lambda x: x * _logistic(x),
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "power": np.power,
    "sin": np.sin,
    "cos": np.cos,
}
TWO = ("divide", "power")  #: of two operands
_BELOW_INFINITY = ("gelu", "gelu_tanh", "swish")


def samples(elem: Type, seed: int) -> Any:
    """All f16; or f32: near zero, where functions bend, of all sizes, and at the edges."""
    rng = np.random.default_rng(seed)
    if elem is f16:
        return rng.permutation(np.arange(_COUNT, dtype=np.uint16)).view(np.float16)
    some = [rng.uniform(-s, s, _COUNT // 16) for s in (1, 10, 110)]
    some += [rng.uniform(0.4, 1.6, _COUNT // 16), np.array([*edges(f32), 88.72, 88.73, 87.33, 103.97, 0.625, 0.9, 4.0])]
    given = np.concatenate(some).astype(np.float32)
    bits = rng.integers(0, 1 << 32, _COUNT - 2 * given.size, dtype=np.uint32).view(np.float32)
    return np.concatenate([given, -given, np.where(bits == bits, bits, np.float32(np.nan))])


def usual(x: Any) -> Any:
    """What `divide` takes and gives within its bound."""
    return ((np.abs(x) >= 2.0**-100) & (np.abs(x) <= 2.0**100)) | (x == 0) | ~np.isfinite(x)


def operands(name: str, elem: Type) -> list[Any]:
    """What a function states its error for."""
    x, y = samples(elem, 1), samples(elem, 2)
    wide = np.abs(x.astype(np.float64))
    if name == "power":
        return [
            np.where((x > 0) & (wide < np.inf), x, x.dtype.type(1.5)),
            np.where(np.abs(y) <= 64, y, y.dtype.type(3)),
        ]
    if name == "divide":
        return [np.where(usual(g.astype(np.float64)), g, g.dtype.type(0.75)) for g in (x, y)]
    if name in ("sin", "cos"):
        return [np.where(wide <= 2.0**16, x, x.dtype.type(np.nan))]
    return [np.where(x == -np.inf, x.dtype.type(0), x)] if name in _BELOW_INFINITY else [x]


def applied(f: Function) -> ar.Operation:
    return (lambda a, b, c: f(a, b)) if f.name in TWO else (lambda a, b, c: f(a))


def check_bounds(to: Target, simulate: Callable[..., SimReport], width: int, elem: Type, many: int) -> None:
    """Each function on `many` operands, where approximate operations err as far as they may."""
    cases = {name: ar.Case(applied(f), ar.widths(elem)[0], width) for name, f in LIBRARY.items()}
    lanes = width * (128 // elem.bits)
    kernels = {name: case.kernel(name, many // lanes) for name, case in cases.items()}
    code, emitted = ar.compile_all(to, list(kernels.values()))
    for name, kernel in kernels.items():
        given = [g[:many] for g in operands(name, elem)]
        with np.errstate(all="ignore"):
            exact = EXACT[name](*(g.astype(np.float64) for g in given))
        memory = {n: np.ascontiguousarray(g).view(np.uint8) for n, g in zip("abc", [*given, given[0], given[0]])}
        memory["out"] = np.zeros(many * elem.bytes, np.uint8)
        ar.clean(simulate(code, [ar.launch(kernel, emitted[name])], memory, approximate=4))
        found = memory["out"].view(elem.numpy)
        far = ar.error(found, exact, elem, LIBRARY[name].accuracy_of(elem))
        far = np.where(usual(exact), far, 0) if name == "divide" else far
        worst = far.argmax()
        assert far[worst] <= 1, (name, far[worst], [g[worst] for g in given], found[worst], exact[worst])
