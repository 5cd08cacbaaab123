"""Selection of scalar-typed expressions, as far as all targets share it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from convgen.backends.machine.emitter import Emitter
from convgen.backends.machine.instruction import Operand, Reg
from convgen.ir.error import VerifyError
from convgen.ir.expr import Cast, Eq, Expr, Lane, Ne, Select, Splat, Var, ne
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.types import AnyType, Type, VectorType, vector
from convgen.ir.uniform import Uniformity


class Scalars(ABC):
    """Evaluates values of one element a lane. It caches nothing between calls: sharing values is the IR's task."""

    out: Emitter

    def __init__(self, out: Emitter, uniform: Uniformity, bounds: Bounds) -> None:
        self.out, self.uniform, self.bounds = out, uniform, bounds
        self.env: dict[Var, Operand] = {}
        self.lets: dict[Var, Expr] = {}  # values of variables
        self.lane: Reg | None = None

    def value(self, e: Expr) -> Operand:
        """Return the value as an operand: scalar register or immediate if uniform, vector register otherwise."""
        e = strip(e)
        if isinstance(e, Var):
            if e not in self.env:
                raise VerifyError(f"selection: {e.name} is not bound")
            return self.env[e]
        if isinstance(e, Lane):
            assert self.lane is not None
            return self.lane
        return self._computed(e)

    def named(self, e: Expr) -> Operand:
        """Return the value in the form that a variable keeps, which a family may choose (negated, for instance)."""
        return self.value(e)

    def add_in_place(self, v: Var, e: Expr) -> bool:
        """Update a carried variable in place and return True, if `e` is a sum with it that allows that."""
        return False

    @abstractmethod
    def _computed(self, e: Expr) -> Operand:
        """Return the value of an expression that is neither a variable nor the lane number."""


def strip(e: Expr) -> Expr:
    """Remove conversions between integers of equal width, which change no bit."""
    while isinstance(e, Cast) and isinstance(e.dtype, Type) and e.dtype.is_int and e.a.type.elem.is_int:
        if e.a.type.bits != e.dtype.bits:
            break
        e = e.a
    return e


def retyped(type: AnyType, elem: Type) -> AnyType:
    """Return a type with as many elements of type `elem`."""
    return vector(elem, type.lanes) if isinstance(type, VectorType) else elem


def plain(e: Expr) -> Expr:
    """Return an equal bool, or vector of bools, whose root is no select, conversion or comparison of bools."""
    match e:
        case Select(cond, a, b):
            if isinstance(e.type, VectorType) and not isinstance(cond.type, VectorType):
                cond = Splat(e.type, cond)
            return (cond & a) | (~cond & b)
        case Cast(_, a):
            return ne(a, 0)
        case Ne(a, b) if a.type.elem.is_bool:
            return a ^ b
        case Eq(a, b) if a.type.elem.is_bool:
            return ~(a ^ b)
    return e
