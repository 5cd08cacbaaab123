"""State that a round of the simplifier passes to the next, to skip expressions that cannot change any more.

The result for an expression depends on the facts about its variables and on the use counts of its operands. If both are
as in the round before, an expression that stayed unchanged stays unchanged again.
"""

from __future__ import annotations

from convgen.ir.expr import Add, Expr, Sub, Var
from convgen.ir.node import Node

SUMS = (Add, Sub)

#: Bit of a set of dependencies: use counts that changed since the last round. Each further bit is a variable's.
USES = 1


#: Expressions whose root node no equality changed in the last round; the value is USES if use counts were consulted.
RootUnchanged = dict[Expr, int]


class ScopeResults:
    """The last round's results in one scope."""

    def __init__(self) -> None:
        self.unchanged: set[Expr] = set()  #: expressions that the last round left unchanged, operands included
        self.root_unchanged: RootUnchanged = {}
        self.facts: dict[Var, tuple[object, ...]] = {}  #: facts about the variables that the scope binds
        self._inner: dict[object, ScopeResults] = {}

    def inner(self, what: object) -> ScopeResults:
        """Return the results in a nested scope; `what` is a loop's variable, or an assumed condition and its truth."""
        return self._inner.setdefault(what, ScopeResults())


class Rounds:
    """The rounds over one tree, with the last round's results in all scopes."""

    def __init__(self) -> None:
        self.outside = ScopeResults()
        #: use counts at the beginning of the round: nodes that refer to an expression, 2 for two or more
        self.uses: dict[Expr, int] = {}
        self.addends: frozenset[Expr] = frozenset()  #: sums whose only use is as an addend of another sum
        #: for each sum, the nodes of its regrouped form: the choice between the two consulted their use counts
        self.compared: dict[Expr, set[Expr]] = {}
        self._changed_uses: set[Expr] = set()  #: expressions whose use counts differ from the round before
        self._bits: dict[Var, int] = {}
        self._dependencies: dict[Expr, int] = {}

    def begin(self, root: Node) -> None:
        """Begin a round over `root`, the result of the round before."""
        before, addends = self.uses, self.addends
        self.uses, self.addends = _uses(root)
        self._dependencies = {}
        if not before:  # the first round
            self._changed_uses = set(self.uses)
            return
        known = before.get
        changed = {e for e, count in self.uses.items() if known(e) != count}
        self._changed_uses = changed | (before.keys() - self.uses.keys()) | (addends ^ self.addends)

    def bit(self, v: Var) -> int:
        """Return the bit of a variable, equal in all rounds."""
        bit = self._bits.get(v)
        if bit is None:
            bit = self._bits[v] = 2 * USES << len(self._bits)
        return bit

    def dependencies(self, e: Expr) -> int:
        """Return the bits of what the result for `e` depends on: its variables, and `USES` if use counts changed."""
        bits = self._dependencies.get(e)
        return self._found(e) if bits is None else bits

    def _found(self, e: Expr) -> int:
        """Return the dependencies of an expression that this round has not met yet."""
        bits = 0
        if isinstance(e, Var):
            bits = self.bit(e)
        elif e.child_fields:
            changed, known = self._changed_uses, self._dependencies.get
            if e in changed or (e in self.compared and not changed.isdisjoint(self.compared[e])):
                bits = USES
            for c in e.children():
                of_operand = known(c)
                bits |= self._found(c) if of_operand is None else of_operand
        self._dependencies[e] = bits
        return bits


def _uses(root: Node) -> tuple[dict[Expr, int], frozenset[Expr]]:
    """Count the nodes that refer to each expression (2 for two or more); also return sums that are only an addend."""
    uses: dict[Expr, int] = {root: 0}  # type: ignore[dict-item]
    addends: list[Expr] = []
    inner = [root]
    for node in inner:  # the list grows during the loop
        children: tuple[Expr, ...] = node.children()  # type: ignore[assignment]
        for c in children:
            if c in uses:
                uses[c] = 2
            else:
                uses[c] = 1
                if c.child_fields:
                    inner.append(c)
        if type(node) in SUMS:
            addends += [c for c in children if type(c) in SUMS]
    return uses, frozenset(e for e in addends if uses[e] == 1)
