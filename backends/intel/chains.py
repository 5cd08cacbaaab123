"""Chains of matrix instructions, which the engine executes back to back: all but the last are {Atomic}.

Members of a chain read one factor from common registers, which are read once; none depends on another. The first waits
for all of them, and the last one's token says that all are done (IGA, RegDeps: `DpasMacroBuilder`). The leader of a
chain may read another factor than the others (`XeInstruction.leads`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convgen.backends.intel.isa import Null, Region, XeInstruction, as_register
from convgen.backends.intel.physical import Cells, Physical
from convgen.backends.machine.instruction import Instruction, Unit

#: Instructions of a chain, at most (assumed): the first waits for the operands of all.
_MOST = 8


def chains(
    instructions: Sequence[Instruction], physical: Physical, shared: frozenset[int]
) -> Iterator[tuple[XeInstruction, ...]]:
    """Yield the chains among a block's matrix instructions, in order; one instruction alone is a chain, too.

    `shared` are the numbers of the sources of which one must be common to a chain.
    """
    runs = [_Chain(physical, shared)]
    for i in instructions:
        assert isinstance(i, XeInstruction)
        is_matrix = i.op.unit is Unit.MATRIX
        if not is_matrix or i.leads or not runs[-1].takes(i):
            runs.append(_Chain(physical, shared))
        if is_matrix:
            runs[-1].add(i)
    return (tuple(chain.members) for chain in runs if chain.members)


class _Chain:
    """The members so far, the sources that they have in common, and the cells that they read and write."""

    def __init__(self, physical: Physical, shared: frozenset[int]) -> None:
        self.physical = physical
        self.members: list[XeInstruction] = []
        self.common = shared
        self.read: Cells = 0
        self.written: Cells = 0

    def takes(self, i: XeInstruction) -> bool:
        """Return whether an instruction may be the next member."""
        if (
            not self.members
            or len(self._without_leader) == _MOST
            or not self._common_with(i)
            or not same_operation(i, self.members[-1])
        ):
            return False
        written = self.physical.written(i)
        return not (self.written | self.read) & written and not self.written & self.physical.read(i)

    def add(self, i: XeInstruction) -> None:
        """Append a member."""
        self.common = self._common_with(i)
        self.members.append(i)
        self.read |= self.physical.read(i)
        self.written |= self.physical.written(i)

    @property
    def _without_leader(self) -> Sequence[XeInstruction]:
        return self.members[1:] if self.members[0].leads else self.members

    def _common_with(self, i: XeInstruction) -> frozenset[int]:
        """Return the sources that an instruction has in common with the members, except a leader."""
        if not self.members or not self._without_leader:
            return self.common
        return frozenset(n for n in self.common if as_register(i.src[n]).same(self.members[-1].src[n]))


def same_operation(i: XeInstruction, other: XeInstruction) -> bool:
    """Return whether two matrix instructions are one operation on equal types."""
    return i.op is other.op and _types(i) == _types(other)


def _types(i: XeInstruction) -> list[str]:
    return [operand.type for operand in (*i.dst, *i.src) if isinstance(operand, (Region, Null))]
