"""The canonical order of operands: equal sums in different operand orders become one node, in every process."""

from __future__ import annotations

from zlib import crc32

from convgen.ir import floats, fused, sizes
from convgen.ir.expr import Expr, Lane
from convgen.ir.node import CLASSES

_ = floats, fused, sizes  # import these modules so that CLASSES contains their classes
#: Expression classes by module, then in order of declaration: independent of the order of imports.
_EXPRESSIONS = sorted((c for c in CLASSES.values() if issubclass(c, Expr)), key=lambda c: c.__module__)
_RANK = {cls: -i for i, cls in enumerate(_EXPRESSIONS)}

_DEPTH = 3  #: levels of operands compared field by field, chosen; deeper differences are ordered by digest


class CanonicalOrder:
    """Operands that do not mention the lane come first, then products before leaves, then by content."""

    def __init__(self) -> None:
        self._on_lane: dict[Expr, bool] = {}
        self._digests: dict[Expr, int] = {}

    def before(self, a: Expr, b: Expr) -> bool:
        """Return whether `a` stands before `b`; False if they are one node."""
        return a is not b and self._before(a, b, _DEPTH)

    def _before(self, a: Expr, b: Expr, depth: int) -> bool:
        lanes = self.on_lane(a), self.on_lane(b)
        if lanes[0] is not lanes[1]:
            return lanes[1]
        if type(a) is not type(b):
            return _RANK[type(a)] < _RANK[type(b)]
        return self._compared(a, b, depth) if depth else self.digest(a) < self.digest(b)

    def _compared(self, a: Expr, b: Expr, depth: int) -> bool:
        """Compare two different nodes of one class: the first field that differs decides."""
        for name in a.fields:
            left, right = getattr(a, name), getattr(b, name)
            if left is right or left == right:
                continue
            if isinstance(left, Expr) and isinstance(right, Expr):
                return self._before(left, right, depth - 1)
            return bool(left < right) if isinstance(left, int) else str(left) < str(right)
        return False

    def on_lane(self, e: Expr) -> bool:
        """Return whether `e` mentions the lane number."""
        known = self._on_lane.get(e)
        if known is None:
            known = self._on_lane[e] = type(e) is Lane or any(map(self.on_lane, e.children()))
        return known

    def digest(self, e: Expr) -> int:
        """Return a number computed from the content of `e`, equal in every process (hashes of strings are not)."""
        known = self._digests.get(e)
        if known is None:
            operands = tuple(map(self.digest, e.children()))
            data = ",".join(str(getattr(e, f)) for f in e.fields if f not in e.child_fields)
            known = self._digests[e] = hash((_RANK[type(e)], crc32(data.encode()), operands))
        return known
