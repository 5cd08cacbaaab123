"""What the lanes of a subgroup agree on."""

from __future__ import annotations

from convgen.ir.error import UserError
from convgen.ir.expr import Unary
from convgen.ir.node import node
from convgen.ir.types import AnyType, bool_


@node
class AllLanes(Unary):
    """Whether a bool holds in every lane of this subgroup; every lane takes part, and all have the same answer."""

    symbol = "all"

    def result(self) -> AnyType:
        if self.a.type is not bool_:
            raise UserError(f"all: given {self.a.type}, wanted a bool of each lane")
        return bool_
