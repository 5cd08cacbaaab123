"""Random expressions over small domains, and their values on every assignment."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

from convgen.ir import expr as x
from convgen.ir.bounds import Range
from convgen.ir.evaluate import Evaluator, Value
from convgen.ir.expr import Expr, Var, const, var
from convgen.ir.types import Type, s8, s32, u8, u32

RING = (x.Add, x.Sub, x.Mul, x.Min, x.Max, x.And, x.Or, x.Xor)
ORDER = (x.Lt, x.Le, x.Eq, x.Ne)


@attrs.frozen
class Case:
    """An expression and the domains of its variables."""

    expr: Expr
    domains: dict[Var, Range]

    def values(self, e: Expr | None = None) -> Any:
        """The value of `e` (or of the expression) on each assignment, in one fixed order."""
        grid = np.meshgrid(*(np.arange(lo, hi + 1) for lo, hi in self.domains.values()))
        ev = Evaluator(grid[0].size)
        for v, axis in zip(self.domains, grid):
            ev.env[v] = Value(axis.ravel().astype(v.type.elem.numpy))
        return ev(self.expr if e is None else e).data


def _binary(ops: tuple[Any, ...], a: st.SearchStrategy[Expr], b: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.builds(lambda op, a, b: op(a, b), st.sampled_from(ops), a, b)


def _expressions(dtype: Type, names: list[Var]) -> st.SearchStrategy[Expr]:
    """Expressions of `dtype` or bool; divisors are constants, mostly positive."""

    def consts(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[Expr]:
        return numbers.map(lambda n: const(n, dtype))

    least = max(dtype.min, -300)
    leaf = st.sampled_from(names) | consts(st.integers(max(least, -9), 17) | st.integers(least, min(dtype.max, 300)))
    divisor = consts(st.sampled_from([n for n in (1, 2, 3, 4, 6, 8, 12, 16, -3, -1) if n >= dtype.min]))

    scaled = _binary((x.Mul,), st.sampled_from(names), consts(st.sampled_from((2, 3, 4, 8, 12))))
    linear = _binary((x.Add, x.Sub), _binary((x.Add, x.Sub), scaled, scaled | leaf), leaf)
    quotient = _binary((x.Div, x.Mod), linear, divisor)

    def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        order = _binary(ORDER, inner, inner)
        truth = order | order.map(x.Not) | _binary((x.And, x.Or, x.Xor), order, order)
        return st.one_of(
            _binary((x.Div, x.Mod), inner, divisor),
            _binary((x.Div, x.Mod), inner, divisor),
            _binary((x.Mul,), inner, consts(st.sampled_from((2, 3, 4, 8, 12)))),
            _binary((x.Shl, x.Shr), inner, consts(st.integers(0, 7))),
            _binary((x.Add, x.Sub), inner, inner),
            _binary(RING, inner, inner),
            st.builds(x.Select, truth, inner, inner),
            inner.map(x.Not),
            inner.map(lambda a: a.to(s32).to(dtype)),
            inner.map(lambda a: a.to(u8).to(dtype)),
            truth.map(lambda t: t.to(dtype)),
        )

    value = st.recursive(leaf, grow, max_leaves=8)
    order = _binary(ORDER, value, leaf | grow(leaf))
    return value | order | order.map(x.Not) | quotient


def _domains(dtype: Type, names: list[Var]) -> st.SearchStrategy[dict[Var, Range]]:
    """Few values each, some near the ends of 8-bit types."""
    low = st.integers(max(dtype.min, -130), 110)
    size = st.sampled_from((0, 1, 3, 7, 8))
    one = st.builds(lambda lo, n: (lo, min(lo + n, dtype.max)), low, size)
    return st.tuples(*[one] * len(names)).map(lambda ranges: dict(zip(names, ranges)))


def _cases(dtype: Type) -> st.SearchStrategy[Case]:
    names = [var(name, dtype) for name in "abc"]
    return st.builds(Case, _expressions(dtype, names), _domains(dtype, names))


#: 8-bit types wrap often, 32-bit types hardly ever.
CASES = st.one_of(*map(_cases, (s8, u8, s32, u32)))
