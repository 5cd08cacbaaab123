"""Read the next iteration's fragments during the multiplication: rotate the head of a loop to its end.

A loop that begins with `barrier; read fragments` and is followed by an equal head (as `buffer_shared` leaves it)
becomes: head, loop over (rest, head), rest of the code behind it. The fragments are carried, so the multiplication at
the start of an iteration waits for no read of its own; this costs a second set of fragment registers.
"""

from __future__ import annotations

from convgen.ir.expr import Expr, Var, var
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import rewrite, substitute
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.variable_ranges import exits_of
from convgen.ir.stmt import Barrier, Block, For, LoadPart, LoadShared, Stmt, block, stmts_of
from convgen.passes.clone import Cloner


def rotate_fragments(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Rotate every loop that begins with a barrier and shared-memory reads and is followed by the same reads."""
    if not facts.carried_fragments:
        return kernel
    cloner = Cloner(kernel)
    return evolve(kernel, body=rewrite(kernel.body, {Block: lambda b: _rotated(b, cloner)}))


def _rotated(b: Block, cloner: Cloner) -> Stmt:
    out: list[Stmt] = []
    rest = list(b.stmts)
    while rest:
        s, *after = rest
        rotated = _rotate(s, after, cloner) if isinstance(s, For) else None
        done, rest = rotated or ([s], after)
        out += done
    return block(*out)


def _head(stmts: list[Stmt]) -> list[Stmt]:
    """Return the leading barrier and the reads behind it; [] if there is no read."""
    reads = 1 if stmts and isinstance(stmts[0], Barrier) else 0
    end = reads
    while end < len(stmts) and isinstance(stmts[end], LoadShared):
        end += 1
    return stmts[:end] if end > reads else []


def _alike(a: list[Stmt], b: list[Stmt]) -> bool:
    """Return whether two heads read the same slots in the same layouts."""

    def shape(s: Stmt) -> object:
        part = (s.row, s.col) if isinstance(s, LoadPart) else ()
        return (s.tile, s.slot, s.layout, *part) if isinstance(s, LoadShared) else type(s)

    return [shape(s) for s in a] == [shape(s) for s in b]


def _rotate(loop: For, after: list[Stmt], cloner: Cloner) -> tuple[list[Stmt], list[Stmt]] | None:
    """Return the rotated loop and the rest of the code behind it; None if the loop does not qualify."""
    body = list(stmts_of(loop.body))
    head, follower = _head(body), _head(after)
    if not head or any(exits_of(loop.body)) or not _alike(head, follower):
        return None
    reads = [s.var for s in head if isinstance(s, LoadShared)]
    before, first = cloner.copy(head, {})
    again, following = cloner.copy(head, {})
    carried = tuple(var(v.name, v.type) for v in reads)
    results = tuple(var(v.name, v.type) for v in reads)
    current: dict[Var, Expr] = dict(zip(reads, carried))
    rest = [substitute(s, current) for s in body[len(head) :]]
    rotated = evolve(
        loop,
        carried=(*loop.carried, *carried),
        inits=(*loop.inits, *(first[v] for v in reads)),
        body=block(*rest, *again),
        yields=(*(substitute(y, current) for y in loop.yields), *(following[v] for v in reads)),
        results=(*loop.results, *results),
    )
    final: dict[Var, Expr] = dict(zip((s.var for s in follower if isinstance(s, LoadShared)), results))
    return [*before, rotated], [substitute(s, final) for s in after[len(follower) :]]
