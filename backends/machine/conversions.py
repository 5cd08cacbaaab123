"""What conversions need on more than one family."""

from __future__ import annotations

from convgen.ir.expr import Expr, eq, lift, select
from convgen.ir.types import s32

_EXACT = 1 << 24  #: up to which every integer is an f32


def odd(a: Expr) -> Expr:
    """An integer of 32 bits that is an f32 and rounds to the same bf16: the low bits of large ones count as one half.

    What becomes an f32 first would be rounded twice.
    """
    signed = a.type.elem is s32
    exact = (a + _EXACT < 2 * _EXACT) & (a + _EXACT >= 0) if signed else a < lift(_EXACT, a)
    low = a & 0xFF
    return select(exact | eq(low, 0), a, (a - low) | 0x80)
