"""Messages that move a distributed tile between registers and shared memory.

Properties of addresses are checked on every subgroup, lane and register, so any layout and swizzle will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np

from convgen.ir.expr import Const, Expr, Lane, lift
from convgen.ir.facts import SharedPhases, TargetFacts
from convgen.ir.layout.digits import Space, plus
from convgen.ir.layout.fragment import DWORD, Fragment
from convgen.ir.layout.memory import Shared
from convgen.ir.record import frozen
from convgen.ir.stmt import TRANSPOSED_LANES
from convgen.passes.messages.linear import ZERO

TRANSPOSED_RUN = 4  #: elements a lane reads, and receives, in a transposing read
MATRIX_ROWS, MATRIX_BYTES = 8, 16  #: rows of a matrix, and bytes of a row, in a read of matrices
ROW_LANES = MATRIX_BYTES // DWORD  #: lanes that receive the dwords of a row of a matrix
TRANSPOSED_BITS = 16  #: bits of an element of a transposing read


class Arrangement(Enum):
    """The arrangement of elements in a message."""

    LANE = "lane"  #: each lane's elements are contiguous
    BLOCK = "block"  #: all lanes' dwords are contiguous, at a uniform address
    TRANSPOSED = "transposed"  #: transposing read: elements of neighbouring lanes are contiguous
    #: transposing read of four matrices, whose rows are contiguous across lanes
    TRANSPOSED_MATRIX = "transposed matrix"
    MATRIX = "matrix"  #: read of four matrices: dwords of four neighbouring lanes are contiguous, one of each matrix


@frozen
class SharedMessage:
    """Registers [start, start + count) of the fragment at `address + imm` bytes of the tile."""

    start: int
    count: int
    arrangement: Arrangement
    address: Expr
    imm: int


@frozen
class _Piece:
    """A message's registers and its place: `gap` bytes beyond the message that starts at register `leader`."""

    start: int
    count: int
    arrangement: Arrangement
    leader: int
    gap: int


def shared_messages(
    tile: Shared,
    slot: Expr,
    layout: Fragment,
    subgroup: Expr,
    subgroups: int,
    facts: TargetFacts,
    base: int = 0,
    start: tuple[int, int] = (0, 0),
    *,
    reads: bool = True,
) -> Iterator[SharedMessage]:
    """Yield the messages of a distributed access to a shared tile; addresses that differ by a constant are shared.

    The tile begins at byte `base`; `base` plus the immediate stays within the immediate's field. `start` is the row and
    column of a part within which chunks are swizzled; its offset goes to the immediate, too.
    """
    page = facts.shared_imm_max + 1
    fixed = slot.bits * tile.slot_bytes if isinstance(slot, Const) else 0
    fixed += tile.address(0, *start) if any(start) else 0
    addresses: dict[int, Expr] = {}  # by leader
    for piece in _plan(tile, layout, subgroups, facts, reads):
        if piece.leader not in addresses:
            addresses[piece.leader] = _address(tile, layout, subgroup, piece.arrangement, piece.leader)
        address = addresses[piece.leader]
        if not isinstance(slot, Const):
            address = address + slot * tile.slot_bytes
        imm = piece.gap + fixed
        extra = (base + imm) // page * page if page > 1 else imm
        address = address + extra if extra else address
        yield SharedMessage(piece.start, piece.count, piece.arrangement, address, imm - extra)


