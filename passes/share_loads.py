"""What loads side by side bring from one place is brought once: neighbouring taps of a window see the same positions.

What a loop carries from such loads to the next ones is one, too.
"""

from __future__ import annotations

from collections.abc import Hashable, Set
from itertools import compress

from convgen.ir import stmt as st
from convgen.ir.expr import Expr, Var
from convgen.ir.layout.memory import Global, Shared
from convgen.ir.mutate import rewrite, statements, substitute
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.rows import Site
from convgen.ir.types import AnyType

_Loads = st.FlatLoad | st.GlobalLoad
_ANYWHERE = Site(0)


def share_loads(kernel: Kernel) -> Kernel:
    """Of equal loads with nothing but lets and loads between them the first one serves all; message level."""
    inside = statements(kernel.body)
    written = {memory for s in inside for memory in s.writes}
    same: dict[Expr, Var] = {}
    for s in inside:
        if isinstance(s, st.Block):
            same |= _loaded(s, written)
    for s in inside:
        if isinstance(s, st.For):
            same |= _carried(s, same)
    if not same:
        return kernel

    def without_loads(s: st.Block) -> st.Stmt:
        return st.block(*(each for each in s.stmts if not (isinstance(each, _Loads) and each.var in same)))

    def carrying_less(s: st.For) -> st.Stmt:
        kept = [v not in same for v in s.carried]
        carried, results = (tuple(compress(variables, kept)) for variables in (s.carried, s.results))
        inits, yields = (tuple(compress(values, kept)) for values in (s.inits, s.yields))
        return evolve(s, carried=carried, inits=inits, yields=yields, results=results)

    body = rewrite(kernel.body, {st.Block: without_loads, st.For: carrying_less})
    return evolve(kernel, body=substitute(body, same))


def _loaded(s: st.Block, written: Set[Global | Shared]) -> dict[Expr, Var]:
    """By what a load binds that repeats another one, what that binds."""
    same: dict[Expr, Var] = {}
    seen: dict[st.Stmt, Var] = {}
    any_of: dict[AnyType, Var] = {}
    for each in s.stmts:
        if isinstance(each, _Loads) and each.buffer not in written:
            what = evolve(each, var=any_of.setdefault(each.var.type, each.var), site=_ANYWHERE)
            first = seen.setdefault(what, each.var)
            if first is not each.var:
                same[each.var] = first
        elif not isinstance(each, st.Let | st.Load):
            seen.clear()
    return same


def _carried(s: st.For, same: dict[Expr, Var]) -> dict[Expr, Var]:
    """By what a loop carries that is the same as something else that it carries, in and behind it, that."""
    found: dict[Expr, Var] = {}
    seen: dict[Hashable, tuple[Var, Var]] = {}
    for v, first, following, last in zip(s.carried, s.inits, s.yields, s.results, strict=True):
        values = tuple(same.get(e, e) for e in (first, following))
        within, behind = seen.setdefault(values, (v, last))
        if within is not v:
            found |= {v: within, last: behind}
    return found
