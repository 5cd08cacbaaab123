"""Xe instructions executed byte by byte on virtual registers: moves move bytes, others make a function of theirs.

Two functions mean the same on a path if their messages get the same bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import attrs

from convgen.backends.intel.isa import FLOATS, TYPE_BYTES, Message, Region, XeInstruction
from convgen.backends.machine.instruction import Function, Operand, Reg, VirtualRegister

_DWORD = 4

Byte = int | None  #: a term by its number; None for what is not defined
_Cell = tuple[VirtualRegister, int]  #: a register tuple and a byte of it


@attrs.define
class Machine:
    """What the bytes of registers of so many lanes hold, and what each message got."""

    lanes: int
    terms: dict[Hashable, int]  #: by which equal terms have equal numbers
    bytes: dict[_Cell, Byte] = attrs.Factory(dict)
    sent: list[tuple[str, list[Byte]]] = attrs.Factory(list)

    def step(self, i: XeInstruction) -> None:
        if isinstance(i.op, Message):
            read = [byte for o in i.src for byte in self._get(self._whole(o))]
            self.sent.append((i.op.name, read))
            for o in i.dst:
                to = self._whole(o)
                self._put(to, [self._term("brought", len(self.sent), n) for n, _ in enumerate(to)])
            return
        given = [[self._value(o, lane) for o in i.src] for lane in range(i.lanes)]
        for o in i.dst:
            if not isinstance(o, Region):
                continue
            places = [self._element(o, lane) for lane in range(i.lanes)]
            kept = [self._get(element) for element in places]
            if not i.partial:
                self._put(self._whole(o), [None] * len(self._whole(o)))
            for element, old, values in zip(places, kept, given):
                self._put(element, self._made(i, o, old, values))

    def _made(self, i: XeInstruction, to: Region, old: list[Byte], values: list[list[Byte]]) -> Iterable[Byte]:
        """The bytes of one lane's result."""
        of = i.src[0]
        if i.moves and isinstance(of, Region) and _same_bits(of.type, to.type) and not of.signs and not to.saturated:
            return values[0]
        read = tuple(byte for value in values for byte in value)
        if i.predicate is not None:
            read = (*read, *self._get(self._whole(i.predicate)), *old)
        if None in read:
            return [None] * len(old)
        return [self._term(i.op.name, i.condition, to.type, to.saturated, read, n) for n, _ in enumerate(old)]

    def _value(self, o: Operand, lane: int) -> list[Byte]:
        """What a source has of a lane, with its modifiers."""
        if not isinstance(o, Region):
            return [self._term(str(o))]
        return [*self._get(self._element(o, lane)), *([self._term(o.signs)] if o.signs else [])]

    def _term(self, *parts: Hashable) -> int:
        return self.terms.setdefault(parts, len(self.terms))

    def _get(self, cells: Sequence[_Cell]) -> list[Byte]:
        return [self.bytes.get(c) for c in cells]

    def _put(self, cells: Sequence[_Cell], values: Iterable[Byte]) -> None:
        self.bytes.update(zip(cells, values))

    def _size(self, r: Reg) -> int:
        """Bytes of a register."""
        return _DWORD * (self.lanes if r.bank == "v" else 1)

    def _whole(self, o: Operand) -> list[_Cell]:
        assert isinstance(o, Reg)
        size = self._size(o)
        return [(o.vreg, n) for n in range(size * o.first, size * (o.first + o.count))]

    def _element(self, o: Region, lane: int) -> list[_Cell]:
        size = TYPE_BYTES[o.type]
        begin = self._size(o) * o.first + (o.sub + lane * o.stride) * size
        return [(o.vreg, n) for n in range(begin, begin + size)]


def _same_bits(a: str, b: str) -> bool:
    """Whether a move from one type to another converts nothing."""
    return a == b or (TYPE_BYTES[a] == TYPE_BYTES[b] and not FLOATS & {a, b})


def _machine(function: Function, path: Sequence[int], lanes: int, terms: dict[Hashable, int]) -> Machine:
    """What a run through blocks in that order leaves."""
    machine = Machine(lanes, terms)
    for i in (i for n in path for i in function.blocks[n].instructions):
        assert isinstance(i, XeInstruction)
        machine.step(i)
    return machine


def is_defined(function: Function, path: Sequence[int], lanes: int) -> bool:
    """Whether messages on a path through the blocks get what has been written, as all verified code does."""
    return all(None not in got for _, got in _machine(function, path, lanes, {}).sent)


def means_the_same(after: Function, before: Function, path: Sequence[int], lanes: int) -> bool:
    """Whether messages on a path through the blocks get what is defined of what they got before."""
    terms: dict[Hashable, int] = {}
    old, new = (_machine(function, path, lanes, terms).sent for function in (before, after))
    same = (a in (None, b) for (_, was), (_, now) in zip(old, new) for a, b in zip(was, now))
    return [name for name, _ in old] == [name for name, _ in new] and all(same)
