"""Functions of indices beyond operators, for integers, numpy arrays and IR expressions."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from convgen.ir.expr import Expr, const, maximum, minimum, select
from convgen.ir.layout.digits import Index

Condition: TypeAlias = Any  #: a truth value, a numpy array of them, or an IR expression


def choose(cond: Condition, a: Index, b: Index) -> Index:
    """Return `a` where the condition holds, else `b`."""
    if isinstance(cond, np.ndarray):
        return np.where(cond, a, b)
    if not isinstance(cond, Expr):
        return a if cond else b
    if a is b or (isinstance(a, int) and isinstance(b, int) and a == b):
        return a
    return select(cond, a if isinstance(a, Expr) else const(a), b)


def either(a: Condition, b: Condition) -> Condition:
    """Return whether one of two conditions holds."""
    if isinstance(a, bool) or isinstance(b, bool):
        known, other = (a, b) if isinstance(a, bool) else (b, a)
        return known or other
    return a | b


def lesser(a: Index, b: int) -> Index:
    """Return the lesser of an index and a number."""
    if isinstance(a, Expr):
        return minimum(a, b)
    return np.minimum(a, b) if isinstance(a, np.ndarray) else min(a, b)


def clamped(a: Index, size: int) -> Index:
    """Return an index clamped to [0, size), so that analyses know its range."""
    if isinstance(a, Expr):
        return minimum(maximum(a, 0), size - 1)
    return np.clip(a, 0, size - 1) if isinstance(a, np.ndarray) else max(0, min(a, size - 1))


def split(number: Index, size: int) -> tuple[Index, Index]:
    """Return quotient and remainder by a size."""
    return (number, 0) if size == 1 else (number // size, number % size)
