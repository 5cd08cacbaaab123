"""Variables that hold operands of matrix instructions: fragments, and the parts that these are packed from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from convgen.ir.expr import Expr, Mma, Pack, Var
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.mutate import postorder, statements
from convgen.ir.stmt import For, Let, Stmt


@lru_cache(maxsize=1)
def operand_sizes(body: Stmt) -> Mapping[Var, int]:
    """Return the elements of a lane's part of an operand, for each variable that matrix products read.

    They may read it through loops and packs; it may hold several operands, one, or part of one.
    """
    return operand_sizes_of([n for n in postorder(body) if isinstance(n, Mma)], body)


def operand_sizes_of(products: Iterable[Mma], body: Stmt) -> Mapping[Var, int]:
    """Return the elements of a lane's part of an operand, for each variable that these products read."""
    sides = ((side, of.registers) for n in products for side, of in ((n.a, n.op.atom.a), (n.b, n.op.atom.b)))
    taken = {side: lanes for side, lanes in sides if isinstance(side, Var)}
    if not taken:
        return taken
    sources = dict(_sources(body))
    todo = list(taken)
    while todo:
        v = todo.pop()
        for source in sources.get(v, ()):
            if isinstance(source, Var) and source not in taken:
                taken[source] = taken[v]
                todo.append(source)
    return taken


@lru_cache(maxsize=1)
def shared_factors(body: Stmt) -> Mapping[Var, MmaAtom]:
    """Return the variables that matrix instructions read in shared memory, with the instructions."""
    products = (n for n in postorder(body) if isinstance(n, Mma) and n.op.atom.in_shared)
    sides = ((side, n.op.atom) for n in products for side in (n.a, *(() if n.op.atom.b_in_registers else (n.b,))))
    return {side: atom for side, atom in sides if isinstance(side, Var)}


def _sources(body: Stmt) -> Iterator[tuple[Var, tuple[Expr, ...]]]:
    """Yield each variable that a loop carries or a pack binds, with the expressions that it gets its value from."""
    for s in statements(body):
        if isinstance(s, For):
            for c, init, following, result in zip(s.carried, s.inits, s.yields, s.results):
                yield c, (init, following)
                yield result, (init, following)
        elif isinstance(s, Let) and isinstance(s.value, Pack):
            yield s.var, s.value.parts
