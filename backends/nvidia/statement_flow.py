"""Forward data flow over the statements of a message-level kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import reduce
from typing import Generic, TypeVar

from convgen.ir.stmt import Block, ExitIf, For, If, Stmt

Facts = TypeVar("Facts")


class Flow(ABC, Generic[Facts]):
    """Carries facts from statement to statement, over branches and loops."""

    def __init__(self) -> None:
        self._exits: tuple[list[Facts], ...] = ()  #: facts where loops are left early, outermost loop first

    @abstractmethod
    def merged(self, a: Facts, b: Facts) -> Facts:
        """Return the facts where two paths meet."""

    @abstractmethod
    def step(self, s: Stmt, facts: Facts) -> Facts:
        """Return the facts behind a statement that contains no others, given those before it."""

    def walk(self, s: Stmt, facts: Facts) -> Facts:
        """Return the facts behind a statement, given those before it."""
        match s:
            case Block(stmts):
                return reduce(lambda before, inner: self.walk(inner, before), stmts, facts)
            case If(_, then, other):
                return self.merged(self.walk(then, facts), self.walk(other, facts))
            case For():
                return self._loop(s, facts)
            case ExitIf():
                self._exits[-1].append(facts)
                return facts
        return self.step(s, facts)

    def _loop(self, s: For, facts: Facts) -> Facts:
        """Walk a loop until the facts at its head stay; it may run no iteration."""
        self._exits = (*self._exits, [])
        head, end = facts, self.walk(s.body, facts)
        while (again := self.merged(head, end)) != head:
            head, end = again, self.walk(s.body, again)
        *outer, left = self._exits
        self._exits = tuple(outer)
        return reduce(self.merged, (end, *left), head)
