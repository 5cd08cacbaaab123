"""One distributed access to a view, as all parts of the message planner see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from convgen.ir.expr import Expr, Pack, Slice, Var, const
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Shared
from convgen.ir.mutate import free_vars
from convgen.ir.record import frozen
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.sizes import Extent
from convgen.ir.types import VectorType, s32
from convgen.passes.messages.linear import ZERO, LinearView, add_exprs


class LoopInvariants:
    """The loop-invariant variables (group ids, and lets outside loops, added as they are bound)."""

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

    Terms of loop-invariant variables belong in the varying offset, which is computed before the loop. `values` are the
    lets in scope, from which divisors of a start are derived. With `places`, a shared tile, `layout` distributes places
    of that tile, and a lane loads the elements stored at its places.
    """

    view: LinearView
    coords: tuple[Expr, ...]
    layout: Fragment
    subgroup: Expr
    facts: TargetFacts
    bounds: Bounds
    invariants: LoopInvariants
    values: Mapping[Var, Expr]
    places: Shared | None = None

    def is_invariant(self, e: Expr) -> bool:
        """Return whether an expression has variables and all of them are loop-invariant."""
        return self.invariants.find(e) == (True, True)

    def is_invariant_or_lane(self, e: Expr) -> bool:
        """Return whether all variables of an expression, if any, are loop-invariant."""
        return self.invariants.find(e)[1]


def is_of_elements(coordinate: Expr) -> bool:
    """Return whether a coordinate of a tile is a vector with a position for each of its elements."""
    return isinstance(coordinate.type, VectorType)


def element(coordinate: Expr, register: int) -> Expr:
    """Return the position of a register's element from a coordinate that has one for each."""
    if isinstance(coordinate, Pack) and len(coordinate.parts) == coordinate.type.lanes:
        return coordinate.parts[register]
    return Pack(s32, (Slice(coordinate, register, 1),))


@frozen
class Position:
    """A position along one dimension: the sum of a uniform, a varying and a constant part."""

    uniform: Expr
    varying: Expr
    const: int

    @cached_property
    def value(self) -> Expr:
        """Return the position as one expression."""
        variable = add_exprs(self.uniform, self.varying)
        return variable + self.const if self.const else variable


def scale(e: Expr, factor: Extent) -> Expr:
    """Return a product, without a factor 1 or 0."""
    return e if e is ZERO or (isinstance(factor, int) and factor == 1) else e * factor


def coordinate(const_part: int, terms: Iterable[tuple[str, int]], positions: Mapping[str, Position]) -> Expr:
    """Return the sum of a constant and of positions times their factors; dims without a position count as 0."""
    total: Expr = const(const_part)
    for name, factor in terms:
        if name in positions:
            total = add_exprs(total, scale(positions[name].value, factor))
    return total


def divide(e: Expr, by: int) -> Expr:
    """Return a quotient, without a divisor 1."""
    return e if by == 1 else e // by
