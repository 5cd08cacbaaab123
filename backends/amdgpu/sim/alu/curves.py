"""Transcendental vector instructions: documented error bounds, and results anywhere within them.

By default a result is the exact one, rounded. With a seed it is any result that the documents allow, equal for equal
operands, so that a kernel that relies on more fails.

Sources: GCN3 to CDNA3 ISA, "VOP1 Opcodes" (1 ulp on f32, 0.51 on f16, 2^29 on f64; operands of sine and cosine are
turns in [-256, 256], beyond which results are those of 0); LLVM, AMDGPUUsage, "LLVM IR Intrinsics" (denormals of f32
are not supported: operands and results become zeros). AMD does not document the error of sine and cosine; Direct3D
requires 0.0008.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from convgen.backends.amdgpu.sim.alu.vector_rows import VectorRow
from convgen.backends.sim.wave_arrays import Array
from convgen.ir.record import frozen

_TURNS = 256  #: the largest operand of sine and cosine, either way
_TINY = float(np.finfo(np.float32).tiny)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  #: 2^64 divided by the golden ratio: Knuth's multiplicative hash


@frozen
class Curve:
    """A function of one operand; `ulps` and `absolute` bound the distance from the exact result, whichever is more."""

    exact: Callable[[Array], Array]  #: in f64
    dtype: Any  #: numpy type of the result
    ulps: float
    absolute: float = 0.0

    def __call__(self, operand: Array) -> Array:
        """Return the exact result, rounded once; for f16 in f64, which the caller rounds."""
        return self._rounded(self._wide(operand))

    def within(self, seed: int) -> Callable[[Array], Array]:
        """Return a function whose results lie anywhere within the documented error, by `seed`."""

        def function(operand: Array) -> Array:
            wide = self._wide(operand)
            near = np.abs(wide).astype(self.dtype)
            step = np.spacing(np.where(np.isfinite(near), near, self.dtype(0))).astype(np.float64)
            room = np.maximum(self.ulps * step, self.absolute) - step / 2
            fixed = ~np.isfinite(wide) | (wide == 0)
            return self._rounded(np.where(fixed, wide, wide + room * _noise(wide, seed)))

        return function

    def _wide(self, operand: Array) -> Array:
        value = np.asarray(operand, np.float64)
        return self.exact(flushed(value) if self.dtype is np.float32 else value)

    def _rounded(self, wide: Array) -> Array:
        return flushed(wide.astype(np.float32)) if self.dtype is np.float32 else wide


def flushed(values: Array, *, signed: bool = True) -> Array:
    """Replace denormals of f32 numbers by 0, with `signed` by 0 of their sign."""
    small = (np.abs(values) < _TINY) & (values != 0)
    if not small.any():
        return values
    zero = values.dtype.type(0)
    result: Array = np.where(small, np.copysign(zero, values) if signed else zero, values)
    return result


def _noise(wide: Array, seed: int) -> Array:
    """Return pseudo-random numbers in [-1, 1) that depend on the seed and the exact results only."""
    mixed = (np.ascontiguousarray(wide).view(np.uint64) ^ np.uint64(seed + 1)) * _MULTIPLIER
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _MULTIPLIER
    return mixed.view(np.int64) / 2.0**63


def _sine(turns: Array) -> Array:
    """Return the sine of an angle in turns, exact at multiples of a quarter turn."""
    part = turns - np.floor(turns)
    eighth = np.rint(part * 4)
    rest = 2 * np.pi * (part - eighth / 4)
    found: Array = np.choose(eighth.astype(np.int64) % 4, (np.sin(rest), np.cos(rest), -np.sin(rest), -np.cos(rest)))
    return found


def _in_turns(shift: float) -> Callable[[Array], Array]:
    def function(operand: Array) -> Array:
        known = np.isfinite(operand)
        inside = np.where(known & (np.abs(operand) <= _TURNS), operand, 0.0)
        return np.where(known, _sine(inside + shift), np.nan)

    return function


_ROOTS: Mapping[str, Callable[[Array], Array]] = {
    "rcp": lambda a: 1 / a,
    "rsq": lambda a: 1 / np.sqrt(a),
    "sqrt": np.sqrt,
}
_PLAIN: Mapping[str, Callable[[Array], Array]] = {**_ROOTS, "exp": np.exp2, "log": np.log2}
_WAVES: Mapping[str, Callable[[Array], Array]] = {"sin": _in_turns(0.0), "cos": _in_turns(0.25)}


def _row(kind: str, curve: Curve) -> VectorRow:
    return VectorRow((kind,), (kind,), curve, transcendental=True)


def _rows() -> dict[str, VectorRow]:
    rows: dict[str, VectorRow] = {}
    for kind, dtype, ulps in (("f16", np.float16, 0.51), ("f32", np.float32, 1.0)):
        rows |= {f"v_{n}_{kind}": _row(kind, Curve(f, dtype, ulps)) for n, f in _PLAIN.items()}
        rows |= {f"v_{n}_{kind}": _row(kind, Curve(f, dtype, ulps, absolute=0.0008)) for n, f in _WAVES.items()}
    rows |= {f"v_{n}_f64": _row("f64", Curve(f, np.float64, 2.0**29)) for n, f in _ROOTS.items()}
    rows["v_rcp_iflag_f32"] = rows["v_rcp_f32"]
    rows |= {f"v_{n}_legacy_f32": rows[f"v_{n}_f32"] for n in ("exp", "log")}
    return rows


CURVES: Mapping[str, VectorRow] = _rows()
