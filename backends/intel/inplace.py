"""Build a tuple of another tuple's words inside that tuple, so that some of the words need no move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from convgen.backends.intel.isa import TYPE_BYTES, Region, XeInstruction
from convgen.backends.machine.allocate import Liveness
from convgen.backends.machine.instruction import Function, Instruction, Operand, Reg, VirtualRegister
from convgen.backends.machine.vectors import WORD_BYTES
from convgen.ir.record import evolve, frozen

_Place = tuple[int, int]  #: (register of a tuple, byte within each of its dwords)


@frozen
class _Home:
    """The place where a tuple is built: inside another tuple, beginning at one of its registers."""

    vreg: VirtualRegister
    first: int

    def of(self, r: Reg) -> Reg:
        """Return a view of the tuple as a view of its home."""
        return evolve(r, vreg=self.vreg, first=self.first + r.first)

    def holds(self, built: VirtualRegister) -> bool:
        """Return whether the tuple fits there, and neither has a fixed register."""
        v = self.vreg
        fits = 0 <= self.first <= v.size - built.size
        return fits and v is not built and v.fixed is None and built.fixed is None


def make_in_place(function: Function, lanes: int) -> Function:
    """Return the function without moves of words to where they already are; a register has `lanes` lanes.

    A tuple is moved into another one, or takes one in, at most once.
    """
    finder = _Finder(function, lanes)
    homes: dict[VirtualRegister, _Home] = {}
    merged = set[VirtualRegister]()
    for n, block in enumerate(function.blocks):
        for built, home in finder.homes(n, block.instructions):
            if not merged & {built, home.vreg}:
                homes[built] = home
                merged |= {built, home.vreg}
    if not homes:
        return function
    return function.rewritten(lambda _, block: [new for i in block.instructions for new in _rewritten(i, homes)])


def _rewritten(i: Instruction, homes: Mapping[VirtualRegister, _Home]) -> Iterator[Instruction]:
    """Yield an instruction with tuples in their homes; nothing for a move of words onto themselves."""

    def at(o: Operand) -> Operand:
        return homes[o.vreg].of(o) if isinstance(o, Reg) and o.vreg in homes else o

    assert isinstance(i, XeInstruction)
    dst, src = tuple(map(at, i.dst)), tuple(map(at, i.src))
    if dst == i.dst:
        yield i if src == i.src else evolve(i, src=src)
    elif not _is_same(dst[0], src[0]):
        yield evolve(i, dst=dst, src=src, partial=True)


def _is_same(a: Operand, b: Operand) -> bool:
    """Return whether two operands are identical words."""
    return isinstance(a, Reg) and isinstance(b, Reg) and a.vreg is b.vreg and _bytes(a) == _bytes(b)


def _bytes(r: Reg) -> set[_Place]:
    """Return the places of an operand: some bytes of each dword of a register, or all bytes of all its registers."""
    if isinstance(r, Region) and r.count == 1 and r.stride * TYPE_BYTES[r.type] == WORD_BYTES:
        begin = r.sub * TYPE_BYTES[r.type]
        return {(r.first, byte) for byte in range(begin, begin + TYPE_BYTES[r.type])}
    return {(n, byte) for n in range(r.first, r.first + r.count) for byte in range(WORD_BYTES)}


class _Finder:
    """Finds tuples that can be built inside others."""

    def __init__(self, function: Function, lanes: int) -> None:
        self.function, self.lanes = function, lanes
        instructions = list(function.instructions())
        self.reads = Counter(r.vreg for i in instructions for r in i.touched())
        self.writes = Counter(r.vreg for i in instructions for r in i.defs())

    @cached_property
    def liveness(self) -> Liveness:
        """Return the liveness of the function, computed on first use."""
        return Liveness(self.function)

    def homes(self, n: int, code: Sequence[Instruction]) -> Iterator[tuple[VirtualRegister, _Home]]:
        """Yield the tuples of block `n` that can be built inside others, each with the home where most words stay."""
        for built, moves in self._put_together(code).items():
            readers = [at for at, i in enumerate(code) for r in i.touched() if r.vreg is built]
            if len(moves) != self.writes[built] or len(readers) != self.reads[built]:
                continue  # other blocks read or write it
            staying = Counter(home for at in moves if (home := _home_of(code[at])) and home.holds(built))
            for home, _ in staying.most_common():
                if readers and self._is_free(home, built, moves[0], readers[-1], n, code):
                    yield built, home
                    break

    def _put_together(self, code: Sequence[Instruction]) -> Mapping[VirtualRegister, list[int]]:
        """Return the tuples that only moves of words write, with the indices of these moves."""
        moves: dict[VirtualRegister, list[int]] = {}
        others = set[VirtualRegister]()
        for at, i in enumerate(code):
            for r in i.defs():
                if self._moves_words(i):
                    moves.setdefault(r.vreg, []).append(at)
                else:
                    others.add(r.vreg)
        return {built: at for built, at in moves.items() if built not in others}

    def _moves_words(self, i: Instruction) -> bool:
        """Return whether an instruction only moves words of one register to another, in all lanes."""
        assert isinstance(i, XeInstruction)
        if not i.moves or i.lanes != self.lanes:
            return False
        to, of = i.dst[0], i.src[0]
        if not isinstance(to, Region) or not isinstance(of, Region) or to.type != of.type or to.saturated or of.signs:
            return False
        apart = WORD_BYTES // TYPE_BYTES[to.type]
        return to.bank == of.bank == "v" and to.count == of.count == 1 and to.stride == of.stride == apart

    def _is_free(
        self, home: _Home, built: VirtualRegister, first: int, last: int, n: int, code: Sequence[Instruction]
    ) -> bool:
        """Return whether no value of the home is needed where the tuple overwrites it, up to its last reader."""
        written, needed = set[_Place](), first
        for at in range(first, last + 1):
            i = code[at]
            read = set[_Place]().union(*(_bytes(r) for r in i.touched() if r.vreg is home.vreg))
            if read & written or any(r.vreg is home.vreg for r in i.defs()):
                return False
            if read:
                needed = at
            for r in i.defs():
                if r.vreg is built and _home_of(i) != home:
                    written |= _bytes(home.of(r))
        # each instruction has two positions in `Liveness`: it reads at 2 * at, and its results are live from 2 * at + 1
        begin, end = (self.liveness.starts[n] + 2 * at + 1 for at in (needed, last))
        return not self.liveness.ranges()[home.vreg] >> begin & (1 << end - begin) - 1


def _home_of(i: Instruction) -> _Home | None:
    """Return the home in which a move of words has nothing to do; None if it moves to another byte."""
    to, of = i.dst[0], i.src[0]
    assert isinstance(to, Region)
    assert isinstance(of, Region)
    return _Home(of.vreg, of.first - to.first) if to.sub == of.sub else None
