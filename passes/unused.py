"""Dead code: lets and loads whose variables nothing uses."""

from __future__ import annotations

from typing import TypeGuard

from convgen.ir.expr import Expr
from convgen.ir.mutate import rewrite, statements
from convgen.ir.node import Node
from convgen.ir.stmt import Block, Let, Load, Stmt, block


def drop_unused(body: Stmt) -> Stmt:
    """Return the body without lets and loads that only other dead ones use; a load that also writes stays."""
    inside, needed = statements(body), set[Node]()
    for s in reversed(inside):  # uses come behind their let, or in a loop's yields
        if not _only_binds(s) or s.var in needed:
            for e in (*s.operands, *s.yields):
                if e not in needed:
                    _need(e, needed)
    dropped = {s for s in inside if _only_binds(s) and s.var not in needed}

    def keep(b: Block) -> Stmt:
        return block(*(s for s in b.stmts if s not in dropped))

    return rewrite(body, {Block: keep})


def _only_binds(s: Stmt) -> TypeGuard[Let | Load]:
    return isinstance(s, Let) or (isinstance(s, Load) and not s.updates)


def _need(e: Expr, needed: set[Node]) -> None:
    """Mark an expression that nothing needed before, and its subexpressions, as needed."""
    needed.add(e)
    for c in e.children():
        if c not in needed:
            _need(c, needed)
