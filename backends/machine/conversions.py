"""Conversions that several families need."""

from __future__ import annotations

from convgen.ir.expr import Expr, eq, lift, select
from convgen.ir.types import s32

_EXACT = 1 << 24  #: every integer up to this is exact in f32


def round_to_odd(a: Expr) -> Expr:
    """Return a 32-bit integer that is exact in f32 and rounds to the same bf16 as `a`.

    In large integers a nonzero low byte becomes 0x80 (round to odd); rounding first to f32 and then to bf16 would round
    twice.
    """
    signed = a.type.elem is s32
    exact = (a + _EXACT < 2 * _EXACT) & (a + _EXACT >= 0) if signed else a < lift(_EXACT, a)
    low = a & 0xFF
    return select(exact | eq(low, 0), a, (a - low) | 0x80)
