"""The subgroups that go the same way through a kernel, and what each statement means to them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np

from convgen.ir import expr as x
from convgen.ir import stmt as s
from convgen.ir.evaluate import Array, Evaluator, InterpError, Mask, SurfaceValue, Value, convert, from_bytes, to_bytes
from convgen.ir.expr import Expr, Var
from convgen.ir.interp_exchange import Held, exchanged
from convgen.ir.interp_shared import Accessors, SharedTile, agree
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, Shared, View
from convgen.ir.node import Node
from convgen.ir.program import Kernel
from convgen.ir.simplify.extents import value_of
from convgen.ir.sizes import Extent
from convgen.ir.stmt import Stmt
from convgen.ir.text import show
from convgen.ir.types import AnyType

_BUFFER_SPACING = 40  #: log2 of the bytes between the addresses of two buffers: no buffer is as long

Group = tuple[int, int, int]  # a workgroup's place in the grid
Left = tuple[Value | SurfaceValue, ...] | None  # the values with which a statement left its loop, if it did


class Stop(Enum):
    """Where a subgroup waits for others."""

    BARRIER = "for all of the workgroup"
    MEETING = "for those that need what it has, as in a matrix instruction of several subgroups"


Run = Generator[Stop, None, Left]


class Parted(Exception):
    """Subgroups that went together want to go different ways."""


@lru_cache(maxsize=2**8)
def _tile_coords(layout: Fragment, subgroups: tuple[int, ...], width: int) -> tuple[Array, ...]:
    """The coordinates along each dim of `layout` that each (lane, register) of some subgroups holds."""
    lanes, registers = np.arange(width)[:, None], np.arange(layout.registers)[None, :]
    at = [layout.coords(subgroup, lanes, registers) for subgroup in subgroups]
    shape = (width, layout.registers)
    return tuple(
        np.concatenate([np.broadcast_to(one[dim], shape) for one in at]).astype(np.int64) for dim in layout.dims
    )


class Party:
    """Subgroups that go the same way through the statements: their variables, lane behind lane.

    Either one, whose peers are the others of its workgroup, or all of some workgroups.
    """

    def __init__(
        self,
        k: Kernel,
        members: Sequence[tuple[Group, int]],
        values: Mapping[Var, int],
        memory: Mapping[Global, Array],
        shared: Mapping[Shared, SharedTile],
    ) -> None:
        self.numbers = tuple(number for _, number in members)
        self.is_alone = len(members) == 1
        self.memory, self.shared = memory, shared
        self.bases = {buffer: n << _BUFFER_SPACING for n, buffer in enumerate(memory, 1)}
        self.ev = Evaluator(k.width, self.bases, self.numbers)
        self.ev.team = self._team
        self.peers: Sequence[Party] = (self,)  # all subgroups of the workgroup, if each goes alone
        self.offered: dict[Node, tuple[Value, ...]] = {}  # operands that others read, too
        self.overwritten: list[tuple[Array, Array, Array]] = []  # (memory, places, what was there), oldest first
        number = np.repeat(self.numbers, k.width)
        group = np.arange(len(number)) // k.width // k.subgroups
        self.accessors = Accessors(group, [(n, np.flatnonzero(number == n)) for n in sorted({*self.numbers})])
        self.sizes = values
        for var, value in values.items():
            self.bind(var, self.ev.full(var.type, value))
        for var, of in zip((*k.group_ids, k.subgroup), (*zip(*(place for place, _ in members)), self.numbers)):
            self.bind(var, Value(np.repeat(np.array(of, var.type.elem.numpy), k.width)))

    def _team(self, product: x.Mma) -> Sequence[tuple[Value, ...]]:
        spans = product.op.atom.spans
        if spans == 1:
            return [(self.ev(product.a), self.ev(product.b))]
        if not self.is_alone:
            if product not in self.offered or len({*self.numbers}) % spans:
                raise Parted
            return [self.offered[product]]
        (number,) = self.numbers
        first = number - number % spans
        team = [peer.offered.get(product) for peer in self.peers[first : first + spans]]
        if len(team) < spans or None in team:
            raise InterpError(f"a product of {spans} subgroups that subgroup {number} executes without the others")
        return [operands for operands in team if operands is not None]

    def bind(self, var: Var, value: Value | SurfaceValue) -> None:
        self.ev.env[var] = value

    def integers(self, e: Expr, what: str) -> Array:
        """The exact integers of all lanes, for an address."""
        return self.ev(e).decided(what).astype(np.int64)

    def extent(self, e: Extent) -> int:
        """The number that an extent is in this launch."""
        return value_of(e, self.sizes)

    def changing(self, memory: Array, at: Array) -> Array:
        """The memory, of which places are about to change."""
        self.overwritten.append((memory, at, memory[at]))
        return memory

    def decision(self, e: Expr, what: str) -> int:
        """The integer on which the way depends."""
        found = self.ev.uniform(e, what)
        if (found != found[0]).any():
            raise Parted
        return int(found[0])

    # ------------------------------------------------------------ control

    def run(self, node: Stmt) -> Run:
        """Run a statement; yields where it waits, returns the values with which it leaves the innermost loop."""
        match node:
            case s.Block(stmts):
                for inner in stmts:
                    left = yield from self.run(inner)
                    if left is not None:
                        return left
            case s.For():
                yield from self.loop(node)
            case s.If(cond, then, other):
                with _located(node, f"if {show(cond)}"):
                    holds = self.decision(cond, "a branch")
                return (yield from self.run(then if holds else other))
            case s.ExitIf(cond, values):
                with _located(node):
                    if self.decision(cond, "a loop's exit"):
                        return tuple(map(self.ev.bound, values))
            case s.Arrive():
                pass  # the verifier holds shared memory untouched until the wait
            case s.Barrier():
                yield Stop.BARRIER
            case s.Let(_, x.Mma(op=op) as product) if op.atom.spans > 1:
                yield from self.together(node, product, (product.a, product.b), lambda: self.let(node))
            case s.Exchange() if node.meet:
                yield from self.together(node, node, (node.value,), lambda: self.exchange(node))
            case _:
                with _located(node):
                    _STATEMENTS[type(node)](self, node)
        return None

    def together(self, node: Stmt, key: Node, operands: Sequence[Expr], take: Callable[[], None]) -> Generator[Stop]:
        """`take` what subgroups make of the operands that all of them offer under `key`."""
        with _located(node):
            self.offered[key] = tuple(map(self.ev, operands))
        if self.is_alone:
            yield Stop.MEETING
        with _located(node):
            take()
        if self.is_alone:
            yield Stop.MEETING  # until all have taken what was offered
        del self.offered[key]

    def loop(self, node: s.For) -> Run:
        with _located(node, f"loop {node.label}"):
            begin, end = (self.decision(e, "a loop's bound") for e in (node.begin, node.end))
            values: tuple[Value | SurfaceValue, ...] = tuple(map(self.ev.bound, node.inits))
        for i in range(begin, end):
            self.ev.forget()
            self.bind(node.var, self.ev.full(node.var.type, i))
            for var, value in zip(node.carried, values):
                self.bind(var, value)
            left = yield from self.run(node.body)
            if left is not None:
                values = left
                break
            with _located(node, f"yield of loop {node.label}"):
                values = tuple(map(self.ev.bound, node.yields))
        self.ev.forget()
        for var, value in zip(node.results, values):
            self.bind(var, value)
        return None

    # ------------------------------------------------------------ tiles

    def places(self, view: View, coords: tuple[Expr, ...], layout: Fragment) -> tuple[Array, Mask]:
        """The element of memory that each (lane, register) of a view's tile stands for, and whether there is one."""
        return self.located(view, coords, _tile_coords(layout.over(len(coords)), self.numbers, self.ev.width))

    def located(self, view: View, coords: tuple[Expr, ...], places: Sequence[Array]) -> tuple[Array, Mask]:
        """The same of places within the tile, given by their coordinates along each axis."""
        dims: dict[str, Array] = {}
        exists = np.ones(places[0].shape, np.bool_)
        for axis, (start, inner) in enumerate(zip(coords, places)):
            position = self.integers(start, "a view's coordinate")[:, None] + inner
            dims.update((d, np.broadcast_to(p, exists.shape)) for d, p in view.decode(axis, position).items())
            for dim in view.axes[axis]:
                exists &= (dims[dim.name] >= 0) & (dims[dim.name] < self.extent(dim.extent))
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
        at = np.broadcast_to(view.offset(chosen, self.extent), exists.shape)
        elements = len(self.elements(view.memory))
        if (bad := at[exists & (at >= elements)]).size:
            raise InterpError(f"element {bad[0]} of buffer {view.memory.name}, which has {elements}")
        return np.where(exists, at, 0), exists

    def elements(self, memory: Global) -> Array:
        """A buffer as an array of its elements."""
        held = self.memory[memory]
        if memory.elem.bits == 4:
            return np.stack((held & 0xF, held >> 4), axis=1).reshape(-1).view(memory.elem.numpy)  # to be read only
        return held[: len(held) // memory.elem.bytes * memory.elem.bytes].view(memory.elem.numpy)

    def view_tile(self, view: View, coords: tuple[Expr, ...], layout: Fragment) -> Value:
        at, exists = self.places(view, coords, layout)
        return Value(np.where(exists, self.elements(view.memory)[at], view.memory.elem.numpy.type(0)))

    def load_view(self, node: s.LoadView) -> None:
        self.bind(node.var, self.view_tile(node.view, node.coords, node.layout))

    def load_runs(self, node: s.LoadRuns) -> None:
        """The tile, and nothing behind it: how messages bring it is not seen here."""
        found = self.view_tile(node.view, node.coords, node.layout).data
        more = np.zeros((*found.shape[:-1], node.var.type.lanes - found.shape[-1]), found.dtype)
        self.bind(node.var, Value(np.concatenate((found, more), -1)))

    def trim(self, node: s.Trim) -> None:
        self.bind(node.var, Value(self.ev(node.value).data[..., : node.layout.registers]))

    def store_view(self, node: s.StoreView) -> None:
        at, exists = self.places(node.view, node.coords, node.layout)
        self.put_elements(
            node.view.memory, node.value, at, exists, op=node.op if isinstance(node, s.AtomicView) else None
        )

    def chosen(self, node: s.LoadAt | s.StoreAt) -> tuple[Array, Mask]:
        """The element of a buffer that each (lane, register) says, and whether it is accessed."""
        exists, count = self.ev(node.mask).decided("a mask"), len(self.elements(node.buffer))
        offsets = self.ev(node.offsets)
        Value(offsets.data, None if offsets.poison is None else offsets.poison & exists).decided("an offset")
        if (bad := offsets.data[exists & ((offsets.data < 0) | (offsets.data >= count))]).size:
            raise InterpError(f"element {bad[0]} of buffer {node.buffer.name}, which has {count}")
        return np.where(exists, offsets.data, 0), exists

    def load_at(self, node: s.LoadAt) -> None:
        at, exists = self.chosen(node)
        data = np.where(exists, self.elements(node.buffer)[at], np.zeros((), node.buffer.elem.numpy))
        self.bind(node.var, Value(data))

    def store_at(self, node: s.StoreAt) -> None:
        self.put_elements(
            node.buffer, node.value, *self.chosen(node), op=node.op if isinstance(node, s.AtomicAt) else None
        )

    def put_elements(self, buffer: Global, value: Expr, at: Array, exists: Mask, *, op: str | None) -> None:
        """Elements stored where they exist, or combined with those there by `op`.

        What two lanes store in one place must be the same.
        """
        held, memory = self.ev(value), self.elements(buffer)
        poison = None if held.poison is None else held.poison & exists
        Value(held.data, poison).decided("an added value" if op else "a stored value")
        places, data = at[exists], held.data[exists]
        if op:
            _COMBINED[op].at(self.changing(memory, places), places, data)
            return
        agree(places, data.view(f"u{memory.itemsize}"), f"buffer {buffer.name}")
        self.changing(memory, places)[places] = data

    def copy(self, node: s.Copy) -> None:
        found = self.view_tile(node.view, node.coords, node.layout)
        if node.flip:
            found = Value((found.data ^ found.data.dtype.type(node.flip)).view(node.tile.elem.numpy))
        held = Value(convert(found.data, node.tile.elem)) if node.tile.elem.numpy != found.data.dtype else found
        self.put(node.tile, node.slot, node.layout, held)

    def direct_copy(self, node: s.DirectCopy) -> None:
        """Each lane brings what the tile has at its places, in the order of subgroups, then of messages."""
        tile, each = node.tile, node.width // node.tile.elem.bytes
        row, col = (at.ravel() for at in np.indices((tile.rows, tile.cols)))
        by_place = np.argsort(tile.address(0, row, col))
        subgroups = len(self.peers) if self.is_alone else len({*self.numbers})
        share = np.arange(len(by_place) // (subgroups * self.ev.width * each))[:, None] * subgroups
        number = np.repeat(self.numbers, self.ev.width)[:, None, None]
        lane = np.tile(np.arange(self.ev.width), len(self.numbers))[:, None, None]
        place = ((share + number) * self.ev.width + lane) * each + np.arange(each)
        place = place.reshape(self.ev.lanes, -1)
        found = by_place[place]
        more = (np.zeros(place.shape, np.int64),) * (len(node.coords) - 2)
        at, exists = self.located(node.view, node.coords, (row[found], col[found], *more))
        value = Value(np.where(exists, self.elements(node.view.memory)[at], tile.elem.numpy.type(0)))
        start = self.slot_of(tile, node.slot)[:, None] * tile.slot_bytes + place * tile.elem.bytes
        to = np.reshape(start[:, :, None] + np.arange(tile.elem.bytes), (self.ev.lanes, -1))
        self.shared[tile].write(to, self.accessors, *to_bytes(value))

    def load_shared(self, node: s.LoadShared) -> None:
        start = (node.row, node.col) if isinstance(node, s.LoadPart) else (0, 0)
        at = self.addresses(node.tile, node.slot, node.layout, start)
        self.bind(node.var, from_bytes(*self.shared[node.tile].read(at, self.accessors), node.var.type))

    def store_shared(self, node: s.StoreShared) -> None:
        self.put(node.tile, node.slot, node.layout, self.ev(node.value))

    def put(self, tile: Shared, slot: Expr, layout: Fragment, value: Value) -> None:
        self.shared[tile].write(self.addresses(tile, slot, layout), self.accessors, *to_bytes(value))

    def addresses(self, tile: Shared, slot: Expr, layout: Fragment, start: tuple[int, int] = (0, 0)) -> Array:
        """The bytes of a shared tile that each lane holds of a part from `start` on, `[width, bytes]`."""
        row, col = (at + n for at, n in zip(_tile_coords(layout, self.numbers, self.ev.width), start))
        chosen = self.slot_of(tile, slot)
        if (row >= tile.rows).any() or (col >= tile.cols).any():
            raise InterpError(f"a {layout.shape} fragment in shared tile {tile.name} of {tile.rows} x {tile.cols}")
        at = tile.address(chosen[:, None], row, col)
        return np.reshape(at[:, :, None] + np.arange(tile.elem.bytes), (self.ev.lanes, -1))

    def slot_of(self, tile: Shared, slot: Expr) -> Array:
        """The slot that each lane says."""
        chosen = self.integers(slot, "a slot number")
        if (bad := chosen[(chosen < 0) | (chosen >= tile.slots)]).size:
            raise InterpError(f"slot {bad[0]} of shared tile {tile.name}, which has {tile.slots}")
        return chosen

    # ------------------------------------------------------------ messages

    def place(self, node: Any, size: int) -> tuple[Array, Array, Mask]:
        """(buffer, the byte of it for each lane's `size` bytes, whether it is accessed) of a global message."""
        return (
            self.flat(node, size) if isinstance(node, (s.FlatLoad, s.FlatStore)) else self.window(node, size, node.imm)
        )

    def flat(self, node: s.FlatLoad | s.FlatStore | s.FlatPrefetch, size: int) -> tuple[Array, Array, Mask]:
        """Where the lanes whose mask holds access the flat address space: in the message's buffer, all of them."""
        buffer = node.buffer
        mask = self.ev(node.mask).decided("a mask")
        start = self.integers(node.address, "an address") - self.bases[buffer]
        length = len(self.memory[buffer])
        if (bad := start[mask & ((start < 0) | (start + size > length))]).size:
            raise InterpError(f"bytes {bad[0]} to {bad[0] + size - 1} of buffer {buffer.name}, which has {length}")
        at = start[:, None] + np.arange(size)
        inside = np.broadcast_to(mask[:, None], at.shape)
        return self.memory[buffer], np.where(inside, at, 0), inside

    def window(
        self, node: s.GlobalLoad | s.GlobalStore | s.DirectLoad, size: int, imm: int
    ) -> tuple[Array, Array, Mask]:
        """Where the lanes access a surface; outside its extent they do not."""
        surface = self.ev.window(node.surface)
        if surface.buffer is not node.buffer:
            raise InterpError(f"a surface of {surface.buffer.name}, of a message that accesses {node.buffer.name}")
        uniform = self.ev.uniform(node.uniform, "a uniform offset")
        start = self.integers(node.varying, "an offset") + uniform + imm
        at = start[:, None] + np.arange(size)
        inside = (at >= 0) & (at < surface.extent[:, None])
        words = inside.reshape(len(at), -1, min(size, 4))
        if (words.any(axis=2) != words.all(axis=2)).any():
            extent = surface.extent[0]  # of the only subgroup, where this is told
            raise InterpError(f"the extent {extent} of a surface of {surface.buffer.name} cuts a word in two")
        at = at + surface.shift[:, None]
        length = len(self.memory[surface.buffer])
        if (bad := at[inside & ((at < 0) | (at >= length))]).size:
            raise InterpError(f"byte {bad[0]} of buffer {surface.buffer.name}, which has {length}")
        return self.memory[surface.buffer], np.where(inside, at, 0), inside

    def global_load(self, node: s.GlobalLoad | s.FlatLoad) -> None:
        buffer, at, inside = self.place(node, node.var.type.bits // 8)
        poison = ~inside if isinstance(node, s.PartialLoad) else None
        self.bind(node.var, from_bytes(np.where(inside, buffer[at], 0).astype(np.uint8), poison, node.var.type))

    def global_store(self, node: s.GlobalStore | s.FlatStore) -> None:
        self.put_bytes(node.value, *self.place(node, node.value.type.bits // 8))

    def put_bytes(self, value: Expr, buffer: Array, at: Array, inside: Mask) -> None:
        """Each lane's bytes where they are inside; what two lanes store in one place must be the same."""
        raw, poison = to_bytes(self.ev(value))
        Value(raw, None if poison is None else poison & inside).decided("a stored value")
        agree(at[inside], raw[inside], "a buffer")
        self.changing(buffer, at[inside])[at[inside]] = raw[inside]

    def global_atomic(self, node: s.GlobalAtomic | s.FlatAtomic) -> None:
        value = self.ev(node.value)
        elem = node.value.type.elem
        data = value.data.reshape(self.ev.lanes, -1)
        buffer, at, inside = self.place(node, data.shape[1] * elem.bytes)
        first, there = at[:, :: elem.bytes] // elem.bytes, inside[:, :: elem.bytes]
        poison = None if value.poison is None else value.poison.reshape(data.shape)
        Value(data, None if poison is None else poison & there).decided("an added value")
        whole = len(buffer) // elem.bytes * elem.bytes
        elements = buffer[:whole].view(elem.numpy)
        _COMBINED[node.op].at(self.changing(elements, first[there]), first[there], data[there])

    def ticket(self, node: s.Ticket) -> None:
        counts = self.elements(node.buffer)
        index = self.ev.uniform(node.index, "the index of a count").astype(np.int64)[:: self.ev.width]
        if (bad := index[(index < 0) | (index >= len(counts))]).size:
            raise InterpError(f"count {bad[0]} of buffer {node.buffer.name}, which has {len(counts)}")
        rounds = self.ev.uniform(node.turns, "the turns of a round").astype(np.int64)[:: self.ev.width]
        taken = np.zeros(len(index), np.int32)
        for subgroup, (at, turns) in enumerate(zip(index, rounds)):
            taken[subgroup] = counts[at]
            if not 0 <= counts[at] < turns:
                raise InterpError(f"a count of {counts[at]} where a round has {turns} turns")
            self.changing(counts, index[subgroup : subgroup + 1])[at] = (counts[at] + 1) % turns
        self.bind(node.var, Value(np.repeat(taken, self.ev.width)))

    def rectangle(self, node: s.PlaneLoad | s.PlaneStore, type: AnyType) -> tuple[Array, Array, Mask]:
        """(buffer, the byte of it for each byte of a lane's elements, whether that is in the plane)."""
        plane, elem = node.plane, type.elem.bytes
        x, y = self.ev.uniform(node.x, "a rectangle's x")[:, None], self.ev.uniform(node.y, "a rectangle's y")[:, None]
        row, col = _tile_coords(node.shape.layout(self.ev.width, elem), (0,) * len(self.numbers), self.ev.width)
        start = np.broadcast_to(x * node.shape.grain(elem) + col * elem, (self.ev.lanes, type.lanes))
        byte = (start[:, :, None] + np.arange(elem)).reshape(self.ev.lanes, -1)
        row = np.repeat(np.broadcast_to(y + row, start.shape), elem, axis=1)
        width, height, pitch = map(self.extent, (plane.width, plane.height, plane.pitch))
        inside = (row >= 0) & (row < height) & (byte >= 0) & (byte < width)
        buffer = self.memory[plane.memory]
        shift = np.repeat(self.ev.uniform(node.shift, "where a plane begins")[:, None], row.shape[1], axis=1)
        at = np.where(inside, plane.base + shift + row * pitch + byte, 0)
        if (bad := at[(at < 0) | (at >= len(buffer))]).size:
            raise InterpError(f"byte {bad[0]} of buffer {plane.memory.name}, which has {len(buffer)}")
        return buffer, at, inside

    def prefetch(self, node: s.Prefetch | s.FlatPrefetch | s.PlanePrefetch) -> None:
        """No value changes; what decides where must be known all the same."""
        if isinstance(node, s.FlatPrefetch):
            self.flat(node, 1)

    def plane_load(self, node: s.PlaneLoad) -> None:
        buffer, at, inside = self.rectangle(node, node.var.type)
        self.bind(node.var, from_bytes(np.where(inside, buffer[at], 0).astype(np.uint8), None, node.var.type))

    def plane_store(self, node: s.PlaneStore) -> None:
        self.put_bytes(node.value, *self.rectangle(node, node.value.type))

    def shared_bytes(self, node: s.SharedRead | s.SharedWrite, size: int) -> Array:
        """The bytes of a shared tile that each lane accesses, `[width, size]`."""
        start = (self.integers(node.address, "a shared address") + node.imm)[:, None]
        if isinstance(node, (s.BlockRead, s.BlockWrite)):
            dword, byte = np.divmod(np.arange(size), 4)
            lane = np.tile(np.arange(self.ev.width), len(self.numbers))[:, None]
            return start + 4 * (dword * self.ev.width + lane) + byte
        return start + np.arange(size)

    def shared_read(self, node: s.SharedRead) -> None:
        at = self.shared_bytes(node, node.var.type.bits // 8)
        if isinstance(node, s.TurnedRead):
            at = _turned(at)
        self.bind(node.var, from_bytes(*self.shared[node.tile].read(at, self.accessors), node.var.type))

    def shared_write(self, node: s.SharedWrite) -> None:
        raw, poison = to_bytes(self.ev(node.value))
        if isinstance(node, s.FilledWrite):
            exists = self.ev(node.mask).decided("a mask")[:, None]
            raw, poison = np.where(exists, raw, 0).astype(np.uint8), None if poison is None else poison & exists
        self.shared[node.tile].write(self.shared_bytes(node, raw.shape[1]), self.accessors, raw, poison)

    def direct_load(self, node: s.DirectLoad) -> None:
        buffer, at, inside = self.window(node, node.width, 0)
        start = self.ev.uniform(node.address, "the address of a direct load").astype(np.int64) + node.imm
        lane = np.tile(np.arange(self.ev.width), len(self.numbers))
        to = (start + lane * node.width)[:, None] + np.arange(node.width)
        self.shared[node.tile].write(to, self.accessors, np.where(inside, buffer[at], 0).astype(np.uint8), None)

    def let(self, node: s.Let) -> None:
        self.bind(node.var, self.ev.bound(node.value))

    def exchange(self, node: s.Exchange) -> None:
        """Each lane finds its elements in its own subgroup's registers, or in all of the workgroup if they meet."""
        values, first = [self.ev(node.value)], np.arange(len(self.numbers))
        if node.meet and self.is_alone:
            offered = [peer.offered.get(node) for peer in self.peers]
            if None in offered:
                raise InterpError(f"subgroups meet where subgroup {offered.index(None)} does not take part")
            values, first = [value for (value,) in filter(None, offered)], np.zeros(1, np.int64)
        elif node.meet:
            first = first - np.array(self.numbers)
        held = Held(values, node.of, self.ev.width, self.numbers, first * self.ev.width, node.meet)
        self.bind(node.var, exchanged(node, held))


#: What atomic operations do; of a number and what is none, the lesser and the greater are the number.
_COMBINED: dict[str, np.ufunc] = {
    "add": np.add, "min": np.fmin, "max": np.fmax, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip

_STATEMENTS: dict[type[Stmt], Callable[[Party, Any], None]] = {
    s.Let: Party.let,
    s.Reduce: Party.exchange,
    s.Redistribute: Party.exchange,
    s.LoadView: Party.load_view,
    s.LoadRuns: Party.load_runs,
    s.Trim: Party.trim,
    s.StoreView: Party.store_view,
    s.AtomicView: Party.store_view,
    s.LoadAt: Party.load_at,
    s.StoreAt: Party.store_at,
    s.AtomicAt: Party.store_at,
    s.Copy: Party.copy,
    s.DirectCopy: Party.direct_copy,
    s.LoadShared: Party.load_shared,
    s.LoadPart: Party.load_shared,
    s.StoreShared: Party.store_shared,
    s.GlobalLoad: Party.global_load,
    s.GlobalStore: Party.global_store,
    s.GlobalAtomic: Party.global_atomic,
    s.Ticket: Party.ticket,
    s.FlatLoad: Party.global_load,
    s.PartialLoad: Party.global_load,
    s.PlaneLoad: Party.plane_load,
    s.PlaneStore: Party.plane_store,
    s.Prefetch: Party.prefetch,
    s.FlatPrefetch: Party.prefetch,
    s.PlanePrefetch: Party.prefetch,
    s.FlatStore: Party.global_store,
    s.FlatAtomic: Party.global_atomic,
    s.DirectLoad: Party.direct_load,
    s.SharedRead: Party.shared_read,
    s.SharedWrite: Party.shared_write,
    s.FilledWrite: Party.shared_write,
    s.BlockRead: Party.shared_read,
    s.TurnedRead: Party.shared_read,
    s.BlockWrite: Party.shared_write,
}


def _turned(at: Array) -> Array:
    """The bytes `[lanes, 8]` that each lane gets of those that it and its neighbours read."""
    runs = at.reshape(-1, 4, s.TURNED, 2)  # groups, runs, their elements, bytes of one
    return runs.transpose(0, 2, 1, 3).reshape(at.shape)


@contextmanager
def _located(node: Stmt, text: str | None = None) -> Iterator[None]:
    """Say in a note at which statement an InterpError arose."""
    try:
        yield
    except InterpError as e:
        e.add_note(f"at {text or show(node)}")
        raise
