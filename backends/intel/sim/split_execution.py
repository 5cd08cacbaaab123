"""Compressed instructions: those whose destination spans two registers run as two passes, one register each.

"A compressed instruction spans across 2 adjacent destination registers and is split into 2 parts. The split point is
where the destination crosses its GRF boundary. The source operand of the second part must not overlap with the
destination operand of the first part at DW granularity" (the hardware's restriction as IGC's HWConformity.cpp quotes it
at avoidInstDstSrcOverlap). Mesa's has_source_and_destination_hazard and its register allocator agree: a
SIMD16 instruction is two SIMD8 ones, so one that reads a single element for all lanes out of its destination, elements
narrower than the destination's, or registers one off from it, reads what its first half wrote. A register has 32 bytes
on XeHPG and 64 on XeHPC and Xe2, so there only 64-bit types, strided destinations and SIMD32 are concerned.

IGC's allocator also avoids such an overlap if the destination fits a register and a source does not (G4_Verifier,
verifyDstSrcOverlap; hasDstSrcOverlapPotential); the split is then where that source crosses. madm, which has
accumulators between its parts, is exempt. dpas and messages have rules of their own.

An instruction that breaks the rule is reported and executed in two passes. Sources addressed through a0 are checked
when they are read; destinations addressed through a0 are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convgen.backends.intel.sim.areas import Area, Operation
from convgen.backends.intel.sim.operands import indirect_places
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.sim.wave_arrays import Array, Bools
from convgen.ir.record import frozen

KIND = "dst-src-overlap"
HARDWARE = "IGC, avoidInstDstSrcOverlap; Mesa, has_source_and_destination_hazard"
ALLOCATOR = "IGC, verifyDstSrcOverlap"
GRANULE = 4  #: bytes; the hardware compares registers by dword
EXEMPT = frozenset(("madm",))


@frozen(eq=False)
class Split:
    """The split of an instruction into two passes, and the sources that overlap the destination."""

    lane: int  #: the first lane of the second pass
    overlapping: tuple[int, ...]  #: sources of the second pass in the first one's destination
    indirect: tuple[int, ...]  #: sources of which only execution tells
    written: frozenset[int]  #: dwords that the first pass writes, from the start of the registers
    source: str  #: document of the rule

    def message(self, sources: Sequence[int]) -> str:
        """Return the finding's text for some sources."""
        names = " and ".join(f"src{number}" for number in sources)
        return f"the second pass reads {names} where the first, of {self.lane} lanes, has written [{self.source}]"


def split_of(op: Operation) -> Split | None:
    """Return the split of an instruction whose second pass may read results of the first; None for all others."""
    dst = op.dst
    if dst is None or not dst.is_register or op.op in EXEMPT:
        return None
    lane, source = _crossing(dst), HARDWARE
    if lane is None:
        crossings = [_crossing(s) for s in op.sources if s.is_register and not s.each_row]
        lane, source = next((crossing for crossing in crossings if crossing is not None), None), ALLOCATOR
    if lane is None:
        return None
    written = _dwords(op, dst, slice(0, lane))
    overlapping = tuple(
        number for number, s in enumerate(op.sources) if s.is_register and written & _dwords(op, s, slice(lane, None))
    )
    indirect = tuple(n for n, s in enumerate(op.sources) if s.operand.kind == "indirect" and source is HARDWARE)
    return Split(lane, overlapping, indirect, written, source) if overlapping or indirect else None


def overlapped(op: Operation, split: Split, number: int, g: ThreadGroup) -> Bools:
    """Return flags [thread, lane] of an indirect source's elements that lie in the first pass's destination."""
    source = op.sources[number]
    places = indirect_places(source.operand, op.lanes, op.instruction, g)[:, split.lane :]
    dwords: Array = np.fromiter(split.written, np.int64)
    return np.isin(places // GRANULE, dwords) | np.isin((places + source.size - 1) // GRANULE, dwords)


def _crossing(area: Area) -> int | None:
    """Return the first lane behind the register in which an operand begins."""
    behind = np.flatnonzero(area.places // area.grf > area.places[0] // area.grf)
    return int(behind[0]) if len(behind) else None


def _dwords(op: Operation, area: Area, lanes: slice) -> frozenset[int]:
    """Return the dwords of some lanes, from the start of the registers."""
    base = op.context.layout.start(area.operand.file, area.operand.reg, 0)
    first = (area.places[lanes] + base) // GRANULE
    last = (area.places[lanes] + base + area.size - 1) // GRANULE
    return frozenset(first.tolist()) | frozenset(last.tolist())
