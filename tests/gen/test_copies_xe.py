"""Copies on targets with block messages: every element once, and registers that blocks can store as they stand."""

from __future__ import annotations

from itertools import permutations, product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen import driver
from convgen.backends import target
from convgen.ir.error import DoesNotFit
from convgen.ir.expr import const
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Digits, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import COL, ROW, RectangleOrder, Shared, Swizzle, row_major
from convgen.ir.layout.mma import MmaTile
from convgen.ir.record import evolve
from convgen.ir.types import f16
from convgen.passes.messages.planes import whole_rectangles
from convgen.passes.messages.shared import Arrangement, shared_messages
from convgen.passes.messages.swizzle import find_gaps, write_conflicts
from convgen.plan.config import Config
from convgen.plan.copies import comes_out_even, copy_layout, in_memory_order, rounded_rows
from convgen.plan.inputs import ProductInput, with_gaps
from convgen.plan.plan import make_plan
from convgen.problem.conv import Conv
from tests.gen.test_copies import TILES, owned, view
from tests.strategies import FIXED, image_of, in_memory

XE = {name: target.get(name).facts for name in ("xehpc", "xehpg")}
ORDERS = list(permutations(range(3)))
Tiled = tuple[tuple[int, int, int], str]  #: a tile's rows, columns and waves, and how it lies in shared memory
TILED: list[Tiled] = list(product(TILES, ("rows", "a", "b")))


def images(facts: TargetFacts, rows: int, cols: int, part_of_b: bool) -> Digits | None:
    """The tile as the fragments of a product stand, if it comes out even; as `plan` chooses it."""
    atom = next(a for a in facts.atoms if a.a_elem is f16 and a.spans == 1)
    count, step = rows // (atom.m if part_of_b else atom.n), cols // atom.k
    if not count or not step or rows % (atom.m if part_of_b else atom.n) or cols % atom.k:
        return None
    tile = MmaTile(atom, 1 if part_of_b else count, count if part_of_b else 1, step)
    return image_of(tile.b if part_of_b else tile.a, facts.subgroup_size, 2)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("name", XE)
def test_every_element_is_copied_once(name: str, order: tuple[int, int, int]) -> None:
    """Each target and order copies every twelfth combination of a tile and a kind, from a start of its own."""
    assert copied(name, order, TILED[ORDERS.index(order) + len(ORDERS) * list(XE).index(name) :: 12]) > 2


@pytest.mark.sweep
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("name", XE)
def test_every_element_of_all_tiles_is_copied_once(name: str, order: tuple[int, int, int]) -> None:
    assert copied(name, order, TILED) > 10


def copied(name: str, order: tuple[int, int, int], tiled: list[Tiled]) -> int:
    """Return how many copies there are for the tiles, each of which copies every element once."""
    facts, made = XE[name], 0
    for (rows, cols, waves), kind in tiled:
        memory = row_major(rows, cols) if kind == "rows" else images(facts, rows, cols, kind == "b")
        if memory is None:
            continue
        try:
            split = copy_layout(view(f16, order), memory, rows, cols, facts, waves, f16)
        except DoesNotFit:
            continue
        made += 1
        loaded, stored = (owned(f, waves, facts.subgroup_size) for f in (split.loaded, split.stored))
        assert np.array_equal(np.sort(loaded.ravel()), np.arange(rows * cols)), "not every element once"
        assert np.array_equal(loaded[:, :, list(split.loaded.order_of(split.stored))], stored)
        unit = 1 if order[-1] == 2 else 0
        rectangles = whole_rectangles(split.loaded, unit, f16.bytes, facts) if split.loaded == split.stored else None
        assert rectangles or split.loaded.contiguous(split.loaded.dims[unit]) % split.message == 0
        assert split.message * f16.bytes <= facts.chunk_bytes
    return made


@pytest.mark.parametrize("name", XE)
def test_lanes_go_down_the_rows_and_write_blocks(name: str) -> None:
    """Where memory runs along K, the tile of operand A is stored in blocks only."""
    facts = XE[name]
    for rows, cols, waves in product((64, 128, 256), (32, 64), (1, 4, 8)):
        memory = images(facts, rows, cols, False)
        assert memory is not None
        split = copy_layout(view(f16, (0, 1, 2)), memory, rows, cols, facts, waves, f16)
        one, two = (split.loaded.coords(0, lane, 0) for lane in (0, 1))
        assert (two["row"] - one["row"], two["k"] - one["k"]) == (1, 0)
        tile = Shared("t", f16, rows, cols, memory, 1, Swizzle(), 16)
        messages = list(shared_messages(tile, const(0), split.stored, const(0), waves, facts))
        assert all(m.arrangement is Arrangement.BLOCK for m in messages)
        assert sum(m.count for m in messages) == split.stored.registers


