"""What a host gives at launch: sizes of which it promises something, and values that it computes."""

from __future__ import annotations

from typing import TypeAlias

from convgen.ir.checks import check_name, check_range
from convgen.ir.error import UserError
from convgen.ir.expr import Expr, Var
from convgen.ir.node import node
from convgen.ir.types import AnyType


@node
class Size(Var):
    """A scalar argument that the host promises to be in [least, most], a multiple of `multiple`: s32."""

    least: int
    most: int
    multiple: int

    def result(self) -> AnyType:
        check_name(self.name, "size")
        check_range(self.least, 0, (1 << 31) - 1, f"least value of {self.name}:")
        check_range(self.most, self.least, (1 << 31) - 1, f"most of {self.name}:")
        check_range(self.multiple, 1, max(1, self.most), f"divisor of {self.name}:")
        return self.dtype

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest value that keeps the promise."""
        n = self.multiple
        return -(-self.least // n) * n, self.most // n * n

    def check(self, value: int) -> None:
        """UserError for a value that breaks the promise."""
        if not self.least <= value <= self.most or value % self.multiple:
            multiple = f", a multiple of {self.multiple}" if self.multiple > 1 else ""
            raise UserError(f"given {self.name}={value}, wanted {self.least} to {self.most}{multiple}")


@node
class HostValue(Var):
    """A scalar argument that the host computes: `value` now, in any launch what the expression `told` gives.

    What `told` may say is in `ir.layout.argument`; where it is empty, the host chooses.
    """

    value: int
    told: str


Extent: TypeAlias = int | Expr  #: a length, stride or count: a number, or an expression of sizes
