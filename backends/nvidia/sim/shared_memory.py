"""Shared memory of a batch of workgroups, with stamps that show races between threads.

Each warp has a vector of clocks: its own, and of each other warp the last clock whose accesses it may see. A barrier
joins the vectors of the warps that meet there, and bar.warp.sync lets the lanes of a warp see each other's accesses.
Two accesses race if one writes, neither is atomic with the other, and the later thread may not see the earlier clock.
Lanes of a warp are threads like any others: since Volta no order holds among them without bar.warp.sync (CUDA
Programming Guide, Independent Thread Scheduling). Storing equal bytes is no race, for nobody can see which came last.

A stamp covers `grain` bytes, at most the narrowest access of the kernel.

Agents access shared memory in flight, beside the warps: the products of each warpgroup, the bulk stores of each warp,
and the copies that an mbarrier counts. A vector of clocks has an entry for each agent, too: how many of its operations,
or phases, the warp has waited for. Agents access memory by the async proxy. They may read what lanes have stored, by
the generic proxy, once the storing lane has executed fence.proxy.async and a barrier behind the fence has made it
visible (PTX ISA, Async Proxy). The document does not say which thread must fence. Compilers also place the fence behind
the barrier, in the warps that read, which is reported as advice. `unfenced_loads` checks copies over what lanes have
loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from convgen.backends.nvidia.sim.shared_access import Access
from convgen.backends.nvidia.sim.state import LANES, WARPGROUP, WarpGroup
from convgen.backends.nvidia.sim.unfenced_loads import UnfencedLoads
from convgen.backends.sim.local import Lds
from convgen.backends.sim.wave_arrays import U32, Array, Bools, any_along
from convgen.backends.simulation import Source
from convgen.ir.record import frozen

if TYPE_CHECKING:
    from convgen.backends.nvidia.sim.step import Step

KIND, LANE_KIND = "shared-race", "lane-race"
_LANE_BITS, _WARP_BITS = 6, 7  #: lanes below 32, and 32 for several; warps and agents
_WARP_SHIFT = _LANE_BITS + _WARP_BITS
_SEVERAL = np.uint32(LANES)
_LANE = np.uint32((1 << _LANE_BITS) - 1)
_MANY = 256  #: unfenced stores that are kept without a search for overwritten ones
_UNFENCED = np.uint32(0xFFFFFFFF)  #: in place of a clock: the last generic store has no fence yet
PROXY_KIND = "proxy"
LATE_FENCE = Source(
    "PTX ISA, Async Proxy: a fence between accesses of two proxies; yet Triton's kernels place it behind the barrier",
    required=False,
)
MBARRIERS = 48  #: most mbarriers of a workgroup for which the simulator keeps clocks
_MBARRIER = -1  #: in place of the number of a copy in flight: an mbarrier has these bytes


@frozen
class Agents:
    """The numbers of a workgroup's warps and agents: where each kind begins."""

    products: int  #: first number of products of warpgroups, behind those of warps
    stores: int  #: first number of bulk stores of warps
    mbarriers: int  #: first number of copies that mbarriers count
    end: int

    @classmethod
    def of(cls, waves: int, *, some: bool) -> Agents:
        """Return the agents of a workgroup of `waves` warps; none without `some`."""
        if not some:
            return cls(waves, waves, waves, waves)
        stores = waves + -(-waves // WARPGROUP)
        return cls(waves, stores, stores + waves, stores + waves + MBARRIERS)

    def named(self, number: int) -> str:
        """Name a warp or an agent in a finding."""
        if number < self.products:
            return f"warp {number}"
        if number < self.stores:
            return f"a product of warpgroup {number - self.products} that it has not waited for"
        if number < self.mbarriers:
            return f"a bulk copy of warp {number - self.stores} that it has not waited for"
        return "a bulk copy whose mbarrier it has not waited for"


class Shared(Lds):
    """The shared memory of the workgroups of a batch."""

    def __init__(self, slots: int, size: int, grain: int, waves: int, *, has_agents: bool = False) -> None:
        super().__init__(slots, size, grain, KIND)
        count = len(self.data) // grain
        self.waves = waves
        self.agents = Agents.of(waves, some=has_agents)
        #: Last store: clock, warp, lane; 0 for none.
        self.stores: U32 = np.zeros(count, np.uint32)
        #: By warp and agent: clock and lane of its last load, and by warp of its last atomic operation.
        self.loads: U32 = np.zeros((self.agents.mbarriers, count), np.uint32)
        self.atomics: U32 | None = None
        self.defined: Bools = np.zeros(count, np.bool_)
        self.flight: Array = np.zeros(count, np.int32)  #: number of the copy in flight to the bytes, plus one
        #: [workgroup, warp, other warp or agent]: the last clock of the other one that the warp may see.
        self.seen: Array = np.zeros((slots, waves, self.agents.end), np.int64)
        self.clocks: Array = np.ones((slots, waves), np.int64)
        #: Clock at which the lane of the last generic store has fenced it; 0: no such store. None without agents.
        self.fenced: U32 | None = np.zeros(count, np.uint32) if has_agents else None
        #: `seen` of each warp as it was when the warp last executed fence.proxy.async.
        self._at_fence: Array = np.zeros_like(self.seen) if has_agents else self.seen
        self._unfenced: list[Access] = []  #: generic stores that their lanes have not fenced
        self._most_unfenced = _MANY  #: stores, beyond which overwritten ones are dropped
        self._unfenced_loads = UnfencedLoads(slots, waves) if has_agents else None
        #: Lanes of each warp that have accessed shared memory since its clock advanced, as bits.
        self._active: Array = np.zeros((slots, waves), np.int64)

    # -- order --------------------------------------------------------------------------------------------------------

    def meet(self, slot: int, warps: Array, others: Sequence[Array] = ()) -> None:
        """Order all accesses of some warps so far, and what `others` have passed on, before their next accesses."""
        seen = self.seen[slot]
        own = self.clocks[slot]
        seen[warps, warps] = own[warps]
        together = np.vstack([seen[warps], *others]).max(axis=0)
        seen[warps] = np.maximum(seen[warps], together)
        if self._unfenced_loads is not None:
            self._unfenced_loads.end(slot, warps.tolist(), self.clocks)
        self._tick(np.full(len(warps), slot), warps)

    def _tick(self, slot: Array, warp: Array) -> None:
        """Advance the clocks of some warps."""
        self.clocks[slot, warp] += 1
        self._active[slot, warp] = 0

    def arrive(self, slot: int, warp: int) -> Array:
        """Return what a warp passes on at bar.arrive; its later accesses are not among it."""
        if self._unfenced_loads is not None:
            self._unfenced_loads.end(slot, [warp], self.clocks)
        return self._passed_on(slot, warp)

    def _passed_on(self, slot: int, warp: int) -> Array:
        seen: Array = self.seen[slot, warp].copy()
        seen[warp] = self.clocks[slot, warp]
        self._tick(np.array([slot]), np.array([warp]))
        return seen

    def pass_on(self, slot: int, warp: int, lanes: int) -> Array:
        """Return the clocks that some lanes (bits) of a warp pass on at an mbarrier.

        If other lanes of the warp have accessed shared memory since its clock advanced, no access since then is among
        them: a clock covers all lanes of a warp.
        """
        if self._active[slot, warp] & ~lanes:
            view: Array = self.seen[slot, warp].copy()
            return view
        if self._unfenced_loads is not None:
            self._unfenced_loads.pass_on(slot, warp, int(self.clocks[slot, warp]))
        return self._passed_on(slot, warp)

    def _note_lanes(self, access: Access) -> None:
        """Remember the lanes that access shared memory."""
        if self.fenced is not None:
            np.bitwise_or.at(self._active, (access.slot, access.warp), 1 << access.lane)

    def order_lanes(self, g: WarpGroup, rows: Array) -> None:
        """Let the lanes of some warps see each other's accesses (bar.warp.sync)."""
        slot, warp = g.slot[rows], g.wave[rows]
        self.seen[slot, warp, warp] = self.clocks[slot, warp]
        self._tick(slot, warp)

    def stamps_of(self, slot: Array, warp: Array, lane: Array) -> Array:
        """Return the stamp of a store by each thread now: clock, warp and lane."""
        clock = self.clocks[slot, warp]
        return (clock << _WARP_SHIFT | warp << _LANE_BITS | lane).astype(np.uint32)

    def unseen_stores(self, access: Access) -> Bools:
        """Return flags [units, accesses] of stores by other threads that an access may not see."""
        unseen: Bools = self._unseen_stores(access.units, *access.who)
        return unseen

    def _unseen_stores(self, units: Array, slot: Array, warp: Array, lane: Array) -> Bools:
        """Return flags of units whose last store another thread made, which this one may not see."""
        stamps = self.stores.take(units)
        by_warp = (stamps >> np.uint32(_LANE_BITS) & np.uint32((1 << _WARP_BITS) - 1)).astype(np.int64)
        late: Bools = (stamps >> np.uint32(_WARP_SHIFT)) > self.seen[slot, warp, by_warp]
        if not np.count_nonzero(late):
            return late
        own = (by_warp == warp) & ((stamps & _LANE) == lane)
        unseen: Bools = late & ~own
        return unseen

    def _unseen(self, table: U32, units: Array, slot: Array, warp: Array, lane: Array) -> Bools:
        """Return flags of units that other threads have loaded (or updated), unseen by this one."""
        stamps = table[:, units]  # [warps, units, accesses]
        late = (stamps >> np.uint32(_LANE_BITS)) > np.moveaxis(self.seen[slot, warp, : len(table)], -1, 0)[:, None]
        if not np.count_nonzero(late):
            return np.zeros(units.shape, np.bool_)
        number = np.arange(len(table))[:, None, None]
        own = (number == warp) & ((stamps & _LANE) == lane)
        return any_along(late & ~own, 0)

    def _mark(self, table: U32, units: Array, slot: Array, warp: Array, lane: Array) -> None:
        """Stamp loads or atomic operations; two lanes of a warp become several."""
        stamp = (self.clocks[slot, warp] << _LANE_BITS | lane).astype(np.uint32)
        stamps = np.broadcast_to(stamp, units.shape)
        rows = np.broadcast_to(warp, units.shape)
        before = table[rows, units]
        same = (before >> np.uint32(_LANE_BITS) == stamps >> np.uint32(_LANE_BITS)) & (before != stamps)
        value = np.where(same, stamps | _SEVERAL, stamps)
        value = np.where(value & _SEVERAL, (value >> np.uint32(_LANE_BITS) << np.uint32(_LANE_BITS)) | _SEVERAL, value)
        table[rows, units] = value
        clash = table[rows, units] != value
        if np.count_nonzero(clash):
            several = (stamps >> np.uint32(_LANE_BITS) << np.uint32(_LANE_BITS)) | _SEVERAL
            table[rows[clash], units[clash]] = several[clash]

    # -- accesses -----------------------------------------------------------------------------------------------------

    def note_loads(self, g: WarpGroup, step: Step, access: Access, *, strong: bool = False) -> Bools | None:
        """Stamp loads; report races and copies in flight; return flags [units, accesses] of undefined bytes."""
        units = access.units
        if not strong:
            self._check(g, step, access, "loads", updated=self.atomics)
        self._mark(self._updates() if strong else self.loads, units, *access.who)
        self._note_lanes(access)
        if self._unfenced_loads is not None:
            self._unfenced_loads.note(*access.who, self.clocks)
        return self._undefined(g, step, access, "loads")

    def _undefined(self, g: WarpGroup, step: Step, access: Access, verb: str) -> Bools | None:
        """Return flags [units, accesses] of undefined bytes, None without any; report those of copies in flight."""
        units = access.units
        undefined = ~self.defined.take(units)
        if not np.count_nonzero(undefined):
            return None
        flight = self.flight.take(units) * undefined
        if np.count_nonzero(flight):
            g.env.copies.report(g, step, access, flight, verb)
        return undefined

    def _updates(self) -> U32:
        if self.atomics is None:
            self.atomics = np.zeros_like(self.loads[: self.waves])
        return self.atomics

    def note_stores(
        self,
        g: WarpGroup,
        step: Step,
        access: Access,
        changed: Bools | None,
        defined: Bools | bool,
        *,
        values: Array | None = None,
        strong: bool = False,
    ) -> None:
        """Stamp stores; report races of those that change bytes (`changed`; None: all).

        `values` are the words that memory has received; None: they come later.
        """
        units = access.units
        if not strong:
            self._check(g, step, access, "overwrites", loaded=self.loads, updated=self.atomics, changed=changed)
        self._check_flight(g, step, access)
        self.defined[units] = defined
        if strong:
            self._mark(self._updates(), units, *access.who)
            return
        stamps = np.broadcast_to(self.stamps_of(*access.who), units.shape)
        self.stores[units] = stamps
        self._note_lanes(access)
        self.note_generic(access)
        if units.size > 1:
            lost = self.stores.take(units) != stamps
            if values is not None and np.count_nonzero(lost):
                lost = lost & self.differing(access, values)
            if np.count_nonzero(lost):
                unit, column = (int(i) for i in np.argwhere(lost)[0])
                finding = "stores to bytes where another thread stores another value by this instruction"
                self._report_at(g, step, access, unit, column, finding, KIND)

    def pass_to_agent(self, access: Access, agent: int, clock: int) -> None:
        """Stamp bytes that a copy has just written with the clock of an agent, whose waits order them."""
        self.stores[access.units] = np.uint32(clock << _WARP_SHIFT | agent << _LANE_BITS)
        access.counted = agent, clock

    # -- the async proxy ----------------------------------------------------------------------------------------------

    def note_generic(self, access: Access) -> None:
        """Remember a store by the generic proxy, which its lane has not fenced yet."""
        if self.fenced is not None:
            self.fenced[access.units] = _UNFENCED
            self._unfenced.append(access)
            if len(self._unfenced) > self._most_unfenced:
                self._forget_overwritten()

    def _forget_overwritten(self) -> None:
        """Drop unfenced stores whose bytes later ones have overwritten, to bound what a kernel without fences takes."""
        covered = np.zeros(len(self.defined), np.bool_)
        visible: list[Access] = []
        for access in reversed(self._unfenced):
            fresh = any_along(~covered[access.units], 0)
            covered[access.units] = True
            if fresh.any():
                visible.append(access.take(np.flatnonzero(fresh)))
        self._unfenced = visible[::-1]
        self._most_unfenced = max(_MANY, 2 * len(visible))

    def mark_loads(self, access: Access) -> None:
        """Stamp loads, without any check."""
        self._mark(self.loads, access.units, *access.who)

    def mark_mbarriers(self, access: Access) -> None:
        """Mark the bytes of mbarriers, so that plain accesses to them are reported."""
        self.flight[access.units] = _MBARRIER

    def fence_proxy(self, g: WarpGroup, *, mbarriers: bool = False) -> None:
        """Fence the generic stores of the lanes that execute a fence; `mbarriers`: only those of mbarrier.init."""
        if self.fenced is None:
            return
        fencing = np.zeros((len(self.seen), self.waves, LANES), np.bool_)
        fencing[g.slot, g.wave] = g.active
        if not mbarriers:
            rows = g.active.any(axis=1)
            self._at_fence[g.slot[rows], g.wave[rows]] = self.seen[g.slot[rows], g.wave[rows]]
        unfenced: list[Access] = []
        for access in self._unfenced:
            fenced = fencing[access.who] if access.counted is None else self._counted(g, access)
            fenced = fenced & (access.is_mbarrier or not mbarriers)
            if not fenced.all():
                unfenced.append(access.take(np.flatnonzero(~fenced)))
            if fenced.any():
                self._fence(access.take(np.flatnonzero(fenced)))
        self._unfenced = unfenced
        if self._unfenced_loads is not None and not mbarriers:
            covered = self._unfenced_loads.fence(g.slot, g.wave, g.active, self.clocks)
            self.clocks[g.slot[covered], g.wave[covered]] += 1  # tells later loads apart

    def _counted(self, g: WarpGroup, access: Access) -> Bools:
        """Return whether the lanes that execute a fence have waited for copies that an mbarrier counts, by access."""
        assert access.counted is not None
        agent, clock = access.counted
        rows = g.active.any(axis=1) & (self.seen[g.slot, g.wave, agent] >= clock)
        return np.isin(access.slot, g.slot[rows])

    def _fence(self, access: Access) -> None:
        """Mark generic stores as fenced now, where no other store came since."""
        assert self.fenced is not None
        last = self.fenced[access.units] == _UNFENCED
        if access.counted is None:
            last &= self._is_last(access)
        clocks = self.clocks[access.slot, access.warp] if access.counted is None else np.zeros_like(access.warp)
        self.fenced[access.units[last]] = np.broadcast_to(clocks, last.shape)[last]

    def _is_last(self, access: Access) -> Bools:
        """Return flags of the units whose last store is by the thread of an access."""
        warp, lane = self._writers(access.units)
        flags: Bools = (warp == access.warp) & (lane == access.lane)
        return flags

    def note_agent_load(
        self, g: WarpGroup, step: Step, access: Access, warps: Array, agent: int, clock: int, *, lane: int = -1
    ) -> Bools | None:
        """Stamp what an agent reads for some warps; report races, copies in flight and stores that lack a fence.

        `clock` is the number of the agent's operation. A `lane` that issues it alone sees its own stores. Returns flags
        [units, accesses] of undefined bytes.
        """
        units, slot = access.units, int(access.slot[0])
        view = self.seen[slot, warps].min(axis=0)
        by_warp, by_lane = (part.astype(np.int64) for part in self._writers(units))
        by_issuer = (by_warp == access.warp) & (by_lane == lane)
        unseen = ((self.stores.take(units) >> np.uint32(_WARP_SHIFT)) > view[by_warp]) & ~by_issuer
        if np.count_nonzero(unseen):
            self.report_race(g, step, access, unseen, "reads in flight what {} stored")
        late = self._at_fence[slot, warps].min(axis=0)
        self._check_fences(g, step, access, (view, late), ~unseen, by_issuer)
        self.loads[agent, units] = np.uint32(clock << _LANE_BITS)
        return self._undefined(g, step, access, "reads in flight")

    def note_flight(self, g: WarpGroup, step: Step, access: Access, number: int) -> None:
        """Check the destination of a bulk copy that one lane issues, and mark it as in flight with a number."""
        units = access.units
        self._check(g, step, access, "overwrites", loaded=self.loads, updated=self.atomics)
        self._check_flight(g, step, access)
        slot, warp = int(access.slot[0]), int(access.warp[0])
        by_warp, by_lane = (part.astype(np.int64) for part in self._writers(units))
        own = (by_warp == warp) & (by_lane == access.lane)
        views = self.seen[slot, warp], self._at_fence[slot, warp]
        self._check_fences(g, step, access, views, ~self.unseen_stores(access), own)
        self._check_loads_are_done(g, step, access)
        self.defined[units] = False
        self.flight[units] = number

    def land_flight(self, access: Access, words: Array, number: int, agent: int, clock: int) -> None:
        """Write the bytes of a bulk copy, stamped with the clock of the mbarrier that counts it."""
        assert self.fenced is not None
        units = access.units
        self.store(access.stretch, words)
        mine = self.flight[units] == number
        self.flight[units] = np.where(mine, 0, self.flight[units])
        self.stores[units] = np.uint32(clock << _WARP_SHIFT | agent << _LANE_BITS)
        self.fenced[units] = 0
        self.defined[units] = True

    def lacks_fence(self, access: Access) -> Bools:
        """Return flags [units, accesses] of generic stores that have no fence which the accessing lane may see."""
        assert self.fenced is not None
        by_warp, by_lane = (part.astype(np.int64) for part in self._writers(access.units))
        own = (by_warp == access.warp) & (by_lane == access.lane)
        fenced = self.fenced.take(access.units)
        hidden = (fenced > self.seen[access.slot, access.warp, by_warp]) & ~own
        return np.asarray((fenced == _UNFENCED) | hidden)

    def _check_fences(
        self, g: WarpGroup, step: Step, access: Access, views: tuple[Array, Array], candidates: Bools, by_issuer: Bools
    ) -> None:
        """Report `candidates` of the async proxy's accesses to generic stores without a fence by the storing lane.

        The accessing warps must be able to see the fence, except of stores `by_issuer`, the lane that issues the
        access. `views` are the clocks that these warps may see, and those that they could see at their last fence.
        """
        assert self.fenced is not None
        by_warp = self._writers(access.units)[0].astype(np.int64)
        fenced, (seen, late) = self.fenced.take(access.units), views
        bad = candidates & ((fenced == _UNFENCED) | ((fenced > seen[by_warp]) & ~by_issuer))
        if not np.count_nonzero(bad):
            return
        covered = bad & (self.stores.take(access.units) >> np.uint32(_WARP_SHIFT) <= late[by_warp])
        advice = None if np.count_nonzero(bad & ~covered) else LATE_FENCE
        unit, column = (int(i) for i in np.argwhere(bad if advice else bad & ~covered)[0])
        warp, lane = (int(part) for part in self._writers(access.units[unit, column]))
        lack = "without fence.proxy.async by that lane behind the store"
        if advice is not None:
            lack = "with fence.proxy.async by the accessing warp only, behind the barrier"
        elif fenced[unit, column] != _UNFENCED:
            lack = "with no barrier behind that lane's fence.proxy.async"
        finding = f"accesses by the async proxy what lane {lane} of warp {warp} stored, {lack}"
        self._report_at(g, step, access, unit, column, finding, PROXY_KIND, advice)

    def _check_loads_are_done(self, g: WarpGroup, step: Step, access: Access) -> None:
        """Report a copy over bytes that lanes have loaded, and passed on at an mbarrier without a fence."""
        assert self._unfenced_loads is not None
        slot = int(access.slot[0])
        for warp, first, last in self._unfenced_loads.early(slot, self.seen[slot, int(access.warp[0])]):
            clocks = self.loads[warp].take(access.units) >> np.uint32(_LANE_BITS)
            early = (clocks >= first) & (clocks <= last)
            if np.count_nonzero(early):
                unit, column = (int(i) for i in np.argwhere(early)[0])
                lack = "which arrived at an mbarrier without fence.proxy.async behind the load"
                finding = f"overwrites by the async proxy what warp {warp} has loaded, {lack}"
                self._report_at(g, step, access, unit, column, finding, PROXY_KIND)
                return

    def note_updates(self, g: WarpGroup, step: Step, access: Access) -> Bools | None:
        """Stamp atomic operations; report races with plain accesses; return flags of undefined bytes."""
        units = access.units
        self._check(g, step, access, "atomically updates", loaded=self.loads)
        self._mark(self._updates(), units, *access.who)
        self._check_flight(g, step, access)
        undefined = ~self.defined.take(units)
        self.defined[units] = True
        return undefined if np.count_nonzero(undefined) else None

    def _check(
        self, g: WarpGroup, step: Step, access: Access, verb: str,
        *, loaded: U32 | None = None, updated: U32 | None = None, changed: Bools | None = None,
    ) -> None:  # fmt: skip
        """Report races with other threads' stores, and with those that have stamped the tables of other accesses.

        `changed` flags the units that count; None: all.
        """
        checks: list[tuple[Bools, str, U32 | None]] = [(self._unseen_stores(access.units, *access.who), "stored", None)]
        for table, verb_of_other in ((loaded, "has loaded"), (updated, "updated atomically")):
            if table is not None:
                checks.append((self._unseen(table, access.units, *access.who), verb_of_other, table))
        for late, verb_of_other, table in checks:
            race = late if changed is None else late & changed
            if np.count_nonzero(race):
                self.report_race(g, step, access, race, f"{verb} what {{}} {verb_of_other}", table)

    def _check_flight(self, g: WarpGroup, step: Step, access: Access) -> None:
        """Report a store to bytes that a copy in flight will overwrite."""
        flight = self.flight.take(access.units)
        if np.count_nonzero(flight):
            g.env.copies.report(g, step, access, flight, "stores to")

    def report_race(
        self, g: WarpGroup, step: Step, access: Access, race: Bools, race_text: str, table: U32 | None = None
    ) -> None:
        """Report the first racing access, with the other thread of a store; `table` has the stamps of other kinds."""
        if table is None:
            own_warp = self._writers(access.units)[0] == access.warp
            if np.count_nonzero(race & own_warp) and np.count_nonzero(race & ~own_warp):
                self.report_race(g, step, access, race & ~own_warp, race_text)
                race = race & own_warp
        unit, column = (int(i) for i in np.argwhere(race)[0])
        slot, accessing_warp = int(access.slot[column]), int(access.warp[column])
        number = access.units[unit, column]
        if table is None:
            warp, lane = (int(part) for part in self._writers(number))
            same = warp == accessing_warp
            who = f"lane {lane} of {'this warp' if same else f'warp {warp}'}"
            who = self.agents.named(warp) if warp >= self.waves else who
        else:
            late = np.flatnonzero(
                table[:, number] >> np.uint32(_LANE_BITS) > self.seen[slot, accessing_warp, : len(table)]
            )
            same = late.tolist() == [accessing_warp]
            who = "another lane of this warp" if same else self.agents.named(int(late[late != accessing_warp][0]))
        lack = ", with no bar.warp.sync or barrier between" if same else ", with no barrier between"
        self._report_at(g, step, access, unit, column, race_text.format(who) + lack, LANE_KIND if same else KIND)

    def _writers(self, units: Array) -> tuple[Array, Array]:
        """Return warp and lane of the last store to each unit."""
        stamps = self.stores.take(units)
        return stamps >> np.uint32(_LANE_BITS) & np.uint32((1 << _WARP_BITS) - 1), stamps & _LANE

    def _report_at(
        self,
        g: WarpGroup,
        step: Step,
        access: Access,
        unit: int,
        column: int,
        finding: str,
        kind: str,
        source: Source | None = None,
    ) -> None:
        """Report an access by its `column` and `unit`; `source` stands in for the kind's document."""
        place = int(access.units[unit, column]) * self.grain % self.stride
        row, lane = int(access.row[column]), int(access.lane[column])
        g.env.reporter.add(kind, f"{finding}, at shared address {place:#x}", step.instruction, g, row, lane, source)

    def differing(self, access: Access, values: Array) -> Bools:
        """Return flags [units, accesses] of the units whose bytes differ from words [size/4, accesses]."""
        stored = self.data.take(access.place[:, None] + np.arange(access.size))
        words = np.ascontiguousarray(np.moveaxis(values, 0, -1))
        written = words.view(np.uint8) if access.size >= 4 else words.view(np.uint8)[..., : access.size]
        parts = (stored != written).reshape(len(access.place), len(access.units), -1)
        return np.moveaxis(any_along(parts, -1), -1, 0)
