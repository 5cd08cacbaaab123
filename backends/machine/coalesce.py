"""What is only moved into a part of a tuple is computed where it goes.

Selection makes values in registers of their own and puts tuples together of them. Where all that write such a register
stand in one block with the move, and nobody looks at its place in between, they may as well write to that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping

from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Reg, VirtualRegister

#: Registers that are moved once, and how many instructions write them.
Writers = Mapping[VirtualRegister, int]


def coalesced(function: Function, banks: str, coalescing: Callable[[Writers], Coalescing]) -> Function:
    """The function without the moves out of single registers of these banks that are found to be in vain."""
    instructions = list(function.instructions())
    read = Counter(r.vreg for i in instructions for r in i.touched())
    written = Counter(r.vreg for i in instructions for r in i.defs())
    writers = {v: n for v, n in written.items() if v.bank in banks and v.size == 1 and read[v] == 1}

    def body(_: int, block: BasicBlock) -> list[Instruction]:
        here = coalescing(writers)
        for i in block.instructions:
            here.take(i)
        return here.done

    return function.rewritten(body)


class Coalescing(ABC):
    """The instructions of a block so far."""

    def __init__(self, writers: Writers) -> None:
        self.writers = writers
        self.done: list[Instruction] = []
        self.makers: dict[VirtualRegister, list[int]] = {}  # which of them wrote such a register
        self.touched: dict[Hashable, int] = {}  # which of them was the last to read or write a part

    def take(self, i: Instruction) -> None:
        """An instruction more, or another destination for those that made what it only moves."""
        if (moved := self._moved(i)) is not None:
            place, value = moved
            makers = self.makers.get(value.vreg, [])
            if len(makers) == self.writers[value.vreg] and self._last(place, i) < makers[0]:
                for n in makers:
                    self.done[n] = self._written_to(self.done[n], place, i)
                self._touch(self._parts(place, i), makers[-1])
                return
        here = len(self.done)
        for r in i.touched():
            self._touch(self._parts(r), here)
        for r in i.defs():
            self._touch(self._parts(r, i), here)
        if (result := self._result(i)) is not None and result in self.writers:
            self.makers.setdefault(result, []).append(here)
        self.done.append(i)

    def _touch(self, parts: Iterable[Hashable], at: int) -> None:
        self.touched.update(dict.fromkeys(parts, at))

    def _last(self, place: Reg, move: Instruction) -> int:
        """Which instruction was the last to look at where a move goes."""
        return max(self.touched.get(part, -1) for part in self._around(place, move))

    @abstractmethod
    def _moved(self, i: Instruction) -> tuple[Reg, Reg] | None:
        """Where an instruction moves one of the registers that are moved once, if that is all it does."""

    @abstractmethod
    def _result(self, i: Instruction) -> VirtualRegister | None:
        """What an instruction makes that may as well stand elsewhere."""

    @abstractmethod
    def _written_to(self, maker: Instruction, place: Reg, move: Instruction) -> Instruction:
        """One of those that made what is moved, with its result where that goes."""

    def _parts(self, r: Reg, writer: Instruction | None = None) -> Iterable[Hashable]:
        """The parts of registers that are touched by whoever reads an operand, or by its `writer`."""
        return [(r.vreg, word) for word in range(r.first, r.first + r.count)]

    def _around(self, place: Reg, move: Instruction) -> Iterable[Hashable]:
        """The parts that nobody may have touched where a move is in vain."""
        return self._parts(place, move)
