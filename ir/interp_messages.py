"""The semantics of message-level statements: accesses to bytes of buffers, shared tiles, planes and surfaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convgen.ir import stmt as s
from convgen.ir.evaluate import Array, Evaluator, InterpError, Mask, Value, check_inside, from_bytes, to_bytes
from convgen.ir.expr import Expr
from convgen.ir.interp_lanes import Lanes, picked
from convgen.ir.interp_shared import agree
from convgen.ir.stmt import Stmt
from convgen.ir.types import AnyType


def _place(lanes: Lanes, node: Any, size: int) -> tuple[Array, Array, Mask]:
    """Return (buffer, offset of each of a lane's `size` bytes, whether it is accessed) of a global message."""
    if isinstance(node, (s.FlatLoad, s.FlatStore)):
        return _flat(lanes, node, size)
    return _window(lanes, node, size, node.imm)


def _flat(
    lanes: Lanes, node: s.FlatLoad | s.FlatStore | s.FlatPrefetch | s.FlatDirectLoad, size: int
) -> tuple[Array, Array, Mask]:
    """Return (buffer, bytes, mask) of an access to flat addresses; all must lie in the message's buffer."""
    buffer = node.buffer
    mask = lanes.ev(node.mask).defined("a mask")
    start = lanes.integers(node.address, "an address") - lanes.bases[buffer]
    length = len(lanes.memory[buffer])
    if (bad := start[mask & ((start < 0) | (start + size > length))]).size:
        raise InterpError(f"bytes {bad[0]} to {bad[0] + size - 1} of buffer {buffer.name}, which has {length}")
    at = start[:, None] + np.arange(size)
    inside = np.broadcast_to(mask[:, None], at.shape)
    return lanes.memory[buffer], np.where(inside, at, 0), inside


def _window(
    lanes: Lanes, node: s.GlobalLoad | s.GlobalStore | s.DirectLoad, size: int, imm: int
) -> tuple[Array, Array, Mask]:
    """Return (buffer, bytes, mask) of an access to a surface; bytes outside its extent are not accessed."""
    surface = lanes.ev.window(node.surface)
    if surface.buffer is not node.buffer:
        raise InterpError(f"a surface of {surface.buffer.name}, of a message that accesses {node.buffer.name}")
    uniform = lanes.ev.uniform(node.uniform, "a uniform offset")
    start = lanes.integers(node.varying, "an offset") + uniform + imm
    at = start[:, None] + np.arange(size)
    inside = (at >= 0) & (at < surface.extent[:, None])
    words = inside.reshape(len(at), -1, min(size, 4))
    if (words.any(axis=2) != words.all(axis=2)).any():
        extent = surface.extent[0]  # only one subgroup runs where this message is seen
        raise InterpError(f"the extent {extent} of a surface of {surface.buffer.name} ends inside a word")
    at = at + surface.shift[:, None]
    length = len(lanes.memory[surface.buffer])
    check_inside(at[inside], length, "byte", f"buffer {surface.buffer.name}")
    return lanes.memory[surface.buffer], np.where(inside, at, 0), inside


def _global_load(lanes: Lanes, node: s.GlobalLoad | s.FlatLoad) -> None:
    buffer, at, inside = _place(lanes, node, node.var.type.bits // 8)
    poison = ~inside if isinstance(node, s.PartialLoad) else None
    lanes.bind(node.var, from_bytes(picked(buffer, at, inside), poison, node.var.type))


def _global_store(lanes: Lanes, node: s.GlobalStore | s.FlatStore) -> None:
    _put_bytes(lanes, node.value, *_place(lanes, node, node.value.type.bits // 8))


def _put_bytes(lanes: Lanes, value: Expr, buffer: Array, at: Array, inside: Mask) -> None:
    """Store each lane's bytes where `inside` holds; two lanes that store to one place must store equal bytes."""
    raw, poison = to_bytes(lanes.ev(value))
    Value(raw, poison).defined("a stored value", inside)
    agree(at[inside], raw[inside], "a buffer")
    lanes.put(buffer, at[inside], raw[inside])


def _global_atomic(lanes: Lanes, node: s.GlobalAtomic | s.FlatAtomic) -> None:
    value = lanes.ev(node.value)
    elem = node.value.type.elem
    data = value.data.reshape(lanes.ev.lanes, -1)
    buffer, at, inside = _place(lanes, node, data.shape[1] * elem.bytes)
    first, there = at[:, :: elem.bytes] // elem.bytes, inside[:, :: elem.bytes]
    value.moved(lambda elements: elements.reshape(data.shape)).defined("an added value", there)
    whole = len(buffer) // elem.bytes * elem.bytes
    elements = buffer[:whole].view(elem.numpy)
    lanes.put(elements, first[there], data[there], node.op)


def _ticket(lanes: Lanes, node: s.Ticket) -> None:
    counts = lanes.elements(node.buffer)
    index = lanes.ev.uniform(node.index, "the index of a count").astype(np.int64)[:: lanes.ev.width]
    check_inside(index, len(counts), "count", f"buffer {node.buffer.name}")
    rounds = lanes.ev.uniform(node.turns, "the turns of a round").astype(np.int64)[:: lanes.ev.width]
    taken = np.zeros(len(index), np.int32)
    for subgroup, (at, turns) in enumerate(zip(index, rounds)):
        taken[subgroup] = counts[at]
        if not 0 <= counts[at] < turns:
            raise InterpError(f"a count of {counts[at]} where a round has {turns} turns")
        lanes.put(counts, index[subgroup : subgroup + 1], (counts[at] + 1) % turns)
    lanes.bind(node.var, Value(np.repeat(taken, lanes.ev.width)))


def _rectangle(lanes: Lanes, node: s.PlaneLoad | s.PlaneStore, type: AnyType) -> tuple[Array, Array, Mask]:
    """Return (buffer, address of each byte of a lane's elements, whether that byte is in the plane)."""
    plane, elem = node.plane, type.elem.bytes
    x, y = lanes.ev.uniform(node.x, "a rectangle's x")[:, None], lanes.ev.uniform(node.y, "a rectangle's y")[:, None]
    row, col = lanes.coordinates(node.shape.layout(lanes.ev.width, elem))
    start = np.broadcast_to(x * node.shape.grain(elem) + col * elem, (lanes.ev.lanes, type.lanes))
    byte = (start[:, :, None] + np.arange(elem)).reshape(lanes.ev.lanes, -1)
    row = np.repeat(np.broadcast_to(y + row, start.shape), elem, axis=1)
    width, height, pitch = map(lanes.extent, (plane.width, plane.height, plane.pitch))
    inside = (row >= 0) & (row < height) & (byte >= 0) & (byte < width)
    buffer = lanes.memory[plane.memory]
    shift = np.repeat(lanes.ev.uniform(node.shift, "where a plane begins")[:, None], row.shape[1], axis=1)
    at = np.where(inside, plane.base + shift + row * pitch + byte, 0)
    check_inside(at, len(buffer), "byte", f"buffer {plane.memory.name}")
    return buffer, at, inside


def _flat_prefetch(lanes: Lanes, node: s.FlatPrefetch) -> None:
    """Check the operands; a prefetch changes no value."""
    _flat(lanes, node, 1)


def _plane_load(lanes: Lanes, node: s.PlaneLoad) -> None:
    buffer, at, inside = _rectangle(lanes, node, node.var.type)
    lanes.bind(node.var, from_bytes(picked(buffer, at, inside), None, node.var.type))


def _plane_store(lanes: Lanes, node: s.PlaneStore) -> None:
    _put_bytes(lanes, node.value, *_rectangle(lanes, node, node.value.type))


def shared_bytes(ev: Evaluator, node: s.SharedRead | s.SharedWrite | s.DirectMessage) -> Array:
    """Return the bytes of a shared tile that each lane accesses, `[lanes, size]`."""
    lane = np.tile(np.arange(ev.width), len(ev.numbers))[:, None]
    if isinstance(node, s.DirectMessage):
        start = ev.uniform(node.place, "the place of a direct load") + node.imm
        return start[:, None] + lane * node.width + np.arange(node.width)
    start = ev(node.address).defined("a shared address").astype(np.int64) + node.imm
    size = np.arange(node.moved.bits // 8)
    if isinstance(node, (s.BlockRead, s.BlockWrite)):
        dword, byte = np.divmod(size, 4)
        return start[:, None] + 4 * (dword * ev.width + lane) + byte
    return start[:, None] + size


def _shared_read(lanes: Lanes, node: s.SharedRead) -> None:
    at = shared_bytes(lanes.ev, node)
    if exchange := _EXCHANGES.get(type(node)):
        shape, order = exchange
        at = at.reshape(shape).transpose(order).reshape(at.shape)
    lanes.bind(node.var, from_bytes(*lanes.shared[node.tile].read(at, lanes.accessors), node.var.type))


def _shared_write(lanes: Lanes, node: s.SharedWrite) -> None:
    raw, poison = to_bytes(lanes.ev(node.value))
    if isinstance(node, s.FilledWrite):
        exists = lanes.ev(node.mask).defined("a mask")[:, None]
        raw, poison = np.where(exists, raw, 0).astype(np.uint8), None if poison is None else poison & exists
    lanes.shared[node.tile].write(shared_bytes(lanes.ev, node), lanes.accessors, raw, poison)


def _direct_load(lanes: Lanes, node: s.DirectLoad | s.FlatDirectLoad) -> None:
    if isinstance(node, s.FlatDirectLoad):
        buffer, at, inside = _flat(lanes, node, node.width)
    else:
        buffer, at, inside = _window(lanes, node, node.width, 0)
    to = shared_bytes(lanes.ev, node)
    lanes.shared[node.tile].write(to, lanes.accessors, picked(buffer, at, inside), None)


#: By read that exchanges elements between lanes: the shape of the addresses `[lanes, bytes]` and its transposition.
_EXCHANGES: dict[type[Stmt], tuple[tuple[int, ...], tuple[int, ...]]] = {
    s.TransposedRead: ((-1, 4, s.TRANSPOSED_LANES, 2), (0, 2, 1, 3)),  # groups, runs, their elements, bytes of one
    s.MatrixRead: ((-1, 4, 8, 4, 4), (0, 2, 3, 1, 4)),  # subgroups, matrices, rows, dwords, bytes of one
    # subgroups, matrices, pairs of rows, rows of a pair, columns, bytes
    s.TransposedMatrixRead: ((-1, 4, 4, 2, 8, 2), (0, 4, 2, 1, 3, 5)),
}

#: Semantics of message-level statements, and of tickets.
MESSAGES: dict[type[Stmt], Callable[[Lanes, Any], None]] = {
    s.GlobalLoad: _global_load,
    s.GlobalStore: _global_store,
    s.GlobalAtomic: _global_atomic,
    s.Ticket: _ticket,
    s.Acquire: lambda _lanes, _node: None,  # memory is in the order of statements
    s.FlatLoad: _global_load,
    s.PartialLoad: _global_load,
    s.PlaneLoad: _plane_load,
    s.PlaneStore: _plane_store,
    s.FlatPrefetch: _flat_prefetch,
    s.PlanePrefetch: lambda _lanes, _node: None,  # a prefetch changes no value
    s.FlatStore: _global_store,
    s.FlatAtomic: _global_atomic,
    s.DirectLoad: _direct_load,
    s.FlatDirectLoad: _direct_load,
    s.SharedRead: _shared_read,
    s.SharedWrite: _shared_write,
    s.FilledWrite: _shared_write,
    s.BlockRead: _shared_read,
    s.TransposedRead: _shared_read,
    s.MatrixRead: _shared_read,
    s.TransposedMatrixRead: _shared_read,
    s.BlockWrite: _shared_write,
}
