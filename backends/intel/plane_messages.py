"""Payloads of two-dimensional messages: the plane, the rectangle, and its position.

A payload is one register: q0 base; d2 to d4 width, height and pitch minus one (bytes, rows, bytes); d5 x in elements of
the message; d6 y; d7 count, rows and columns minus one (cl_intel_subgroup_2d_block_io; oneDNN, block_2d_utils.hpp).
Only x and y change from message to message, and the base if the plane moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from convgen.backends.intel.emitter import XeEmitter
from convgen.backends.intel.isa import Literal, region
from convgen.backends.intel.scalars import XeScalars
from convgen.backends.machine.instruction import BasicBlock, Operand, Reg
from convgen.ir import stmt as st
from convgen.ir.expr import Add, Const, Expr
from convgen.ir.layout.memory import Plane, Rectangle
from convgen.ir.sizes import Extent

_BASE, _X, _Y, _SHAPE = 0, 5, 6, 7  #: dwords
_MOST_LOADS = 8  #: payloads of a kind that loads use in turn
_MOST_STORES = 2  #: payloads of a kind that stores use in turn; their values are computed in between
_Message = st.PlaneLoad | st.PlanePrefetch | st.PlaneStore
#: Plane, rectangle, bytes of an element, and bytes from the plane's base to its start; None if it moves.
_Kind = tuple[Plane, Rectangle, int, int | None]


class _Pool:
    """Payloads that are reused in turn, at most `most` of a kind at a time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.free: dict[_Kind, list[Reg]] = {}  # payloads that no message holds, the longest unused first
        self.busy: list[tuple[_Kind, Reg]] = []

    def take(self, kind: _Kind, make: Callable[[_Kind], Reg], fitness: Callable[[Reg], int]) -> Reg:
        """Return the fittest free payload, or a new one; at the limit, the one that was taken longest ago."""
        free, busy = self.free.setdefault(kind, []), [payload for k, payload in self.busy if k == kind]
        if free:
            payload = max(free, key=fitness)
            free.remove(payload)
        elif len(busy) < self.most:
            payload = make(kind)
        else:
            payload = busy[0]
            self.busy.remove((kind, payload))
        self.busy.append((kind, payload))
        return payload

    def release(self) -> None:
        """Free all payloads."""
        for kind, payload in self.busy:
            self.free[kind].append(payload)
        self.busy = []


