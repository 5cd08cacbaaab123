"""Interned types: scalars, per-lane vectors and distributed fragments.

A type describes the registers of *one lane*. `vector(f16, 8)` is eight halves in one lane; a fragment is a vector whose
layout assigns an element of a tile to each (subgroup, lane, register).

The fp8 formats come as in the OCP specification (`f8_e4m3`, `f8_e5m2`) and as finite formats without negative zero
(`…fnuz`). `s4`, `u4` and `f4_e2m1` are packed two a byte, low nibble first; `f6_e2m3` and `f6_e3m2` are packed four in
three bytes, low bits first, and have no vectors: kernels load their bytes. `e8m0` is a scale: a power of two, or NaN.
"""

from __future__ import annotations

from enum import Enum
from functools import cache, cached_property
from typing import Any

import numpy as np

from convgen.ir.checks import check_range
from convgen.ir.error import UserError
from convgen.ir.record import frozen

_MOST_LANES = 1 << 16  #: elements in one lane's registers; a lane has up to 2 KiB of them


class Kind(Enum):
    BOOL = "bool"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    FLOAT = "float"
    POINTER = "pointer"


class AddressSpace(Enum):
    """The memory that a pointer points into."""

    GLOBAL = "global"  #: 64-bit addresses
    SHARED = "shared"  #: 32-bit byte offsets from the start of the workgroup's shared memory


