"""Accesses to elements by number, and atomic operations: bounds checks, and replicas that count once."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, Lane, Splat, const, eq, select
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global
from convgen.ir.types import Type, VectorType, bool_, vector

#: atomic operation -> its neutral element in a type
_NEUTRAL: dict[str, Callable[[Type], float]] = {
    "add": lambda elem: 0 if elem.is_int else -0.0,
    "min": lambda elem: elem.max if elem.is_int else inf,
    "max": lambda elem: elem.min if elem.is_int else -inf,
    "and": lambda elem: -1 if elem.min else elem.max,
    "or": lambda elem: 0,
    "xor": lambda elem: 0,
}


def inside(k: KernelBuilder, memory: Global, numbers: Expr, mask: Expr | None) -> Expr:
    """Return whether a tensor has an element with each number, and the mask holds."""
    count = memory.elements
    assert isinstance(numbers.type, VectorType)
    exists = (numbers >= 0) & (numbers < (Splat(numbers.type, count) if isinstance(count, Expr) else count))
    return k.let("inside", exists if mask is None else exists & mask)


def once(k: KernelBuilder, value: Expr, layout: Fragment, op: str) -> Expr:
    """Return a value in which replicas hold the neutral element of an atomic operation: each element counts once."""
    if not layout.has_replicas(k.width, k.subgroups):
        return value
    subgroup, lane, _ = layout.owner(layout.coords(k.subgroup, Lane(), 0))
    first = eq(Lane(), lane) & eq(k.subgroup, subgroup)
    assert isinstance(value.type, VectorType)
    neutral = Splat(value.type, const(_NEUTRAL[op](value.type.elem), value.type.elem))
    return k.let("once", select(Splat(vector(bool_, value.type.lanes), first), value, neutral))
