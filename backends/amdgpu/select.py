"""Selection: a message-level kernel becomes instructions on virtual registers.

Statement by statement, in order; values are shared only through variables. ABI (LLVM AMDGPUUsage, "Initial Kernel
Execution State"): s[0:1] point to the arguments, s2.. are the workgroup ids, v0 is the work-item id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convgen.backends.amdgpu.emitter import Emitter, signed
from convgen.backends.amdgpu.isa import DS_READ_WIDTH, DS_WRITE_WIDTH, GLOBAL_ADD, LOAD_WIDTH, STORE_WIDTH, is_inline
from convgen.backends.amdgpu.scalars import Scalars
from convgen.backends.amdgpu.vectors import Parts, Vectors
from convgen.backends.machine import Access, Function, Imm, Operand, Reg
from convgen.ir import stmt as st
from convgen.ir.bounds import Bounds, var_ranges
from convgen.ir.error import Unsupported, VerifyError
from convgen.ir.expr import Add, Cast, Const, Expr, Mma, Mul, Pack, Shuffle, Slice, Splat, Surface, Var
from convgen.ir.facts import TargetFacts
from convgen.ir.memory import Global
from convgen.ir.mutate import free_vars, postorder
from convgen.ir.program import Kernel
from convgen.ir.types import Type, VectorType
from convgen.ir.uniform import Uniformity, varying
from convgen.passes.place_lets import ANONYMOUS

#: Word 3 of a raw buffer descriptor: DATA_FORMAT = 32 (CDNA3 ISA 8.1.5, used by CK and rocRoller alike).
_DESCRIPTOR_WORD3 = 0x00020000
_BUFFER_OFFSET_MAX = 4095
_DS_OFFSET_MAX = 65535


def select(kernel: Kernel, facts: TargetFacts, lines: Mapping[st.Stmt, int] | None = None) -> Function:
    """The kernel as a machine function; raises Unsupported for what the instruction tables cannot express.

    `lines` says where each statement stands in the kernel's listing, for debug information.
    """
    return _Selector(kernel, facts, lines or {}).run()


class _Selector:
    def __init__(self, kernel: Kernel, facts: TargetFacts, lines: Mapping[st.Stmt, int]) -> None:
        self.kernel, self.facts, self.lines = kernel, facts, lines
        self.out = Emitter(kernel.name)
        self.uses = _use_counts(kernel)
        bounds = Bounds(var_ranges(kernel), kernel.width)
        self.scalars = Scalars(self.out, Uniformity(varying(kernel)), bounds)
        self.vectors = Vectors(self.scalars, self.uses, facts)
        self.pointers: dict[str, Reg] = {}
        self.surface_of: dict[Var, Surface] = {}
        self.into: dict[Var, Reg] = {}  # loads that write straight into a loop's carried registers
        self.labels = 0
        self.exits: list[tuple[Sequence[Var], str]] = []  # carried variables and end label of the loops around

    def run(self) -> Function:
        self._entry()
        self._stmt(self.kernel.body)
        self.out.emit("s_endpgm")
        return self.out.finish()

    # ------------------------------------------------------------ entry

    def _entry(self) -> None:
        k, out = self.kernel, self.out
        arguments = out.new("s", 2, "kernarg", fixed=0)
        for axis, (v, count) in enumerate(zip(k.group_ids, k.grid)):
            self.scalars.env[v] = out.new("s", 1, v.name, fixed=2 + axis) if count > 1 else Imm(0)
        item = out.new("v", 1, "work_item", fixed=0)
        for offset, p in argument_offsets(k):
            words = 2 if isinstance(p, Global) else 1
            dst = out.new("s", words, p.name)
            name = "s_load_dwordx2" if words == 2 else "s_load_dword"
            access = Access("kernarg", p.name, -1, False)
            out.emit(name, (dst,), (arguments, Imm(offset)), access=access, comment=f"argument {p.name}")
            if isinstance(p, Global):
                self.pointers[p.name] = dst
            else:
                self.scalars.env[p] = dst
        if k.subgroups == 1:
            self.scalars.env[k.subgroup], self.scalars.lane = Imm(0), item
            return
        self.scalars.lane = out.valu("v_and_b32", Imm(k.width - 1), item)
        wave = out.valu("v_lshrrev_b32", Imm(k.width.bit_length() - 1), item)
        self.scalars.env[k.subgroup] = out.salu_from_lane(wave)

    # ------------------------------------------------------------ statements

    def _stmt(self, s: st.Stmt) -> None:
        self.out.line = self.lines.get(s, self.out.line)
        handler = getattr(self, "_" + type(s).__name__.lower(), None)
        if handler is None:
            raise VerifyError(f"selection: {type(s).__name__} is not a message-level statement")
        handler(s)

    def _block(self, s: st.Block) -> None:
        for x in s.stmts:
            self._stmt(x)

    def _let(self, s: st.Let) -> None:
        before = len(self.out.block.instructions)
        if isinstance(s.value, Surface):
            self.vectors.env[s.var] = (self._surface(s.value),)
            self.surface_of[s.var] = s.value
        elif isinstance(s.var.type, VectorType):
            self.vectors.env[s.var] = self.vectors.value(s.value)
            source = s.value if isinstance(s.value, Var) else None
            self.vectors.owned[s.var] = isinstance(s.value, Mma) or (
                source is not None and self.vectors.owned.get(source, False) and self.uses.get(source, 0) == 1
            )
        else:
            self.scalars.env[s.var] = self.scalars.value(s.value)
        made = self.out.block.instructions[before:]
        if made and not made[-1].comment and s.var.name != ANONYMOUS and not isinstance(s.value, Mma):
            made[-1].comment = s.var.name

    def _barrier(self, s: st.Barrier) -> None:
        self.out.emit("s_barrier", comment=s.site.stage)

    # ------------------------------------------------------------ memory

    def _surface(self, e: Surface) -> Reg:
        """A buffer descriptor: base, extent in bytes, raw format (CDNA3 ISA 8.1.5)."""
        out, base = self.out, self.pointers[e.buffer.name]
        dst = out.new("s", 4, f"{e.buffer.name}_surface")
        low, high = self._shift(e.shift)
        if isinstance(low, Imm) and isinstance(high, Imm) and low.value == high.value == 0:
            out.emit("s_mov_b32", (dst.words(0, 1),), (base.words(0, 1),))
            out.salu("s_and_b32", base.words(1, 1), Imm(0xFFFF), into=dst.words(1, 1))
        else:
            out.salu("s_add_u32", base.words(0, 1), low, into=dst.words(0, 1))
            out.salu("s_addc_u32", base.words(1, 1), high, into=dst.words(1, 1))
            out.salu("s_and_b32", dst.words(1, 1), Imm(0xFFFF), into=dst.words(1, 1))
        out.emit("s_mov_b32", (dst.words(2, 1),), (self.scalars.value(e.extent),))
        out.emit("s_mov_b32", (dst.words(3, 1),), (Imm(_DESCRIPTOR_WORD3),), comment=f"surface of {e.buffer.name}")
        return dst

    def _shift(self, e: Expr) -> tuple[Operand, Operand]:
        """A uniform 64-bit value as (low, high): constants, and products of a 32-bit index with a constant."""
        out = self.out
        match e:
            case Const():
                return Imm(signed(e.bits)), Imm(signed(e.bits >> 32))
            case Mul(Cast(_, index), Const() as scale) if 0 <= scale.bits < 1 << 32:
                i, by = self.scalars.value(index), Imm(signed(scale.bits))
                return out.salu("s_mul_i32", i, by), out.salu("s_mul_hi_u32", i, by)
            case Add(a, b):
                (al, ah), (bl, bh) = self._shift(a), self._shift(b)
                low = out.salu("s_add_u32", al, bl)
                return low, out.salu("s_addc_u32", ah, bh)
        raise Unsupported(f"given the 64-bit shift {e}, wanted index * constant + constant")

    def _address(self, s: st.GlobalLoad | st.GlobalStore) -> tuple[tuple[Operand, ...], tuple[str, ...]]:
        if isinstance(s.surface, Surface):
            surface = self._surface(s.surface)
        else:
            (surface,) = self.vectors.value(s.surface)
        offset = self.scalars.value(s.uniform)
        if isinstance(offset, Imm) and not is_inline(offset.value):
            offset = self.out.constant(offset.value)
        if not 0 <= s.imm <= _BUFFER_OFFSET_MAX:
            raise VerifyError(f"selection: immediate offset {s.imm} of a buffer access")
        varying_offset = self.out.move_to_vector(self.scalars.value(s.varying))
        return (varying_offset, surface, offset), ("offen", *((f"offset:{s.imm}",) if s.imm else ()))

    def _buffer_name(self, surface: Expr) -> str:
        found = self.surface_of.get(surface) if isinstance(surface, Var) else surface
        return str(found.buffer.name) if isinstance(found, Surface) else ""

    def _globalload(self, s: st.GlobalLoad) -> None:
        source, modifiers = self._address(s)
        width = s.var.type.bits // 8
        dst = self.into.get(s.var) or self.out.new("v", max(1, width // 4), s.var.name)
        access = Access("global", self._buffer_name(s.surface), -1, False)
        name = f"buffer_load_{LOAD_WIDTH[width]}"
        self.out.emit(name, (dst,), source, modifiers=modifiers, access=access, comment=_comment(s))
        self._loaded(s.var, dst)

    def _loaded(self, v: Var, dst: Reg) -> None:
        """Bind what was loaded, also for 32-bit arithmetic where it is one element of a lane."""
        self.vectors.env[v] = (dst,)
        self.vectors.owned[v] = True
        if isinstance(v.type, Type):
            self.scalars.env[v] = dst

    def _stored(self, e: Expr) -> Reg:
        """The value of a store in vector registers."""
        if isinstance(e.type, Type) and e.type.is_int and e.type.bits == 32:
            return self.out.move_to_vector(self.scalars.value(e))
        return self.vectors.tuple_of(self.vectors.value(e))

    def _globalstore(self, s: st.GlobalStore) -> None:
        self._write_global(s, f"buffer_store_{STORE_WIDTH[s.value.type.bits // 8]}")

    def _globaladd(self, s: st.GlobalAdd) -> None:
        if s.value.type.lanes != 1:
            raise Unsupported(f"given an atomic addition of {s.value.type}, wanted one element a message")
        self._write_global(s, GLOBAL_ADD[s.value.type.elem][0])

    def _write_global(self, s: st.GlobalStore, name: str) -> None:
        value = self._stored(s.value)
        source, modifiers = self._address(s)
        access = Access("global", self._buffer_name(s.surface), -1, True)
        self.out.emit(name, (), (value, *source), modifiers=modifiers, access=access, comment=_comment(s))

    def _shared_address(self, s: st.SharedRead | st.SharedWrite) -> tuple[Reg, tuple[str, ...]]:
        imm = self.kernel.shared_base(s.tile) + s.imm
        address = self.scalars.value(s.address)
        if imm > _DS_OFFSET_MAX:
            address, imm = self.out.valu("v_add_u32", Imm(imm), self.out.move_to_vector(address)), 0
        return self.out.move_to_vector(address), ((f"offset:{imm}",) if imm else ())

    def _sharedread(self, s: st.SharedRead) -> None:
        address, modifiers = self._shared_address(s)
        width = s.var.type.bits // 8
        dst = self.into.get(s.var) or self.out.new("v", max(1, width // 4), s.var.name)
        access = Access("shared", s.tile.name, s.site.slot, False, s.site.private)
        name = f"ds_read_{DS_READ_WIDTH[width]}"
        self.out.emit(name, (dst,), (address,), modifiers=modifiers, access=access, comment=_comment(s))
        self._loaded(s.var, dst)

    def _sharedwrite(self, s: st.SharedWrite) -> None:
        value = self._stored(s.value)
        address, modifiers = self._shared_address(s)
        access = Access("shared", s.tile.name, s.site.slot, True, s.site.private)
        name = f"ds_write_{DS_WRITE_WIDTH[s.value.type.bits // 8]}"
        self.out.emit(name, (), (address, value), modifiers=modifiers, access=access, comment=_comment(s))

    # ------------------------------------------------------------ loops

    def _for(self, s: st.For) -> None:
        out = self.out
        for c, init in zip(s.carried, s.inits):
            self._carry_in(c, init, s.body)
        begin, end = self.scalars.value(s.begin), self.scalars.value(s.end)
        self.labels += 1
        label = f"{s.label}_{self.labels}" if self.labels > 1 else s.label
        if self.scalars.bounds(s.begin)[1] >= self.scalars.bounds(s.end)[0]:  # perhaps no iteration at all
            out.scalar_compare("s_cmp_lt_i32", begin, end)
            out.emit("s_cbranch_scc0", target=f"{label}_end")
            out.start_block(f"{label}_enter")
        counter = out.new("s", 1, s.var.name)
        out.emit("s_mov_b32", (counter,), (begin,), comment=f"{s.var.name} = {s.begin}")
        self.scalars.env[s.var] = counter
        self._write_into_carried(s)
        out.start_block(label, f"for {s.var.name} in [{s.begin}, {s.end})")
        self.exits.append((s.carried, f"{label}_end"))
        self._stmt(s.body)
        self.exits.pop()
        self._carry(s.carried, s.yields)
        out.salu("s_add_u32", counter, Imm(1), into=counter)
        out.scalar_compare("s_cmp_lt_i32", counter, end)
        out.emit("s_cbranch_scc1", target=label, comment=f"next {s.var.name}")
        out.start_block(f"{label}_end")
        for c, r in zip(s.carried, s.results):
            if isinstance(c.type, VectorType):
                self.vectors.env[r], self.vectors.owned[r] = self.vectors.env[c], True
            else:
                self.scalars.env[r] = self.scalars.env[c]

    def _exitif(self, s: st.ExitIf) -> None:
        """Leave the innermost loop: its carried registers, which its results share, take the values."""
        carried, end = self.exits[-1]
        self.labels += 1
        stay = f"stay_{self.labels}"
        self.scalars.condition(s.cond)
        self.out.emit("s_cbranch_scc0", target=stay)
        self.out.start_block(f"leave_{self.labels}")
        self._carry(carried, s.values)
        self.out.emit("s_branch", target=end)
        self.out.start_block(stay)

    def _if(self, s: st.If) -> None:
        self.labels += 1
        other, end = f"else_{self.labels}", f"endif_{self.labels}"
        self.scalars.condition(s.cond)
        self.out.emit("s_cbranch_scc0", target=other)
        self.out.start_block(f"then_{self.labels}")
        self._stmt(s.then)
        self.out.emit("s_branch", target=end)
        self.out.start_block(other)
        self._stmt(s.other)
        self.out.start_block(end)

    def _carry_in(self, c: Var, init: Expr, body: st.Stmt) -> None:
        """Registers for a carried value: the initial value's own if nothing else needs them, else a copy."""
        if not isinstance(c.type, VectorType):
            value = self.scalars.value(init)
            bank = "s" if self.scalars.uniform(c) else "v"
            dst = self.out.new(bank, 1, c.name)
            self.out.emit("s_mov_b32" if bank == "s" else "v_mov_b32", (dst,), (value,))
            self.scalars.env[c] = dst
            return
        self.vectors.owned[c] = True
        if isinstance(init, Splat):
            user = next((n for n in postorder(body) if isinstance(n, Mma) and n.acc is c), None)
            if user is None:
                self.vectors.env[c] = (self.vectors.filled(init.dtype, init.a, "v"),)
            else:
                self.vectors.env[c] = self.vectors.accumulators(user, init, c)
            return
        parts = self.vectors.value(init)
        mine = isinstance(init, Var) and self.vectors.owned.get(init, False) and self.uses.get(init, 0) == 1
        if not mine or not all(p.whole for p in parts):
            fresh = tuple(self.out.new(p.bank, p.count, c.name) for p in parts)
            for to, at in zip(fresh, parts):
                self.out.copy(to, at)
            parts = fresh
        self.vectors.env[c] = parts

    def _write_into_carried(self, s: st.For) -> None:
        """A load that yields the next value of a carried variable may overwrite it, once its last use has passed."""
        stmts = s.body.stmts if isinstance(s.body, st.Block) else (s.body,)
        loads = {x.var: i for i, x in enumerate(stmts) if isinstance(x, (st.GlobalLoad, st.SharedRead))}
        last_use = _last_uses(stmts)
        for c, y in zip(s.carried, s.yields):
            if not isinstance(y, Var) or not isinstance(c.type, VectorType):
                continue
            parts = self.vectors.env[c]
            if y in loads and len(parts) == 1 and last_use.get(c, -1) < loads[y]:
                self.into[y] = parts[0]

    def _carry(self, carried: Sequence[Var], values: Sequence[Expr]) -> None:
        """Move values into carried registers, all at once: a source that is itself overwritten is saved first."""
        moves: list[tuple[Reg, Reg]] = []
        for n, (c, value) in enumerate(zip(carried, values)):
            if isinstance(c.type, VectorType):
                moves += _unequal(self.vectors.env[c], self.vectors.value(value))
                continue
            to, at = self.scalars.env[c], self.scalars.value(value)
            assert isinstance(to, Reg)
            needed = any(c in free_vars(later) for later in values[n + 1 :]) or any(s.vreg is to.vreg for _, s in moves)
            if not needed and self.out.retarget(at, to):
                continue
            if not isinstance(at, Reg):
                held = self.out.new(to.bank)
                self.out.emit("s_mov_b32" if to.bank == "s" else "v_mov_b32", (held,), (at,))
                at = held
            moves += _unequal((to,), (at,))
        targets = {to.vreg for to, _ in moves}
        for n, (to, at) in enumerate(moves):
            if at.vreg in targets:
                saved = self.out.new("s" if at.bank == "s" else "v", at.count)
                self.out.copy(saved, at)
                moves[n] = (to, saved)
        for to, at in moves:
            self.out.copy(to, at)


