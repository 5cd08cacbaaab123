"""Which values differ between the lanes of a subgroup.

The lane number is the only source of divergence; what memory or the matrix unit gives a lane is its own. `Uniform(x)`
is uniform by contract, and `AllLanes(x)` by its meaning. The analysis only chooses a home for a value: a pass cannot
change a meaning through it.
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
    """Whether expressions are uniform, given which variables are not; looks at each node once."""

    def __init__(self, varying: Iterable[Var]) -> None:
        self.varying = set(varying)
        self._memo: dict[Node, bool] = {}

    def __call__(self, e: Expr) -> bool:
        known = self._memo.get(e)
        if known is None:
            known = self._memo[e] = self._decide(e)
        return known

    def let(self, v: Var, value: Expr) -> None:
        """A new variable has that value."""
        if not self(value):
            self.varying.add(v)

    def begin_again(self) -> None:
        """Look again at what was found uniform: more variables vary than did; what varies stays so."""
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


#: Expressions that are uniform, or varying, whatever they are made of.
_ALWAYS: dict[type[Node], bool] = {Uniform: True, AllLanes: True, Lane: False, Mma: False, BlockMma: False}


def is_uniform(e: Expr, varying: Iterable[Var]) -> bool:
    """Whether all lanes of a subgroup have the same value of `e`."""
    return Uniformity(varying)(e)


#: A variable and what it may get its value from.
_Origin = tuple[Var, Sequence[Expr]]
_Given = Callable[[Load], Sequence[Expr] | None]  #: what such a value varies with; None if it does anyway
_Found = TypeVar("_Found", bound=Uniformity)


def uniformity(kernel: Kernel) -> Uniformity:
    """Which expressions of a kernel are uniform: for all who ask for it before it changes."""
    return _latest(kernel)


def with_lets(new: Kernel, old: Kernel) -> Kernel:
    """`new`, which is `old` but for lets of which its uniformity was told: it need not be looked at again."""
    return _latest.handed_on(new, old)


def varying(root: Kernel | Stmt) -> frozenset[Var]:
    """The variables bound under `root` that may differ between lanes (test membership only: a set has no order).

    Variables bound outside (arguments, group ids, the subgroup number) are uniform.
    """
    return frozenset(_analysed(root.body if isinstance(root, Kernel) else root).varying)


def analysed(root: Stmt, uniform: _Found, given: _Given) -> _Found:
    """The analysis when it has found which variables under `root` vary; `given` tells that of what loads bind."""
    origins: list[_Origin] = []
    _collect(root, None, uniform.varying, origins, given)
    while not _pass_over(origins, uniform):
        uniform.begin_again()
    return uniform


def _analysed(root: Stmt) -> Uniformity:
    return analysed(root, Uniformity(()), lambda s: () if s.is_uniform else None)


_latest = Latest(lambda kernel: _analysed(kernel.body))


def _pass_over(origins: Iterable[_Origin], uniform: Uniformity) -> bool:
    """Tell the analysis which variables vary by their origins; whether none was taken for uniform before that.

    Others may have been by it: a loop carries divergence back to its start.
    """
    taken, varying = set[Var](), uniform.varying
    for var, values in origins:
        if var not in varying:
            (taken if all(map(uniform, values)) else varying).add(var)
    return taken.isdisjoint(varying)


def _collect(s: Stmt, loop: For | None, found: set[Var], origins: list[_Origin], given: _Given) -> None:
    """Add to `found` what `s`, inside `loop`, gets from lanes, and to `origins` the other variables that it binds.

    These stand in the order in which values get there: that of a loop's body behind what it begins with.
    """
    if isinstance(s, Let):
        origins.append((s.var, (s.value,)))
    elif isinstance(s, Load):
        values = given(s)
        if values is None:
            found.add(s.var)
        elif values:
            origins.append((s.var, values))
    elif isinstance(s, For):
        origins += zip(s.carried, zip(s.inits))
        _collect(s.body, s, found, origins, given)
        origins += zip(s.carried, zip(s.yields))
        origins += zip(s.results, zip(s.inits, s.yields))
    else:
        if isinstance(s, ExitIf) and loop:
            for carried, result, value in zip(loop.carried, loop.results, s.values):  # one register holds both
                origins += [(carried, (value,)), (result, (value,))]
        for inner in s.bodies:
            _collect(inner, loop, found, origins, given)
