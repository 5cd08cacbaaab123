"""The emitter of selection: registers, operands with regions, and the instruction list."""

from __future__ import annotations

from collections.abc import Sequence

from convgen.backends.intel.isa import (
    FLAG_BITS,
    OPCODES,
    TYPE_BYTES,
    Literal,
    Message,
    Null,
    Region,
    Special,
    XeInstruction,
    region,
)
from convgen.backends.intel.tables import Generation
from convgen.backends.machine.emitter import Emitter
from convgen.backends.machine.instruction import Access, Imm, Instruction, Opcode, Operand, Reg, Unit
from convgen.backends.machine.vectors import WORD_BYTES

_SHORT = ("w", "uw")


class XeEmitter(Emitter):
    """Appends instructions to the current block and keeps operands legal."""

    def __init__(self, name: str, generation: Generation) -> None:
        super().__init__(name)
        self.generation, self.lanes = generation, generation.lanes

    # ------------------------------------------------------------ operands

    def source(self, o: Operand, type: str) -> Operand:
        """Return an operand read as `type`, unless it has its own type."""
        if isinstance(o, Imm):
            bits = 8 * TYPE_BYTES[type]
            value = o.value & (1 << min(bits, 32)) - 1
            signed = type in ("d", "w", "q") and value >> min(bits, 32) - 1
            return Literal(value - (1 << min(bits, 32)) if signed else value, {"q": "d", "uq": "ud"}.get(type, type))
        if isinstance(o, Reg) and not isinstance(o, Region):
            return region(o, type, 0, 0 if o.bank == "s" else 1)
        if isinstance(o, Region) and not o.type:  # the word of one lane
            return region(o, type, o.sub, o.stride)
        return o

    @staticmethod
    def is_uniform(o: Operand) -> bool:
        """Return whether all lanes read one value."""
        return isinstance(o, (Imm, Literal)) or (isinstance(o, Reg) and o.bank == "s") or getattr(o, "uniform", False)

    # ------------------------------------------------------------ instructions

    def emit(
        self,
        op: str | Opcode,
        dst: Sequence[Operand] = (),
        src: Sequence[Operand] = (),
        *,
        lanes: int = 1,
        predicate: Reg | None = None,
        condition: str = "",
        flag: Reg | None = None,
        partial: bool = False,
        discards: bool = False,
        modifiers: Sequence[str] = (),
        access: Access | None = None,
        target: str = "",
        comment: str = "",
    ) -> XeInstruction:
        """Append one instruction without changing its operands."""
        row = OPCODES[op] if isinstance(op, str) else op
        instruction = XeInstruction(
            row, tuple(dst), tuple(src), tuple(modifiers), access, target, comment, self.line,
            lanes, predicate, condition, flag, partial, discards, self._must_not_overlap(row, (*dst, *src), lanes),
        )  # fmt: skip
        self.block.instructions.append(instruction)
        return instruction

    def _must_not_overlap(self, row: Opcode, operands: Sequence[Operand], lanes: int) -> bool:
        """Return whether the destination must not overlap the sources.

        If operands span registers, the engine processes lanes in passes, a register at a time; later passes would read
        sources that the first has overwritten (IGC, `hasDstSrcOverlapPotential`). Messages follow `response_apart`.
        """
        if isinstance(row, Message):
            return self.generation.response_apart
        grf = self.lanes * WORD_BYTES
        regions = (o for o in operands if isinstance(o, Region) and o.bank == "v")
        return row.unit is Unit.VALU and any(o.spans(lanes, grf) for o in regions)

    def alu(
        self,
        name: str,
        type: str,
        *src: Operand,
        into: Reg | None = None,
        condition: str = "",
        flag: Reg | None = None,
        predicate: Reg | None = None,
        modifiers: Sequence[str] = (),
        lanes: int | None = None,
    ) -> Reg:
        """Emit an operation on elements of `type` into a fresh register: scalar if all its operands are uniform.

        Only the last operand may be an immediate, and with three operands of 16 bits also the first.
        """
        if isinstance(src[0], Imm) and len(src) == 2 and OPCODES[name].commutes:
            src = (src[1], src[0])
        operands = [self.source(o, type) for o in src]
        for n, o in enumerate(operands[:-1]):
            if isinstance(o, Literal) and not (n == 0 and len(operands) == 3 and o.type in _SHORT):
                operands[n] = self.source(self.constant(o), type)
        uniform = all(map(self.is_uniform, src)) and predicate is None
        if into is not None:
            uniform = into.bank == "s"
        dst = into or self.new("s" if uniform else "v", max(1, TYPE_BYTES[type] // 4))
        to = dst if isinstance(dst, Region) else region(dst, type)
        count = lanes or (1 if uniform else self.lanes)
        self.emit(
            name, (to,), operands, lanes=count, condition=condition, flag=flag, predicate=predicate, modifiers=modifiers
        )
        return dst

    def constant(self, value: Literal) -> Reg:
        """Return a scalar register with that value; 16-bit integers are widened to 32 bits."""
        dst = self.new("s", TYPE_BYTES[value.type] // 4 or 1)
        self.emit("mov", (region(dst, "d" if value.type in _SHORT else value.type),), (value,))
        return dst

    def compare(
        self, condition: str, type: str, a: Operand, b: Operand, lanes: int | None = None, into: Region | None = None
    ) -> Reg:
        """Emit a comparison; return a flag register with one bit a lane.

        `into` gets all ones where the comparison holds, else zeros.
        """
        count = lanes or self.lanes
        flag = self.new("f", -(-count // FLAG_BITS))
        first, second = self.source(a, type), self.source(b, type)
        if isinstance(first, Literal):
            first = self.source(self.constant(first), type)
        dst = Null(type) if into is None else into
        self.emit("cmp", (dst,), (first, second), lanes=count, condition=condition, flag=flag)
        return flag

    def accumulator(self, type: str) -> Special:
        return Special("acc0", type)

    def retarget(self, value: Operand, to: Reg) -> bool:
        last: Instruction | None = self.block.instructions[-1] if self.block.instructions else None
        if last is None or len(last.dst) != 1 or not isinstance(value, Reg) or isinstance(last.op, Message):
            return False
        old = last.dst[0]
        fresh = isinstance(old, Region) and old.vreg is value.vreg and value.whole and value.bank == to.bank
        if not fresh or value.count != to.count or getattr(last, "partial", False) or old.stride != 1:  # type: ignore[union-attr]
            return False
        assert isinstance(old, Region)
        last.retarget(region(to, old.type, old.sub, old.stride, saturated=old.saturated))
        return True

    def move(self, dst: Reg, src: Operand, comment: str = "") -> None:
        """Move a value of one lane, or of all lanes."""
        if isinstance(src, Reg) and not isinstance(src, Region) and (src.bank, dst.bank) in (("v", "v"), ("s", "s")):
            self.copy(dst, src)
            return
        lanes = 1 if dst.bank == "s" else self.lanes
        if dst.count == 2 and not self.generation.long_alu:
            assert isinstance(src, Reg)
            assert (src.bank, dst.bank) == ("s", "v")
            for word in (0, 1):
                to, at = region(dst, "ud", word, 2), region(src.words(word, 1), "ud", 0, 0)
                self.emit("mov", (to,), (at,), lanes=lanes, partial=word > 0, comment=comment)
            return
        type = "uq" if dst.count == 2 else "ud"
        self.emit("mov", (region(dst, type),), (self.source(src, type),), lanes=lanes, comment=comment)

    def move_to_vector(self, o: Operand) -> Reg:
        if isinstance(o, Reg) and o.bank == "v" and not self.is_uniform(o):
            return o
        dst = self.new("v")
        self.move(dst, o)
        return dst

    def fill(self, dst: Reg, value: Literal) -> None:
        """Set every dword of a tuple to a value, two registers per move: the most that one instruction writes."""
        for at in range(0, dst.count, 2):
            count = min(2, dst.count - at)
            self.emit("mov", (region(dst.words(at, count), "ud"),), (value,), lanes=count * self.lanes)

    def copy(self, dst: Reg, src: Reg) -> None:
        """Copy word by word within a bank."""
        if dst.bank == "f":
            self.emit("mov", (region(dst, "uw"),), (region(src, "uw", 0, 0),))
            return
        lanes = 1 if dst.bank == "s" else self.lanes
        for i in range(dst.count):
            to, at = dst.words(i, 1), src.words(i, 1)
            self.emit("mov", (region(to, "ud"),), (self.source(at, "ud"),), lanes=lanes)
