"""Element types of the reference: benchdnn's names as types of numpy and ml_dtypes.

The reference shares no table with planning and emission. numpy and ml_dtypes state the limits; `holds` tries all
numbers of a type.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.ir.error import Unsupported

Array = npt.NDArray[np.generic]

#: benchdnn's name, or a name of the IR -> the name in numpy or in ml_dtypes. Formats: the OCP specifications of 8-bit
#: floating point and of microscaling (MX); `fnuz`: LLVM, APFloat.h.
_NAMES = {
    "boolean": "bool",
    "bool": "bool",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    **{f"s{bits}": f"int{bits}" for bits in (4, 8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (4, 8, 16, 32, 64)},
    "f4_e2m1": "float4_e2m1fn",
    "f6_e2m3": "float6_e2m3fn",
    "f6_e3m2": "float6_e3m2fn",
    "e8m0": "float8_e8m0fnu",
    "f8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
    "f8_e4m3fnuz": "float8_e4m3fnuz",
    "f8_e5m2fnuz": "float8_e5m2fnuz",
}
_MOST_TRIED = 16  #: bits of a type whose numbers are all tried


@cache
def numpy_type(name: str) -> np.dtype[np.generic]:
    """Return the numpy type of one element. Raises Unsupported for unknown types."""
    if name not in _NAMES:
        raise Unsupported(f"tensors of type {name}")
    known = _NAMES[name]
    if hasattr(np, known):
        return np.dtype(known)
    import ml_dtypes

    narrow: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, known))
    return narrow


#: numpy's name of a type whose elements are packed in memory -> bits of one
_PACKED = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6}


def bits_in_memory(dtype: npt.DTypeLike) -> int:
    """Return the bits from one element to the next in memory."""
    numpy = np.dtype(dtype)
    return _PACKED.get(numpy.name, 8 * numpy.itemsize)


@cache
def is_integer(name: str) -> bool:
    """Return whether a type is one of integers."""
    return name[0] in "su" and name[1:].isdigit()


@cache
def bits(name: str) -> int:
    """Return the bits of one element."""
    return bits_in_memory(numpy_type(name))


@cache
def limits(name: str) -> tuple[float, float]:
    """Return the least and the greatest finite number; integers for integer types."""
    import ml_dtypes

    if is_integer(name):
        whole: Any = ml_dtypes.iinfo(numpy_type(name))  # type: ignore[no-untyped-call]
        return int(whole.min), int(whole.max)
    real: Any = ml_dtypes.finfo(numpy_type(name))  # type: ignore[no-untyped-call]
    return float(real.min), float(real.max)


@cache
def holds(wide: str, narrow: str) -> bool:
    """Return whether type `wide` has every number of type `narrow`, infinities included."""
    if wide == narrow:
        return True
    if bits(narrow) > _MOST_TRIED:
        return False
    count = 1 << bits(narrow)
    every = np.arange(count, dtype=np.uint32).astype(np.uint8 if count <= 1 << 8 else np.uint16)
    with np.errstate(all="ignore"):
        numbers = every.view(numpy_type(narrow)).astype(np.float64)
        again = numbers.astype(numpy_type(wide)).astype(np.float64)
    return bool(np.all((numbers == again) | (numbers != numbers)))


def has_nan(name: str) -> bool:
    """Return whether a type has NaN."""
    if is_integer(name):
        return False
    with np.errstate(all="ignore"):
        return bool(np.isnan(np.array([np.nan]).astype(numpy_type(name)).astype(np.float64)).any())


def has_infinity(name: str) -> bool:
    """Return whether a type of floats has infinities."""
    with np.errstate(all="ignore"):
        return bool(np.isinf(np.array([np.inf]).astype(numpy_type(name)).astype(np.float64)).any())
