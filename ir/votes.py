"""Votes: conditions that hold in all lanes of a subgroup."""

from __future__ import annotations

from convgen.ir.error import UserError
from convgen.ir.expr import Unary
from convgen.ir.node import node
from convgen.ir.types import AnyType, bool_


@node
class AllLanes(Unary):
    """True if a bool holds in every lane of the subgroup; every lane takes part and gets one answer."""

    symbol = "all"

    def result(self) -> AnyType:
        if self.a.type is not bool_:
            raise UserError(f"all: given {self.a.type}, wanted a bool of each lane")
        return bool_
