"""LDS mnemonics: widths of reads and writes, pairs, and atomic functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.sim.transfer import LOADS, STORES, Width
from convgen.backends.sim.combine import FLOATING, INTEGER, Combine
from convgen.backends.sim.wave_arrays import Array
from convgen.ir.record import frozen

#: Suffixes of reads and writes, in the order of the loads (LOADS) and stores (STORES) with equal widths.
_READS = "u8 i8 u16 i16 u8_d16 u8_d16_hi i8_d16 i8_d16_hi u16_d16 u16_d16_hi b32 b64 b96 b128".split()
_WRITES = "b8 b8_d16_hi b16 b16_d16_hi b32 b64 b96 b128".split()
READS: Mapping[str, Width] = {f"ds_read_{n}": width for n, width in zip(_READS, LOADS.values(), strict=True)}
WRITES: Mapping[str, Width] = {f"ds_write_{n}": width for n, width in zip(_WRITES, STORES.values(), strict=True)}
#: (element bytes, factor of the offsets beyond the element size)
READ2: Mapping[str, tuple[int, int]] = {
    "ds_read2_b32": (4, 1),
    "ds_read2_b64": (8, 1),
    "ds_read2st64_b32": (4, 64),
    "ds_read2st64_b64": (8, 64),
}
WRITE2: Mapping[str, tuple[int, int]] = {name.replace("read", "write"): row for name, row in READ2.items()}


@frozen
class Elements:
    """The elements that a lane of an LDS read or write moves."""

    width: Width
    offsets: tuple[int, ...]  #: bytes; offset of each element from the address
    reads: bool


def elements_of(instruction: Instruction) -> Elements | None:
    """Return the elements of an LDS read or write; None for other instructions."""
    name = instruction.name
    if pair := READ2.get(name) or WRITE2.get(name):
        size, scale = pair
        offsets = tuple(instruction.number(f"offset{n}") * size * scale for n in (0, 1))
        return Elements(Width(size), offsets, name in READ2)
    width = READS.get(name) or WRITES.get(name)
    return None if width is None else Elements(width, (instruction.number("offset"),), name in READS)


#: Our names of the integer operations by the mnemonic's (operation, type letter).
_INTEGER = {
    ("add", "u"): "add",
    ("sub", "u"): "sub",
    ("rsub", "u"): "rsub",
    ("min", "u"): "umin",
    ("max", "u"): "umax",
    ("min", "i"): "smin",
    ("max", "i"): "smax",
    ("and", "b"): "and",
    ("or", "b"): "or",
    ("xor", "b"): "xor",
    ("inc", "u"): "inc",
    ("dec", "u"): "dec",
}


def _atomics() -> dict[str, tuple[Combine, int]]:
    rows: dict[str, tuple[Combine, int]] = {}
    for rtn in ("", "_rtn"):
        for (operation, letter), name in _INTEGER.items():
            for bits in (32, 64):
                rows[f"ds_{operation}{rtn}_{letter}{bits}"] = (INTEGER[name], bits // 8)
        for name, row in FLOATING.items():
            operation, kind = name.rsplit("_", 1)
            rows[f"ds_{operation}{rtn}_{kind}"] = row
        for bits in (32, 64):
            rows[f"ds_cmpst{rtn}_b{bits}"] = rows[f"ds_cmpst{rtn}_f{bits}"] = (INTEGER["swap"], bits // 8)
    for bits in (32, 64):
        rows[f"ds_wrxchg_rtn_b{bits}"] = (INTEGER["swap"], bits // 8)
    return rows


#: Functions of the old value and two operands, by mnemonic, with their bytes.
TWO_OPERANDS: dict[str, tuple[Callable[[Array, Array, Array], Array], int]] = {
    **{
        f"ds_mskor{rtn}_b{bits}": (lambda old, mask, new: (old & ~mask) | new, bits // 8)
        for rtn in ("", "_rtn")
        for bits in (32, 64)
    },
    "ds_wrap_rtn_b32": (lambda old, limit, add: np.where(old >= limit, old - limit, old + add), 4),
}
#: Exchanges of two elements: (factor of the offsets beyond the element size, bytes).
EXCHANGE2: dict[str, tuple[int, int]] = {
    f"ds_wrxchg2{far}_rtn_b{bits}": (64 if far else 1, bits // 8) for far in ("", "st64") for bits in (32, 64)
}
#: (function, bytes); that of an operation with two operands is in `TWO_OPERANDS`
ATOMICS: Mapping[str, tuple[Combine, int]] = {
    **_atomics(),
    **{name: (INTEGER["swap"], size) for name, (_, size) in [*TWO_OPERANDS.items(), *EXCHANGE2.items()]},
}
