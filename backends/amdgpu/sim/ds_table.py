"""LDS mnemonics: widths of reads and writes, pairs, and atomic functions."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.backends.amdgpu.sim.transfer import Width
from convgen.backends.sim.combine import FLOATING, INTEGER, Combine

READS: Mapping[str, Width] = {
    "ds_read_u8": Width(1),
    "ds_read_i8": Width(1, signed=True),
    "ds_read_u16": Width(2),
    "ds_read_i16": Width(2, signed=True),
    "ds_read_u8_d16": Width(1, half="lo"),
    "ds_read_u8_d16_hi": Width(1, half="hi"),
    "ds_read_i8_d16": Width(1, signed=True, half="lo"),
    "ds_read_i8_d16_hi": Width(1, signed=True, half="hi"),
    "ds_read_u16_d16": Width(2, half="lo"),
    "ds_read_u16_d16_hi": Width(2, half="hi"),
    "ds_read_b32": Width(4),
    "ds_read_b64": Width(8),
    "ds_read_b96": Width(12),
    "ds_read_b128": Width(16),
}
WRITES: Mapping[str, Width] = {
    "ds_write_b8": Width(1),
    "ds_write_b8_d16_hi": Width(1, half="hi"),
    "ds_write_b16": Width(2),
    "ds_write_b16_d16_hi": Width(2, half="hi"),
    "ds_write_b32": Width(4),
    "ds_write_b64": Width(8),
    "ds_write_b96": Width(12),
    "ds_write_b128": Width(16),
}
#: (element bytes, factor of the offsets beyond the element size)
READ2: Mapping[str, tuple[int, int]] = {
    "ds_read2_b32": (4, 1),
    "ds_read2_b64": (8, 1),
    "ds_read2st64_b32": (4, 64),
    "ds_read2st64_b64": (8, 64),
}
WRITE2: Mapping[str, tuple[int, int]] = {name.replace("read", "write"): row for name, row in READ2.items()}


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
            rows[f"ds_cmpst{rtn}_b{bits}"] = (INTEGER["swap"], bits // 8)
    for bits in (32, 64):
        rows[f"ds_wrxchg_rtn_b{bits}"] = (INTEGER["swap"], bits // 8)
    return rows


#: (function, bytes)
ATOMICS: Mapping[str, tuple[Combine, int]] = _atomics()
