"""What is only moved into a part of a tuple is computed where it goes.

Selection makes values in registers of their own and puts tuples together of them. Where all that write such a register
stand in one block with the move, and nobody looks at its place in between, they may as well write to that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import ClassVar

from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Reg, VirtualRegister

#: Where a move goes, and what it moves.
Move = tuple[Reg, Reg]


class Coalescing(ABC):
    """Takes from a function the moves out of single registers of some banks that are found to be in vain."""

    banks: ClassVar[str]  #: their letters

    def __call__(self, function: Function) -> Function:
        moves = {i: move for i in function.instructions() if (move := self._moved(i)) and self._is_single(move)}
        if not moves:
            return function
        values = {value.vreg for _, value in moves.values()}
        read = Counter(r.vreg for i in function.instructions() for r in i.touched() if r.vreg in values)
        written = Counter(r.vreg for i in function.instructions() for r in i.defs() if r.vreg in values)
        self.writers: Mapping[VirtualRegister, int] = {v: n for v, n in written.items() if read[v] == 1}
        self.moves = {i: move for i, move in moves.items() if move[1].vreg in self.writers}
        self.places = {place.vreg for place, _ in self.moves.values()}
        return function.rewritten(self._body)

    def _is_single(self, move: Move) -> bool:
        value = move[1].vreg
        return value.bank in self.banks and value.size == 1

    def _body(self, _: int, block: BasicBlock) -> list[Instruction]:
        if self.moves.keys().isdisjoint(block.instructions):
            return block.instructions
        self.done: list[Instruction] = []
        self.makers: dict[VirtualRegister, list[int]] = {}  # which of them wrote such a register
        self.touched: dict[Hashable, int] = {}  # which of them was the last to read or write a part
        for i in block.instructions:
            self._take(i)
        return self.done

    def _take(self, i: Instruction) -> None:
        """An instruction more, or another destination for those that made what it only moves."""
        if (move := self.moves.get(i)) is not None:
            place, value = move
            makers = self.makers.get(value.vreg, [])
            if len(makers) == self.writers[value.vreg] and self._last(place, i) < makers[0]:
                for n in makers:
                    self.done[n] = self._written_to(self.done[n], place, i)
                self._touch(place, makers[-1], i)
                return
        here = len(self.done)
        for r in i.touched():
            self._touch(r, here)
        for r in i.defs():
            self._touch(r, here, i)
        if (result := self._result(i)) is not None and result in self.writers:
            self.makers.setdefault(result, []).append(here)
        self.done.append(i)

    def _touch(self, r: Reg, at: int, writer: Instruction | None = None) -> None:
        """Note who looks at an operand, if that is where a move goes."""
        if r.vreg in self.places:
            self.touched.update(dict.fromkeys(self._parts(r, writer), at))

    def _last(self, place: Reg, move: Instruction) -> int:
        """Which instruction was the last to look at where a move goes."""
        return max(self.touched.get(part, -1) for part in self._around(place, move))

    @abstractmethod
    def _moved(self, i: Instruction) -> Move | None:
        """What an instruction moves as it is to where, if that is all it does."""

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
