"""Pure expressions: the values that one lane computes. Operators build nodes and never simplify.

`==` and `hash` are identity; comparisons that build nodes are `eq`, `ne`, `<`, `<=`, `>`, `>=`. Python numbers are
lifted to the type of the other operand. Integer `//` and `%` are floor division and its remainder; see docs/ir.md.
"""

from __future__ import annotations

import itertools
from math import isfinite
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from convgen.ir.checks import check_name
from convgen.ir.error import UserError
from convgen.ir.node import Node, derived, family, node
from convgen.ir.types import AnyType, Type, VectorType, bool_, s32, surface, u64, vector

if TYPE_CHECKING:
    from convgen.ir.layout.memory import Global
    from convgen.ir.layout.mma import MmaTile

Number = int | float

_TEMPORARY = "t"  #: name of variables that bind a subexpression and need no name of their own


@family
class Expr(Node):
    """A value of one lane; `type` is derived from the operands."""

    #: in text: an infix sign, or the name of a function of all fields; empty for other forms
    symbol: ClassVar[str] = ""
    #: fields of operands of equal type: in text, a bare number takes the type of another one
    alike: ClassVar[tuple[str, ...]] = ()
    type: AnyType = derived(by="result")

    if TYPE_CHECKING:

        def children(self) -> tuple[Expr, ...]:
            """Return the operands; they are expressions, too."""

    def result(self) -> AnyType:
        """Return the type that follows from the operands' types. Raises UserError if they do not match."""
        raise NotImplementedError

    def __bool__(self) -> bool:
        wanted = "tile.where() in a tile kernel, select() in IR, & and | between conditions, or Python numbers"
        raise UserError(f"given a GPU value where Python needs a bool, wanted {wanted}")

    def __add__(self, o: Expr | Number) -> Expr:
        return Add(self, lift(o, self))

    def __radd__(self, o: Number) -> Expr:
        return Add(lift(o, self), self)

    def __sub__(self, o: Expr | Number) -> Expr:
        return Sub(self, lift(o, self))

    def __rsub__(self, o: Number) -> Expr:
        return Sub(lift(o, self), self)

    def __mul__(self, o: Expr | Number) -> Expr:
        return Mul(self, lift(o, self))

    def __rmul__(self, o: Number) -> Expr:
        return Mul(lift(o, self), self)

    def __floordiv__(self, o: Expr | Number) -> Expr:
        return Div(self, lift(o, self))

    def __mod__(self, o: Expr | Number) -> Expr:
        return Mod(self, lift(o, self))

    def __and__(self, o: Expr | Number) -> Expr:
        return And(self, lift(o, self))

    def __or__(self, o: Expr | Number) -> Expr:
        return Or(self, lift(o, self))

    def __xor__(self, o: Expr | Number) -> Expr:
        return Xor(self, lift(o, self))

    def __rxor__(self, o: Number) -> Expr:
        return Xor(lift(o, self), self)

    def __lshift__(self, o: Expr | Number) -> Expr:
        return Shl(self, lift(o, self))

    def __rshift__(self, o: Expr | Number) -> Expr:
        return Shr(self, lift(o, self))

    def __lt__(self, o: Expr | Number) -> Expr:
        return Lt(self, lift(o, self))

    def __le__(self, o: Expr | Number) -> Expr:
        return Le(self, lift(o, self))

    def __gt__(self, o: Expr | Number) -> Expr:
        return Lt(lift(o, self), self)

    def __ge__(self, o: Expr | Number) -> Expr:
        return Le(lift(o, self), self)

    def __invert__(self) -> Expr:
        return Not(self)

    def __neg__(self) -> Expr:
        from convgen.ir.floats import Neg

        return Neg(self) if self.type.elem.is_float else Sub(lift(0, self), self)

    def to(self, type: AnyType, *, saturate: bool = False) -> Expr:
        """Convert this value to `type`; out-of-range values wrap or overflow as in `Cast`, or saturate."""
        if type is self.type:
            return self
        return Saturate(type, self) if saturate else Cast(type, self)


# ---------------------------------------------------------------- leaves


@node
class Const(Expr):
    """A constant; `bits` is the value of an integer or bool, and the bit pattern of a float."""

    dtype: Type
    bits: int

    def result(self) -> AnyType:
        return self.dtype

    @property
    def value(self) -> int | float:
        """The constant as a Python number."""
        if not self.dtype.is_float:
            return self.bits
        raw = np.array([self.bits], dtype=f"uint{8 * self.dtype.bytes}")
        return float(raw.view(self.dtype.numpy)[0])


