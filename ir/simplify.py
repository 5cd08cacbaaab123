"""The first simplifier: constants, identities, ranges, and division by constants, over expressions and statements.

`simplify` keeps the value of every expression, wraparound included, and returns the same object where nothing changes;
a second application changes nothing more. The equalities are in `ir.algebra`, the ranges in `ir.bounds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from convgen.ir import stmt as s
from convgen.ir.algebra import Algebra, number
from convgen.ir.bounds import WIDTH, Range, Scope, exits_of
from convgen.ir.expr import Const, Expr, Splat, Var
from convgen.ir.mutate import Mutator
from convgen.ir.node import CLASSES, Node
from convgen.ir.program import Kernel
from convgen.ir.stmt import Stmt

N = TypeVar("N", bound=Node)

_ROUNDS = 16  #: each round may open chances for the next, in practice for two or three


def simplify(node: N, env: Mapping[Var, Range] | None = None) -> N:
    """`node` made simpler where `env` gives the ranges of free variables; a kernel binds its own."""
    for _ in range(_ROUNDS):
        before, node = node, _Simplifier(env or {}, node.width if isinstance(node, Kernel) else WIDTH)(node)
        if node is before:
            break
    return node


class _Simplifier(Mutator):
    """One round. Suites have memos of their own, since a variable may be bound in both arms of an If."""

    def __init__(self, env: Mapping[Var, Range], width: int) -> None:
        super().__init__()
        self.facts = Scope(width, env)
        self.values: dict[Var, Expr] = {}  # lets of constants and of other variables, put in where they are used
        for cls in CLASSES.values():
            if issubclass(cls, Expr):
                self._table.setdefault(cls, self.expression)

    def expression(self, e: Expr) -> Expr:
        return Algebra(self.facts.bounds)(self.descend(e))

    def Var(self, v: Var) -> Expr:
        return self.values[v] if v in self.values else Algebra(self.facts.bounds)(v)

    def Kernel(self, k: Kernel) -> Kernel:
        self.facts.kernel(k)
        body = self.mutate(k.body)
        return k if body is k.body else k.replace(body=body)

    def Block(self, b: s.Block) -> Stmt:
        new = [self.mutate(inner) for inner in b.stmts]
        return b if all(n is o for n, o in zip(new, b.stmts)) else s.block(*new)

    def Let(self, n: s.Let) -> Stmt:
        value = self.mutate(n.value)
        self.values.pop(n.var, None)
        self.facts.let(n.var, value)
        if isinstance(value, (Const, Var)) or (isinstance(value, Splat) and isinstance(value.a, Const)):
            self.values[n.var] = value
            return s.empty
        return n if value is n.value else s.Let(n.var, value)

    def If(self, n: s.If) -> Stmt:
        cond = self.mutate(n.cond)
        if (known := number(cond)) is not None:
            return self.mutate(n.then if known else n.other)  # type: ignore[no-any-return]
        then, other = self.suite(n.then), self.suite(n.other)
        if then is other is s.empty:
            return s.empty
        return s.If(cond, then, other)

    def suite(self, body: Stmt) -> Stmt:
        with self.scope():
            return self.mutate(body)  # type: ignore[no-any-return]

    def ExitIf(self, n: s.ExitIf) -> Stmt:
        new = self.descend(n)
        return s.empty if number(new.cond) == 0 else new

    def For(self, n: s.For) -> Stmt:
        begin, end, inits = self.mutate(n.begin), self.mutate(n.end), tuple(map(self.mutate, n.inits))
        least, most = Algebra(self.facts.bounds).difference(end, begin)
        if most <= 0:
            return _lets(n.results, inits)
        if least == most == 1 and not any(exits_of(n.body)):
            once = s.block(s.Let(n.var, begin), _lets(n.carried, inits), n.body, _lets(n.results, n.yields))
            return self.mutate(once)  # type: ignore[no-any-return]
        self.facts.loop(s.For(n.var, begin, end, n.carried, inits, n.body, n.yields, n.results, n.label))
        with self.scope():
            body = self.mutate(n.body)
            yields = tuple(map(self.mutate, n.yields))
        new = s.For(n.var, begin, end, n.carried, inits, body, yields, n.results, n.label)
        self.facts.results(new)
        return new


def _lets(names: tuple[Var, ...], values: tuple[Expr, ...]) -> Stmt:
    return s.Block(tuple(map(s.Let, names, values)))
