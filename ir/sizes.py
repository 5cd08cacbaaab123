"""Values that the host passes at launch: sizes with promised bounds, and values that it computes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TypeAlias

from convgen.ir.checks import check_name, check_range
from convgen.ir.error import UserError
from convgen.ir.expr import Add, Div, Expr, Max, Min, Mul, Sub, Var
from convgen.ir.node import node
from convgen.ir.record import frozen
from convgen.ir.types import AnyType


@frozen
class Promise:
    """A host's promise about a number, which the kernel relies on: in [least, most], a multiple of `multiple`."""

    least: int
    most: int
    multiple: int

    def check(self, name: str, value: float) -> None:
        """Raise UserError for a value that breaks the promise."""
        if not self.least <= value <= self.most or value % self.multiple:
            multiple = f", a multiple of {self.multiple}" if self.multiple > 1 else ""
            raise UserError(f"given {name}={value}, wanted {self.least} to {self.most}{multiple}")


@node
class Size(Var):
    """An s32 scalar argument that the host promises to be in [least, most] and a multiple of `multiple`."""

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
        """Return the least and the greatest value that keeps the promise."""
        n = self.multiple
        return -(-self.least // n) * n, self.most // n * n

    @property
    def promise(self) -> Promise:
        return Promise(self.least, self.most, self.multiple)


@node
class HostValue(Var):
    """A scalar argument that the host computes: now `value`, in any launch the value of the launch expression `expr`.

    `ir.layout.argument` defines the language of launch expressions. If `expr` is empty, the host chooses the value.
    """

    value: int
    expr: str


#: Operations of extents: their symbol in launch expressions, and their function on integers of any size.
OPERATIONS: dict[type[Expr], tuple[str, Callable[[int, int], int]]] = {
    Add: ("+", operator.add),
    Sub: ("-", operator.sub),
    Mul: ("*", operator.mul),
    Div: ("//", operator.floordiv),
    Min: ("min", min),
    Max: ("max", max),
}

Extent: TypeAlias = int | Expr  #: a length, stride or count: a number, or an expression of sizes


def no_extent(e: Expr) -> str:
    """Return the error message for an expression that is not an extent."""
    return f"given the extent {e}, wanted + - * // min and max of sizes and numbers"