@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize("name", XE)
def test_lanes_write_without_conflicts(name: str, operand: str) -> None:
    """With gaps behind blocks, and where lanes are as many as rows of one, with only some of them in it."""
    facts = XE[name]
    for rows, cols, waves in product((64, 128, 256), (32, 64), (4, 8)):
        memory = images(facts, rows, cols, operand == "b")
        assert memory is not None
        split = copy_layout(view(f16, (0, 1, 2)), memory, rows, cols, facts, waves, f16)
        apart = find_gaps(memory, f16, split.stored, facts)
        assert write_conflicts(apart, f16, split.stored, facts) == 0


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        ("mb4ic64ih7oc128oh7kh3ph1", "tile=64x128x32 waves=1x4 mma=16x8x16 slots=2 taps=split subtiles=8"),
        ("mb1ic3ih32oc64oh16kh7sh2ph3", "tile=256x64x32 waves=8x2 mma=16x8x16 slots=2 taps=runs"),
    ],
)
def test_lanes_write_neighbours_of_several_blocks(problem: str, config: str) -> None:
    """Blocks of eight rows: neither in order nor sixteen rows apart do lanes begin in different banks."""
    built = driver.build(
        Conv.parse(problem, dir="FWD_D", dt="f16", stag="axb", wtag="axb", dtag="axb"), "xehpc", config
    )
    assert built.plan is not None
    of_m = built.plan.parts[0].of_m
    assert of_m.tile is not None
    assert of_m.copy is not None
    assert write_conflicts(of_m.tile.digits, f16, of_m.copy.stored, XE["xehpc"]) == 0


def test_rows_are_dealt_where_lanes_meet_otherwise() -> None:
    """Eight rows of a block begin in four banks: a rectangle's sixteen channels are of four blocks each."""
    facts, config = XE["xehpc"], Config.parse("tile=64x192x32 waves=2x4 mma=16x8x16 slots=2 taps=fused")
    made = Conv.parse("mb4ic64ih56oc64oh56kh3ph1", dir="BWD_W", dt="f16", stag="axb", wtag="axb", dtag="axb")
    plan = make_plan(made, config, facts)
    assert plan.mma.rows == 4
    mma = evolve(plan.mma, rows=0)
    copied = ProductInput(plan.parts[0].product.of_m, f16, mma.b, plan.config, facts).path(64)
    in_order = with_gaps((copied,), facts)[0]
    assert in_order.conflicts > 0


#: (operand, axis along which memory runs) -> how its rectangles stand in registers, and how these are stored.
RECTANGLES = {
    ("a", 1): (RectangleOrder.ROW_A_LANE, Arrangement.BLOCK),
    ("a", 0): (RectangleOrder.COLUMN_A_LANE, Arrangement.BLOCK),
    ("b", 1): (RectangleOrder.ROWS, Arrangement.BLOCK),
    ("b", 0): (
        RectangleOrder.COLUMN_A_LANE,
        Arrangement.LANE,
    ),  # which is half of the way; a lane writes its chunk as a row
}


@pytest.mark.parametrize(("operand", "unit"), RECTANGLES)
def test_rectangles_come_as_blocks_or_chunks_are_stored(operand: str, unit: int) -> None:
    facts = XE["xehpc"]
    for rows, cols, waves in product((64, 128, 256), (32, 64), (1, 4, 8)):
        memory = images(facts, rows, cols, operand == "b")
        assert memory is not None
        split = copy_layout(view(f16, (0, 1, 2) if unit else (1, 2, 0)), memory, rows, cols, facts, waves, f16)
        shape = whole_rectangles(split.loaded, unit, f16.bytes, facts)
        order, way = RECTANGLES[operand, unit]
        assert shape is not None
        assert shape.order is order
        tile = Shared("t", f16, rows, cols, memory, 1, Swizzle(), facts.chunk_bytes)
        messages = list(shared_messages(tile, const(0), split.stored, const(0), waves, facts))
        assert {m.arrangement for m in messages} == {way}
        if way is Arrangement.LANE:
            assert {m.count * f16.bytes for m in messages} == {facts.chunk_bytes}
        else:
            assert split.loaded == split.stored


@pytest.mark.parametrize("operand", ["a", "b"])
def test_what_is_turned_is_written_in_words(operand: str) -> None:
    """Rows that lanes could load sixteen at once, but then one along K, which would be written one by one."""
    facts = XE["xehpg"]
    for rows, cols, waves in ((192, 32, 16), (192, 16, 8), (96, 32, 8), (64, 64, 16)):
        memory = images(facts, rows, cols, operand == "b")
        assert memory is not None
        split = copy_layout(view(f16, (1, 2, 0)), memory, rows, cols, facts, waves, f16)
        assert split.loaded.contiguous("row") == split.message > 1
        tile = Shared("t", f16, rows, cols, memory, 1, Swizzle(), facts.chunk_bytes)
        messages = list(shared_messages(tile, const(0), split.stored, const(0), waves, facts))
        assert min(m.count for m in messages) * f16.bytes >= 4


