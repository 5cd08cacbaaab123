"""Instruction selection: a message-level kernel becomes instructions on virtual registers.

Statements are selected in order; values are shared only through variables. ABI (LLVM AMDGPUUsage, "Initial Kernel
Execution State"): s[0:1] point to the arguments, s2.. are the workgroup ids, v0 is the work-item id.
"""

from __future__ import annotations

from collections.abc import Mapping

from convgen.backends.amdgpu.emitter import AmdEmitter, signed
from convgen.backends.amdgpu.isa import (
    DIRECT,
    DS_READ_WIDTH,
    DS_WRITE_WIDTH,
    GLOBAL_ATOMICS,
    LOAD_WIDTH,
    M0,
    STORE_WIDTH,
    is_inline,
)
from convgen.backends.amdgpu.scalars import AmdScalars
from convgen.backends.amdgpu.tables import SCOPES
from convgen.backends.amdgpu.vectors import AmdVectors
from convgen.backends.machine.instruction import Access, Flag, Function, Imm, Operand, Reg
from convgen.backends.machine.selection import Handlers, Selector, atomic, comment, kernel_arguments
from convgen.backends.machine.vectors import held_as_vector
from convgen.ir import stmt as st
from convgen.ir.error import Unsupported
from convgen.ir.expr import Add, Cast, Const, Expr, Lane, Mul, Surface, Var, const, eq
from convgen.ir.expr import select as choose
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.memory import Global
from convgen.ir.program import Kernel
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.simplify.simplify import simplify
from convgen.ir.simplify.variable_ranges import var_ranges
from convgen.ir.uniform import uniformity

#: Word 3 of a raw buffer descriptor: DATA_FORMAT = 32 (CDNA3 ISA 8.1.5; CK and rocRoller use it, too).
_DESCRIPTOR_WORD3 = 0x00020000
_OUT_OF_RANGE = -(1 << 31)  #: bytes; an offset beyond every surface


def select(kernel: Kernel, facts: TargetFacts, lines: Mapping[st.Stmt, int] | None = None) -> Function:
    """Return the kernel as a machine function. Raises Unsupported for operations that the tables lack.

    `lines` maps statements to lines of the kernel's listing, for debug information.
    """
    return _Selector(kernel, facts, lines or {}).run()


