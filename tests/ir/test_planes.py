"""Rectangles of planes: against numpy, inside and outside; what the verifier refuses; text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.error import VerifyError
from convgen.ir.evaluate import InterpError
from convgen.ir.expr import AddressOf, Expr, Lane, const
from convgen.ir.interp import interpret
from convgen.ir.layout.memory import Global, Plane, Rectangle, RectangleOrder
from convgen.ir.text import parse, to_text
from convgen.ir.types import Type, bool_, f16, u32, u64, vector
from convgen.ir.uniform import varying
from convgen.ir.verify import verify

WIDTH, BYTES = 8, 4096


class Room(KernelBuilder):
    def __init__(self) -> None:
        super().__init__("k", width=WIDTH)
        self.x, self.out = (self.buffer(name, u32, BYTES // 4) for name in ("x", "out"))

    def plane(self, base: int = 64, width: int = 48, height: int = 10, pitch: int = 64) -> Plane:
        return Plane(self.x, base, width, height, pitch)

    def load(self, plane: Plane, x: Expr, y: Expr, words: int = 2) -> Expr:
        v = self.var("v", vector(u32, words))
        self.add(s.PlaneLoad(v, plane, const(0), Rectangle(WIDTH, words, RectangleOrder.ROW_A_LANE), x, y, self.site()))
        return v


@settings(max_examples=80)
@given(
    st.integers(0, 40), st.integers(1, 16), st.integers(1, 12), st.integers(0, 6),
    st.integers(-6, 20), st.integers(-12, 16), st.sampled_from((1, 2, 4)),
)  # fmt: skip
def test_one_row_a_lane_and_zeros_outside(
    base: int, columns: int, height: int, gap: int, x: int, y: int, words: int
) -> None:
    """All in dwords."""
    k = Room()
    value = k.load(k.plane(4 * base, 4 * columns, height, 4 * (columns + gap)), const(x), const(y), words)
    k.global_store(k.surface(k.out), value, Lane() * (4 * words))
    data = np.random.default_rng(5).integers(1, 1 << 32, BYTES // 4, dtype=np.uint32)
    memory = {"x": data.view(np.uint8), "out": np.zeros(BYTES, np.uint8)}
    interpret(verify(k.done(), "message"), memory)
    rows, cols = y + np.arange(WIDTH)[:, None], x + np.arange(words)[None, :]
    inside = (rows >= 0) & (rows < height) & (cols >= 0) & (cols < columns)
    wanted = np.where(inside, data[np.where(inside, base + rows * (columns + gap) + cols, 0)], 0)
    assert np.array_equal(memory["out"].view(np.uint32)[: WIDTH * words].reshape(WIDTH, words), wanted)


def standing(shape: Rectangle, elem_bytes: int, registers: int) -> Iterator[tuple[int, int, int, int]]:
    """(lane, register, row, column) of a rectangle's elements, as docs/ir.md tells it."""
    each = 4 // elem_bytes
    for number, row, col in product(range(shape.count), range(shape.rows), range(shape.cols)):
        first = number * (registers // shape.count)
        if shape.order is RectangleOrder.ROW_A_LANE:
            lane, register = row, col
        elif shape.order is RectangleOrder.COLUMN_A_LANE:
            lane, register = col % WIDTH, row * (shape.cols // WIDTH) + col // WIDTH
        else:
            dword, part = divmod(row * shape.cols + col, each)
            lane, register = dword % WIDTH, dword // WIDTH * each + part
        yield lane, first + register, row, number * shape.cols + col


SHAPES = [
    (f16, Rectangle(8, 16, RectangleOrder.ROWS)),
    (f16, Rectangle(8, 16, RectangleOrder.ROWS, 2)),
    (f16, Rectangle(16, 4, RectangleOrder.ROWS)),
    (u32, Rectangle(4, 8, RectangleOrder.ROWS)),
    (u32, Rectangle(4, 2, RectangleOrder.ROWS, 4)),
    (f16, Rectangle(4, WIDTH, RectangleOrder.COLUMN_A_LANE)),
    (f16, Rectangle(6, WIDTH, RectangleOrder.COLUMN_A_LANE, 2)),
    (u32, Rectangle(3, WIDTH, RectangleOrder.COLUMN_A_LANE)),
    (f16, Rectangle(WIDTH, 4, RectangleOrder.ROW_A_LANE)),
]


@pytest.mark.parametrize(
    ("elem", "shape"), SHAPES, ids=[f"{e.name} {r.count} x {r.rows} x {r.cols} {r.order.value}" for e, r in SHAPES]
)
@pytest.mark.parametrize(("x", "y"), [(0, 0), (6, 3), (-4, -2), (20, 8)])
def test_orders_of_loads_and_stores(elem: Type, shape: Rectangle, x: int, y: int) -> None:
    """A rectangle is loaded from one plane and stored to another; outside there are zeros, and nothing is stored."""
    k = KernelBuilder("k", width=WIDTH)
    source, sink = (k.buffer(name, elem, 1024) for name in ("source", "sink"))
    size, registers = elem.bytes, shape.size // WIDTH
    here, there = (Plane(b, 64, 24 * size, 10, 32 * size) for b in (source, sink))
    grain = shape.grain(size)
    v = k.var("v", vector(elem, registers))
    k.add(s.PlaneLoad(v, here, const(0), shape, const(x * size // grain), const(y), k.site()))
    k.add(s.PlaneStore(there, const(0), shape, const(2 * size // grain), const(1), v, k.site()))
    data = np.random.default_rng(3).integers(1, 1 << 8 * size, 1024).astype(f"u{size}")
    memory = {"source": data.view(np.uint8), "sink": np.zeros(1024 * size, np.uint8)}
    interpret(verify(k.done(), "message"), memory)
    wanted = np.zeros(1024, data.dtype)
    taken = set()
    for lane, register, row, col in standing(shape, size, registers):
        taken.add((lane, register))
        loaded = data[64 // size + 32 * (y + row) + x + col] if 0 <= y + row < 10 and 0 <= x + col < 24 else 0
        if 1 + row < 10 and 2 + col < 24:
            wanted[64 // size + 32 * (1 + row) + 2 + col] = loaded
    assert taken == {*product(range(WIDTH), range(registers))}
    assert np.array_equal(memory["sink"].view(data.dtype), wanted)


@pytest.mark.parametrize(("elem", "wide", "rows"), [(f16, 2, 4), (f16, 4, 4), (u32, 2, 4)])
def test_several_columns_a_lane_are_stored(elem: Type, wide: int, rows: int) -> None:
    k = KernelBuilder("k", width=WIDTH)
    size, registers = elem.bytes, rows * wide
    source, sink = (k.buffer(name, elem, 1024) for name in ("source", "sink"))
    v = k.var("v", vector(elem, registers))
    address = AddressOf(source) + (Lane() * (registers * size)).to(u64)
    k.add(s.FlatLoad(v, source, address, Lane() < WIDTH, k.site()))
    shape = Rectangle(rows, wide * WIDTH, RectangleOrder.COLUMN_A_LANE)
    there = Plane(sink, 64, 30 * size, 10, 32 * size)
    k.add(s.PlaneStore(there, const(0), shape, const(2), const(1), v, k.site()))
    data = np.random.default_rng(3).integers(1, 1 << 8 * size, 1024).astype(f"u{size}")
    memory = {"source": data.view(np.uint8), "sink": np.zeros(1024 * size, np.uint8)}
    interpret(verify(k.done(), "message"), memory)
    wanted = np.zeros(1024, data.dtype)
    for lane, register, row, col in standing(shape, size, registers):
        if 2 + col < 30:
            wanted[64 // size + 32 * (1 + row) + 2 + col] = data[lane * registers + register]
    assert np.array_equal(memory["sink"].view(data.dtype), wanted)


def typed(
    k: Room, type: object, rows: int = WIDTH, cols: int = 2, order: RectangleOrder = RectangleOrder.ROW_A_LANE
) -> None:
    shape = Rectangle(rows, cols, order)
    k.add(s.PlaneLoad(k.var("v", type), k.plane(), const(0), shape, const(0), const(0), k.site()))  # type: ignore[arg-type]


def wide(k: Room) -> None:
    shape, v = Rectangle(2, 2 * WIDTH, RectangleOrder.COLUMN_A_LANE), k.var("v", vector(u32, 4))
    k.add(s.PlaneLoad(v, k.plane(), const(0), shape, const(0), const(0), k.site()))


FOREIGN = Plane(Global("z", u32, 4096), 0, 48, 10, 64)
BREACHES: list[tuple[Callable[[Room], object], str]] = [
    (lambda k: k.load(k.plane(), Lane(), const(0)), "x lane differs between lanes"),
    (lambda k: k.load(k.plane(), const(0), Lane()), "y lane differs between lanes"),
    (lambda k: k.load(FOREIGN, const(0), const(0)), "buffer z is not an argument"),
    (lambda k: k.load(k.plane(base=-4), const(0), const(0)), "is not within its buffer"),
    (lambda k: k.load(k.plane(height=64), const(0), const(0)), "is not within its buffer"),
    (lambda k: k.load(k.plane(width=68), const(0), const(0)), "is not within its buffer"),
    (lambda k: typed(k, vector(f16, 3)), "a rectangle of f16x3, 48 bits a lane; wanted whole dwords"),
    (lambda k: typed(k, vector(bool_, 32)), "a rectangle of boolx32"),
    (lambda k: typed(k, vector(u32, 4)), "a rectangle of 8 x 2, a row a lane, for u32x4; wanted the elements of 8"),
    (lambda k: typed(k, vector(u32, 2), 4, 4), "a rectangle of 4 x 4, a row a lane, for u32x2"),  # as many, elsewhere
    (lambda k: typed(k, vector(u32, 2), 16, 2), "a rectangle of 16 x 2, a row a lane, for u32x2"),  # too many rows
    (lambda k: typed(k, vector(u32, 2), 4, 4, RectangleOrder.COLUMN_A_LANE), "a rectangle of 4 x 4, a column a lane"),
    (lambda k: wide(k), "a load of 16 columns, one a lane; wanted at most 8"),
]  # fmt: skip


@pytest.mark.parametrize(("breach", "message"), BREACHES, ids=[m for _, m in BREACHES])
def test_breaches(breach: Callable[[Room], object], message: str) -> None:
    k = Room()
    breach(k)
    with pytest.raises(VerifyError, match=message):
        verify(k.done())


def test_a_plane_may_end_with_its_buffer() -> None:
    k = Room()
    loaded = k.load(k.plane(base=BYTES - 9 * 64 - 48), const(0), const(0))
    kernel = verify(k.done(), "message")
    assert loaded in varying(kernel)
    with pytest.raises(VerifyError, match="does not belong to the tile level"):
        verify(kernel, "tile")
    assert parse(to_text(kernel)) is kernel
    assert "v: u32x2 = plane " in str(kernel)


# ---------------------------------------------------------------- prefetches


def prefetching(address: Expr) -> Room:
    k = Room()
    k.add(
        s.PlanePrefetch(
            k.plane(), const(0), Rectangle(WIDTH, 2, RectangleOrder.ROW_A_LANE), const(-3), const(20), k.site()
        )
    )
    k.add(s.FlatPrefetch(k.x, address, Lane() < 3, k.site()))
    return k


def test_prefetches_change_nothing() -> None:
    room = Room()
    kernel = verify(prefetching(AddressOf(room.x) + (Lane() * 1000).to(u64)).done(), "message")
    memory = {"x": np.arange(BYTES, dtype=np.uint8), "out": np.zeros(BYTES, np.uint8)}
    interpret(kernel, memory)
    assert not memory["out"].any()
    assert parse(to_text(kernel)) is kernel
    assert "prefetch plane x(10 x 48 bytes, pitch 64, from 64)[-3, 20] as 8 x 2 a row a lane" in str(kernel)
    assert "prefetch flat" in str(kernel)


def test_a_prefetch_stays_within_its_buffer() -> None:
    room = Room()
    kernel = prefetching(AddressOf(room.x) + (Lane() * 3000).to(u64)).done()
    with pytest.raises(InterpError, match="bytes 6000 to 6000 of buffer x"):
        interpret(kernel, {"x": np.zeros(BYTES, np.uint8), "out": np.zeros(BYTES, np.uint8)})
