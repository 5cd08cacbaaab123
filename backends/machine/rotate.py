"""Rotate loops of matrix instructions: the scalars that their first loads need are computed at the end of the loop.

The scheduler orders one iteration. Those scalars stand at its beginning, where nothing else can issue yet, while slots
beside the last products are empty. Computed at the end of the previous iteration, and once ahead of the loop, they fill
these slots. The last iteration's results are unused. Vector registers would be live longer, so vector arithmetic stays.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from convgen.backends.machine.instruction import BasicBlock, Function, Instruction, Unit, VirtualRegister
from convgen.backends.machine.schedule import multiplies, terminators
from convgen.ir.record import evolve

_Names = frozenset[VirtualRegister | str]  #: registers and flags


def rotate(function: Function) -> Function:
    """Return the function with single-block loops of matrix instructions rotated."""
    blocks = list(function.blocks)
    for n, block in enumerate(blocks):
        if n and n in function.successors(n) and function.successors(n - 1) == [n] and multiplies(block):
            others = [other for m, other in enumerate(function.blocks) if m != n]
            first = _movable_scalars(block.instructions, others)
            if first:
                ahead, again = blocks[n - 1], [evolve(i) for i in first]
                blocks[n - 1] = BasicBlock(ahead.label, ahead.instructions + again, ahead.comment)
                blocks[n] = BasicBlock(block.label, _rotated(block.instructions, first), block.comment)
    return Function(function.name, blocks)


def _rotated(body: Sequence[Instruction], first: Sequence[Instruction]) -> list[Instruction]:
    """Return the body with `first` moved to its end, before the branch and the instruction that sets its condition."""
    moved = set(first)
    rest = [i for i in body if i not in moved]
    flags = rest[-1].flag_uses()
    begin = next(n for n in reversed(range(len(rest) - 1)) if not set(flags).isdisjoint(rest[n].flag_defs()))
    return [*rest[:begin], *first, *rest[begin:]]


def _movable_scalars(body: list[Instruction], others: Collection[BasicBlock]) -> list[Instruction]:
    """Return the scalar instructions for loads before the first barrier that can move to the end of the body."""
    straight = body[: len(body) - len(terminators(body))]
    upto = next((n for n, i in enumerate(straight) if i.op.barrier), 0)
    wanted = _feeding_loads(straight[:upto])
    outside = {r.vreg for block in others for i in block.instructions for r in i.uses()} if wanted else set()
    while True:
        movable = _movable(straight, wanted, outside)
        if len(movable) == len(wanted):
            return movable
        wanted = set(movable)


def _feeding_loads(body: Sequence[Instruction]) -> set[Instruction]:
    """Return the scalar instructions that loads from global memory depend on."""
    needed, feeding = set[VirtualRegister | str](), set[Instruction]()
    for i in reversed(body):
        if i.loads:
            needed |= _read(i)
        elif i.op.unit is Unit.SALU and not needed.isdisjoint((*(r.vreg for r in i.defs()), *i.flag_defs())):
            feeding.add(i)
            needed = needed.difference(i.flag_defs()) | _read(i)
    return feeding


def _movable(
    body: Sequence[Instruction], wanted: Collection[Instruction], outside: Collection[VirtualRegister]
) -> list[Instruction]:
    """Return the `wanted` instructions that can move to the end of the body.

    A staying instruction before one must not write its sources or touch its results, and nothing `outside` the loop may
    read these. A flag's setter and all its readers move together.
    """
    movable: list[Instruction] = []
    read, written = set(outside), set[VirtualRegister]()  # by instructions that stay
    setter: dict[str, Instruction] = {}  # last setter of a flag
    bound = set[Instruction]()  # setters of flags that staying instructions read
    for i in body:
        reads, writes = ({r.vreg for r in registers} for registers in (i.uses(), i.defs()))
        flags = {setter.get(flag) for flag in i.flag_uses()}
        if None in flags:  # set ahead of the loop, or at its end
            return []
        if i in wanted and reads.isdisjoint(written) and writes.isdisjoint(read | written) and flags <= {*movable}:
            movable.append(i)
        else:
            bound |= {s for s in flags if s}
            read |= reads
            written |= writes
        setter |= dict.fromkeys(i.flag_defs(), i)
    return [i for i in movable if i not in bound]


def _read(i: Instruction) -> _Names:
    return frozenset((*(r.vreg for r in i.uses()), *i.flag_uses()))