@node
class Var(Expr):
    """A named value: bound once on every path, by a let, a load, a loop or the kernel's ABI."""

    name: str
    id: int
    dtype: AnyType

    def result(self) -> AnyType:
        check_name(self.name, "variable")
        return self.dtype

    @property
    def is_temporary(self) -> bool:
        """Return whether the variable binds a subexpression, so its name carries no meaning."""
        return self.name == _TEMPORARY


@node
class Lane(Expr):
    """The lane's number within its subgroup: the only source of divergence."""

    def result(self) -> AnyType:
        return s32


# ---------------------------------------------------------------- operators


@family
class Unary(Expr):
    a: Expr

    def result(self) -> AnyType:
        return self.a.type


@family
class Binary(Expr):
    """Two operands of one identical type."""

    alike = ("a", "b")
    commutes: ClassVar[bool] = False
    a: Expr
    b: Expr

    def result(self) -> AnyType:
        if self.a.type is not self.b.type:
            raise UserError(f"{type(self).__name__}: operands are {self.a.type} and {self.b.type}; convert with .to()")
        return self.a.type


@family
class Comparison(Binary):
    def result(self) -> AnyType:
        compared = super().result()
        return bool_ if isinstance(compared, Type) else vector(bool_, compared.lanes)


@node
class Add(Binary):
    symbol, commutes = "+", True


@node
class Sub(Binary):
    symbol = "-"


@node
class Mul(Binary):
    symbol, commutes = "*", True


@node
class MulHi(Binary):
    """The upper 32 bits of the unsigned 64-bit product of two 32-bit integers."""

    symbol, commutes = "mulhi", True


@node
class Div(Binary):
    """Floor division; the divisor must not be zero."""

    symbol = "//"


@node
class Mod(Binary):
    """`a - b * (a // b)`: the sign of the divisor."""

    symbol = "%"


@node
class Min(Binary):
    symbol, commutes = "min", True


@node
class Max(Binary):
    symbol, commutes = "max", True


@node
class And(Binary):
    symbol, commutes = "&", True


@node
class Or(Binary):
    symbol, commutes = "|", True


@node
class Xor(Binary):
    symbol, commutes = "^", True


@node
class Shl(Binary):
    """Shift left; the amount must lie in [0, bits)."""

    symbol = "<<"


@node
class Shr(Binary):
    """Shift right, arithmetic for signed and logical for unsigned types; the amount must lie in [0, bits)."""

    symbol = ">>"


@node
class Lt(Comparison):
    symbol = "<"


@node
class Le(Comparison):
    symbol = "<="


@node
class Eq(Comparison):
    symbol, commutes = "==", True


@node
class Ne(Comparison):
    symbol, commutes = "!=", True


@node
class Not(Unary):
    """Bitwise complement; logical negation of a bool."""

    symbol = "~"


@node
class Select(Expr):
    """`a` where `cond` holds, else `b`; both are evaluated."""

    symbol, alike = "select", ("a", "b")
    cond: Expr
    a: Expr
    b: Expr

    def result(self) -> AnyType:
        if self.cond.type.elem is not bool_ or self.a.type is not self.b.type:
            raise UserError(f"select: {self.cond.type} ? {self.a.type} : {self.b.type}")
        return self.a.type


@family
class Conversion(Expr):
    """The elements of `a` converted to `dtype`; subclasses define the results for values out of range."""

    dtype: AnyType
    a: Expr

    def result(self) -> AnyType:
        if self.dtype.lanes != self.a.type.lanes:
            raise UserError(f"cast: {self.a.type} has {self.a.type.lanes} elements, {self.dtype} {self.dtype.lanes}")
        return self.dtype


@node
class Cast(Conversion):
    """Integers wrap, floats overflow to infinity (NaN where there is none), floats to integers saturate."""


@node
class Saturate(Conversion):
    """Out-of-range values, infinities included, become the nearest finite value of `dtype`."""


@node
class Uniform(Unary):
    """The value of `a`, which is equal in all lanes of the subgroup by contract; the interpreter checks it."""

    symbol = "uniform"


# ---------------------------------------------------------------- vectors and matrices


@node
class Splat(Expr):
    """A vector whose elements all equal the scalar `a`."""

    dtype: VectorType
    a: Expr

    def result(self) -> AnyType:
        if self.a.type is not self.dtype.elem:
            raise UserError(f"splat: {self.a.type} into {self.dtype}")
        return self.dtype


@node
class Pack(Expr):
    """The bits of `parts`, first part lowest, as one value of type `dtype`."""

    dtype: AnyType
    parts: tuple[Expr, ...]

    def result(self) -> AnyType:
        given = sum(p.type.bits for p in self.parts)
        if given != self.dtype.bits:
            raise UserError(f"pack: {given} bits given, {self.dtype} has {self.dtype.bits}")
        return self.dtype


