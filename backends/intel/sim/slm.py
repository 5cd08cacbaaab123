"""Local memory of a workgroup: bounds, alignment, races, bank conflicts.

Banks are an assumption, as nothing public settles them: 32 banks of 4 bytes (16 on XeHPG would double the figure), one
access of each bank a clock, lanes that want the same dword share it.
"""

from __future__ import annotations

import numpy as np

from convgen.backends.intel.sim.gateway import note_local
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.intel.sim.step import Step
from convgen.backends.sim.arrays import U64, Array, Bools, any_along
from convgen.backends.sim.local import Stretch

BANKS = 32
TAG = np.uint64(0xFFFFFFFF ^ 1 << 28)  #: IGC marks local addresses by bit 28, which the hardware must ignore


def places(
    g: ThreadGroup, step: Step, address: U64, size: int, alignment: int, lanes: Bools | None
) -> tuple[Array, Bools | None]:
    """Flat places of the accesses and the lanes that stay inside; the others are reported."""
    slm = g.env.local
    address = address & TAG
    beyond = address > np.uint64(max(slm.size - size, 0))
    if slm.size < size:
        beyond = np.ones(address.shape, np.bool_)
    if lanes is not None:
        beyond &= lanes
    if beyond.any():
        row, lane = (int(i) for i in np.argwhere(beyond)[0])
        what = f"{size} bytes at {int(address[row, lane]):#x} are outside the {slm.size} bytes of local memory"
        g.env.reporter.add("out-of-bounds", what, step.instruction, g, row, lane)
        lanes = ~beyond if lanes is None else lanes & ~beyond
    offset = address.astype(np.int64)
    if lanes is not None:
        offset = np.where(lanes, offset, 0)
    if int(np.bitwise_or.reduce(offset, axis=None)) & (alignment - 1):
        bad = (offset & (alignment - 1)) != 0
        what = f"local access not aligned to {alignment}"
        g.env.reporter.at_first("misaligned", what, step.instruction, g, bad)
        offset &= ~(alignment - 1)
    return offset + (g.slot * slm.stride)[:, None], lanes


def load_local(
    g: ThreadGroup, step: Step, address: U64, size: int, alignment: int, lanes: Bools | None
) -> tuple[Array, Bools | None]:
    """Data [words, threads, lanes] and which of it was never written; lanes that take no part read anything."""
    place, lanes = places(g, step, address, size, alignment, lanes)
    slm = g.env.local
    units = slm.units(place, size)
    words = slm.load(Stretch.of(place, size))
    rows = np.arange(g.count)[:, None]
    if lanes is None:
        bad = slm.note_read(g, step, units, g.stamp)
        note_local(g, step, "read", rows, units)
        undefined = bad
    else:
        where = np.argwhere(lanes)
        mine = np.broadcast_to(g.stamp, lanes.shape)[lanes]
        some = slm.note_read(g, step, units[:, lanes], mine, where)
        note_local(g, step, "read", where[:, 0], units[:, lanes])
        undefined = None
        if some is not None:
            undefined = np.zeros(units.shape, np.bool_)
            undefined[:, lanes] = some
    count_conflicts(g, place, size, lanes)
    if undefined is not None and len(undefined) != len(words):
        undefined = any_along(undefined.reshape(len(words), -1, *undefined.shape[1:]), 1)
    return words, undefined


def store_local(
    g: ThreadGroup,
    step: Step,
    address: U64,
    size: int,
    alignment: int,
    values: Array,
    lanes: Bools | None,
    bad: Bools | None,
) -> None:
    """Write [words, threads, lanes]; undefined data leaves undefined memory."""
    place, lanes = places(g, step, address, size, alignment, lanes)
    slm = g.env.local
    units = slm.units(place, size)
    clean: Array | int = 1
    if bad is not None:
        clean = (~np.repeat(bad, len(units) // len(bad), axis=0)).astype(np.uint32)
    if lanes is None:
        slm.write(g, step, Stretch.of(place, size), values, units, g.stamp, clean)
        note_local(g, step, "write", np.arange(g.count)[:, None], units)
    else:
        where = np.argwhere(lanes)
        mine = np.broadcast_to(g.stamp, lanes.shape)[lanes]
        kept = clean if isinstance(clean, int) else np.broadcast_to(clean, units.shape)[:, lanes]
        at = Stretch.of(place[lanes], size)
        slm.write(g, step, at, values[:, lanes], units[:, lanes], mine, kept, where)
        note_local(g, step, "write", where[:, 0], units[:, lanes])
    count_conflicts(g, place, size, lanes)


def count_conflicts(g: ThreadGroup, place: Array, size: int, lanes: Bools | None) -> None:
    """Count the clocks beyond the first that each dword of an access needs in its fullest bank."""
    if place.shape[1] == 1:
        return
    word = place >> 2
    bank = word % BANKS
    if lanes is None and (np.diff(word, axis=1) == 1).all() and place.shape[1] <= BANKS:
        return
    order = np.where(True if lanes is None else lanes, word, -1)
    order = np.sort(order, axis=1)
    distinct = np.ones(order.shape, np.bool_)
    distinct[:, 1:] = order[:, 1:] != order[:, :-1]
    distinct &= order >= 0
    rows = np.broadcast_to(np.arange(len(order))[:, None], order.shape)[distinct]
    bank = order[distinct] % BANKS
    filled = np.bincount(rows * BANKS + bank, minlength=len(order) * BANKS).reshape(len(order), BANKS)
    extra = int(np.maximum(filled.max(axis=1) - 1, 0).sum())
    g.env.counters["slm_conflict_cycles"] += extra * max(size // 4, 1)