class _Selector(Selector):
    out: AmdEmitter
    scalars: AmdScalars
    vectors: AmdVectors

    def __init__(self, kernel: Kernel, facts: TargetFacts, lines: Mapping[st.Stmt, int]) -> None:
        super().__init__(kernel, lines, MESSAGES)
        self.out = AmdEmitter(kernel.name)
        bounds = Bounds(var_ranges(kernel), kernel.width)
        self.scalars = AmdScalars(self.out, uniformity(kernel), bounds)
        # Kernels without matrix instructions are memory-bound: packed arithmetic does not pay.
        self.vectors = AmdVectors(self.scalars, self.uses, facts, in_pairs=self.multiplies)
        self.facts = facts
        self.pointers: dict[str, Reg] = {}

    # ------------------------------------------------------------ entry

    def enter(self) -> None:
        k, out = self.kernel, self.out
        arguments = out.new("s", 2, "kernarg", fixed=0)
        for axis, (v, count) in enumerate(zip(k.group_ids, k.grid)):
            self.scalars.env[v] = out.new("s", 1, v.name, fixed=2 + axis) if count > 1 else Imm(0)
        item = out.new("v", 1, "work_item", fixed=0)
        for p, offset, _ in kernel_arguments(k):
            words = 2 if isinstance(p, Global) else 1
            dst = out.new("s", words, p.name)
            name = "s_load_dwordx2" if words == 2 else "s_load_dword"
            access = Access("kernarg", p.name, -1, False)
            out.emit(name, (dst,), (arguments, Imm(offset)), access=access, comment=f"argument {p.name}")
            if isinstance(p, Global):
                self.pointers[p.name] = dst
            else:
                self._argument(p, dst)
        if k.subgroups == 1:
            self.scalars.env[k.subgroup], self.scalars.lane = Imm(0), item
            return
        self.scalars.lane = out.valu("v_and_b32", Imm(k.width - 1), item)
        wave = out.valu("v_lshrrev_b32", Imm(k.width.bit_length() - 1), item)
        self.scalars.env[k.subgroup] = out.salu_from_lane(wave)

    def _argument(self, p: Var, word: Reg) -> None:
        if p.type.bits != 32:
            raise Unsupported(f"given the argument {p.name} of type {p.type}, wanted 32 bits")
        if held_as_vector(p.type):
            self.vectors.env[p] = (self.out.move_to_vector(word),)
        else:
            self.scalars.env[p] = word

    def lane_number(self) -> Reg:
        """Count the lanes before each lane (CDNA3 ISA 12.13, V_MBCNT)."""
        low = self.out.valu("v_mbcnt_lo_u32_b32", Imm(-1), Imm(0))
        return self.out.valu("v_mbcnt_hi_u32_b32", Imm(-1), low)

    # ------------------------------------------------------------ control

    def leave(self) -> None:
        self.out.emit("s_endpgm")

    def branch_unless(self, condition: Expr, target: str) -> None:
        self.scalars.condition(condition)
        self.out.emit("s_cbranch_scc0", target=target)

    def branch_if_less(self, a: Operand, b: Operand, here: str, target: str) -> None:
        self.out.scalar_compare("s_cmp_lt_i32", a, b)
        self.out.emit("s_cbranch_scc0", target=target)
        self.out.start_block(here)

    def next_iteration(self, counter: Reg, end: Operand, label: str, comment: str) -> None:
        self.out.salu("s_add_u32", counter, Imm(1), into=counter)
        self.out.scalar_compare("s_cmp_lt_i32", counter, end)
        self.out.emit("s_cbranch_scc1", target=label, comment=comment)

    def jump(self, target: str) -> None:
        self.out.emit("s_branch", target=target)

    def _barrier(self, s: st.Barrier) -> None:
        self.out.emit("s_barrier", comment=s.site.stage)

    # ------------------------------------------------------------ memory

    def _stored(self, e: Expr) -> Reg:
        """Return the value in a tuple that begins at an even register, as gfx90a and later require."""
        value = super()._stored(e)
        if value.count == 1 or value.first % 2 == 0:
            return value
        self.out.copy(whole := self.out.new("v", value.count), value)
        return whole

    def _surface(self, e: Surface) -> Reg:
        """Build a buffer descriptor: base, extent in bytes, raw format (CDNA3 ISA 8.1.5)."""
        out, base = self.out, self.pointers[e.buffer.name]
        dst = out.new("s", 4, f"{e.buffer.name}_surface")
        low, high = self._shift(e.shift)
        upper = base.words(1, 1)
        if low == high == Imm(0):
            out.move(dst.words(0, 1), base.words(0, 1))
        else:
            out.salu("s_add_u32", base.words(0, 1), low, into=dst.words(0, 1))
            upper = out.salu("s_addc_u32", upper, high, into=dst.words(1, 1))
        out.salu("s_and_b32", upper, Imm(0xFFFF), into=dst.words(1, 1))
        out.move(dst.words(2, 1), self.scalars.value(e.extent))
        out.move(dst.words(3, 1), Imm(_DESCRIPTOR_WORD3), comment=f"surface of {e.buffer.name}")
        return dst

    def _shift(self, e: Expr) -> tuple[Operand, Operand]:
        """Return a uniform 64-bit value as (low, high): constants, and products of a 32-bit index with a constant."""
        out = self.out
        match e:
            case Const():
                return Imm(signed(e.bits)), Imm(signed(e.bits >> 32))
            case Mul(Cast(_, index), Const() as scale) if 0 <= scale.bits < 1 << 32:
                i, by = self.scalars.value(index), Imm(signed(scale.bits))
                return out.salu("s_mul_i32", i, by), out.salu("s_mul_hi_u32", i, by)
            case Mul(Cast(_, a), Cast(_, b)) if min(self.scalars.bounds(a)[0], self.scalars.bounds(b)[0]) >= 0:
                one, other = self.scalars.value(a), self.scalars.value(b)
                return out.salu("s_mul_i32", one, other), out.salu("s_mul_hi_u32", one, other)
            case Add(a, b):
                (al, ah), (bl, bh) = self._shift(a), self._shift(b)
                low = out.salu("s_add_u32", al, bl)
                return low, out.salu("s_addc_u32", ah, bh)
        raise Unsupported(f"given the 64-bit shift {e}, wanted index * factor + constant")

    def _address(
        self, s: st.GlobalLoad | st.GlobalStore | st.DirectLoad, imm: int
    ) -> tuple[tuple[Operand, ...], tuple[str, ...]]:
        if isinstance(s.surface, Surface):
            surface = self._surface(s.surface)
        else:
            (surface,) = self.vectors.value(s.surface)
        offset = self.scalars.value(s.uniform)
        if isinstance(offset, Imm) and not is_inline(offset.value):
            offset = self.out.constant(offset.value)
        most = self.facts.global_imm_max
        if not 0 <= imm <= most:
            raise Unsupported(f"given an immediate offset of {imm}, wanted at most {most} in a buffer access")
        varying_offset = self.out.move_to_vector(self.scalars.value(s.varying))
        return (varying_offset, surface, offset), ("offen", *((f"offset:{imm}",) if imm else ()))

    def _global_load(self, s: st.GlobalLoad) -> None:
        source, modifiers = self._address(s, s.imm)
        dst = self.load_registers(s.var)
        access = Access("global", s.buffer.name, -1, False)
        name = f"buffer_load_{LOAD_WIDTH[s.var.type.bits // 8]}"
        self.out.emit(name, (dst,), source, modifiers=modifiers, access=access, comment=comment(s))
        self._loaded(s.var, dst)

    def _global_store(self, s: st.GlobalStore) -> None:
        self._write_global(s, f"buffer_store_{STORE_WIDTH[s.value.type.bits // 8]}")

    def _global_atomic(self, s: st.GlobalAtomic) -> None:
        self._write_global(s, atomic(s, GLOBAL_ATOMICS, self.facts.name)[0])

    def _write_global(self, s: st.GlobalStore, name: str) -> None:
        value = self._stored(s.value)
        source, modifiers = self._address(s, s.imm)
        access = Access("global", s.buffer.name, -1, True)
        self.out.emit(name, (), (value, *source), modifiers=modifiers, access=access, comment=comment(s))

    def _direct_load(self, s: st.DirectLoad) -> None:
        """Load from a buffer to LDS at M0; an immediate offset would count there, too (CDNA3 ISA 9.1.9).

        Lanes out of range write zeros, which masks rely on (ROCm/rocm-systems pull request 10928, after gfx950).
        """
        out, to = self.out, self.kernel.shared_base(s.tile) + s.imm
        address = out.salu_from_lane(self.scalars.value(s.place))
        if isinstance(address, Imm):
            out.emit("s_mov_b32", (Flag(M0),), (Imm(address.value + to),))
        elif to:
            out.emit("s_add_u32", (Flag(M0),), (address, Imm(to)))
        else:
            out.emit("s_mov_b32", (Flag(M0),), (address,))
        source, modifiers = self._address(s, 0)
        access = Access("shared", s.tile.region, s.site.slot, True, s.site.private, s.width)
        origin = Access("global", s.buffer.name, -1, False)
        modifiers = (*modifiers, "lds")
        out.emit(DIRECT[s.width], (), source, modifiers=modifiers, access=access, origin=origin, comment=comment(s))

    def _ticket(self, s: st.Ticket) -> None:
        """Take a ticket: only lane 0 is inside the surface, and counts; the counter wraps after the last ticket."""
        out, scope = self.out, SCOPES[self.facts.name]
        surface = self._surface(Surface(s.buffer, const(0), const(s.buffer.bytes)))
        here = choose(eq(Lane(), 0), s.index * s.buffer.elem.bytes, _OUT_OF_RANGE)
        place = out.move_to_vector(self.scalars.value(here))
        if scope.release:
            name, *modifiers = scope.release
            out.emit(name, modifiers=modifiers, comment="release: make stores visible")
        taken = out.new("v", 1, s.var.name)
        out.move(taken, self.scalars.value(simplify(s.turns - 1)))
        access = Access("global", s.buffer.name, -1, True)
        out.emit(
            "buffer_atomic_inc",
            (taken,),
            (place, surface, Imm(0), taken),
            modifiers=("offen", scope.returns),
            access=access,
            comment=comment(s),
        )
        self._acquire(s)
        self.scalars.env[s.var] = out.salu_from_lane(taken)

    def _acquire(self, _: st.Stmt) -> None:
        name, *modifiers = SCOPES[self.facts.name].acquire
        self.out.emit(name, modifiers=modifiers, comment="acquire: see stores of others")

    def _shared_address(self, s: st.SharedRead | st.SharedWrite) -> tuple[Reg, tuple[str, ...]]:
        imm = self.kernel.shared_base(s.tile) + s.imm
        address = self.scalars.value(s.address)
        if imm > self.facts.shared_imm_max:
            address, imm = self.out.valu("v_add_u32", Imm(imm), self.out.move_to_vector(address)), 0
        return self.out.move_to_vector(address), ((f"offset:{imm}",) if imm else ())

    def _shared_read(self, s: st.SharedRead) -> None:
        address, modifiers = self._shared_address(s)
        dst = self.load_registers(s.var)
        access = Access("shared", s.tile.region, s.site.slot, False, s.site.private)
        name = f"ds_read_{DS_READ_WIDTH[s.var.type.bits // 8]}"
        if isinstance(s, st.TransposedRead):
            name = "ds_read_b64_tr_b16"
        self.out.emit(name, (dst,), (address,), modifiers=modifiers, access=access, comment=comment(s))
        self._loaded(s.var, dst)

    def _shared_write(self, s: st.SharedWrite) -> None:
        value = self._stored(s.value)
        address, modifiers = self._shared_address(s)
        access = Access("shared", s.tile.region, s.site.slot, True, s.site.private)
        name = f"ds_write_{DS_WRITE_WIDTH[s.value.type.bits // 8]}"
        self.out.emit(name, (), (address, value), modifiers=modifiers, access=access, comment=comment(s))


MESSAGES: Handlers = {
    st.Barrier: _Selector._barrier,
    st.GlobalLoad: _Selector._global_load,
    st.GlobalStore: _Selector._global_store,
    st.GlobalAtomic: _Selector._global_atomic,
    st.DirectLoad: _Selector._direct_load,
    st.Ticket: _Selector._ticket,
    st.Acquire: _Selector._acquire,
    st.SharedRead: _Selector._shared_read,
    st.TransposedRead: _Selector._shared_read,
    st.SharedWrite: _Selector._shared_write,
}
