"""Tiles through views, registers and local memory on Xe: the simulator leaves what the interpreter leaves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.expr import Expr
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, Shared, Swizzle, row_major
from convgen.ir.program import Kernel
from convgen.ir.types import Type, f16, f32, s8
from convgen.ir.verify import verify
from tests.backends.intel.random_kernels import simulates_through_the_passes
from tests.strategies import FIXED, SWEEP, image_of

LANES = {"xehpg": 8, "xehpc": 16}
SUBGROUPS = 2
Draw = st.DrawFn


@st.composite
def fragments(draw: Draw, lanes: int, each: int) -> Fragment:
    """Fragments over lanes and subgroups, each lane with whole dwords of `each` elements, digits in any order.

    Elements that share a dword are neighbours along one dim, or one is a row below the other.
    """
    digits: list[Digit] = []
    for space, size in (
        (Space.LANE, lanes),
        (Space.SUBGROUP, SUBGROUPS),
        (Space.REGISTER, draw(st.sampled_from((1, 2, 4, 8)))),
    ):
        size, stride = size * (each if space is Space.REGISTER else 1), 1
        while stride < size:
            part = draw(st.sampled_from([n for n in (2, 4, 8, 16) if size % (stride * n) == 0]))
            digits.append(Digit(draw(st.sampled_from("ij")), part, space, stride))
            stride *= part
    return Fragment(("i", "j"), tuple(draw(st.permutations(digits))))


def tile_of(draw: Draw, f: Fragment, elem: Type, lanes: int) -> Shared:
    """By rows, with or without gaps, or as the registers of the fragment stand."""
    rows, cols = f.shape
    digits = row_major(rows, cols, cols + draw(st.sampled_from((0, 4))))
    if draw(st.booleans()):
        digits = image_of(f, lanes, elem.bytes)
    return Shared("tile", elem, rows, cols, digits, draw(st.integers(1, 2)), Swizzle(), 4)


@st.composite
def movements(draw: Draw, target: str) -> Kernel:
    """A tile goes in by one fragment and out by another; views may end within it."""
    lanes, elem = LANES[target], draw(st.sampled_from((s8, f16, f32)))
    one = draw(fragments(lanes, 4 // elem.bytes))
    other = Fragment(one.dims, tuple(draw(st.permutations(one.digits)))) if draw(st.booleans()) else one
    rows, cols = one.shape
    k = KernelBuilder("k", grid=(2, 1, 1), subgroups=SUBGROUPS, width=lanes)
    height, length = (2 * n - draw(st.integers(0, n // 2)) for n in (rows, cols))
    source, result = (matrix(k.buffer(n, elem, height * length), height, length) for n in ("source", "result"))
    k.tiles.append(tile := tile_of(draw, one, elem, lanes))
    with k.loop("n", 0, 2) as loop:
        at: tuple[Expr, Expr] = (k.group[0] * rows, loop.var * cols)
        k.barrier()
        k.store_shared(tile, k.load_view("v", source, at, one), one, tile.slots - 1)
        k.barrier()
        k.store_view(result, at, k.load_shared("w", tile, other, tile.slots - 1), other)
        loop.yields()
    return verify(k.done(), "tile")


def check(target: str, kernel: Kernel) -> None:
    size = next(p.bytes for p in kernel.params if isinstance(p, Global))
    memory = {
        "source": np.random.default_rng(3).integers(0, 120, size, np.uint8),
        "result": np.full(size, 0xA5, np.uint8),
    }
    simulates_through_the_passes(target, kernel, memory)


@pytest.mark.parametrize("target", LANES)
@settings(FIXED, max_examples=10)
@given(data=st.data())
def test_tiles_come_out_as_they_went_in(target: str, data: st.DataObject) -> None:
    check(target, data.draw(movements(target)))


@pytest.mark.sweep
@pytest.mark.parametrize("target", LANES)
@settings(SWEEP, max_examples=400)
@given(data=st.data())
def test_many_tiles_come_out_as_they_went_in(target: str, data: st.DataObject) -> None:
    check(target, data.draw(movements(target)))
