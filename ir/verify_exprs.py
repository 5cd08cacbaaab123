"""The rules of well-formed expressions: each checks one expression and returns a complaint or None."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import TYPE_CHECKING, Any

from convgen.ir import expr as x
from convgen.ir.expr import Expr
from convgen.ir.floats import APPROXIMATE, EXACT, Approximate, Fma
from convgen.ir.layout.digits import Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import (
    Global,
)
from convgen.ir.mutate import postorder
from convgen.ir.record import evolve
from convgen.ir.text import show
from convgen.ir.types import Kind, Type, VectorType, f16, f32, f64
from convgen.ir.verify_rules import Rule, uniform

if TYPE_CHECKING:
    from convgen.ir.verify import Checker


def _takes(accepts: Callable[[Type], bool], what: str) -> tuple[Rule, ...]:
    """Return a rule: the operands' elements are of one of these kinds."""

    def rule(c: Checker, e: Any) -> str | None:
        return None if accepts(e.a.type.elem) else f"{show(e)}: operands of {e.a.type}, wanted {what}"

    return (rule,)


def _buffer(c: Checker, e: x.Surface | x.AddressOf) -> str | None:
    known = isinstance(e.buffer, Global) and e.buffer in c.kernel.params
    return None if known else f"{show(e)}: no buffer argument of the kernel"


def _packed(c: Checker, e: x.Pack) -> str | None:
    return f"{show(e)}: bools have no bits" if any(p.type.elem.is_bool for p in e.parts) else None


def _convertible(c: Checker, e: x.Conversion) -> str | None:
    kinds = e.a.type.elem.kind, e.type.elem.kind
    wrong = Kind.POINTER in kinds or (kinds[1] is Kind.BOOL and isinstance(e, x.Saturate))
    wrong |= not e.type.elem.is_rounded_to
    return f"{show(e)}: a conversion from {e.a.type} to {e.type}" if wrong else None


def _vector(c: Checker, e: x.Slice | x.Shuffle) -> str | None:
    what = type(e).__name__.lower()
    return None if isinstance(e.a.type, VectorType) else f"{show(e)}: a {what} of {e.a.type}"


def _from_lane(c: Checker, e: x.FromLane) -> str | None:
    movable = not e.a.type.elem.is_bool and e.a.type.elem.kind is not Kind.POINTER
    return None if movable else f"{show(e)}: {e.a.type} from another lane, wanted numbers"


def _condition(c: Checker, e: x.Select) -> str | None:
    if isinstance(e.cond.type, VectorType) and e.cond.type.lanes != e.type.lanes:
        return f"{show(e)}: a condition of {e.cond.type} for {e.type}"
    return None


def _hold_alike(a: Fragment, b: Fragment) -> bool:
    """Return whether two layouts are equal, though perhaps written in other digits."""
    return a.dims == b.dims and a.canonical(*Space) == b.canonical(*Space)


def _by_groups(scales: Fragment) -> Fragment:
    """Return a layout of scales over groups along K: one over positions has those within a group as a fixed digit."""
    return Fragment(scales.dims, tuple(d for d in scales.digits if d.dim != "k" or d.space is not Space.FIXED))


def _operand_layouts(c: Checker, e: x.Mma) -> str | None:
    scales = zip(("a's scales", "b's scales"), e.scales, map(_by_groups, e.op.scales or ()))
    for name, operand, wanted in (("a", e.a, e.op.a), ("b", e.b, e.op.b), ("acc", e.acc, e.op.d), *scales):
        given = c.distribution(operand)
        given = _by_groups(given) if operand in e.scales and isinstance(given, Fragment) else given
        unknown = given is None and name != "acc" and c.level == "tile"
        if unknown or (isinstance(given, Fragment) and given != wanted and not _suits(given, wanted, e.op.d)):
            return f"mma operand {name} is distributed as {given or 'an unknown layout'}, wanted {wanted}"
    return None


def _suits(given: Fragment, wanted: Fragment, result: Fragment) -> bool:
    """Return whether an operand is distributed as wanted; dims of another product's result have other names."""
    if _hold_alike(given, wanted):
        return True
    is_result = {*given.dims} == {*result.dims} != {*wanted.dims}
    names = permutations(wanted.dims) if is_result else ()
    renamed = (given.renamed(dict(zip(given.dims, dims))) for dims in names)
    return any(_hold_alike(evolve(r, dims=wanted.dims), wanted) for r in renamed)


def _approximates(c: Checker, e: Approximate) -> str | None:
    wanted = " or ".join(t.name for t in e.accuracy)
    return None if e.a.type.elem in e.accuracy else f"{show(e)}: operands of {e.a.type}, wanted {wanted}"


_NUMBERS = _takes(lambda t: (t.is_int or t.is_float) and not t.is_storage, "numbers")


_INTEGERS = _takes(lambda t: t.is_int and not t.is_storage, "integers")


_BITS = _takes(lambda t: (t.is_int or t.is_bool) and not t.is_storage, "integers or bools")


_FLOATS = _takes(lambda t: t.is_float and not t.is_storage, "floats")


_COMPARABLE = _takes(lambda t: not t.is_storage, "numbers or bools")


EXPRESSIONS: dict[type[Expr], tuple[Rule, ...]] = {
    **dict.fromkeys((x.Add, x.Sub, x.Mul, x.Min, x.Max, x.Lt, x.Le), _NUMBERS),
    **dict.fromkeys((x.Div, x.Mod, x.Shl, x.Shr), _INTEGERS),
    **dict.fromkeys((x.And, x.Or, x.Xor, x.Not), _BITS),
    **dict.fromkeys(EXACT, _FLOATS),
    **dict.fromkeys(APPROXIMATE, (_approximates,)),
    Fma: _takes(lambda t: t in (f16, f32, f64), "f16, f32 or f64"),
    x.MulHi: _takes(lambda t: t.is_int and t.bits == 32, "32-bit integers"),
    **dict.fromkeys((x.Eq, x.Ne), _COMPARABLE),
    **dict.fromkeys((x.Cast, x.Saturate), (_convertible,)),
    x.Select: (_condition,),
    **dict.fromkeys((x.Slice, x.Shuffle), (_vector,)),
    x.Pack: (_packed,),
    x.FromLane: (_from_lane,),
    x.Surface: (_buffer, uniform("shift", "extent")),
    x.AddressOf: (_buffer,),
    x.Mma: (_operand_layouts,),
}


def refused(e: Expr) -> str | None:
    """Return a complaint about an element-wise operation or one of its subexpressions; None if all are well formed."""
    nowhere: Any = None  # rules of element-wise operations do not ask where they stand
    parts = (each for each in postorder(e) if isinstance(each, Expr))
    complaints = (rule(nowhere, each) for each in parts for rule in EXPRESSIONS.get(type(each), ()))
    return next((c for c in complaints if c is not None), None)
