"""Accesses as rectangles of planes: which are, in which order, and that they move what the views say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from convgen.backends.intel.tables import FACTS
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.expr import Cast, const
from convgen.ir.interp import interpret
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Dim, Global, Plane, Rectangle, RectangleOrder, TensorDim, View
from convgen.ir.layout.tags import Layout
from convgen.ir.mutate import postorder
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.extents import value_of
from convgen.ir.sizes import Size
from convgen.ir.types import Type, f16, f32, s32, vector
from convgen.ir.verify import verify
from convgen.passes.lower_tiles import lower_tiles
from convgen.passes.messages.linear import Halo, LinearDim, LinearView, linearize
from convgen.passes.messages.planes import _planes, is_plane, plane_of, rectangle_of, whole_rectangles, wide_rows

XEHPC = FACTS["xehpc"]
LANES = 16
REG, LANE, SUB = Space.REGISTER, Space.LANE, Space.SUBGROUP


def fragment(*digits: tuple[str, int, Space, int]) -> Fragment:
    return Fragment(("i", "k"), tuple(Digit(*d) for d in digits))


#: Operands of an 8x8 of f16 and its result, on the side of the lanes (columns N) and of the rows.
COLUMNS = fragment(("i", LANES, LANE, 1), ("k", 16, REG, 1))
ROWS = fragment(("k", 2, REG, 1), ("k", 8, LANE, 1), ("i", 2, LANE, 8), ("i", 4, REG, 2))
RESULT = fragment(("i", 8, REG, 1), ("k", LANES, LANE, 1))
RESULTS = fragment(("i", 8, REG, 1), ("k", LANES, LANE, 1), ("k", 4, REG, 8), ("i", 2, REG, 32))  # of 8 instructions
TWO_STEPS = evolve(ROWS, digits=(*ROWS.digits, Digit("k", 2, REG, 8)))
FOUR_THREADS = evolve(ROWS, digits=(*ROWS.digits, Digit("i", 4, SUB, 1)))
ODD = fragment(("k", 4, REG, 1), ("k", 4, LANE, 1), ("i", 4, LANE, 4), ("i", 2, REG, 4))


@pytest.mark.parametrize(
    ("layout", "unit", "elem", "wanted"),
    [
        (COLUMNS, 1, 2, Rectangle(LANES, 16, RectangleOrder.ROW_A_LANE)),
        (COLUMNS, 0, 2, Rectangle(16, LANES, RectangleOrder.COLUMN_A_LANE)),
        (ROWS, 1, 2, Rectangle(8, 16, RectangleOrder.ROWS)),
        (ROWS, 0, 2, None),
        (FOUR_THREADS, 1, 2, Rectangle(8, 16, RectangleOrder.ROWS)),
        (TWO_STEPS, 1, 2, Rectangle(8, 16, RectangleOrder.ROWS, 2)),
        (RESULT, 1, 4, Rectangle(8, LANES, RectangleOrder.ROWS)),
        (ODD, 1, 2, None),
    ],
)
def test_operands_are_rectangles(layout: Fragment, unit: int, elem: int, wanted: Rectangle | None) -> None:
    assert whole_rectangles(layout, unit, elem, XEHPC) == wanted


def test_stores_are_not_rearranged() -> None:
    """Neither turned nor several at once nor high; narrow columns are packed before."""
    stored = [whole_rectangles(f, 1, 2, XEHPC, stores=True) for f in (COLUMNS, TWO_STEPS)]
    assert stored == [None, Rectangle(8, 16, RectangleOrder.ROWS)]
    assert whole_rectangles(RESULT, 1, 2, XEHPC, stores=True) == Rectangle(8, LANES, RectangleOrder.COLUMN_A_LANE)
    high = fragment(("i", 32, REG, 1), ("k", LANES, LANE, 1))
    assert whole_rectangles(high, 1, 4, XEHPC, stores=True) == Rectangle(8, LANES, RectangleOrder.ROWS)
    assert whole_rectangles(high, 1, 4, XEHPC) == Rectangle(16, LANES, RectangleOrder.ROWS)


def test_what_is_stored_lies_in_whole_lines() -> None:
    """Of 16 rows of 64 columns 8 x 32 are stored at a time if these are f16, else 8 x 16."""
    for elem, cols in ((f16, 32), (f32, 16)):
        view = linearize(matrix(Global("a", elem, 64 * 64 * 2), 64, 64))
        layout = wide_rows(view, RESULTS, XEHPC)
        shape = rectangle_of(view, layout, XEHPC, stores=True)
        assert shape
        assert (shape.rows, shape.cols) == (8, cols)
        assert (layout is RESULTS) == (elem is f32)
        assert sorted(RESULTS.order_of(layout)) == list(range(RESULTS.registers))


def test_a_tile_that_is_one_row_is_no_rectangle() -> None:
    view = linearize(matrix(Global("a", f16, 64 * 64 * 2), 64, 64))
    assert plane_of(view, XEHPC.planes) is not None
    assert rectangle_of(view, Fragment(("i",), (Digit("i", LANES, LANE, 1),)), XEHPC) is None


def test_without_planes_nothing_is_a_rectangle() -> None:
    assert whole_rectangles(COLUMNS, 1, 2, FACTS["xehpg"]) is None


def kinds(kernel: Kernel) -> set[type]:
    return {type(n) for n in postorder(kernel) if isinstance(n, (s.PlaneLoad, s.PlaneStore, s.FlatLoad, s.FlatStore))}


def copied(elem: Type, rows: int, cols: int, layout: Fragment, at: tuple[int, int], to: Type) -> Kernel:
    """A kernel that copies a tile, with a conversion."""
    k = KernelBuilder("copies", width=LANES)
    source, sink = (matrix(k.buffer(n, t, rows * cols), rows, cols) for n, t in (("source", elem), ("sink", to)))
    start = tuple(const(n) for n in at)
    v = k.load_view("v", source, start, layout)
    k.store_view(sink, start, v if to is elem else Cast(vector(to, layout.registers), v), layout)
    return k.done()


@pytest.mark.parametrize("at", [(0, 0), (24, 32), (8, 48), (40, 0)], ids=str)
@pytest.mark.parametrize(
    ("layout", "elem", "to"),
    [
        (ROWS, f16, f16),
        (TWO_STEPS, f16, f16),
        (RESULT, f32, f32),
        (RESULT, f32, f16),
        (RESULT, f16, f16),
        (RESULTS, f32, f16),
        (RESULTS, f16, f16),
    ],
    ids=["rows", "two steps", "result", "result as f16", "narrow result", "results as f16", "narrow results"],
)
def test_what_they_move_is_what_views_say(layout: Fragment, elem: Type, to: Type, at: tuple[int, int]) -> None:
    """Inside, across the edges of a 28 x 44 matrix, outside of it."""
    rows, cols = 28, 44
    before = copied(elem, rows, cols, layout, at, to)
    after = verify(lower_tiles(before, XEHPC), "message")
    assert kinds(after) == {s.PlaneLoad, s.PlaneStore}
    results = []
    for kernel in (before, after):
        data = np.random.default_rng(1).integers(-9, 9, rows * cols).astype(elem.numpy)
        memory = {"source": data.view(np.uint8), "sink": np.zeros(rows * cols * to.bytes, np.uint8)}
        interpret(kernel, memory)
        results.append(memory["sink"])
    assert np.array_equal(results[0], results[1])


@pytest.mark.parametrize(
    ("rows", "cols", "at"),
    [(16, 30, (0, 0)), (16, 66, (0, 0)), (16, 64, (0, 1))],
    ids=["short rows", "a pitch that is no multiple", "a start within a dword"],
)
def test_planes_have_limits(rows: int, cols: int, at: tuple[int, int]) -> None:
    kernel = copied(f16, rows, cols, ROWS, at, f16)
    assert kinds(lower_tiles(kernel, XEHPC)) == {s.FlatLoad, s.FlatStore}


LIMITS = XEHPC.planes
assert LIMITS is not None
_BUFFER = Global("x", f16, 1 << 40)
_FITTING = LinearView(_BUFFER, ((LinearDim("row", 40, 40, 128),), (LinearDim("col", 60, 64, 2),)), 0, ())


def sized(*, stride: int = 128, cols: int = 60, rows: int = 40, base: int = 0, reversed: bool = False) -> LinearView:
    axes = (LinearDim("row", rows, rows, stride, reversed),), (LinearDim("col", cols, cols, 2),)
    return LinearView(_BUFFER, axes, base, ())


@pytest.mark.parametrize(
    ("view", "fits"),
    [
        (_FITTING, True),
        (sized(base=LIMITS.align), True),
        (sized(base=LIMITS.align // 2), False),
        (sized(base=-LIMITS.align), False),
        (sized(reversed=True), False),
        (sized(cols=61), False),  # no whole dwords
        (sized(stride=LIMITS.pitch * 17), True),
        (sized(stride=LIMITS.pitch * 17 + 4), False),
        (sized(cols=LIMITS.least // 2), True),
        (sized(cols=LIMITS.least // 2 - 2), False),
        (sized(cols=64), True),  # rows without gaps
        (sized(cols=66), False),
        (sized(stride=LIMITS.most - LIMITS.pitch), True),
        (sized(stride=LIMITS.most), False),
        (sized(rows=LIMITS.most - 1), True),
        (sized(rows=LIMITS.most), False),
        (evolve(_FITTING, halos=(Halo(40, (("row", 1),), 0),)), False),
        (evolve(_FITTING, axes=(*_FITTING.axes, (LinearDim("more", 2, 2, 8192),))), False),
        (evolve(_FITTING, axes=((LinearDim("n", 2, 2, 8192), *_FITTING.axes[0]), _FITTING.axes[1])), False),
        (evolve(_FITTING, axes=(_FITTING.axes[0], (LinearDim("col", 60, 64, 4),))), False),
    ],
)
def test_which_views_are_planes(view: LinearView, fits: bool) -> None:
    (rows,), (cols,) = view.axes[0][-1:], view.axes[1]
    wanted = Plane(_BUFFER, view.base, cols.size * 2, rows.size, rows.stride)
    assert plane_of(view, LIMITS) == (wanted if fits else None)
    assert plane_of(view, None) is None


def _sliding(stride: int, padded: int = 60, length: int = 3, cols: int = 60) -> tuple[tuple[LinearDim, ...], ...]:
    """Axes of windows that lie side by side along rows, so many bytes apart."""
    return (LinearDim("x", length, length, stride), LinearDim("row", 40, 40, 160)), (LinearDim("col", cols, padded, 2),)


@pytest.mark.parametrize(
    ("change", "moves"),
    [
        ({"halos": (Halo(40, (("row", 1),), 0),)}, True),
        ({"halos": (Halo(80, (("row", 2),), 0),)}, True),  # every other row
        ({"halos": (Halo(81, (("row", 2),), 0),)}, False),  # of which there are more from one than from the other on
        ({"halos": (Halo(120, (("row", 3),), 0),)}, False),  # rows would begin anywhere
        ({"halos": (Halo(60, (("col", 1),), 0),)}, False),
        ({"halos": (Halo(40, (("row", 1),), 0), Halo(39, (("row", 1),), 0))}, False),
        ({"axes": ((LinearDim("n", 2, 2, 8192), LinearDim("row", 40, 40, 128)), _FITTING.axes[1])}, True),
        ({"axes": ((LinearDim("n", 2, 2, 8192, True), LinearDim("row", 40, 40, 128)), _FITTING.axes[1])}, True),
        ({"axes": ((LinearDim("n", 2, 2, 8224), LinearDim("row", 40, 40, 128)), _FITTING.axes[1])}, False),
        ({"axes": _sliding(12)}, True),
        ({"axes": _sliding(14)}, False),  # by half a dword
        ({"axes": _sliding(12, 64)}, False),  # what pads rows is to be zero, not what lies behind
        ({"axes": _sliding(12, length=6)}, False),  # rows would overlap
        ({"axes": _sliding(12, 32, cols=32)}, True),
        ({"axes": _sliding(12, 30, cols=30)}, False),  # less than a line of the cache
        ({"axes": _sliding(12), "halos": (Halo(40, (("x", 1),), 0),)}, False),
    ],
)
def test_which_views_are_planes_that_move(change: dict[str, Any], moves: bool) -> None:
    small = evolve(_FITTING, memory=Global("x", f16, 1 << 20))
    assert is_plane(small, LIMITS)
    view = evolve(small, **change)
    assert (plane_of(view, LIMITS) is not None) == moves
    assert not is_plane(view, LIMITS)


def test_planes_of_an_equal_view_check_its_halo() -> None:
    """Planes are kept between problems: the halo that counts the rows is another object in an equal view."""
    first, second = (evolve(_FITTING, halos=(Halo(40, (("row", 1),), 0), Halo(9, (("x", 1),), 0))) for _ in range(2))
    planes = _planes(evolve(first, memory=Global("x", f16, 1 << 20)), LIMITS)
    assert planes is not None
    for view in (first, second):
        assert planes.unchecked(view).halos == (Halo(9, (("x", 1),), 0),)


@st.composite
def images(draw: st.DrawFn) -> tuple[View, tuple[int, int], Fragment]:
    """Windows of an image of 32 channels, taps and channels along one axis and pixels along the other; a tile of it."""
    sizes = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.sampled_from([4, 8, 12, 16, 20])), 32
    kernel, left, dilation = draw(st.integers(1, 3)), draw(st.integers(0, 3)), draw(st.integers(1, 2))
    sign = draw(st.sampled_from([1, -1]))  # of what is against memory
    down, along = draw(st.integers(1, 2)), draw(st.integers(1, 2))  # strides
    across, lines = draw(st.sampled_from([4, 8, 16])), draw(st.integers(1, 5))
    taps = Dim("kh", kernel, kernel), Dim("kw", kernel, kernel), Dim("c", 32, draw(st.sampled_from([32, 64])))
    pixels = Dim("n", sizes[0], 3), Dim("y", lines, lines), Dim("x", across, across)
    start = -left if sign > 0 else left
    index = (
        TensorDim(sizes[0], (("n", 1),)),
        TensorDim(sizes[1], (("y", down), ("kh", sign)), start, masked=True),
        TensorDim(sizes[2], (("x", along), ("kw", sign * dilation)), start, masked=True),
        TensorDim(32, (("c", 1),)),
    )
    k_along, high = draw(st.booleans()), draw(st.sampled_from([4, 8, 16]))
    memory = Global("source", f16, 2 * math.prod(sizes))
    axes = (pixels, taps) if k_along else (taps, pixels)
    at = draw(st.integers(0, 8)) * 16, draw(st.integers(0, 8)) * 16
    own = (("k", LANES, LANE, 1), ("i", high, REG, 1)) if k_along else (("i", LANES, LANE, 1), ("k", high, REG, 1))
    return View(memory, Layout.dense(sizes, (0, 1, 2, 3)), axes, index), at, fragment(*own)


@given(images())
def test_planes_move_with_windows_and_images(case: tuple[View, tuple[int, int], Fragment]) -> None:
    """Taps, left and right of images and above and below them, further images than there are."""
    view, at, layout = case
    assert_moved(view, at, layout)


def assert_moved(view: View, at: tuple[int, int], layout: Fragment) -> None:
    """Messages load from there what the view says."""
    i, k = at
    b = KernelBuilder("copies", width=LANES)
    source = b.buffer("source", f16, view.memory.bytes // 2)
    view = evolve(view, memory=source)
    sink = matrix(b.buffer("sink", f16, LANES * 16), *layout.shape)
    b.store_view(sink, (const(0), const(0)), b.load_view("v", view, (const(i), const(k)), layout), layout)
    before = b.done()
    after = verify(lower_tiles(before, XEHPC), "message")
    event(", ".join(sorted(kind.__name__ for kind in kinds(after))))
    results = []
    for kernel in (before, after):
        data = np.arange(1, view.memory.bytes // 2 + 1).astype(np.uint16)
        memory = {"source": data.view(np.uint8), "sink": np.zeros(2 * LANES * 16, np.uint8)}
        interpret(kernel, memory)
        results.append(memory["sink"])
    assert np.array_equal(results[0], results[1])


@st.composite
def windows(draw: st.DrawFn) -> tuple[View, tuple[int, int], Fragment]:
    """Runs of an image with its padding, rows by windows that overlap along them; down go images or lines.

    A tile may go beyond the end of a run, where there is nothing, though the plane has the next window there.
    """
    run, x, y = draw(st.sampled_from([32, 40, 48])), draw(st.integers(1, 5)), draw(st.integers(1, 5))
    n = draw(st.sampled_from([4, 8, 12]))
    step, length, start = draw(st.sampled_from([2, 3, 6, 10])), draw(st.sampled_from([128, 160])), draw(st.booleans())
    sizes = n, y, length
    runs = TensorDim(length, (("x", step), ("run", 1)), 32 * start)
    index = TensorDim(n, (("n", 1),)), TensorDim(y, (("y", 1),)), runs
    down = Dim("y", y, y), Dim("x", x, x), Dim("n", n, draw(st.sampled_from([n, 12])))
    axes = (down, (Dim("run", run, run),)) if (k_along := draw(st.booleans())) else ((Dim("run", run, run),), down)
    high = draw(st.sampled_from([2, 4]))
    own = (("k", LANES, LANE, 1), ("i", high, REG, 1)) if k_along else (("i", LANES, LANE, 1), ("k", high, REG, 1))
    at = draw(st.integers(0, 12)) * 4, draw(st.integers(0, 3)) * 16
    memory = Global("source", f16, 2 * math.prod(sizes))
    return View(memory, Layout.dense(sizes, (0, 1, 2)), axes, index), at if k_along else at[::-1], fragment(*own)


@given(windows())
def test_planes_slide_along_rows(case: tuple[View, tuple[int, int], Fragment]) -> None:
    """Windows side by side in a plane as wide as all of them."""
    view, at, layout = case
    assert_moved(view, at, layout)


def test_a_plane_may_lie_on_its_side() -> None:
    turned = evolve(_FITTING, axes=_FITTING.axes[::-1])
    assert plane_of(turned, LIMITS) == plane_of(_FITTING, LIMITS)


def test_shifted_rows_end_where_the_launch_says() -> None:
    """A plane of the greatest height would reach beyond the buffer of a launch: the verifier refuses it."""
    rows = Size("rows", 0, s32, 1, 40, 1)
    counted = LinearDim("row", 43, 43, 128, exact=rows + 3)
    small = evolve(_FITTING, memory=Global("x", f16, 1 << 20), axes=((counted,), _FITTING.axes[1]))
    plane = plane_of(evolve(small, halos=(Halo(40, (("row", 1),), -3),)), LIMITS)
    assert plane is not None
    assert [value_of(plane.height, {rows: count}) for count in (1, 17, 40)] == [1, 17, 40]
    for terms in ((("row", 2),), (("row", 1), ("tap", 1))):  # no launch says where these end
        assert plane_of(evolve(small, halos=(Halo(40, terms, -3),)), LIMITS) is None
