"""Scalars that are only moved into a payload are computed there."""

from __future__ import annotations

from collections import Counter

import attrs

from convgen.backends.intel.isa import TYPE_BYTES, Region, Select, XeInstruction, region
from convgen.backends.machine.instruction import Function, Instruction, Unit, VirtualRegister

#: A dword of a register, or all of it.
_Part = tuple[VirtualRegister, int | None]


def coalesce(function: Function) -> Function:
    """The function without moves of scalars that arithmetic of their block can write where they go."""
    instructions = list(function.instructions())
    written = Counter(r.vreg for i in instructions for r in i.defs())
    read = Counter(r.vreg for i in instructions for r in i.uses())
    temporaries = {v for v in written if v.bank == "s" and v.size == 1 and written[v] == read[v] == 1}

    def body(index: int, block: object) -> list[Instruction]:
        here = _Block(temporaries)
        for i in function.blocks[index].instructions:
            assert isinstance(i, XeInstruction)
            here.take(i)
        return list(here.done)

    return function.rewritten(body)


class _Block:
    """The instructions of a block so far. What is written once and read once, anywhere, may be a temporary."""

    def __init__(self, temporaries: set[VirtualRegister]) -> None:
        self.temporaries = temporaries
        self.done: list[XeInstruction] = []
        self.makers: dict[VirtualRegister, int] = {}  # which of them wrote a temporary
        self.touched: dict[_Part, int] = {}  # which of them was the last to read or write a part

    def take(self, i: XeInstruction) -> None:
        """An instruction more, or another destination for the one that made what it only moves."""
        place = _moved_to(i)
        value = i.src[0] if place is not None else None
        if place is not None and isinstance(value, Region) and value.vreg in self.makers:
            at = self.makers[value.vreg]
            if max(self.touched.get((place.vreg, dword), -1) for dword in (place.sub, None)) < at:
                self.done[at] = _written_to(self.done[at], place, partial=i.partial)
                self.touched[place.vreg, place.sub] = at
                return
        here = len(self.done)
        self.touched.update(((r.vreg, None), here) for r in i.touched())
        self.touched.update(((r.vreg, place.sub if place else None), here) for r in i.defs())
        if (result := _result(i)) in self.temporaries and result is not None:
            self.makers[result] = here
        self.done.append(i)


def _moved_to(i: XeInstruction) -> Region | None:
    """Where an instruction moves a dword of a scalar, if that is all it does."""
    if i.op.name != "mov" or i.op.fence or i.lanes != 1 or i.predicate or i.condition or len(i.dst) != 1:
        return None
    to, value = i.dst[0], i.src[0]
    if not isinstance(to, Region) or not isinstance(value, Region) or value.bank != "s":
        return None
    plain = not (value.signs or value.sub or to.saturated)
    return to if plain and TYPE_BYTES[to.type] == TYPE_BYTES[value.type] == 4 else None


def _result(i: XeInstruction) -> VirtualRegister | None:
    """The scalar that simple arithmetic of one lane makes, whose result may as well stand elsewhere."""
    simple = i.op.unit is Unit.VALU and not (i.op.port or i.op.reads or i.op.writes or i.early_clobber)
    if not simple or i.lanes != 1 or len(i.dst) != 1 or (i.predicate and not isinstance(i.op, Select)):
        return None
    to = i.dst[0]
    return to.vreg if isinstance(to, Region) and TYPE_BYTES[to.type] == 4 and not to.saturated else None


def _written_to(maker: XeInstruction, place: Region, *, partial: bool) -> XeInstruction:
    """The arithmetic with its result in another dword; `partial` where the register's others are kept."""
    (result,) = maker.dst
    assert isinstance(result, Region)
    return attrs.evolve(maker, dst=(region(place, result.type, place.sub),), partial=partial)
