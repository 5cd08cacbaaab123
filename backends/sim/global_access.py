"""Reading and writing device memory for a group: allocation checks, alignment, visibility of stores, poison."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from convgen.backends.sim.causality import Who
from convgen.backends.sim.device_memory import READER_GROUP, READER_WAVE, Allocation
from convgen.backends.sim.threads import Stepped, Threads
from convgen.backends.sim.wave_arrays import U64, Array, Bools, all_bits
from convgen.backends.simulation import Source

_UNWAITED = ", without its wait before the barrier between"
_FEW = 8  #: lanes that are looked at one by one


def everyone(g: Threads) -> list[Who]:
    """The threads of a group, now."""
    epochs = g.env.epoch[g.slot]
    return [Who(int(t), int(i), int(e)) for t, i, e in zip(g.wave_ids(), g.group_id, epochs, strict=True)]


def parts_of(
    g: Threads,
    step: Stepped,
    address: U64,
    size: int,
    lanes: Bools | None,
    alignment: int = 4,
    aligned: Source | None = None,
) -> list[tuple[Allocation, Array, Bools | None]]:
    """(allocation, safe offsets [waves, lanes], lanes) for the accesses that hit a buffer; the others are reported.

    Accesses of `size` bytes are aligned to that, or to `alignment` where that is less; `aligned` says what asks for it
    where that is not what asks for plain accesses.
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
    found = []
    for allocation, some in parts:
        taken = some if some is not None else lanes
        offset = (address - np.uint64(allocation.base)).view(np.int64)
        if taken is not None:
            offset = np.where(taken, offset, 0)
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
        found.append((allocation, offset, taken))
    return found


def reader_of(g: Threads) -> Array:
    """The stamp of a load by each thread now, [threads, 1]."""
    epoch = g.env.epoch[g.slot].astype(np.int64)
    stamp: Array = (g.group_id.astype(np.int64) + 1 << READER_GROUP) | epoch << READER_WAVE | (g.wave + 1)
    return stamp[:, None]


def check_reads(g: Threads, step: Stepped, address: U64, size: int, values: Array, lanes: Bools | None) -> None:
    """Report a store that changes what another thread has loaded in this launch with nothing to order the two: one of
    its workgroup since the last barrier, or one of another workgroup where no kernel code acquires.
    """
    for allocation, some in g.env.memory.resolve(address, size, lanes)[0]:
        taken = some if some is not None else lanes
        if allocation.private or not allocation.writable or (allocation.readers is None and not allocation.loads):
            continue
        offset = (address - np.uint64(allocation.base)).view(np.int64)
        offset = offset if taken is None else np.where(taken, offset, 0)
        before, own = allocation.read_by(offset, size), reader_of(g)
        apart = before >> READER_GROUP != own >> READER_GROUP
        here = (before >> READER_WAVE == own >> READER_WAVE) & (before != own)
        race = (before != 0) & (here | apart & (not g.env.causality.tracked))
        if not np.count_nonzero(race):
            continue
        lost = race.any(axis=0) & np.any(allocation.load(offset, size) != values, axis=0)
        lost = lost if taken is None else lost & taken
        what = "overwrites what another wave has loaded, with nothing to order the two"
        g.env.reporter.at_first("global-race", what, step.instruction, g, lost)


def _observed(g: Threads, kind: str, to: Allocation, offset: Array, size: int, lanes: Bools | None) -> None:
    """Tell who looks on of an access."""
    if g.env.observe is not None:
        group = np.broadcast_to(g.group_id[:, None], offset.shape)
        taken = slice(None) if lanes is None else lanes
        g.env.observe(kind, to.name, group[taken].ravel(), offset[taken].ravel(), size)


