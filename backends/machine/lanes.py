"""The lanes that an exchange between lanes reads, if known at compile time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from convgen.ir.expr import Expr, Var
from convgen.ir.mutate import free_vars, substitute


def lanes_read(lane: Expr, width: int, lets: Mapping[Var, Expr]) -> tuple[int, ...] | None:
    """Return, for each lane, the lane that `lane` names; None if `lane` depends on more than the lane's own number.

    `lets` are the values of variables.
    """
    while named := free_vars(lane):
        if any(v not in lets for v in named):
            return None
        lane = substitute(lane, {v: lets[v] for v in named})
    return _evaluated(lane, width)


@lru_cache(maxsize=2**8)
def _evaluated(lane: Expr, width: int) -> tuple[int, ...]:
    from convgen.ir.evaluate import Evaluator  # imported late: few kernels need it

    return tuple(Evaluator(width)(lane).data.tolist())
