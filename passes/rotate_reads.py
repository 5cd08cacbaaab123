"""Read the first fragments of a block during the multiplication of the block before: rotate reads to a loop's end.

In a circular loop (`For.circular`) the barrier that publishes the next block stands behind the products. Behind it, the
fragments that the first step of the next block's product needs can be read, too. The assembler moves these reads ahead
of products, as it moves barrier and copies, but never over the end of a loop. Fragments of later steps are read where
they are, so that only those of one step take registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from convgen.ir.expr import Expr, Mma, Pack, Var, var
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import free_vars, rewrite
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import For, Let, SharedRead, Stmt, block, stmts_of
from convgen.passes.clone import Cloner, changing_vars


def rotate_reads(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Read the fragments of a block's first step in the iteration before, in circular loops.

    The reads stand behind the barrier and the copies at the end of an iteration, and those of the first block ahead of
    the loop. So the assembler may move them, too, ahead of the products of an iteration, and the first products of the
    next one wait for no read.
    """
    if not facts.computed_slots:
        return kernel
    cloner = Cloner(kernel)
    return evolve(
        kernel, body=rewrite(kernel.body, {For: lambda loop: _reading(loop, cloner) if loop.circular else loop})
    )


def _reading(loop: For, cloner: Cloner) -> Stmt:
    """Return a circular loop with reads ahead of it and at its end in place of those of each first step."""
    body = stmts_of(loop.body)
    inside = changing_vars(loop) - {loop.var, *loop.carried}
    reads = {s.var: s for s in body if isinstance(s, SharedRead) and inside.isdisjoint(free_vars(s.address))}
    first = [reads[v] for v in dict.fromkeys(_of_first_step(body)) if v in reads]

    def read(values: Mapping[Var, Expr], slot: int) -> tuple[list[Stmt], tuple[Expr, ...]]:
        placed = (evolve(s, site=evolve(s.site, slot=slot)) if s.site.slot >= 0 else s for s in first)
        stmts, names = cloner.copy(placed, values)
        return stmts, tuple(names[s.var] for s in first)

    ahead, inits = read({loop.var: loop.begin, **dict(zip(loop.carried, loop.inits))}, 0)
    again, yields = read({loop.var: loop.var + 1, **dict(zip(loop.carried, loop.yields))}, 1)
    reading = evolve(
        loop,
        carried=(*loop.carried, *(s.var for s in first)),
        inits=(*loop.inits, *inits),
        body=block(*(s for s in body if s not in first), *again),
        yields=(*loop.yields, *yields),
        results=(*loop.results, *(var(s.var.name, s.var.type) for s in first)),
    )
    return block(*ahead, reading)


def _of_first_step(body: Sequence[Stmt]) -> Iterator[Expr]:
    """Yield the parts of the factors that the first step of a loop's first product multiplies."""
    values = {s.var: s.value for s in body if isinstance(s, Let)}
    product = next((value for value in values.values() if isinstance(value, Mma)), None)
    if product is None:
        return
    op = product.op
    of_a = product.a, [op.a_start(n, 0) for n in range(op.tiles_n)], op.atom.a.registers
    of_b = product.b, [op.b_start(m, 0) for m in range(op.tiles_m)], op.atom.b.registers
    for factor, starts, count in (of_a, of_b):
        pack = values.get(factor) if isinstance(factor, Var) else None
        begin = 0
        for part in pack.parts if isinstance(pack, Pack) else ():
            end = begin + part.type.lanes
            if any(start < end and begin < start + count for start in starts):
                yield part
            begin = end
