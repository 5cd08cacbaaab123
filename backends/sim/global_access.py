"""Device memory accesses of a group of threads: bounds, alignment, races, visibility of stores, undefined bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from functools import partial
from typing import NamedTuple

import numpy as np

from convgen.backends.sim.causality import Who
from convgen.backends.sim.device_memory import READER_GROUP, READER_WAVE, Allocation
from convgen.backends.sim.threads import Stepped, Threads
from convgen.backends.sim.wave_arrays import U64, Array, Bools, all_bits, any_along
from convgen.backends.simulation import Source

_UNWAITED = " and did not wait for before the barrier"
_FEW = 8  #: lanes that are looked at one by one


def thread_states(g: Threads) -> list[Who]:
    """Return the threads of a group with the barriers that each workgroup has passed so far."""
    epochs = g.env.epoch[g.slot]
    return [Who(int(t), int(i), int(e)) for t, i, e in zip(g.wave_ids(), g.group_id, epochs, strict=True)]


def _in_buffers(
    parts: Iterable[tuple[Allocation, Bools | None]], address: U64, lanes: Bools | None
) -> Iterator[tuple[Allocation, Array, Bools | None]]:
    """Yield (buffer, byte offsets [waves, lanes], lanes) for the parts of an access (`Memory.resolve`).

    Offsets of lanes that take no part are 0; lanes are None if all take part.
    """
    for allocation, some in parts:
        taken = some if some is not None else lanes
        offset = (address - np.uint64(allocation.base)).view(np.int64)
        yield allocation, offset if taken is None else np.where(taken, offset, 0), taken


def buffers_of(
    g: Threads, address: U64, size: int, lanes: Bools | None
) -> Iterator[tuple[Allocation, Array, Bools | None]]:
    """Yield (buffer, byte offsets [waves, lanes], lanes) of an access, as `parts_of` does, without any check."""
    return _in_buffers(g.env.memory.resolve(address, size, lanes)[0], address, lanes)


def parts_of(
    g: Threads,
    step: Stepped,
    address: U64,
    size: int,
    lanes: Bools | None,
    alignment: int = 4,
    aligned: Source | None = None,
) -> list[tuple[Allocation, Array, Bools | None]]:
    """Split an access into (allocation, byte offsets [waves, lanes], lanes); report lanes outside every buffer.

    Offsets of lanes that take no part are 0. Addresses must be multiples of the lesser of `size` and `alignment` bytes;
    `aligned` is the document of this rule; None: the document for plain accesses.
    """
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
    hits = []
    for allocation, offset, taken in _in_buffers(parts, address, lanes):
        need = min(size, alignment)
        if all_bits(offset) & (need - 1):
            g.env.reporter.at_first(
                "misaligned",
                f"global access of {size} bytes not aligned to {need}",
                step.instruction,
                g,
                (offset & (need - 1)) != 0,
                aligned,
            )
        hits.append((allocation, offset, taken))
    return hits


def reader_of(g: Threads) -> Array:
    """Return the stamp of a load by each thread now [threads, 1]: workgroup, epoch and wave (`device_memory`)."""
    epoch = g.env.epoch[g.slot].astype(np.int64)
    stamp: Array = (g.group_id.astype(np.int64) + 1 << READER_GROUP) | epoch << READER_WAVE | (g.wave + 1)
    return stamp[:, None]


def check_reads(g: Threads, step: Stepped, address: U64, size: int, values: Array, lanes: Bools | None) -> None:
    """Report a store that changes bytes which another thread has loaded, if nothing orders the two.

    The other thread is one of the workgroup since the last barrier, or, in a kernel that never acquires, one of any
    other workgroup in this launch.
    """
    for allocation, offset, taken in buffers_of(g, address, size, lanes):
        if allocation.private or not allocation.writable or (allocation.readers is None and not allocation.loads):
            continue
        before, own = allocation.read_by(offset, size), reader_of(g)
        apart = before >> READER_GROUP != own >> READER_GROUP
        here = (before >> READER_WAVE == own >> READER_WAVE) & (before != own)
        race = (before != 0) & (here | apart & (not g.env.causality.tracked))
        if not np.count_nonzero(race):
            continue
        lost = race.any(axis=0) & np.any(allocation.load(offset, size) != values, axis=0)
        lost = lost if taken is None else lost & taken
        what = "overwrites what another wave has loaded, without a barrier or release and acquire between"
        g.env.reporter.at_first("global-race", what, step.instruction, g, lost)


def tell_observer(g: Threads, kind: str, to: Allocation, offset: Array, size: int, lanes: Bools | None) -> None:
    """Call the run's observer, if there is one, with an access."""
    if g.env.observe is not None:
        group = np.broadcast_to(g.group_id[:, None], offset.shape)
        taken = slice(None) if lanes is None else lanes
        g.env.observe(kind, to.name, group[taken].ravel(), offset[taken].ravel(), size)


