"""Expand divisions and remainders by constants into shifts, masks and high multiplications.

For 0 <= n < 2^31 and a divisor d >= 3 that is not a power of two, let s = ceil(log2 d) and m = floor(2^(31+s) / d) + 1;
then m < 2^32 and n // d = (n * m) >> (31 + s), since m*d exceeds 2^(31+s) by at most 2^s (Granlund and Montgomery,
"Division by invariant integers using multiplication", theorem 4.2). A multiple of d is first added to negative
dividends.
"""

from __future__ import annotations

from convgen.ir import expr as x
from convgen.ir.error import Unsupported
from convgen.ir.expr import Const, Expr, MulHi, const
from convgen.ir.mutate import Mutator
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.simplify.rules import make
from convgen.ir.simplify.variable_ranges import var_ranges
from convgen.ir.types import u32


def expand_division(kernel: Kernel) -> Kernel:
    """Expand Div and Mod; raises Unsupported for divisors that are not constant or dividends not proved 31-bit."""
    return evolve(kernel, body=_Expander(kernel)(kernel.body))


class _Expander(Mutator):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.bounds = Bounds(var_ranges(kernel), kernel.width)

    def Div(self, e: x.Div) -> Expr:
        a: Expr = self.mutate(e.a)
        d = self._divisor(e)
        power = _log2(d)
        return self._quotient(e.a, a, d) if power is None else a >> power

    def Mod(self, e: x.Mod) -> Expr:
        a: Expr = self.mutate(e.a)
        d = self._divisor(e)
        return a - self._quotient(e.a, a, d) * d if _log2(d) is None else a & (d - 1)

    def _divisor(self, e: x.Div | x.Mod) -> int:
        if not isinstance(e.b, Const) or e.b.bits < 1 or e.type.bits != 32:
            raise Unsupported(f"given the division {e}, wanted a positive 32-bit constant divisor")
        return e.b.bits

    def _quotient(self, original: Expr, a: Expr, d: int) -> Expr:
        low, high = self.bounds(original)
        up = -(low // d) if low < 0 else 0
        if high + up * d >= 1 << 31:
            raise Unsupported(f"given the division {original} // {d}, wanted a dividend below 2^31")
        shift = (d - 1).bit_length()
        magic = (1 << (31 + shift)) // d + 1
        moved = a + make(up * d, a.type) if up else a  # the sum is below 2^31, whether its constant wraps or not
        q = (MulHi(moved.to(u32), const(magic, u32)) >> (shift - 1)).to(a.type)
        return q - up if up else q


def _log2(d: int) -> int | None:
    return d.bit_length() - 1 if d & (d - 1) == 0 else None