class Payloads:
    """Makes payloads: those of loads in the kernel's entry, for all blocks; those of stores in the store's block."""

    def __init__(self, out: XeEmitter, scalars: XeScalars, loops: Sequence[object]) -> None:
        self.out, self.scalars = out, scalars
        self.loops = loops  #: the selector's list of enclosing loops
        self.sums: dict[tuple[Reg, Reg], Reg] = {}  # (pointer, loop-invariant offset) -> their sum
        self.entered = 0  #: entry instructions that come first
        self.loads, self.prefetches = _Pool(_MOST_LOADS), _Pool(_MOST_LOADS)
        #: Plane and shift -> its first payload of the entry, and the dword of that payload's rectangle.
        self.in_entry: dict[tuple[Plane, int | None], tuple[Reg, int]] = {}
        self.stores: dict[str, _Pool] = {}  # label of a block -> its payloads
        self.holds: dict[tuple[str, Reg], dict[int, Expr]] = {}  # (block, payload) -> known dwords

    def for_load(self, s: st.PlaneLoad, elem_bytes: int) -> Reg:
        """Return a payload for a load; loads up to the next barrier use different ones, so that none waits."""
        return self._with_position(self._payload_for(self.loads, self._make_in_entry, s, elem_bytes), s)

    def for_prefetch(self, s: st.PlanePrefetch, elem_bytes: int) -> Reg:
        """Return a payload for a prefetch, apart from those of loads, so that no load waits for a prefetch."""
        return self._with_position(self._payload_for(self.prefetches, self._make_in_entry, s, elem_bytes), s)

    def for_store(self, s: st.PlaneStore, elem_bytes: int) -> Reg:
        """Return a payload for a store; the stores of a block use a few in turn."""
        pool = self.stores.setdefault(self.out.block.label, _Pool(_MOST_STORES))
        return self._with_position(self._payload_for(pool, self._make_in_block, s, elem_bytes), s)

    def release(self) -> None:
        """Free all payloads at a barrier: the messages before it have read them."""
        self.loads.release()
        self.prefetches.release()

    def _payload_for(self, pool: _Pool, make: Callable[[_Kind], Reg], s: _Message, elem_bytes: int) -> Reg:
        """Return the payload that needs the fewest changes."""
        return pool.take(_kind(s, elem_bytes), make, lambda payload: -len(self._missing(payload, s)))

    def _missing(self, payload: Reg, s: _Message) -> dict[int, Expr]:
        """Return the dwords of a message's position that a payload does not hold yet."""
        place = {_X: s.x, _Y: s.y} | ({} if isinstance(s.shift, Const) else {_BASE: s.shift})
        known = self.holds.get((self.out.block.label, payload), {})
        return {dword: e for dword, e in place.items() if known.get(dword) is not e}

    def _with_position(self, payload: Reg, s: _Message) -> Reg:
        """Set the missing dwords of a message's position; return the payload."""
        missing = self._missing(payload, s)
        for dword, e in missing.items():
            if dword == _BASE:
                self._set_moving_base(payload, s.plane, e + s.plane.base if s.plane.base else e)
            else:
                source = self.out.source(self.scalars.value(e), "ud")
                self.out.emit("mov", (region(payload, "ud", dword),), (source,), partial=True)
        self.holds.setdefault((self.out.block.label, payload), {}).update(missing)
        return payload

    def _set_moving_base(self, payload: Reg, plane: Plane, shift: Expr) -> None:
        """Set a base that moves; the loop-invariant part of a sum is added to the pointer ahead of the loop."""
        pointer = self.scalars.pointers[plane.memory.name]
        if isinstance(shift, Add) and self.loops:
            steady = self.scalars.value(shift.a)
            if isinstance(steady, Reg) and steady.bank == "s" and (after := self._after_maker(steady)):
                pointer, shift = self._summed(pointer, steady, *after), shift.b
        self._set_base(payload, pointer, self.out.source(self.scalars.value(shift), "d"))

    def _after_maker(self, o: Reg) -> tuple[BasicBlock, int] | None:
        """Return the position after the only instruction that sets a scalar, if it is in an earlier block."""
        makers = [
            (block, n)
            for block in self.out.function.blocks
            for n, i in enumerate(block.instructions)
            if any(r.vreg is o.vreg for r in i.defs())
        ]
        return (makers[0][0], makers[0][1] + 1) if len(makers) == 1 and makers[0][0] is not self.out.block else None

    def _summed(self, pointer: Reg, steady: Reg, block: BasicBlock, at: int) -> Reg:
        """Return pointer plus offset, computed once, at index `at` of a block."""
        if (pointer, steady) not in self.sums:
            total = self.sums[pointer, steady] = self.out.new("s", 2)
            with self._inserting(block, at):
                sources = self.out.source(pointer, "q"), self.out.source(steady, "d")
                self.out.emit("add", (region(total, "q"),), sources)
        return self.sums[pointer, steady]

    @contextmanager
    def _inserting(self, block: BasicBlock, at: int) -> Iterator[None]:
        """Emit into a block at index `at`, in place of the end of the current block."""
        current, following = self.out.block, block.instructions[at:]
        del block.instructions[at:]
        self.out.block = block
        yield
        if block is self.out.function.blocks[0] and at <= self.entered:
            self.entered += len(block.instructions) - at
        block.instructions += following
        self.out.block = current

    def _set_base(self, payload: Reg, pointer: Reg, further: Operand) -> None:
        """Set the base to a pointer plus an offset in bytes."""
        base = self.out.source(pointer, "q")
        self.out.emit("add", (region(payload, "q"),), (base, further), partial=True)

    def _make_in_entry(self, kind: _Kind) -> Reg:
        """Make a payload after the entry, so that it serves every block: a copy if there is a similar one."""
        plane, shape, elem_bytes, shift = kind
        size, (first, its_size) = _size(shape, elem_bytes), self.in_entry.get((plane, shift), (None, 0))
        with self._inserting(self.out.function.blocks[0], self.entered):
            if first is None:
                payload = self._described(*kind)
                self.in_entry[plane, shift] = payload, size
            else:
                payload = self._copied(first, plane)
                if size != its_size:
                    self._set(payload, _SHAPE, size)
        return payload

    def _make_in_block(self, kind: _Kind) -> Reg:
        """Make a payload where it is needed: a copy if the block has an equal one."""
        like = next((payload for k, payload in self.stores[self.out.block.label].busy if k == kind), None)
        return self._copied(like, kind[0]) if like else self._described(*kind)

    def _described(self, plane: Plane, shape: Rectangle, elem_bytes: int, shift: int | None) -> Reg:
        """Return a new payload with all but the position, and without a base that moves."""
        out, payload = self.out, self.out.new("v", 1, f"{plane.memory.name}_plane")
        out.fill(payload, Literal(0, "ud"))
        pointer = self.scalars.pointers[plane.memory.name]
        if shift is not None and plane.base + shift:
            self._set_base(payload, pointer, Literal(plane.base + shift, "d"))
        elif shift is not None:
            out.emit("mov", (region(payload, "q"),), (out.source(pointer, "q"),), partial=True)
        for dword, extent in zip((2, 3, 4), (plane.width - 1, plane.height - 1, plane.pitch - 1), strict=True):
            self._set(payload, dword, extent)
        self._set(payload, _SHAPE, _size(shape, elem_bytes))
        return payload

    def _set(self, payload: Reg, dword: int, extent: Extent) -> None:
        value = Literal(extent, "ud") if isinstance(extent, int) else self.out.source(self.scalars.value(extent), "ud")
        self.out.emit("mov", (region(payload, "ud", dword),), (value,), partial=True)

    def _copied(self, like: Reg, plane: Plane) -> Reg:
        payload = self.out.new("v", 1, f"{plane.memory.name}_plane")
        self.out.copy(payload, like)
        return payload


def _size(shape: Rectangle, elem_bytes: int) -> int:
    """Return the dword with a rectangle's count, rows and columns."""
    cols = shape.cols * elem_bytes // shape.grain(elem_bytes)
    return (shape.count - 1) << 16 | (shape.rows - 1) << 8 | cols - 1


def _kind(s: _Message, elem_bytes: int) -> _Kind:
    return s.plane, s.shape, elem_bytes, s.shift.bits if isinstance(s.shift, Const) else None
