"""The state of a group of hardware threads that have executed one sequence of instructions so far.

The thread is the first axis of arrays: registers are [thread, byte], flags and masks [thread, channel]. The program
counter and the scoreboard are common to all threads of a group.

Undefined bytes are 1 in `poison`, which counts only while the unit's bit is set in `dirty`; flags have a poison array
of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import numpy.typing as npt

from convgen.backends.intel.sim.register_file import ACCUMULATORS, FLAG_CHANNELS, Layout
from convgen.backends.sim.threads import Threads
from convgen.backends.sim.wave_arrays import U32, Array, Bools
from convgen.ir.record import define, evolve

if TYPE_CHECKING:
    from convgen.backends.intel.sim.decode import Instruction
    from convgen.backends.intel.sim.environment import Environment
    from convgen.backends.intel.sim.late import LateLoad
    from convgen.backends.intel.sim.scoreboard import Score

CHANNELS = 32  #: channels of the widest instruction
ACTIVE, GONE = -1, -2  #: in `resume`: the channel runs; it never will


@define(eq=False)
class LocalAccess:
    """An access to local memory that no completed fence or wait has ordered yet."""

    step: int  #: index of its instruction
    access: str  #: "read", "write" or "update"
    rows: Array  #: the thread's row in the group, per unit
    units: Array
    order: int
    instruction: Instruction
    returns: bool  #: gives data, so that the wait for its destination shows it to be complete

    def take(self, place: Array) -> LocalAccess:
        """Return the access for a part of the group; `place` has each row's new number, -1 outside the part."""
        kept = place[self.rows] >= 0
        return evolve(self, rows=place[self.rows[kept]], units=self.units[kept])

    def joined(self, other: LocalAccess, count: int) -> LocalAccess:
        """Return the access for the threads of both groups, of which the first has `count`."""
        rows, units = (self.rows, other.rows + count), (self.units, other.units)
        return evolve(self, rows=np.concatenate(rows), units=np.concatenate(units))


@define(eq=False)
class Underway:
    """A fence, or an atomic operation with a result, that may order workgroups once it is known to be done."""

    step: int  #: index of its instruction
    upto: int | None  #: the last ticket that a fence releases, 0 for none; None for an atomic operation
    epochs: Array  #: epochs of the threads at issue
    numbers: Array  #: publications (`causality`) that the threads had observed, or that the atomic operation observes

    def take(self, rows: Array) -> Underway:
        """Return the operation for some of the threads."""
        return Underway(self.step, self.upto, self.epochs[rows], self.numbers[rows])

    def joined(self, other: Underway) -> Underway:
        """Return the operation for the threads of both groups."""
        epochs, numbers = (self.epochs, other.epochs), (self.numbers, other.numbers)
        return Underway(self.step, self.upto, np.concatenate(epochs), np.concatenate(numbers))


