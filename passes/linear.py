"""Views in linear form: every dimension with one stride in bytes, neighbours merged where memory allows.

The address of a view element is `base + sum(dim * stride)`; it exists where all dims are in range and every halo's
coordinate is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import attrs

from convgen.ir.error import Unsupported
from convgen.ir.expr import Add, Const, Expr, Min, Mul, Sub, Var
from convgen.ir.memory import Global, View


@attrs.frozen
class LinearDim:
    """One dimension of an axis: `size` positions exist, it takes `padded`, `stride` bytes apart."""

    name: str
    size: int
    padded: int
    stride: int


@attrs.frozen
class Halo:
    """A masked tensor coordinate: the element exists where `0 <= sum(coef * dim) + const < size`."""

    size: int
    terms: tuple[tuple[str, int], ...]
    const: int


@attrs.frozen(cache_hash=True)
class LinearView:
    """`axes` hold their dims outermost first; `base` (bytes, at most 0 with left padding) is where index 0 lies."""

    memory: Global
    axes: tuple[tuple[LinearDim, ...], ...]
    base: int
    halos: tuple[Halo, ...]

    def extent(self, axis: int) -> int:
        return math.prod(d.padded for d in self.axes[axis])

    @property
    def unit_axis(self) -> int | None:
        """The axis whose innermost dimension is contiguous in memory."""
        for a, dims in enumerate(self.axes):
            if dims[-1].stride == self.memory.elem.bytes:
                return a
        return None


@cache
def linearize(view: View) -> LinearView:
    """The linear form of a view of a plain layout; Unsupported for blocked layouts."""
    if not view.layout.is_plain:
        raise Unsupported(f"given the layout {view.layout.tag} of {view.memory.name}, wanted a plain one")
    size = view.memory.elem.bytes
    strides = view.layout.strides()
    of_dim: dict[str, int] = {}
    for t, stride in zip(view.index, strides):
        for name, coef in t.terms:
            of_dim[name] = of_dim.get(name, 0) + coef * stride * size
    halos = tuple(Halo(t.size, t.terms, t.const) for t in view.index if t.masked)
    in_halo = {name for h in halos for name, _ in h.terms}
    axes = []
    for dims in view.axes:
        merged: list[LinearDim] = []
        for d in dims:
            dim = LinearDim(d.name, d.size, d.padded, of_dim[d.name])
            last = merged[-1] if merged else None
            if (
                last
                and not {last.name, dim.name} & in_halo
                and last.stride == dim.stride * dim.size == dim.stride * dim.padded
            ):
                merged[-1] = LinearDim(last.name, last.size * dim.size, last.padded * dim.size, dim.stride)
            else:
                merged.append(dim)
        kept = [d for d in merged if d.padded != 1 or d.size != 1]
        axes.append(tuple(kept or merged[-1:]))
    base = size * sum(t.const * s for t, s in zip(view.index, strides))
    return LinearView(view.memory, tuple(axes), base, halos)


def divisor(e: Expr, values: Mapping[Var, Expr]) -> int:
    """A number that divides the value of an integer expression; 0 for the constant zero. `values` resolves lets."""
    match e:
        case Const():
            return abs(e.bits)
        case Mul(a, b):
            return divisor(a, values) * divisor(b, values)
        case Add(a, b) | Sub(a, b) | Min(a, b):
            return math.gcd(divisor(a, values), divisor(b, values))
        case Var() if e in values:
            return divisor(values[e], values)
    return 1
