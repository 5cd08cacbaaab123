"""Two-dimensional block messages: accesses that are rectangles of planes, with bounds that the hardware checks.

The rows of a plane run along the dim that is contiguous in memory. The innermost dim of the other axis, or the tensor
coordinate that moves with it, counts the rows; further dims move the plane's start. A run of the fragment's registers
is one message if its elements form a rectangle in some register order; this is checked on every lane, so any fragment
will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np

from convgen.ir.expr import Expr, const, lift, select
from convgen.ir.facts import PlaneLimits, TargetFacts
from convgen.ir.layout.digits import plus, times
from convgen.ir.layout.fragment import DWORD, Fragment
from convgen.ir.layout.memory import Plane, Rectangle, RectangleOrder
from convgen.ir.record import evolve, frozen
from convgen.ir.simplify.extents import divisor, is_multiple, lower_bound, never_less, upper_bound
from convgen.ir.sizes import Extent
from convgen.passes.messages.access import Position, TileAccess, coordinate, scale
from convgen.passes.messages.linear import ZERO, Halo, LinearDim, LinearView, add_exprs
from convgen.passes.messages.masks import TRUE, Masks
from convgen.passes.messages.positions import Positions

_MOST_BYTES = 1 << 31  #: bytes of a buffer with moving planes: their start is a 32-bit offset


@frozen
class PlaneMessage:
    """Registers [start, start + count) of the fragment: a rectangle of the plane, `shift` bytes further on."""

    start: int
    count: int
    plane: Plane
    shift: Expr
    shape: Rectangle
    x: Expr  #: in units of `Rectangle.grain`
    y: Expr


@frozen
class _Planes:
    """A view as equally shaped planes: a fixed one, or one for each position along the dims that move it."""

    plane: Plane
    cols: LinearDim  #: dim along the rows
    rows: LinearDim  #: dim that counts the rows
    halo: Halo | None  #: halo whose coordinate counts the rows, if the dim alone does not
    every: int  #: positions of that coordinate from row to row
    line: Extent  #: bytes from one position of that coordinate to the next
    #: dims that slide the visible part along the rows, with columns a position
    sliding: tuple[tuple[LinearDim, int], ...]
    moving: tuple[LinearDim, ...]
    start: Extent  #: bytes; start beyond the plane's base where all moving dims are 0
    steps: tuple[Extent, ...]  #: bytes; movement of the start for a position of each moving dim

    @property
    def stays(self) -> bool:
        """Return whether the view is a single fixed plane."""
        return self.halo is None and not self.moving and not self.sliding

    def within(self, view: LinearView) -> tuple[int, int]:
        """Return columns and rows whose multiples a rectangle must not straddle; 0 if it may.

        Beyond the columns of a sliding plane lie columns of its next position, not its end. Rows past the end of a dim
        whose halo counts the rows may be inside the plane: they are masked (`unchecked`), by whole rectangles only.
        """
        assert view.unit_axis is not None
        across, down = view.axes[view.unit_axis], view.axes[1 - view.unit_axis]
        counted = self.rows.size if self.halo and self.rows.size < self.rows.padded else 0
        split = self.rows.padded if len(down) > 1 else 0
        return self.cols.padded if len(across) > 1 or self.sliding else 0, gcd(counted, split)

    def col(self, at: dict[str, Position]) -> Expr:
        """Return the column of a position."""
        total = at[self.cols.name].value
        for d, columns in self.sliding:
            total = add_exprs(total, scale(at[d.name].value, columns))
        return total

    def row(self, at: dict[str, Position]) -> tuple[Expr, Expr]:
        """Return the row of a position as (part shared by all taps, part of the tap)."""
        first = self._first(at)
        return at[self.rows.name].value, first if self.every == 1 else first // self.every

    def shift(self, at: dict[str, Position]) -> Expr:
        """Return the bytes from the plane's base to its start for a position."""
        total = lift(self.start, ZERO)
        for d, step in zip(self.moving, self.steps):
            total = add_exprs(total, scale(at[d.name].value, step))
        if self.every > 1:  # with a row stride of `every` lines, the rows begin at one of the first `every` lines
            total = add_exprs(total, scale(self._first(at) % self.every, self.line))
        return total

    def _first(self, at: dict[str, Position]) -> Expr:
        """Return the coordinate that counts the rows, at position 0 of the dim that counts them."""
        if self.halo is None:
            return const(0)
        return coordinate(self.halo.const, (term for term in self.halo.terms if term[0] != self.rows.name), at)

    def unchecked(self, view: LinearView) -> LinearView:
        """Return the view with only those dims and halos that the plane's bounds do not check."""
        slid = [d for d, _ in self.sliding] + [self.cols] if self.sliding else []
        moving = *self.moving, *slid, *([self.rows] if self.halo else [])
        names = {d.name for d in moving}
        axes = tuple(tuple(d for d in dims if d.name in names) for dims in view.axes)
        return evolve(view, axes=axes, halos=tuple(h for h in view.halos if h != self.halo))


