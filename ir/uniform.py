"""Uniformity analysis: which values are equal in all lanes of a subgroup.

The lane number is the only source of divergence; matrix products, and loads other than tickets, count as varying.
`Uniform(x)` is uniform by contract, `AllLanes(x)` by definition. The analysis only chooses scalar or vector registers
for a value: a pass cannot change semantics through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from convgen.ir.expr import Expr, Lane, Mma, Uniform, Var
from convgen.ir.latest import Latest
from convgen.ir.node import Node
from convgen.ir.products import BlockMma
from convgen.ir.program import Kernel
from convgen.ir.stmt import ExitIf, For, Let, Load, Stmt
from convgen.ir.votes import AllLanes


class Uniformity:
    """Decides whether expressions are uniform, given the varying variables; visits each node once."""

    def __init__(self, varying: Iterable[Var]) -> None:
        self.varying = set(varying)
        self._memo: dict[Node, bool] = {}

    def __call__(self, e: Expr) -> bool:
        known = self._memo.get(e)
        if known is None:
            known = self._memo[e] = self._decide(e)
        return known

    def let(self, v: Var, value: Expr) -> None:
        """Record a new variable with that value."""
        if not self(value):
            self.varying.add(v)

    def begin_again(self) -> None:
        """Forget which expressions were found uniform, as more variables vary now; varying ones remain."""
        self._memo = {e: False for e, uniform in self._memo.items() if not uniform}

    def _decide(self, e: Expr) -> bool:
        if isinstance(e, Var):
            return e not in self.varying
        always = _ALWAYS.get(type(e))
        if always is not None:
            return always
        known = self._memo.get
        for c in e.children():
            uniform = known(c)
            if not (self(c) if uniform is None else uniform):
                return False
        return True


#: Expressions that are uniform (True) or varying (False) whatever their operands.
_ALWAYS: dict[type[Node], bool] = {Uniform: True, AllLanes: True, Lane: False, Mma: False, BlockMma: False}


def is_uniform(e: Expr, varying: Iterable[Var]) -> bool:
    """Return whether all lanes of a subgroup have one value of `e`."""
    return Uniformity(varying)(e)


#: A variable and the expressions that it may get its value from.
_Origin = tuple[Var, Sequence[Expr]]
#: Returns the expressions that a loaded value varies with; None if it varies in any case.
LoadSources = Callable[[Load], Sequence[Expr] | None]
U = TypeVar("U", bound=Uniformity)


def uniformity(kernel: Kernel) -> Uniformity:
    """Return the analysis of a kernel: which expressions are uniform (cached for the latest kernel)."""
    return _latest(kernel)


def with_lets(new: Kernel, old: Kernel) -> Kernel:
    """Return `new`, which is `old` with further lets that the analysis knows already, and reuse its analysis."""
    return _latest.handed_on(new, old)


def varying(root: Kernel | Stmt) -> frozenset[Var]:
    """Return the variables bound under `root` that may differ between lanes (a set: test membership only).

    Variables bound outside (arguments, group ids, the subgroup number) are uniform.
    """
    return frozenset(_by_lane(root.body if isinstance(root, Kernel) else root).varying)


def analyse(root: Stmt, uniform: U, sources: LoadSources) -> U:
    """Return `uniform` after it has learnt which variables under `root` vary."""
    origins: list[_Origin] = []
    _collect(root, None, uniform.varying, origins, sources)
    while not _pass_over(origins, uniform):
        uniform.begin_again()
    return uniform


def _by_lane(root: Stmt) -> Uniformity:
    """Return the analysis of values that all lanes of a subgroup share."""
    return analyse(root, Uniformity(()), lambda s: () if s.is_uniform else None)


_latest = Latest(lambda kernel: _by_lane(kernel.body))


def _pass_over(origins: Iterable[_Origin], uniform: Uniformity) -> bool:
    """Add varying variables to the analysis by their origins; return whether it is consistent.

    It is not if a variable counted as uniform before its origins were found to vary, as when a loop carries divergence
    back to its start: other variables may then be wrong, too.
    """
    taken, varying = set[Var](), uniform.varying
    for var, values in origins:
        if var not in varying:
            (taken if all(map(uniform, values)) else varying).add(var)
    return taken.isdisjoint(varying)


def _collect(s: Stmt, loop: For | None, varying: set[Var], origins: list[_Origin], sources: LoadSources) -> None:
    """Add the variables that `s`, inside `loop`, binds: to `varying` if they vary in any case, else to `origins`.

    Origins are in the order of data flow: initial values of a loop, then its body, then its yields.
    """
    if isinstance(s, Let):
        origins.append((s.var, (s.value,)))
    elif isinstance(s, Load):
        values = sources(s)
        if values is None:
            varying.add(s.var)
        elif values:
            origins.append((s.var, values))
    elif isinstance(s, For):
        origins += zip(s.carried, zip(s.inits))
        _collect(s.body, s, varying, origins, sources)
        origins += zip(s.carried, zip(s.yields))
        origins += zip(s.results, zip(s.inits, s.yields))
    else:
        if isinstance(s, ExitIf) and loop:
            for carried, result, value in zip(loop.carried, loop.results, s.values):  # one register holds both
                origins += [(carried, (value,)), (result, (value,))]
        for inner in s.bodies:
            _collect(inner, loop, varying, origins, sources)
