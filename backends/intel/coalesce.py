"""Compute values in the place that a move brings them to: scalars in a payload, registers in a tuple."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from convgen.backends.intel.isa import TYPE_BYTES, Region, Select, XeInstruction, region
from convgen.backends.machine.coalesce import Coalescing, Move
from convgen.backends.machine.instruction import Function, Instruction, Reg, Unit, VirtualRegister
from convgen.ir.record import evolve

_BITS = {"d", "ud"}  #: dword types between which a move converts nothing
_ANY = -1  #: stands for any single dword of a register


def coalesce(function: Function, lanes: int) -> Function:
    """Return the function without moves of values that arithmetic in their block can write to the destination.

    A register has `lanes` dwords.
    """
    return _Regions(lanes)(function)


class _Regions(Coalescing):
    """Parts that are tracked: a tuple, a register of it, a dword of that; `_ANY` stands for any dword touched alone."""

    banks = "sv"

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes

    def _moved(self, i: Instruction) -> Move | None:
        """Return (destination, source) of a plain move of whole dwords or registers; None for other instructions."""
        assert isinstance(i, XeInstruction)
        if not i.moves or len(i.dst) != 1:
            return None
        to, value = i.dst[0], i.src[0]
        if not isinstance(to, Region) or not isinstance(value, Region):
            return None
        plain = not (value.signs or value.sub or to.saturated) and {to.type, value.type} <= _BITS
        if value.bank == "s":
            return (to, value) if plain and i.lanes == 1 else None
        whole = to.bank == "v" and to.count == 1 and to.sub == 0 and to.stride == value.stride == 1
        return (to, value) if plain and whole and i.lanes == self.lanes else None

    def _result(self, i: Instruction) -> VirtualRegister | None:
        assert isinstance(i, XeInstruction)
        simple = i.op.unit is Unit.VALU and not (i.op.port or i.op.reads or i.op.writes or i.early_clobber)
        if not simple or len(i.dst) != 1 or (i.predicate and not isinstance(i.op, Select)):
            return None
        to = i.dst[0]
        if not isinstance(to, Region):
            return None
        scalar = i.lanes == 1 and _is_dword(to) and not to.saturated
        return to.vreg if scalar or to.bank == "v" else None

    def _written_to(self, maker: Instruction, place: Reg, move: Instruction) -> Instruction:
        """Return a writer with its result at `place`; for a scalar, the move says whether other dwords are kept."""
        (result,) = maker.dst
        assert isinstance(result, Region)
        assert isinstance(place, Region)
        assert isinstance(maker, XeInstruction)
        assert isinstance(move, XeInstruction)
        if result.bank == "s":
            return evolve(maker, dst=(region(place, result.type, place.sub),), partial=move.partial)
        return evolve(maker, dst=(region(place, result.type, result.sub, result.stride, saturated=result.saturated),))

    def _parts(self, r: Reg, writer: Instruction | None = None) -> Iterable[Hashable]:
        if r.count > 1:
            return [(r.vreg,)]
        if (dword := _dword(r, writer)) is None:
            return [(r.vreg, r.first)]
        return [(r.vreg, r.first, dword), (r.vreg, r.first, _ANY)]

    def _must_be_untouched(self, place: Reg, move: Instruction) -> Iterable[Hashable]:
        dword = _dword(place, move)
        return (place.vreg,), (place.vreg, place.first), (place.vreg, place.first, _ANY if dword is None else dword)


def _dword(r: Reg, writer: Instruction | None) -> int | None:
    """Return the dword of a register that an instruction writes alone; None if it writes another part."""
    alone = isinstance(writer, XeInstruction) and writer.lanes == 1
    return r.sub if alone and isinstance(r, Region) and _is_dword(r) else None


def _is_dword(r: Region) -> bool:
    return TYPE_BYTES[r.type] == 4