@lru_cache(maxsize=2**8)
def _address(tile: Shared, layout: Fragment, subgroup: Expr, arrangement: Arrangement, leader: int) -> Expr:
    """Return the byte address, within any slot, of the message that starts at register `leader`."""
    of_matrices = arrangement in (Arrangement.MATRIX, Arrangement.TRANSPOSED_MATRIX)
    # Messages that read matrices share the part of their coordinates that depends on the lane.
    is_shared = of_matrices and layout.adds_up(Space.REGISTER, MATRIX_BYTES // tile.elem.bytes)
    base = 0 if is_shared else leader
    coords = layout.coords(subgroup, *first_owner(arrangement, Lane(), base, DWORD // tile.elem.bytes))
    further = layout.coordinates({Space.REGISTER: leader - base})
    row, col = (plus(at, further[dim]) for dim, at in coords.items())
    return lift(tile.address(0, row, col), ZERO)


def first_owner(arrangement: Arrangement, lane: Any, register: Any, per_dword: int) -> tuple[Any, Any]:
    """Return the lane and register that hold the first element of a lane's part of a message.

    A dword holds `per_dword` elements.
    """
    if arrangement is Arrangement.MATRIX:
        return lane % MATRIX_ROWS * ROW_LANES, lane // MATRIX_ROWS * per_dword + register
    if arrangement is Arrangement.TRANSPOSED_MATRIX:
        row = lane % MATRIX_ROWS
        return row // 2, lane // MATRIX_ROWS * per_dword + row % 2 + register
    if arrangement is not Arrangement.TRANSPOSED:
        return (lane if arrangement is Arrangement.LANE else ZERO), register
    within = lane % TRANSPOSED_LANES
    return lane - within + within % TRANSPOSED_RUN * TRANSPOSED_RUN, within // TRANSPOSED_RUN + register


@lru_cache(maxsize=2**10)
def _plan(tile: Shared, layout: Fragment, subgroups: int, facts: TargetFacts, reads: bool) -> tuple[_Piece, ...]:
    """Return the messages of an access, in register order."""
    subgroup, lane, register = np.meshgrid(
        np.arange(subgroups), np.arange(facts.subgroup_size), np.arange(layout.registers), indexing="ij"
    )
    row, col = layout.coords(subgroup, lane, register).values()
    at = np.broadcast_to(tile.address(0, row, col), subgroup.shape)
    arrangement, run = _arrangement(tile, at, facts, reads)
    exchanged = arrangement in (Arrangement.TRANSPOSED, Arrangement.MATRIX, Arrangement.TRANSPOSED_MATRIX)
    begin = register - register % run
    first = at[subgroup, *first_owner(arrangement, lane, begin, DWORD // tile.elem.bytes)] if exchanged else at
    leaders: list[int] = []
    plan = []
    for start in range(0, layout.registers, run):
        gaps = ((leader, first[:, :, start] - first[:, :, leader]) for leader in leaders)
        constant = ((leader, int(gap.flat[0])) for leader, gap in gaps if (gap == gap.flat[0]).all())
        leader, gap = next(((n, g) for n, g in constant if g >= 0), (start, 0))
        if leader == start:
            leaders.append(start)
        plan.append(_Piece(start, run, arrangement, leader, gap))
    return tuple(plan)


def _arrangement(tile: Shared, at: Any, facts: TargetFacts, reads: bool) -> tuple[Arrangement, int]:
    """Return the arrangement of messages for the addresses [subgroups, lanes, registers], and registers a message."""
    if run := _block_run(tile, at, facts):
        return Arrangement.BLOCK, run
    run, is_transposable = _lane_run(tile, at, facts), reads and tile.elem.bits == TRANSPOSED_BITS
    if is_transposable and facts.transposed_reads and run < TRANSPOSED_RUN and are_transposed(at):
        return Arrangement.TRANSPOSED, TRANSPOSED_RUN
    row = MATRIX_BYTES // tile.elem.bytes  # elements
    if reads and facts.matrix_reads and run < row:
        if are_matrices(at, row, tile.elem.bytes):
            return Arrangement.MATRIX, row
        if is_transposable and are_transposed_matrices(at):
            return Arrangement.TRANSPOSED_MATRIX, row
    return Arrangement.LANE, run


@frozen
class Transposing:
    """The transposing reads of a target: their arrangement, and the elements that a lane reads."""

    arrangement: Arrangement
    phases: SharedPhases
    run: int


def transposing(facts: TargetFacts) -> Transposing | None:
    """Return a target's transposing reads of 16-bit elements; None if it has none."""
    if facts.transposed_reads:
        return Transposing(Arrangement.TRANSPOSED, facts.transposed_reads, TRANSPOSED_RUN)
    if facts.matrix_reads:
        return Transposing(Arrangement.TRANSPOSED_MATRIX, facts.matrix_reads, MATRIX_BYTES * 8 // TRANSPOSED_BITS)
    return None


@lru_cache(maxsize=2**10)
def reads_transposed(fragment: Fragment, facts: TargetFacts, *, repeated: bool) -> bool:
    """Return whether a column-major tile of 16-bit elements is read with transposing reads.

    A fragment that is `repeated` shares reads with its neighbours.
    """
    reads = transposing(facts)
    if reads is None:
        return False
    lane, register = np.meshgrid(np.arange(facts.subgroup_size), np.arange(fragment.registers), indexing="ij")
    row, col = fragment.coords(0, lane[None], register[None]).values()
    height = fragment.shape[0]
    at = (row + col * height) * (TRANSPOSED_BITS // 8)
    places = np.broadcast_to(at, (1, *lane.shape))
    if reads.arrangement is Arrangement.TRANSPOSED:
        return are_transposed(places)
    return are_transposed_matrices(np.tile(places, reads.run) if repeated else places)


def are_transposed_matrices(at: Any) -> bool:
    """Return whether in all registers, every fourth lane has the next element in memory (`TRANSPOSED_MATRIX`)."""
    if at.shape[2] % MATRIX_ROWS or at.shape[1] != MATRIX_ROWS * ROW_LANES:
        return False
    columns = at.reshape(at.shape[0], MATRIX_ROWS, ROW_LANES, at.shape[2])
    steps = np.arange(MATRIX_ROWS)[:, None, None] * (TRANSPOSED_BITS // 8)
    return bool((columns - columns[:, :1] == steps).all() and (columns[:, 0] % MATRIX_BYTES == 0).all())


def are_transposed(at: Any) -> bool:
    """Return whether in each four registers, four neighbouring lanes hold neighbours, as transposing reads need."""
    if at.shape[2] % TRANSPOSED_RUN or at.shape[1] % TRANSPOSED_LANES:
        return False
    fours = at.reshape(at.shape[0], -1, TRANSPOSED_RUN, at.shape[2])
    steps = np.arange(TRANSPOSED_RUN)[:, None] * (TRANSPOSED_BITS // 8)
    return bool((fours - fours[:, :, :1] == steps).all() and (fours[:, :, 0] % 8 == 0).all())


def are_matrices(at: Any, run: int, elem_bytes: int) -> bool:
    """Return whether each `run` of registers is four dwords, parts of aligned rows of four neighbouring lanes."""
    if elem_bytes > DWORD or at.shape[2] % run or at.shape[1] != MATRIX_ROWS * ROW_LANES:
        return False
    dwords = at.reshape(at.shape[0], MATRIX_ROWS, ROW_LANES, -1, DWORD // elem_bytes)
    steps = np.arange(ROW_LANES)[:, None, None] * DWORD + np.arange(DWORD // elem_bytes) * elem_bytes
    rows = dwords[:, :, :1, :, :1]
    return bool((dwords - rows == steps).all() and (rows % MATRIX_BYTES == 0).all())


@lru_cache(maxsize=2**10)
def reads_matrices(fragment: Fragment, elem_bytes: int, lanes: int) -> bool:
    """Return whether a row-major tile with rows of whole 16 bytes is read as matrices."""
    lane, register = np.meshgrid(np.arange(lanes), np.arange(fragment.registers), indexing="ij")
    row, col = fragment.coords(0, lane[None], register[None]).values()
    at = np.broadcast_to(row * fragment.shape[1] * MATRIX_BYTES + col * elem_bytes, (1, *lane.shape))
    return are_matrices(at, MATRIX_BYTES // elem_bytes, elem_bytes)


def _runs(at: Any, run: int, steps: Any) -> bool:
    """Return whether in each aligned run of registers the addresses are `steps` beyond the first one."""
    groups = at.reshape(*at.shape[:2], -1, run)
    return bool((groups - groups[..., :1] == steps).all())


def _lane_run(tile: Shared, at: Any, facts: TargetFacts) -> int:
    """Return the most registers whose elements are contiguous in memory, within a chunk."""
    elem, registers = tile.elem.bytes, at.shape[2]
    runs = (w // elem for w in facts.shared_widths if w <= tile.chunk and w % elem == 0)
    return next((r for r in runs if registers % r == 0 and _runs(at, r, np.arange(r) * elem)), 1)


def _block_run(tile: Shared, at: Any, facts: TargetFacts) -> int:
    """Return the most registers that one block message moves, all lanes' dwords contiguous; 0 if it cannot."""
    elem, lanes, registers = tile.elem.bytes, at.shape[1], at.shape[2]
    across = np.arange(lanes)[None, :, None] * DWORD
    if not (at - at[:, :1] == across).all():
        return 0
    size = facts.block_bytes
    while size >= lanes * DWORD:
        run: int = size // (lanes * elem)
        dword, byte = np.divmod(np.arange(run) * elem, DWORD)
        if registers % run == 0 and _runs(at, run, dword * DWORD * lanes + byte):
            return run
        size //= 2
    return 0