def _unequal(old: Parts, new: Parts) -> list[tuple[Reg, Reg]]:
    """(to, from) word by word, where the two differ."""
    words = [[p.words(i, 1) for p in parts for i in range(p.count)] for parts in (old, new)]
    return [(to, at) for to, at in zip(*words) if not to.same(at)]


def _last_uses(stmts: Sequence[st.Stmt]) -> dict[Var, int]:
    """The last statement that needs each variable's registers, be it through a pack or slice that shares them."""
    last: dict[Var, int] = {}
    sharers: dict[Var, list[Var]] = {}  # variable -> those whose registers it stands for
    for i, s in enumerate(stmts):
        used = [n for n in postorder(s) if isinstance(n, Var)]
        for v in used:
            for shared in (v, *sharers.get(v, ())):
                last[shared] = i
        if isinstance(s, st.Let) and isinstance(s.value, (Pack, Shuffle, Slice, Var)):
            sharers[s.var] = [x for v in used if v is not s.var for x in (v, *sharers.get(v, ()))]
    return last


def _comment(s: Any) -> str:
    return f"{s.site.comment} {s.site.stage}".strip()


def _use_counts(kernel: Kernel) -> dict[Var, int]:
    """How often each variable is used as an operand."""
    binders = {"var", "carried", "results", "group_ids", "subgroup"}
    counts: dict[Var, int] = {}
    for node in postorder(kernel):
        for field in node.child_fields:
            if field in binders:
                continue
            value = getattr(node, field)
            for x in value if isinstance(value, tuple) else (value,):
                if isinstance(x, Var):
                    counts[x] = counts.get(x, 0) + 1
    return counts


def argument_offsets(kernel: Kernel) -> list[tuple[int, Any]]:
    """(byte offset, parameter) of each kernel argument: pointers first come, naturally aligned."""
    out: list[tuple[int, Any]] = []
    at = 0
    for p in kernel.params:
        size = 8 if isinstance(p, Global) else p.type.bits // 8
        at = -(-at // size) * size
        out.append((at, p))
        at += size
    return out
