"""What a family's model of a unit tells of a kernel, for those who make times of it."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class LoopClocks:
    """Clocks of a kernel on a unit that several of its workgroups share."""

    threads: int  #: of a workgroup
    resident: int  #: workgroups that a unit holds at most
    flop: int  #: of the matrix instructions of an iteration of its loop, of a workgroup
    matrix: float  #: clocks of the matrix unit of a SIMD, of an iteration of one wave
    shared: Mapping[int, tuple[float, float]]  #: workgroups on a unit -> clocks of an iteration of all, and of the rest

    def of(self, groups: int) -> tuple[float, float]:
        """Clocks of an iteration and of the rest where so many workgroups share a unit, between those known."""
        known = sorted(self.shared)
        groups = min(max(groups, known[0]), known[-1])
        low = max(n for n in known if n <= groups)
        high = min(n for n in known if n >= groups)
        share = (groups - low) / (high - low) if high > low else 0.0
        each, rest = (a + share * (b - a) for a, b in zip(self.shared[low], self.shared[high]))
        return each, rest
