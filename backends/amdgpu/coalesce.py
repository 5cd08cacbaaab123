"""Compute a value in its destination, if it is only moved into part of a tuple."""

from __future__ import annotations

from convgen.backends.machine.coalesce import Coalescing, Move
from convgen.backends.machine.instruction import Function, Instruction, Reg, Unit, VirtualRegister
from convgen.ir.record import evolve


def coalesce(function: Function) -> Function:
    """Return the function without moves of values that arithmetic in their block can write to the destination."""
    return _Words()(function)


class _Words(Coalescing):
    banks = "v"

    def _moved(self, i: Instruction) -> Move | None:
        if i.op.name != "v_mov_b32":
            return None
        (to,), (value,) = i.dst, i.src
        return (to, value) if isinstance(to, Reg) and isinstance(value, Reg) else None

    def _result(self, i: Instruction) -> VirtualRegister | None:
        results = i.defs() if i.op.unit is Unit.VALU else ()
        return results[0].vreg if len(results) == len(i.dst) == 1 else None

    def _written_to(self, maker: Instruction, place: Reg, move: Instruction) -> Instruction:
        return evolve(maker, dst=(place,))
