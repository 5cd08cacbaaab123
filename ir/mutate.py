"""Traversal and rewriting: a mutator dispatched by node class, its one-shot forms, and post-order.

Use `mutate` for rewrites that need no context, a Mutator where scope or state matters. `rewrite` and `statements` visit
statements only, each at all its places; the others visit every unique node once, expressions included.
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
            # bound methods refer to this object: the cycle would keep all memos until the collector runs
            self._table.clear()

    def handlers(self) -> dict[type[Node], Handler]:
        """Return the handler of each node class that has one."""
        return {cls: getattr(self, name) for name, cls in CLASSES.items() if hasattr(self, name)}

    def descend(self, node: N) -> N:
        """Return `node` with its children mutated."""
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
        """Use a fresh memo for the nodes visited inside."""
        saved = self._go, self.mutate, self._memo
        self._go, self.mutate, self._memo = self._closures()
        try:
            yield
        finally:
            self._memo.clear()  # the closures are cyclic: this keeps their memo from waiting for the cyclic collector
            self._go, self.mutate, self._memo = saved


class _Rewriting:
    """A traversal that memoizes the result for each node.

    The recursive functions are methods: a nested function that calls itself would be a reference cycle, and keep its
    memo until the cyclic collector runs.
    """

    def __init__(self, known: Mapping[Any, Any]) -> None:
        """Set `known`: handlers by class for `mutated` and `rewritten`, replacements by node for `substituted`."""
        self.known = known.get
        self.memo: dict[Node, Node] = {}
        self.get = self.memo.get

    def mutated(self, node: Node) -> Node:
        """Return the node with its children mutated, then passed to its class's handler."""
        out = node.map(self.mutated, self.get)
        handler = self.known(type(out))
        if handler is not None:
            out = handler(out)
        self.memo[node] = out
        return out

    def substituted(self, node: Node) -> Node:
        """Return the node's replacement, or else the node with its children substituted."""
        out: Node | None = self.known(node)
        if out is None:
            out = node.map(self.substituted, self.get)
        self.memo[node] = out
        return out

    def rewritten(self, node: Node) -> Node:
        """Return the statement rewritten bottom-up, expressions untouched; not memoized."""
        new = node.map_bodies(self.rewritten)
        if handler := self.known(type(node)):
            new = handler(new)
        return st.block(*new.stmts) if isinstance(new, st.Block) and new is not node else new


def mutate(root: N, handlers: Mapping[type[Node], Callable[[Any], Node]]) -> N:
    """Rewrite bottom-up: each node whose class has a handler is replaced by `handler(node with mutated children)`."""
    return _Rewriting(handlers).mutated(root)  # type: ignore[return-value]


def substitute(root: N, values: Mapping[Any, Node]) -> N:
    """Return `root` with variables, or whole expressions, replaced, outermost first.

    Binders are not renamed, so the values must not be captured.
    """
    return _Rewriting(values).substituted(root)  # type: ignore[return-value]


def rewrite(root: Stmt, handlers: Mapping[type[Stmt], Callable[[Any], Stmt]]) -> Stmt:
    """Rewrite statements bottom-up by the handler of their class; expressions stay. Nested blocks are flattened."""
    return _Rewriting(handlers).rewritten(root)  # type: ignore[return-value]


def statements(root: Stmt) -> list[Stmt]:
    """Return every statement under `root` at each of its places, in order; nested statements before their parent."""
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
    """Return every unique node under the roots once, children before parents."""
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
    """Return the greatest id of a variable under the roots; 0 if there is none."""
    return max((n.id for n in postorder(*roots) if isinstance(n, Var)), default=0)


def free_vars(root: Expr) -> tuple[Var, ...]:
    """Return the variables of an expression in order of first appearance."""
    return tuple(n for n in postorder(root) if isinstance(n, Var))
