"""Results of `analyze` on a code object: plain records, shared by every target.

Costs count issue slots of one subgroup; `Terms` gives the length of a slot and the family's names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs

from convgen.ir.record import frozen

#: Groups of instructions, for pictures: each kind of a family belongs to one of them.
GROUPS = ("matrix", "wait", "shared", "memory", "vector", "scalar")


@frozen(kw_only=True)
class Terms:
    """The words and the clock of a target family."""

    slot_clocks: int  #: clocks; an issue slot
    slot: str  #: an issue slot, in a sentence after the vendor's name
    matrix: str  #: kind of the matrix instructions
    subgroup: str  #: the vendor's word for it
    shared: str  #: the vendor's word for shared memory
    partition: str  #: the vendor's word for a part of a chip with an L2 of its own
    occupancy: str  #: unit of `KernelAnalysis.occupancy`
    issue: str  #: cause of issue slots beyond one for each instruction
    registers: tuple[str, ...]  #: classes of `KernelAnalysis.registers` that hold what lanes compute
    accumulators: tuple[str, ...] = ()  #: classes that hold sums of matrix instructions only
    groups: Mapping[str, str]  #: kind of instructions, or its beginning before "_" -> a group of `GROUPS`

    def group(self, kind: str) -> str:
        """Return the group (one of `GROUPS`) of a kind of instructions; `scalar` for a kind that the family does not
        name.
        """
        return self.groups.get(kind) or self.groups.get(kind.partition("_")[0], "scalar")


@frozen
class Line:
    """One instruction: its offset in the kernel, its kind and the unit that it occupies."""

    offset: int
    text: str
    kind: str  #: in the family's terms
    unit: str  #: unit that it occupies besides issuing: matrix, valu, lds, global or none ("")
    slots: int  #: issue slots that `unit` is busy, or the issue port if there is no unit
    issue: int = 1
    flop: int = 0  #: operations of the whole subgroup
    #: bytes of the whole subgroup by path: lds read, lds write, global load, ...
    bytes: Mapping[str, int] = attrs.Factory(dict)


@frozen
class Stretch:
    """Code that runs as a piece: a loop body, or straight-line code."""

    lines: tuple[Line, ...]
    is_loop: bool

    @property
    def mix(self) -> dict[str, int]:
        """Return the number of instructions by kind, most frequent first."""
        return dict(Counter(line.kind for line in self.lines).most_common())

    @property
    def flop(self) -> int:
        """Return the floating-point operations of the matrix instructions."""
        return sum(line.flop for line in self.lines)

    @property
    def bytes(self) -> dict[str, int]:
        """Return the bytes moved by path."""
        total: Counter[str] = Counter()
        for line in self.lines:
            total.update(line.bytes)
        return dict(total)

    @property
    def slots(self) -> dict[str, int]:
        """Return the issue slots that each unit is busy, at least."""
        units = {"matrix": 0, "issue": sum(line.issue for line in self.lines), "valu": 0, "lds": 0, "global": 0}
        for line in self.lines:
            if line.unit:
                units[line.unit] += line.slots
        return units

    @property
    def bound(self) -> str:
        """Return the unit of `slots` that is busy longest."""
        slots = self.slots
        return max(slots, key=lambda unit: slots[unit])

    @property
    def others_per_matrix(self) -> float | None:
        """Return the other instructions per matrix instruction; None without matrix instructions."""
        matrix = sum(line.unit == "matrix" for line in self.lines)
        return (len(self.lines) - matrix) / matrix if matrix else None

    @property
    def issue_per_matrix(self) -> float | None:
        """Return the issue slots of other instructions per slot of the matrix unit; None without matrix work."""
        matrix = self.slots["matrix"]
        return sum(line.issue for line in self.lines if line.unit != "matrix") / matrix if matrix else None


@frozen
class KernelAnalysis:
    """One kernel. `occupancy` is the number of subgroups that a unit holds, by each limiting resource."""

    name: str
    registers: Mapping[str, int]
    shared_bytes: int
    code_bytes: int  #: 0 for text whose machine code is not known
    workgroup: int  #: work-items, at most
    occupancy: Mapping[str, int]
    loops: int
    hot: Stretch  #: hot code: the innermost loop with the most matrix work, or straight-line code
    lines: tuple[Line, ...]  #: reachable code, by ascending address
    counts: Mapping[str, int] = attrs.Factory(dict)  #: other counts in `hot`, by name
    sources: Mapping[int, str] = attrs.Factory(dict)  #: FILE:LINE by offset, where debug information has it
    shared_at_launch: bool = False  #: whether the launch gives further shared memory


@frozen
class Analysis:
    """All kernels of a code object."""

    target: str
    terms: Terms
    kernels: tuple[KernelAnalysis, ...]
