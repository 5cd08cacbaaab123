"""Compute a value in its destination, if it is only moved into part of a tuple.

Selection computes values in their own registers and assembles tuples from them. If the move and all writers of the
register are in one block, and nothing touches the destination in between, they write to the destination instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import ClassVar

from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Reg, VirtualRegister

#: Destination and source of a move.
Move = tuple[Reg, Reg]


class Coalescing(ABC):
    """Removes unneeded moves out of single registers of some banks from a function."""

    banks: ClassVar[str]  #: letters of the banks

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
        self.makers: dict[VirtualRegister, list[int]] = {}  # register -> indices in `done` of its writers
        # part of a register -> index in `done` of the last instruction that touched it
        self.touched: dict[Hashable, int] = {}
        for i in block.instructions:
            self._take(i)
        return self.done

    def _take(self, i: Instruction) -> None:
        """Append an instruction, or drop a move and redirect its writers."""
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
        """Record an access to an operand, if it is the destination of a move."""
        if r.vreg in self.places:
            self.touched.update(dict.fromkeys(self._parts(r, writer), at))

    def _last(self, place: Reg, move: Instruction) -> int:
        """Return the index of the last instruction that touched the destination of a move, or -1."""
        return max(self.touched.get(part, -1) for part in self._must_be_untouched(place, move))

    @abstractmethod
    def _moved(self, i: Instruction) -> Move | None:
        """Return the destination and source of an instruction that is a plain move, else None."""

    @abstractmethod
    def _result(self, i: Instruction) -> VirtualRegister | None:
        """Return the register that an instruction writes, if its result may go elsewhere."""

    @abstractmethod
    def _written_to(self, maker: Instruction, place: Reg, move: Instruction) -> Instruction:
        """Return a writer of the moved value with its result at `place`."""

    def _parts(self, r: Reg, writer: Instruction | None = None) -> Iterable[Hashable]:
        """Return the parts of registers that a reader of an operand touches, or its `writer`."""
        return [(r.vreg, word) for word in range(r.first, r.first + r.count)]

    def _must_be_untouched(self, place: Reg, move: Instruction) -> Iterable[Hashable]:
        """Return the parts that nothing may have touched if a move is to be dropped."""
        return self._parts(place, move)
