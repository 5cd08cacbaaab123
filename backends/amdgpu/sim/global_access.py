"""Reading and writing device memory for a group: allocation checks, alignment, visibility of stores, poison."""

from __future__ import annotations

import numpy as np

from convgen.backends.amdgpu.sim.memory import Allocation
from convgen.backends.amdgpu.sim.state import U64, Array, Bools, Pending, WaveGroup
from convgen.backends.amdgpu.sim.step import Step


def parts_of(
    g: WaveGroup, step: Step, address: U64, size: int, lanes: Bools | None
) -> list[tuple[Allocation, Array, Bools | None]]:
    """(allocation, safe offsets [waves, lanes], lanes) for the accesses that hit a buffer; the others are reported."""
    parts, missing = g.env.memory.resolve(address, size, lanes)
    if missing is not None:
        row, lane = (int(i) for i in np.argwhere(missing)[0])
        where = int(address[row, lane])
        near = g.env.memory.near(where)
        hint = "" if near is None else f" (buffer {near.name!r} + {where - near.base:#x}, of {len(near.data):#x} bytes)"
        g.env.reporter.add(
            "out-of-bounds",
            f"{size} bytes at {where:#x} are outside every buffer{hint}",
            step.instruction,
            g,
            row,
            lane,
        )
    found = []
    for allocation, some in parts:
        taken = some if some is not None else lanes
        offset = (address - np.uint64(allocation.base)).astype(np.int64)
        if taken is not None:
            offset = np.where(taken, offset, 0)
        need = min(size, 4)
        if int(np.bitwise_or.reduce(offset, axis=None)) & (need - 1):
            g.env.reporter.at_first(
                "misaligned",
                f"global access of {size} bytes not aligned to {need}",
                step.instruction,
                g,
                (offset & (need - 1)) != 0,
            )
        found.append((allocation, offset, taken))
    return found


def load_lanes(g: WaveGroup, step: Step, address: U64, size: int, lanes: Bools | None) -> tuple[Array, Bools | None]:
    """Data [words, waves, lanes] and its poison; lanes that take no part read 0."""
    data: Array | None = None
    poison: Bools | None = None
    for allocation, offset, taken in parts_of(g, step, address, size, lanes):
        got = allocation.load(offset, size)
        if g.env.strict:
            check_visible(g, step, allocation, offset, size, taken)
            undefined = allocation.load_poison(offset, size)
            if undefined is not None:
                undefined = undefined if taken is None else undefined & taken
                poison = undefined if poison is None else poison | undefined
        if taken is not None:
            got = np.where(taken, got, np.uint32(0) if data is None else data)
        data = got
    if data is None:
        data = np.zeros((max(size // 4, 1), *address.shape), np.uint32)
    return data, poison


def store_lanes(
    g: WaveGroup, step: Step, address: U64, size: int, values: Array, lanes: Bools | None, ticket: int
) -> None:
    """Write values [words, waves, lanes] of the lanes that take part."""
    for allocation, offset, taken in parts_of(g, step, address, size, lanes):
        if not allocation.writable:
            some = np.ones(address.shape, np.bool_) if taken is None else taken
            g.env.reporter.at_first("read-only", f"store to {allocation.name!r}", step.instruction, g, some)
            continue
        waves = np.broadcast_to(g.env.wave_ids(g)[:, None], address.shape)
        if taken is None:
            flat, data, owners = offset.reshape(-1), values.reshape(len(values), -1), waves.reshape(-1)
        else:
            flat, data, owners = offset[taken], values[:, taken], waves[taken]
        allocation.store(flat, size, data)
        if g.env.strict:
            allocation.mark(flat, size, ticket, owners)


def check_visible(
    g: WaveGroup, step: Step, allocation: Allocation, offset: Array, size: int, lanes: Bools | None
) -> None:
    """Report a load of bytes that this launch has stored and that the reader may not rely on seeing."""
    marks = allocation.marks(offset, size)
    if marks is None:
        return
    ticket, writer = marks[0].max(axis=0), marks[1].max(axis=0)
    suspect = ticket > 0 if lanes is None else (ticket > 0) & lanes
    if not suspect.any():
        return
    mine = g.env.wave_ids(g)
    outstanding = {ticket for pending in g.vm for ticket in pending.tickets}
    for row, lane in np.argwhere(suspect):
        stored, wave = int(ticket[row, lane]), int(writer[row, lane])
        if wave == mine[row]:
            if stored not in outstanding:
                continue
            what = "loads what its own store wrote, without a wait between"
        elif wave // g.env.waves != g.group_id[row]:
            what = f"loads what workgroup {wave // g.env.waves} stored in the same launch"
        else:
            done = g.env.store_done.get((stored, wave))
            if done is not None and done < g.env.epoch[g.slot[row]]:
                continue
            what = f"loads what wave {wave % g.env.waves} stored, without its wait and a barrier between"
        g.env.reporter.add("global-visibility", what, step.instruction, g, int(row), int(lane))
        return


def land_store(g: WaveGroup, pending: Pending) -> None:
    """A store has been waited for: note the epoch for each of its waves."""
    for row, wave in enumerate(g.env.wave_ids(g)):
        for ticket in pending.tickets:
            g.env.store_done[ticket, int(wave)] = int(g.env.epoch[g.slot[row]])
