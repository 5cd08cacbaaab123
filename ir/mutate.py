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
        self._table: dict[type[Node], Handler] = {}
        self._go, self.mutate, self._memo = self._closures()

    def __call__(self, root: N) -> N:
        self._table.update(self.handlers())
        try:
            with self.scope():
                return self.mutate(root)  # type: ignore[no-any-return]
        finally:
            self._table.clear()  # methods refer to what they are of: all that is known would wait for the collector

    def handlers(self) -> dict[type[Node], Handler]:
        """What handles the nodes of each class."""
        return {cls: getattr(self, name) for name, cls in CLASSES.items() if hasattr(self, name)}

    def descend(self, node: N) -> N:
        """`node` with its children mutated."""
        go, get = self._go
        return node.map(go, get)

    def Block(self, b: st.Block) -> Stmt:
        new = self.descend(b)
        return b if new is b else st.block(*new.stmts)

    def _closures(self) -> tuple[Any, Callable[[Any], Any], dict[Node, Node]]:
        memo: dict[Node, Node] = {}
        get, table = memo.get, self._table

        def go(node: Node) -> Node:
            handler = table.get(type(node))
            out = memo[node] = handler(node) if handler else node.map(go, get)
            return out

        def mutate(node: Node) -> Node:
            out = get(node)
            return go(node) if out is None else out

        return (go, get), mutate, memo

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A fresh memo for the nodes visited inside."""
        saved = self._go, self.mutate, self._memo
        self._go, self.mutate, self._memo = self._closures()
        try:
            yield
        finally:
            self._memo.clear()  # closures refer to themselves: what they know would wait for the cyclic collector
            self._go, self.mutate, self._memo = saved


class _Rewriting:
    """A walk that remembers what became of each node.

    The walks of this kind are methods: a function within a function that calls itself refers to itself, and all that it
    knows would wait for the cyclic collector.
    """

    def __init__(self, known: Mapping[Any, Any]) -> None:
        """`known` is what the walk goes by: handlers by class, or values by node."""
        self.known = known.get
        self.memo: dict[Node, Node] = {}
        self.get = self.memo.get

    def mutated(self, node: Node) -> Node:
        """The node with its children mutated, then handled by what handles its class."""
        out = node.map(self.mutated, self.get)
        handler = self.known(type(out))
        if handler is not None:
            out = handler(out)
        self.memo[node] = out
        return out

    def substituted(self, node: Node) -> Node:
        """The node's value, or else the node with its children substituted."""
        out: Node | None = self.known(node)
        if out is None:
            out = node.map(self.substituted, self.get)
        self.memo[node] = out
        return out

    def rewritten(self, node: Node) -> Node:
        """As `mutated`, but of statements only, and nothing is remembered."""
        new = node.map_bodies(self.rewritten)
        if handler := self.known(type(node)):
            new = handler(new)
        return st.block(*new.stmts) if isinstance(new, st.Block) and new is not node else new


def mutate(root: N, handlers: Mapping[type[Node], Callable[[Any], Node]]) -> N:
    """Rewrite bottom-up: each node whose class has a handler is replaced by `handler(node with mutated children)`."""
    return _Rewriting(handlers).mutated(root)  # type: ignore[return-value]


def substitute(root: N, values: Mapping[Any, Node]) -> N:
    """`root` with variables, or whole expressions, replaced, outermost first.

    Binders are not renamed, so the values must not be captured.
    """
    return _Rewriting(values).substituted(root)  # type: ignore[return-value]


def rewrite(root: Stmt, handlers: Mapping[type[Stmt], Callable[[Any], Stmt]]) -> Stmt:
    """As `mutate`, of statements only: expressions stay. Blocks within blocks become one."""
    return _Rewriting(handlers).rewritten(root)  # type: ignore[return-value]


def statements(root: Stmt) -> list[Stmt]:
    """Every statement under `root` at each of its places, in order; what is in a block or loop before it."""
    out: list[Stmt] = []
    _gather(root, out)
    return out


def _gather(s: Stmt, out: list[Stmt]) -> None:
    for inner in s.bodies:
        if inner.bodies:
            _gather(inner, out)
        else:
            out.append(inner)
    out.append(s)


def postorder(*roots: Node) -> list[Node]:
    """Every unique node under the roots once, children before parents."""
    seen: set[Node] = set()
    out: list[Node] = []
    for root in roots:
        if root not in seen:
            seen.add(root)
            _visit(root, seen, out)
    return out


def _visit(node: Node, seen: set[Node], out: list[Node]) -> None:
    for child in node.children():
        if child not in seen:
            seen.add(child)
            if child.child_fields:
                _visit(child, seen, out)
            else:
                out.append(child)
    out.append(node)


def greatest_id(*roots: Node) -> int:
    """The greatest number of a variable under the roots; 0 if there is none."""
    return max((n.id for n in postorder(*roots) if isinstance(n, Var)), default=0)


def free_vars(root: Expr) -> tuple[Var, ...]:
    """The variables of an expression in order of first appearance."""
    return tuple(n for n in postorder(root) if isinstance(n, Var))
