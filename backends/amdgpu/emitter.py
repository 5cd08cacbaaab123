"""The emitter of selection: virtual registers, legal operands, constants, and the instruction list."""

from __future__ import annotations

from collections.abc import Sequence

from convgen.backends.amdgpu.isa import OPCODES, is_inline
from convgen.backends.machine.emitter import Emitter
from convgen.backends.machine.instruction import (
    Access,
    BasicBlock,
    Flag,
    Imm,
    Instruction,
    Opcode,
    Operand,
    Reg,
    VirtualRegister,
)

_NEAR = 128  #: instructions; uses of a constant that are at most so far apart share a register


def signed(value: int) -> int:
    """Return a 32-bit pattern as the assembler prints integers: inline constants are signed."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


class AmdEmitter(Emitter):
    """Appends instructions to the current block and keeps operands legal."""

    def __init__(self, name: str) -> None:
        self._scc_comparison: tuple[str, Operand, Operand] | None = None  # comparison whose result scc holds
        self._scc_operands: tuple[VirtualRegister, ...] = ()
        # constant -> vector register in this block, and index of its last use
        self._nearby_constants: dict[int, tuple[Reg, int]] = {}
        super().__init__(name)

    def start_block(self, label: str, comment: str = "") -> BasicBlock:
        self._scc_comparison, self._scc_operands = None, ()
        self._nearby_constants = {}
        return super().start_block(label, comment)

    def constant(self, value: int, bank: str = "s") -> Reg:
        """Return a register that holds `value` for the whole kernel, loaded once at entry."""
        value = signed(value)
        return self.kernel_constant(Imm(value), bank=bank, name=f"const_{value & 0xFFFFFFFF:#x}")

    def in_lanes(self, value: int) -> Reg:
        """Return a read-only vector register with a constant.

        In loops one register holds it for the whole kernel. Elsewhere uses close to each other share a register.
        """
        if self.loops:
            return self.constant(value, "v")
        value, here = signed(value), len(self.block.instructions)
        register, last = self._nearby_constants.get(value, (None, 0))
        if register is None or here - last > _NEAR:
            register = self.new("v")
            self.emit("v_mov_b32", (register,), (Imm(value),))
        self._nearby_constants[value] = register, here
        return register

    # ------------------------------------------------------------ instructions

    def emit(
        self,
        name: str | Opcode,
        dst: Sequence[Reg | Flag] = (),
        src: Sequence[Operand] = (),
        *,
        modifiers: Sequence[str] = (),
        access: Access | None = None,
        origin: Access | None = None,
        target: str = "",
        comment: str = "",
    ) -> Instruction:
        """Append one instruction without changing its operands."""
        op = OPCODES[name] if isinstance(name, str) else name
        instruction = Instruction(
            op, tuple(dst), tuple(src), tuple(modifiers), access, target, comment, self.line, origin=origin
        )
        self.block.instructions.append(instruction)
        self._note_results(instruction)
        return instruction

    def _note_results(self, i: Instruction) -> None:
        """Forget which comparison scc holds if an instruction writes scc or an operand of the comparison."""
        operands = self._scc_operands
        changed = operands and any(isinstance(r, Reg) and r.vreg in operands for r in i.dst)
        if changed or "scc" in i.op.writes:
            self._scc_comparison, self._scc_operands = None, ()

    def salu(self, name: str, *src: Operand, size: int = 1, comment: str = "", into: Reg | None = None) -> Reg:
        """Emit a scalar operation into a fresh register; of several literals all but one come from registers."""
        literals = [s for s in src if isinstance(s, Imm) and not is_inline(signed(s.value))]
        distinct = {signed(s.value) for s in literals}
        if len(distinct) > 1:
            src = tuple(self.constant(s.value) if s in literals[1:] else s for s in src)
        dst = into or self.new("s", size)
        self.emit(name, (dst,), src, comment=comment)
        return dst

    def scalar_compare(self, name: str, a: Operand, b: Operand) -> None:
        """Emit a comparison into scc, unless scc already holds its result."""
        wanted = (name, a, b)
        if self._scc_comparison is not None and all(map(_same_operand, wanted, self._scc_comparison)):
            return
        if all(isinstance(s, Imm) and not is_inline(signed(s.value)) for s in (a, b)):
            b = self.constant(b.value)  # type: ignore[union-attr]
        self.emit(name, (), (a, b))
        self._scc_comparison, self._scc_operands = wanted, tuple(r.vreg for r in (a, b) if isinstance(r, Reg))

    def valu(
        self,
        name: str,
        *src: Operand,
        bank: str = "v",
        size: int = 1,
        into: Reg | None = None,
        modifiers: Sequence[str] = (),
    ) -> Reg:
        """Emit a vector operation into a fresh register, after moving operands that the encoding cannot read.

        GFX9 reads one scalar register or literal per VALU instruction (CDNA3 ISA 6.2.1).
        """
        op = OPCODES[name]
        if op.commutes and _is_constant(src[1]) and not _is_constant(src[0]):
            src = (src[1], src[0], *src[2:])
        legal: list[Operand] = []
        scalar: Operand | None = None
        for i, s in enumerate(src):
            if isinstance(s, Imm):
                s = Imm(signed(s.value))
                if not is_inline(s.value):
                    beside_vgpr = len(src) == 2 and isinstance(src[1], Reg) and src[1].bank == "v"
                    if op.literal and i == 0 and beside_vgpr:
                        legal.append(s)
                        continue
                    s = self.constant(s.value)
            if isinstance(s, Reg) and s.bank == "a":
                s = self.read_accumulator(s)
            if isinstance(s, Reg) and s.bank == "s":
                if scalar is not None and not s.same(scalar):
                    s = self.move_to_vector(s)
                else:
                    scalar = s
            legal.append(s)
        dst = into or self.new(bank, size)
        self.emit(op, (dst,), legal, modifiers=modifiers)
        return dst

    def retarget(self, value: Operand, to: Reg) -> bool:
        last = self.block.instructions[-1] if self.block.instructions else None
        fresh = isinstance(value, Reg) and value.whole and value.count == to.count and value.bank == to.bank
        if last is None or not fresh or len(last.dst) != 1 or last.dst[0] is not value:
            return False
        last.retarget(to)
        self._note_results(last)
        return True

    def move_to_vector(self, o: Operand) -> Reg:
        if isinstance(o, Reg) and o.bank == "v":
            return o
        if isinstance(o, Reg) and o.bank == "a":
            return self.read_accumulator(o)
        dst = self.new("v")
        self.emit("v_mov_b32", (dst,), (Imm(signed(o.value)) if isinstance(o, Imm) else o,))
        return dst

    def salu_from_lane(self, s: Operand) -> Operand:
        """Return a value that is equal in all lanes in a scalar register."""
        if not isinstance(s, Reg) or s.bank == "s":
            return s
        dst = self.new("s")
        self.emit("v_readfirstlane_b32", (dst,), (self.move_to_vector(s),))
        return dst

    def read_accumulator(self, a: Reg) -> Reg:
        """Copy accumulation registers, which most VALU instructions cannot read, to vector registers."""
        dst = self.new("v", a.count)
        self.copy(dst, a)
        return dst

    def move(self, dst: Reg, src: Operand, comment: str = "") -> None:
        self.emit("s_mov_b32" if dst.bank == "s" else "v_mov_b32", (dst,), (src,), comment=comment)

    def copy(self, dst: Reg, src: Reg) -> None:
        """Copy word by word, between any two banks except from vector to scalar."""
        for i in range(dst.count):
            to, at = dst.words(i, 1), src.words(i, 1)
            if to.bank == "s":
                self.emit("s_mov_b32", (to,), (at,))
            elif to.bank == "a":
                self.emit("v_accvgpr_write_b32", (to,), (self.move_to_vector(at),))
            elif at.bank == "a":
                self.emit("v_accvgpr_read_b32", (to,), (at,))
            else:
                self.emit("v_mov_b32", (to,), (at,))


def _same_operand(a: str | Operand, b: str | Operand) -> bool:
    return a.same(b) if isinstance(a, Reg) else a == b


def _is_constant(s: Operand) -> bool:
    return isinstance(s, Imm) or (isinstance(s, Reg) and s.bank == "s")
