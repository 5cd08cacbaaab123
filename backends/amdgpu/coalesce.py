"""What is only moved into a part of a tuple is computed there."""

from __future__ import annotations

from convgen.backends.machine.coalesce import Coalescing, coalesced
from convgen.backends.machine.instruction import Function, Instruction, Reg, Unit, VirtualRegister
from convgen.ir.record import evolve


def coalesce(function: Function) -> Function:
    """The function without moves of what arithmetic of their block can write where they go."""
    return coalesced(function, "v", _Words)


class _Words(Coalescing):
    def _moved(self, i: Instruction) -> tuple[Reg, Reg] | None:
        if i.op.name != "v_mov_b32":
            return None
        (to,), (value,) = i.dst, i.src
        if not isinstance(to, Reg) or not isinstance(value, Reg) or value.vreg not in self.writers:
            return None
        return to, value

    def _result(self, i: Instruction) -> VirtualRegister | None:
        results = i.defs() if i.op.unit is Unit.VALU else ()
        return results[0].vreg if len(results) == len(i.dst) == 1 else None

    def _written_to(self, maker: Instruction, place: Reg, move: Instruction) -> Instruction:
        return evolve(maker, dst=(place,))
