"""Selection of PTX: the statements of a message-level kernel become instructions on virtual registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from convgen.backends.machine.selection import atomic, comment
from convgen.backends.nvidia import element_ops, rings
from convgen.backends.nvidia.async_copies import waits_of
from convgen.backends.nvidia.lane_order import warp_barriers
from convgen.backends.nvidia.ptx import KINDS, Writer, at, braces, kind_of
from convgen.backends.nvidia.statement_flow import KernelAccesses
from convgen.backends.nvidia.tables import LANES
from convgen.backends.nvidia.uses import OWN, occurrences, shared_addresses
from convgen.backends.nvidia.values import Words, is_of_words
from convgen.backends.nvidia.warpgroup_select import WarpgroupProducts, added_to_in_place
from convgen.backends.nvidia.warpgroups import is_of_warpgroup
from convgen.ir import expr as x
from convgen.ir import stmt as st
from convgen.ir.error import Unsupported
from convgen.ir.expr import Expr, Var
from convgen.ir.layout.memory import Global
from convgen.ir.mutate import free_vars, statements
from convgen.ir.program import Kernel
from convgen.ir.types import AnyType, Type, f32, f64, s32, u32

#: Bytes of a lane -> type of a load or store.
_WIDTHS: Mapping[int, str] = {1: "u8", 2: "u16", 4: "b32", 8: "v2.b32", 16: "v4.b32"}
_WIDE_WIDTHS: Mapping[int, str] = {8: "b64", 16: "v2.b64"}  #: type of a load or store of 64-bit elements
#: Reads of matrices -> instructions (PTX ISA, "ldmatrix")
_MATRIX_READS: Mapping[type[st.Stmt], str] = {
    st.MatrixRead: "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
    st.TransposedMatrixRead: "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
}
#: Atomic operation and type -> operation of `red` (PTX ISA, "red"), which has no `min` and `max` of floats.
_ATOMICS: Mapping[tuple[str, Type], str] = {
    ("add", f32): "add.f32",
    ("add", f64): "add.f64",
    ("add", s32): "add.u32",
    ("add", u32): "add.u32",
    **{(op, t): f"{op}.{t.name}" for op in ("min", "max") for t in (s32, u32)},
    **{(op, t): f"{op}.b32" for op in ("and", "or", "xor") for t in (s32, u32)},
}


class Selector(WarpgroupProducts):
    """Selects the statements of one kernel."""

    def __init__(self, kernel: Kernel, target: str, out: Writer) -> None:
        accesses = KernelAccesses(kernel)
        super().__init__(kernel, target, out, accesses)
        self.pending: dict[Var, st.SharedRead] = {}  #: postponed reads, whose value no instruction has needed yet
        self.copying = ""  #: predicate of copies
        self.exits: list[tuple[list[Words], str]] = []  #: registers of results, and end label, of each enclosing loop
        self.uses, self.strides = occurrences(kernel), shared_addresses(kernel)
        #: Address and bytes from lane to lane -> register with each lane's address (`_shared_base`).
        self.shared_bases: dict[tuple[Var, int], str] = {}
        self.waits = waits_of(kernel, accesses)
        self.behind_warp_barriers = warp_barriers(kernel, accesses.every)
        written = (s.buffer for s in statements(kernel.body) if isinstance(s, (st.FlatStore, st.Ticket)))
        self.written = {buffer.name for buffer in written}  #: buffers that `ld.global.nc` must not read

    def run(self) -> Writer:
        """Select the whole kernel."""
        self._enter()
        self._statement(self.kernel.body)
        self.out.emit("ret")
        return self.out

    def _enter(self) -> None:
        """Compute what all statements use: the lane, ids, parameters and addresses of shared memory."""
        out, kernel = self.out, self.kernel
        thread = out.op("mov.u32", "%tid.x")
        self.lane = out.op("and.b32", thread, str(LANES - 1), comment="lane")
        warp = out.op("shr.u32", thread, "5")
        self.env[kernel.subgroup] = [out.op("shfl.sync.idx.b32", warp, "0", "31", "-1", comment="warp, uniform")]
        for var, axis in zip(kernel.group_ids, "xyz"):
            self.env[var] = [out.op("mov.u32", f"%ctaid.{axis}", comment=var.name)]
        for parameter in kernel.params:
            if isinstance(parameter, Global):
                raw = out.op("ld.param.u64", f"[{parameter.name}]", kind="rd")
                pointer = out.op("cvta.to.global.u64", raw, kind="rd", comment=parameter.name)
                self.pointers[parameter.name] = pointer
            else:
                kind = "rd" if parameter.type.bits == 64 else "r"
                loaded = out.op(f"ld.param.{KINDS[kind]}", f"[{parameter.name}]", kind=kind, comment=parameter.name)
                self.env[parameter] = [loaded]
        self.shared = out.op("mov.u32", "shared_memory") if kernel.shared else ""
        widths = sorted({s.width for s in statements(kernel.body) if isinstance(s, st.FlatDirectLoad)})
        #: Bytes from lane to lane -> register with the start of shared memory plus that many bytes times the lane.
        self.starts = {OWN: self.shared} | {w: out.op("mad.lo.u32", self.lane, str(w), self.shared) for w in widths}
        self._add_descriptors(x.const(0))
        self.maps = rings.map_addresses(self)
        rings_used = any(isinstance(s, st.StartRing) for s in statements(kernel.body))
        self.first_lane = out.op("setp.eq.u32", self.lane, "0", kind="p", comment="first lane") if rings_used else ""

    # ------------------------------------------------------------ statements

    def _statement(self, s: st.Stmt) -> None:
        """Select a statement, after all postponed reads unless it is in `_READS_MAY_PASS`."""
        handler = _STATEMENTS.get(type(s))
        if handler is None:
            raise Unsupported(f"selection of {type(s).__name__} for {self.kernel.name}")
        if not (isinstance(s, _READS_MAY_PASS) or _is_predicated(s)) or s in self.behind_warp_barriers:
            self._flush()
        before = self.out.begin(s)
        if isinstance(s, (st.Let, st.FlatLoad)):
            self._await_readers(s.var)
        if s.bodies:  # registers that a block computes may be undefined around it
            self.slot_starts.clear()
        if self.waits is not None and s in self.waits.at_once:
            self.out.emit("cp.async.wait_all")
        if s in self.behind_warp_barriers:
            if isinstance(s, st.ReleaseSlot):  # on an H200, the arrival overtook ldmatrix, and the next copy came first
                self.out.emit("fence.proxy.async.shared::cta", "loads from the slot end before a copy overwrites it")
            self.out.emit("bar.warp.sync -1", "lanes see each other's accesses")
        handler(self, s)
        if s.bodies:
            self.slot_starts.clear()
        self.out.line = before

    def _block(self, s: st.Block) -> None:
        for inner in s.stmts:
            self._statement(inner)

    def _let(self, s: st.Let) -> None:
        """Bind a variable to registers, or postpone its value: packs of words, and sums with a constant."""
        self.env.pop(s.var, None)  # equal statements are one object: an earlier place may have bound the variable
        if is_of_words(s.value):
            self.packs[s.var] = s.value
        elif (offset := _constant_offset(s.value)) is not None:
            self.offsets[s.var] = offset
        else:
            begin = len(self.out.lines)
            self.env[s.var] = self.words(s.value)
            self.out.remark(begin, s.var.name)
            if isinstance(s.value, x.Mma) or type(s.value) in element_ops.OPERATIONS:
                self._own(s.var)
            if self.products and is_of_warpgroup(s.value):
                self.in_flight.add(s.var)
                if s in self.products.ends:
                    self._commit()
                if s.value.op.atom.b_in_registers:
                    self.reading[s.var] = frozenset(self._factor_words(s.value.b))
                if s in self.products.awaited:
                    self.await_sums()
        self._add_start(s.var)

    def _own(self, v: Var) -> None:
        """Note a variable with one use, which may overwrite its registers."""
        if self.uses[v] == 1:
            self.owned[v] = self.loops

    def _add_start(self, v: Var) -> None:
        """Compute, where a variable is bound, the registers that accesses at this address share."""
        self._add_descriptors(v)
        for stride in self.strides.get(v, ()):
            self.shared_bases[v, stride] = self.out.op("add.u32", self.starts[stride], self.scalar(v), comment=v.name)

    def _assign(self, to: list[Words], values: Sequence[Expr]) -> None:
        """Move values to registers: all are computed before any move, and saved where a move would overwrite them.

        A value that its registers hold already is not awaited: a product may still add to it.
        """
        sources = [
            targets if self.env.get(value) == targets else self.words(value) for targets, value in zip(to, values)
        ]
        written = {target for targets in to for target in targets}
        kinds = [kind_of(value.type.elem) for value in values]
        saved = [
            [
                self.out.op(f"mov.{KINDS[kind]}", source, kind=kind)
                if source in written and source != target
                else source
                for target, source in zip(targets, registers)
            ]
            for targets, registers, kind in zip(to, sources, kinds)
        ]
        for targets, registers, kind in zip(to, saved, kinds):
            for target, source in zip(targets, registers):
                if target != source:
                    self.out.emit(f"mov.{KINDS[kind]} {target}, {source}")

    def _for(self, s: st.For) -> None:
        """Select a loop, with waits for products in flight where ptxas would serialise them."""
        out = self.out
        self._await_around_loop(s)
        may_skip_sums = not s.runs and any(init in self.in_flight for init in s.inits)
        carried = [self._sums_in_place(init) or self._fresh(init.type) for init in s.inits]
        # ptxas 13.0 serialises products (C7515) in flight where a loop begins in which moves write their sums.
        in_place = added_to_in_place(s) if self.in_flight else set()
        for e, v in zip(s.inits, s.carried):
            if e in self.in_flight and v not in in_place:
                self.await_sums(e)
        self._assign(carried, s.inits)
        begin, end = self.scalar(s.begin), self.scalar(s.end)
        counter = out.op("mov.u32", begin, comment=s.label)
        head, tail = out.label("LOOP"), out.label("END")
        skip = out.op("setp.ge.s32", counter, end, kind="p")
        out.emit(f"@{skip} bra.uni {tail}")
        out.place(head)
        self.env[s.var] = [counter]
        self.env |= dict(zip(s.carried, carried))
        added_to_later = self._sums_added_to_later(s) if self.products else set()
        self.in_flight.forget_order(v for v, yielded in zip(s.carried, s.yields) if yielded in added_to_later)
        self.exits.append((carried, tail))
        self.loops += 1
        for var in (s.var, *s.carried):
            self._add_start(var)
            self._own(var)
        self._statement(s.body)
        self.exits.pop()
        self.loops -= 1
        self._await_around_loop(s)
        # ptxas 13.0 lets products begin anew (C7519) behind a loop that may not run, if their group ends there.
        self._commit()
        self._read_in_place(s, carried)
        self._assign(carried, s.yields)
        out.emit(f"add.s32 {counter}, {counter}, 1")
        more = out.op("setp.lt.s32", counter, end, kind="p")
        out.emit(f"@{more} bra.uni {head}")
        out.place(tail)
        self.env |= dict(zip(s.results, carried))
        results = [v for v, yielded in zip(s.results, s.yields) if yielded in added_to_later]
        self.in_flight.forget_order(results)
        for var in results:
            self._own(var)
        self._await_behind_loop(s, may_skip_sums=may_skip_sums)
        for var in s.results:
            self._add_start(var)

    def _read_in_place(self, s: st.For, carried: list[Words]) -> None:
        """Emit the postponed reads that a loop carries into the registers that carry them, if nothing reads these."""
        read_again = {v for value in s.yields for v in free_vars(value)}
        for v, value, registers in zip(s.carried, s.yields, carried):
            if isinstance(value, Var) and v not in read_again:
                self._read(value, registers)

    def _if(self, s: st.If) -> None:
        """Select a branch of whole warps; a predicate where only copies depend on it."""
        out, condition = self.out, self.scalar(s.cond)
        if _is_predicated(s):
            self.copying = f"@{condition} "
            self._statement(s.then)
            self.copying = ""
            return
        end = out.label("JOIN")
        otherwise = end if s.other is st.empty else out.label("ELSE")
        out.emit(f"@!{condition} bra.uni {otherwise}")
        before = self.in_flight.copy()
        self._arm(s.then)
        after_then, self.in_flight = self.in_flight, before
        if s.other is not st.empty:
            out.emit(f"bra.uni {end}")
            out.place(otherwise)
            self._arm(s.other)
        out.place(end)
        self.in_flight.join(after_then)

    def _arm(self, s: st.Stmt) -> None:
        """Select an arm of a branch, and emit the reads postponed in it: their addresses may be undefined behind it."""
        self._statement(s)
        self._flush()

    def _exit_if(self, s: st.ExitIf) -> None:
        out, condition = self.out, self.scalar(s.cond)
        stay, (results, end) = out.label("STAY"), self.exits[-1]
        out.emit(f"@!{condition} bra.uni {stay}")
        before = self.in_flight.copy()
        self._assign(results, s.values)
        self.in_flight = before  # lanes that stay in the loop have not waited
        out.emit(f"bra.uni {end}")
        out.place(stay)

    def _barrier(self, s: st.Barrier) -> None:
        """End a group of asynchronous copies, wait for those that are accessed next, and synchronise the workgroup."""
        self._end_group(s)
        if self.waits is not None and s in self.waits.at_barriers:
            self.out.emit(f"cp.async.wait_group {self.waits.at_barriers[s]}")
        if self.products is not None and s in self.products.fences:
            self.out.emit("fence.proxy.async.shared::cta", "products see what this lane wrote")
        if self.products is not None and s in self.products.at_barriers and self.in_flight:
            running = self.products.at_barriers[s]
            self.out.emit(f"wgmma.wait_group.sync.aligned {running}", "the other products have read their slots")
        self.out.emit("bar.sync 0", s.site.stage)

    def _end_group(self, s: st.Stmt) -> None:
        if self.waits is not None and s in self.waits.ends:
            self.out.emit("cp.async.commit_group")

    # ------------------------------------------------------------ memory

    def _guard(self, mask: Expr) -> str:
        """Return the predicate in front of a message; empty where all lanes take part."""
        return "" if isinstance(mask, x.Const) and mask.bits else f"@{self.scalar(mask)} "

    @staticmethod
    def _width(type: AnyType) -> str:
        """Return the type of a load or store of a value."""
        return (_WIDE_WIDTHS if type.elem.bits == 64 else _WIDTHS)[type.bits // 8]

    def _flat_load(self, s: st.FlatLoad) -> None:
        out, address, guard = self.out, self._global_address(s.address), self._guard(s.mask)
        registers = self._fresh(s.var.type)
        if guard and type(s) is st.FlatLoad:
            for register in registers:
                out.emit(f"mov.{KINDS[kind_of(s.var.type.elem)]} {register}, 0")
        path = "ld.global" if s.buffer.name in self.written else "ld.global.nc"
        out.emit(f"{guard}{path}.{self._width(s.var.type)} {braces(registers)}, [{address}]", comment(s))
        self.env[s.var] = registers

    def _global_address(self, e: Expr) -> str:
        """Return a message's address: a register and an immediate offset."""
        base, offset = self._origin(e)
        return at(self.scalar(base), offset)

    def _origin(self, e: Expr) -> tuple[Expr, int]:
        """Return a 64-bit address as a value and a constant offset that an immediate can hold."""
        offset = 0
        while (step := self.offsets.get(e) if isinstance(e, Var) else _constant_offset(e)) is not None:
            if not _fits(offset + step[1]):
                break
            e, offset = step[0], offset + step[1]
        return e, offset

    def _flat_store(self, s: st.FlatStore) -> None:
        address, guard, value = self._global_address(s.address), self._guard(s.mask), self.words(s.value)
        self.out.emit(f"{guard}st.global.{self._width(s.value.type)} [{address}], {braces(value)}", comment(s))

    def _flat_atomic(self, s: st.FlatAtomic) -> None:
        name = atomic(s, _ATOMICS, self.target)
        address, guard, value = self._global_address(s.address), self._guard(s.mask), self.words(s.value)
        self.out.emit(f"{guard}red.global.{name} [{address}], {value[0]}", comment(s))

    def _ticket(self, s: st.Ticket) -> None:
        """Take a ticket: lane 0 counts for the subgroup, and the count wraps to 0 after the last ticket.

        PTX ISA, "Memory Consistency Model": `bar.warp.sync` orders the stores of all lanes before the release of lane
        0, and its acquire before later loads of all lanes; causality order is transitive.
        """
        out, pointer = self.out, self.pointers[s.buffer.name]
        index, turns = out.op("cvt.s64.s32", self.scalar(s.index), kind="rd"), self.scalar(s.turns)
        address = out.op("mad.lo.s64", index, str(s.buffer.elem.bytes), pointer, kind="rd")
        most = out.op("sub.s32", turns, "1")
        first = out.op("setp.eq.u32", self.lane, "0", kind="p")
        ticket = out.op("mov.u32", "0")
        out.emit("bar.warp.sync -1", "release: order the stores of all lanes before lane 0's ticket")
        out.emit(f"@{first} atom.acq_rel.gpu.global.inc.u32 {ticket}, [{address}], {most}", comment(s))
        out.emit("bar.warp.sync -1", "acquire: order lane 0's ticket before the loads of all lanes")
        self.env[s.var] = [out.op("shfl.sync.idx.b32", ticket, "0", "31", "-1", comment=s.var.name)]

    def _acquire(self, _s: st.Acquire) -> None:
        self.out.emit("fence.acq_rel.gpu", "acquire: see the stores of other workgroups")

    def _direct_load(self, s: st.FlatDirectLoad) -> None:
        """Copy by `cp.async`; where the mask does not hold it reads 0 bytes and writes zeros."""
        self._end_group(s)
        out, address = self.out, self._global_address(s.address)
        to = self._shared_base(s.place, s.width)
        whole = isinstance(s.mask, x.Const) and s.mask.bits
        size = "" if whole else f", {out.op('selp.b32', str(s.width), '0', self.scalar(s.mask))}"
        cache = "cg" if s.width == 16 else "ca"  # .cg takes 16 bytes only
        operands = f"[{at(to, self.kernel.shared_base(s.tile) + s.imm)}], [{address}], {s.width}{size}"
        out.emit(f"{self.copying}cp.async.{cache}.shared.global.L2::128B {operands}", comment(s))

    def _shared_address(self, s: st.SharedRead | st.SharedWrite) -> str:
        return at(self._shared_base(s.address, OWN), self.kernel.shared_base(s.tile) + s.imm)

    def _shared_base(self, address: Expr, stride: int) -> str:
        """Return a register with each lane's address in shared memory: `address` plus `stride` bytes times the lane."""
        if isinstance(address, Var) and (address, stride) in self.shared_bases:
            return self.shared_bases[address, stride]
        if isinstance(address, x.Const) and not address.bits:
            return self.starts[stride]
        return self.out.op("add.u32", self.starts[stride], self.scalar(address))

    def _shared_read(self, s: st.SharedRead) -> None:
        """Postpone a read until its value is needed or a statement may change its bytes."""
        self.env.pop(s.var, None)  # equal statements are one object: an earlier place may have bound the variable
        self.pending[s.var] = s

    def _flush(self) -> None:
        """Emit the postponed reads."""
        for v in list(self.pending):
            self._read(v)

    def _read(self, v: Var, into: Words | None = None) -> None:
        """Emit a read if it is postponed, into these registers or new ones."""
        if (s := self.pending.pop(v, None)) is not None:
            before = self.out.begin(s)
            self._await_readers(v)
            self._emit_read(s, into or self._fresh(s.var.type))
            self.out.line = before

    def _emit_read(self, s: st.SharedRead, registers: Words) -> None:
        address = self._shared_address(s)
        name = _MATRIX_READS.get(type(s)) or f"ld.shared.{self._width(s.var.type)}"
        self.out.emit(f"{name} {braces(registers)}, [{address}]", comment(s))
        self.env[s.var] = registers

    def _load_factor(self, s: st.LoadFactor) -> None:
        """Emit nothing: a product reads the factor in shared memory."""

    # ------------------------------------------------------------ writes

    def _shared_write(self, s: st.SharedWrite) -> None:
        self._write(s, self.words(s.value))

    def _filled_write(self, s: st.FilledWrite) -> None:
        value, guard = self.words(s.value), self._guard(s.mask)
        if guard:
            kind = kind_of(s.value.type.elem)
            value = [self.out.op(f"selp.{KINDS[kind]}", word, "0", guard[1:-1], kind=kind) for word in value]
        self._write(s, value)

    def _write(self, s: st.SharedWrite, value: Words) -> None:
        address = self._shared_address(s)
        self.out.emit(f"st.shared.{self._width(s.value.type)} [{address}], {braces(value)}", comment(s))


