"""Copies of a statement list for unrolling: fresh variables for all binders, fresh site numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from convgen.ir.expr import Expr, Var, var
from convgen.ir.mutate import rewrite, statements, substitute
from convgen.ir.node import CLASSES
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import For, Site, Stmt


def sites(root: Stmt) -> Iterator[Site]:
    """Yield the sites of all statements under `root`."""
    return (s.site for s in statements(root) if s.site)


def bound_vars(root: Stmt) -> Iterator[Var]:
    """Yield the variables that statements under `root` bind."""
    for s in statements(root):
        yield from s.of_kind("Var")


def changing_vars(loop: For) -> frozenset[Var]:
    """Return the variables that may change from one iteration to the next: all that the loop and its body bind."""
    return frozenset((*loop.binds_within, *bound_vars(loop.body)))


class Cloner:
    """Copies statements; use one per pass, so that site numbers stay unique in the kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._numbers = itertools.count(1 + max((s.number for s in sites(kernel.body)), default=0))

    @cached_property
    def _renewing(self) -> Mapping[type[Stmt], Callable[[Any], Stmt]]:
        """Return handlers that give statements a new site."""
        sited = [c for c in CLASSES.values() if issubclass(c, Stmt) and "site" in c.fields]
        return dict.fromkeys(sited, lambda s: evolve(s, site=self.site(s.site)))

    def site(self, like: Site, stage: str = "") -> Site:
        """Return a new site like `like`, with another stage if given."""
        return Site(next(self._numbers), stage or like.stage, like.comment, like.slot, like.private)

    def slot_site(self, like: Site, slot: int, *, private: bool) -> Site:
        """Return a new site like `like` that accesses `slot`."""
        return Site(next(self._numbers), like.stage, like.comment, slot, private)

    def copy(self, stmts: Iterable[Stmt], values: Mapping[Var, Expr]) -> tuple[list[Stmt], dict[Var, Expr]]:
        """Return the statements with `values` substituted and every binder renamed, and all substitutions made."""
        names = dict(values)
        out: list[Stmt] = []
        for s in stmts:
            for bound in bound_vars(s):
                names.setdefault(bound, var(bound.name, bound.type))
            out.append(rewrite(substitute(s, names), self._renewing))
        return out, names
