"""Physical registers: the sets that an instruction reads and writes after allocation, and the text of operands."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from convgen.backends.machine.allocate import Allocation
from convgen.backends.machine.instruction import Flag, Imm, Instruction, Operand, Reg

#: A set of registers, one bit each: vector registers first, then accumulation and scalar registers.
Words = int

_FIRST = {"v": 0, "a": 256, "s": 512}  #: bit of the first register of each bank
BEHIND_BANKS = 768  #: first bit after those of all banks
SCALARS: Words = (1 << BEHIND_BANKS) - (1 << _FIRST["s"])  #: all scalar registers


class Physical:
    """Instructions seen through an allocation."""

    def __init__(self, allocation: Allocation) -> None:
        self.base = allocation.base
        self._bits = {v: _FIRST[v.bank] + at for v, at in allocation.base.items()}  # register -> bit of its first word
        self._read: dict[Instruction, Words] = {}
        self._written: dict[Instruction, Words] = {}

    def words(self, registers: Iterable[Reg]) -> Words:
        """Return the registers of some operands."""
        bits, words = self._bits, 0
        for r in registers:
            words |= ((1 << r.count) - 1) << bits[r.vreg] + r.first
        return words

    def operand(self, o: Operand) -> Words:
        """Return the registers of an operand; none for an immediate."""
        return self.words((o,)) if isinstance(o, Reg) else 0

    def read(self, i: Instruction) -> Words:
        """Return the registers of all source operands."""
        words = self._read.get(i)
        if words is None:
            words = self._read[i] = self.words(i.uses())
        return words

    def written(self, i: Instruction) -> Words:
        """Return the registers of all results."""
        words = self._written.get(i)
        if words is None:
            words = self._written[i] = self.words(i.defs())
        return words

    def text(self, o: Operand) -> str:
        """Return an operand as the assembler reads it."""
        if isinstance(o, Reg):
            bank, first = o.vreg.bank, self.base[o.vreg] + o.first
            return f"{bank}{first}" if o.count == 1 else f"{bank}[{first}:{first + o.count - 1}]"
        if isinstance(o, Imm):
            return str(o.value) if -64 <= o.value <= 0xFFFF else f"{o.value & 0xFFFFFFFF:#x}"
        assert isinstance(o, Flag)
        return o.name


_OF: WeakKeyDictionary[Allocation, Physical] = WeakKeyDictionary()


def physical_of(allocation: Allocation) -> Physical:
    """Return the view through an allocation, which later stages share."""
    physical = _OF.get(allocation)
    if physical is None:
        physical = _OF[allocation] = Physical(allocation)
    return physical
