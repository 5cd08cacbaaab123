"""Unroll short loops: constant trips, few of them, and neither an early exit nor matrix work in the body.

Copies of matrix work are the business of `buffer_shared`, which knows what may overlap.
"""

from __future__ import annotations

from convgen.ir.expr import Const, Expr, Mma, Var, const
from convgen.ir.mutate import postorder, substitute
from convgen.ir.program import Kernel
from convgen.ir.stmt import Block, ExitIf, For, If, Let, Stmt, block
from convgen.passes.clone import Cloner

_MOST_TRIPS = 4
_MOST_STATEMENTS = 64  #: of the unrolled loop


def unroll(kernel: Kernel) -> Kernel:
    """Loops of up to four trips as straight-line code; either level."""
    body = _unrolled(kernel.body, Cloner(kernel))
    return kernel if body is kernel.body else kernel.replace(body=body)


def _unrolled(s: Stmt, cloner: Cloner) -> Stmt:
    match s:
        case Block(stmts):
            new = [_unrolled(x, cloner) for x in stmts]
            return s if all(a is b for a, b in zip(new, stmts)) else block(*new)
        case If(cond, then, other):
            return If(cond, _unrolled(then, cloner), _unrolled(other, cloner))
        case For():
            inner = _unrolled(s.body, cloner)
            loop = For(s.var, s.begin, s.end, s.carried, s.inits, inner, s.yields, s.results, s.label)
            return _copies(loop, cloner) if _is_short(loop) else loop
    return s


def _is_short(loop: For) -> bool:
    if not isinstance(loop.begin, Const) or not isinstance(loop.end, Const):
        return False
    inside = postorder(loop.body)
    trips = loop.end.bits - loop.begin.bits
    size = sum(isinstance(n, Stmt) and not isinstance(n, Block) for n in inside)
    plain = not any(isinstance(n, (ExitIf, Mma)) for n in inside)
    return plain and 0 < trips <= _MOST_TRIPS and trips * size <= _MOST_STATEMENTS


def _copies(loop: For, cloner: Cloner) -> Stmt:
    assert isinstance(loop.begin, Const)
    assert isinstance(loop.end, Const)
    body = loop.body.stmts if isinstance(loop.body, Block) else (loop.body,)
    state: tuple[Expr, ...] = loop.inits
    out: list[Stmt] = []
    for trip in range(loop.begin.bits, loop.end.bits):
        # Values are bound before the copy, for a yield may be an expression of the carried variables.
        names: dict[Var, Expr] = {loop.var: const(trip), **dict(zip(loop.carried, state))}
        stmts, names = cloner.copy(body, names)
        out += stmts
        state = tuple(substitute(y, names) for y in loop.yields)
    return block(*out, *(Let(r, value) for r, value in zip(loop.results, state)))
