"""What is only moved, a scalar into a payload or a register into a part of a tuple, is computed where it goes."""

from __future__ import annotations

from collections import Counter

from convgen.backends.intel.isa import TYPE_BYTES, Region, Select, XeInstruction, region
from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Reg, Unit, VirtualRegister
from convgen.ir.record import evolve

#: A tuple, one of its registers, or a dword of that.
_Part = tuple[VirtualRegister] | tuple[VirtualRegister, int] | tuple[VirtualRegister, int, int]

_BITS = {"d", "ud"}  #: types of dwords between which a move converts nothing


def coalesce(function: Function, lanes: int) -> Function:
    """The function without moves of what arithmetic of their block can write where they go; `lanes` of a register."""
    instructions = list(function.instructions())
    read = Counter(r.vreg for i in instructions if isinstance(i, XeInstruction) for r in i.touched())
    written = Counter(r.vreg for i in instructions for r in i.defs())
    writers = {v: n for v, n in written.items() if v.bank in ("s", "v") and v.size == 1 and read[v] == 1}

    def body(_: int, block: BasicBlock) -> list[Instruction]:
        here = _Block(writers, lanes)
        for i in block.instructions:
            assert isinstance(i, XeInstruction)
            here.take(i)
        return list(here.done)

    return function.rewritten(body)


class _Block:
    """The instructions of a block so far."""

    def __init__(self, writers: dict[VirtualRegister, int], lanes: int) -> None:
        self.writers, self.lanes = writers, lanes  # how many instructions write what one reads
        self.done: list[XeInstruction] = []
        self.makers: dict[VirtualRegister, list[int]] = {}  # which of them wrote such
        self.touched: dict[_Part, int] = {}  # which of them was the last to read or write all of a part
        self.begun: dict[_Part, int] = {}  # which of them was the last to read or write a dword of a register alone

    def take(self, i: XeInstruction) -> None:
        """An instruction more, or another destination for those that made what it only moves."""
        place = self._moved_to(i)
        if place is not None and isinstance(value := i.src[0], Region):
            makers, dword = self.makers.get(value.vreg, []), place.sub if value.bank == "s" else None
            if len(makers) == self.writers[value.vreg] and self._last(place, dword) < makers[0]:
                for n in makers:
                    self.done[n] = _written_to(self.done[n], place, partial=i.partial)
                self._touch(place, makers[-1], dword)
                return
        here = len(self.done)
        for r in i.touched():
            self._touch(r, here)
        for r in i.defs():
            self._touch(r, here, r.sub if isinstance(r, Region) and i.lanes == 1 and _is_dword(r) else None)
        if (result := _result(i)) is not None and result in self.writers:
            self.makers.setdefault(result, []).append(here)
        self.done.append(i)

    def _touch(self, r: Reg, at: int, dword: int | None = None) -> None:
        """Note an access to a tuple, to a register of it, or to a dword of that alone."""
        if r.count > 1:
            self.touched[r.vreg,] = at
        elif dword is None:
            self.touched[r.vreg, r.first] = at
        else:
            self.touched[r.vreg, r.first, dword] = self.begun[r.vreg, r.first] = at

    def _last(self, place: Region, dword: int | None) -> int:
        """Which instruction was the last to access a register, or one of its dwords."""
        v, n, before = place.vreg, place.first, -1
        own = self.begun.get((v, n), before) if dword is None else self.touched.get((v, n, dword), before)
        return max(own, self.touched.get((v, n), before), self.touched.get((v,), before))

    def _moved_to(self, i: XeInstruction) -> Region | None:
        """Where an instruction moves a scalar or a register, if that is all it does."""
        if not i.moves or len(i.dst) != 1:
            return None
        to, value = i.dst[0], i.src[0]
        if not isinstance(to, Region) or not isinstance(value, Region) or value.vreg not in self.writers:
            return None
        plain = not (value.signs or value.sub or to.saturated) and {to.type, value.type} <= _BITS
        if value.bank == "s":
            return to if plain and i.lanes == 1 else None
        whole = to.bank == "v" and to.count == 1 and to.sub == 0 and to.stride == value.stride == 1
        return to if plain and whole and i.lanes == self.lanes else None


def _is_dword(r: Region) -> bool:
    return TYPE_BYTES[r.type] == 4


def _result(i: XeInstruction) -> VirtualRegister | None:
    """What simple arithmetic makes, a scalar or part of a register, that may as well stand elsewhere."""
    simple = i.op.unit is Unit.VALU and not (i.op.port or i.op.reads or i.op.writes or i.early_clobber)
    if not simple or len(i.dst) != 1 or (i.predicate and not isinstance(i.op, Select)):
        return None
    to = i.dst[0]
    if not isinstance(to, Region):
        return None
    scalar = i.lanes == 1 and _is_dword(to) and not to.saturated
    return to.vreg if scalar or to.bank == "v" else None


def _written_to(maker: XeInstruction, place: Region, *, partial: bool) -> XeInstruction:
    """Arithmetic with its result elsewhere; of a scalar `partial` says whether the register's other dwords are kept."""
    (result,) = maker.dst
    assert isinstance(result, Region)
    if result.bank == "s":
        return evolve(maker, dst=(region(place, result.type, place.sub),), partial=partial)
    return evolve(maker, dst=(region(place, result.type, result.sub, result.stride, saturated=result.saturated),))
