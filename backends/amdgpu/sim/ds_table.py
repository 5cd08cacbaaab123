"""LDS mnemonics: widths of reads and writes, pairs, and atomic functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.amdgpu.sim.state import Array
from convgen.backends.amdgpu.sim.transfer import Width

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


def _f32(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(a.view(np.float32), b.view(np.float32)).view(np.uint32)


def _f64(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(a.view(np.float64), b.view(np.float64)).view(np.uint64)


def _signed(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def apply(a: Array, b: Array) -> Array:
        kind = np.int64 if a.dtype == np.uint64 else np.int32
        return function(a.view(kind), b.view(kind)).view(a.dtype)

    return apply


_INTEGER: Mapping[str, Callable[[Array, Array], Array]] = {
    "add_u": lambda a, b: a + b,
    "sub_u": lambda a, b: a - b,
    "rsub_u": lambda a, b: b - a,
    "min_u": np.minimum,
    "max_u": np.maximum,
    "min_i": _signed(np.minimum),
    "max_i": _signed(np.maximum),
    "and_b": lambda a, b: a & b,
    "or_b": lambda a, b: a | b,
    "xor_b": lambda a, b: a ^ b,
}


def _atomics() -> dict[str, tuple[Callable[[Array, Array], Array], int]]:
    rows: dict[str, tuple[Callable[[Array, Array], Array], int]] = {}
    for rtn in ("", "_rtn"):
        for name, function in _INTEGER.items():
            operation, kind = name.rsplit("_", 1)
            for bits in (32, 64):
                rows[f"ds_{operation}{rtn}_{kind}{bits}"] = (function, bits // 8)
        for operation, maker in (("add", np.add), ("min", np.fmin), ("max", np.fmax)):
            rows[f"ds_{operation}{rtn}_f32"] = (_f32(maker), 4)
            rows[f"ds_{operation}{rtn}_f64"] = (_f64(maker), 8)
    for bits in (32, 64):
        rows[f"ds_wrxchg_rtn_b{bits}"] = (lambda a, b: b, bits // 8)
    return rows


ATOMICS = _atomics()
