"""Choose the swizzle of a shared tile: the one with the fewest bank conflicts under the target's access phases."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from convgen.ir.facts import SharedPhases, TargetFacts
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Swizzle
from convgen.ir.types import Type

#: Conflicts repeat with the row pattern, so the first few accesses of a layout tell all.
_ACCESSES = 4

Places = list[tuple[int, int]]  #: (row, chunk) that each lane touches


def conflict_cycles(chunks: Sequence[int], phases: SharedPhases, chunk_bytes: int) -> int:
    """Extra cycles of one access in which each lane touches one whole chunk, given by its number in memory.

    In each phase a group of banks serves one chunk a cycle; lanes that touch the same chunk share it.
    """
    groups = phases.banks * 4 // chunk_bytes
    extra = 0
    for phase in phases.phases:
        load = [0] * groups
        for number in dict.fromkeys(chunks[lane] for lane in phase):
            load[number % groups] += 1
        extra += max(load) - 1
    return extra


def access_places(layout: Fragment, register: int, lanes: int, per_chunk: int) -> Places:
    """The row and chunk that each lane of subgroup 0 touches when it accesses the elements from `register` on."""
    row, col = layout.dims
    return [(at[row], at[col] // per_chunk) for at in (layout.coords(0, lane, register) for lane in range(lanes))]


@lru_cache(maxsize=2**10)
def find_swizzle(cols: int, elem: Type, chunk: int, read: Fragment, write: Fragment, facts: TargetFacts) -> Swizzle:
    """The first swizzle, simplest first, with the least conflicts over fragment reads and copy writes.

    `cols` elements make a row without padding; `chunk` is the unit of the swizzle and of the access, in bytes.
    """
    across = cols * elem.bytes // chunk
    per_chunk = chunk // elem.bytes
    accesses = [
        (access_places(layout, register, facts.subgroup_size, per_chunk), phases)
        for layout, phases in ((read, facts.shared_read), (write, facts.shared_write))
        for register in range(0, min(layout.registers, _ACCESSES * per_chunk), per_chunk)
    ]

    def cost(swizzle: Swizzle) -> int:
        return sum(
            conflict_cycles([row * across + swizzle(c, row) for row, c in places], phases, chunk)
            for places, phases in accesses
        )

    candidates = [Swizzle()] + [Swizzle(s, m) for m in (1, 3, 7, 15) if m < across for s in range(4)]
    best = candidates[0]
    least = cost(best)
    for candidate in candidates[1:]:
        if least and (now := cost(candidate)) < least:
            best, least = candidate, now
    return best