def plane_of(view: LinearView, limits: PlaneLimits | None) -> Plane | None:
    """Return the fixed or moving plane of a view whose unit axis lies along its rows; None if there is none."""
    found = _planes(view, limits)
    return found.plane if found else None


def is_plane(view: LinearView, limits: PlaneLimits | None) -> bool:
    """Return whether a view is a single fixed plane."""
    found = _planes(view, limits)
    return found is not None and found.stays


@lru_cache(maxsize=2**10)
def _planes(view: LinearView, limits: PlaneLimits | None) -> _Planes | None:
    """Return a view as planes; None if its strides, bounds or alignment exceed the limits of block messages."""
    if limits is None or view.memory.elem.bits < 8 or len(view.axes) != 2 or view.unit_axis is None:
        return None
    across, down = view.axes[view.unit_axis], view.axes[1 - view.unit_axis]
    cols, rows = across[-1], down[-1]
    further = *across[:-1], *down[:-1]
    slides = [(d, _slide(d, cols, view, limits)) for d in further]
    sliding = tuple((d, columns) for d, columns in slides if columns)
    moving = tuple(d for d, columns in slides if not columns)
    counting = [h for h in view.halos if rows.name in dict(h.terms)]
    if len(counting) > 1 or any(cols.name in dict(h.terms) for h in view.halos):
        return None
    halo = counting[0] if counting else None
    coefs = dict(halo.terms) if halo else {}
    every = coefs.get(rows.name, 1)
    seen = plus(cols.extent, sum(columns * (d.size - 1) for d, columns in sliding))
    width, pitch = times(seen, view.memory.elem.bytes), rows.stride
    if every != 1 and not (halo and every > 1 and halo.size % every == 0 and isinstance(pitch, int)):
        return None
    line = pitch // every if isinstance(pitch, int) else pitch
    stays = halo is None and not moving and not sliding
    start: Extent = view.base
    for d in moving:
        start = plus(start, times(d.stride, d.size - 1) if d.reversed else 0)
    start = plus(start, times(line, -halo.const) if halo else 0)
    signed = (times(d.stride, -1) if d.reversed else d.stride for d in moving)
    steps = tuple(plus(step, times(line, -coefs.get(d.name, 0))) for d, step in zip(moving, signed))
    height = halo.size // every if halo else rows.extent
    if halo and rows.exact is not None:  # a launch says where the rows end
        if halo.terms != ((rows.name, 1),):
            return None
        height = plus(rows.exact, halo.const)
    fits = (
        not rows.reversed,
        not stays or view.base >= 0,
        stays or view.memory.bytes < _MOST_BYTES,
        all(is_multiple(n, limits.align) for n in (start, *steps, line if every > 1 else 0)),
        is_multiple(width, DWORD) and is_multiple(pitch, limits.pitch),
        limits.least <= lower_bound(width) and never_less(pitch, width),
        upper_bound(pitch) < limits.most and max(rows.size, upper_bound(height)) < limits.most,
    )
    plane = Plane(view.memory, view.base if stays else 0, width, height, pitch)
    return _Planes(plane, cols, rows, halo, every, line, sliding, moving, start, steps) if all(fits) else None


