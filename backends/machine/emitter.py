"""The emitter of selection, as far as all targets share it: blocks in order, and virtual registers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import reduce
from operator import or_

from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Operand, Reg, VirtualRegister


class Emitter(ABC):
    """Appends to the current block; a family adds its instructions and keeps their operands legal."""

    def __init__(self, name: str) -> None:
        self.function = Function(name)
        self.line = 0  # line of the IR listing, recorded in each instruction
        self.loops = 0  # loops around the current block
        self.begin = 0  # number of entry instructions that set up the machine; constants are loaded after them
        self._count = 0
        self._constants: dict[
            tuple[str, tuple[Operand, ...]], Reg
        ] = {}  # constants of the whole kernel, by bank and value
        self.newest: dict[str, Reg] = {}  # newest tuple of each bank
        self.block = self.start_block("entry")

    def start_block(self, label: str, comment: str = "") -> BasicBlock:
        """Begin a new basic block; code falls through into it."""
        self.block = BasicBlock(label, comment=comment)
        self.function.blocks.append(self.block)
        return self.block

    def finish(self) -> Function:
        """Return the function, after loading the constants of the whole kernel where its code begins."""
        self.block, self.line = BasicBlock("kept"), 0
        for (_, values), dst in self._constants.items():
            for n, value in enumerate(values):
                self.move(dst.words(n, 1), value)
        entry = self.function.blocks[0].instructions
        entry[self.begin : self.begin] = self.block.instructions
        return self.function

    def new(
        self, bank: str, size: int = 1, name: str = "", *, fixed: int | None = None, residue: int | None = None
    ) -> Reg:
        """Return a fresh tuple of `size` words."""
        self._count += 1
        self.newest[bank] = Reg(VirtualRegister(self._count, bank, size, name, fixed, residue), 0, size)
        return self.newest[bank]

    def kernel_constant(self, *values: Operand, bank: str = "s", name: str = "") -> Reg:
        """Return a tuple with these constants, one word each, which keeps them throughout the function."""
        if (bank, values) not in self._constants:
            self._constants[bank, values] = self.new(bank, len(values), name)
        return self._constants[bank, values]

    @abstractmethod
    def move(self, dst: Reg, src: Operand, comment: str = "") -> None:
        """Emit a move of one word."""

    @abstractmethod
    def copy(self, dst: Reg, src: Reg) -> None:
        """Emit a copy of all words of a tuple."""

    @abstractmethod
    def move_to_vector(self, o: Operand) -> Reg:
        """Return the operand in a vector register, without a move if it is in one."""

    @abstractmethod
    def retarget(self, value: Operand, to: Reg) -> bool:
        """Let the last instruction write `to` instead of the fresh `value`; False if that is not its result."""

    def redirect(self, fresh: Reg, to: Reg, since: int) -> bool:
        """Let the block's instructions from index `since` on write `to` instead of the tuple `fresh`.

        Return False if other instructions write part of `fresh`, or if one of these reads a word of `to` after it is
        overwritten.
        """
        written, writers = 0, list[Instruction]()
        for i in self.block.instructions[since:]:
            kept, words = _words(to.vreg, i.uses()), _words(fresh.vreg, i.defs())
            if written & kept or _words(fresh.vreg, i.uses()):
                return False
            if words:
                if len(i.dst) > 1 or type(i.dst[0]) is not Reg or (kept and i.early_clobber):
                    return False
                written |= words << to.first
                writers.append(i)
        if fresh.bank != to.bank or not fresh.whole or written != _words(to.vreg, (to,)):
            return False
        for i in writers:
            (old,) = i.defs()
            i.retarget(to.words(old.first, old.count))
        return True


def _words(v: VirtualRegister, registers: Iterable[Reg]) -> int:
    """Return the words of tuple `v` that some operands view, as bits."""
    return reduce(or_, (((1 << r.count) - 1) << r.first for r in registers if r.vreg is v), 0)
