"""The canonical order of operands: equal sums written in two orders become one node, the same in every process."""

from __future__ import annotations

from convgen.ir.expr import Expr, Lane
from convgen.ir.node import CLASSES

_RANK = {cls: -i for i, cls in enumerate(CLASSES.values())}


class Order:
    """What is uniform by its looks stands before what depends on the lane; products before leaves; then by content."""

    def __init__(self) -> None:
        self._on_lane: dict[Expr, bool] = {}

    def on_lane(self, e: Expr) -> bool:
        """Whether `e` mentions the lane number."""
        known = self._on_lane.get(e)
        if known is None:
            inner = (self.on_lane(c) for c in e.children() if isinstance(c, Expr))
            known = self._on_lane[e] = isinstance(e, Lane) or any(inner)
        return known

    def before(self, a: Expr, b: Expr) -> bool:
        """Whether `a` stands before `b`; False if they are one."""
        if a is b:
            return False
        ranks = (self.on_lane(a), _RANK[type(a)]), (self.on_lane(b), _RANK[type(b)])
        return ranks[0] < ranks[1] if ranks[0] != ranks[1] else self._compared(a, b)

    def _compared(self, a: Expr, b: Expr) -> bool:
        """Two different nodes of one class: the first field that differs decides."""
        for name in a.fields:
            left, right = getattr(a, name), getattr(b, name)
            if left is right or left == right:
                continue
            if isinstance(left, Expr) and isinstance(right, Expr):
                return self.before(left, right)
            return bool(left < right) if isinstance(left, int) else str(left) < str(right)
        return False
