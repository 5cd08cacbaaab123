"""Physical registers: what an instruction reads and writes once registers are placed, and how operands are written."""

from __future__ import annotations

from typing import NamedTuple

from convgen.backends.machine.allocate import Allocation
from convgen.backends.machine.instruction import Flag, Imm, Instruction, Operand, Reg


class Word(NamedTuple):
    """One 32-bit register."""

    bank: str
    number: int


Words = tuple[Word, ...]


class Physical:
    """The view of instructions through an allocation. Instructions must not change once they were asked about."""

    def __init__(self, allocation: Allocation) -> None:
        self.base = allocation.base
        self._read: dict[Instruction, Words] = {}
        self._written: dict[Instruction, Words] = {}

    def words(self, r: Reg) -> Words:
        """The registers of an operand, lowest first."""
        first = self.base[r.vreg] + r.first
        bank = r.vreg.bank
        return tuple([Word(bank, n) for n in range(first, first + r.count)])

    def operand(self, o: Operand) -> Words:
        """The registers of an operand that may be an immediate, which has none."""
        return self.words(o) if isinstance(o, Reg) else ()

    def read(self, i: Instruction) -> Words:
        """The registers of all source operands."""
        known = self._read.get(i)
        if known is None:
            known = self._read[i] = tuple([w for r in i.uses() for w in self.words(r)])
        return known

    def written(self, i: Instruction) -> Words:
        """The registers of all results."""
        known = self._written.get(i)
        if known is None:
            known = self._written[i] = tuple([w for r in i.defs() for w in self.words(r)])
        return known

    def text(self, o: Operand) -> str:
        """An operand as the assembler reads it."""
        if isinstance(o, Imm):
            return str(o.value) if -64 <= o.value <= 0xFFFF else f"{o.value & 0xFFFFFFFF:#x}"
        if isinstance(o, Flag):
            return o.name
        assert isinstance(o, Reg)
        first = self.base[o.vreg] + o.first
        return f"{o.bank}{first}" if o.count == 1 else f"{o.bank}[{first}:{first + o.count - 1}]"
