"""Interned types: scalars, per-lane vectors and distributed fragments.

A type describes what *one lane* holds. `Vector(f16, 8)` is eight halves in one lane's registers; a fragment is a
vector whose layout says which element of a tile each (subgroup, lane, register) holds.
"""

from __future__ import annotations

from enum import Enum
from functools import cache

import attrs
import ml_dtypes
import numpy as np


class Kind(Enum):
    BOOL = "bool"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    FLOAT = "float"


@attrs.frozen(eq=False, repr=False, slots=True)
class Type:
    """A scalar type; equality is identity, so obtain instances from this module's names or `scalar(name)`."""

    name: str
    kind: Kind
    bits: int

    @property
    def is_int(self) -> bool:
        return self.kind in (Kind.SIGNED, Kind.UNSIGNED)

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    @property
    def is_bool(self) -> bool:
        return self.kind is Kind.BOOL

    @property
    def bytes(self) -> int:
        return max(1, self.bits // 8)

    @property
    def lanes(self) -> int:
        return 1

    @property
    def elem(self) -> Type:
        return self

    @property
    def min(self) -> int:
        """The least value of an integer type."""
        return -(1 << (self.bits - 1)) if self.kind is Kind.SIGNED else 0

    @property
    def max(self) -> int:
        """The greatest value of an integer type (1 for bool)."""
        return (1 << (self.bits - 1)) - 1 if self.kind is Kind.SIGNED else (1 << self.bits) - 1

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy type that stores one element (ml_dtypes for bf16 and fp8)."""
        return _NUMPY[self.name]

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return (scalar, (self.name,))


@attrs.frozen(eq=False, repr=False, slots=True)
class VectorType:
    """`lanes` elements of `elem` in the registers of each lane, packed low bits first."""

    elem: Type
    lanes: int

    @property
    def name(self) -> str:
        return f"{self.elem.name}x{self.lanes}"

    @property
    def bits(self) -> int:
        return self.elem.bits * self.lanes

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return (vector, (self.elem, self.lanes))


AnyType = Type | VectorType


_NUMPY: dict[str, np.dtype[np.generic]] = {
    "bool": np.dtype(np.bool_),
    **{f"{s}{b}": np.dtype(f"{'int' if s == 's' else 'uint'}{b}") for s in "su" for b in (8, 16, 32, 64)},
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}

bool_ = Type("bool", Kind.BOOL, 1)
s8, s16, s32, s64 = (Type(f"s{b}", Kind.SIGNED, b) for b in (8, 16, 32, 64))
u8, u16, u32, u64 = (Type(f"u{b}", Kind.UNSIGNED, b) for b in (8, 16, 32, 64))
f16, f32, f64 = (Type(f"f{b}", Kind.FLOAT, b) for b in (16, 32, 64))
bf16 = Type("bf16", Kind.FLOAT, 16)

SCALARS: dict[str, Type] = {t.name: t for t in (bool_, s8, s16, s32, s64, u8, u16, u32, u64, f16, bf16, f32, f64)}


def scalar(name: str) -> Type:
    """The scalar type of that name; KeyError if there is none."""
    return SCALARS[name]


@cache
def vector(elem: Type, lanes: int) -> VectorType:
    """The interned vector type of `lanes` elements per lane."""
    return VectorType(elem, lanes)


surface = vector(u32, 4)  #: what names a bounded window of global memory (AMD: the four words of a buffer descriptor)
