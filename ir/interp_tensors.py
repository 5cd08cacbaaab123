"""The semantics of bulk copies of tensors and of rings, by which roles hand over slots of shared tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from convgen.ir import stmt as s
from convgen.ir.evaluate import Array, InterpError, Mask, check_inside, to_bytes
from convgen.ir.expr import Expr
from convgen.ir.interp_lanes import Lanes, picked
from convgen.ir.interp_shared import Accessors, RingState, SharedTile
from convgen.ir.interp_tiles import located
from convgen.ir.layout.memory import Shared
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.stmt import Stmt

_COPYING = 0  #: subgroup that starts the copies of tiles
_CHUNK_BIT, _PERMUTED_BY = 4, 7  #: bits of an address: the first of a chunk's number, the first that permutes chunks


def _start(lanes: Lanes, node: s.StartRing) -> None:
    region = lanes.shared[node.ring].region
    region.ring = region.ring or RingState(node.ring.cols, node.consumers)


def _release(lanes: Lanes, node: s.ReleaseSlot) -> None:
    """Count a release; products have read their factors when they were evaluated, so none is waited for."""
    slot = _uniform(lanes, node.slot)
    check_inside(slot, node.ring.cols, "slot", f"ring {node.ring.name}")
    lanes.shared[node.ring].ring.release(int(slot[0]), lanes.numbers[0])


def _uniform(lanes: Lanes, e: Expr) -> Array:
    """Return the value that each subgroup agrees on, one for each subgroup."""
    values: Array = lanes.ev.uniform(e, "an operand")[:: lanes.ev.width]
    return values


def _tensor_copy(lanes: Lanes, node: s.TensorCopy) -> None:
    """Copy the elements of the view's tile to a slot, if the first subgroup is here."""
    if _COPYING not in lanes.numbers:
        return
    tile = node.tile
    first_rows = lanes.integers(node.coords[0], "a view's coordinate")
    if (first_rows % node.step).any():
        raise InterpError(f"a copy to {tile.name} from row {first_rows[0]} on, wanted a multiple of {node.step}")
    row, col = (at.ravel() for at in np.indices((tile.rows, tile.cols)))
    places = (row, col, *(np.zeros(len(row), np.int64),) * (len(node.coords) - 2))
    at, exists = located(lanes, node.view, node.coords, tuple(np.tile(p, (lanes.ev.lanes, 1)) for p in places))
    raw, _ = to_bytes(lanes.read(node.view.memory, at, exists))
    to = np.reshape(tile.address(0, row, col)[:, None] + np.arange(tile.elem.bytes), -1)
    _fill(lanes, node.tile, node.slot, node.ring, np.tile(to, (lanes.ev.lanes, 1)), raw, _COPYING)


def _tensor_load(lanes: Lanes, node: s.TensorLoad) -> None:
    """Copy the elements that a tensor map takes at its coordinates; those outside the tensor are zero."""
    tensor, size = node.tensor, node.tensor.size
    coords = [_uniform(lanes, e) for e in node.coords]
    offsets = [_uniform(lanes, e) for e in node.offsets]
    rows = [
        elements_of(tensor, [int(c[n]) for c in coords], [int(o[n]) for o in offsets])
        for n in range(len(lanes.numbers))
    ]
    buffer = lanes.memory[node.buffer]
    at = np.repeat(np.stack([at for at, _ in rows]), lanes.ev.width, axis=0)
    inside = np.repeat(np.stack([exists for _, exists in rows]), lanes.ev.width, axis=0)
    check_inside(at[inside], len(buffer) - size + 1, "byte", f"buffer {node.buffer.name}")
    taken = picked(buffer, at[:, :, None] + np.arange(size), inside[:, :, None])
    place = node.place + np.arange(tensor.bytes)
    mask = max(0, tensor.swizzle // (1 << _CHUNK_BIT) - 1)
    to = np.tile(place ^ ((place >> _PERMUTED_BY & mask) << _CHUNK_BIT), (lanes.ev.lanes, 1))
    _fill(lanes, node.tile, node.slot, node.ring, to, taken.reshape(lanes.ev.lanes, -1), lanes.numbers[0])


def elements_of(tensor: TensorMap, coords: Sequence[int], offsets: Sequence[int]) -> tuple[Array, Mask]:
    """Return the byte of the buffer at which each element of a copy begins, and whether it is in the tensor.

    Elements stand in the order of shared memory, before a swizzle.
    """
    at = np.full(prod(tensor.extents), tensor.shift, np.int64)
    inside = np.ones(len(at), np.bool_)
    strides = (tensor.size, *tensor.strides)
    for position, size, stride in zip(_positions(tensor, coords, offsets), tensor.dims, strides, strict=True):
        at += position * stride
        inside &= (position >= 0) & (position < size)
    return np.where(inside, at, 0), inside


def _positions(tensor: TensorMap, coords: Sequence[int], offsets: Sequence[int]) -> list[Array]:
    """Return the position along each dimension of each element of a copy, innermost dimension first."""
    steps = tensor.steps
    if tensor.kind == "tiled":
        number = np.arange(prod(tensor.extents))
        positions = []
        for start, extent, step in zip(coords, tensor.extents, steps, strict=True):
            positions.append(start + number % extent * step)
            number = number // extent
        return positions
    spatial = range(1, len(tensor.dims) - 1)
    ends = [tensor.dims[d] + tensor.upper[d - 1] for d in spatial]
    counts = [max(1, -(-(end - low) // steps[d])) for d, low, end in zip(spatial, tensor.lower, ends)]
    number, stride = np.arange(tensor.pixels), 1
    for d, low, count in zip(spatial, tensor.lower, counts):
        number = number + (coords[d] - low) // steps[d] * stride
        stride *= count
    pixels = []
    for d, low, count, offset in zip(spatial, tensor.lower, counts, offsets, strict=True):
        pixels.append(low + number % count * steps[d] + offset)
        number = number // count
    pixels.append(coords[-1] + number)
    channels = coords[0] + np.arange(tensor.channels)
    return [np.tile(channels, tensor.pixels), *(np.repeat(p, tensor.channels) for p in pixels)]


def _fill(lanes: Lanes, tile: Shared, slot: Expr, ring: Shared, to: Array, raw: Array, by: int) -> None:
    """Write a copy's bytes to a slot of a tile: those of the first lane of each workgroup's subgroup `by`.

    `to` and `raw` are `[lanes, bytes]`; `to` counts from the slot's start. A ring that has started counts the bytes.
    """
    members = [n for n, number in enumerate(lanes.numbers) if number == by]
    first = np.array(members) * lanes.ev.width
    slots = lanes.integers(slot, "a slot number")[first]
    check_inside(slots, tile.slots, "slot", f"shared tile {tile.name}")
    at = to[first] + slots[:, None] * tile.slot_bytes
    target: SharedTile = lanes.shared[tile]
    group = lanes.accessors.group[first]
    target.write(at, Accessors(group, [(by, np.arange(len(first)))]), raw[first], None)
    state = lanes.shared[ring].region.ring
    if state is None:
        return
    if len(first) > 1:
        raise InterpError(f"a copy into a slot of ring {ring.name} outside a role")
    state.fill(int(slots[0]), target.region, at.ravel(), raw.shape[1])


#: Semantics of statements on rings that do not wait, and of bulk copies.
TENSORS: dict[type[Stmt], Callable[[Lanes, Any], None]] = {
    s.StartRing: _start,
    s.ReleaseSlot: _release,
    s.TakeRegisters: lambda _lanes, _node: None,  # registers have no limit here
    s.TensorCopy: _tensor_copy,
    s.TensorLoad: _tensor_load,
}
