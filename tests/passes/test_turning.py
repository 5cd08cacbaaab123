"""Copies that are loaded in another order than stored, and shuffled and added fragments, through the tile passes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.target import get
from convgen.ir.build import KernelBuilder
from convgen.ir.error import VerifyError
from convgen.ir.expr import Shuffle
from convgen.ir.interp import interpret
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Dim, Swizzle, TensorDim, View
from convgen.ir.layout.tags import Layout
from convgen.ir.mutate import mutate, postorder
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import Copy, GlobalAtomic, GlobalLoad, SharedWrite, Stmt, StoreShared
from convgen.ir.types import Type, f16, f32, f64, s8, u8, vector
from convgen.ir.verify import verify
from convgen.passes import pipeline
from convgen.passes.buffer_shared import buffer_shared
from convgen.passes.lower_tiles import lower_tiles

FACTS = get("gfx942").facts
R, L, S = Space.REGISTER, Space.LANE, Space.SUBGROUP
ROWS, COLS, WAVES = 64, 32, 2


def blocks(run: int, chunk: int, by_rows: bool) -> Fragment:
    """Blocks of `run` rows x `chunk` columns a lane, registers along K or, `by_rows`, along the rows."""
    down = ROWS // run
    across = 64 // down
    rounds = COLS // (chunk * across * WAVES)
    return Fragment(
        ("row", "k"),
        (
            Digit("row", run, R, 1 if by_rows else chunk),
            Digit("row", down, L, 1),
            Digit("k", chunk, R, run if by_rows else 1),
            Digit("k", across, L, down),
            Digit("k", WAVES, S, 1),
            Digit("k", rounds, R, run * chunk),
        ),
    )


def kernel(elem: Type, run: int, chunk: int, trips: int, slots: int, flip: int = 0) -> Kernel:
    """Copies blocks of K of a matrix that lies by columns through shared memory, and out by rows; u8 flipped as s8."""
    k = KernelBuilder("turn", subgroups=WAVES)
    width = COLS * trips
    dims = (Dim("row", ROWS, ROWS),), (Dim("k", width, width),)
    index = tuple(TensorDim(d.size, ((d.name, 1),)) for (d,) in dims)
    source = View(k.buffer("source", elem, ROWS * width), Layout.dense((ROWS, width), (1, 0)), dims, index)
    to = s8 if flip else elem
    result = View(k.buffer("result", to, ROWS * width), Layout.dense((ROWS, width), (0, 1)), dims, index)
    tile = k.shared("tile", to, ROWS, COLS, slots=slots, swizzle=Swizzle(0, min(3, COLS * to.bytes // 16 - 1)))
    stored, loaded = (blocks(run, chunk, by_rows) for by_rows in (False, True))
    with k.loop("kb", 0, trips) as loop:
        k.barrier("release")
        k.copy(tile, source, (0, loop.var * COLS), stored, loaded=loaded, flip=flip)
        k.barrier("publish")
        k.store_view(result, (0, loop.var * COLS), k.load_shared("t", tile, stored), stored)
        loop.yields()
    return k.done()


def transposed(elem: Type, k: Kernel, width: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """What a kernel writes, and what it should."""
    source = np.random.default_rng(5).integers(0, 256, ROWS * width * elem.bytes, np.uint8)
    result = np.full_like(source, 0xA5)
    interpret(k, {"source": source, "result": result})
    unsigned = f"u{elem.bytes}"
    return result.view(unsigned).reshape(ROWS, width), source.view(unsigned).reshape(width, ROWS).T


SHAPES = [(f16, 2, 8), (f16, 4, 4), (f16, 8, 2), (f16, 4, 2), (f32, 2, 4), (f32, 4, 2), (f32, 4, 4), (f64, 2, 2)]


@pytest.mark.parametrize(("elem", "run", "chunk"), SHAPES, ids=str)
@pytest.mark.parametrize(("trips", "slots"), [(1, 1), (3, 1), (4, 2), (5, 3)])
def test_each_stage_writes_the_same(elem: Type, run: int, chunk: int, trips: int, slots: int) -> None:
    naive = kernel(elem, run, chunk, trips, slots)
    buffered = buffer_shared(naive, FACTS)
    assert not any(isinstance(s, Copy) for s in postorder(buffered))
    stores = [s for s in postorder(buffered) if isinstance(s, StoreShared)]
    assert stores
    assert all(isinstance(s.value, Shuffle) for s in stores)
    lowered = lower_tiles(buffered, FACTS)
    for stage in (naive, buffered, lowered, pipeline.run(naive, FACTS)):
        got, expected = transposed(elem, stage, COLS * trips)
        assert np.array_equal(got, expected)
    assert {s.var.type.bits // 8 for s in postorder(lowered) if isinstance(s, GlobalLoad)} == {run * elem.bytes}
    assert {s.value.type.bits // 8 for s in postorder(lowered) if isinstance(s, SharedWrite)} == {chunk * elem.bytes}


@pytest.mark.parametrize("run", [2, 4])
def test_bits_are_flipped_on_the_way(run: int) -> None:
    naive = kernel(u8, run, 4, 3, 2, flip=0x80)
    for stage in (naive, buffer_shared(naive, FACTS), pipeline.run(naive, FACTS)):
        got, expected = transposed(u8, stage, COLS * 3)
        assert np.array_equal(got.view(np.int8), expected.astype(np.int16) - 128)


def test_copies_to_other_types_are_refused() -> None:
    with pytest.raises(VerifyError, match="copy of u8 into a shared tile of s8"):
        verify(mutate(kernel(u8, 2, 4, 3, 2, 0x80), {Copy: lambda c: evolve(c, flip=0)}))


def test_what_is_loaded_as_stored_is_not_shuffled() -> None:
    def straight(c: Copy) -> Stmt:
        return Copy(c.tile, c.slot, c.view, c.coords, c.layout, c.layout, c.site, c.flip, c.stages)

    k = mutate(kernel(f16, 4, 4, 3, 2), {Copy: straight})
    assert not any(isinstance(n, Shuffle) for n in postorder(buffer_shared(k, FACTS)))


def test_runs_of_one_row_move_nothing() -> None:
    lowered = lower_tiles(buffer_shared(kernel(f16, 1, 8, 3, 2), FACTS), FACTS)
    assert not any(isinstance(n, Shuffle) for n in postorder(lowered))


@pytest.mark.parametrize("elem", [f32, f64], ids=str)
@pytest.mark.parametrize("off", [(0, 0), (3, 2)], ids=str)
@pytest.mark.parametrize("width", [5, 8])  # 8: loads and stores would take whole messages
def test_additions_are_lowered_element_by_element(elem: Type, off: tuple[int, int], width: int) -> None:
    k = KernelBuilder("add", grid=(2, 1, 1))
    layout = Fragment(("row", "col"), (Digit("row", 64, L, 1), Digit("col", 4, R, 1)))
    dims = (Dim("row", 62, 62),), (Dim("col", width, width),)
    index = tuple(TensorDim(d.size, ((d.name, 1),)) for (d,) in dims)
    source, result = (
        View(k.buffer(name, elem, 62 * width), Layout.dense((62, width), (0, 1)), dims, index) for name in ("x", "y")
    )
    value = k.load_view("t", source, off, layout)
    k.atomic_view("add", result, off, Shuffle(value, (1, 0, 3, 2)) + k.zeros(vector(elem, 4)), layout)
    before = k.done()
    after = lower_tiles(before, FACTS)
    adds = [s for s in postorder(after) if isinstance(s, GlobalAtomic)]
    assert [s.value.type.lanes for s in adds] == [1] * 4
    x = np.arange(62 * width).astype(elem.numpy)
    results = []
    for stage in (before, after, pipeline.run(before, FACTS)):
        memory = {"x": x.view(np.uint8).copy(), "y": np.ones_like(x).view(np.uint8)}
        interpret(stage, memory)
        results.append(memory["y"].view(elem.numpy).reshape(62, width))
    expected = np.ones((62, width))
    for row, col in product(range(62), range(width)):
        at = col - off[1]
        if row >= off[0] and 0 <= at < 4:
            other = off[1] + (at ^ 1)
            expected[row, col] += 2 * x.reshape(62, width)[row, other] if other < width else 0
    for got in results:
        assert np.array_equal(got, expected)
