"""Random expressions over small domains, and their values on every assignment."""

from __future__ import annotations

from itertools import product
from typing import Any

import attrs
import numpy as np
import pytest
from convgen.ir import expr as x
from convgen.ir.bounds import Range
from convgen.ir.evaluate import Evaluator, Value
from convgen.ir.expr import Expr, Var, const, var
from convgen.ir.types import Type, bool_, s8, s32, u8, u32
from hypothesis import strategies as st

RING = (x.Add, x.Sub, x.Mul, x.Min, x.Max, x.And, x.Or, x.Xor)
ORDER = (x.Lt, x.Le, x.Eq, x.Ne)


@attrs.frozen
class Case:
    """An expression and the domains of its variables."""

    expr: Expr
    domains: dict[Var, Range]

    def values(self, e: Expr | None = None) -> Any:
        """The value of `e` (or of the expression) on each assignment, in one fixed order."""
        ranges = [range(lo, hi + 1) for lo, hi in self.domains.values()]
        table = np.array(list(product(*ranges)), dtype=np.int64).reshape(-1, len(ranges))
        ev = Evaluator(len(table))
        for i, v in enumerate(self.domains):
            ev.env[v] = Value(table[:, i].astype(v.type.elem.numpy))
        return ev(self.expr if e is None else e).data


@st.composite
def cases(draw: Any) -> Case:
    """8-bit types wrap often, 32-bit types hardly ever; divisors are constants, mostly positive."""
    dtype: Type = draw(st.sampled_from((s8, u8, s32, u32)))
    names = [var(name, dtype) for name in "abc"]
    domains = {}
    for v in names:
        lo = draw(st.integers(max(dtype.min, -130), 110))
        domains[v] = (lo, min(lo + draw(st.sampled_from((0, 1, 3, 7, 8))), dtype.max))
    small = st.integers(max(dtype.min, -9), 17).map(lambda n: const(n, dtype))
    any_ = st.integers(max(dtype.min, -300), min(dtype.max, 300)).map(lambda n: const(n, dtype))
    divisor = st.sampled_from([n for n in (1, 2, 3, 4, 6, 8, 12, 16, -3, -1) if n >= dtype.min])
    leaf = st.sampled_from(names) | small | any_

    def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        divide = st.builds(lambda op, a, c: op(a, const(c, dtype)), st.sampled_from((x.Div, x.Mod)), inner, divisor)
        scale = st.builds(lambda a, c: x.Mul(a, const(c, dtype)), inner, st.sampled_from((2, 3, 4, 8, 12)))
        shift = st.builds(
            lambda op, a, n: op(a, const(n, dtype)), st.sampled_from((x.Shl, x.Shr)), inner, st.integers(0, 7)
        )
        truth = st.builds(lambda op, a, b: op(a, b), st.sampled_from(ORDER), inner, inner)
        truths = truth | st.builds(x.Not, truth) | st.builds(x.And, truth, truth) | st.builds(x.Or, truth, truth)
        return st.one_of(
            divide,
            divide,
            scale,
            shift,
            st.builds(lambda op, a, b: op(a, b), st.sampled_from(RING), inner, inner),
            st.builds(lambda op, a, b: op(a, b), st.sampled_from((x.Add, x.Sub)), inner, inner),
            st.builds(x.Select, truths, inner, inner),
            st.builds(x.Not, inner),
            st.builds(lambda a: a.to(s32).to(dtype), inner),
            st.builds(lambda a: a.to(u8).to(dtype), inner),
            st.builds(lambda t: t.to(dtype), truths),
        )

    e = draw(st.recursive(leaf, grow, max_leaves=10))
    if draw(st.booleans()):
        e = draw(st.sampled_from(ORDER))(e, draw(leaf | grow(leaf)))
        if draw(st.booleans()):
            e = x.Not(e)
    assert e.type in (dtype, bool_)
    return Case(e, domains)


@pytest.fixture(scope="session")
def expression_cases() -> st.SearchStrategy[Case]:
    return cases()
