"""Bulk copies between global and shared memory in flight (PTX ISA, cp.async.bulk, cp.reduce.async.bulk).

An mbarrier counts the bytes of loads. Stores form groups as cp.async does: wait_group.read N lets their source be
written again, wait_group N means that they have written, too. Stores write as late as possible, at such a wait or at
the end of the workgroup, or, with `early`, when they are issued.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convgen.backends.nvidia.sim.atomics import Atomic
from convgen.backends.nvidia.sim.fences import note_store
from convgen.backends.nvidia.sim.mbarriers import Mbarrier, Transfer
from convgen.backends.nvidia.sim.memory_access import check_constant
from convgen.backends.nvidia.sim.shared_access import Access
from convgen.backends.nvidia.sim.state import LANES, WarpGroup
from convgen.backends.nvidia.sim.step import Step
from convgen.backends.nvidia.sim.tensor_boxes import Chunks
from convgen.backends.sim.global_access import (
    check_overwrites,
    check_reads,
    issue_store,
    land_store,
    load_lanes,
    peek_lanes,
    store_lanes,
)
from convgen.backends.sim.wave_arrays import Array, Bools
from convgen.ir.record import define

KIND = "bulk-copy"


@define(eq=False)
class _Store:
    """A store in flight, by one lane."""

    step: Step
    alone: WarpGroup  #: the lane, alone in its group
    lane: int
    group: int  #: groups that its lane has committed before
    clock: int  #: number among the stores of its warp
    write: Callable[[], None] | None  #: None once it has written
    is_read: bool = False  #: whether a wait has covered the reads of its source


class BulkCopies:
    """The bulk stores in flight of a batch, and the groups that each thread has committed."""

    def __init__(self, warps: int, *, early: bool) -> None:
        self.early = early
        self.committed: Array = np.zeros((warps, LANES), np.int64)
        self.issued: Array = np.zeros(warps, np.int64)
        self.pending: list[_Store] = []

    # -- loads --------------------------------------------------------------------------------------------------------

    def load(self, g: WarpGroup, step: Step, lane: int, chunks: Chunks, base: int, mbarrier: Mbarrier) -> None:
        """Issue a load of one lane, alone in its group, that an mbarrier counts; write zeros for chunks outside."""
        shared = g.env.local
        access = _located(g, step, lane, chunks)
        if access is None:
            return
        number = g.env.copies.number(step)
        shared.note_flight(g, step, access, number)
        address = np.uint64(base) + chunks.offset.astype(np.uint64)[None]
        words, poison = load_lanes(g, step, address, chunks.size, chunks.inside[None], chunks.size)
        if poison is not None and poison.any():
            finding = "copies undefined bytes of global memory"
            g.env.reporter.add("poison", finding, step.instruction, g, 0, lane)

        def land(waiting: WarpGroup, agent: int, clock: int) -> None:
            if (peek_lanes(g, address, chunks.size, chunks.inside[None]) != words).any():
                finding = "copies bytes of global memory that changed before its mbarrier's phase ended"
                g.env.reporter.add(KIND, finding, step.instruction, g, 0, lane)
            shared.land_flight(access, words[:, 0], number, agent, clock)

        g.env.counters["bulk_load_bytes"] += chunks.size * len(chunks.place)
        g.env.mbarriers.attach(g, mbarrier, Transfer(step, chunks.size * len(chunks.place), 0, land))

    # -- stores -------------------------------------------------------------------------------------------------------

    def store(self, g: WarpGroup, step: Step, lane: int, chunks: Chunks, base: int, atomic: Atomic | None) -> None:
        """Issue a store, or a reduction, of one lane, alone in its group; write no chunks outside the tensor."""
        shared, thread = g.env.local, int(g.thread[0])
        access = _located(g, step, lane, chunks)
        if access is None:
            return
        self.issued[thread] += 1
        clock = int(self.issued[thread])
        agent = shared.agents.stores + int(g.wave[0])
        undefined = shared.note_agent_load(g, step, access, g.wave, agent, clock, lane=lane)
        if undefined is not None and (undefined & chunks.inside).any():
            finding = "stores undefined bytes of shared memory"
            g.env.reporter.add("poison", finding, step.instruction, g, 0, lane)
        words = shared.load(access.stretch)[:, None]
        address = np.uint64(base) + chunks.offset.astype(np.uint64)[None]

        def write() -> None:
            if atomic is None:
                _write(g, step, address, chunks.size, words, chunks.inside[None])
            else:
                atomic.update(g, address, _as_numbers(words, chunks.size), None, chunks.inside[None])

        g.env.counters["bulk_store_bytes"] += chunks.size * int(chunks.inside.sum())
        self.pending.append(_Store(step, g, lane, int(self.committed[thread, lane]), clock, write))
        if self.early:
            _land(self.pending[-1])

    def commit(self, g: WarpGroup) -> None:
        """End a group of each thread."""
        self.committed[g.thread] += g.active

    def wait(self, g: WarpGroup, allowed: int, *, reads: bool) -> None:
        """Wait for all but the last `allowed` groups of each thread; `reads`: only until their source is read."""
        row_of = {int(thread): row for row, thread in enumerate(g.thread)}
        still: list[_Store] = []
        for store in self.pending:
            thread = int(store.alone.thread[0])
            row = row_of.get(thread)
            covered = row is not None and bool(g.active[row, store.lane])
            if not covered or store.group >= int(self.committed[thread, store.lane]) - allowed:
                still.append(store)
                continue
            seen = g.env.local.seen[int(store.alone.slot[0]), int(store.alone.wave[0])]
            agent = g.env.local.agents.stores + int(store.alone.wave[0])
            seen[agent] = max(seen[agent], store.clock)
            store.is_read = True
            if reads:
                still.append(store)
            else:
                _land(store)
        self.pending = still
        g.env.memory.changes += 1

    def check_end(self) -> None:
        """Land all stores at the end of their workgroups; report those whose source nobody has waited for."""
        for store in self.pending:
            if not store.is_read:
                thread = int(store.alone.thread[0])
                committed = store.group < int(self.committed[thread, store.lane])
                lack = "wait_group has covered" if committed else "commit_group has closed"
                finding = f"reads shared memory in flight when its workgroup ends, which no cp.async.bulk.{lack}"
                store.alone.env.reporter.add(KIND, finding, store.step.instruction, store.alone, 0, store.lane)
            _land(store)
        self.pending = []


def alone(g: WarpGroup, row: int, lane: int) -> WarpGroup:
    """Return a group of one lane of one warp, without its registers."""
    mask = np.zeros(g.shape, np.bool_)
    mask[row, lane] = True
    single = g.part(mask, g.pc)
    single.r, single.p = [None] * len(g.r), [None] * len(g.p)
    return single


def _located(g: WarpGroup, step: Step, lane: int, chunks: Chunks) -> Access | None:
    """Return the access of a copy to shared memory; report one outside it."""
    shared = g.env.local
    beyond = (chunks.place < 0) | (chunks.place > shared.size - chunks.size)
    if beyond.any():
        at = int(chunks.place[beyond][0])
        finding = f"{chunks.size} bytes at {at:#x} are outside the {shared.size} bytes of shared memory"
        g.env.reporter.add("out-of-bounds", finding, step.instruction, g, 0, lane)
        return None
    zeros = np.zeros(len(chunks.place), np.int64)
    place = chunks.place + int(g.slot[0]) * shared.stride
    return Access(shared, place, chunks.size, zeros, zeros + g.slot[0], zeros + g.wave[0], zeros + lane)


def _land(store: _Store) -> None:
    if store.write is not None:
        store.write()
        store.write = None


def _as_numbers(words: Array, size: int) -> Array:
    """Return elements [rows, elements] of `size` bytes from words [words, rows, elements]."""
    if size == 8:
        return np.asarray(words[0].astype(np.uint64) | words[1].astype(np.uint64) << np.uint64(32))
    return np.asarray(words[0].astype(f"u{size}"))


def _write(g: WarpGroup, step: Step, address: Array, size: int, words: Array, lanes: Bools) -> None:
    """Store words [words, 1, chunks] to global memory as the lane that is alone in a group."""
    ticket = issue_store(g)
    check_overwrites(g, step, address, size, words, lanes, own_in_order=True)
    check_reads(g, step, address, size, words, lanes)
    check_constant(g, step, address, size, lanes)
    store_lanes(g, step, address, size, words, lanes, ticket, size)
    land_store(g, (ticket,))
    note_store(g, g.active, ticket)
