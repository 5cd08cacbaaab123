"""Results of `analyze` on a code object: plain records, shared by every target.

Costs count issue slots of one subgroup; `Terms` gives the length of a slot and the family's names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs

from convgen.ir.record import frozen


@frozen
class Terms:
    """The words and the clock of a target family."""

    slot_clocks: int  #: clocks; an issue slot
    matrix: str  #: kind of the matrix instructions: mfma, dpas
    subgroup: str  #: the vendor's word for it: wave, thread
    occupancy: str  #: unit of `KernelAnalysis.occupancy`: waves a SIMD, threads an EU
    issue: str  #: cause of issue slots beyond one for each instruction


@frozen
class Line:
    """One instruction: its offset in the kernel, its kind and the unit that it occupies."""

    offset: int
    text: str
    kind: str  #: in the family's terms: mfma, valu, salu, ds_read, ...; dpas, alu, mov, slm_load, ...
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
        """Return the unit that is busy longest."""
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
    code_bytes: int
    workgroup: int  #: work-items, at most
    occupancy: Mapping[str, int]
    loops: int
    hot: Stretch  #: hot code: the innermost loop with the most matrix work, or straight-line code
    lines: tuple[Line, ...]  #: reachable code, by ascending address
    counts: Mapping[str, int] = attrs.Factory(dict)  #: other counts in `hot`, by name
    sources: Mapping[int, str] = attrs.Factory(dict)  #: FILE:LINE by offset, where debug information has it


@frozen
class Analysis:
    """All kernels of a code object."""

    target: str
    terms: Terms
    kernels: tuple[KernelAnalysis, ...]
