"""State that a round of the simplifier passes to the next, to skip expressions that cannot change any more.

The result for an expression depends on the facts about its variables and on the use counts of its operands. If both are
as in the round before, an expression that stayed unchanged stays unchanged again.
"""

from __future__ import annotations

from convgen.ir.expr import Add, Expr, Sub, Var
from convgen.ir.node import Node

SUMS = (Add, Sub)

#: The bit for: use counts changed since the last round. Each further bit stands for a variable.
USES = 1


#: Expressions that no equality of their root node changes; the value is USES if that depends on use counts.
Left = dict[Expr, int]


class Place:
    """Results in one scope: expressions that stayed unchanged, and the facts about variables bound there."""

    def __init__(self) -> None:
        self.kept: set[Expr] = set()
        self.left: Left = {}
        self.facts: dict[Var, tuple[object, ...]] = {}
        self._inner: dict[object, Place] = {}

    def inner(self, what: object) -> Place:
        """Return the nested scope for `what`: a loop's variable, or an assumed condition."""
        return self._inner.setdefault(what, Place())


class Rounds:
    """The rounds over one tree, with the results in all scopes."""

    def __init__(self) -> None:
        self.outside = Place()
        #: nodes that refer to an expression at the beginning of the round, 2 for two or more
        self.uses: dict[Expr, int] = {}
        self.addends: frozenset[Expr] = frozenset()  #: sums whose only use is as an addend of another sum
        #: for each sum the nodes of its regrouped form, whose use counts decided between the two
        self.compared: dict[Expr, set[Expr]] = {}
        self._used_otherwise: set[Expr] = set()  #: expressions whose uses differ from the round before
        self._bits: dict[Var, int] = {}
        self._rests_on: dict[Expr, int] = {}

    def begin(self, root: Node) -> None:
        """Begin a round over `root`, the result of the round before."""
        uses, addends = self.uses, self.addends
        self.uses, self.addends = _uses(root)
        self._used_otherwise = {e for e, _ in uses.items() ^ self.uses.items()} | (addends ^ self.addends)
        self._rests_on = {}

    def bit(self, v: Var) -> int:
        """Return the bit of a variable, equal in all rounds."""
        found = self._bits.get(v)
        if found is None:
            found = self._bits[v] = 2 * USES << len(self._bits)
        return found

    def rests_on(self, e: Expr) -> int:
        """Return the bits of the variables in `e`, with `USES` if use counts in it changed."""
        found = self._rests_on.get(e)
        if found is None:
            found = self._rests_on[e] = self.bit(e) if isinstance(e, Var) else self._of_operands(e)
        return found

    def _of_operands(self, e: Expr) -> int:
        if not e.child_fields:
            return 0
        otherwise = self._used_otherwise
        used_alike = e not in otherwise and (e not in self.compared or otherwise.isdisjoint(self.compared[e]))
        found = 0 if used_alike else USES
        for c in e.children():
            found |= self.rests_on(c)
        return found


def _uses(root: Node) -> tuple[dict[Expr, int], frozenset[Expr]]:
    """Count the nodes that refer to each expression (2 for two or more); also return sums that are only an addend."""
    uses: dict[Expr, int] = {root: 0}  # type: ignore[dict-item]
    addends: list[Expr] = []
    inner = [root]
    for node in inner:  # the list grows during the loop
        children: tuple[Expr, ...] = node.children()  # type: ignore[assignment]
        for c in children:
            count = uses.get(c)
            if count is None:
                uses[c] = 1
                if c.child_fields:
                    inner.append(c)
            elif count == 1:
                uses[c] = 2
        if type(node) in SUMS:
            addends += [c for c in children if type(c) in SUMS]
    return uses, frozenset(e for e in addends if uses[e] == 1)
