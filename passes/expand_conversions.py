"""Expand conversions from and to narrow types without target instructions into operations on words."""

from __future__ import annotations

from convgen.ir.expr import Cast, Expr, Pack, Saturate
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import mutate, postorder
from convgen.ir.narrow import narrows, widened, widens
from convgen.ir.narrow import rounded as narrowed
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.types import Type, VectorType, f16, f32, has_infinity, s8, u8, vector


def expand_conversions(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Expand conversions of narrow types that the target lacks and `ir/narrow.py` implements."""

    def expand(e: Cast | Saturate) -> Expr:
        return _expanded(e, facts)

    conversions = (e for e in postorder(kernel.body) if isinstance(e, (Cast, Saturate)))
    if not any(_lacks(t.elem, facts) for e in conversions for t in (e.a.type, e.type)):
        return kernel
    return evolve(kernel, body=mutate(kernel.body, {Cast: expand, Saturate: expand}))


def _expansion(e: Cast | Saturate, facts: TargetFacts) -> Expr | None:
    """Return the conversion's expansion; None if it stays."""
    if e.type.elem.is_bool or e.a.type.elem.is_bool:
        return None
    if not isinstance(e.type, VectorType):
        inner = _expansion(type(e)(vector(e.type, 1), Pack(vector(e.a.type, 1), (e.a,))), facts)
        return None if inner is None else Pack(e.type, (inner,))
    of, to, count = e.a.type.elem, e.type.elem, e.type.lanes
    if _lacks(of, facts):
        between = next((t for t in _intermediate_types(e) if widens(of, t)), None)
        if between is None:
            return None
        wide = widened(e.a, between)
        return wide if between is to else _expanded(type(e)(e.type, wide), facts)
    if _lacks(to, facts) and narrows(f32, to):
        return narrowed(e.a.to(vector(f32, count)), to, saturate=isinstance(e, Saturate))
    return None


def _intermediate_types(e: Cast | Saturate) -> tuple[Type, ...]:
    """Return the intermediate types, in order of preference, that a narrow type may be widened to.

    An integer must keep its sign; for a saturating conversion an infinity must survive until the final step.
    """
    of, to = e.a.type.elem, e.type.elem
    if of.is_int and to.is_int:
        return (s8 if of.min < 0 else u8,)
    wide = f16, f32
    if isinstance(e, Saturate) and of.is_float and has_infinity(of):
        return tuple(t for t in wide if t is not to)
    return to, *wide


def _expanded(e: Cast | Saturate, facts: TargetFacts) -> Expr:
    """Return the conversion's expansion, or the conversion if it stays."""
    expansion = _expansion(e, facts)
    return e if expansion is None else expansion


def _lacks(t: Type, facts: TargetFacts) -> bool:
    """Return whether the target lacks conversion instructions for a type."""
    return t.is_storage and t.name not in facts.conversions
