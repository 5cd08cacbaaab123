"""Suites of statements under construction: variables, lets, loops, branches and barriers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from convgen.ir import expr as x
from convgen.ir import stmt as s
from convgen.ir.error import UserError
from convgen.ir.expr import Expr, Var
from convgen.ir.stmt import Site, Stmt
from convgen.ir.types import AnyType, s32

Index = Expr | int


class Loop:
    """A loop under construction: its variable, its carried values by name and, after the suite, their results."""

    def __init__(self, var: Var, carried: dict[str, Var], results: dict[str, Var]) -> None:
        self.var, self._carried, self._results = var, carried, results
        self.values: tuple[Expr, ...] | None = None if carried else ()

    def __getitem__(self, name: str) -> Var:
        return self._carried[name]

    def result(self, name: str) -> Var:
        return self._results[name]

    def yields(self, *values: Expr) -> None:
        """Set the carried values of the next iteration, in order of the loop's keywords."""
        if len(values) != len(self._carried):
            raise UserError(f"loop {self.var.name}: {len(values)} values yielded, {len(self._carried)} carried")
        self.values = values


def lifted(i: Index) -> Expr:
    """Return an expression; a Python integer becomes an s32 constant."""
    return i if isinstance(i, Expr) else x.const(i)


class Suites:
    """Collect statements, nested by `with`; methods that bind a value return its variable."""

    def __init__(self) -> None:
        self._ids = 0  # per builder, so that a kernel's ids do not depend on kernels built before
        self._surfaces: dict[Expr, x.Surface] = {}  # by the variable of the let that binds it
        self._suites: list[list[Stmt]] = [[]]
        self._numbers = itertools.count(1)

    def var(self, name: str, type: AnyType = s32) -> Var:
        """Return a fresh variable of this kernel, for a statement passed to `add`."""
        self._ids += 1
        return Var(name, self._ids, type)

    def add(self, stmt: Stmt) -> None:
        """Append a statement that was built elsewhere."""
        self._suites[-1].append(stmt)

    def site(self, stage: str = "", comment: str = "") -> Site:
        """Return the next site of this kernel."""
        return Site(next(self._numbers), stage, comment)

    def let(self, name: str, value: Index) -> Var:
        """Bind a value; a Python integer becomes an s32 constant."""
        bound = lifted(value)
        v = self.var(name, bound.type)
        self.add(s.Let(v, bound))
        if isinstance(bound, x.Surface):
            self._surfaces[v] = bound
        return v

    @contextmanager
    def loop(self, name: str, begin: Index, end: Index, **carried: Expr) -> Iterator[Loop]:
        """Build `for name in [begin, end)`; keywords name the carried values and give their initial values.

        The suite must call `yields` if the loop carries values.
        """
        index = self.var(name)
        loop = Loop(index, *({n: self.var(n, e.type) for n, e in carried.items()} for _ in range(2)))
        with self.suite() as body:
            yield loop
        if loop.values is None:
            raise UserError(f"loop {name} carries {', '.join(carried)} and yields nothing")
        names, results = (tuple(vs.values()) for vs in (loop._carried, loop._results))
        bounds = x.lift(begin, index), x.lift(end, index)
        self.add(
            s.For(index, *bounds, names, tuple(carried.values()), s.block(*body), loop.values, results, name, False)
        )

    @contextmanager
    def when(self, cond: Expr) -> Iterator[None]:
        """Run the suite where the uniform `cond` holds."""
        with self.suite() as body:
            yield
        self.add(s.If(cond, s.block(*body), s.empty))

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """Run the suite where the condition of the directly preceding `when` does not hold."""
        before = self._suites[-1].pop() if self._suites[-1] else None
        if not isinstance(before, s.If) or before.other is not s.empty:
            raise UserError("given an otherwise, wanted it directly behind a when")
        with self.suite() as body:
            yield
        self.add(s.If(before.cond, before.then, s.block(*body)))

    @contextmanager
    def suite(self) -> Iterator[list[Stmt]]:
        """Collect the suite's statements in the yielded list, for a statement passed to `add`."""
        self._suites.append([])
        yield self._suites[-1]
        self._suites.pop()

    @property
    def current_suite(self) -> list[Stmt]:
        """Return the list that takes the next statement."""
        return self._suites[-1]

    def is_within(self, suite: list[Stmt]) -> bool:
        """Return whether the next statement stands in a suite or in one nested in it, so that it sees its values."""
        return any(each is suite for each in self._suites)

    def exit_if(self, cond: Expr, *values: Expr) -> None:
        """Leave the innermost loop where the uniform `cond` holds, with `values` as its results, in order."""
        self.add(s.ExitIf(cond, values))

    def barrier(self, stage: str = "") -> None:
        """Wait for all subgroups of the workgroup; afterwards each sees what the others wrote to shared memory."""
        self.add(s.Barrier(self.site(stage)))
