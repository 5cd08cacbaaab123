"""Physical registers: what an instruction reads and writes once registers are placed, and how operands are written."""

from __future__ import annotations

from typing import NamedTuple

from convgen.backends.allocate import Allocation
from convgen.backends.machine import Flag, Imm, Instruction, Operand, Reg


class Word(NamedTuple):
    """One 32-bit register."""

    bank: str
    number: int


class Physical:
    """The view of instructions through an allocation."""

    def __init__(self, allocation: Allocation) -> None:
        self.base = allocation.base
        self._touched: dict[int, frozenset[Word]] = {}

    def words(self, r: Reg) -> tuple[Word, ...]:
        """The registers of an operand, lowest first."""
        first = self.base[r.vreg] + r.first
        return tuple(Word(r.bank, n) for n in range(first, first + r.count))

    def read(self, i: Instruction) -> tuple[Word, ...]:
        return tuple(w for r in i.uses() for w in self.words(r))

    def written(self, i: Instruction) -> tuple[Word, ...]:
        return tuple(w for r in i.defs() for w in self.words(r))

    def touched(self, i: Instruction) -> frozenset[Word]:
        """All registers an instruction reads or writes."""
        known = self._touched.get(id(i))
        if known is None:
            known = self._touched[id(i)] = frozenset((*self.read(i), *self.written(i)))
        return known

    def text(self, o: Operand) -> str:
        """An operand as the assembler reads it."""
        if isinstance(o, Imm):
            return str(o.value) if -64 <= o.value <= 0xFFFF else f"{o.value & 0xFFFFFFFF:#x}"
        if isinstance(o, Flag):
            return o.name
        first = self.base[o.vreg] + o.first
        return f"{o.bank}{first}" if o.count == 1 else f"{o.bank}[{first}:{first + o.count - 1}]"
