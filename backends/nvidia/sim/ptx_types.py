"""The types of PTX (PTX ISA, Fundamental Types; Alternate Floating-Point Data Formats; Packed Data Types)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from convgen.ir.record import frozen


@frozen
class Type:
    """A type: bits, kind ("b" bits, "s" signed, "u" unsigned, "f" float), and the numbers packed in it."""

    bits: int
    kind: str
    packed: int = 1


TYPES: Mapping[str, Type] = {
    **{f"{kind}{bits}": Type(bits, kind) for kind in "bsu" for bits in (8, 16, 32, 64)},
    "b128": Type(128, "b"),
    "f16": Type(16, "f"),
    "f32": Type(32, "f"),
    "f64": Type(64, "f"),
    "bf16": Type(16, "f"),
    "tf32": Type(32, "f"),
    "e4m3": Type(8, "f"),
    "e5m2": Type(8, "f"),
    "f16x2": Type(32, "f", 2),
    "bf16x2": Type(32, "f", 2),
    "f32x2": Type(64, "f", 2),
    "e4m3x2": Type(16, "f", 2),
    "e5m2x2": Type(16, "f", 2),
    "s16x2": Type(32, "s", 2),
    "u16x2": Type(32, "u", 2),
    "s4": Type(4, "s"),
    "u4": Type(4, "u"),
    "b1": Type(1, "b"),
    "pred": Type(8, "p"),
}
UNSIGNED: Mapping[int, type[np.unsignedinteger]] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED: Mapping[int, type[np.signedinteger]] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
_FLOATS: Mapping[str, type[np.generic]] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def is_type(name: str) -> bool:
    """Return whether a word without its dot is a type."""
    return name in TYPES


def bits_of(name: str) -> int:
    """Return the bits of a type."""
    return TYPES[name].bits


def bytes_of(name: str) -> int:
    """Return the bytes of a type in memory."""
    return max(TYPES[name].bits // 8, 1)


def storage(name: str) -> type[np.generic]:
    """Return the numpy type that holds a register of a type: unsigned of its size, or bool for predicates."""
    return np.bool_ if name == "pred" else UNSIGNED[TYPES[name].bits]


def view_of(name: str) -> type[np.generic]:
    """Return the numpy type in which an instruction of a type computes; unsigned for what numpy lacks."""
    kind = TYPES[name]
    if name in _FLOATS:
        return _FLOATS[name]
    return SIGNED[kind.bits] if kind.kind == "s" and kind.packed == 1 else UNSIGNED[kind.bits]
