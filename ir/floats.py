"""Operations that only floats have: fused multiply-add, rounding to whole numbers, and approximate functions.

In the IR an `Approximate` operation has the exact result, rounded once; on every target the hardware's result may
differ from the exact one by at most `accuracy`. `sin` and `cos` take turns: the period is 1, so that range reduction is
exact.
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
    """The largest error against the exact result: `ulps` or `absolute`, whichever is larger.

    An ulp is the distance between floats at the exact result, at least the distance between the smallest normal ones.
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
    """The operand with its sign flipped, that of a NaN included."""

    symbol = "-"


@node
class Abs(Unary):
    """The operand without its sign, that of a NaN included."""

    symbol = "abs"


@node
class Floor(Unary):
    """The greatest whole number not above the operand."""

    symbol = "floor"


@node
class Ceil(Unary):
    """The least whole number not below the operand."""

    symbol = "ceil"


@node
class Round(Unary):
    """The nearest whole number; of two equally near ones, the even one."""

    symbol = "round"


@family
class Approximate(Unary):
    """A function with a bounded error; denormal f32 operands and results may be flushed to zeros of the same sign."""

    accuracy: ClassVar[Mapping[Type, Accuracy]]  #: by element type; other types are refused


# Sources of the accuracies on f32: Intel's documentation of ESIMD math (inv, log2, exp2, sqrt, rsqrt, sin, cos). LLVM's
# AMDGPUUsage has 1 ulp for exp2 and log2 on f32 and 0.51 on f16. AMD documents no error of sin and cos; Intel's bound
# is also Direct3D's.

_HALF = Accuracy(1)  #: on f16: one f32 operation and one rounding


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
    """The sine of `a` turns; NaN for an infinity."""

    symbol, accuracy = "sin", {f32: Accuracy(1, 0.00081), f16: Accuracy(1, 0.0013)}


@node
class Cos(Approximate):
    """The cosine of `a` turns; NaN for an infinity."""

    symbol, accuracy = "cos", {f32: Accuracy(1, 0.00081), f16: Accuracy(1, 0.0013)}


EXACT: tuple[type[Unary], ...] = (Neg, Abs, Floor, Ceil, Round)
APPROXIMATE: tuple[type[Approximate], ...] = (Exp2, Log2, Rcp, Sqrt, Rsqrt, Sin, Cos)


def fma(a: Expr, b: Expr | Number, c: Expr | Number) -> Expr:
    """Return `a * b + c`, rounded once."""
    return Fma(a, lift(b, a), lift(c, a))


def absolute(a: Expr) -> Expr:
    """Return the absolute value; that of the least integer wraps to itself."""
    return Abs(a) if a.type.elem.is_float else Max(a, -a)
