"""Post-ops: what becomes of a sum before it is stored, in the words of benchdnn and in what they mean.

An element-wise one is a function of one number. Those that are not exact may be off by as much as `Algorithm` says.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from convgen.problem import attributes


@attrs.frozen
class Algorithm:
    """How far an element-wise function may be off on f32: `ulps` of the result, or `absolute`, whichever is more.

    Both depend on alpha and beta. Each operation of an exact one is rounded once, and the results are the same bits.
    """

    ulps: Callable[[float, float], float] = lambda alpha, beta: 0
    absolute: Callable[[float, float], float] = lambda alpha, beta: 0


def _off(ulps: float, absolute: float = 0.0) -> Algorithm:
    return Algorithm(lambda alpha, beta: ulps, lambda alpha, beta: absolute)


def _power_ulps(alpha: float, beta: float) -> float:
    """Few multiplications are exact; a rounding of the logarithm grows with the exponent."""
    return 0 if beta in (0, 1, 2) else 16 * max(64, abs(beta))


_EXACT = ("abs", "clip", "clip_v2", "hardsigmoid", "hardswish", "linear", "relu", "round", "square")

#: Every algorithm by its name. Bounds are those of `ir/functions.py` with what rounds before and behind them.
ALGORITHMS = {
    **dict.fromkeys(_EXACT, _off(0)),
    "elu": Algorithm(lambda alpha, beta: 8, lambda alpha, beta: abs(alpha) * 2.0**-20),
    "exp": _off(6),
    "gelu_erf": _off(8, 2.0**-21),
    "gelu_tanh": _off(12, 2.0**-21),
    "log": _off(9, 2.0**-21),
    "logistic": _off(16),
    "mish": _off(32, 2.0**-118),
    "pow": Algorithm(_power_ulps),
    "soft_relu": Algorithm(lambda alpha, beta: 12, lambda alpha, beta: 2.0**-20 / abs(alpha)),
    "sqrt": _off(4),
    "swish": Algorithm(lambda alpha, beta: 20, lambda alpha, beta: 2.0**-22 / abs(alpha or 1)),
    "tanh": _off(8),
}

_ALIASES = {"srelu": "soft_relu"}


@attrs.frozen
class Eltwise:
    """`scale` times the function of a name."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0
    scale: float = 1.0

    def __str__(self) -> str:
        return _printed(self.name, [_number(self.alpha), _number(self.beta), _number(self.scale)], ["0", "0", "1"])

    @property
    def ulps(self) -> float:
        return ALGORITHMS[self.name].ulps(self.alpha, self.beta)

    @property
    def absolute(self) -> float:
        return ALGORITHMS[self.name].absolute(self.alpha, self.beta)

    @property
    def is_exact(self) -> bool:
        return not self.ulps


@attrs.frozen
class Sum:
    """Adds `scale` times what stands in the destination, less the zero point; read as `dtype`, if not as it is."""

    scale: float = 1.0
    zero_point: int = 0
    dtype: str = ""

    def __str__(self) -> str:
        return _printed("sum", [_number(self.scale), str(self.zero_point), self.dtype], ["1", "0", ""])

    @property
    def is_exact(self) -> bool:
        return True


PostOp = Eltwise | Sum


def read(text: str) -> tuple[PostOp, ...]:
    """The post-ops of a text that `attributes.post_ops` took, of kinds that are `GENERATED`."""
    return tuple(_sum(e) if e.lower().startswith("sum") else _eltwise(e) for e in attributes.split_entries(text))


def refused(text: str) -> str:
    """The kind of the first that is not generated, if there is one."""
    parts = [entry.split(":") for entry in attributes.split_entries(text)]
    kinds = [attributes.KINDS[name.lower()] for name, *_ in parts]
    divides = [_name(name) == "soft_relu" and not _real((fields or ["0"])[0]) for name, *fields in parts]
    return next((kind for kind, bad in zip(kinds, divides) if kind not in GENERATED or bad), "")


GENERATED = ("eltwise", "sum")


def _name(spelled: str) -> str:
    name = spelled.lower().removeprefix("eltwise_").removesuffix("_use_dst_for_bwd").removesuffix("_dst")
    return _ALIASES.get(name, name)


def _eltwise(entry: str) -> Eltwise:
    name, *fields = entry.split(":")
    return Eltwise(_name(name), *map(_real, fields))


def _sum(entry: str) -> Sum:
    scale, zero_point, dtype = (*entry.split(":")[1:], "", "", "")[:3]
    return Sum(_real(scale or "1"), int(zero_point or "0"), dtype.removeprefix("dnnl_"))


def _real(text: str) -> float:
    return float(text if "inf" in text else text.removesuffix("f"))


def _printed(name: str, fields: list[str], defaults: list[str]) -> str:
    """A name and its fields, but for those at the end that have their defaults."""
    while fields and fields[-1] == defaults[len(fields) - 1]:
        fields = fields[:-1]
    return ":".join([name, *fields])


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")
