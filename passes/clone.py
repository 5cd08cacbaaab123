"""Copies of a statement list for unrolling: fresh variables for what it binds, fresh site numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

import attrs

from convgen.ir.expr import Expr, Var, var
from convgen.ir.mutate import postorder, substitute
from convgen.ir.node import Node
from convgen.ir.stmt import Site, Stmt


def sites(root: Node) -> Iterator[Site]:
    """The sites of all statements under `root`."""
    for node in postorder(root):
        site = getattr(node, "site", None)
        if isinstance(site, Site):
            yield site


def bound_vars(root: Node) -> Iterator[Var]:
    """The variables that statements under `root` bind."""
    for node in postorder(root):
        if isinstance(node, Stmt):
            for field in ("var", "carried", "results"):
                found = getattr(node, field, ())
                yield from (found,) if isinstance(found, Var) else found


class Cloner:
    """Makes copies; one per pass, so that site numbers stay unique in the kernel."""

    def __init__(self, root: Node) -> None:
        self._numbers = itertools.count(1 + max((s.number for s in sites(root)), default=0))

    def site(self, like: Site) -> Site:
        """A site with a number of its own."""
        return attrs.evolve(like, number=next(self._numbers))

    def copy(self, stmts: Iterable[Stmt], values: Mapping[Var, Expr]) -> tuple[list[Stmt], dict[Var, Expr]]:
        """The statements with `values` put in and every binder renamed; also returns all substitutions made."""
        names = dict(values)
        out: list[Stmt] = []
        for s in stmts:
            for bound in bound_vars(s):
                names.setdefault(bound, var(bound.name, bound.type))
            out.append(self._renumber(substitute(s, names)))
        return out, names

    def _renumber(self, s: Stmt) -> Stmt:
        fields = [getattr(s, f) for f in s.fields]
        if not any(isinstance(f, (Site, Stmt)) for f in fields):
            return s
        renewed = []
        for f in fields:
            if isinstance(f, Site):
                f = self.site(f)
            elif isinstance(f, Stmt):
                f = self._renumber(f)
            elif isinstance(f, tuple) and f and isinstance(f[0], Stmt):
                f = tuple(self._renumber(x) for x in f)
            renewed.append(f)
        return type(s)(*renewed)
