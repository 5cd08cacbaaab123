"""Copies that no register takes part in, through the tile passes: which element comes to which place, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.target import get
from convgen.ir.build import KernelBuilder
from convgen.ir.error import DoesNotFit, Unsupported, VerifyError
from convgen.ir.interp import interpret
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Dim, Swizzle, TensorDim, View, row_major
from convgen.ir.layout.tags import Layout
from convgen.ir.mutate import mutate, postorder
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import Copy, DirectCopy, DirectLoad, GlobalLoad, SharedRead, SharedWrite, StoreShared
from convgen.ir.types import Type, f16, f32, s8, u8
from convgen.ir.verify import verify
from convgen.passes import pipeline
from convgen.passes.buffer_shared import buffer_shared
from convgen.passes.lower_tiles import lower_tiles
from convgen.passes.messages.direct_copies import places_of

GFX950, GFX942 = get("gfx950").facts, get("gfx942").facts
SENTINEL = 0xA5


def view(k: KernelBuilder, name: str, elem: Type, rows: int, cols: int) -> View:
    dims = (Dim("row", rows, rows),), (Dim("k", cols, cols),)
    index = tuple(TensorDim(d.size, ((d.name, 1),)) for (d,) in dims)
    return View(k.buffer(name, elem, rows * cols), Layout.dense((rows, cols), (0, 1)), dims, index)


def kernel(
    elem: Type,
    width: int,
    tile: tuple[int, int],
    matrix: tuple[int, int],
    slots: int = 2,
    subgroups: int = 2,
    swizzle: Swizzle | None = None,
) -> Kernel:
    """Copies a matrix, tile by tile along K, through shared memory; tiles may reach beyond it."""
    rows, cols = tile
    k = KernelBuilder("through", subgroups=subgroups)
    source, result = (view(k, name, elem, *matrix) for name in ("source", "result"))
    shared = k.shared("tile", elem, rows, cols, slots=slots, swizzle=swizzle or Swizzle())
    across = min(64, cols)
    layout = Fragment(
        ("row", "k"),
        (
            Digit("k", across, Space.LANE, 1),
            Digit("k", cols // across, Space.REGISTER, 1),
            Digit("row", 64 // across, Space.LANE, across),
            Digit("row", subgroups, Space.SUBGROUP, 1),
            Digit("row", rows * across // (64 * subgroups), Space.REGISTER, cols // across),
        ),
    )
    with k.loop("kb", 0, -(-matrix[1] // cols)) as loop:
        k.barrier("release")
        k.copy_directly(shared, source, (0, loop.var * cols), width)
        k.barrier("publish")
        k.store_view(result, (0, loop.var * cols), k.load_shared("t", shared, layout), layout)
        loop.yields()
    return verify(k.done())


def copied(elem: Type, k: Kernel, matrix: tuple[int, int]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """What a kernel writes, and what it should."""
    source = np.random.default_rng(5).integers(0, 256, matrix[0] * matrix[1] * elem.bytes, np.uint8)
    result = np.full_like(source, SENTINEL)
    interpret(k, {"source": source, "result": result})
    return result, source


CASES = [
    (f16, 16, (32, 64), (32, 192), Swizzle(0, 7)),
    (f16, 16, (32, 64), (29, 168), Swizzle(1, 7)),  # rows and columns beyond the matrix
    (f16, 16, (64, 32), (64, 96), Swizzle(2, 3)),
    (f16, 4, (32, 32), (31, 64), Swizzle(1, 3)),
    (f16, 16, (64, 64), (61, 136), Swizzle(0, 7, 2)),
    (f16, 16, (32, 32), (32, 64), Swizzle(0, 1)),
    (f32, 16, (32, 32), (30, 68), Swizzle(0, 7)),
    (s8, 16, (32, 64), (32, 128), Swizzle(1, 3)),
    (s8, 4, (32, 64), (17, 68), Swizzle()),
    (f16, 16, (8, 256), (8, 520), Swizzle(0, 15)),  # a row is longer than what one message brings
]


@pytest.mark.parametrize(("elem", "width", "tile", "matrix", "swizzle"), CASES, ids=str)
@pytest.mark.parametrize(("slots", "subgroups"), [(1, 1), (2, 2), (3, 2)])
def test_each_stage_copies_the_same(
    elem: Type, width: int, tile: tuple[int, int], matrix: tuple[int, int], swizzle: Swizzle, slots: int, subgroups: int
) -> None:
    naive = kernel(elem, width, tile, matrix, slots, subgroups, swizzle)
    buffered = buffer_shared(naive, GFX950)
    lowered = lower_tiles(buffered, GFX950)
    for stage in (naive, buffered, lowered, pipeline.run(naive, GFX950)):
        got, expected = copied(elem, stage, matrix)
        assert np.array_equal(got, expected)
    assert not any(isinstance(s, (Copy, StoreShared)) for s in postorder(buffered))
    assert not any(isinstance(s, (GlobalLoad, SharedWrite)) for s in postorder(lowered))
    assert {s.width for s in postorder(lowered) if isinstance(s, DirectLoad)} == {width}


def test_a_slot_is_filled_in_the_iteration_before_it_is_read() -> None:
    """With three slots two blocks are on their way before the loop."""
    body = buffer_shared(kernel(f16, 16, (32, 64), (32, 64 * 9), 3), GFX950).body
    copies = [s.slot for s in postorder(body) if isinstance(s, DirectCopy)]
    assert [getattr(slot, "bits", None) for slot in copies[:5]] == [0, 1, 2, 0, 1]


def test_offsets_of_shared_memory_stay_within_their_field() -> None:
    """Also where the tile begins beyond what an offset reaches."""
    k = kernel(f16, 16, (256, 128), (256, 384), 3)
    lowered = lower_tiles(buffer_shared(k, GFX950), GFX950)
    reads = [s for s in postorder(lowered) if isinstance(s, SharedRead)]
    ends = {lowered.shared_base(s.tile) + s.imm for s in reads}
    assert lowered.shared_bytes > GFX950.shared_imm_max > max(ends) >= min(ends) >= 0


@pytest.mark.parametrize("subgroups", [1, 2, 4])
@pytest.mark.parametrize("width", [4, 16])
def test_places_follow_the_lanes(width: int, subgroups: int) -> None:
    rows, cols = 32, 64
    layout = places_of(row_major(rows, cols), f16, width, 64, subgroups)
    each = width // 2
    for subgroup, lane, register in np.random.default_rng(1).integers(0, 64, (50, 3)):
        subgroup, register = subgroup % subgroups, register % layout.registers
        at = layout.coords(int(subgroup), int(lane), int(register))
        message, part = divmod(int(register), each)
        assert at["row"] * cols + at["k"] == ((message * subgroups + subgroup) * 64 + lane) * each + part


@pytest.mark.parametrize(("rows", "cols"), [(8, 64), (64, 48)])
def test_what_lanes_do_not_share_evenly_does_not_fit(rows: int, cols: int) -> None:
    with pytest.raises(DoesNotFit, match="copy=direct"):
        places_of(row_major(rows, cols), f16, 16, 64, 4)


def test_what_does_not_go_without_registers_is_refused() -> None:
    good = kernel(f16, 16, (32, 64), (32, 128))
    with pytest.raises(VerifyError, match="slots of 4096 bytes, wanted multiples of 8192 without gaps"):
        verify(evolve(good, subgroups=8))
    with pytest.raises(Unsupported, match="16 bytes a lane, wanted one that gfx942 has"):
        lower_tiles(buffer_shared(good, GFX950), GFX942)
    odd = kernel(f16, 16, (32, 64), (32, 66))
    with pytest.raises(Unsupported, match="of which 4 are contiguous in memory"):
        lower_tiles(buffer_shared(odd, GFX950), GFX950)
    with pytest.raises(
        VerifyError, match="into tile, whose swizzle exchanges chunks of different rows, wanted one within rows"
    ):
        kernel(f16, 16, (32, 32), (32, 64), swizzle=Swizzle(0, 7))
    for cols, swizzle in ((16, Swizzle(0, 2)), (8, Swizzle(1, 1))):  # as many chunks a row as the mask
        with pytest.raises(VerifyError, match="into tile, whose swizzle exchanges chunks of different rows"):
            kernel(f16, 16, (64, cols), (64, 64), swizzle=swizzle)
    mixed = KernelBuilder("mixed", subgroups=2)
    tile, source = mixed.shared("tile", s8, 32, 64), view(mixed, "source", u8, 32, 64)
    mixed.copy_directly(tile, source, (0, 0), 16)
    with pytest.raises(VerifyError, match="direct copy of u8 into a shared tile of s8"):
        verify(mixed.done())


def test_messages_are_checked() -> None:
    lowered = lower_tiles(buffer_shared(kernel(f16, 16, (32, 64), (32, 128)), GFX950), GFX950)
    with pytest.raises(VerifyError, match="a direct load of 16 bytes a lane to -1"):
        verify(mutate(lowered, {DirectLoad: lambda s: evolve(s, imm=-1)}))