@node
class Slice(Expr):
    """Elements [start, start + count) of the vector `a`."""

    a: Expr
    start: int
    count: int

    def result(self) -> AnyType:
        if not 0 <= self.start <= self.start + self.count <= self.a.type.lanes:
            raise UserError(f"slice: elements {self.start}..{self.start + self.count} of {self.a.type}")
        return vector(self.a.type.elem, self.count)


@node
class Shuffle(Expr):
    """The vector of elements `order[0]`, `order[1]`, … of the vector `a`; elements may be left out or repeated."""

    a: Expr
    order: tuple[int, ...]

    def result(self) -> AnyType:
        if not self.order or not all(0 <= i < self.a.type.lanes for i in self.order):
            raise UserError(f"shuffle: elements {self.order} of {self.a.type}")
        return vector(self.a.type.elem, len(self.order))


@node
class FromLane(Expr):
    """The value of `a` in lane `lane` of the subgroup; every lane takes part, and several may read one lane."""

    symbol = "from_lane"
    a: Expr
    lane: Expr

    def result(self) -> AnyType:
        if self.lane.type is not s32:
            raise UserError(f"from_lane: given a lane of type {self.lane.type}, wanted s32")
        return self.a.type


@node
class Mma(Expr):
    """`acc + a * b` on whole fragments; `op` (an `ir.layout.mma.MmaTile`) gives the tile's atoms and layouts.

    `scales` are those of `a` and of `b`, by which they are multiplied, if the instruction takes any.
    """

    op: MmaTile
    acc: Expr
    a: Expr
    b: Expr
    scales: tuple[Expr, ...]

    def result(self) -> AnyType:
        wanted = (self.op.acc_type, self.op.a_type, self.op.b_type, *self.op.scale_types)
        given = (self.acc.type, self.a.type, self.b.type, *(s.type for s in self.scales))
        if given != wanted:
            raise UserError(f"mma {self.op.atom.name}: operands {given}, wanted {wanted}")
        return self.acc.type


@node
class Surface(Expr):
    """A bounded window of a global buffer: `shift` bytes from its start, `extent` bytes long.

    An access at an offset outside [0, extent) is defined: a load gives zero, a store is dropped.
    """

    symbol = "surface"
    buffer: Global
    shift: Expr
    extent: Expr

    def result(self) -> AnyType:
        return surface


@node
class AddressOf(Expr):
    """The 64-bit address of the first byte of a global buffer."""

    symbol = "address_of"
    buffer: Global

    def result(self) -> AnyType:
        return u64


# ---------------------------------------------------------------- makers

_ids = itertools.count(1)


def var(name: str, type: AnyType = s32) -> Var:
    """Return a fresh variable; the id distinguishes variables of one name."""
    return Var(name, next(_ids), type)


def temporary(type: AnyType) -> Var:
    """Return a fresh variable for a subexpression that needs no name."""
    return var(_TEMPORARY, type)


def restart_ids(used: int) -> None:
    """Number new variables from `used` + 1, so that ids do not depend on what the process built before."""
    global _ids
    _ids = itertools.count(used + 1)


def reserve_ids(used: int) -> None:
    """Give new variables ids above `used`, as variables read from text bring their ids along."""
    global _ids
    _ids = itertools.count(max(next(_ids), used + 1))


def const(value: Number | bool, type: Type = s32) -> Const:
    """Return the constant `value`, rounded for a float type; UserError if an integer type does not represent it."""
    if type.is_float:
        pattern = np.array([value], dtype=type.numpy).view(f"uint{8 * type.bytes}")[0]
        return Const(type, int(pattern))
    bits = int(value) if isinstance(value, int) or isfinite(value) else None
    if bits is None or bits != value or not type.min <= bits <= type.max:
        raise UserError(f"constant {value} does not fit {type}")
    return Const(type, bits)


def lift(value: Expr | Number, like: Expr) -> Expr:
    """Return `value` as an expression of the type of `like`."""
    if isinstance(value, Expr):
        return value
    type = like.type
    return const(value, type) if isinstance(type, Type) else Splat(type, const(value, type.elem))


def eq(a: Expr, b: Expr | Number) -> Expr:
    return Eq(a, lift(b, a))


def ne(a: Expr, b: Expr | Number) -> Expr:
    return Ne(a, lift(b, a))


def minimum(a: Expr, b: Expr | Number) -> Expr:
    return Min(a, lift(b, a))


def maximum(a: Expr, b: Expr | Number) -> Expr:
    return Max(a, lift(b, a))


def select(cond: Expr, a: Expr, b: Expr | Number) -> Expr:
    return Select(cond, a, lift(b, a))


def zeros(type: VectorType) -> Expr:
    """Return a vector of zeros."""
    return Splat(type, const(0, type.elem))
