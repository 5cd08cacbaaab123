"""Elements of tensors by number, and atomic operations: where they are, and who takes part."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import inf

from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, Lane, Splat, const, eq, select
from convgen.ir.layout.digits import Space, times
from convgen.ir.layout.fragment import Fragment
from convgen.ir.types import Type, VectorType, bool_, vector
from convgen.tile.tensors import Tensor

#: atomic operation -> what changes nothing, of a type of elements
_IDLE: dict[str, Callable[[Type], float]] = {
    "add": lambda elem: 0 if elem.is_int else -0.0,
    "min": lambda elem: elem.max if elem.is_int else inf,
    "max": lambda elem: elem.min if elem.is_int else -inf,
    "and": lambda elem: -1 if elem.min else elem.max,
    "or": lambda elem: 0,
    "xor": lambda elem: 0,
}


def inside(k: KernelBuilder, tensor: Tensor, numbers: Expr, mask: Expr | None) -> Expr:
    """Where a tensor has an element of such a number, and a mask holds."""
    count = tensor.layout.size_elems if tensor.is_known else reduce(times, tensor.shape, 1)
    assert isinstance(numbers.type, VectorType)
    there = (numbers >= 0) & (numbers < (Splat(numbers.type, count) if isinstance(count, Expr) else count))
    return k.let("inside", there if mask is None else there & mask)


def once(k: KernelBuilder, value: Expr, layout: Fragment, op: str) -> Expr:
    """A value of which an atomic operation counts each element once: replicas have what changes nothing."""
    if (layout.count(Space.LANE), layout.count(Space.SUBGROUP)) == (k.width, k.subgroups):
        return value
    subgroup, lane, _ = layout.owner(layout.coords(k.subgroup, Lane(), 0))
    first = eq(Lane(), lane) & eq(k.subgroup, subgroup)
    assert isinstance(value.type, VectorType)
    idle = Splat(value.type, const(_IDLE[op](value.type.elem), value.type.elem))
    return k.let("once", select(Splat(vector(bool_, value.type.lanes), first), value, idle))
