"""Kernel arguments of a mapping that the host computes at launch, and the expression language that defines them.

An expression is arithmetic on integers and on the launch's other scalars by name: `+ - * // %`, `min`, `max`, and for
division by d without a divider `shift(d)`, the least s with d <= 2^s, and `magic(d)` = ceil(2^(31 + s) / d). For 0 <= n
< 2^31

    n // d == mulhi(2 * n, magic(d)) >> shift(d)

since magic(d) * d exceeds 2^(31 + s) by less than d <= 2^s, and magic(d) < 2^32 (Granlund and Montgomery, "Division by
invariant integers using multiplication", theorem 4.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.ir import arithmetic
from convgen.ir.error import UserError
from convgen.ir.expr import Binary, Const, Expr, MulHi, Var, const
from convgen.ir.layout.digits import Index
from convgen.ir.record import frozen
from convgen.ir.sizes import OPERATIONS, Extent, no_extent
from convgen.ir.types import Type, s32, u32


@frozen
class Argument:
    """A scalar argument: its current value, and the expression that defines it; None if the host may choose it."""

    name: str
    value: int
    expr: str | None = None
    type: Type = s32


def shift(d: int) -> int:
    return (d - 1).bit_length()


def magic(d: int) -> int:
    return -(-(1 << (31 + shift(d))) // d)


_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max, "magic": magic, "shift": shift}


def evaluate(expr: str, values: Mapping[str, int]) -> int:
    """Return the value of an expression; UserError for anything else, or for unknown names."""
    try:
        return int(arithmetic.value(expr, values, _FUNCTIONS))
    except ValueError as error:
        wanted = f"integers, names of scalars, + - * // % and {', '.join(_FUNCTIONS)}"
        raise UserError(f"given the launch expression {expr!r}, wanted {wanted}") from error


def launch_expression(extent: Extent) -> str:
    """Return an extent as a launch expression. Raises UserError for operations outside the language."""
    if isinstance(extent, int):
        return str(extent)
    if isinstance(extent, Const):
        return str(extent.bits)
    if isinstance(extent, Var):
        return extent.name
    if not isinstance(extent, Binary) or type(extent) not in OPERATIONS:
        raise UserError(no_extent(extent))
    symbol, _ = OPERATIONS[type(extent)]
    a, b = launch_expression(extent.a), launch_expression(extent.b)
    return f"{symbol}({a}, {b})" if symbol.isalpha() else f"({a} {symbol} {b})"


def divided(number: Index, multiplier: Index, by: Index) -> Index:
    """Return `number // d` from the magic multiplier and the shift of d, for numbers in [0, 2^31)."""
    if isinstance(multiplier, Expr):
        whole = number if isinstance(number, Expr) else const(number)
        return (MulHi((whole + whole).to(u32), multiplier) >> by).to(s32)
    if not isinstance(number, np.ndarray):
        return int(number) * 2 * int(multiplier) >> 32 + int(by)
    n, factor, places = (np.asarray(each, np.uint64) for each in (number, multiplier, by))
    return (n * np.uint64(2) * factor >> np.uint64(32) + places).astype(np.int64)
