"""How copies are split: every element once, whichever way memory runs; messages that are there; or no split at all."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from convgen.backends import target
from convgen.ir.error import DoesNotFit
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Dim, Global, TensorDim, View, row_major
from convgen.ir.layout.tags import Layout
from convgen.ir.types import Type, bf16, f16, f32, f64
from convgen.passes.messages.linear import linearize
from convgen.plan.copies import CopyLayout, copy_layout, divide, lane_swaps, message_elems, pitch_of

FACTS = target.get("gfx942").facts
LANES, CHUNK_BYTES = FACTS.subgroup_size, FACTS.chunk_bytes


def split(source: View, rows: int, cols: int, waves: int) -> CopyLayout:
    """Into a row-major tile."""
    return copy_layout(source, row_major(rows, cols), rows, cols, FACTS, waves, source.memory.elem)


def view(elem: Type, order: tuple[int, int, int], inner: int = 64, gap: int = 0) -> View:
    """256 rows by K of (4, inner), the three dims in memory in some order (outermost first), rows padded by `gap`."""
    dims = (Dim("row", 256, 256), Dim("outer", 4, 4), Dim("inner", inner, inner))
    sizes = [d.size for d in dims]
    strides, step = [0, 0, 0], 1
    for d in reversed(order):
        strides[d] = step
        step *= sizes[d] + gap
    layout = Layout.from_tag("x".join(map(str, strides)), tuple(sizes))
    index = tuple(TensorDim(d.size, ((d.name, 1),)) for d in dims)
    return View(Global("t", elem, step * elem.bytes), layout, ((dims[0],), dims[1:]), index)


def owned(layout: Fragment, waves: int, lanes: int = LANES) -> np.ndarray:
    """Number of the element (row * cols + k) that each wave, lane and register holds."""
    where = np.indices((waves, lanes, layout.registers))
    at = layout.coords(*where)
    found: np.ndarray = at["row"] * layout.extent("k") + at["k"] + np.zeros_like(where[0])
    return found


def assert_even(split: CopyLayout, rows: int, cols: int, waves: int) -> None:
    loaded, stored = owned(split.loaded, waves), owned(split.stored, waves)
    for held in (loaded, stored):
        assert np.array_equal(np.sort(held.ravel()), np.arange(rows * cols)), "not every element once"
    assert np.array_equal(np.sort(loaded), np.sort(stored)), "a lane loads what it does not store"
    order = split.loaded.order_of(split.stored)
    assert np.array_equal(loaded[:, :, list(order)], stored)


ORDERS = list(permutations(range(3)))
TILES = [
    (rows, cols, waves)
    for rows in (16, 32, 64, 96, 128, 192, 256)
    for cols in (8, 16, 32, 64)
    for waves in (1, 2, 4, 8)
]


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("elem", [f16, bf16, f32, f64], ids=str)
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("gap", [0, 1])
def test_every_element_is_copied_once(elem: Type, order: tuple[int, int, int], gap: int) -> None:
    made = 0
    for rows, cols, waves in TILES:
        source = view(elem, order, gap=gap)
        try:
            found = split(source, rows, cols, waves)
        except DoesNotFit:
            continue
        made += 1
        assert_even(found, rows, cols, waves)
        linear = linearize(source)
        axis = linear.unit_axis
        if found.message > 1:
            assert axis is not None
            name = found.loaded.dims[axis]
            assert found.loaded.contiguous(name) % found.message == 0
            assert found.message * elem.bytes <= CHUNK_BYTES
            assert linear.makes_messages(found.message)
    assert made > 10


@pytest.mark.parametrize("elem", [f16, f32, f64], ids=str)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_what_is_stored_runs_along_k(elem: Type, order: tuple[int, int, int]) -> None:
    """A large tile leaves each lane a whole chunk of K to write, and the widest load that memory gives."""
    found = split(view(elem, order), 256, 64, 4)
    assert found.stored.contiguous("k") * elem.bytes >= CHUNK_BYTES
    along_memory = {0: "row", 2: "k"}.get(order[-1])
    if along_memory:
        assert found.message * elem.bytes == CHUNK_BYTES
        assert found.loaded.contiguous(along_memory) >= found.message
    k_is_nearer = order.index(2) > order.index(0)
    assert (found.loaded == found.stored) == (k_is_nearer or found.message == 1)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_each_element_is_copied_once_whichever_lanes_are_swapped(order: tuple[int, int, int]) -> None:
    """The first copy is the one of the split; the others swap two bits of the lane number."""
    found = split(view(f16, order), 128, 64, 2)
    first, *others = lane_swaps(found, f16, FACTS)
    assert first == found
    assert len(others) in (5, 8, 9)  # bits within and beyond the lanes that write words, half chunks or chunks at once
    in_order, *swapped = (owned(each.loaded, 2)[0, :, 0].tolist() for each in (first, *others))
    for each, lanes in zip(others, swapped):
        assert_even(each, 128, 64, 2)
        assert lanes != in_order
        assert sorted(lanes) == sorted(in_order)
    kept = [lanes[:4] == in_order[:4] for lanes in swapped]
    assert kept == sorted(kept, reverse=True)  # the lowest bits are the last to go


@pytest.mark.parametrize(("inner", "elems"), [(64, 8), (12, 4), (6, 2), (7, 1)])
def test_messages_are_as_long_as_the_inner_dim_allows(inner: int, elems: int) -> None:
    source = view(f16, (0, 1, 2), inner, gap=-inner % 8)
    assert message_elems(source, CHUNK_BYTES) == elems
    assert message_elems(source, CHUNK_BYTES, along=0) == 1


def test_neighbouring_lanes_go_along_memory() -> None:
    for order, dim in (((1, 2, 0), "row"), ((0, 1, 2), "k")):
        found = split(view(f16, order), 128, 32, 1)
        one, two = (found.loaded.coords(0, lane, 0) for lane in (0, 1))
        assert two[dim] - one[dim] == found.loaded.contiguous(dim)


@pytest.mark.parametrize(
    ("rows", "cols", "waves", "message"),
    [
        (32, 12, 1, "chunks of a row: 12 is not a multiple of 8"),
        (8, 32, 1, "rows copied a round: 8 is not a multiple of 16"),
    ],
)
def test_what_does_not_come_out_even_is_refused(rows: int, cols: int, waves: int, message: str) -> None:
    with pytest.raises(DoesNotFit, match=message):
        split(view(f16, (0, 1, 2)), rows, cols, waves)


def test_fewer_elements_than_lanes_are_refused_along_rows() -> None:
    with pytest.raises(DoesNotFit, match="elements of a lane"):
        split(view(f16, (1, 2, 0)), 16, 2, 1)


@pytest.mark.parametrize("rows", [96, 192])
def test_rows_of_three_times_a_power_of_two_come_out_even(rows: int) -> None:
    """However memory runs, with runs along K that are shorter if need be."""
    for order in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        for cols, waves in ((32, 1), (32, 2), (64, 1), (64, 2), (64, 4)):
            assert_even(split(view(f16, order), rows, cols, waves), rows, cols, waves)


@pytest.mark.parametrize("elem", [1, 2, 4, 8])
@pytest.mark.parametrize("chunks", range(1, 10))
def test_rows_of_an_odd_number_of_chunks_have_half_a_chunk_more(chunks: int, elem: int) -> None:
    """But for one chunk, and where shared memory is not read in lanes' chunks."""
    cols = chunks * CHUNK_BYTES // elem
    pitch, chunk = pitch_of(cols, elem, FACTS)
    is_odd = chunks > 1 and chunks % 2 == 1
    assert chunk == CHUNK_BYTES // (2 if is_odd else 1)
    assert pitch * elem == cols * elem + (chunk if is_odd else 0)
    xe = target.get("xehpc").facts
    assert pitch_of(cols, elem, xe) == (cols, xe.chunk_bytes)


def test_division() -> None:
    assert divide("x", 12, 4) == 3
    for total in (0, 10):
        with pytest.raises(DoesNotFit, match=f"x: {total} is not a multiple of 4"):
            divide("x", total, 4)
