"""Forward data flow over the statements of a message-level kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, reduce
from typing import Generic, TypeVar

from convgen.ir.program import Kernel
from convgen.ir.stmt import Barrier, Block, ExitIf, For, If, Let, Stmt
from convgen.passes.reach import Access, Accesses, Reach

State = TypeVar("State")
#: Accesses of pending operations -> groups that have ended since theirs; -1 until theirs has.
Ages = Mapping[Access, int]


class _OfWorkgroup(dict[Stmt, frozenset[Access]]):
    """The accesses of statements to tiles that several subgroups access."""

    def __init__(self, every: Accesses) -> None:
        super().__init__()
        self.every = every

    def __missing__(self, s: Stmt) -> frozenset[Access]:
        self[s] = frozenset() if s.site is None or s.site.private else self.every[s]
        return self[s]


class KernelAccesses:
    """A kernel's accesses to shared memory, found once for all flows."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.every = Accesses((), of_subgroup=True)  # `()`: leave out no tile
        self.of_workgroup: Mapping[Stmt, frozenset[Access]] = _OfWorkgroup(self.every)

    @cached_property
    def ahead(self) -> Mapping[Barrier, frozenset[Access]]:
        """Return, for each barrier, the workgroup's accesses that may follow it before the next one."""
        against_execution = Reach(False, self.of_workgroup)
        against_execution.walk(self.kernel.body, frozenset())
        return against_execution.at


class Flow(ABC, Generic[State]):
    """Carries a state from statement to statement, over branches and loops."""

    def __init__(self) -> None:
        self._exits: list[list[State]] = []  #: states where loops are left early, outermost loop first

    @abstractmethod
    def merged(self, a: State, b: State) -> State:
        """Return the state where two paths meet."""

    @abstractmethod
    def renamed(self, state: State, rename: Callable[[Access], Access]) -> State:
        """Return a state whose accesses have other names."""

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
        while (again := self.merged(head, self._next_iteration(s, end))) != head:
            head, end = again, self.walk(s.body, again)
        behind = reduce(self.merged, self._exits.pop(), self.merged(head, end))
        return self.renamed(behind, Access.anywhere) if s.circular else behind

    def _next_iteration(self, s: For, end: State) -> State:
        """Return the state at the end of an iteration as the next one names it."""
        return self.renamed(end, lambda access: access.shifted(-1)) if s.circular else end


class GroupFlow(Flow[Ages]):
    """Ages of asynchronous operations, which end in groups; `at_barriers` collects the groups that may be pending.

    `ahead` has the accesses between a barrier and the next one. Barriers without a wait are absent from `at_barriers`.
    """

    def __init__(self, ahead: Mapping[Barrier, frozenset[Access]]) -> None:
        super().__init__()
        self.ahead = ahead
        self.at_barriers: dict[Barrier, int] = {}

    def merged(self, a: Ages, b: Ages) -> Ages:
        """Return the operations pending on either path; the younger age demands the stricter wait."""
        return {access: min(a.get(access, age), age) for access, age in {**a, **b}.items()}

    def renamed(self, state: Ages, rename: Callable[[Access], Access]) -> Ages:
        ages: dict[Access, int] = {}
        for access, age in state.items():
            name = rename(access)
            ages[name] = min(age, ages.get(name, age))
        return ages

    def at_barrier(self, s: Barrier, ages: Ages) -> Ages:
        """Return the ages behind a barrier, which waits for what conflicts with the accesses ahead of the next one."""
        awaited = [age for access, age in ages.items() if touches(access, self.ahead[s])]
        if not awaited:
            return ages
        pending = min(*awaited, self.at_barriers.get(s, awaited[0]))
        self.at_barriers[s] = pending
        return {access: age for access, age in ages.items() if age < pending}


def behind_a_group(ages: Ages) -> Ages:
    """Return the ages behind the end of a group."""
    return {access: age + 1 for access, age in ages.items()}


def touches(pending: Access, others: Iterable[Access]) -> bool:
    """Return whether an access may touch what a pending operation accesses."""
    return any(pending.conflicts(other) for other in others)
