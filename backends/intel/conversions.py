"""Conversions that no single move does, as expressions that moves can do."""

from __future__ import annotations

from convgen.backends.intel.operations import CONVERSIONS
from convgen.backends.machine.conversions import round_to_odd
from convgen.backends.machine.scalars import retyped
from convgen.ir.expr import Cast, Expr, Max, Min, Saturate, lift, select
from convgen.ir.floats import Round
from convgen.ir.types import Type, bf16, f32, s32


def in_steps(e: Cast | Saturate) -> Expr | None:
    """Return the conversion as several conversions; None if a single move does it, or no moves do.

    A move from a float to a 32-bit integer truncates, saturates, and turns NaN into zero (PRM, "Data Conversion": float
    to integer), so rounding comes first.
    """
    a, of, to = e.a, e.a.type.elem, e.type.elem
    if of.is_float and to.is_int:
        if of is not f32:
            return a.to(retyped(a.type, f32)).to(e.type)
        if to.bits < 32:
            return Saturate(e.type, a.to(retyped(a.type, s32)))
        return None if isinstance(a, Round) else Round(a).to(e.type)
    if of.bits == 32 and of.is_int and to is bf16:
        return round_to_odd(a).to(retyped(a.type, f32)).to(e.type)
    if not isinstance(e, Saturate):
        return None
    if to.is_float:
        return _clamped(a.to(retyped(a.type, f32)), to).to(e.type)
    if to.bits < of.bits and (of, to) in CONVERSIONS:
        return None
    return _within(a, of, to).to(e.type)


def _clamped(a: Expr, to: Type) -> Expr:
    """Return the nearest finite number of a type; NaN stays."""
    largest, least = lift(to.largest, a), lift(-to.largest, a)
    return select(largest < a, largest, select(a < least, least, a))


def _within(a: Expr, of: Type, to: Type) -> Expr:
    """Return the nearest integer that type `to` holds, too."""
    if to.min > of.min:
        a = Max(a, lift(to.min, a))
    return Min(a, lift(to.max, a)) if to.max < of.max else a
