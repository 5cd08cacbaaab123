"""Choose a shared tile's swizzle, or gaps: the ones with fewest bank conflicts in the target's access phases."""

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
from convgen.passes.messages.shared import TRANSPOSED_BITS, Arrangement, first_owner, reads_matrices, transposing

_Ints = npt.NDArray[np.int64]

_ACCESSES = 4  #: messages; the first ones of an access, which are simulated: conflicts repeat with the rows

# The search space; chosen.
_LIFTS = (1, 2, 3)  #: bits; left shifts of a row's number (negative `Swizzle.shift`)
_FOLDS = (1, 2, 3)  #: bits; distance of the second shift from the first (`Swizzle.fold`)
_MOST_GAP = 4  #: chunks; largest gap behind each row
_GAPS = (8, 16, 32, 64)  #: bytes; gaps behind runs of whole blocks, which keep their alignment


@frozen
class _Rows:
    """Rows of a tile, or columns of a transposed one."""

    chunk: int  #: bytes
    chunks: int  #: chunks of a row
    pitch: int  #: chunks; from a row to the next one
    count: int = 0  #: rows between which chunks may move


@frozen(eq=False)
class _Accesses:
    """Messages of all lanes: row and part of each access, parts counted in units of the message width."""

    rows: _Ints  #: row of each access, [messages, lanes]
    parts: _Ints  #: part of its row, [messages, lanes]
    phases: SharedPhases
    width: int  #: bytes; width of a message
    times: int = 1  #: how often each message is repeated

    def cost(self, swizzle: Swizzle, rows: _Rows) -> int:
        """Return the extra cycles."""
        parts = rows.chunk // self.width
        chunk, row = swizzle.place(self.parts // parts, self.rows, rows.chunks)
        places = (row * rows.pitch + chunk) * parts + self.parts % parts
        return self.times * conflict_cycles(places, self.phases, self.width)


def conflict_cycles(parts: npt.ArrayLike, phases: SharedPhases, width: int) -> int:
    """Return the extra cycles of accesses of `width` bytes a lane, given by part numbers in memory [..., lanes].

    In each phase a group of banks serves one part a cycle; lanes that access one part share it.
    """
    groups = phases.banks * DWORD // width
    lanes = np.array(phases.phases)
    touched = np.sort(np.asarray(parts)[..., lanes].reshape(-1, lanes.shape[1]))
    first = np.diff(touched, prepend=-1) != 0
    group = np.arange(len(touched))[:, None] * groups + touched % groups
    load = np.bincount(group[first], minlength=len(touched) * groups).reshape(-1, groups)
    return int(load.max(axis=1).sum()) - len(load)


def _accesses(
    layout: Fragment,
    phases: SharedPhases,
    elem_bytes: int,
    width: int,
    lanes: int,
    arrangement: Arrangement = Arrangement.LANE,
) -> _Accesses:
    """Return the first messages of subgroup 0's access; the dims of `layout` are across and along chunks."""
    elements = width // elem_bytes
    registers = np.arange(0, min(layout.registers, _ACCESSES * elements), elements)[:, None]
    at = layout.coords(
        0, *first_owner(arrangement, np.arange(lanes), registers, DWORD // elem_bytes if elem_bytes < DWORD else 1)
    )
    row, col = (np.broadcast_to(at[dim], (len(registers), lanes)) for dim in layout.dims)
    return _Accesses(row, col // elements, phases, width)


def _across(layout: Fragment) -> Fragment:
    """Return the layout with its dims exchanged."""
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
    transposed: bool,
    period: int = 0,
) -> tuple[Swizzle, int]:
    """Return the simplest swizzle with the fewest bank conflicts, and its extra cycles.

    The first reads as `read` and, unless None, the first writes as `write` are simulated. `cols` elements make a row,
    `pitch` elements (default: `cols`) lie from row to row; `chunk` is the unit of the swizzle in bytes, and messages
    may move less. In a `transposed` tile `cols` is the length of a column; reads transpose, or are of dwords. If reads
    may begin at multiples of `period` rows (columns in a transposed tile), the swizzle repeats there.
    """
    within, lanes = cols * elem.bytes // chunk, facts.subgroup_size
    # A direct copy (no `write`) cannot move chunks between rows, and fragments within a period must not lose any.
    count = read.shape[transposed] if write and not period else 0
    if transposed:
        read, write = _across(read), write and _across(write)
    reads = transposing(facts)
    if transposed and elem.bits == TRANSPOSED_BITS and reads:
        accesses = [_accesses(read, reads.phases, elem.bytes, reads.run * elem.bytes, lanes, reads.arrangement)]
    else:
        accesses = [_reads(read, elem, chunk, facts)]
    if write is not None:
        accesses.append(_writes(write, elem, chunk, facts))
    rows = _Rows(chunk, within, pitch * elem.bytes // chunk if pitch else within, count)
    return _best(accesses, rows, transposed=transposed, period=period)


@lru_cache(maxsize=2**10)
def find_rows(
    cols: int, elem: Type, chunk: int, read: Fragment, write: Fragment, facts: TargetFacts, within: int, often: int
) -> tuple[int, Swizzle, int]:
    """Return (pitch in chunks, swizzle of each `within` chunks, extra cycles) for rows of `cols` elements.

    The least conflicts decide, then the smallest gap. The cycles are those of the first accesses, with `often` reads a
    write.
    """
    accesses = evolve(_reads(read, elem, chunk, facts), times=often), _writes(write, elem, chunk, facts)
    least = -(-cols * elem.bytes // chunk)
    pitches = range(least, least + _MOST_GAP + 1)
    found = [(pitch, *_best(accesses, _Rows(chunk, within, pitch))) for pitch in pitches]
    return min(found, key=lambda rows: (rows[2], rows[0]))


@lru_cache(maxsize=2**10)
def find_gaps(digits: Digits, elem: Type, write: Fragment, facts: TargetFacts) -> Digits:
    """Return the digits of a fragment-ordered tile, with gaps if lanes' own writes then have fewer bank conflicts.

    Gaps are behind each run of whole blocks, so that block messages stay contiguous, and behind longer runs as well if
    one gap does not suffice. The least conflicts decide, then the shortest runs and the smallest gaps.
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
    """Return the extra cycles of the first dwords that lanes write by themselves to a fragment-ordered tile."""
    return _conflicts(_placed(digits, _first_written(write, facts)), elem, facts)


def _conflicts(place: _Ints, elem: Type, facts: TargetFacts) -> int:
    """Return the extra cycles of dword writes to elements at these places."""
    return conflict_cycles(place * elem.bytes // DWORD, facts.shared_write, DWORD)


def _first_written(write: Fragment, facts: TargetFacts) -> dict[str, _Ints]:
    """Return row and column of each lane's first written element."""
    lanes = np.arange(facts.subgroup_size)
    row, col = (np.broadcast_to(write.coords(0, lanes, 0)[dim], lanes.shape) for dim in write.dims)
    return {ROW: row, COL: col}


def _placed(digits: Digits, at: dict[str, _Ints]) -> _Ints:
    """Return the places of elements in memory."""
    place: _Ints = digits.place(at)[Space.MEMORY]
    return place


def _spread(digits: Digits, gaps: Sequence[tuple[int, int]]) -> Digits:
    """Return the digits with a gap behind each run, for all (run, gap); digits are split where a run ends inside."""
    apart: list[Digit] = []
    for whole in digits.digits:
        fine = evolve(digits, digits=(whole,)).factored(Space.MEMORY).digits
        moved = (evolve(d, stride=d.stride + sum(d.stride // run * gap for run, gap in gaps)) for d in fine)
        apart += evolve(digits, digits=tuple(moved)).merged(Space.MEMORY).digits
    return evolve(digits, digits=tuple(apart))


def widest(run: int, most: int) -> int:
    """Return the bytes of the widest messages that divide a run of `run` bytes: a power of two, at most `most`."""
    return min(most, run & -run)


def _reads(read: Fragment, elem: Type, chunk: int, facts: TargetFacts) -> _Accesses:
    width = widest(read.contiguous(read.dims[1]) * elem.bytes, chunk)
    whole, half = facts.chunk_bytes, facts.chunk_bytes // 2
    if width < whole <= chunk and facts.matrix_reads and reads_matrices(read, elem.bytes, facts.subgroup_size):
        return _accesses(read, facts.matrix_reads, elem.bytes, whole, facts.subgroup_size, Arrangement.MATRIX)
    reading = facts.shared_read if width == whole else facts.shared_half_read.narrower(half // width)
    return _accesses(read, reading, elem.bytes, width, facts.subgroup_size)


def _writes(write: Fragment, elem: Type, chunk: int, facts: TargetFacts) -> _Accesses:
    written = widest(write.contiguous(write.dims[1]) * elem.bytes, chunk)
    writing = facts.shared_write.narrower(facts.chunk_bytes // written)
    return _accesses(write, writing, elem.bytes, written, facts.subgroup_size)


def _best(
    accesses: Sequence[_Accesses], rows: _Rows, *, transposed: bool = False, period: int = 0
) -> tuple[Swizzle, int]:
    """Return the first swizzle with the least extra cycles; swizzles within rows are tried before those across rows."""

    def cost(swizzle: Swizzle, enough: float = inf) -> int:
        """Return the extra cycles of all accesses, or of as many accesses as exceed `enough`."""
        total = 0
        for access in accesses:
            total += access.cost(swizzle, rows)
            if total >= enough:
                break
        return total

    masks = [mask for mask in (1, 3, 7, 15) if mask < rows.chunks and rows.chunks % (mask + 1) == 0]
    wider = [mask for mask in (1, 3, 7, 15) if mask >= rows.chunks]
    simple = [Swizzle(), *(Swizzle(shift, mask) for mask in masks for shift in range(4))]
    lifted = [Swizzle(-lift, mask & ~((1 << lift) - 1)) for lift in _LIFTS for mask in masks if mask >> lift]
    if transposed:  # rows of a transposed block are neighbours of each other
        simple += lifted
        simple += [Swizzle(-lift, mask, lift + down) for lift in _LIFTS for down in _LIFTS for mask in masks]
    folded = [Swizzle(shift, mask, fold) for fold in _FOLDS for mask in masks for shift in range(3)]
    across_rows = [Swizzle(shift, mask, fold) for fold in (0, *_FOLDS) for mask in wider for shift in range(3)]
    across_rows = [each for each in across_rows if rows.count and each.suits(rows.chunks, rows.count)]
    best, least = simple[0], cost(simple[0])
    for candidate in (each for each in (*simple[1:], *folded, *across_rows, *lifted) if period % each.period == 0):
        if least and (now := cost(candidate, least)) < least:
            best, least = candidate, now
    return best, least