@pytest.mark.parametrize("name", [*XE, "gfx942"])
def test_what_comes_out_even_is_split(name: str) -> None:
    facts = target.get(name).facts
    for rows, cols, waves in TILES:
        try:
            copy_layout(view(f16, (0, 1, 2)), row_major(rows, cols), rows, cols, facts, waves, f16)
            fits = True
        except DoesNotFit:
            fits = False
        as_stored = facts.planes is not None and not rows * cols % (facts.subgroup_size * waves * 2)
        wanted = {fits} if not as_stored else {fits, False}  # rectangles are dealt in more ways
        assert comes_out_even(rows, cols, 2, facts, waves) in wanted, (rows, cols, waves)


# ---------------------------------------------------------------- in_memory_order


@st.composite
def shares(draw: st.DrawFn, sizes: tuple[int, ...]) -> Fragment:
    """What lanes hold of a tile, registers in any order."""
    strides = dict.fromkeys((Space.LANE, Space.REGISTER, Space.SUBGROUP), 1)
    digits = []
    for _ in range(draw(st.integers(1, 6))):
        space, size = draw(st.sampled_from(list(strides))), draw(st.sampled_from(sizes))
        digits.append(Digit(draw(st.sampled_from(("row", "k"))), size, space, strides[space]))
        strides[space] *= size
    return Fragment(("row", "k"), tuple(draw(st.permutations(digits))))


@st.composite
def memories(draw: st.DrawFn, rows: int, cols: int) -> Digits:
    """Places without gaps, rows and columns mixed by prime factors."""
    left, found, stride = [rows, cols], [], 1
    while left != [1, 1]:
        dim = draw(st.sampled_from([n for n in (0, 1) if left[n] > 1]))
        size = draw(st.sampled_from([n for n in range(2, left[dim] + 1) if left[dim] % n == 0]))
        left[dim] //= size
        found.append((dim, size))
    digits: dict[str, list[tuple[str, int, int]]] = {ROW: [], COL: []}
    for n, size in draw(st.permutations(found)):
        name = (ROW, COL)[n]
        digits[name].append((name, size, stride))
        stride *= size
    return in_memory(*digits[ROW], *digits[COL])


@settings(FIXED, max_examples=50)
@given(st.data())
def test_registers_are_put_in_the_order_of_memory(data: st.DataObject) -> None:
    """Same elements a lane; where digits end alike, as powers of two do, later registers stand further on."""
    sizes = data.draw(st.sampled_from(((1, 2, 4, 8), (1, 2, 3, 4, 6))))
    loaded = data.draw(shares(sizes))
    rows, cols = loaded.shape
    memory = data.draw(memories(rows, cols))
    stored = in_memory_order(loaded, memory)
    order = loaded.order_of(stored)
    assert sorted(order) == list(range(loaded.registers))
    assert in_memory_order(stored, memory) == stored
    registers = np.arange(stored.registers)
    at = stored.coords(0, 0, registers)
    tile = Shared("t", f16, rows, cols, memory, 1, Swizzle(), 2)
    place = tile.address(0, at["row"], at["k"]) + 0 * registers
    assert (np.diff(place) > 0).all() or 3 in sizes


@FIXED
@given(
    st.sampled_from(sorted(XE)), st.integers(1, 300), st.sampled_from((16, 32, 64)), st.sampled_from((1, 2, 4, 6, 16))
)
def test_rows_come_out_even_in_the_fewest_messages(name: str, rows: int, cols: int, subgroups: int) -> None:
    """Of rows that stand one behind the other: no lane has more messages than with other rows that would do."""
    facts = XE[name]

    def messages(count: int) -> float:
        digits = (
            Digit(COL, 16, Space.MEMORY, 1),
            Digit(ROW, count, Space.MEMORY, 16),
            Digit(COL, cols // 16, Space.MEMORY, 16 * count),
        )
        try:
            split = copy_layout(view(f16, (0, 1, 2)), Digits((ROW, COL), digits), count, cols, facts, subgroups, f16)
        except DoesNotFit:
            return inf
        return split.loaded.registers / split.message

    found = rounded_rows(rows, cols, 2, facts, subgroups)
    others = range(-(-rows // facts.subgroup_size) * facts.subgroup_size, found, facts.subgroup_size)
    assert rows <= found
    assert messages(found) < inf
    assert all(messages(other) > messages(found) for other in others)
