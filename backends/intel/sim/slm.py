"""Local memory of a workgroup: bounds, alignment, races, bank conflicts.

Banks are an assumption, as no public document states them: 32 banks of 4 bytes (16 on XeHPG would double the
conflicts), one access per bank and clock, shared by lanes that access one dword.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from convgen.backends.intel.sim.gateway import NEXT_EPOCH, epoch_of, note_local
from convgen.backends.intel.sim.late import read_before_store
from convgen.backends.intel.sim.state import LocalAccess, ThreadGroup
from convgen.backends.intel.sim.step import Step
from convgen.backends.sim.local import SEVERAL, Lds, Stretch, wave_of
from convgen.backends.sim.threads import Located, Stepped, Threads
from convgen.backends.sim.wave_arrays import U64, Array, Bools, any_along
from convgen.backends.simulation import Source

_OVERTAKES = Source("IGC, HWCaps.inc hasSLMWARIssue: an SLM store waits for the destinations of SLM loads in flight")
BANKS = 32  #: banks of local memory, a dword wide
TAG = np.uint64(0xFFFFFFFF ^ 1 << 28)  #: IGC marks local addresses by bit 28, which the hardware must ignore


class Slm(Lds):
    """Local memory that remembers loads in flight across a barrier."""

    def __init__(self, slots: int, size: int, grain: int) -> None:
        super().__init__(slots, size, grain, "slm-race")
        #: By unit, the row of the thread that stores to it, during one store; else -1.
        self.owner: npt.NDArray[np.int32] = np.full(len(self.read), -1, np.int32)
        self._carried: dict[int, list[tuple[Array, Array, Located]]] = {}  #: by epoch: units, stamps, instruction

    def remember(self, g: ThreadGroup, access: LocalAccess) -> None:
        """Remember a load, or an atomic operation with a result, in flight while its thread signals a barrier."""
        stamps = (g.stamp[:, 0] + NEXT_EPOCH)[access.rows]
        for epoch in np.unique(epoch_of(stamps)):
            if epoch not in self._carried:
                self._carried = {old: loads for old, loads in self._carried.items() if old + 2 > epoch}
            self._carried.setdefault(int(epoch), []).append((access.units, stamps, access.instruction))

    def _overwrites(self, group: Threads, step: Stepped, others: Bools, where: Array | None, units: Array) -> None:
        reads = others[1]
        if self._carried and np.count_nonzero(reads):
            flat = reads.reshape(len(reads), -1)
            column = flat.any(axis=0).argmax()  # the access that the base class would report
            unit = np.broadcast_to(units, reads.shape).reshape(flat.shape)[flat[:, column].argmax(), column]
            message = self._unwaited(int(unit))
            if message is not None:
                self._report(group, step, reads, message, where, units)
                others = others.copy()
                others[1] = False
        super()._overwrites(group, step, others, where, units)

    def _unwaited(self, unit: int) -> str | None:
        """Return the message for a store to a unit that a load in flight at the barrier may still read; else None."""
        for loaded, stamps, instruction in self._carried.get(int(epoch_of(self.read[unit])), ()):
            met = loaded == unit
            if met.any():
                thread = int(wave_of(stamps[met])[0])
                load = f"`{instruction.text}` at {instruction.address:#x}"
                return f"overwrites what thread {thread}'s {load}, not waited for before the barrier, may still read"
        return None


def check_own_loads(
    g: ThreadGroup, step: Step, rows: Array, units: Array, address: U64, size: int, lanes: Bools | None
) -> None:
    """Let late loads of the thread read before a store; report a load of the thread that the store may overtake."""
    read_before_store(g, address, size, lanes, local=True)
    if g.env.platform.slm_fence_orders_loads:
        return
    loads = [access for access in g.local if access.returns]
    if not loads:
        return
    shape = np.broadcast_shapes(rows.shape, units.shape)
    # A load in flight has stamped its bytes with its thread's epoch, or with the next one.
    read, mine = g.env.local.read.take(units), g.stamp[:, 0].take(rows)
    own = ((read ^ mine) & SEVERAL == 0) | (read & SEVERAL == SEVERAL)
    if not np.count_nonzero(own & (epoch_of(read) >= epoch_of(mine))):
        return
    owner = g.env.local.owner
    stored = np.broadcast_to(units, shape)
    owner[stored] = np.broadcast_to(rows, shape)
    for access in loads:
        met = owner.take(access.units) == access.rows
        if met.any():
            load = f"`{access.instruction.text}` at {access.instruction.address:#x}"
            finding = f"overwrites what the thread's own {load} may still read: its destination was not waited for"
            row = int(access.rows[met.argmax()])
            g.env.reporter.add("slm-race", finding, step.instruction, g, row, source=_OVERTAKES)
    owner[stored] = -1


def places(
    g: ThreadGroup, step: Step, address: U64, size: int, alignment: int, lanes: Bools | None
) -> tuple[Array, Bools | None]:
    """Return flat byte offsets of the accesses and the lanes in bounds; report lanes out of bounds or unaligned."""
    slm = g.env.local
    address = address & TAG
    beyond = address > np.uint64(max(slm.size - size, 0))
    if slm.size < size:
        beyond = np.ones(address.shape, np.bool_)
    if lanes is not None:
        beyond &= lanes
    if beyond.any():
        row, lane = (int(i) for i in np.argwhere(beyond)[0])
        finding = f"{size} bytes at {int(address[row, lane]):#x} are outside the {slm.size} bytes of local memory"
        g.env.reporter.add("out-of-bounds", finding, step.instruction, g, row, lane)
        lanes = ~beyond if lanes is None else lanes & ~beyond
    offset = address.astype(np.int64)
    if lanes is not None:
        offset = np.where(lanes, offset, 0)
    if int(np.bitwise_or.reduce(offset, axis=None)) & (alignment - 1):
        bad = (offset & (alignment - 1)) != 0
        finding = f"local access not aligned to {alignment}"
        g.env.reporter.at_first("misaligned", finding, step.instruction, g, bad)
        offset &= ~(alignment - 1)
    return offset + (g.slot * slm.stride)[:, None], lanes


def load_local(
    g: ThreadGroup, step: Step, address: U64, size: int, alignment: int, lanes: Bools | None
) -> tuple[Array, Bools | None]:
    """Load data [words, threads, lanes] and flags of undefined words; idle lanes read arbitrary data."""
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


def peek_local(g: ThreadGroup, address: U64, size: int, alignment: int) -> Array:
    """Load data [words, threads, lanes] without any check; addresses out of bounds read the last bytes."""
    slm = g.env.local
    offset = np.minimum((address & TAG).astype(np.int64), max(slm.size - size, 0)) & ~(alignment - 1)
    return slm.load(Stretch.of(offset + (g.slot * slm.stride)[:, None], size))


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
    """Write data [words, threads, lanes]; undefined data makes memory undefined."""
    place, lanes = places(g, step, address, size, alignment, lanes)
    slm = g.env.local
    units = slm.units(place, size)
    clean: Array | int = 1
    if bad is not None:
        clean = (~np.repeat(bad, len(units) // len(bad), axis=0)).astype(np.uint32)
    if lanes is None:
        check_own_loads(g, step, np.arange(g.count)[:, None], units, address, size, None)
        slm.write(g, step, Stretch.of(place, size), values, units, g.stamp, clean)
        note_local(g, step, "write", np.arange(g.count)[:, None], units)
    else:
        where = np.argwhere(lanes)
        mine = np.broadcast_to(g.stamp, lanes.shape)[lanes]
        kept = clean if isinstance(clean, int) else np.broadcast_to(clean, units.shape)[:, lanes]
        at = Stretch.of(place[lanes], size)
        check_own_loads(g, step, where[:, 0], units[:, lanes], address, size, lanes)
        slm.write(g, step, at, values[:, lanes], units[:, lanes], mine, kept, where)
        note_local(g, step, "write", where[:, 0], units[:, lanes])
    count_conflicts(g, place, size, lanes)


def count_conflicts(g: ThreadGroup, place: Array, size: int, lanes: Bools | None) -> None:
    """Count bank conflicts: the clocks beyond the first that each dword of an access needs in its fullest bank."""
    if place.shape[1] == 1:
        return
    word = place >> 2
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
