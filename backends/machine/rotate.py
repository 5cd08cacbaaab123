"""Loops of matrix instructions turned so that they end with the scalars that their first loads need.

A scheduler orders one turn of a loop. Such scalars stand at its beginning then, where nothing else can go on yet, while
slots beside the last products are empty. Worked out at the end of the turn before, and once ahead of the loop, they
fill these. What the last turn works out is for nobody. Vector registers would be held the longer: what is worked out in
them stays.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Unit, VirtualRegister
from convgen.backends.machine.schedule import multiplies, terminators
from convgen.ir.record import evolve

_Names = frozenset[VirtualRegister | str]  #: registers and flags


def rotate(function: Function) -> Function:
    """The function with its loops turned that are one block and have matrix instructions."""
    blocks = list(function.blocks)
    for n, block in enumerate(blocks):
        if n and n in function.successors(n) and function.successors(n - 1) == [n] and multiplies(block):
            others = [other for m, other in enumerate(function.blocks) if m != n]
            first = _first(block.instructions, others)
            if first:
                ahead, again = blocks[n - 1], [evolve(i) for i in first]
                blocks[n - 1] = BasicBlock(ahead.label, ahead.instructions + again, ahead.comment)
                blocks[n] = BasicBlock(block.label, _turned(block.instructions, first), block.comment)
    return Function(function.name, blocks)


def _turned(body: Sequence[Instruction], first: Sequence[Instruction]) -> list[Instruction]:
    """The body with these behind all else but the branch, and what sets its condition."""
    moved = set(first)
    rest = [i for i in body if i not in moved]
    flags = rest[-1].flag_uses()
    begin = next(n for n in reversed(range(len(rest) - 1)) if not set(flags).isdisjoint(rest[n].flag_defs()))
    return [*rest[:begin], *first, *rest[begin:]]


def _first(body: list[Instruction], others: Collection[BasicBlock]) -> list[Instruction]:
    """What the loads ahead of the first barrier need of a turn, without what anything else changes before it."""
    straight = body[: len(body) - len(terminators(body))]
    upto = next((n for n, i in enumerate(straight) if i.op.barrier), 0)
    wanted = _feeding(straight[:upto])
    outside = {r.vreg for block in others for i in block.instructions for r in i.uses()} if wanted else set()
    while True:
        found = _movable(straight, wanted, outside)
        if len(found) == len(wanted):
            return found
        wanted = set(found)


def _feeding(body: Sequence[Instruction]) -> set[Instruction]:
    """What scalar units compute for loads from global memory, whoever else needs it."""
    needed, found = set[VirtualRegister | str](), set[Instruction]()
    for i in reversed(body):
        if i.loads:
            needed |= _read(i)
        elif i.op.unit is Unit.SALU and not needed.isdisjoint(_written(i)):
            found.add(i)
            needed = needed.difference(i.flag_defs()) | _read(i)
    return found


def _movable(
    body: Sequence[Instruction], wanted: Collection[Instruction], outside: Collection[VirtualRegister]
) -> list[Instruction]:
    """Those that read nothing which others write before them, and write what no others use before them, or outside.

    A flag and all who read it go together.
    """
    found: list[Instruction] = []
    read, written = set(outside), set[VirtualRegister]()  # by those that stay
    setter: dict[str, Instruction] = {}  # who set a flag last
    bound = set[Instruction]()  # those whose flags are read by some that stay
    for i in body:
        reads, writes = ({r.vreg for r in registers} for registers in (i.uses(), i.defs()))
        flags = {setter.get(flag) for flag in i.flag_uses()}
        if None in flags:  # set ahead of the loop, or at its end
            return []
        if i in wanted and reads.isdisjoint(written) and writes.isdisjoint(read | written) and flags <= {*found}:
            found.append(i)
        else:
            bound |= {s for s in flags if s}
            read |= reads
            written |= writes
        setter |= dict.fromkeys(i.flag_defs(), i)
    return [i for i in found if i not in bound]


def _read(i: Instruction) -> _Names:
    return frozenset((*(r.vreg for r in i.uses()), *i.flag_uses()))


def _written(i: Instruction) -> _Names:
    return frozenset((*(r.vreg for r in i.defs()), *i.flag_defs()))
