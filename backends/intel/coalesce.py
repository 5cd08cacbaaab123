"""Scalars that are only moved into a payload are computed there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from convgen.backends.intel.isa import TYPE_BYTES, Region, Select, XeInstruction, region
from convgen.backends.machine.instruction import Function, Instruction, Unit, VirtualRegister

_Place = tuple[VirtualRegister, int | None]  #: a dword of a register, or all of it


def coalesce(function: Function) -> Function:
    """The function without moves of scalars that arithmetic of their block could have written where they go."""
    instructions = list(function.instructions())
    written = Counter(r.vreg for i in instructions for r in i.defs())
    read = Counter(r.vreg for i in instructions for r in i.uses())
    temporaries = {v for v in written if v.bank == "s" and v.size == 1 and written[v] == read[v] == 1}
    return function.rewritten(lambda _, block: _coalesced(block.instructions, temporaries))


def _coalesced(instructions: Sequence[Instruction], temporaries: set[VirtualRegister]) -> list[Instruction]:
    """The instructions of a block; `temporaries` are written once and read once, anywhere."""
    done: list[Instruction] = []
    made: dict[VirtualRegister, int] = {}  # which of the instructions wrote a temporary
    touched: dict[_Place, int] = {}  # which of them was the last to touch a register
    for i in instructions:
        assert isinstance(i, XeInstruction)
        place = _destination(i)
        if place is not None and isinstance(value := i.src[0], Region) and value.vreg in made:
            at = made[value.vreg]
            if max(touched.get((place.vreg, dword), -1) for dword in (place.sub, None)) < at:
                maker = done[at]
                assert isinstance(maker, XeInstruction) and isinstance(result := maker.dst[0], Region)
                there = region(place, result.type, place.sub)
                done[at] = attrs.evolve(maker, dst=(there,), partial=i.partial)
                touched[place.vreg, place.sub] = at
                continue
        for r in i.touched():
            touched[r.vreg, None] = len(done)
        for r in i.defs():
            touched[r.vreg, place.sub if place else None] = len(done)
        if (v := _result(i)) in temporaries and v is not None:
            made[v] = len(done)
        done.append(i)
    return done


def _destination(i: XeInstruction) -> Region | None:
    """Where an instruction moves a dword of a scalar, if that is all it does."""
    if i.op.name != "mov" or i.op.fence or i.lanes != 1 or i.predicate or i.condition or len(i.dst) != 1:
        return None
    to, value = i.dst[0], i.src[0]
    plain = isinstance(to, Region) and isinstance(value, Region) and not (value.signs or value.sub or to.saturated)
    return to if plain and TYPE_BYTES[to.type] == TYPE_BYTES[value.type] == 4 and value.bank == "s" else None


def _result(i: XeInstruction) -> VirtualRegister | None:
    """The scalar that simple arithmetic of one lane makes, whose result may as well stand elsewhere."""
    simple = i.op.unit is Unit.VALU and not (i.op.port or i.op.reads or i.op.writes or i.early_clobber)
    if not simple or i.lanes != 1 or len(i.dst) != 1 or (i.predicate and not isinstance(i.op, Select)):
        return None
    to = i.dst[0]
    return to.vreg if isinstance(to, Region) and TYPE_BYTES[to.type] == 4 and not to.saturated else None
