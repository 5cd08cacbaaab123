"""Operations on floats that integers do not have: fused, rounded to whole numbers, and approximate.

An `Approximate` operation means the exact result, rounded once; what hardware gives may be as far from the exact one as
`accuracy` says, on every target. `sin` and `cos` count turns: a period is 1, so that reducing an operand is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from convgen.ir.error import UserError
from convgen.ir.expr import Expr, Max, Number, Unary, lift
from convgen.ir.node import family, node
from convgen.ir.record import frozen
from convgen.ir.types import AnyType, Type, f16, f32


@frozen
class Accuracy:
    """The most that a result may differ from the exact one: `ulps` or `absolute`, whichever is more.

    An ulp is the distance of floats at the exact result, at least that of the smallest normal ones.
    """

    ulps: float
    absolute: float = 0.0


@node
class Fma(Expr):
    """`a * b + c`, rounded once."""

    symbol, alike = "fma", ("a", "b", "c")
    a: Expr
    b: Expr
    c: Expr

    def result(self) -> AnyType:
        given = (self.a.type, self.b.type, self.c.type)
        if len(dict.fromkeys(given)) != 1:
            raise UserError(f"fma: operands are {', '.join(map(str, given))}; convert with .to()")
        return self.a.type


@node
class Neg(Unary):
    """With the other sign, that of a NaN included."""

    symbol = "-"


@node
class Abs(Unary):
    """Without its sign, that of a NaN included."""

    symbol = "abs"


@node
class Floor(Unary):
    """The greatest whole number that is not greater."""

    symbol = "floor"


@node
class Ceil(Unary):
    """The least whole number that is not less."""

    symbol = "ceil"


@node
class Round(Unary):
    """The nearest whole number; of two, the even one."""

    symbol = "round"


@family
class Approximate(Unary):
    """Denormal f32 operands may count as zeros, and denormal f32 results may be zeros, of the same sign."""

    accuracy: ClassVar[Mapping[Type, Accuracy]]  #: by element type; other types are refused


#: Sources: Intel's documentation of ESIMD's math (inv, log2, exp2, sqrt, rsqrt, sin, cos); LLVM's AMDGPUUsage has 1 ulp
#: for exp2 and log2 on f32 and 0.51 on f16. AMD documents no error of sin and cos; Intel's is that of Direct3D, too.
#: Of f16, what one f32 operation and one rounding give.
_HALF = Accuracy(1)


@node
class Exp2(Approximate):
    symbol, accuracy = "exp2", {f32: Accuracy(4), f16: _HALF}


@node
class Log2(Approximate):
    symbol, accuracy = "log2", {f32: Accuracy(4, 2.0**-21), f16: Accuracy(1, 2.0**-21)}


@node
class Rcp(Approximate):
    """The reciprocal."""

    symbol, accuracy = "rcp", {f32: Accuracy(1), f16: _HALF}


@node
class Sqrt(Approximate):
    symbol, accuracy = "sqrt", {f32: Accuracy(4), f16: _HALF}


@node
class Rsqrt(Approximate):
    """The reciprocal of the square root."""

    symbol, accuracy = "rsqrt", {f32: Accuracy(4), f16: _HALF}


@node
class Sin(Approximate):
    """The sine of so many turns; NaN of an infinity."""

    symbol, accuracy = "sin", {f32: Accuracy(1, 0.00081), f16: Accuracy(1, 0.0013)}


@node
class Cos(Approximate):
    """The cosine of so many turns; NaN of an infinity."""

    symbol, accuracy = "cos", {f32: Accuracy(1, 0.00081), f16: Accuracy(1, 0.0013)}


EXACT: tuple[type[Unary], ...] = (Neg, Abs, Floor, Ceil, Round)
APPROXIMATE: tuple[type[Approximate], ...] = (Exp2, Log2, Rcp, Sqrt, Rsqrt, Sin, Cos)


def fma(a: Expr, b: Expr | Number, c: Expr | Number) -> Expr:
    """`a * b + c`, rounded once."""
    return Fma(a, lift(b, a), lift(c, a))


def absolute(a: Expr) -> Expr:
    """The absolute value; that of the least integer wraps to itself."""
    return Abs(a) if a.type.elem.is_float else Max(a, -a)
