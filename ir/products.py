"""Products of small matrices whose rows and columns are distributed over neighbouring lanes."""

from __future__ import annotations

from convgen.ir.error import UserError
from convgen.ir.expr import Expr
from convgen.ir.layout.mma import BlockAtom
from convgen.ir.node import node
from convgen.ir.types import AnyType, vector


@node
class BlockMma(Expr):
    """`acc + a * b` in each block of `op.side` lanes: a lane holds a row of `a` and a column of `b` and `acc`.

    Element i of a lane's result is its `acc[i]` plus the dot product of its `b` with the `a` of lane i of its block.
    """

    op: BlockAtom
    acc: Expr
    a: Expr
    b: Expr

    def result(self) -> AnyType:
        op = self.op
        given = (self.acc.type, self.a.type, self.b.type)
        if given != (vector(op.acc, op.side), *[vector(op.elem, op.k)] * 2):
            raise UserError(f"mma {op.name}: operands {', '.join(map(str, given))}")
        return self.acc.type
