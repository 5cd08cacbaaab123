"""Merge equal loads, such as those of neighbouring filter taps, which read overlapping positions.

Loop-carried values that come from merged loads are merged, too, in loops without exits.
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
from convgen.ir.simplify.variable_ranges import exits_of
from convgen.ir.stmt_base import Site
from convgen.ir.types import AnyType

_Loads = st.FlatLoad | st.GlobalLoad
_ANYWHERE = Site(0)


def share_loads(kernel: Kernel) -> Kernel:
    """Replace repeated loads with only lets and loads between them by the first one; message level."""
    inside = statements(kernel.body)
    written = {memory for s in inside for memory in s.writes}
    same: dict[Expr, Var] = {}
    for s in inside:
        if isinstance(s, st.Block):
            same |= _loaded(s, written)
    for s in inside:
        if isinstance(s, st.For):
            same |= {} if any(exits_of(s.body)) else _carried(s, same)  # exits pass each value by its place
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
    """Return, for each variable of a repeated load, the variable of the first load."""
    same: dict[Expr, Var] = {}
    seen: dict[st.Stmt, Var] = {}
    any_of: dict[AnyType, Var] = {}
    for inner in s.stmts:
        if isinstance(inner, _Loads) and inner.buffer not in written:
            what = evolve(inner, var=any_of.setdefault(inner.var.type, inner.var), site=_ANYWHERE)
            first = seen.setdefault(what, inner.var)
            if first is not inner.var:
                same[inner.var] = first
        elif not isinstance(inner, st.Let | st.Load):
            seen.clear()
    return same


def _carried(s: st.For, same: dict[Expr, Var]) -> dict[Expr, Var]:
    """Return, for each carried variable (and result) that equals an earlier one, the earlier one."""
    first_of: dict[Expr, Var] = {}
    seen: dict[Hashable, tuple[Var, Var]] = {}
    for v, first, following, last in zip(s.carried, s.inits, s.yields, s.results, strict=True):
        values = tuple(same.get(e, e) for e in (first, following))
        within, behind = seen.setdefault(values, (v, last))
        if within is not v:
            first_of |= {v: within, last: behind}
    return first_of
