"""Choose the swizzle of a shared tile, or gaps: what has the fewest bank conflicts under the target's access phases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import inf

import numpy as np

from convgen.ir.facts import SharedPhases, TargetFacts
from convgen.ir.layout.digits import Digits, Space
from convgen.ir.layout.fragment import DWORD, Fragment
from convgen.ir.layout.memory import COL, ROW, Swizzle
from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type
from convgen.passes.messages.shared import RUN, Way, first_of

#: Conflicts repeat with the row pattern, so the first few accesses of a layout tell all.
_ACCESSES = 4

#: By how much shifts go to the left.
_LIFTS = (1, 2, 3)

_MOST_GAP = 4  #: chunks; behind each row, where gaps keep banks apart

_GAPS = (8, 16, 32, 64)  #: bytes; behind runs of whole blocks, which keep their alignment

#: By how much further the second shift of a fold goes.
_FOLDS = (1, 2, 3)


@frozen
class _Access:
    """A message of each lane: the row, and which part of it, counted in the message's own width."""

    places: tuple[tuple[int, int], ...]
    phases: SharedPhases
    width: int  #: bytes

    def cost(self, swizzle: Swizzle, across: int, chunk: int) -> int:
        """Extra cycles, where `across` chunks make a row."""
        parts = chunk // self.width
        at = [(row * across + swizzle(part // parts, row)) * parts + part % parts for row, part in self.places]
        return conflict_cycles(at, self.phases, self.width)


def conflict_cycles(parts: Sequence[int], phases: SharedPhases, width: int) -> int:
    """Extra cycles of one access in which each lane touches `width` bytes, given by their number in memory.

    In each phase a group of banks serves one of these a cycle; lanes that touch the same share it.
    """
    groups = phases.banks * 4 // width
    extra = 0
    for phase in phases.phases:
        load = [0] * groups
        for number in dict.fromkeys(parts[lane] for lane in phase):
            load[number % groups] += 1
        extra += max(load) - 1
    return extra


def _accesses(
    layout: Fragment, phases: SharedPhases, elem_bytes: int, width: int, lanes: int, way: Way = Way.LANE
) -> Iterator[_Access]:
    """The first messages of a distributed access, of subgroup 0; the dims of `layout` are across and along chunks."""
    row, col = layout.dims
    each = width // elem_bytes
    for register in range(0, min(layout.registers, _ACCESSES * each), each):
        at = layout.coords(0, *first_of(way, np.arange(lanes), register))
        rows, cols = (np.broadcast_to(at[dim], lanes).tolist() for dim in (row, col))
        yield _Access(tuple((r, c // each) for r, c in zip(rows, cols)), phases, width)


def _across(layout: Fragment) -> Fragment:
    """The same with its dims in the other order."""
    return evolve(layout, dims=layout.dims[::-1])


@lru_cache(maxsize=2**10)
def find_swizzle(
    cols: int,
    elem: Type,
    chunk: int,
    read: Fragment,
    write: Fragment | None,
    facts: TargetFacts,
    *,
    pitch: int = 0,
    turned: bool = False,
    period: int = 0,
) -> tuple[Swizzle, int]:
    """The first swizzle, simplest first, with the least conflicts over fragment reads and copy writes, if any.

    Beside it the extra cycles of the first accesses. `cols` elements make a row, and rows stand as many apart, or
    `pitch`; `chunk` is the unit of the swizzle, in bytes, of which messages may move less. Of a `turned` tile, whose
    columns stand side by side, `cols` is the length of one, and reads are turned. Where reads may begin at multiples of
    `period` rows (or columns, of a turned tile), swizzles are the same there.
    """
    within, lanes = cols * elem.bytes // chunk, facts.subgroup_size
    if turned and facts.turned_reads:
        read, write = _across(read), write and _across(write)
        accesses = [*_accesses(read, facts.turned_reads, elem.bytes, RUN * elem.bytes, lanes, Way.TURNED)]
    else:
        accesses = [*_reads(read, elem, chunk, facts)]
    accesses += _writes(write, elem, chunk, facts)
    across = pitch * elem.bytes // chunk if pitch else within
    return _best(accesses, across, chunk, within, turned=turned, period=period)


@lru_cache(maxsize=2**10)
def find_rows(
    cols: int, elem: Type, chunk: int, read: Fragment, write: Fragment, facts: TargetFacts, within: int, often: int
) -> tuple[int, Swizzle, int]:
    """How far apart rows of `cols` elements stand, in chunks, with what swizzle of each `within` chunks of a row.

    Least conflicts decide, then the least gap. Beside them the extra cycles of the first accesses. Reads come so
    `often` as writes.
    """
    accesses = [*_reads(read, elem, chunk, facts)] * often
    accesses += _writes(write, elem, chunk, facts)
    least = -(-cols * elem.bytes // chunk)
    found = [(across, *_best(accesses, across, chunk, within)) for across in range(least, least + _MOST_GAP + 1)]
    return min(found, key=lambda rows: (rows[2], rows[0]))


@lru_cache(maxsize=2**10)
def find_gaps(digits: Digits, elem: Type, write: Fragment, facts: TargetFacts) -> Digits:
    """Where the elements of a tile in blocks stand, with gaps if lanes that write by themselves meet less often then.

    A gap is behind each of some runs of whole blocks, so that block messages move what they did. The least conflicts
    decide, then the shortest runs and the least gap.
    """
    runs = sorted({d.stride for d in digits.digits if d.stride * elem.bytes % facts.block_bytes == 0})
    spread = (_spread(digits, run, gap // elem.bytes) for run in runs for gap in _GAPS)
    return min((digits, *spread), key=lambda each: write_conflicts(each, elem, write, facts))


def write_conflicts(digits: Digits, elem: Type, write: Fragment, facts: TargetFacts) -> int:
    """The extra cycles of the first dwords that lanes write by themselves to a tile in blocks."""
    row, col = (write.coords(0, np.arange(facts.subgroup_size), 0)[dim] for dim in write.dims)
    place = digits.place({ROW: row, COL: col}, elem.bytes)[Space.MEMORY]
    return conflict_cycles((place // DWORD).tolist(), facts.shared_write, DWORD)


def _spread(digits: Digits, run: int, gap: int) -> Digits:
    """The same places with so many more behind each run."""
    apart = (d if d.stride < run else evolve(d, stride=d.stride // run * (run + gap)) for d in digits.digits)
    return evolve(digits, digits=tuple(apart))


def _reads(read: Fragment, elem: Type, chunk: int, facts: TargetFacts) -> Iterator[_Access]:
    held = min(chunk, read.contiguous(read.dims[1]) * elem.bytes)
    whole, half = facts.chunk_bytes, facts.chunk_bytes // 2
    reading = facts.shared_read if held == whole else facts.shared_half_read.of_less(half // held)
    yield from _accesses(read, reading, elem.bytes, held, facts.subgroup_size)


def _writes(write: Fragment | None, elem: Type, chunk: int, facts: TargetFacts) -> Iterator[_Access]:
    if write is not None:
        written = min(chunk, write.contiguous(write.dims[1]) * elem.bytes)
        writing = facts.shared_write.of_less(facts.chunk_bytes // written)
        yield from _accesses(write, writing, elem.bytes, written, facts.subgroup_size)


def _best(
    accesses: Sequence[_Access], across: int, chunk: int, within: int, *, turned: bool = False, period: int = 0
) -> tuple[Swizzle, int]:
    """The first swizzle with the least extra cycles, of rows of `across` chunks; masks are of less than `within`."""

    def cost(swizzle: Swizzle, enough: float = inf) -> int:
        """The extra cycles of all accesses, or of as many as it takes to have `enough`."""
        total = 0
        for access in accesses:
            total += access.cost(swizzle, across, chunk)
            if total >= enough:
                break
        return total

    masks = [mask for mask in (1, 3, 7, 15) if mask < within and within % (mask + 1) == 0]
    simple = [Swizzle(), *(Swizzle(shift, mask) for mask in masks for shift in range(4))]
    if turned:  # rows of a little matrix that is turned are neighbours of each other
        simple += [Swizzle(-lift, mask & ~((1 << lift) - 1)) for lift in _LIFTS for mask in masks if mask >> lift]
        simple += [Swizzle(-lift, mask, lift + down) for lift in _LIFTS for down in _LIFTS for mask in masks]
    folded = [Swizzle(shift, mask, fold) for fold in _FOLDS for mask in masks for shift in range(3)]
    best, least = simple[0], cost(simple[0])
    for candidate in (each for each in (*simple[1:], *folded) if period % each.period == 0):
        if least and (now := cost(candidate, least)) < least:
            best, least = candidate, now
    return best, least