@frozen(eq=False, repr=False)
class Type:
    """A scalar type; equality is identity, so obtain instances from this module's names or `scalar(name)`."""

    name: str
    kind: Kind
    bits: int

    @cached_property
    def is_int(self) -> bool:
        return self.kind in (Kind.SIGNED, Kind.UNSIGNED)

    @cached_property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    @cached_property
    def is_bool(self) -> bool:
        return self.kind is Kind.BOOL

    @property
    def is_storage(self) -> bool:
        """Return whether elements are only stored, moved and converted: no arithmetic is defined for these formats."""
        return self.bits < 16 and (self.is_float or self.bits == 4)

    @property
    def is_by_bytes(self) -> bool:
        """Return whether kernels load the bytes of several elements, as no register has vectors of them."""
        return self.bits == 6

    @property
    def is_rounded_to(self) -> bool:
        """Return whether casts to this type exist: all types but scales and floats of 4 or 6 bits."""
        return self not in (f4_e2m1, f6_e2m3, f6_e3m2, e8m0)

    @cached_property
    def bytes(self) -> int:
        """Return the bytes of a single element, 1 for types of 4 or 6 bits; memory is addressed by `spacing`."""
        return max(1, self.bits // 8)

    @cached_property
    def spacing(self) -> int:
        """Return the bits from one element to the next in memory."""
        return self.bits if self.bits in (4, 6) else 8 * self.bytes

    def size(self, count: int) -> int:
        """Return the bytes that `count` elements take in memory."""
        return -(-count * self.spacing // 8)

    @cached_property
    def lanes(self) -> int:
        return 1

    @cached_property
    def elem(self) -> Type:
        return self

    @cached_property
    def min(self) -> int:
        """Return the least value of an integer type."""
        return -(1 << (self.bits - 1)) if self.kind is Kind.SIGNED else 0

    @cached_property
    def max(self) -> int:
        """Return the greatest value of an integer type (1 for bool)."""
        return (1 << (self.bits - 1)) - 1 if self.kind is Kind.SIGNED else (1 << self.bits) - 1

    def holds(self, other: Type) -> bool:
        """Return whether this type represents every number of `other`, infinity included."""
        if self is other:
            return True
        if self.is_int:
            return other.is_int and self.min <= other.min and other.max <= self.max
        if other.is_int:
            return self.holds_integers(max(-other.min, other.max))
        mine = _limits(self)
        theirs = _limits(other)
        if has_infinity(other) and not has_infinity(self):
            return False
        least = float(mine.smallest_subnormal) <= float(theirs.smallest_subnormal)
        return least and float(mine.max) >= float(theirs.max) and int(mine.nmant) >= int(theirs.nmant)

    def holds_integers(self, most: int) -> bool:
        """Return whether a float type represents every integer whose absolute value is at most `most`."""
        return most <= min(2 << int(_limits(self).nmant), self.largest)

    @property
    def largest(self) -> float:
        """Return the greatest finite value of a float type."""
        return float(_limits(self).max)

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """Return the numpy type of one element (ml_dtypes for narrow ones); numpy stores a 4-bit element in a byte."""
        return _NUMPY[self.name] if self.name in _NUMPY else _narrow(self.name)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return (scalar, (self.name,))


@frozen(eq=False, repr=False)
class VectorType:
    """`lanes` elements of `elem` in the registers of each lane, packed low bits first."""

    elem: Type
    lanes: int

    @property
    def name(self) -> str:
        return f"{self.elem.name}x{self.lanes}"

    @cached_property
    def bits(self) -> int:
        return self.elem.bits * self.lanes

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return (vector, (self.elem, self.lanes))


@frozen(eq=False, repr=False)
class PointerType(Type):
    """The address of an element of `pointee`; a value to pass and select, without arithmetic."""

    pointee: Type
    space: AddressSpace

    @property
    def numpy(self) -> np.dtype[np.generic]:
        return np.dtype(f"uint{self.bits}")

    def __reduce__(self) -> tuple[object, ...]:
        return (pointer, (self.pointee, self.space))


AnyType = Type | VectorType


@cache
def has_infinity(t: Type) -> bool:
    """Return whether a float type has an infinity."""
    with np.errstate(all="ignore"):
        return bool(np.isinf(np.array([np.inf]).astype(t.numpy).astype(np.float64)).any())


@cache
def has_nan(t: Type) -> bool:
    """Return whether a float type has a NaN."""
    with np.errstate(all="ignore"):
        return bool(np.isnan(np.array([np.nan]).astype(t.numpy).astype(np.float64)).any())


@cache
def has_zero(t: Type) -> bool:
    """Return whether an element whose bits are 0 is the number 0: of a type with a numpy type, e8m0 has none."""
    return not np.zeros(1, np.uint64).view(t.numpy)[:1].astype(np.float64).any()


@cache
def _limits(t: Type) -> Any:
    import ml_dtypes

    return ml_dtypes.finfo(t.numpy)  # type: ignore[no-untyped-call]


_NUMPY: dict[str, np.dtype[np.generic]] = {
    "bool": np.dtype(np.bool_),
    **{f"{s}{b}": np.dtype(f"{'int' if s == 's' else 'uint'}{b}") for s in "su" for b in (8, 16, 32, 64)},
    **{f"f{b}": np.dtype(f"float{b}") for b in (16, 32, 64)},
}


@cache
def _narrow(name: str) -> np.dtype[np.generic]:
    """Return the numpy type of a narrow type; ml_dtypes, which defines it, is imported on first use."""
    import ml_dtypes

    types: dict[str, type[np.generic]] = {
        "s4": ml_dtypes.int4,
        "u4": ml_dtypes.uint4,
        "f4_e2m1": ml_dtypes.float4_e2m1fn,
        "f6_e2m3": ml_dtypes.float6_e2m3fn,
        "f6_e3m2": ml_dtypes.float6_e3m2fn,
        "e8m0": ml_dtypes.float8_e8m0fnu,
        "f8_e4m3": ml_dtypes.float8_e4m3fn,
        "f8_e5m2": ml_dtypes.float8_e5m2,
        "f8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
        "f8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
        "bf16": ml_dtypes.bfloat16,
    }
    return np.dtype(types[name])


bool_ = Type("bool", Kind.BOOL, 1)
s4, s8, s16, s32, s64 = (Type(f"s{b}", Kind.SIGNED, b) for b in (4, 8, 16, 32, 64))
u4, u8, u16, u32, u64 = (Type(f"u{b}", Kind.UNSIGNED, b) for b in (4, 8, 16, 32, 64))
f8_e4m3, f8_e5m2 = (Type(f"f8_{form}", Kind.FLOAT, 8) for form in ("e4m3", "e5m2"))
f8_e4m3fnuz, f8_e5m2fnuz = (Type(f"f8_{form}fnuz", Kind.FLOAT, 8) for form in ("e4m3", "e5m2"))
f4_e2m1, e8m0 = Type("f4_e2m1", Kind.FLOAT, 4), Type("e8m0", Kind.FLOAT, 8)
f6_e2m3, f6_e3m2 = (Type(f"f6_{form}", Kind.FLOAT, 6) for form in ("e2m3", "e3m2"))
f16, f32, f64 = (Type(f"f{b}", Kind.FLOAT, b) for b in (16, 32, 64))
bf16 = Type("bf16", Kind.FLOAT, 16)

_INTEGERS = (s4, s8, s16, s32, s64, u4, u8, u16, u32, u64)
_FLOATS = (f4_e2m1, f6_e2m3, f6_e3m2, e8m0, f8_e4m3, f8_e5m2, f8_e4m3fnuz, f8_e5m2fnuz, f16, bf16, f32, f64)
SCALARS: dict[str, Type] = {t.name: t for t in (bool_, *_INTEGERS, *_FLOATS)}


@cache
def half_bytes() -> tuple[np.dtype[np.generic], ...]:
    """Return the numpy types of elements that are packed two a byte."""
    return tuple(t.numpy for t in SCALARS.values() if t.bits == 4)


def scalar(name: str) -> Type:
    """Return the scalar type named as in benchdnn (`f8_e4m3`, `s4`, `boolean`) or in the IR; KeyError if unknown."""
    return bool_ if name == "boolean" else SCALARS[name]


@cache
def pointer(pointee: Type, space: AddressSpace) -> PointerType:
    """Return the interned pointer type for elements of `pointee` in `space`."""
    bits = 64 if space is AddressSpace.GLOBAL else 32
    return PointerType(f"{pointee.name}*{space.value}", Kind.POINTER, bits, pointee, space)


@cache
def vector(elem: Type, lanes: int) -> VectorType:
    """Return the interned vector type of `lanes` elements per lane."""
    check_range(lanes, 1, _MOST_LANES, "elements of a vector:")
    if elem.is_by_bytes:
        raise UserError(f"given a vector of {elem}, wanted one of the bytes that pack such elements")
    return VectorType(elem, lanes)


surface = vector(u32, 4)  #: type of a surface, a bounded window of global memory: a descriptor of four words
