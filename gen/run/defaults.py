"""Made-up kernel arguments for `convgen check`: buffers of small numbers, and scalars.

A code object states which arguments are pointers and how many bytes the others have, but seldom the size of a buffer or
the meaning of an integer. Made-up buffers are therefore large (only pages that a kernel touches take memory) and hold
numbers that are valid in many roles: floats from -2 to 2, and integers from 0 to 3, which also serve as indices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from convgen.backends.simulation import Budget, Bytes, Pages, Parameter, Places
from convgen.ir import types
from convgen.ir.error import UserError
from convgen.ir.record import frozen
from convgen.ir.types import Kind, Type
from convgen.run.fills import Fill

MOST_BYTES = 1 << 32  #: bytes; largest made-up buffer
#: bytes that the simulator keeps per byte of a buffer: stamps of stores and of loads, 8 bytes per dword each
_BESIDE = 4

#: Element type by its name in compilers' metadata (`.type_name`) and in MLIR, which Triton's .ttir is written in.
_ELEMENTS: Mapping[str, str] = {
    **dict.fromkeys(("half", "_Float16", "__half", "f16"), "f16"),
    **dict.fromkeys(("__hip_bfloat16", "__bf16", "bf16"), "bf16"),
    **dict.fromkeys(("float", "f32"), "f32"),
    **dict.fromkeys(("double", "f64"), "f64"),
    "f8E4M3FN": "f8_e4m3",
    "f8E5M2": "f8_e5m2",
    "f8E4M3FNUZ": "f8_e4m3fnuz",
    "f8E5M2FNUZ": "f8_e5m2fnuz",
    **dict.fromkeys(("char", "signed char", "i8", "i1", "bool"), "s8"),
    **dict.fromkeys(("uchar", "unsigned char"), "u8"),
    **dict.fromkeys(("short", "i16"), "s16"),
    **dict.fromkeys(("ushort", "unsigned short"), "u16"),
    **dict.fromkeys(("int", "i32"), "s32"),
    **dict.fromkeys(("uint", "unsigned int"), "u32"),
    **dict.fromkeys(("long", "long long", "i64"), "s64"),
    **dict.fromkeys(("ulong", "unsigned long"), "u64"),
}
_QUALIFIERS = re.compile(r"\b(?:const|volatile|restrict|__restrict|__restrict__|global|__global)\b|[*&]")
_UNKNOWN = types.u32  #: element type of a buffer of unrecorded type: words of 0 to 3


def element(type_name: str) -> Type | None:
    """Return the scalar type that a type's name means, its pointers removed; None where the name says nothing."""
    known = _ELEMENTS.get(" ".join(_QUALIFIERS.sub(" ", type_name).split()))
    return None if known is None else types.scalar(known)


@frozen(eq=False)
class Defaults:
    """Makes arguments that no option gives: buffers of `size` bytes, whose pages draw on `budget`, and scalars."""

    size: int
    budget: Budget

    def buffer(self, parameter: Parameter, number: int) -> Pages:
        """Return the buffer of pointer argument `number`, on which alone its content depends."""
        elem = element(parameter.type_name) or _UNKNOWN
        least, most = (-2, 2) if elem.kind is Kind.FLOAT else (0, 3)
        values = np.arange(least, most + 1).astype(elem.numpy)
        count = self.size // elem.bytes
        fill = Fill.of(values, (number,), (max(1, count),))

        def make(places: Places) -> Bytes:
            drawn = fill.numbered(places[:, :: elem.bytes] // elem.bytes)
            return np.ascontiguousarray(drawn).view(np.uint8).reshape(places.shape)

        return Pages(self.size, make, self.budget, _BESIDE)

    def scalar(self, parameter: Parameter, number: int) -> str:
        """Return the value of an argument that is no pointer, as an option would give it; "" for a structure.

        Raises UserError for an argument whose value cannot be assumed.
        """
        if parameter.default is None:
            name = parameter.name or str(number)
            raise UserError(
                f"given no --arg {name}, wanted --arg {name}=OFFSET in local memory, after the arguments before it"
            )
        return "" if parameter.size > 8 else str(parameter.default)
