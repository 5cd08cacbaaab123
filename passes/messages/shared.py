"""How a distributed tile moves between registers and shared memory, message by message.

What holds of addresses is checked on every subgroup, lane and register, so any layout and swizzle will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from convgen.ir.expr import Const, Expr, Lane, lift
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.fragment import DWORD, Fragment
from convgen.ir.layout.memory import Shared
from convgen.passes.messages.linear import ZERO


@attrs.frozen
class SharedMessage:
    """Registers [start, start + count) of the fragment at `address + imm` bytes of the tile; a block's is uniform."""

    start: int
    count: int
    block: bool
    address: Expr
    imm: int


@attrs.frozen
class _Piece:
    """A message's registers, and where it goes: `gap` bytes behind the message that starts at register `leader`."""

    start: int
    count: int
    block: bool
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
) -> Iterator[SharedMessage]:
    """The messages of a distributed access to a shared tile; addresses that differ by a constant are shared.

    The tile begins at `base`, which counts with an immediate: together they stay within its field. So does the place of
    a part that begins at row and column `start`, within which chunks are swizzled.
    """
    page = facts.shared_imm_max + 1
    fixed = slot.bits * tile.slot_bytes if isinstance(slot, Const) else 0
    fixed += tile.address(0, *start)
    for piece in _plan(tile, layout, subgroups, facts):
        lane = ZERO if piece.block else Lane()
        row, col = layout.coords(subgroup, lane, piece.leader).values()
        address = lift(tile.address(0, row, col), ZERO)
        if not isinstance(slot, Const):
            address = address + slot * tile.slot_bytes
        imm = piece.gap + fixed
        extra = (base + imm) // page * page if page > 1 else imm
        address = address + extra if extra else address
        yield SharedMessage(piece.start, piece.count, piece.block, address, imm - extra)


@lru_cache(maxsize=2**10)
def _plan(tile: Shared, layout: Fragment, subgroups: int, facts: TargetFacts) -> tuple[_Piece, ...]:
    """The messages of an access, in register order."""
    subgroup, lane, register = np.meshgrid(
        np.arange(subgroups), np.arange(facts.subgroup_size), np.arange(layout.registers), indexing="ij"
    )
    row, col = layout.coords(subgroup, lane, register).values()
    at = np.broadcast_to(tile.address(0, row, col), subgroup.shape)
    block, run = True, _block_run(tile, at, facts)
    if not run:
        block, run = False, _lane_run(tile, at, facts)
    leaders: list[int] = []
    plan = []
    for start in range(0, layout.registers, run):
        gaps = ((leader, at[:, :, start] - at[:, :, leader]) for leader in leaders)
        constant = ((leader, int(gap.flat[0])) for leader, gap in gaps if (gap == gap.flat[0]).all())
        leader, gap = next(((n, g) for n, g in constant if g >= 0), (start, 0))
        if leader == start:
            leaders.append(start)
        plan.append(_Piece(start, run, block, leader, gap))
    return tuple(plan)


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
