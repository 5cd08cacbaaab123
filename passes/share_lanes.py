"""Compute a function of several lanes' words once, in all lanes in parallel.

A uniform value that depends on one lane's word can be computed in that lane and then broadcast: `f(from_lane(v, 2))` is
`from_lane(f(v), 2)`. If a loop's body needs it for several lanes, one vector `f` serves all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from convgen.ir.expr import (
    Add,
    And,
    Cast,
    Const,
    Expr,
    FromLane,
    Max,
    Min,
    Mul,
    Or,
    Shl,
    Shr,
    Sub,
    Uniform,
    Var,
    Xor,
    lift,
    temporary,
)
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import rewrite, substitute
from convgen.ir.program import Kernel
from convgen.ir.record import evolve, frozen
from convgen.ir.stmt import For, Let, Stmt, block, stmts_of
from convgen.ir.types import s32, u32
from convgen.ir.uniform import Uniformity, uniformity
from convgen.passes.clone import bound_vars

_OPERATIONS = (Add, And, Cast, Max, Min, Mul, Or, Shl, Shr, Sub, Xor)  #: operations that lanes may compute in parallel
_TOP = 31  #: number of a word's highest bit


def share_lanes(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Compute equal functions of several lanes' words in a loop once, in parallel lanes; message level.

    On targets without broadcast operands (`TargetFacts.lane_words`) the kernel is unchanged.
    """
    if not facts.lane_words:
        return kernel
    uniform = uniformity(kernel)

    def shared(loop: For) -> Stmt:
        return _shared(loop, _Lanes(bound_vars(loop.body), uniform))

    return evolve(kernel, body=rewrite(kernel.body, {For: shared}))


@frozen
class _LaneFunction:
    """A uniform value: a function of one lane's word or, if `lane` is None, of uniform values only."""

    own: Expr  #: the function, of each lane's own word
    lane: Const | None = None


class _Lanes:
    """Decides which expressions are functions of one lane's word, in a loop whose body binds the variables `inside`."""

    def __init__(self, inside: Iterable[Var], uniform: Uniformity) -> None:
        self.inside, self.uniform = frozenset(inside), uniform
        self._memo: dict[Expr, _LaneFunction | None] = {}
        self._seen: set[Expr] = set()

    def of(self, e: Expr) -> _LaneFunction | None:
        """Return the expression as a function of one lane's word; None if it needs several lanes or a body variable."""
        if e not in self._memo:
            self._memo[e] = self._function(e)
        return self._memo[e]

    def _function(self, e: Expr) -> _LaneFunction | None:
        """Return the expression as a function of one lane's word, by its operands; None if it is not one."""
        match e:
            case Const():
                return _LaneFunction(e)
            case Var():
                return _LaneFunction(e) if e not in self.inside and self.uniform(e) else None
            case Uniform(FromLane(Var() as v, Const() as lane)):
                return _LaneFunction(v, lane) if v not in self.inside else None
        if not isinstance(e, _OPERATIONS) or e.type not in (s32, u32):
            return None
        operands = {c: self.of(c) for c in e.children()}
        lanes = {o.lane for o in operands.values() if o is not None and o.lane is not None}
        if None in operands.values() or len(lanes) > 1:
            return None
        own = substitute(e, {c: o.own for c, o in operands.items() if o is not None})
        return _LaneFunction(_in_all_lanes(own), *lanes)

    def greatest(self, e: Expr) -> Iterator[tuple[Expr, _LaneFunction]]:
        """Yield the largest subexpressions that are functions of a lane's word, each once; plain words are left out."""
        if e in self._seen:
            return
        self._seen.add(e)
        function = self.of(e)
        if function is not None and not isinstance(function.own, Var):
            if function.lane is not None:
                yield e, function
            return
        for c in e.children():
            yield from self.greatest(c)


def _in_all_lanes(e: Expr) -> Expr:
    """Return an operation that is no error in lanes whose result is not used: their shift amounts may be too large."""
    if not isinstance(e, (Shl, Shr)) or isinstance(e.b, Const):
        return e
    return evolve(e, b=e.b & lift(_TOP, e.b))


def _shared(loop: For, lanes: _Lanes) -> Stmt:
    """Bind functions that several lanes' words need once, and broadcast the results from these lanes."""
    stmts = stmts_of(loop.body)
    uses: dict[Expr, dict[Expr, Const]] = defaultdict(dict)  # function -> its results and their lanes
    for root in (*(o for s in stmts for o in s.operands), *loop.yields):
        for e, function in lanes.greatest(root):
            assert function.lane is not None
            uses[function.own][e] = function.lane
    lets: list[Let] = []
    replaced: dict[Expr, Expr] = {}
    for own, results in uses.items():
        if len(results) > 1:
            lets.append(Let(temporary(own.type), own))
            replaced |= {e: Uniform(FromLane(lets[-1].var, lane)) for e, lane in results.items()}
    if not lets:
        return loop
    body, yields = substitute(loop.body, replaced), tuple(substitute(y, replaced) for y in loop.yields)
    return evolve(loop, body=block(*lets, body), yields=yields)
