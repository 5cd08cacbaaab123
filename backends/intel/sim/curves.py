"""Functions of the math unit: documented error bounds, and results anywhere within them.

By default a result is the exact one, rounded. With a seed it is any result that the documents allow, equal for equal
operands, so that a kernel that relies on more fails. Denormals of f32 then become zeros as operands and results, as no
document states that the unit keeps them.

Source: Intel, documentation of ESIMD, "Math functions supported by hardware": errors in units in the last place. Sines
and cosines are defined up to 32767 pi radians. The documents state no other errors for f16, whose denormals are kept
(PRM of Kaby Lake, "math", restrictions, by Mesa, anv_physical_device.c).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from convgen.backends.intel.sim.operands import TINY, VIEWS, flush
from convgen.backends.sim.wave_arrays import Array
from convgen.ir.record import frozen

_REACH = 32767 * np.pi  #: radians; largest operand of sine and cosine
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  #: 2^64 divided by the golden ratio: Knuth's multiplicative hash


@frozen
class Curve:
    """A function of one operand; `ulps` and `absolute` bound the distance from the exact result, whichever is more."""

    exact: Callable[[Array], Array]  #: in f64
    ulps: float = 0.0
    absolute: float = 0.0

    def __call__(self, operand: Array) -> Array:
        """Return the exact result, which the store rounds."""
        return self.exact(operand.astype(np.float64))

    def within(self, seed: int, type_: str) -> Callable[[Array], Array]:
        """Return a function whose results, of type `type_`, lie anywhere within the documented error, by `seed`."""
        dtype, flushes = np.dtype(VIEWS[type_]), type_ == "f"

        def function(operand: Array) -> Array:
            wide = self(flush(operand, TINY["f"]) if flushes else operand)
            room = np.maximum(self.ulps * _ulp(wide, dtype), self.absolute)
            moved = (wide + room * _noise(wide, seed)).astype(dtype)
            allowed = np.isfinite(wide) & (np.abs(moved - wide) <= room) & ((wide != 0) | (self.ulps == 0))
            result = np.where(allowed, moved, wide)
            return flush(result, TINY["f"]) if flushes else result

        return function


def _ulp(wide: Array, dtype: np.dtype[Any]) -> Array:
    """Return the distance between neighbouring floats at exact results, at least that at the least normal number."""
    info = np.finfo(dtype)
    exponent = np.frexp(np.maximum(np.abs(np.nan_to_num(wide)), float(info.tiny)))[1] - 1
    return np.asarray(np.ldexp(1.0, exponent - info.nmant))


def _noise(wide: Array, seed: int) -> Array:
    """Return numbers in [-1, 1) that depend on the seed and the exact results alone."""
    mixed = (np.ascontiguousarray(wide).view(np.uint64) ^ np.uint64(seed + 1)) * _MULTIPLIER
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _MULTIPLIER
    return mixed.view(np.int64) / 2.0**63


def _periodic(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda a: function(np.where(np.abs(a) <= _REACH, a, np.nan))


CURVES: Mapping[str, Curve] = {
    "inv": Curve(lambda a: 1 / a, ulps=1),
    "log": Curve(np.log2, ulps=4, absolute=2.0**-21),
    "exp": Curve(np.exp2, ulps=4),
    "sqt": Curve(np.sqrt, ulps=4),
    "rsqt": Curve(lambda a: 1 / np.sqrt(a), ulps=4),
    "sin": Curve(_periodic(np.sin), absolute=0.0008),
    "cos": Curve(_periodic(np.cos), absolute=0.0008),
}
