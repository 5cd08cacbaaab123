"""What nothing needs any more."""

from __future__ import annotations

from convgen.ir.expr import Expr
from convgen.ir.mutate import rewrite, statements
from convgen.ir.node import Node
from convgen.ir.stmt import Block, Let, Stmt, block


def drop_unused(body: Stmt) -> Stmt:
    """The body without lets that nothing needs but others of these."""
    inside, needed = statements(body), set[Node]()
    for s in reversed(inside):  # who uses a variable stands behind its let, or has it from a loop's end
        if not isinstance(s, Let) or s.var in needed:
            for e in (*s.operands, *s.yields):
                _need(e, needed)
    dropped = {s for s in inside if isinstance(s, Let) and s.var not in needed}

    def keep(b: Block) -> Stmt:
        return block(*(s for s in b.stmts if s not in dropped))

    return rewrite(body, {Block: keep})


def _need(e: Expr, needed: set[Node]) -> None:
    """Add an expression, and all that it is made of, to what is needed."""
    if e not in needed:
        needed.add(e)
        for c in e.children():
            _need(c, needed)