def load_lanes(
    g: Threads, step: Stepped, address: U64, size: int, lanes: Bools | None, alignment: int = 4, atomic: str = ""
) -> tuple[Array, Bools | None]:
    """Data [words, waves, lanes] and its poison; lanes that take no part read 0.

    An `atomic` load may meet others' atomic "operations", or, where those are not marked, all their "stores"; one that
    is a "guess" may meet operations where a compare-and-swap follows that finds out.
    """
    data: Array | None = None
    poison: Bools | None = None
    for allocation, offset, taken in parts_of(g, step, address, size, lanes, alignment):
        got = allocation.load(offset, size)
        _observed(g, "load", allocation, offset, size, taken)
        if g.env.strict:
            if atomic != "stores":
                check_stores(g, step, allocation, offset, size, taken, "loads")
            if atomic in ("", "guess"):
                check_updates(g, step, allocation, offset, size, taken, "loads", guess=bool(atomic))
            elif atomic == "operations":
                check_overtaken(g, step, allocation, offset, size, taken)
            if not atomic:
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
    """Data [words, waves, lanes] without a look at whether it may be read; lanes that take no part read 0."""
    data: Array = np.zeros((max(size // 4, 1), *address.shape), np.uint32)
    parts, _ = g.env.memory.resolve(address, size, lanes)
    for allocation, some in parts:
        taken = some if some is not None else lanes
        offset = (address - np.uint64(allocation.base)).view(np.int64)
        got = allocation.load(offset if taken is None else np.where(taken, offset, 0), size)
        data = got if taken is None else np.where(taken, got, data)
    return data


def is_writable(g: Threads, step: Stepped, allocation: Allocation, taken: Bools | None) -> bool:
    """Whether a buffer may be written; reports it where not."""
    if not allocation.writable:
        some = np.ones(g.count, np.bool_) if taken is None else taken
        g.env.reporter.at_first("read-only", f"store to {allocation.name!r}", step.instruction, g, some)
    return allocation.writable


def _changing(
    g: Threads, address: U64, size: int, values: Array, lanes: Bools | None
) -> Iterator[tuple[Allocation, Array, Bools]]:
    """Where what stands in a buffer that remembers its stores differs from the values: (buffer, offsets, lanes)."""
    parts, _ = g.env.memory.resolve(address, size, lanes)
    for allocation, some in parts:
        taken = some if some is not None else lanes
        if allocation.stamps is None:
            continue
        offset = (address - np.uint64(allocation.base)).astype(np.int64)
        if taken is not None:
            offset = np.where(taken, offset, 0)
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
    """Report a store that changes what another thread has stored in this launch, with nothing to order the two.

    Storing the same value again is no race that anyone can see. `own_in_order`: a thread's own stores keep their order.
    """
    for allocation, offset, changed in _changing(g, address, size, values, lanes):
        if own_in_order:
            marks = allocation.marks(offset, size)
            assert marks is not None
            changed &= ((marks[0] > 0) & (marks[1] != g.wave_ids()[:, None])).any(axis=0)
        check_stores(g, step, allocation, offset, size, changed, "overwrites")


def check_meeting(g: Threads, step: Stepped, address: U64, size: int, values: Array, lanes: Bools | None) -> None:
    """Report threads that have just stored different values to one place with the same instruction."""
    for allocation, offset, lost in _changing(g, address, size, values, lanes):
        marks = allocation.marks(offset, size)
        assert marks is not None
        lost &= marks[1].max(axis=0) != g.wave_ids()[:, None]
        if lost.any():
            what = "stores to a place where another thread stores something else"
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
    """Write values [words, waves, lanes] of the lanes that take part; an `atomic` store may meet others' operations."""
    for allocation, offset, taken in parts_of(g, step, address, size, lanes, alignment):
        if not is_writable(g, step, allocation, taken):
            continue
        if g.env.strict and not atomic:
            check_updates(g, step, allocation, offset, size, taken, "overwrites")
        _observed(g, "store", allocation, offset, size, taken)
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
    """What is wrong with an access, and whether only order that waves have of themselves is missing."""

    what: str
    is_own: bool


def _unordered(g: Threads, row: int, ticket: int, wave: int, outstanding: Collection[int]) -> _Lack | None:
    """What is wrong with a wave's access to bytes that store `ticket` of `wave` wrote; None when it is behind it."""
    if wave == int(g.wave_ids()[row]):
        return _Lack("its own store wrote, without a wait between", is_own=True) if ticket in outstanding else None
    if wave // g.env.waves != g.group_id[row]:
        who = Who(int(g.wave_ids()[row]), int(g.group_id[row]), int(g.env.epoch[g.slot[row]]))
        causality, group = g.env.causality, wave // g.env.waves
        if causality.covers(who, ticket, wave, group):
            return None
        unwaited = causality.covers(who, ticket, wave, group, issued=True)
        return _Lack(f"workgroup {group} wrote" + (_UNWAITED if unwaited else " in the same launch"), unwaited)
    done = g.env.store_done.get((ticket, wave))
    if done is not None and done < g.env.epoch[g.slot[row]]:
        return None
    issued = g.env.store_issued.get((ticket, wave))
    unwaited = issued is not None and issued < g.env.epoch[g.slot[row]]
    missing = _UNWAITED if unwaited else ", without its wait and a barrier between"
    return _Lack(f"wave {wave % g.env.waves} wrote{missing}", unwaited)


def issue_store(g: Threads) -> int:
    """The number of a new store or atomic operation; notes the epoch for each of its threads."""
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
    """Report a load or atomic operation on bytes that this launch has stored, where nothing orders the two.

    `queued` accesses go the way that stores go.
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
    who = np.stack((rows, ticket[suspect], writer[suspect]))
    for at in np.unique(who, axis=1, return_index=True)[1] if len(rows) > _FEW else range(len(rows)):
        row, lane = rows[at], lanes_[at]
        lack = _unordered(g, row, int(ticket[row, lane]), int(writer[row, lane]), outstanding)
        if lack:
            kind = "global-visibility" if access == "loads" else "global-race"
            message = f"{access} what {lack.what}, at {allocation.name} + {int(offset[row, lane]):#x}"
            source = g.env.own_order if queued and lack.is_own else None
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
    """Report a plain load or store of bytes that this launch updates atomically, where nothing orders the two.

    That of a `guess` is held until compare-and-swaps have found out, if they come (`Reporter.hold`).
    """
    if allocation.updated is None:
        return
    units, hit = _updated(allocation.updated, allocation, offset, size, lanes)
    if not hit.any():
        return
    outstanding = g.outstanding_stores()
    for row in np.flatnonzero(hit.any(axis=(0, 2))):
        mine = set(units[:, row][hit[:, row]].tolist())
        met = {(wave, ticket) for unit in mine for wave, ticket in allocation.updates[unit].items()}
        wrong = (_unordered(g, int(row), ticket, wave, outstanding) for wave, ticket in sorted(met))
        for lack in filter(None, wrong):
            kind = "global-visibility" if access == "loads" else "global-race"
            lane = int(hit[:, row].any(axis=0).argmax())
            message = f"{access} what an atomic operation of {lack.what}".replace("of its own store", "of its own")
            message += f", at {allocation.name} + {int(offset[row, lane]):#x}"
            source = g.env.own_order if queued and lack.is_own else None
            report = partial(g.env.reporter.add, kind, message, step.instruction, g, int(row), lane, source)
            if guess and source is None:
                places = {(int(g.wave_ids()[row]), allocation.name, unit) for unit in mine}
                g.env.reporter.hold(places, report)
                break
            report()
            if source is None:
                return


def check_overtaken(
    g: Threads, step: Stepped, allocation: Allocation, offset: Array, size: int, lanes: Bools | None
) -> None:
    """Report an atomic load of what an atomic store of another thread wrote, where this thread has observed what the
    other published behind the store without waiting for it: the flag may arrive before the data.
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
    """Stores have been waited for: note the epoch for each of their waves."""
    for row, wave in enumerate(g.wave_ids()):
        for ticket in tickets:
            g.env.store_done[ticket, int(wave)] = int(g.env.epoch[g.slot[row]])
