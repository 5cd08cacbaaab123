"""Two or three integer operations that one instruction does; each has an equivalent expression of single operations."""

from __future__ import annotations

from collections.abc import Callable

from convgen.ir.error import UserError
from convgen.ir.expr import Expr
from convgen.ir.node import node
from convgen.ir.types import AnyType

#: Fused operation -> meaning. `mad24` requires both factors in [0, 2^24), `mad16` the second in [0, 2^16), `align` a
#: shift in [0, 32).
MEANING: dict[str, Callable[[Expr, Expr, Expr], Expr]] = {
    "add3": lambda a, b, c: (a + b) + c,
    "mad24": lambda a, b, c: a * b + c,
    "mad16": lambda a, b, c: a * b + c,
    "lshl_add": lambda a, b, c: (a << b) + c,
    "lshl_or": lambda a, b, c: (a << b) | c,
    "and_or": lambda a, b, c: (a & b) | c,
    "or3": lambda a, b, c: (a | b) | c,
    "align": lambda a, b, c: ((a << 1) << (31 - c)) | (b >> c),
}


@node
class Fused(Expr):
    """The operation `name` of MEANING on three integers of one type; targets take 32-bit ones only.

    `peephole` creates it, and `lower_tiles` where it aligns words.
    """

    name: str
    a: Expr
    b: Expr
    c: Expr

    def result(self) -> AnyType:
        given = (self.a.type, self.b.type, self.c.type)
        if self.name not in MEANING or len(dict.fromkeys(given)) != 1 or not self.a.type.elem.is_int:
            raise UserError(f"fused {self.name}: operands {given}")
        return self.a.type

    @property
    def meaning(self) -> Expr:
        """Return the equivalent expression of single operations."""
        return MEANING[self.name](self.a, self.b, self.c)