class LoadKind(Enum):
    """The kind of a load, which decides which unordered accesses of other threads race with it."""

    PLAIN = "plain"  #: stores and atomic operations
    GUESS = "guess"  #: stores; atomic operations, unless a later compare-and-swap checks the loaded value
    ATOMIC = "atomic"  #: stores that are not atomic
    ATOMIC_UNMARKED = "atomic, of a target that does not mark atomic stores"  #: none


def load_lanes(
    g: Threads,
    step: Stepped,
    address: U64,
    size: int,
    lanes: Bools | None,
    alignment: int = 4,
    kind: LoadKind = LoadKind.PLAIN,
) -> tuple[Array, Bools | None]:
    """Load `size` bytes per lane: return data [words, waves, lanes] and its undefined words; idle lanes read 0."""
    data: Array | None = None
    poison: Bools | None = None
    for allocation, offset, taken in parts_of(g, step, address, size, lanes, alignment):
        got = allocation.load(offset, size)
        tell_observer(g, "load", allocation, offset, size, taken)
        if g.env.strict:
            if kind is not LoadKind.ATOMIC_UNMARKED:
                check_stores(g, step, allocation, offset, size, taken, "loads")
            if kind in (LoadKind.PLAIN, LoadKind.GUESS):
                check_updates(g, step, allocation, offset, size, taken, "loads", guess=kind is LoadKind.GUESS)
            elif kind is LoadKind.ATOMIC:
                check_overtaken(g, step, allocation, offset, size, taken)
            if kind is LoadKind.PLAIN:
                allocation.note_load(offset, size, taken, reader_of(g))
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


