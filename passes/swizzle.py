"""Choose the swizzle of a shared tile: the one with the fewest bank conflicts under the target's access phases."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from convgen.ir.facts import SharedPhases, TargetFacts
from convgen.ir.fragment import Fragment
from convgen.ir.memory import Shared, Swizzle
from convgen.ir.types import Type


def access_addresses(tile: Shared, layout: Fragment, register: int, lanes: int) -> npt.NDArray[np.int64]:
    """Byte address of each lane's chunk for the access that starts at `register`, in subgroup 0."""
    row, col = layout.coords(0, np.arange(lanes), register).values()
    address: npt.NDArray[np.int64] = np.broadcast_to(tile.address(0, row, col), (lanes,)).astype(np.int64)
    return address


def conflict_cycles(addresses: npt.NDArray[np.int64], phases: SharedPhases, width: int) -> int:
    """Extra cycles of one access of `width` bytes a lane: per phase, the most different rows that one bank must serve.

    Lanes that read the same word share it.
    """
    extra = 0
    for phase in phases.phases:
        words = (addresses[list(phase)][:, None] // 4 + np.arange(width // 4)).ravel()
        distinct = np.unique(words)
        extra += int(np.bincount(distinct % phases.banks).max()) - 1
    return extra


@cache
def find_swizzle(
    rows: int, cols: int, elem: Type, chunk: int, read: Fragment, write: Fragment, facts: TargetFacts
) -> Swizzle:
    """The first swizzle, simplest first, with the least conflicts over all fragment reads and copy writes."""
    chunks = cols * elem.bytes // chunk
    candidates = [Swizzle()] + [Swizzle(s, m) for m in (1, 3, 7, 15) if m < chunks for s in range(4)]
    per_chunk = chunk // elem.bytes

    def cost(swizzle: Swizzle) -> int:
        tile = Shared("candidate", elem, rows, cols, cols * elem.bytes, 1, swizzle, chunk)
        total = 0
        for layout, phases in ((read, facts.shared_read), (write, facts.shared_write)):
            # Conflicts repeat with the row pattern: the accesses of the first row tile tell all.
            for register in range(0, min(layout.registers, 4 * per_chunk), per_chunk):
                total += conflict_cycles(access_addresses(tile, layout, register, facts.subgroup_size), phases, chunk)
        return total

    return min(candidates, key=cost)