def _slide(d: LinearDim, cols: LinearDim, view: LinearView, limits: PlaneLimits) -> int:
    """Return the columns by which a dim slides the visible part along the rows; 0 if it does not.

    A dim must slide if its stride is not a legal alignment for a plane's start; it can slide by whole dwords if all
    columns exist. If rows are shorter than the longest row of a message, other messages are as fast.
    """
    elem = view.memory.elem.bytes
    if not isinstance(d.stride, int) or d.exact is not None or d.reversed or cols.size != cols.padded:
        return 0
    if cols.size * elem < limits.row:
        return 0
    is_seen = any(d.name in dict(h.terms) for h in view.halos)
    return 0 if d.stride % limits.align == 0 or d.stride % DWORD or is_seen else d.stride // elem


def rectangle_of(view: LinearView, layout: Fragment, facts: TargetFacts, *, stores: bool = False) -> Rectangle | None:
    """Return the rectangle that each message of an access moves, if it is planes and all are rectangles."""
    planes = _planes(view, facts.planes)
    if planes is None or view.unit_axis is None or len(layout.dims) < len(view.axes):
        return None  # an axis without a dim in the layout has one position of the tile
    elem = view.memory.elem.bytes
    return whole_rectangles(layout, view.unit_axis, elem, facts, stores=stores, within=planes.within(view))


def wide_rows(view: LinearView, layout: Fragment, facts: TargetFacts) -> Fragment:
    """Return the layout with each lane's elements of a row together, if stores then move larger rectangles."""
    narrow = rectangle_of(view, layout, facts, stores=True)
    if narrow is None or facts.planes is None or view.unit_axis is None:
        return layout
    dim, reach = layout.dims[view.unit_axis], facts.planes.row // view.memory.elem.bytes
    near = layout.near(dim, reach)
    wide = rectangle_of(view, near, facts, stores=True)
    return near if wide and wide.size > narrow.size else layout


