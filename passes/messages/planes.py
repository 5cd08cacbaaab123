"""Which accesses are rectangles of a plane: two-dimensional messages, whose bounds the hardware checks.

A view of two plain axes is a plane. Its rows go along the axis whose neighbours are neighbours in memory. A run of the
fragment's registers is one message if its elements are a rectangle that some order of registers makes; that is checked
on every lane, so any fragment will do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from convgen.ir.expr import Expr, Var, lift
from convgen.ir.facts import Planes, TargetFacts
from convgen.ir.layout.digits import Space, times
from convgen.ir.layout.fragment import DWORD, Fragment
from convgen.ir.layout.memory import Plane, Rectangle, RectangleOrder
from convgen.ir.simplify.extents import divisor, is_multiple, least, most, never_less
from convgen.passes.messages.linear import ZERO, LinearView, plus


@attrs.frozen
class PlaneMessage:
    """Registers [start, start + count) of the fragment: a rectangle of the plane."""

    start: int
    count: int
    plane: Plane
    shape: Rectangle
    x: Expr  #: in grains of the rectangle
    y: Expr


def plane_of(view: LinearView, limits: Planes | None) -> Plane | None:
    """The view as a plane with its unit axis along the rows, if it is one."""
    if limits is None or view.memory.elem.bits < 8 or len(view.axes) != 2 or view.halos or view.unit_axis is None:
        return None
    if any(len(dims) != 1 for dims in view.axes):
        return None
    ((cols,), (rows,)) = (view.axes[view.unit_axis], view.axes[1 - view.unit_axis])
    width = times(cols.extent, view.memory.elem.bytes)
    fits = (
        not rows.reversed,
        view.base >= 0 and not view.base % limits.align,
        is_multiple(width, DWORD) and is_multiple(rows.stride, limits.pitch),
        limits.least <= least(width) and never_less(rows.stride, width),
        most(rows.stride) < limits.most and rows.size < limits.most,
    )
    return Plane(view.memory, view.base, width, rows.extent, rows.stride) if all(fits) else None


def rectangle_of(view: LinearView, layout: Fragment, facts: TargetFacts, *, stores: bool = False) -> Rectangle | None:
    """What each message of an access with that layout moves, if the view is a plane and all of them are rectangles."""
    if view.unit_axis is None or len(layout.dims) < len(view.axes) or plane_of(view, facts.planes) is None:
        return None  # along an axis without a dim of the layout a tile is one position
    return whole_rectangles(layout, view.unit_axis, view.memory.elem.bytes, facts, stores=stores)


def plane_messages(
    view: LinearView,
    coords: Sequence[Expr],
    layout: Fragment,
    subgroup: Expr,
    facts: TargetFacts,
    values: Mapping[Var, Expr],
    *,
    stores: bool = False,
) -> list[PlaneMessage]:
    """The messages of an access at `coords`, in register order; none where it is not all rectangles.

    `values` are the lets in scope: what a coordinate is a multiple of shows there.
    """
    plane, unit, elem = plane_of(view, facts.planes), view.unit_axis, view.memory.elem.bytes
    shape = rectangle_of(view, layout, facts, stores=stores)
    if plane is None or unit is None or shape is None or divisor(coords[unit], values) * elem % DWORD:
        return []
    run = shape.size // facts.subgroup_size
    outer = layout.partial(Space.SUBGROUP, subgroup)
    out = []
    for start in range(0, layout.registers, run):
        inner = layout.partial(Space.REGISTER, start)
        at = [plus(c, lift(outer[dim], ZERO)) + inner[dim] for c, dim in zip(coords, layout.dims)]
        step = shape.grain(elem) // elem
        x = at[unit] if step == 1 else at[unit] // step
        out.append(PlaneMessage(start, run, plane, shape, x, at[1 - unit]))
    return out


@lru_cache(maxsize=2**10)
def whole_rectangles(
    layout: Fragment, unit: int, elem_bytes: int, facts: TargetFacts, *, stores: bool = False
) -> Rectangle | None:
    """The largest rectangle that every run of so many registers is; `unit` is the axis along the plane's rows.

    None of elements wider than a dword, whose order in registers is none of a rectangle's.
    """
    limits, lanes = facts.planes, facts.subgroup_size
    if limits is None or elem_bytes > DWORD:
        return None
    dims = layout.dims[unit], layout.dims[1 - unit]
    own = layout.coords(0, np.arange(lanes)[:, None], np.arange(layout.registers))
    col, row = (np.broadcast_to(own[dim], (lanes, layout.registers)) for dim in dims)
    across = layout.coords(np.arange(layout.subgroups), 0, 0)[dims[0]]
    if (np.asarray(across) * elem_bytes % DWORD).any():
        return None
    run = layout.registers
    while run:
        for shape in _shapes(run, lanes, elem_bytes, limits, stores=stores):
            wanted = shape.layout(lanes, elem_bytes).coords(0, np.arange(lanes)[:, None], np.arange(run))
            if _runs(col, run, wanted["col"]) and _runs(row, run, wanted["row"]):
                starts = col[0, ::run] * elem_bytes % DWORD
                return None if starts.any() else shape
        run = run // 2 if run % 2 == 0 else 0
    return None


def _runs(at: Any, run: int, wanted: Any) -> bool:
    """Whether in each run of registers the positions are the wanted ones, counted from the first of lane 0."""
    groups = at.reshape(at.shape[0], -1, run)
    steps = np.broadcast_to(wanted, (at.shape[0], run))[:, None, :]
    return bool((groups - groups[:1, :, :1] == steps).all())


def _shapes(run: int, lanes: int, elem_bytes: int, limits: Planes, *, stores: bool) -> Iterator[Rectangle]:
    """The rectangles that one message brings into `run` registers, or stores from there, whatever their order."""
    count = 1
    if run * elem_bytes // DWORD > limits.registers:
        return
    while count <= (1 if stores else limits.count) and run * elem_bytes % (count * DWORD) == 0:
        for rows, cols, order in _single(run // count, lanes, elem_bytes):
            turned = order is RectangleOrder.ROW_A_LANE
            short = cols * count * elem_bytes <= (limits.turned if turned else limits.row)
            few = rows <= (limits.stored_rows if stores else limits.loaded_rows)
            if short and few and not (turned and (stores or count > 1)):
                yield Rectangle(rows, cols, order, count)
        count *= 2


def _single(run: int, lanes: int, elem_bytes: int) -> Iterator[tuple[int, int, RectangleOrder]]:
    """(rows, columns, order) of a single rectangle that fills `run` registers."""
    dwords = 1
    while dwords <= lanes:
        yield run * elem_bytes * lanes // (DWORD * dwords), dwords * DWORD // elem_bytes, RectangleOrder.ROWS
        dwords *= 2
    yield run, lanes, RectangleOrder.COLUMN_A_LANE
    yield lanes, run, RectangleOrder.ROW_A_LANE
