"""The semantics of tile-level statements: elements of views and shared tiles, distributed by a fragment's layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from convgen.ir import stmt as s
from convgen.ir.evaluate import Array, InterpError, Mask, Value, check_inside, convert, from_bytes, to_bytes
from convgen.ir.expr import Expr
from convgen.ir.interp_lanes import Lanes
from convgen.ir.interp_shared import agree
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, Shared, View
from convgen.ir.stmt import Stmt


def _places(lanes: Lanes, view: View, coords: tuple[Expr, ...], layout: Fragment) -> tuple[Array, Mask]:
    """Return the element of memory for each (lane, register) of a view's tile, and whether it exists."""
    return located(lanes, view, coords, lanes.coordinates(layout.over(len(coords))))


def located(lanes: Lanes, view: View, coords: tuple[Expr, ...], places: Sequence[Array]) -> tuple[Array, Mask]:
    """Return the element of memory for each place of a view's tile (a coordinate array an axis), and if it exists."""
    dims: dict[str, Array] = {}
    exists = np.ones(places[0].shape, np.bool_)
    for axis, (start, inner) in enumerate(zip(coords, places)):
        at = lanes.integers(start, "a view's coordinate")
        position = (at if at.ndim > 1 else at[:, None]) + inner
        dims.update((d, np.broadcast_to(p, exists.shape)) for d, p in view.decode(axis, position).items())
        for dim in view.axes[axis]:
            exists &= (dims[dim.name] >= 0) & (dims[dim.name] < lanes.extent(dim.extent))
    index = [np.broadcast_to(t.at(dims), exists.shape) for t in view.index]
    inside = [(at >= 0) & (at < t.size) for t, at in zip(view.index, index)]
    for t, ok in zip(view.index, inside):
        if t.masked:
            exists &= ok
    for number, ok in enumerate(inside):
        if (exists & ~ok).any():
            raise InterpError(
                f"tensor dim {number} of the view of {view.memory.name} is not masked, and is "
                f"{index[number][exists & ~ok][0]} of {view.index[number].size}"
            )
    chosen = [np.where(exists, i, 0) for i in index]
    at = np.broadcast_to(view.offset(chosen, lanes.extent), exists.shape)
    elements = len(lanes.elements(view.memory))
    check_inside(at[exists], elements, "element", f"buffer {view.memory.name}")
    return np.where(exists, at, 0), exists


def _view_tile(lanes: Lanes, view: View, coords: tuple[Expr, ...], layout: Fragment) -> Value:
    return lanes.read(view.memory, *_places(lanes, view, coords, layout))


def _load_view(lanes: Lanes, node: s.LoadView) -> None:
    lanes.bind(node.var, _view_tile(lanes, node.view, node.coords, node.layout))


def _load_runs(lanes: Lanes, node: s.LoadRuns) -> None:
    """Bind the tile followed by zeros; how messages bring runs is not modelled."""
    found = _view_tile(lanes, node.view, node.coords, node.layout).data
    more = np.zeros((*found.shape[:-1], node.var.type.lanes - found.shape[-1]), found.dtype)
    lanes.bind(node.var, Value(np.concatenate((found, more), -1)))


def _trim(lanes: Lanes, node: s.Trim) -> None:
    lanes.bind(node.var, Value(lanes.ev(node.value).data[..., : node.layout.registers]))


def _store_view(lanes: Lanes, node: s.StoreView) -> None:
    at, exists = _places(lanes, node.view, node.coords, node.layout)
    _put_elements(lanes, node.view.memory, node.value, at, exists, op=node.op if isinstance(node, s.AtomicView) else "")


def _chosen(lanes: Lanes, node: s.LoadAt | s.StoreAt) -> tuple[Array, Mask]:
    """Return the element number that each (lane, register) accesses, and whether it does."""
    exists, count = lanes.ev(node.mask).defined("a mask"), len(lanes.elements(node.buffer))
    offsets = lanes.ev(node.offsets)
    check_inside(offsets.defined("an offset", exists)[exists], count, "element", f"buffer {node.buffer.name}")
    return np.where(exists, offsets.data, 0), exists


def _load_at(lanes: Lanes, node: s.LoadAt) -> None:
    lanes.bind(node.var, lanes.read(node.buffer, *_chosen(lanes, node)))


def _store_at(lanes: Lanes, node: s.StoreAt) -> None:
    _put_elements(
        lanes, node.buffer, node.value, *_chosen(lanes, node), op=node.op if isinstance(node, s.AtomicAt) else ""
    )


