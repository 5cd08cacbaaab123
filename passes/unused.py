"""Dead code: lets whose variables nothing uses."""

from __future__ import annotations

from convgen.ir.expr import Expr
from convgen.ir.mutate import rewrite, statements
from convgen.ir.node import Node
from convgen.ir.stmt import Block, Let, Stmt, block


def drop_unused(body: Stmt) -> Stmt:
    """Return the body without lets that only other dead lets use."""
    inside, needed = statements(body), set[Node]()
    for s in reversed(inside):  # uses come behind their let, or in a loop's yields
        if not isinstance(s, Let) or s.var in needed:
            for e in (*s.operands, *s.yields):
                _need(e, needed)
    dropped = {s for s in inside if isinstance(s, Let) and s.var not in needed}

    def keep(b: Block) -> Stmt:
        return block(*(s for s in b.stmts if s not in dropped))

    return rewrite(body, {Block: keep})


def _need(e: Expr, needed: set[Node]) -> None:
    """Mark an expression and its subexpressions as needed."""
    if e not in needed:
        needed.add(e)
        for c in e.children():
            _need(c, needed)
