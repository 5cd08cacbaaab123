"""How a distributed tile moves between registers and shared memory, message by message.

What holds of addresses is checked on every subgroup, lane and register, so any layout and swizzle will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np

from convgen.ir.expr import Const, Expr, Lane, lift
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.fragment import DWORD, Fragment
from convgen.ir.layout.memory import Shared
from convgen.ir.record import frozen
from convgen.ir.stmt import TURNED
from convgen.passes.messages.linear import ZERO

RUN = 4  #: elements that a lane reads to be turned, and gets
TURNED_BITS = 16  #: of such an element


class Way(Enum):
    """How a message moves elements."""

    LANE = "lane"  #: those of each lane side by side
    BLOCK = "block"  #: those of all lanes side by side, at a uniform address
    TURNED = "turned"  #: to be read: those of neighbouring lanes side by side


@frozen
class SharedMessage:
    """Registers [start, start + count) of the fragment at `address + imm` bytes of the tile."""

    start: int
    count: int
    way: Way
    address: Expr
    imm: int


@frozen
class _Piece:
    """A message's registers, and where it goes: `gap` bytes behind the message that starts at register `leader`."""

    start: int
    count: int
    way: Way
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
    """The messages of a distributed access to a shared tile; addresses that differ by a constant are shared.

    The tile begins at `base`, which counts with an immediate: together they stay within its field. So does the place of
    a part that begins at row and column `start`, within which chunks are swizzled.
    """
    page = facts.shared_imm_max + 1
    fixed = slot.bits * tile.slot_bytes if isinstance(slot, Const) else 0
    fixed += tile.address(0, *start) if any(start) else 0
    addresses: dict[int, Expr] = {}  # by leader
    for piece in _plan(tile, layout, subgroups, facts, reads):
        if piece.leader not in addresses:
            addresses[piece.leader] = _address(tile, layout, subgroup, piece.way, piece.leader)
        address = addresses[piece.leader]
        if not isinstance(slot, Const):
            address = address + slot * tile.slot_bytes
        imm = piece.gap + fixed
        extra = (base + imm) // page * page if page > 1 else imm
        address = address + extra if extra else address
        yield SharedMessage(piece.start, piece.count, piece.way, address, imm - extra)


@lru_cache(maxsize=2**8)
def _address(tile: Shared, layout: Fragment, subgroup: Expr, way: Way, leader: int) -> Expr:
    """Where in a slot the message goes that starts at a register: the same in all slots, and whenever it is made."""
    row, col = layout.coords(subgroup, *first_of(way, Lane(), leader)).values()
    return lift(tile.address(0, row, col), ZERO)


def first_of(way: Way, lane: Any, register: Any) -> tuple[Any, Any]:
    """The lane and register whose element is the first of what a lane moves with a message from a register on."""
    if way is not Way.TURNED:
        return (lane if way is Way.LANE else ZERO), register
    within = lane % TURNED
    return lane - within + within % RUN * RUN, within // RUN + register


@lru_cache(maxsize=2**10)
def _plan(tile: Shared, layout: Fragment, subgroups: int, facts: TargetFacts, reads: bool) -> tuple[_Piece, ...]:
    """The messages of an access, in register order."""
    subgroup, lane, register = np.meshgrid(
        np.arange(subgroups), np.arange(facts.subgroup_size), np.arange(layout.registers), indexing="ij"
    )
    row, col = layout.coords(subgroup, lane, register).values()
    at = np.broadcast_to(tile.address(0, row, col), subgroup.shape)
    way, run = _way(tile, at, facts, reads)
    first = at[subgroup, *first_of(way, lane, register - register % RUN)] if way is Way.TURNED else at
    leaders: list[int] = []
    plan = []
    for start in range(0, layout.registers, run):
        gaps = ((leader, first[:, :, start] - first[:, :, leader]) for leader in leaders)
        constant = ((leader, int(gap.flat[0])) for leader, gap in gaps if (gap == gap.flat[0]).all())
        leader, gap = next(((n, g) for n, g in constant if g >= 0), (start, 0))
        if leader == start:
            leaders.append(start)
        plan.append(_Piece(start, run, way, leader, gap))
    return tuple(plan)


def _way(tile: Shared, at: Any, facts: TargetFacts, reads: bool) -> tuple[Way, int]:
    """How messages move the elements at some addresses [subgroups, lanes, registers], and how many registers each."""
    if run := _block_run(tile, at, facts):
        return Way.BLOCK, run
    run = _lane_run(tile, at, facts)
    if run < RUN and reads and facts.turned_reads and tile.elem.bits == TURNED_BITS and are_turned(at):
        return Way.TURNED, RUN
    return Way.LANE, run


@lru_cache(maxsize=2**10)
def can_turn(fragment: Fragment, lanes: int) -> bool:
    """Whether reads of a tile whose columns stand side by side are turned."""
    lane, register = np.meshgrid(np.arange(lanes), np.arange(fragment.registers), indexing="ij")
    row, col = fragment.coords(0, lane[None], register[None]).values()
    height = fragment.shape[0]
    at = (row + col * height) * (TURNED_BITS // 8)
    return are_turned(np.broadcast_to(at, (1, *lane.shape)))


def are_turned(at: Any) -> bool:
    """Whether of every four registers four neighbouring lanes have neighbours, at addresses of two bytes each."""
    if at.shape[2] % RUN or at.shape[1] % TURNED:
        return False
    fours = at.reshape(at.shape[0], -1, RUN, at.shape[2])
    steps = np.arange(RUN)[:, None] * (TURNED_BITS // 8)
    return bool((fours - fours[:, :, :1] == steps).all() and (fours[:, :, 0] % 8 == 0).all())


def _runs(at: Any, run: int, steps: Any) -> bool:
    """Whether in each aligned run of registers the addresses are `steps` further on than the first one."""
    groups = at.reshape(*at.shape[:2], -1, run)
    return bool((groups - groups[..., :1] == steps).all())


def _lane_run(tile: Shared, at: Any, facts: TargetFacts) -> int:
    """The most registers whose elements stand side by side in memory, within a chunk."""
    elem, registers = tile.elem.bytes, at.shape[2]
    runs = (w // elem for w in facts.shared_widths if w <= tile.chunk and w % elem == 0)
    return next((r for r in runs if registers % r == 0 and _runs(at, r, np.arange(r) * elem)), 1)


def _block_run(tile: Shared, at: Any, facts: TargetFacts) -> int:
    """The most registers that one block moves as they stand, the dwords of all lanes side by side; 0 if it cannot."""
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
