"""The mbarrier objects of a batch of workgroups (PTX ISA, Parallel Synchronization and Communication: mbarrier).

A phase ends when its pending arrivals and its bytes (tx-count) are zero. A wait for a phase orders what threads did
before they arrived in it, and the copies that it counts, before what the waiting warp does next. A wait by parity means
the last phase whose end the warp has waited for, or the one after it, whichever is odd or even as the parity says.

Copies land as late as possible, at a wait for whose phase nothing else is missing, or, with `early`, when they are
issued. Without `early`, a warp's first wait for a phase fails even if the phase has ended: loops of waits must repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import numpy as np

from convgen.backends.nvidia.sim.ptx_text import Instruction
from convgen.backends.nvidia.sim.shared_access import Access
from convgen.backends.nvidia.sim.shared_memory import MBARRIERS, Shared
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
    "the async proxy; yet Triton's kernels have a barrier alone",
    required=False,
)
_MOST = (1 << 20) - 1  #: arrivals of a phase, and pending bytes of either sign, at most


@frozen(eq=False)
class Transfer:
    """Copies whose end an mbarrier counts: as bytes, or as arrivals of cp.async."""

    step: Step
    size: int  #: bytes
    arrivals: int
    land: Callable[[WarpGroup, int, int], None]  #: called with a group, the mbarrier's agent and the phase's clock


@define(eq=False)
class Mbarrier:
    """An mbarrier object in shared memory."""

    slot: int
    address: int  #: bytes; in the workgroup's shared memory
    agent: int  #: number among the agents of the workgroup: its clock counts phases that have ended
    count: int  #: arrivals that each phase takes
    pending: int  #: arrivals that the phase lacks
    phase: int = 0
    size: int = 0  #: tx-count; bytes that the phase still expects
    view: Array | None = None  #: clocks that the arrivals of this phase pass on
    ended: Array | None = None  #: clocks that the arrivals of the last phase that ended have passed on
    transfers: list[Transfer] = attrs.field(factory=list)
    tried: set[tuple[int, int]] = attrs.field(factory=set)  #: warps and phases for whose end they have waited

    @property
    def lacks(self) -> str:
        """Describe what the phase waits for."""
        return f"phase {self.phase} lacks {self.pending} of {self.count} arrivals and {self.size} bytes"


@frozen(eq=False)
class Use:
    """Lanes of one warp that name one mbarrier; `columns` are their columns of the access."""

    mbarrier: Mbarrier
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
        #: By slot and warp, the last wait that failed: object, phase, instruction.
        self.failed: dict[tuple[int, int], tuple[Mbarrier, int, Instruction]] = {}

    # -- objects ------------------------------------------------------------------------------------------------------

    def initialise(self, g: WarpGroup, step: Step, access: Access, counts: Array) -> None:
        """Make an object at each address with a count of arrivals."""
        shared = self.shared
        for column in range(len(access.place)):
            slot, address = self._key(access, column)
            row, lane, count = int(access.row[column]), int(access.lane[column]), int(counts[column])
            if (slot, address) in self.objects:
                finding = f"initialises the mbarrier at {address:#x}, which no mbarrier.inval has ended"
                self.reporter.add(KIND, finding, step.instruction, g, row, lane)
            if not 1 <= count <= _MOST:
                finding = f"a count of {count} arrivals, not of 1 to {_MOST}"
                self.reporter.add(KIND, finding, step.instruction, g, row, lane)
            number = self._made.get(slot, 0)
            if number >= MBARRIERS:
                finding = f"a workgroup with more than {MBARRIERS} mbarriers, of which the simulator keeps the order"
                self.reporter.add(KIND, finding, step.instruction, g, row, lane)
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
            self._check_idle(use.mbarrier, step.instruction)
            self.objects.pop((use.mbarrier.slot, use.mbarrier.address), None)
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
        _, first, which = np.unique(
            access.row * len(self.shared.data) + access.place, return_index=True, return_inverse=True
        )
        order = np.argsort(which, kind="stable")
        for at in np.split(order, np.flatnonzero(np.diff(which[order])) + 1) if len(first) > 1 else [order]:
            column = int(at[0])
            row, lane, (slot, address) = int(access.row[column]), int(access.lane[column]), self._key(access, column)
            mbarrier = self.objects.get((slot, address))
            if mbarrier is None:
                finding = f"no mbarrier has been initialised at {address:#x}"
                self.reporter.add(KIND, finding, step.instruction, g, row, lane)
                continue
            if hidden[at].any():
                finding = "uses an mbarrier that another thread has initialised, with no barrier between"
                self.reporter.add(KIND, finding, step.instruction, g, row, lane)
            yield Use(mbarrier, row, int(access.warp[column]), at, access.lane[at])

    def check_fenced(self, g: WarpGroup, step: Step, access: Access) -> None:
        """Report objects that copies name and whose initialisation no fence has made visible to the async proxy."""
        lacking = any_along(self.shared.lacks_fence(access), 0)
        if lacking.any():
            column = int(lacking.argmax())
            finding = "a copy names an mbarrier with no fence.mbarrier_init or fence.proxy.async behind mbarrier.init"
            row, lane = int(access.row[column]), int(access.lane[column])
            self.reporter.add(KIND, finding, step.instruction, g, row, lane, _FRESH)

    # -- arrivals -----------------------------------------------------------------------------------------------------

    def expect(self, g: WarpGroup, step: Step, use: Use, size: int) -> None:
        """Let the phase expect more bytes."""
        use.mbarrier.size += size
        self._check_size(g, step, use.mbarrier, use.row)
        g.env.memory.changes += 1

    def complete(self, g: WarpGroup, step: Step, use: Use, size: int) -> None:
        """Count bytes as complete."""
        use.mbarrier.size -= size
        self._check_size(g, step, use.mbarrier, use.row)
        self._advance(g, step, use.mbarrier)
        g.env.memory.changes += 1

    def _check_size(self, g: WarpGroup, step: Step, mbarrier: Mbarrier, row: int = 0) -> None:
        if abs(mbarrier.size) > _MOST:
            finding = f"{mbarrier.size} bytes pending, beyond {_MOST} either way"
            self.reporter.add(KIND, finding, step.instruction, g, row)

    def arrive(self, g: WarpGroup, step: Step, use: Use, count: int, view: Array | None, *, completes: bool) -> None:
        """Count arrivals; `view` are the clocks that they pass on. Report arrivals that the phase has no room for."""
        mbarrier = use.mbarrier
        if count > mbarrier.pending:
            finding = f"{count} arrivals, of which phase {mbarrier.phase} lacks {mbarrier.pending} of {mbarrier.count}"
            self.reporter.add(KIND, finding, step.instruction, g, use.row, int(use.lanes[0]))
        mbarrier.pending -= count
        if view is not None:
            mbarrier.view = view if mbarrier.view is None else np.maximum(mbarrier.view, view)
        before = mbarrier.phase
        self._advance(g, step, mbarrier)
        if mbarrier.phase != before and not completes:
            finding = "an arrival with .noComplete ends the phase"
            self.reporter.add(KIND, finding, step.instruction, g, use.row, int(use.lanes[0]))
        g.env.memory.changes += 1

    def attach(self, g: WarpGroup, mbarrier: Mbarrier, transfer: Transfer) -> None:
        """Let an object count a copy in flight; with `early` it lands now."""
        mbarrier.transfers.append(transfer)
        g.env.memory.changes += 1
        if self.early:
            self._land(g, mbarrier)

    def _advance(self, g: WarpGroup, step: Step, mbarrier: Mbarrier) -> None:
        """End the phase if nothing is pending."""
        if mbarrier.pending > 0 or mbarrier.size:
            return
        if mbarrier.transfers:
            where = f"phase {mbarrier.phase} of the mbarrier at {mbarrier.address:#x}"
            finding = f"{where} ends with copies in flight, whose bytes it did not expect"
            self.reporter.add(KIND, finding, mbarrier.transfers[0].step.instruction, g)
        mbarrier.ended, mbarrier.view = mbarrier.view, None
        mbarrier.phase += 1
        mbarrier.pending = mbarrier.count
        g.env.epoch[mbarrier.slot] += np.uint32(1)

    def _land(self, g: WarpGroup, mbarrier: Mbarrier) -> None:
        """Land all copies in flight to an object."""
        while mbarrier.transfers:
            transfer = mbarrier.transfers.pop(0)
            transfer.land(g, mbarrier.agent, mbarrier.phase + 1)
            mbarrier.size -= transfer.size
            mbarrier.pending -= transfer.arrivals
            g.env.memory.changes += 1
            self._check_size(g, transfer.step, mbarrier)
            self._advance(g, transfer.step, mbarrier)

    # -- waits --------------------------------------------------------------------------------------------------------

    def has_ended(self, g: WarpGroup, step: Step, use: Use, parity: int, *, orders: bool) -> bool:
        """Return whether the phase of a parity has ended; `orders` lets the warp see what came before its end."""
        mbarrier, slot = use.mbarrier, use.mbarrier.slot
        known = int(self.shared.seen[slot, use.warp, mbarrier.agent])  # phases whose end the warp has waited for
        phase = known if known & 1 == parity else known - 1
        if mbarrier.phase > phase + 1:
            finding = f"waits by parity for phase {phase} of the mbarrier at {mbarrier.address:#x}, which is in phase "
            self.reporter.add(KIND, f"{finding}{mbarrier.phase}", step.instruction, g, use.row, int(use.lanes[0]))
        return self._tested(g, step, use, phase, mbarrier.phase & 1 == parity, orders=orders)

    def has_ended_since(self, g: WarpGroup, step: Step, use: Use, phase: int, *, orders: bool) -> bool:
        """Return whether the phase of an arrival has ended."""
        mbarrier = use.mbarrier
        if phase not in (mbarrier.phase, mbarrier.phase - 1):
            finding = f"tests phase {phase} of an mbarrier that is in phase {mbarrier.phase}"
            self.reporter.add(KIND, finding, step.instruction, g, use.row, int(use.lanes[0]))
        return self._tested(g, step, use, phase, mbarrier.phase <= phase, orders=orders)

    def _tested(self, g: WarpGroup, step: Step, use: Use, phase: int, is_open: bool, *, orders: bool) -> bool:
        """Return whether a wait for a phase succeeds; copies land now if it `is_open` and lacks nothing else."""
        mbarrier = use.mbarrier
        if self._comes_first(g, use, phase):
            return False
        if is_open:
            before = mbarrier.phase
            lacking = mbarrier.pending - sum(transfer.arrivals for transfer in mbarrier.transfers)
            if mbarrier.transfers and lacking <= 0:
                self._land(g, mbarrier)
            is_open = mbarrier.phase == before
        if is_open:
            self.failed[mbarrier.slot, use.warp] = mbarrier, phase, step.instruction
            return False
        self.failed.pop((mbarrier.slot, use.warp), None)
        if orders:
            seen = self.shared.seen[mbarrier.slot, use.warp]
            if mbarrier.phase == phase + 1 and mbarrier.ended is not None:
                np.maximum(seen, mbarrier.ended, out=seen)
            seen[mbarrier.agent] = max(seen[mbarrier.agent], phase + 1)
        return True

    def _comes_first(self, g: WarpGroup, use: Use, phase: int) -> bool:
        """Return whether this is a warp's first wait for a phase, and so fails."""
        mbarrier = use.mbarrier
        if (
            self.early
            or (use.warp, phase) in mbarrier.tried
            or self.shared.seen[mbarrier.slot, use.warp, mbarrier.agent] > phase
        ):
            return False
        mbarrier.tried.add((use.warp, phase))
        g.env.memory.changes += 1
        return True

    # -- ends ---------------------------------------------------------------------------------------------------------

    def deadlock(self, g: WarpGroup) -> bool:
        """Report a group that waits for ever at an mbarrier; return whether it does."""
        for row, key in enumerate(zip(g.slot.tolist(), g.wave.tolist(), strict=True)):
            if key in self.failed:
                mbarrier, phase, instruction = self.failed[key]
                finding = f"waits for ever for the end of phase {phase} of the mbarrier at {mbarrier.address:#x}: "
                self.reporter.add(KIND, finding + mbarrier.lacks, instruction, g, row)
                return True
        return False

    def check_end(self, instruction: Instruction) -> None:
        """Report objects with copies in flight, or bytes pending, at the end of their workgroup."""
        for mbarrier in self.objects.values():
            self._check_idle(mbarrier, instruction)

    def _check_idle(self, mbarrier: Mbarrier, instruction: Instruction) -> None:
        where = f"the mbarrier at {mbarrier.address:#x} at its end"
        if mbarrier.transfers:
            finding = f"{len(mbarrier.transfers)} copies are in flight to {where}"
            self.reporter.add(KIND, finding, mbarrier.transfers[0].step.instruction)
        elif mbarrier.size:
            finding = f"{mbarrier.size} bytes are pending at {where}"
            self.reporter.add(KIND, finding, instruction)


def lanes_as_bits(lanes: Array) -> int:
    """Return a set of lanes as bits."""
    return int((1 << np.asarray(lanes, np.int64)).sum()) & (1 << LANES) - 1
