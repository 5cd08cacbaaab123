"""Walking and rewriting: a mutator dispatched by a type table, its one-shot forms, and post-order.

Rules are for local equalities, mutators for whatever has scope or state. `rewrite` and `statements` look at statements
only, each at its place; the others at every node once, expressions included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from convgen.ir import stmt as st
from convgen.ir.expr import Expr, Var
from convgen.ir.node import CLASSES, Node
from convgen.ir.stmt import Stmt

N = TypeVar("N", bound=Node)
Handler = Callable[[Any], Node]


class Mutator:
    """Rewrite a DAG bottom-up. A subclass handles node class `Add` by a method `Add(self, node)`.

    A handler calls `self.mutate(child)` for the children it wants rewritten, or `self.descend(node)` for the default.
    Each unique node is visited once per scope; `with self.scope()` starts a fresh memo, for mutators whose result
    depends on where a node stands (constraints, definitions). Blocks within blocks become one.
    """

    mutate: Callable[[Any], Any]

    def __init__(self) -> None:
        self._table: dict[type[Node], Handler] = {
            cls: getattr(self, name) for name, cls in CLASSES.items() if hasattr(self, name)
        }
        self._go, self.mutate = self._closures()

    def __call__(self, root: N) -> N:
        with self.scope():
            return self.mutate(root)  # type: ignore[no-any-return]

    def descend(self, node: N) -> N:
        """`node` with its children mutated."""
        go, get = self._go
        return node.map(go, get)

    def Block(self, b: st.Block) -> Stmt:
        new = self.descend(b)
        return b if new is b else st.block(*new.stmts)

    def _closures(self) -> tuple[Any, Callable[[Any], Any]]:
        memo: dict[Node, Node] = {}
        get, table = memo.get, self._table

        def go(node: Node) -> Node:
            handler = table.get(type(node))
            out = memo[node] = handler(node) if handler else node.map(go, get)
            return out

        def mutate(node: Node) -> Node:
            out = get(node)
            return go(node) if out is None else out

        return (go, get), mutate

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A fresh memo for the nodes visited inside."""
        saved = self._go, self.mutate
        self._go, self.mutate = self._closures()
        try:
            yield
        finally:
            self._go, self.mutate = saved


def mutate(root: N, handlers: Mapping[type[Node], Callable[[Any], Node]]) -> N:
    """Rewrite bottom-up: each node whose class has a handler is replaced by `handler(node with mutated children)`."""
    memo: dict[Node, Node] = {}
    get = memo.get

    def go(node: Node) -> Node:
        out = node.map(go, get)
        handler = handlers.get(type(out))
        if handler is not None:
            out = handler(out)
        memo[node] = out
        return out

    return go(root)  # type: ignore[return-value]


def substitute(root: N, values: Mapping[Any, Node]) -> N:
    """`root` with variables, or whole expressions, replaced, outermost first.

    Binders are not renamed, so the values must not be captured.
    """
    memo: dict[Node, Node] = {}
    get, value = memo.get, values.get

    def go(node: Node) -> Node:
        out = value(node)
        if out is None:
            out = node.map(go, get)
        memo[node] = out
        return out

    return go(root)  # type: ignore[return-value]


def rewrite(root: Stmt, handlers: Mapping[type[Stmt], Callable[[Any], Stmt]]) -> Stmt:
    """As `mutate`, of statements only: expressions stay. Blocks within blocks become one."""

    def go(node: Node) -> Node:
        if not isinstance(node, Stmt):
            return node
        new = node.map(go, _unknown)
        if handler := handlers.get(type(node)):
            new = handler(new)
        return st.block(*new.stmts) if isinstance(new, st.Block) and new is not node else new

    return go(root)  # type: ignore[return-value]


def _unknown(node: Node) -> None:
    """That nothing is known of a node yet."""


def statements(root: Stmt) -> list[Stmt]:
    """Every statement under `root` at each of its places, in order; what is in a block or loop before it."""
    out: list[Stmt] = []

    def visit(s: Stmt) -> None:
        for inner in s.bodies:
            visit(inner)
        out.append(s)

    visit(root)
    return out


def postorder(root: Node) -> list[Node]:
    """Every unique node under `root` once, children before parents."""
    out: list[Node] = []
    seen = {root}
    append, see = out.append, seen.add

    def visit(node: Node) -> None:
        for child in node.children():
            if child not in seen:
                see(child)
                if child.child_fields:
                    visit(child)
                else:
                    append(child)
        append(node)

    visit(root)
    return out


def greatest_id(*roots: Node) -> int:
    """The greatest number of a variable under the roots; 0 if there is none."""
    return max((n.id for root in roots for n in postorder(root) if isinstance(n, Var)), default=0)


def free_vars(root: Expr) -> tuple[Var, ...]:
    """The variables of an expression in order of first appearance."""
    return tuple(n for n in postorder(root) if isinstance(n, Var))