def _put_elements(lanes: Lanes, buffer: Global, value: Expr, at: Array, exists: Mask, *, op: str) -> None:
    """Store elements where they exist, or combine them by `op` with those in memory.

    Two lanes that store to one place must store equal elements.
    """
    given, memory = lanes.ev(value), lanes.elements(buffer)
    data = given.defined("an added value" if op else "a stored value", exists)[exists]
    places = at[exists]
    if not op:
        agree(places, data.view(f"u{memory.itemsize}"), f"buffer {buffer.name}")
    lanes.put(memory, places, data, op)


def _copy(lanes: Lanes, node: s.Copy) -> None:
    loaded = _view_tile(lanes, node.view, node.coords, node.layout)
    if node.flip:
        loaded = Value((loaded.data ^ loaded.data.dtype.type(node.flip)).view(node.tile.elem.numpy))
    stored = Value(convert(loaded.data, node.tile.elem)) if node.tile.elem.numpy != loaded.data.dtype else loaded
    _put(lanes, node.tile, node.slot, node.layout, stored)


def _direct_copy(lanes: Lanes, node: s.DirectCopy) -> None:
    """Copy the elements at each lane's places; places are distributed over lanes, then subgroups, then messages."""
    tile, elements = node.tile, node.width // node.tile.elem.bytes
    row, col = (at.ravel() for at in np.indices((tile.rows, tile.cols)))
    by_place = np.argsort(tile.address(0, row, col))
    share = np.arange(len(by_place) // (lanes.subgroups * lanes.ev.width * elements))[:, None] * lanes.subgroups
    number = np.repeat(lanes.numbers, lanes.ev.width)[:, None, None]
    lane = np.tile(np.arange(lanes.ev.width), len(lanes.numbers))[:, None, None]
    place = ((share + number) * lanes.ev.width + lane) * elements + np.arange(elements)
    place = place.reshape(lanes.ev.lanes, -1)
    element = by_place[place]
    more = (np.zeros(place.shape, np.int64),) * (len(node.coords) - 2)
    at, exists = located(lanes, node.view, node.coords, (row[element], col[element], *more))
    value = lanes.read(node.view.memory, at, exists)
    start = _slot_of(lanes, tile, node.slot)[:, None] * tile.slot_bytes + place * tile.elem.bytes
    to = np.reshape(start[:, :, None] + np.arange(tile.elem.bytes), (lanes.ev.lanes, -1))
    lanes.shared[tile].write(to, lanes.accessors, *to_bytes(value))


def _load_shared(lanes: Lanes, node: s.LoadShared) -> None:
    start = (node.row, node.col) if isinstance(node, s.LoadPart) else (0, 0)
    at = _addresses(lanes, node.tile, node.slot, node.layout, start)
    lanes.bind(node.var, from_bytes(*lanes.shared[node.tile].read(at, lanes.accessors), node.var.type))


def _store_shared(lanes: Lanes, node: s.StoreShared) -> None:
    _put(lanes, node.tile, node.slot, node.layout, lanes.ev(node.value))


def _put(lanes: Lanes, tile: Shared, slot: Expr, layout: Fragment, value: Value) -> None:
    lanes.shared[tile].write(_addresses(lanes, tile, slot, layout), lanes.accessors, *to_bytes(value))


def _addresses(lanes: Lanes, tile: Shared, slot: Expr, layout: Fragment, start: tuple[int, int] = (0, 0)) -> Array:
    """Return the bytes of a shared tile that hold each lane's elements of the part at `start`, `[width, bytes]`."""
    row, col = (at + n for at, n in zip(lanes.coordinates(layout), start))
    chosen = _slot_of(lanes, tile, slot)
    if (row >= tile.rows).any() or (col >= tile.cols).any():
        raise InterpError(f"a {layout.shape} fragment in shared tile {tile.name} of {tile.rows} x {tile.cols}")
    at = tile.address(chosen[:, None], row, col)
    return np.reshape(at[:, :, None] + np.arange(tile.elem.bytes), (lanes.ev.lanes, -1))


def _slot_of(lanes: Lanes, tile: Shared, slot: Expr) -> Array:
    """Return the slot number of each lane."""
    chosen = lanes.integers(slot, "a slot number")
    check_inside(chosen, tile.slots, "slot", f"shared tile {tile.name}")
    return chosen


#: Semantics of tile-level statements.
TILES: dict[type[Stmt], Callable[[Lanes, Any], None]] = {
    s.LoadView: _load_view,
    s.LoadRuns: _load_runs,
    s.Trim: _trim,
    s.Prefetch: lambda _lanes, _node: None,  # a prefetch changes no value
    s.StoreView: _store_view,
    s.AtomicView: _store_view,
    s.LoadAt: _load_at,
    s.StoreAt: _store_at,
    s.AtomicAt: _store_at,
    s.Copy: _copy,
    s.DirectCopy: _direct_copy,
    s.LoadShared: _load_shared,
    s.LoadPart: _load_shared,
    s.LoadFactor: _load_shared,
    s.StoreShared: _store_shared,
}
