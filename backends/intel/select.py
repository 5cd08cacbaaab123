"""Instruction selection: a message-level kernel becomes vector engine instructions on virtual registers.

On entry r0 holds the workgroup's ids and the address of the arguments (Programmer's Reference Manual, "Thread Payload";
`zebin`): no local ids, no inline data.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from convgen.backends.intel.emitter import XeEmitter
from convgen.backends.intel.isa import (
    BANK_PERIOD,
    FLAG_BITS,
    GLOBAL_ATOMICS,
    INPUTS_AT,
    OPCODES,
    Literal,
    Message,
    Null,
    Special,
    block_message,
    device_fence,
    load_arguments,
    message,
    plane_message,
    region,
)
from convgen.backends.intel.plane_messages import Payloads
from convgen.backends.intel.scalars import XeScalars
from convgen.backends.intel.tables import GENERATIONS, Workaround
from convgen.backends.intel.vectors import XeVectors
from convgen.backends.machine.instruction import Access, Function, Imm, Opcode, Operand, Reg
from convgen.backends.machine.selection import Handlers, Selector, atomic, comment, kernel_arguments
from convgen.ir import stmt as st
from convgen.ir.error import Unsupported
from convgen.ir.expr import Add, AddressOf, Const, Expr, Lane, Var, const, eq
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.memory import Global, RectangleOrder
from convgen.ir.mutate import postorder
from convgen.ir.program import Kernel
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.simplify.simplify import simplify
from convgen.ir.simplify.variable_ranges import var_ranges
from convgen.ir.types import s32, u64
from convgen.ir.uniform import uniformity

_ARGUMENTS_MASK = 0xFFFFFFC0  #: bits of r0.0: address of the arguments
_ARGUMENTS_GRANULE = 32  #: bytes; the driver rounds the argument size up to a multiple
_THREAD_MASK = 0xFF  #: bits of r0.2: the thread's number in its workgroup
_COUNT_MASK = 0xFF000000  #: bits of r0.2: threads that a barrier of the workgroup waits for
_GROUP_IDS = (1, 6, 7)  #: dwords of r0: the workgroup's x, y, z
_END_FENCE = "0x0210651F"  #: tile scope, a flush type that means none (IGC, `insertFenceBeforeEOT`)
_KEEP_DENORMALS = 0x4C0  #: cr0.0: bits for f64, f32 and f16


def _global(buffer: Global, *, stores: bool) -> Access:
    """Return an access to global memory, which has no slots."""
    return Access("global", buffer.name, -1, stores)


def select(kernel: Kernel, facts: TargetFacts, lines: Mapping[st.Stmt, int] | None = None) -> Function:
    """Return the kernel as a machine function. Raises Unsupported for operations that the tables lack."""
    return _Selector(kernel, facts, lines or {}).run()


class _Selector(Selector):
    out: XeEmitter
    scalars: XeScalars
    vectors: XeVectors
    counts_down = True  # an addition also compares its result with zero

    def __init__(self, kernel: Kernel, facts: TargetFacts, lines: Mapping[st.Stmt, int]) -> None:
        super().__init__(kernel, lines, MESSAGES)
        self.target = facts.name
        self.out = XeEmitter(kernel.name, GENERATIONS[facts.name])
        bounds = Bounds(var_ranges(kernel), kernel.width)
        self.scalars = XeScalars(self.out, uniformity(kernel), bounds)
        self.vectors = XeVectors(self.scalars, self.uses)
        self.thread_payload = self.out.new("v", 1, "payload", fixed=0)
        self.barrier: Reg | None = None  # the header of barrier messages
        self.zeros: Reg | None = None  # zeros, as many registers as the largest store
        self.payloads = Payloads(self.out, self.scalars, self.exits)

    # ------------------------------------------------------------ entry

    def enter(self) -> None:
        """Set modes, load ids and arguments, and build headers and zeros that the kernel needs."""
        k, out = self.kernel, self.out
        self._set_modes()
        out.begin = len(out.block.instructions)
        for v, dword, count in zip(k.group_ids, _GROUP_IDS, k.grid):
            self.scalars.env[v] = self._dword_of_payload(dword, v.name) if count > 1 else Imm(0)
        self._load_arguments()
        self.scalars.env[k.subgroup] = Imm(0)
        if k.subgroups > 1:
            thread = self.scalars.env[k.subgroup] = out.new("s", 1, k.subgroup.name)
            number = region(self.thread_payload, "ud", 2, 0), Literal(_THREAD_MASK, "ud")
            out.emit("and", (region(thread, "ud"),), number, comment=k.subgroup.name)
            if any(isinstance(n, (st.Barrier, st.Arrive)) for n in postorder(k.body)):
                self.barrier = self._barrier_header()
        self.scalars.lane = self.lane_number()
        filled = (n.value.type.bits // 32 for n in postorder(k.body) if isinstance(n, st.FilledWrite))
        if words := max(filled, default=0):
            self.zeros = out.new("v", words, "zeros")
            out.fill(self.zeros, Literal(0, "ud"))
        self.payloads.entered = len(out.block.instructions)

    def _set_modes(self) -> None:
        """Keep denormals, and clear flags whose upper bits no comparison writes."""
        out = self.out
        control = Special("cr0", "ud")
        out.emit("or", (control,), (control, Literal(_KEEP_DENORMALS, "uw")), comment="keep denormals")
        if out.lanes < FLAG_BITS:  # comparisons leave the upper bits, which logic on whole flags would read
            for n in range(out.generation.flags // 2):
                out.emit("mov", (Special(f"f{n}", "ud"),), (Literal(0, "ud"),))

    def _dword_of_payload(self, dword: int, name: str) -> Reg:
        dst = self.out.new("s", 1, name)
        self.out.emit("mov", (region(dst, "ud"),), (region(self.thread_payload, "ud", dword, 0),), comment=name)
        return dst

    def _load_arguments(self) -> None:
        """Load all arguments in blocks of a register's size, then move each to scalar registers."""
        out, placed, grf = self.out, kernel_arguments(self.kernel), 4 * self.out.lanes
        blocks = self._argument_blocks(max((offset + size for _, offset, size in placed), default=0))
        for p, offset, _ in placed:
            if not isinstance(p, Global) and p.type.bits != 32:
                raise Unsupported(f"given the argument {p.name} of type {p.type}, wanted 32 bits")
            dst = out.new("s", 2 if isinstance(p, Global) else 1, p.name)
            for word in range(dst.count):
                to = region(dst.words(word, 1), "ud")
                source = region(blocks[offset // grf], "ud", offset % grf // 4 + word, 0)
                out.emit("mov", (to,), (source,), comment=f"argument {p.name}" if not word else "")
            if isinstance(p, Global):
                self.scalars.pointers[p.name] = dst
            else:
                self.scalars.env[p] = dst

    def _argument_blocks(self, size: int) -> list[Reg]:
        """Load `size` bytes of arguments; return their registers."""
        out, grf = self.out, 4 * self.out.lanes
        start = out.new("v", 1, "arguments_address")
        mask = Literal(_ARGUMENTS_MASK, "ud")
        out.emit("and", (region(start, "ud"),), (region(self.thread_payload, "ud", 0, 0), mask))
        blocks = []
        for at in range(0, size, grf):
            address = start
            if at:
                address = out.new("v")
                out.emit("add", (region(address, "ud"),), (region(start, "ud", 0, 0), Literal(at, "ud")))
            blocks.append(out.new("v", 1, "arguments"))
            row = load_arguments(min(out.lanes, -(-(size - at) // _ARGUMENTS_GRANULE) * _ARGUMENTS_GRANULE // 4))
            access = Access("kernarg", "arguments", -1, False)
            out.emit(row, (blocks[-1],), (address,), access=access, comment="arguments")
        return blocks

    def lane_number(self) -> Reg:
        """Build the lane numbers from an immediate vector, which has eight elements."""
        out = self.out
        words = out.new("v", 1, "lane_words")
        out.emit("mov", (region(words, "uw"),), (Literal(0x76543210, "uv"),), lanes=8)
        if out.lanes > 8:
            upper = region(words, "uw", 8)
            out.emit("add", (upper,), (region(words, "uw"), Literal(8, "uw")), lanes=8, partial=True)
        dst = out.new("v", 1, "lane")
        out.emit("mov", (region(dst, "ud"),), (region(words, "uw"),), lanes=out.lanes, comment="lane")
        return dst

    def _barrier_header(self) -> Reg:
        """Return the header of barrier messages; dword 2 has the number of threads twice (nGEN, `barrierheader`)."""
        out = self.out
        header = out.new("v", 1, "barrier_header")
        out.fill(header, Literal(0, "ud"))
        count = out.alu("and", "ud", region(self.thread_payload, "ud", 2, 0), Literal(_COUNT_MASK, "ud"))
        again = out.alu("shr", "ud", count, Imm(8))
        to = region(header, "ud", 2)
        out.emit(
            "or", (to,), (out.source(count, "ud"), out.source(again, "ud")), partial=True, comment="barrier header"
        )
        return header

    # ------------------------------------------------------------ control

    def leave(self) -> None:
        """End the thread by a message whose payload, r0, is sent from one of the last registers."""
        if Workaround.END_BEHIND_ATOMICS in self.out.generation.workarounds and self._has_atomics_without_result():
            self._await_fence(self._fence(device_fence(_END_FENCE), "atomics before the end"))
        last = self.out.new("v", 1, "end_of_thread", fixed=-1)
        whole = region(self.thread_payload, "f")
        self.out.emit("mov", (region(last, "f"),), (whole,), lanes=self.out.lanes)
        self.out.emit("eot", (), (last,), lanes=8, comment="end of thread")

    def _has_atomics_without_result(self) -> bool:
        """Return whether the kernel has atomic operations on global memory without a result."""
        return any(isinstance(n, (st.FlatAtomic, st.Ticket)) for n in postorder(self.kernel.body))

    def branch_unless(self, condition: Expr, target: str) -> None:
        flag = self.scalars.condition(condition)
        self.out.emit("jmpi", predicate=flag, modifiers=("unless",), target=target)

    def branch_if_less(self, a: Operand, b: Operand, here: str, target: str) -> None:
        flag = self.out.compare("lt", "d", a, b, 1)
        self.out.emit("jmpi", predicate=flag, modifiers=("unless",), target=target)
        self.out.start_block(here)

    def count_down(self, counter: Reg, label: str, comment: str) -> None:
        flag = self.out.new("f")
        self.out.alu("add", "d", counter, Imm(-1), into=counter, condition="gt", flag=flag)
        self.out.emit("jmpi", predicate=flag, target=label, comment=comment)

    def next_iteration(self, counter: Reg, end: Operand, label: str, comment: str) -> None:
        self.out.alu("add", "d", counter, Imm(1), into=counter)
        flag = self.out.compare("lt", "d", counter, end, 1)
        self.out.emit("jmpi", predicate=flag, target=label, comment=comment)

    def jump(self, target: str) -> None:
        self.out.emit("jump", target=target)

    def _barrier(self, s: st.Barrier) -> None:
        self._arrive(s)
        self._wait(s)

    def _arrive(self, s: st.Barrier | st.Arrive) -> None:
        """Fence local memory, so that this thread's writes are visible, then signal."""
        self.payloads.release()
        if self.barrier is None:
            return
        self._fence(OPCODES["fence"], s.site.stage)
        self.out.emit("signal", (), (self.barrier,))

    def _wait(self, s: st.Barrier) -> None:
        if self.barrier is not None:
            self.out.emit("wait")

    # ------------------------------------------------------------ global memory

    def _mask(self, e: Expr) -> Reg | None:
        """Return the flags of the lanes that access; None for all."""
        return None if isinstance(e, Const) and e.bits else self.scalars.mask(e)

    def _flat_load(self, s: st.FlatLoad) -> None:
        out = self.out
        address, mask = self._address(s.address), self._mask(s.mask)
        lane_bytes = s.var.type.bits // 8
        dst = self.load_registers(s.var)
        discards = isinstance(s, st.PartialLoad)
        if mask is not None and not discards:
            out.fill(dst, Literal(0, "ud"))
        access = _global(s.buffer, stores=False)
        row = message("load", "ugm", lane_bytes)
        out.emit(
            row, (dst,), (address,), lanes=out.lanes, predicate=mask, discards=discards, access=access,
            comment=comment(s),
        )  # fmt: skip
        self._loaded(s.var, dst)

    def _plane_load(self, s: st.PlaneLoad) -> None:
        elem = s.var.type.elem.bytes
        payload = self.payloads.for_load(s, elem)
        dst = self._tuple(s.var)
        access = _global(s.plane.memory, stores=False)
        row = plane_message("load", s.shape.grain(elem), s.shape.order)
        self.out.emit(row, (dst,), (payload,), access=access, comment=comment(s))
        self._loaded(s.var, dst)

    def _plane_prefetch(self, s: st.PlanePrefetch) -> None:
        elem = s.plane.memory.elem.bytes
        payload = self.payloads.for_prefetch(s, elem)
        row = plane_message("load", s.shape.grain(elem), s.shape.order)
        self.out.emit(row, (), (payload,), comment=comment(s))

    def _flat_prefetch(self, s: st.FlatPrefetch) -> None:
        """Load one byte to the null register: caches load its line."""
        address, mask = self._address(s.address), self._mask(s.mask)
        row = message("load", "ugm", 1)
        self.out.emit(row, (), (address,), lanes=self.out.lanes, predicate=mask, comment=comment(s))

    def _plane_store(self, s: st.PlaneStore) -> None:
        elem, across = s.value.type.elem.bytes, s.shape.order is RectangleOrder.COLUMN_A_LANE
        value = self.vectors.across(s.value) if across else self._stored(s.value)
        payload = self.payloads.for_store(s, elem)
        access = _global(s.plane.memory, stores=True)
        row = plane_message("store", s.shape.grain(elem), s.shape.order)
        self.out.emit(row, (), (payload, value), access=access, comment=comment(s))

    def _flat_atomic(self, s: st.FlatAtomic) -> None:
        self._write_global(s, atomic(s, GLOBAL_ATOMICS, self.target))

    def _write_global(self, s: st.FlatStore, kind: str) -> None:
        out = self.out
        value = self._stored(s.value)
        address, mask = self._address(s.address), self._mask(s.mask)
        access = _global(s.buffer, stores=True)
        row = message(kind, "ugm", s.value.type.bits // 8)
        out.emit(row, (), (address, value), lanes=out.lanes, predicate=mask, access=access, comment=comment(s))

    def _ticket(self, s: st.Ticket) -> None:
        """Count in lane 0, between fences; the last ticket subtracts the count of its round."""
        out, fences = self.out, self.out.generation.fences
        first = eq(Lane(), 0)
        self._await_fence(self._fence(device_fence(fences.release), "release: make stores visible"))
        address = self._address(AddressOf(s.buffer) + (s.index * s.buffer.elem.bytes).to(u64))
        counted = out.new("v", 1, s.var.name)
        out.fill(counted, Literal(0, "ud"))
        self._count(s, address, const(1), first, counted)
        taken = self.scalars.env[s.var] = out.new("s", 1, s.var.name)
        out.emit("mov", (region(taken, "d"),), (region(counted, "d", 0, 0),), comment=s.var.name)
        self._count(s, address, simplify(0 - s.turns), first & eq(s.var, simplify(s.turns - 1)))
        if not any(isinstance(n, st.Acquire) for n in postorder(self.kernel.body)):
            self._acquire()

    def _acquire(self, _s: st.Acquire | None = None) -> None:
        """Invalidate caches: later loads do not hit stale lines."""
        row = device_fence(self.out.generation.fences.acquire)
        self._await_fence(self._fence(row, "acquire: see stores of others"))

    def _count(self, s: st.Ticket, address: Reg, number: Expr, where: Expr, into: Reg | None = None) -> None:
        """Add a number to a count; `into` gets the old count."""
        out = self.out
        value, mask = out.new("v"), self.scalars.mask(where)
        out.move(value, self.scalars.value(number))
        row, access = message(GLOBAL_ATOMICS["add", s32], "ugm", s.buffer.elem.bytes), _global(s.buffer, stores=True)
        dst, src = () if into is None else (into,), (address, value)
        out.emit(row, dst, src, lanes=out.lanes, predicate=mask, access=access, comment=comment(s))

    def _fence(self, row: Opcode, purpose: str) -> Reg:
        """Emit a fence; return its response, which arrives when it is done."""
        response = self.out.new("v")
        self.out.emit(row, (response,), (self.thread_payload,), comment=purpose)
        return response

    def _await_fence(self, response: Reg) -> None:
        """Read the response of a fence, which waits for it."""
        self.out.emit("fenced", (Null("ud"),), (region(response, "ud"),), lanes=8, comment="fence done")

    def _address(self, e: Expr) -> Reg:
        value = self.scalars.value(e)
        if isinstance(value, Reg) and value.bank == "v":
            return value
        dst = self.out.new("v", 2)
        self.out.move(dst, value)
        return dst

    # ------------------------------------------------------------ shared memory

    def _shared_address(self, s: st.SharedRead | st.SharedWrite, *, block: bool) -> Reg:
        """Return the byte address in local memory of each lane, or of the block."""
        out = self.out
        at, place = self.kernel.shared_base(s.tile) + s.imm, s.address
        match place:
            case Add(start, Const(bits=more)) if at and more > 0:
                at, place = at + more, start
        address = self.scalars.value(place)
        if not block:
            return self.out.move_to_vector(out.alu("add", "ud", address, Imm(at)) if at else address)
        dst = out.new("v")
        to = region(dst, "ud")
        if isinstance(address, Imm):
            out.emit("mov", (to,), (Literal(address.value + at, "ud"),))
        elif at:
            out.emit("add", (to,), (out.source(address, "ud"), Literal(at, "ud")))
        else:
            out.emit("mov", (to,), (out.source(address, "ud"),))
        return dst

    def _tuple(self, v: Var) -> Reg:
        """Return registers for a loaded value; values as long as matrix operands start in the bank of matrix inputs."""
        words = -(-v.type.bits // 32)
        return self.load_registers(v, INPUTS_AT if words >= BANK_PERIOD else None)

    def _shared_read(self, s: st.SharedRead, *, block: bool = False) -> None:
        lane_bytes = s.var.type.bits // 8
        address = self._shared_address(s, block=block)
        dst = self._tuple(s.var)
        access = Access("shared", s.tile.region, s.site.slot, False, s.site.private)
        row = self._row("load", lane_bytes, block)
        self.out.emit(row, (dst,), (address,), lanes=self._lanes(block), access=access, comment=comment(s))
        self._loaded(s.var, dst)

    def _shared_write(self, s: st.SharedWrite, *, block: bool = False) -> None:
        value, address = self._stored(s.value), self._shared_address(s, block=block)
        self._write_shared(s, address, value, block=block)

    def _write_shared(
        self,
        s: st.SharedWrite,
        address: Reg,
        value: Reg,
        *,
        block: bool = False,
        mask: Reg | None = None,
        unless: bool = False,
    ) -> None:
        """Emit a store to local memory, in the lanes of `mask`, or in the others with `unless`."""
        access = Access("shared", s.tile.region, s.site.slot, True, s.site.private)
        row = self._row("store", s.value.type.bits // 8, block)
        self.out.emit(
            row,
            (),
            (address, value),
            lanes=self._lanes(block),
            predicate=mask,
            modifiers=("unless",) if unless else (),
            access=access,
            comment=comment(s),
        )

    def _filled_write(self, s: st.FilledWrite) -> None:
        """Store in two messages: the masked value, and zeros for the other lanes."""
        value, address, mask = self._stored(s.value), self._shared_address(s, block=False), self.scalars.mask(s.mask)
        assert self.zeros is not None
        self._write_shared(s, address, value, mask=mask)
        self._write_shared(s, address, self.zeros.words(0, value.count), mask=mask, unless=True)

    def _row(self, kind: str, lane_bytes: int, block: bool) -> Message:
        return block_message(kind, lane_bytes * self.out.lanes) if block else message(kind, "slm", lane_bytes)

    def _lanes(self, block: bool) -> int:
        return 1 if block else self.out.lanes


MESSAGES: Handlers = {
    st.Barrier: _Selector._barrier,
    st.Arrive: _Selector._arrive,
    st.Wait: _Selector._wait,
    st.FlatLoad: _Selector._flat_load,
    st.PartialLoad: _Selector._flat_load,
    st.FlatStore: partial(_Selector._write_global, kind="store"),
    st.FlatAtomic: _Selector._flat_atomic,
    st.Ticket: _Selector._ticket,
    st.Acquire: _Selector._acquire,
    st.FlatPrefetch: _Selector._flat_prefetch,
    st.PlaneLoad: _Selector._plane_load,
    st.PlaneStore: _Selector._plane_store,
    st.PlanePrefetch: _Selector._plane_prefetch,
    st.SharedRead: _Selector._shared_read,
    st.SharedWrite: _Selector._shared_write,
    st.FilledWrite: _Selector._filled_write,
    st.BlockRead: partial(_Selector._shared_read, block=True),
    st.BlockWrite: partial(_Selector._shared_write, block=True),
}