class ThreadGroup(Threads):
    """Threads with one program counter, one scoreboard and their own registers."""

    env: Environment
    arrays: ClassVar = {
        **Threads.arrays,
        **dict.fromkeys(("regs", "poison", "flags", "flag_poison", "wide", "mask", "resume", "stamp"), 0),
    }

    def __init__(
        self, env: Environment, slot: Array, group_id: Array, wave: Array, layout: Layout, score: Score
    ) -> None:
        super().__init__(env, slot, group_id, wave)
        n = self.count
        self.layout = layout
        self.score = score
        self.signalled = False  #: has signalled a barrier that it has not waited for
        self.control = 0  #: cr0.0
        self.local: list[LocalAccess] = []
        self.late: list[LateLoad] = []  #: loads that an adversary lets read memory again
        self.squad = 0  #: the adversary's squad
        self.held = False  #: whether the adversary holds the group behind its barrier signal, until all others block
        self.stores: list[tuple[int, int]] = []  #: global stores that no fence has covered: (order, ticket)
        self.fences: list[tuple[int, int, str]] = []  #: fences under way: instruction, order, what they order
        self.underway: list[Underway] = []  #: fences and atomic operations that may order workgroups
        self.order = 0
        self.regs: npt.NDArray[np.uint8] = np.zeros((n, layout.total), np.uint8)
        self.poison: npt.NDArray[np.uint8] = np.ones((n, layout.total), np.uint8)
        self.dirty = (1 << (layout.total // layout.grf)) - 1
        self.flags: Bools = np.zeros((n, FLAG_CHANNELS), np.bool_)
        self.flag_poison: Bools = np.ones((n, FLAG_CHANNELS), np.bool_)
        self.flags_dirty = True
        self.wide: npt.NDArray[np.int64] = np.zeros((n, ACCUMULATORS * layout.grf // 4), np.int64)
        self.mask: Bools = np.ones((n, CHANNELS), np.bool_)
        self.resume: npt.NDArray[np.int32] = np.full((n, CHANNELS), ACTIVE, np.int32)
        self.stamp: U32 = env.stamps(self)  #: stamps of clean accesses to local memory, [threads, 1]
        self.ready()

    def ready(self) -> None:
        """Create the views and counts that are derived from the arrays."""
        self.views: dict[str, Array] = {kind: self.regs.view(kind) for kind in ("u1", "u2", "u4", "u8")}
        for kind in ("i1", "i2", "i4", "i8", "f2", "f4", "f8"):
            self.views[kind] = self.regs.view(kind)
        self.poisons: dict[int, Array] = {size: self.poison.view(f"u{size}") for size in (1, 2, 4, 8)}
        self.mask_changed()

    def mask_changed(self) -> None:
        """Count the leading channels that run in every thread."""
        all_on = np.logical_and.reduce(self.mask, axis=0)
        self.on = CHANNELS if all_on.all() else int(all_on.argmin())

    def outstanding_stores(self) -> tuple[int, ...]:
        """Return no tickets: a thread's accesses to one address stay ordered (IGC puts no wait between)."""
        return ()

    # -- poison -------------------------------------------------------------------------------------------------------

    def clean(self, units: int) -> None:
        """Clear the `dirty` bits of those units that have no undefined byte left."""
        unchecked = self.dirty & units
        grf = self.layout.grf
        while unchecked:
            unit = (unchecked & -unchecked).bit_length() - 1
            unchecked &= unchecked - 1
            if not self.poison[:, unit * grf : (unit + 1) * grf].any():
                self.dirty &= ~(1 << unit)

    # -- splitting and merging ----------------------------------------------------------------------------------------

    def select(self, rows: Array) -> Self:
        part = super().select(rows)
        place = np.full(self.count, -1)
        place[rows] = np.arange(len(rows))
        part.local = [access.take(place) for access in self.local]
        part.late = [load.take(rows) for load in self.late]
        part.stores, part.fences = list(self.stores), list(self.fences)
        part.underway = [one.take(rows) for one in self.underway]
        part.ready()
        return part

    def signature(self) -> tuple[object, ...]:
        pending = tuple((access.step, access.access, access.order) for access in self.local)
        underway = tuple((one.step, one.upto) for one in self.underway)
        late = tuple((load.step, load.order) for load in self.late)
        state = self.pc, self.blocked, self.signalled, self.control, self.squad, self.held
        return (*state, pending, late, underway, tuple(self.stores), tuple(self.fences))

    def merge(self, other: Self) -> Self:
        self._settle()
        other._settle()
        merged = super().merge(other)
        merged.score = self.score.union(other.score)
        merged.dirty, merged.flags_dirty = self.dirty | other.dirty, self.flags_dirty or other.flags_dirty
        merged.order = max(self.order, other.order)
        merged.local = [a.joined(b, self.count) for a, b in zip(self.local, other.local, strict=True)]
        merged.late = [a.joined(b) for a, b in zip(self.late, other.late, strict=True)]
        merged.stores, merged.fences = list(self.stores), list(self.fences)
        merged.underway = [a.joined(b) for a, b in zip(self.underway, other.underway, strict=True)]
        merged.ready()
        return merged

    def _settle(self) -> None:
        """Clear the poison of units that are clean."""
        grf = self.layout.grf
        clean = ~self.dirty & ((1 << (self.layout.total // grf)) - 1)
        while clean:
            unit = (clean & -clean).bit_length() - 1
            clean &= clean - 1
            self.poison[:, unit * grf : (unit + 1) * grf] = 0
        if not self.flags_dirty:
            self.flag_poison[...] = False
