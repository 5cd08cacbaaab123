"""Kernels: what follows from their statements."""

from __future__ import annotations

import convgen as cg
from convgen.ir import types as t
from convgen.ir.expr import const
from convgen.ir.layout.memory import Global
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.ring import ring_of
from convgen.ir.stmt import TensorLoad


def test_tensor_maps_are_those_of_statements() -> None:
    """Each map once, in order of appearance, also from within loops."""
    k = cg.Kernel("k")
    a, b = (k.buffer(name, t.f16, 64 * 64) for name in "ab")
    tile, ring = k.shared("tile", t.f16, 64, 64), ring_of("ring", 1)
    assert k.done().tensor_maps == ()

    def load(buffer: Global, tensor: TensorMap) -> None:
        zero = const(0)
        k.add(TensorLoad(tile, zero, 0, buffer, tensor, (zero, zero), (), ring, k.site()))

    of_b = TensorMap("tiled", "f16", "b", (64, 64), (128,), box=(64, 8))
    of_a, rows_of_a = (TensorMap("tiled", "f16", "a", (64, 64), (128,), box=(64, rows)) for rows in (8, 16))
    load(b, of_b)
    with k.loop("i", 0, 4):
        load(a, rows_of_a)
        load(b, TensorMap("tiled", "f16", "b", (64, 64), (128,), box=(64, 8)))
    load(a, of_a)
    assert k.done().tensor_maps == (of_b, rows_of_a, of_a)
