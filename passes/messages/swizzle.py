"""Choose the swizzle of a shared tile, or gaps: what has the fewest bank conflicts under the target's access phases."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from math import inf

import numpy as np
import numpy.typing as npt

from convgen.ir.facts import SharedPhases, TargetFacts
from convgen.ir.layout.digits import Digit, Digits, Space
from convgen.ir.layout.fragment import DWORD, Fragment
from convgen.ir.layout.memory import COL, ROW, Swizzle
from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type
from convgen.passes.messages.shared import RUN, Way, first_of

_Ints = npt.NDArray[np.int64]

#: Conflicts repeat with the row pattern, so the first few accesses of a layout tell all.
_ACCESSES = 4

#: By how much shifts go to the left.
_LIFTS = (1, 2, 3)

_MOST_GAP = 4  #: chunks; behind each row, where gaps keep banks apart

_GAPS = (8, 16, 32, 64)  #: bytes; behind runs of whole blocks, which keep their alignment

#: By how much further the second shift of a fold goes.
_FOLDS = (1, 2, 3)


@frozen
class _Rows:
    """Rows of a tile, or columns where these stand side by side."""

    chunk: int  #: bytes
    chunks: int  #: of a row
    pitch: int  #: chunks; from a row to the next one
    count: int = 0  #: rows that may change places


@frozen(eq=False)
class _Accesses:
    """Messages of all lanes alike: rows, and which parts of them, counted in the messages' own width."""

    rows: _Ints  #: [messages, lanes]
    parts: _Ints  #: the same
    phases: SharedPhases
    width: int  #: bytes
    times: int = 1  #: that each of them is made

    def cost(self, swizzle: Swizzle, rows: _Rows) -> int:
        """Extra cycles."""
        parts = rows.chunk // self.width
        chunk, row = swizzle.place(self.parts // parts, self.rows, rows.chunks)
        places = (row * rows.pitch + chunk) * parts + self.parts % parts
        return self.times * conflict_cycles(places, self.phases, self.width)


def conflict_cycles(parts: npt.ArrayLike, phases: SharedPhases, width: int) -> int:
    """Extra cycles of accesses in which each lane touches `width` bytes, given by their number in memory [..., lanes].

    In each phase a group of banks serves one of these a cycle; lanes that touch the same share it.
    """
    groups = phases.banks * DWORD // width
    lanes = np.array(phases.phases)
    touched = np.sort(np.asarray(parts)[..., lanes].reshape(-1, lanes.shape[1]))
    first = np.diff(touched, prepend=-1) != 0
    group = np.arange(len(touched))[:, None] * groups + touched % groups
    load = np.bincount(group[first], minlength=len(touched) * groups).reshape(-1, groups)
    return int(load.max(axis=1).sum()) - len(load)


def _accesses(
    layout: Fragment, phases: SharedPhases, elem_bytes: int, width: int, lanes: int, way: Way = Way.LANE
) -> _Accesses:
    """The first messages of a distributed access, of subgroup 0; the dims of `layout` are across and along chunks."""
    each = width // elem_bytes
    registers = np.arange(0, min(layout.registers, _ACCESSES * each), each)[:, None]
    at = layout.coords(0, *first_of(way, np.arange(lanes), registers))
    row, col = (np.broadcast_to(at[dim], (len(registers), lanes)) for dim in layout.dims)
    return _Accesses(row, col // each, phases, width)


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
    count = read.shape[turned] if write and not period else 0
    if turned and facts.turned_reads:
        read, write = _across(read), write and _across(write)
        accesses = [_accesses(read, facts.turned_reads, elem.bytes, RUN * elem.bytes, lanes, Way.TURNED)]
    else:
        accesses = [_reads(read, elem, chunk, facts)]
    if write is not None:
        accesses.append(_writes(write, elem, chunk, facts))
    rows = _Rows(chunk, within, pitch * elem.bytes // chunk if pitch else within, count)
    return _best(accesses, rows, turned=turned, period=period)


@lru_cache(maxsize=2**10)
def find_rows(
    cols: int, elem: Type, chunk: int, read: Fragment, write: Fragment, facts: TargetFacts, within: int, often: int
) -> tuple[int, Swizzle, int]:
    """How far apart rows of `cols` elements stand, in chunks, with what swizzle of each `within` chunks of a row.

    Least conflicts decide, then the least gap. Beside them the extra cycles of the first accesses. Reads come so
    `often` as writes.
    """
    accesses = evolve(_reads(read, elem, chunk, facts), times=often), _writes(write, elem, chunk, facts)
    least = -(-cols * elem.bytes // chunk)
    pitches = range(least, least + _MOST_GAP + 1)
    found = [(pitch, *_best(accesses, _Rows(chunk, within, pitch))) for pitch in pitches]
    return min(found, key=lambda rows: (rows[2], rows[0]))


@lru_cache(maxsize=2**10)
def find_gaps(digits: Digits, elem: Type, write: Fragment, facts: TargetFacts) -> Digits:
    """Where the elements of a tile in blocks stand, with gaps if lanes that write by themselves meet less often then.

    Gaps are behind each of some runs of whole blocks, so that block messages move what they did, and behind longer runs
    of these where that does not do. The least conflicts decide, then the shortest runs and the least gaps.
    """
    at = _first_written(write, facts)
    place, runs = _placed(digits, at), dict[tuple[int, ...], int]()
    strides = sorted(d.stride for d in digits.factored(Space.MEMORY).digits)
    for run in (stride for stride in strides if stride * elem.bytes % facts.block_bytes == 0):
        behind = tuple(_placed(_spread(digits, [(run, 1)]), at) - place)
        if any(behind):
            runs.setdefault(behind, run)
    gaps = [gap // elem.bytes for gap in _GAPS]
    moves = [((run, gap), gap * np.array(behind)) for behind, run in runs.items() for gap in gaps]
    best, least = digits, _conflicts(place, elem, facts)
    for some in (each for count in (1, 2) for each in combinations(moves, count)):
        if not least:
            break
        if (now := _conflicts(place + sum(by for _, by in some), elem, facts)) < least:
            best, least = _spread(digits, [gap for gap, _ in some]), now
    return best


def write_conflicts(digits: Digits, elem: Type, write: Fragment, facts: TargetFacts) -> int:
    """The extra cycles of the first dwords that lanes write by themselves to a tile in blocks."""
    return _conflicts(_placed(digits, _first_written(write, facts)), elem, facts)


def _conflicts(place: _Ints, elem: Type, facts: TargetFacts) -> int:
    """The same of elements at these places."""
    return conflict_cycles(place * elem.bytes // DWORD, facts.shared_write, DWORD)


def _first_written(write: Fragment, facts: TargetFacts) -> dict[str, _Ints]:
    """Where the elements are that lanes write first."""
    lanes = np.arange(facts.subgroup_size)
    row, col = (np.broadcast_to(write.coords(0, lanes, 0)[dim], lanes.shape) for dim in write.dims)
    return {ROW: row, COL: col}


def _placed(digits: Digits, at: dict[str, _Ints]) -> _Ints:
    """Where in memory elements stand."""
    place: _Ints = digits.place(at)[Space.MEMORY]
    return place


def _spread(digits: Digits, gaps: Sequence[tuple[int, int]]) -> Digits:
    """The same places with so many more behind each run of so many; digits are cut where a run ends within them."""
    apart: list[Digit] = []
    for whole in digits.digits:
        fine = evolve(digits, digits=(whole,)).factored(Space.MEMORY).digits
        moved = (evolve(d, stride=d.stride + sum(d.stride // run * gap for run, gap in gaps)) for d in fine)
        apart += evolve(digits, digits=tuple(moved)).merged(Space.MEMORY).digits
    return evolve(digits, digits=tuple(apart))


def widest(run: int, most: int) -> int:
    """Bytes; of the widest messages, a power of two and at `most` that many, by which a run of so many goes."""
    return min(most, run & -run)


def _reads(read: Fragment, elem: Type, chunk: int, facts: TargetFacts) -> _Accesses:
    held = widest(read.contiguous(read.dims[1]) * elem.bytes, chunk)
    whole, half = facts.chunk_bytes, facts.chunk_bytes // 2
    reading = facts.shared_read if held == whole else facts.shared_half_read.of_less(half // held)
    return _accesses(read, reading, elem.bytes, held, facts.subgroup_size)


def _writes(write: Fragment, elem: Type, chunk: int, facts: TargetFacts) -> _Accesses:
    written = widest(write.contiguous(write.dims[1]) * elem.bytes, chunk)
    writing = facts.shared_write.of_less(facts.chunk_bytes // written)
    return _accesses(write, writing, elem.bytes, written, facts.subgroup_size)


def _best(accesses: Sequence[_Accesses], rows: _Rows, *, turned: bool = False, period: int = 0) -> tuple[Swizzle, int]:
    """The first swizzle with the least extra cycles: first such within rows, then such by which these change places."""

    def cost(swizzle: Swizzle, enough: float = inf) -> int:
        """The extra cycles of all accesses, or of as many as it takes to have `enough`."""
        total = 0
        for access in accesses:
            total += access.cost(swizzle, rows)
            if total >= enough:
                break
        return total

    masks = [mask for mask in (1, 3, 7, 15) if mask < rows.chunks and rows.chunks % (mask + 1) == 0]
    wider = [mask for mask in (1, 3, 7, 15) if mask >= rows.chunks]
    simple = [Swizzle(), *(Swizzle(shift, mask) for mask in masks for shift in range(4))]
    if turned:  # rows of a little matrix that is turned are neighbours of each other
        simple += [Swizzle(-lift, mask & ~((1 << lift) - 1)) for lift in _LIFTS for mask in masks if mask >> lift]
        simple += [Swizzle(-lift, mask, lift + down) for lift in _LIFTS for down in _LIFTS for mask in masks]
    folded = [Swizzle(shift, mask, fold) for fold in _FOLDS for mask in masks for shift in range(3)]
    beyond = [Swizzle(shift, mask, fold) for fold in (0, *_FOLDS) for mask in wider for shift in range(3)]
    beyond = [each for each in beyond if rows.count and each.suits(rows.chunks, rows.count)]
    best, least = simple[0], cost(simple[0])
    for candidate in (each for each in (*simple[1:], *folded, *beyond) if period % each.period == 0):
        if least and (now := cost(candidate, least)) < least:
            best, least = candidate, now
    return best, least
