"""One distributed access to a view, as all parts of the message planner see it."""

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
    """Loop-invariant variables (group ids, outer lets, added as they are bound) and expressions of these."""

    def __init__(self, *variables: Var) -> None:
        self._variables = set(variables)
        # whether an expression has variables, and whether all of them are loop-invariant
        self._known: dict[Expr, tuple[bool, bool]] = {}

    def add(self, v: Var) -> None:
        self._variables.add(v)

    def find(self, e: Expr) -> tuple[bool, bool]:
        """Return whether an expression has variables, and whether all of them are loop-invariant."""
        if e not in self._known:
            names = free_vars(e)
            self._known[e] = bool(names), self._variables.issuperset(names)
        return self._known[e]


@frozen(eq=False)
class TileAccess:
    """A tile of `view` at `coords` (one start per axis), distributed as `layout`.

    Terms of `steady` variables belong in the varying offset. `values` are the lets in scope, from which divisors of a
    start are derived. With `places`, a shared tile, `layout` distributes places of that tile, and a lane loads the
    elements stored at its places.
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
        """Return whether an expression consists of loop-invariant variables, at least one."""
        return self.steady.find(e) == (True, True)

    def is_steady_or_lane(self, e: Expr) -> bool:
        """Return whether an expression has no variable of a loop."""
        return self.steady.find(e)[1]


@frozen
class Position:
    """A position along one dimension: the sum of a uniform, a varying and a constant part."""

    uniform: Expr
    varying: Expr
    const: int

    @property
    def value(self) -> Expr:
        variable = plus(self.uniform, self.varying)
        return variable + self.const if self.const else variable


def scale(e: Expr, factor: Extent) -> Expr:
    """Return a product, without a factor 1 or 0."""
    return e if e is ZERO or (isinstance(factor, int) and factor == 1) else e * factor


def divide(e: Expr, by: int) -> Expr:
    """Return a quotient, without a divisor 1."""
    return e if by == 1 else e // by