def peek_lanes(g: Threads, address: U64, size: int, lanes: Bools | None) -> Array:
    """Load data [words, waves, lanes] without any check; lanes that take no part read 0."""
    data: Array = np.zeros((max(size // 4, 1), *address.shape), np.uint32)
    for allocation, offset, taken in buffers_of(g, address, size, lanes):
        got = allocation.load(offset, size)
        data = got if taken is None else np.where(taken, got, data)
    return data


def is_writable(g: Threads, step: Stepped, allocation: Allocation, taken: Bools | None) -> bool:
    """Return whether a buffer may be written; report a finding if not."""
    if not allocation.writable:
        some = np.ones(g.count, np.bool_) if taken is None else taken
        g.env.reporter.at_first("read-only", f"store to {allocation.name!r}", step.instruction, g, some)
    return allocation.writable


def _changing(
    g: Threads, address: U64, size: int, values: Array, lanes: Bools | None
) -> Iterator[tuple[Allocation, Array, Bools]]:
    """Yield (buffer, offsets, lanes) of the lanes whose values differ from memory, in buffers with stamps of stores."""
    for allocation, offset, taken in buffers_of(g, address, size, lanes):
        if allocation.stamps is None:
            continue
        differ = np.any(allocation.load(offset, size) != values, axis=0)
        if taken is not None:
            differ &= taken
        if differ.any():
            yield allocation, offset, differ


def check_overwrites(
    g: Threads,
    step: Stepped,
    address: U64,
    size: int,
    values: Array,
    lanes: Bools | None,
    *,
    own_in_order: bool = False,
) -> None:
    """Report a store that changes bytes which another thread has stored in this launch, if nothing orders the two.

    Storing an equal value again is no race: nobody can see it. With `own_in_order` a thread's own stores stay ordered.
    """
    for allocation, offset, changed in _changing(g, address, size, values, lanes):
        if own_in_order:
            marks = allocation.marks(offset, size)
            assert marks is not None
            changed &= ((marks[0] > 0) & (marks[1] != g.wave_ids()[:, None])).any(axis=0)
        check_stores(g, step, allocation, offset, size, changed, "overwrites")


def check_collisions(g: Threads, step: Stepped, address: U64, size: int, values: Array, lanes: Bools | None) -> None:
    """Report threads that have just stored different values to one place by one instruction."""
    for allocation, offset, lost in _changing(g, address, size, values, lanes):
        marks = allocation.marks(offset, size)
        assert marks is not None
        lost &= marks[1].max(axis=0) != g.wave_ids()[:, None]
        if lost.any():
            what = "stores to an address where another thread stores another value by this instruction"
            g.env.reporter.at_first("global-race", what, step.instruction, g, lost)


def store_lanes(
    g: Threads,
    step: Stepped,
    address: U64,
    size: int,
    values: Array,
    lanes: Bools | None,
    ticket: int,
    alignment: int = 4,
    *,
    atomic: bool = False,
) -> None:
    """Store values [words, waves, lanes] of the active lanes; `atomic` stores do not race with atomic operations."""
    for allocation, offset, taken in parts_of(g, step, address, size, lanes, alignment):
        if not is_writable(g, step, allocation, taken):
            continue
        if g.env.strict and not atomic:
            check_updates(g, step, allocation, offset, size, taken, "overwrites")
        tell_observer(g, "store", allocation, offset, size, taken)
        waves = np.broadcast_to(g.wave_ids()[:, None], address.shape)
        if taken is None:
            flat, data, owners = offset.reshape(-1), values.reshape(len(values), -1), waves.reshape(-1)
        else:
            flat, data, owners = offset[taken], values[:, taken], waves[taken]
        allocation.store(flat, size, data)
        g.env.memory.changes += 1
        if g.env.strict:
            mark = allocation.mark_update if atomic else allocation.mark
            mark(flat, size, ticket, owners)


class _Lack(NamedTuple):
    """A missing order of two accesses: its text, and whether it lacks only the storing wave's wait for the store."""

    what: str
    is_wait: bool


def _unordered(g: Threads, row: int, lane: int, ticket: int, wave: int, outstanding: Collection[int]) -> _Lack | None:
    """Return what fails to order store `ticket` of `wave` before an access of a lane of wave `row`; None: nothing."""
    if wave == int(g.wave_ids()[row]):
        return _Lack("its own store wrote, without a wait between", is_wait=True) if ticket in outstanding else None
    if wave // g.env.waves != g.group_id[row]:
        who = Who(int(g.wave_ids()[row]), int(g.group_id[row]), int(g.env.epoch[g.slot[row]]), 1 << lane)
        causality, group = g.env.causality, wave // g.env.waves
        if causality.covers(who, ticket, wave, group):
            return None
        unwaited = causality.covers(who, ticket, wave, group, issued=True)
        return _Lack(
            f"workgroup {group} wrote" + (_UNWAITED if unwaited else " in this launch, without release and acquire"),
            unwaited,
        )
    done = g.env.store_done.get((ticket, wave))
    if done is not None and done < g.env.epoch[g.slot[row]]:
        return None
    issued = g.env.store_issued.get((ticket, wave))
    unwaited = issued is not None and issued < g.env.epoch[g.slot[row]]
    missing = _UNWAITED if unwaited else ", without a wait and a barrier between"
    return _Lack(f"wave {wave % g.env.waves} wrote{missing}", unwaited)


def issue_store(g: Threads) -> int:
    """Return the ticket of a new store or atomic operation; record the epoch in which each thread issued it."""
    ticket = g.env.ticket()
    for wave, epoch in zip(g.wave_ids().tolist(), g.env.epoch[g.slot].tolist(), strict=True):
        g.env.store_issued[ticket, wave] = epoch
    return ticket


def check_stores(
    g: Threads,
    step: Stepped,
    allocation: Allocation,
    offset: Array,
    size: int,
    lanes: Bools | None,
    access: str,
    *,
    queued: bool = True,
) -> None:
    """Report an access to bytes that this launch has stored, if nothing orders the two.

    `access` is the verb of the message ("loads", "overwrites"). `queued` accesses use the queue of vector stores, which
    keeps a wave's own order.
    """
    marks = allocation.marks(offset, size)
    if marks is None:
        return
    ticket, writer = marks[0].max(axis=0), marks[1].max(axis=0)
    suspect = ticket > 0 if lanes is None else (ticket > 0) & lanes
    if not suspect.any():
        return
    outstanding = g.outstanding_stores()
    rows, lanes_ = np.nonzero(suspect)
    apart = lanes_ if any(map(g.env.causality.lanes_differ, g.wave_ids().tolist())) else np.zeros_like(lanes_)
    who = np.stack((rows, apart, ticket[suspect], writer[suspect]))
    for at in np.unique(who, axis=1, return_index=True)[1] if len(rows) > _FEW else range(len(rows)):
        row, lane = rows[at], lanes_[at]
        lack = _unordered(g, row, int(lane), int(ticket[row, lane]), int(writer[row, lane]), outstanding)
        if lack:
            kind = "global-visibility" if access == "loads" else "global-race"
            message = f"{access} what {lack.what}, at {allocation.name} + {int(offset[row, lane]):#x}"
            source = g.env.own_order if queued and lack.is_wait else None
            g.env.reporter.add(kind, message, step.instruction, g, int(row), int(lane), source)
            if source is None:
                return


def _updated(
    updated: Bools, allocation: Allocation, offset: Array, size: int, lanes: Bools | None
) -> tuple[Array, Bools]:
    """Return the units of an access [units, waves, lanes], and which of them this launch updated atomically."""
    units = allocation.units(offset, size)
    hit = updated.take(units)
    return units, hit if lanes is None else hit & lanes


def _lanes_apart(g: Threads, hit: Bools) -> Iterator[tuple[int, Bools]]:
    """Yield (row, flags of accessing lanes that have acquired equal stores); `hit` flags [units, rows, lanes]."""
    for row in np.flatnonzero(hit.any(axis=(0, 2))).tolist():
        lanes = any_along(hit[:, row], 0)
        if g.env.causality.lanes_differ(int(g.wave_ids()[row])):
            yield from ((row, np.arange(len(lanes)) == lane) for lane in np.flatnonzero(lanes))
        else:
            yield row, lanes


def check_updates(
    g: Threads,
    step: Stepped,
    allocation: Allocation,
    offset: Array,
    size: int,
    lanes: Bools | None,
    access: str,
    *,
    queued: bool = True,
    guess: bool = False,
) -> None:
    """Report a plain load or store of bytes that this launch updates atomically, if nothing orders the two.

    A `guess` is a load whose value a compare-and-swap may check; that drops the finding, which is therefore postponed
    (`Reporter.postpone`).
    """
    if allocation.updated is None:
        return
    units, hit = _updated(allocation.updated, allocation, offset, size, lanes)
    if not hit.any():
        return
    outstanding = g.outstanding_stores()
    for row, lanes_ in _lanes_apart(g, hit):
        some = hit[:, row] & lanes_
        mine = set(units[:, row][some].tolist())
        lane = int(some.any(axis=0).argmax())
        updates = {(wave, ticket) for unit in mine for wave, ticket in allocation.updates[unit].items()}
        wrong = (_unordered(g, row, lane, ticket, wave, outstanding) for wave, ticket in sorted(updates))
        for lack in filter(None, wrong):
            kind = "global-visibility" if access == "loads" else "global-race"
            message = f"{access} what an atomic operation of {lack.what}".replace("of its own store", "of its own")
            message += f", at {allocation.name} + {int(offset[row, lane]):#x}"
            source = g.env.own_order if queued and lack.is_wait else None
            report = partial(g.env.reporter.add, kind, message, step.instruction, g, row, lane, source)
            if guess and source is None:
                places = {(int(g.wave_ids()[row]), allocation.name, unit) for unit in mine}
                g.env.reporter.postpone(places, report)
                break
            report()
            if source is None:
                return


def check_overtaken(
    g: Threads, step: Stepped, allocation: Allocation, offset: Array, size: int, lanes: Bools | None
) -> None:
    """Report an atomic load of another thread's atomic store that the flag may have overtaken.

    The other thread published its flag without waiting for the store, and this thread has observed the flag.
    """
    if allocation.updated is None or not g.env.causality.tracked:
        return
    units, hit = _updated(allocation.updated, allocation, offset, size, lanes)
    for row in np.flatnonzero(hit.any(axis=(0, 2))):
        thread = int(g.wave_ids()[row])
        for unit in set(units[:, row][hit[:, row]].tolist()):
            for wave, ticket in allocation.updates[unit].items():
                if wave != thread and g.env.causality.overtakes(thread, ticket, wave):
                    lane = int((hit[:, row] & (units[:, row] == unit)).any(axis=0).argmax())
                    message = (
                        f"loads what workgroup {wave // g.env.waves} stored and did not wait for before its flag, "
                        f"at {allocation.name} + {int(offset[row, lane]):#x}"
                    )
                    g.env.reporter.add("global-visibility", message, step.instruction, g, int(row), lane)
                    return


def land_store(g: Threads, tickets: Iterable[int]) -> None:
    """Record that the waves have waited for stores `tickets`, with the epoch of each wave's workgroup."""
    for row, wave in enumerate(g.wave_ids()):
        for ticket in tickets:
            g.env.store_done[ticket, int(wave)] = int(g.env.epoch[g.slot[row]])
