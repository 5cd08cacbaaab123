"""The mbarrier objects of a batch of workgroups (PTX ISA, Parallel Synchronization and Communication: mbarrier).

A phase ends when its pending arrivals and its bytes (tx-count) are zero. A wait for a phase orders what threads did
before they arrived in it, and the copies that it counts, before what the waiting warp does next. A wait by parity tells
odd phases from even ones only: it means the phase after those whose end the warp knows, or the last of these.

Copies land at the last moment, at the wait for which their phase lacks nothing else, or at the first, when they are
issued (`early`). At the last moment too, a warp's first wait for the end of a phase fails unless the warp knows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import numpy as np

from convgen.backends.nvidia.sim.ptx_text import Instruction
from convgen.backends.nvidia.sim.shared_memory import MBARRIERS, Access, Shared
from convgen.backends.nvidia.sim.state import LANES, WarpGroup
from convgen.backends.nvidia.sim.step import Step
from convgen.backends.sim.findings import LaunchStopped, Reporter
from convgen.backends.sim.wave_arrays import Array, any_along
from convgen.backends.simulation import Source
from convgen.ir.record import define, frozen

KIND = "mbarrier"
SIZE = 8  #: bytes of an object
_FRESH = Source(
    "CUDA Programming Guide, Asynchronous Data Copies, TMA: fence.proxy.async makes initialised barriers visible to "
    "the async proxy; all the same Triton's kernels have a barrier alone",
    required=False,
)
_MOST = (1 << 20) - 1  #: of a count of arrivals, and of bytes either way


@frozen(eq=False)
class Transfer:
    """Copies whose end an mbarrier counts: as bytes, or as arrivals of cp.async."""

    step: Step
    size: int
    arrivals: int
    land: Callable[[WarpGroup, int, int], None]  #: called with a group, the mbarrier's agent and the phase's clock


@define(eq=False)
class Mbarrier:
    """An mbarrier object in shared memory."""

    slot: int
    address: int  #: in the workgroup's shared memory
    agent: int  #: number among the agents of the workgroup: its clock counts phases that have ended
    count: int
    pending: int
    phase: int = 0
    size: int = 0  #: tx-count; bytes that the phase still expects
    view: Array | None = None  #: clocks that the arrivals of this phase pass on
    ended: Array | None = None  #: those of the last phase that ended
    transfers: list[Transfer] = attrs.field(factory=list)
    tried: set[tuple[int, int]] = attrs.field(factory=set)  #: warps and phases for whose end they have waited

    @property
    def lacks(self) -> str:
        """Describe what the phase waits for."""
        return f"phase {self.phase} lacks {self.pending} of {self.count} arrivals and {self.size} bytes"


@frozen(eq=False)
class Use:
    """Lanes of one warp that name one mbarrier; `columns` are those of the access."""

    object: Mbarrier
    row: int
    warp: int
    columns: Array
    lanes: Array


class Mbarriers:
    """All mbarriers of a batch."""

    def __init__(self, shared: Shared, reporter: Reporter, *, early: bool) -> None:
        self.shared, self.reporter, self.early = shared, reporter, early
        self.objects: dict[tuple[int, int], Mbarrier] = {}
        self._made: dict[int, int] = {}  #: objects initialised so far, by slot
        #: By slot and warp: the wait that has failed last.
        self.failed: dict[tuple[int, int], tuple[Mbarrier, int, Instruction]] = {}

    # -- objects ------------------------------------------------------------------------------------------------------

    def initialise(self, g: WarpGroup, step: Step, access: Access, counts: Array) -> None:
        """Make an object at each address with a count of arrivals."""
        shared = self.shared
        for column in range(len(access.place)):
            slot, address = self._key(access, column)
            row, lane, count = int(access.row[column]), int(access.lane[column]), int(counts[column])
            if (slot, address) in self.objects:
                what = f"initialises the mbarrier at {address:#x}, which no mbarrier.inval has ended"
                self.reporter.add(KIND, what, step.instruction, g, row, lane)
            if not 1 <= count <= _MOST:
                what = f"a count of {count} arrivals, not of 1 to {_MOST}"
                self.reporter.add(KIND, what, step.instruction, g, row, lane)
            number = self._made.get(slot, 0)
            if number >= MBARRIERS:
                what = f"a workgroup with more than {MBARRIERS} mbarriers, of which the simulator keeps the order"
                self.reporter.add(KIND, what, step.instruction, g, row, lane)
                raise LaunchStopped
            self._made[slot] = number + 1
            self.objects[slot, address] = Mbarrier(slot, address, shared.agents.mbarriers + number, count, count)
        shared.flight[access.units] = 0
        access.is_mbarrier = True
        shared.note_stores(g, step, access, None, defined=False)
        shared.mark_mbarriers(access)

    def invalidate(self, g: WarpGroup, step: Step, access: Access) -> None:
        """End the objects at some addresses."""
        for use in self.uses(g, step, access):
            self._check_idle(use.object, step.instruction)
            self.objects.pop((use.object.slot, use.object.address), None)
        self.shared.flight[access.units] = 0
        self.shared.note_stores(g, step, access, None, defined=False)

    def _key(self, access: Access, column: int) -> tuple[int, int]:
        slot = int(access.slot[column])
        return slot, int(access.place[column]) - slot * self.shared.stride

    def uses(self, g: WarpGroup, step: Step, access: Access) -> Iterator[Use]:
        """Yield the lanes of each warp by the object that they name; report addresses without one.

        A use counts as a load, so that inval and init have to come behind it.
        """
        hidden = any_along(self.shared.unseen_stores(access), 0)
        self.shared.mark_loads(access)
        groups: dict[tuple[int, int, int], list[int]] = {}
        for column in range(len(access.place)):
            groups.setdefault((int(access.row[column]), *self._key(access, column)), []).append(column)
        for (row, slot, address), columns in groups.items():
            thing = self.objects.get((slot, address))
            lane = int(access.lane[columns[0]])
            if thing is None:
                what = f"no mbarrier has been initialised at {address:#x}"
                self.reporter.add(KIND, what, step.instruction, g, row, lane)
                continue
            if hidden[columns].any():
                what = "uses an mbarrier that another thread has initialised, with no barrier between"
                self.reporter.add(KIND, what, step.instruction, g, row, lane)
            at = np.asarray(columns)
            yield Use(thing, row, int(access.warp[columns[0]]), at, access.lane[at])

    def check_fenced(self, g: WarpGroup, step: Step, access: Access) -> None:
        """Report objects for the async proxy whose initialisation no fence has shown to it."""
        lacking = any_along(self.shared.lacks_fence(access), 0)
        if lacking.any():
            column = int(lacking.argmax())
            what = "a copy names an mbarrier with no fence.mbarrier_init or fence.proxy.async behind mbarrier.init"
            row, lane = int(access.row[column]), int(access.lane[column])
            self.reporter.add(KIND, what, step.instruction, g, row, lane, _FRESH)

    # -- arrivals -----------------------------------------------------------------------------------------------------

    def expect(self, g: WarpGroup, step: Step, use: Use, size: int) -> None:
        """Let the phase expect more bytes."""
        use.object.size += size
        self._check_size(g, step, use.object, use.row)
        g.env.memory.changes += 1

    def complete(self, g: WarpGroup, step: Step, use: Use, size: int) -> None:
        """Count bytes as complete."""
        use.object.size -= size
        self._check_size(g, step, use.object, use.row)
        self._advance(g, step, use.object)
        g.env.memory.changes += 1

    def _check_size(self, g: WarpGroup, step: Step, thing: Mbarrier, row: int = 0) -> None:
        if abs(thing.size) > _MOST:
            what = f"{thing.size} bytes pending, beyond {_MOST} either way"
            self.reporter.add(KIND, what, step.instruction, g, row)

    def arrive(self, g: WarpGroup, step: Step, use: Use, count: int, view: Array | None, *, completes: bool) -> None:
        """Count arrivals; `view` are the clocks that they pass on. Report arrivals that the phase has no room for."""
        thing = use.object
        if count > thing.pending:
            what = f"{count} arrivals, of which phase {thing.phase} lacks {thing.pending} of {thing.count}"
            self.reporter.add(KIND, what, step.instruction, g, use.row, int(use.lanes[0]))
        thing.pending -= count
        if view is not None:
            thing.view = view if thing.view is None else np.maximum(thing.view, view)
        before = thing.phase
        self._advance(g, step, thing)
        if thing.phase != before and not completes:
            what = "an arrival with .noComplete ends the phase"
            self.reporter.add(KIND, what, step.instruction, g, use.row, int(use.lanes[0]))
        g.env.memory.changes += 1

    def attach(self, g: WarpGroup, thing: Mbarrier, transfer: Transfer) -> None:
        """Take a copy in flight; with `early` it lands now."""
        thing.transfers.append(transfer)
        g.env.memory.changes += 1
        if self.early:
            self._land(g, thing)

    def _advance(self, g: WarpGroup, step: Step, thing: Mbarrier) -> None:
        """End the phase if nothing is pending."""
        if thing.pending > 0 or thing.size:
            return
        if thing.transfers:
            what = f"phase {thing.phase} of the mbarrier at {thing.address:#x} ends with copies in flight, whose bytes "
            self.reporter.add(KIND, f"{what}it did not expect", thing.transfers[0].step.instruction, g)
        thing.ended, thing.view = thing.view, None
        thing.phase += 1
        thing.pending = thing.count
        g.env.epoch[thing.slot] += np.uint32(1)

    def _land(self, g: WarpGroup, thing: Mbarrier) -> None:
        """Land all copies in flight to an object."""
        while thing.transfers:
            transfer = thing.transfers.pop(0)
            transfer.land(g, thing.agent, thing.phase + 1)
            thing.size -= transfer.size
            thing.pending -= transfer.arrivals
            g.env.memory.changes += 1
            self._check_size(g, transfer.step, thing)
            self._advance(g, transfer.step, thing)

    # -- waits --------------------------------------------------------------------------------------------------------

    def has_ended(self, g: WarpGroup, step: Step, use: Use, parity: int, *, orders: bool) -> bool:
        """Return whether the phase of a parity has ended; `orders` lets the warp see what came before its end."""
        thing, slot = use.object, use.object.slot
        known = int(self.shared.seen[slot, use.warp, thing.agent])
        meant = known if known & 1 == parity else known - 1
        if thing.phase > meant + 1:
            what = f"waits by parity for phase {meant} of the mbarrier at {thing.address:#x}, which is in phase "
            self.reporter.add(KIND, f"{what}{thing.phase}", step.instruction, g, use.row, int(use.lanes[0]))
        return self._tested(g, step, use, meant, thing.phase & 1 == parity, orders=orders)

    def has_ended_since(self, g: WarpGroup, step: Step, use: Use, phase: int, *, orders: bool) -> bool:
        """Return whether the phase of an arrival has ended."""
        thing = use.object
        if phase not in (thing.phase, thing.phase - 1):
            what = f"tests phase {phase} of an mbarrier that is in phase {thing.phase}"
            self.reporter.add(KIND, what, step.instruction, g, use.row, int(use.lanes[0]))
        return self._tested(g, step, use, phase, thing.phase <= phase, orders=orders)

    def _tested(self, g: WarpGroup, step: Step, use: Use, phase: int, is_open: bool, *, orders: bool) -> bool:
        thing = use.object
        if self._comes_first(g, use, phase):
            return False
        if is_open:
            before = thing.phase
            lacking = thing.pending - sum(transfer.arrivals for transfer in thing.transfers)
            if thing.transfers and lacking <= 0:
                self._land(g, thing)
            is_open = thing.phase == before
        if is_open:
            self.failed[thing.slot, use.warp] = thing, phase, step.instruction
            return False
        self.failed.pop((thing.slot, use.warp), None)
        if orders:
            seen = self.shared.seen[thing.slot, use.warp]
            if thing.phase == phase + 1 and thing.ended is not None:
                np.maximum(seen, thing.ended, out=seen)
            seen[thing.agent] = max(seen[thing.agent], phase + 1)
        return True

    def _comes_first(self, g: WarpGroup, use: Use, phase: int) -> bool:
        """Return whether this is a warp's first wait for the end of a phase, which it does not know of."""
        thing = use.object
        if (
            self.early
            or (use.warp, phase) in thing.tried
            or self.shared.seen[thing.slot, use.warp, thing.agent] > phase
        ):
            return False
        thing.tried.add((use.warp, phase))
        g.env.memory.changes += 1
        return True

    # -- ends ---------------------------------------------------------------------------------------------------------

    def deadlock(self, g: WarpGroup) -> bool:
        """Report a group that waits for ever at an mbarrier; return whether it does."""
        for row, key in enumerate(zip(g.slot.tolist(), g.wave.tolist(), strict=True)):
            if key in self.failed:
                thing, phase, instruction = self.failed[key]
                what = f"waits for ever for the end of phase {phase} of the mbarrier at {thing.address:#x}: "
                self.reporter.add(KIND, what + thing.lacks, instruction, g, row)
                return True
        return False

    def check_end(self, instruction: Instruction) -> None:
        """Report objects with copies in flight, or bytes pending, at the end of their workgroup."""
        for thing in self.objects.values():
            self._check_idle(thing, instruction)

    def _check_idle(self, thing: Mbarrier, instruction: Instruction) -> None:
        if thing.transfers:
            what = f"{len(thing.transfers)} copies are in flight to the mbarrier at {thing.address:#x} at its end"
            self.reporter.add(KIND, what, thing.transfers[0].step.instruction)
        elif thing.size:
            what = f"{thing.size} bytes are pending at the mbarrier at {thing.address:#x} at its end"
            self.reporter.add(KIND, what, instruction)


def lanes_as_bits(lanes: Array) -> int:
    """Return a set of lanes as bits."""
    return int((1 << np.asarray(lanes, np.int64)).sum()) & (1 << LANES) - 1
