"""Random expressions over small domains, and their values on every assignment."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

from convgen.ir import expr as x
from convgen.ir.evaluate import Evaluator, Value
from convgen.ir.expr import Expr, Var, const, var
from convgen.ir.simplify.bounds import Range
from convgen.ir.types import Type, s8, s16, s32, u8, u16, u32

Draw = st.DrawFn

RING = (x.Add, x.Sub, x.Mul, x.Min, x.Max, x.And, x.Or, x.Xor)
LINEAR = (x.Add, x.Add, x.Sub)
ORDER = (x.Lt, x.Le, x.Eq, x.Ne)
DIVISORS = (1, 2, 3, 4, 6, 8, 12, 16, -3, -1)
FACTORS = (2, 3, 4, 8, 12, -4)
#: 8-bit types wrap often, 32-bit types hardly ever.
TYPES = (s8, u8, s32, u32, s16, u16)


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


class Grower:
    """Grows expressions of one type from its variables by drawing what stands at each place."""

    def __init__(self, draw: Draw, dtype: Type, names: list[Var]) -> None:
        self.draw, self.dtype, self.names = draw, dtype, names
        self.made: list[Expr] = []  # some are used twice

    def pick(self, *options: Any) -> Any:
        return options[self.draw(st.integers(0, len(options) - 1))]

    def const(self, *numbers: int) -> Expr:
        return const(self.pick(*(n for n in numbers if self.dtype.min <= n <= self.dtype.max)), self.dtype)

    def leaf(self) -> Expr:
        if self.pick(0, 0, 1):
            least = max(self.dtype.min, -300)
            return const(self.draw(st.integers(least, min(self.dtype.max, 300))), self.dtype)
        return self.pick(*self.names) if self.pick(0, 0, 1) else self.const(0, 1, 2, 3, 4, 7, 8, 15, 16, -1, -8)

    def value(self, depth: int) -> Expr:
        """An integer; divisors are constants, mostly positive."""
        if not depth:
            return self.leaf()
        if self.made and not self.draw(st.integers(0, 7)):
            return self.pick(*self.made)  # type: ignore[no-any-return]
        new: Expr = self.pick(self._ring, self._linear, self._quotient, self._quotient, self._factor, self._other)(
            depth
        )
        self.made.append(new)
        return new

    def _ring(self, depth: int) -> Expr:
        return self.pick(*RING)(self.value(depth - 1), self.value(depth - 1))  # type: ignore[no-any-return]

    def _linear(self, depth: int) -> Expr:
        return self.pick(*LINEAR)(self._factor(depth), self.value(depth - 1))  # type: ignore[no-any-return]

    def _quotient(self, depth: int) -> Expr:
        return self.pick(x.Div, x.Mod)(self.value(depth - 1), self.const(*DIVISORS))  # type: ignore[no-any-return]

    def _factor(self, depth: int) -> Expr:
        return x.Mul(self.value(depth - 1), self.const(*FACTORS))

    def _other(self, depth: int) -> Expr:
        a = self.value(depth - 1)
        match self.draw(st.integers(0, 6)):
            case 0:
                return x.Select(self.truth(depth - 1), a, self.value(depth - 1))
            case 1:
                return ~a
            case 2:
                return a.to(self.pick(s32, u8, s8)).to(self.dtype)
            case 3:
                return self.truth(depth - 1).to(self.dtype)
            case 4:
                return self.pick(x.Shl, x.Shr)(a, self.const(0, 1, 2, 3, 7))  # type: ignore[no-any-return]
            case 5:
                return a & self.const(1, 3, 7, 15, 12)
        return self.pick(x.Min, x.Max)(a, self.const(0, 3, 8, -1))  # type: ignore[no-any-return]

    def truth(self, depth: int) -> Expr:
        """A condition, sometimes compound."""
        if depth > 0 and not self.draw(st.integers(0, 3)):
            return self.pick(x.And, x.Or, x.Xor)(self.truth(depth - 1), self.truth(depth - 1))  # type: ignore[no-any-return]
        order: Expr = self.pick(*ORDER)(self.value(max(depth, 0)), self.leaf() if self.pick(0, 1) else self.value(1))
        return order if self.pick(0, 0, 1) else ~order


def domain(draw: Draw, dtype: Type) -> Range:
    """Few values, some near the ends of 8-bit types."""
    low = draw(st.integers(max(dtype.min, -130), 110))
    return low, min(low + draw(st.sampled_from((0, 1, 3, 7, 8))), dtype.max)


@st.composite
def cases(draw: Draw) -> Case:
    """An expression of three variables."""
    dtype = draw(st.sampled_from(TYPES))
    names = [var(name, dtype) for name in "abc"]
    grower = Grower(draw, dtype, names)
    e = grower.truth(2) if draw(st.integers(0, 3)) == 0 else grower.value(draw(st.integers(1, 4)))
    return Case(e, {v: domain(draw, dtype) for v in names})


CASES = cases()
