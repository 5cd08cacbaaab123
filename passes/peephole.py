"""Fuse pairs of varying integer operations into what the vector unit does at once.

Only operations that nothing else shares are fused, so the pass follows `place_lets`. Scalar units have no such forms;
uniform expressions stay as they are.
"""

from __future__ import annotations

from convgen.ir import expr as x
from convgen.ir.expr import Add, And, Cast, Const, Expr, Mul, Or, Shl, Sub, Xor, const
from convgen.ir.facts import TargetFacts
from convgen.ir.fused import Fused
from convgen.ir.mutate import Mutator
from convgen.ir.node import replace
from convgen.ir.program import Kernel
from convgen.ir.simplify.bounds import Bounds, of_same_ranges, var_ranges
from convgen.ir.simplify.rules import make, number
from convgen.ir.types import AnyType, Type
from convgen.ir.uniform import uniformity

#: (root, operand that disappears into it) -> fused form; the other operand of the root comes last.
_FUSIONS: dict[type[Expr], dict[type[Expr], str]] = {
    Add: {Shl: "lshl_add", Mul: "mad24", Add: "add3"},
    Or: {And: "and_or", Shl: "lshl_or", Or: "or3"},
}

#: Operations of which a conversion between integers of one width may be moved to the operands.
_BITWISE = (Add, Sub, Mul, And, Or, Xor, Shl)

_U24 = (1 << 24) - 1


def peephole(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Fused forms of the target for varying arithmetic, and shifts for multiplications by powers of two."""
    return of_same_ranges(replace(kernel, body=_Peephole(kernel, facts)(kernel.body)), kernel)


class _Peephole(Mutator):
    def __init__(self, kernel: Kernel, facts: TargetFacts) -> None:
        super().__init__()
        self.fused = facts.fused
        self.uniform = uniformity(kernel)
        self.bounds = Bounds(var_ranges(kernel), kernel.width)

    def Add(self, e: x.Add) -> Expr:
        return self._fuse(self.descend(e))

    def Or(self, e: x.Or) -> Expr:
        return self._fuse(self.descend(e))

    def Mul(self, e: x.Mul) -> Expr:
        new = self.descend(e)
        if not self._is_varying(new) or not isinstance(new.b, Const) or new.b.bits < 2:
            return new
        power = new.b.bits.bit_length() - 1
        return new.a << const(power, new.b.dtype) if new.b.bits == 1 << power else new

    def Cast(self, e: x.Cast) -> Expr:
        """Free conversions go to the leaves, where they cannot come between two operations."""
        new = self.descend(e)
        if self._is_free(new) and isinstance(new.a, _BITWISE):
            moved = type(new.a)(_retyped(new.dtype, new.a.a), _retyped(new.dtype, new.a.b))
            return self._fuse(moved) if isinstance(moved, (Add, Or)) else moved
        return new

    def _fuse(self, e: x.Add | x.Or) -> Expr:
        if not self._is_varying(e):
            return e
        for kind, name in _FUSIONS[type(e)].items():
            for inner, other in ((e.a, e.b), (e.b, e.a)):
                if name in self.fused and type(inner) is kind and self._may_fuse(inner, name):
                    return Fused(name, inner.a, inner.b, other)  # type: ignore[attr-defined]
        return e

    def _may_fuse(self, inner: Expr, name: str) -> bool:
        if self.uniform(inner):
            return False
        factors = (inner.a, inner.b) if isinstance(inner, Mul) else ()
        return all(self.bounds(f)[0] >= 0 and self.bounds(f)[1] <= _U24 for f in factors) or name != "mad24"

    def _is_varying(self, e: Expr) -> bool:
        return isinstance(e.type, Type) and e.type.is_int and e.type.bits == 32 and not self.uniform(e)

    @staticmethod
    def _is_free(e: x.Cast) -> bool:
        to, of = e.dtype, e.a.type
        return isinstance(to, Type) and isinstance(of, Type) and to.is_int and of.is_int and to.bits == of.bits


def _retyped(dtype: AnyType, e: Expr) -> Expr:
    """A free conversion; that of a constant is a constant, as selection looks for."""
    return Cast(dtype, e) if (known := number(e)) is None else make(known, dtype)
