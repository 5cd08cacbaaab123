"""Drop fences that have nothing to publish: no store to local memory is pending on any path."""

from __future__ import annotations

from convgen.backends.dataflow import solve
from convgen.backends.intel.isa import OPCODES, Message
from convgen.backends.machine import Function, Instruction, Unit


def drop_fences(function: Function) -> None:
    """Remove each fence, and the read that waits for it, ahead of which every path has fenced its stores."""
    pending = solve(function, False, lambda index, stores: _through(function, index, stores), lambda a, b: a or b)
    for index, block in enumerate(function.blocks):
        stores = pending.get(index, False)
        kept: list[Instruction] = []
        dropped: list[object] = []
        for i in block.instructions:
            if i.op is OPCODES["fence"] and not stores:
                dropped += [r.vreg for r in i.defs()]
            elif not any(r.vreg in dropped for r in i.uses()):
                kept.append(i)
            stores = _after(i, stores)
        block.instructions = kept


def _through(function: Function, index: int, stores: bool) -> bool:
    for i in function.blocks[index].instructions:
        stores = _after(i, stores)
    return stores


def _after(i: Instruction, stores: bool) -> bool:
    """Whether a store is pending behind an instruction."""
    if i.op is OPCODES["fence"]:
        return False
    return stores or (isinstance(i.op, Message) and i.op.stores and i.op.unit is Unit.SHARED)
