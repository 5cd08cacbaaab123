"""Rounding other than to nearest even, as cr0 bits 5:4 ask: 1 up, 2 down, 3 toward zero.

Compilers use it in short stretches (IGC's division by way of f64), so it may be slow: the rounded result is compared
with the exact one, number by number, and moved to its neighbour where it lies on the wrong side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np

from convgen.backends.sim.wave_arrays import Array

ROUNDING = 0x30  #: mask of the rounding mode in cr0.0
UP, DOWN, ZERO = 0x10, 0x20, 0x30
_EXACT: Mapping[str, Callable[..., Fraction]] = {
    "mov": lambda a: a,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "mad": lambda c, a, b: c + a * b,
}
ROUNDED = frozenset(_EXACT)


def redirect(op: str, arguments: list[Array], rounded: Array, mode: int) -> Array:
    """Round an operation's result in `mode`, from its sources and its result rounded to nearest even."""
    result = np.broadcast_to(rounded, np.broadcast_shapes(rounded.shape, *(a.shape for a in arguments))).copy()
    sources = [np.broadcast_to(a, result.shape) for a in arguments]
    for at in np.ndindex(result.shape):
        values = [source[at].item() for source in sources]
        if not all(np.isfinite(value) for value in values) or not np.isfinite(result[at]):
            continue
        exact, got = _EXACT[op](*map(Fraction, values)), Fraction(result[at].item())
        down = mode == DOWN or (mode == ZERO and exact > 0)
        if down and got > exact:
            result[at] = np.nextafter(result[at], result.dtype.type(-np.inf))
        elif not down and got < exact:
            result[at] = np.nextafter(result[at], result.dtype.type(np.inf))
    return result
