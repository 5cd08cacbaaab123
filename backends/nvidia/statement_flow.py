"""Forward data flow over the statements of a message-level kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import reduce
from typing import Generic, TypeVar

from convgen.ir.stmt import Block, ExitIf, For, If, Let, Stmt

State = TypeVar("State")


class Flow(ABC, Generic[State]):
    """Carries a state from statement to statement, over branches and loops."""

    def __init__(self) -> None:
        self._exits: list[list[State]] = []  #: states where loops are left early, outermost loop first

    @abstractmethod
    def merged(self, a: State, b: State) -> State:
        """Return the state where two paths meet."""

    @abstractmethod
    def step(self, s: Stmt, state: State, /) -> State:
        """Return the state behind a message or a barrier, given that before it."""

    def let(self, s: Let, state: State, /) -> State:
        """Return the state behind the binding of a value, given that before it."""
        del s
        return state

    def walk(self, s: Stmt, state: State) -> State:
        """Return the state behind a statement, given that before it."""
        match s:
            case Let():
                return self.let(s, state)
            case Block(stmts):
                for inner in stmts:
                    state = self.walk(inner, state)
                return state
            case If(_, then, other):
                return self.merged(self.walk(then, state), self.walk(other, state))
            case For():
                return self._loop(s, state)
            case ExitIf():
                self._exits[-1].append(state)
                return state
            case _:
                return self.step(s, state)

    def _loop(self, s: For, head: State) -> State:
        """Return the state behind a loop of any trip count: walk the body until the state at its head is stable."""
        self._exits.append([])
        end = self.walk(s.body, head)
        while (again := self.merged(head, end)) != head:
            head, end = again, self.walk(s.body, again)
        return reduce(self.merged, self._exits.pop(), self.merged(head, end))