def _fits(offset: int) -> bool:
    """Return whether an address may have this immediate offset (PTX ISA, "Addresses as Operands": signed, 32 bits)."""
    return -(1 << 31) <= offset < 1 << 31


def _constant_offset(e: Expr) -> tuple[Expr, int] | None:
    """Return a 64-bit value as another one and a constant offset of an address; None if it is no such sum."""
    match e:
        case x.Add(a, x.Const(dtype, bits)) if dtype.bits == 64:
            offset = bits - (1 << 64) if bits >> 63 else bits
            return (a, offset) if _fits(offset) else None
    return None


def _is_predicated(s: st.Stmt) -> bool:
    """Return whether a statement is a branch over copies, and values without side effects, alone."""
    if not isinstance(s, st.If) or s.other is not st.empty:
        return False
    return all(isinstance(inner, (st.Block, st.Let, st.FlatDirectLoad)) for inner in statements(s.then))


#: Statements that a read may be postponed behind: they change no bytes that it reads. Copies fill slots that are read
#: only after the next barrier.
_READS_MAY_PASS = (st.Block, st.Let, st.SharedRead, *_MATRIX_READS, st.FlatLoad, st.FlatDirectLoad)

MESSAGES: Mapping[type[st.Stmt], Callable[[Selector, Any], None]] = {
    st.Barrier: Selector._barrier,
    **dict.fromkeys((st.FlatLoad, st.PartialLoad), Selector._flat_load),
    st.FlatStore: Selector._flat_store,
    st.FlatAtomic: Selector._flat_atomic,
    st.Ticket: Selector._ticket,
    st.Acquire: Selector._acquire,
    st.FlatDirectLoad: Selector._direct_load,
    **dict.fromkeys((st.SharedRead, *_MATRIX_READS), Selector._shared_read),
    st.LoadFactor: Selector._load_factor,
    st.SharedWrite: Selector._shared_write,
    st.FilledWrite: Selector._filled_write,
    st.StartRing: rings.start,
    st.AcquireSlot: rings.acquire,
    st.TensorLoad: rings.load,
    st.AwaitSlot: rings.await_copies,
    st.ReleaseSlot: rings.release,
    st.TakeRegisters: rings.take_registers,
}

_STATEMENTS: Mapping[type[st.Stmt], Callable[[Selector, Any], None]] = {
    st.Block: Selector._block,
    st.Let: Selector._let,
    st.For: Selector._for,
    st.If: Selector._if,
    st.ExitIf: Selector._exit_if,
    **MESSAGES,
}