def plane_messages(access: TileAccess, *, stores: bool = False) -> list[PlaneMessage]:
    """Return the messages of an access, in register order; [] unless all are rectangles."""
    view, layout, facts = access.view, access.layout, access.facts
    planes, unit, elem = _planes(view, facts.planes), view.unit_axis, view.memory.elem.bytes
    shape = rectangle_of(view, layout, facts, stores=stores)
    limits = facts.planes
    if planes is None or limits is None or unit is None or shape is None:
        return []
    cols, rows = (divisor(access.coords[axis], access.values) for axis in (unit, 1 - unit))
    within = planes.within(view)
    if cols * elem % DWORD or (within[0] and cols % (shape.cols * shape.count)) or (within[1] and rows % shape.rows):
        return []
    positions, run = Positions(access, lane=ZERO), shape.size // facts.subgroup_size
    step = shape.grain(elem) // elem
    masks = Masks(evolve(access, view=planes.unchecked(view)), is_moved=True)
    places = {start: positions.of(start) for start in range(0, layout.registers, run)}
    rows_of = {start: planes.row(at) for start, at in places.items()}
    of_taps = len({tap for _, tap in rows_of.values()}) > 1
    out = []
    for start, at in places.items():
        exists = TRUE if planes.stays else masks.mask(*masks.tests(at, masks.leaving(at)))
        shift = ZERO if planes.stays else planes.shift(at)
        x, (row, tap) = planes.col(at), rows_of[start]
        y = add_exprs(_away(row, exists, limits), tap) if of_taps else _away(add_exprs(row, tap), exists, limits)
        out.append(PlaneMessage(start, run, planes.plane, shift, shape, x if step == 1 else x // step, y))
    return out


def _away(row: Expr, exists: Expr, limits: PlaneLimits) -> Expr:
    """Return the row, or a row beyond the last for any tap if the element does not exist."""
    return row if exists is TRUE else select(exists, row, 2 * limits.most)


@lru_cache(maxsize=2**10)
def whole_rectangles(
    layout: Fragment,
    unit: int,
    elem_bytes: int,
    facts: TargetFacts,
    *,
    stores: bool = False,
    within: tuple[int, int] = (0, 0),
) -> Rectangle | None:
    """Return the largest rectangle that each run of as many registers forms; `unit` is the axis along the rows.

    It does not straddle multiples of the columns and rows in `within`, unless these are 0. None for elements wider than
    a dword, whose register order is not that of any rectangle.
    """
    limits, lanes = facts.planes, facts.subgroup_size
    if limits is None or elem_bytes > DWORD:
        return None
    dims = layout.dims[unit], layout.dims[1 - unit]
    own = layout.coords(0, np.arange(lanes)[:, None], np.arange(layout.registers))
    col, row = (np.broadcast_to(own[dim], (lanes, layout.registers)) for dim in dims)
    outer = layout.coords(np.arange(layout.subgroups), 0, 0)
    across, down = (np.asarray(outer[dim]) for dim in dims)
    if (across * elem_bytes % DWORD).any():
        return None
    for run in (n for n in range(layout.registers, 0, -1) if layout.registers % n == 0):
        for shape in _shapes(run, lanes, elem_bytes, limits, stores=stores):
            sides = (within[0], shape.cols * shape.count, across, col), (within[1], shape.rows, down, row)
            if any(most and _straddles(most, side, at, own[0, ::run]) for most, side, at, own in sides):
                continue
            wanted = shape.layout(lanes, elem_bytes).coords(0, np.arange(lanes)[:, None], np.arange(run))
            if _runs(col, run, wanted["col"]) and _runs(row, run, wanted["row"]):
                starts = col[0, ::run] * elem_bytes % DWORD
                return None if starts.any() else shape
    return None


def _straddles(most: int, side: int, outer: Any, own: Any) -> bool:
    """Return whether rectangle sides cross a multiple of `most`; they begin at `outer` (subgroup) plus `own`."""
    return bool(most % side or (outer % side).any() or (own % side).any())


def _runs(at: Any, run: int, wanted: Any) -> bool:
    """Return whether each run of registers has the `wanted` positions, relative to lane 0's first."""
    groups = at.reshape(at.shape[0], -1, run)
    steps = np.broadcast_to(wanted, (at.shape[0], run))[:, None, :]
    return bool((groups - groups[:1, :, :1] == steps).all())


def _shapes(run: int, lanes: int, elem_bytes: int, limits: PlaneLimits, *, stores: bool) -> Iterator[Rectangle]:
    """Yield the rectangles of one message of `run` registers, in every register order."""
    count = 1
    if run * elem_bytes // DWORD > limits.registers:
        return
    while count <= (1 if stores else limits.count) and run * elem_bytes % (count * DWORD) == 0:
        for rows, cols, order in _single(run // count, lanes, elem_bytes, stores=stores):
            transposed = order is RectangleOrder.ROW_A_LANE
            short = cols * count * elem_bytes <= (limits.transposed_row if transposed else limits.row)
            few = rows <= (limits.stored_rows if stores else limits.loaded_rows)
            if short and few and not (transposed and (stores or count > 1)):
                yield Rectangle(rows, cols, order, count)
        count *= 2


def _single(run: int, lanes: int, elem_bytes: int, *, stores: bool) -> Iterator[tuple[int, int, RectangleOrder]]:
    """Yield (rows, columns, order) of a single rectangle of `run` registers; a load has one column a lane at most."""
    dwords = 1
    while dwords <= lanes:
        yield run * elem_bytes * lanes // (DWORD * dwords), dwords * DWORD // elem_bytes, RectangleOrder.ROWS
        dwords *= 2
    for wide in (n for n in (1, 2, 4) if run % n == 0) if stores else (1,):
        yield run // wide, wide * lanes, RectangleOrder.COLUMN_A_LANE
    if not run & run - 1:
        yield lanes, run, RectangleOrder.ROW_A_LANE
