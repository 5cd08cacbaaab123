"""What one round of the simplifier leaves to the next: so that this one passes over what cannot become anything else.

What becomes of an expression at a place rests on what is known there of its variables, and on who else uses its
operands. Where neither is another than in the round before, what stayed as it was stays so again.
"""

from __future__ import annotations

from convgen.ir.expr import Add, Expr, Sub, Var
from convgen.ir.node import Node

SUMS = (Add, Sub)

#: The bit that says that others use an expression, or its operands, than did before; each further bit is a variable.
USES = 1


#: What equalities of one node leave alone, with `USES` if that is so for who uses what.
Left = dict[Expr, int]


class Place:
    """What was found in a scope: expressions that stayed as they were, and what was known of variables bound there."""

    def __init__(self) -> None:
        self.kept: set[Expr] = set()
        self.left: Left = {}
        self.facts: dict[Var, tuple[object, ...]] = {}
        self._inner: dict[object, Place] = {}

    def inner(self, what: object) -> Place:
        """The scope within this one that `what` tells apart: a loop's variable, or what is assumed."""
        return self._inner.setdefault(what, Place())


class Rounds:
    """The rounds over one tree, with what was found in all places."""

    def __init__(self) -> None:
        self.outside = Place()
        self.uses: dict[Expr, int] = {}  #: how many nodes refer to an expression as this round begins, 2 for several
        self.addends: frozenset[Expr] = frozenset()  #: the sums that are only an addend of another sum
        self.compared: dict[Expr, set[Expr]] = {}  #: what a sum was compared with, to choose by who uses that
        self._used_otherwise: set[Expr] = set()  #: than in the round before
        self._bits: dict[Var, int] = {}
        self._rests_on: dict[Expr, int] = {}

    def begin(self, root: Node) -> None:
        """The next round, of what the last one has made."""
        uses, addends = self.uses, self.addends
        self.uses, self.addends = _uses(root)
        self._used_otherwise = {e for e, _ in uses.items() ^ self.uses.items()} | (addends ^ self.addends)
        self._rests_on = {}

    def bit(self, v: Var) -> int:
        """The bit of a variable, in all rounds."""
        found = self._bits.get(v)
        if found is None:
            found = self._bits[v] = 2 * USES << len(self._bits)
        return found

    def rests_on(self, e: Expr) -> int:
        """The bits of what `e` is made of; `USES` is among them if others use some of it than before."""
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
    """How many nodes refer to an expression, 2 for several, and the sums that are only an addend of another sum."""
    uses: dict[Expr, int] = {root: 0}  # type: ignore[dict-item]
    addends: list[Expr] = []
    inner = [root]
    for node in inner:  # which grows
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
