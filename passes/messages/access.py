"""What the parts of the message planner know of one distributed access to a view."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.ir.expr import Expr, Var
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Shared
from convgen.ir.mutate import free_vars
from convgen.ir.record import frozen
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.sizes import Extent
from convgen.passes.messages.linear import ZERO, LinearView, plus


class Steady:
    """The variables that no loop changes (group ids, outer lets, as they are met), and what is made of these."""

    def __init__(self, *variables: Var) -> None:
        self._variables = set(variables)
        self._known: dict[Expr, tuple[bool, bool]] = {}  # whether variables are in it, and no others

    def add(self, v: Var) -> None:
        self._variables.add(v)

    def find(self, e: Expr) -> tuple[bool, bool]:
        """Whether an expression has variables, and whether it has no others than these."""
        if e not in self._known:
            names = free_vars(e)
            self._known[e] = bool(names), self._variables.issuperset(names)
        return self._known[e]


@frozen(eq=False)
class TileAccess:
    """A tile of `view` at `coords` (one start per axis), spread as `layout`.

    Terms of `steady` variables belong into the varying offset. `values` are the lets in scope: what a start is a
    multiple of shows there. With `places` of a shared tile, the layout is that of places there, and lanes bring the
    elements that these have.
    """

    view: LinearView
    coords: tuple[Expr, ...]
    layout: Fragment
    subgroup: Expr
    facts: TargetFacts
    bounds: Bounds
    steady: Steady
    values: Mapping[Var, Expr]
    places: Shared | None = None

    def is_steady(self, e: Expr) -> bool:
        """Whether an expression is made of steady variables, and of at least one."""
        return self.steady.find(e) == (True, True)

    def is_steady_or_lane(self, e: Expr) -> bool:
        """Whether no variable of a loop is in it."""
        return self.steady.find(e)[1]


@frozen
class Position:
    """A position along one dimension: uniform + varying + constant part."""

    uniform: Expr
    varying: Expr
    const: int

    @property
    def value(self) -> Expr:
        variable = plus(self.uniform, self.varying)
        return variable + self.const if self.const else variable


def scale(e: Expr, factor: Extent) -> Expr:
    """A product without factors that change nothing."""
    return e if e is ZERO or (isinstance(factor, int) and factor == 1) else e * factor


def divide(e: Expr, by: int) -> Expr:
    """A quotient by no divisor that changes nothing."""
    return e if by == 1 else e // by
