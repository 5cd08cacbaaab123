"""Unroll short loops: few constant trips, without early exit or matrix instructions in the body.

`buffer_shared` unrolls loops of matrix instructions, because it knows what may overlap. Loops of bulk copies stay,
because `split_roles` needs them.
"""

from __future__ import annotations

from convgen.ir.expr import Const, Expr, Mma, Var, const
from convgen.ir.mutate import postorder, rewrite, statements, substitute
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import Block, ExitIf, For, Let, Stmt, TensorCopy, block, stmts_of
from convgen.passes.clone import Cloner

_MOST_TRIPS = 4  #: iterations; chosen
_MOST_STATEMENTS = 64  #: statements of the unrolled loop; chosen


def unroll(kernel: Kernel) -> Kernel:
    """Unroll loops of up to four constant trips; either level."""
    cloner = Cloner(kernel)
    body = rewrite(kernel.body, {For: lambda loop: _copies(loop, cloner) if _is_short(loop) else loop})
    return evolve(kernel, body=body)


def _is_short(loop: For) -> bool:
    if not isinstance(loop.begin, Const) or not isinstance(loop.end, Const):
        return False
    trips = loop.end.bits - loop.begin.bits
    if not 0 < trips <= _MOST_TRIPS:
        return False
    size = sum(not isinstance(s, Block) for s in statements(loop.body))
    plain = not any(isinstance(n, (ExitIf, Mma, TensorCopy)) for n in postorder(loop.body))
    return plain and trips * size <= _MOST_STATEMENTS


def _copies(loop: For, cloner: Cloner) -> Stmt:
    assert isinstance(loop.begin, Const)
    assert isinstance(loop.end, Const)
    body = stmts_of(loop.body)
    state: tuple[Expr, ...] = loop.inits
    out: list[Stmt] = []
    for trip in range(loop.begin.bits, loop.end.bits):
        # Substitute carried values before copying, as a yield may be an expression of them.
        names: dict[Var, Expr] = {loop.var: const(trip, loop.begin.dtype), **dict(zip(loop.carried, state))}
        stmts, names = cloner.copy(body, names)
        out += stmts
        state = tuple(substitute(y, names) for y in loop.yields)
    return block(*out, *(Let(r, value) for r, value in zip(loop.results, state)))
