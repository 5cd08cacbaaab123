"""Views in linear form: every dimension with one stride in bytes, neighbours merged where memory allows.

The address of a view element is `base + sum(dim * stride)`; it exists where all dims are in range and every halo's
coordinate is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import attrs

from convgen.ir.error import Unsupported
from convgen.ir.expr import Add, Const, Expr, Min, Mul, Sub, Var, const
from convgen.ir.layout.memory import Global, View

ZERO = const(0)

WHOLE_MESSAGE = 16  #: bytes; dims this long need not be merged for the sake of wide messages


@attrs.frozen
class LinearDim:
    """One dimension of an axis: `size` positions exist, it takes `padded`, `stride` bytes apart.

    One that is `reversed` runs against memory: position 0 is farthest, `stride` is still positive.
    """

    name: str
    size: int
    padded: int
    stride: int
    reversed: bool = False


@attrs.frozen
class Halo:
    """A masked tensor coordinate: the element exists where `0 <= sum(coef * dim) + const < size`."""

    size: int
    terms: tuple[tuple[str, int], ...]
    const: int

    def merged(self, outer: str, inner: LinearDim, elem_bytes: int) -> Halo | None:
        """The same condition once `inner` is merged into the dim `outer` around it; None if that cannot or may not be.

        With r = outer * n + inner: 0 <= rest + outer < size exactly where 0 <= n * rest + r < n * size. Where a run of
        `inner` makes a whole message by itself, the dims stay apart: one bit a position of `outer` does as a mask.
        """
        coefs = dict(self.terms)
        if inner.name in coefs:
            return None
        if outer not in coefs:
            return self
        if coefs[outer] != 1 or inner.size * elem_bytes % WHOLE_MESSAGE == 0:
            return None
        n = inner.size
        terms = tuple((name, 1 if name == outer else coef * n) for name, coef in self.terms)
        return Halo(self.size * n, terms, self.const * n)

    def is_constant_over(self, dim: str, run: int) -> bool:
        """Whether all of each aligned run of positions along `dim` is inside, or all of it outside."""
        coefs = dict(self.terms)
        rest = [coef for name, coef in self.terms if name != dim]
        return dim not in coefs or (coefs[dim] == 1 and not any(v % run for v in (self.size, self.const, *rest)))


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
            if dims[-1].stride == self.memory.elem.bytes and not dims[-1].reversed:
                return a
        return None

    def makes_messages(self, run: int) -> bool:
        """Whether aligned runs of that many positions of the unit axis lie side by side, aligned, all or none there."""
        if self.unit_axis is None:
            return run == 1
        inner, align = self.axes[self.unit_axis][-1], min(4, run * self.memory.elem.bytes)
        others = (d.stride for dims in self.axes for d in dims if d is not inner)
        whole = inner.size % run == 0 and inner.padded % run == 0
        together = all(h.is_constant_over(inner.name, run) for h in self.halos)
        return whole and together and not any(s % align for s in (*others, self.base))


@lru_cache(maxsize=2**10)
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
    halos = [Halo(t.size, t.terms, t.const) for t in view.index if t.masked]
    axes = []
    for dims in view.axes:
        merged: list[LinearDim] = []
        for d in dims:
            stride = of_dim.get(d.name, 0)
            dim = LinearDim(d.name, d.size, d.padded, abs(stride), stride < 0)
            last = merged[-1] if merged else None
            turned = dim.reversed or (last and last.reversed)
            if last and not turned and last.stride == dim.stride * dim.size == dim.stride * dim.padded:
                through = [h.merged(last.name, dim, size) for h in halos]
                if all(through):
                    halos = [h for h in through if h]
                    merged[-1] = LinearDim(last.name, last.size * dim.size, last.padded * dim.size, dim.stride)
                    continue
            merged.append(dim)
        kept = [d for d in merged if d.padded != 1 or d.size != 1]
        axes.append(tuple(kept or merged[-1:]))
    base = size * sum(t.const * s for t, s in zip(view.index, strides))
    base -= sum((d.size - 1) * d.stride for dims in axes for d in dims if d.reversed)
    return LinearView(view.memory, tuple(axes), base, tuple(halos))


def plus(a: Expr, b: Expr) -> Expr:
    """A sum without zeros."""
    if a is ZERO:
        return b
    return a if b is ZERO else a + b


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
