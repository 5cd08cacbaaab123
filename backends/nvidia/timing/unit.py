"""An event model of one SM: warps issue in order, pipes serve instructions first come, first served.

A warp belongs to one of four sub-cores, each of which issues one instruction a clock and has its own pipes of
arithmetic and products. Shared memory, loads and stores, and bulk copies (TMA) have one pipe an SM. A warp waits for
the registers that an instruction reads, and at instructions that wait: for groups of products or copies, for other
warps at a barrier, for a phase of an mbarrier. The earliest warp goes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush

import attrs

from convgen.backends.event_model import waves
from convgen.backends.event_model.waves import ModelRun, Occupied, Workgroup
from convgen.backends.nvidia.timing.ops import ALL, Act, Op, Pipe
from convgen.ir.record import define, frozen

SUBCORES = 4
PIPES: Mapping[Pipe, str] = {
    Pipe.MATRIX: "matrix",
    Pipe.ALU: "alu",
    Pipe.FMA: "fma",
    Pipe.SHARED: "shared",
    Pipe.LSU: "lsu",
    Pipe.TMA: "tma",
    Pipe.L2: "loads",
}
_ISSUE = "issue"
_SHOWN = (Pipe.MATRIX, Pipe.SHARED, Pipe.LSU, Pipe.TMA)  #: pipes with a track in timelines
_QUEUE = 64.0  #: clocks of work that a pipe of the SM queues before warps must wait (assumed)
_IN_FLIGHT = 1000.0  #: clocks of loads on their way before warps that load must wait: 64 KB (assumed)


@frozen
class Latencies:
    """Clocks from a pipe's end to the data."""

    memory: float  #: loads of global memory that miss L1, and hit L2
    near: float = 35.0  #: loads that hit L1
    bulk: float = 250.0  #: further ones of a bulk copy, until its mbarrier shows them
    shared: float = 23.0
    meeting: float = 20.0  #: from the last arrival at a barrier, or the end of a phase, until warps go on


@define(eq=False)
class Groups:
    """Asynchronous operations of a warp: those not committed, and committed groups in order, by their end."""

    open: float = 0.0
    committed: deque[float] = attrs.Factory(deque)

    def add(self, end: float) -> None:
        """Add an operation to the open group."""
        self.open = max(self.open, end)

    def commit(self) -> None:
        """Close the open group."""
        self.committed.append(self.open)
        self.open = 0.0

    def await_all_but(self, allowed: int) -> float:
        """Return when no more than `allowed` groups are left; -1: nothing, not even the open group."""
        if allowed < 0:
            self.commit()
            allowed = 0
        end = 0.0
        while len(self.committed) > allowed:
            end = max(end, self.committed.popleft())
        return end


@define(eq=False)
class Warp(waves.Wave):
    """One warp with its operations in flight."""

    number: int = 0
    ready: dict[int, float] = attrs.Factory(dict)  #: register -> when its value is there
    products: Groups = attrs.Factory(Groups)
    copies: Groups = attrs.Factory(Groups)
    bulk: Groups = attrs.Factory(Groups)
    phases: dict[int, int] = attrs.Factory(dict)  #: mbarrier -> the last phase that it has waited for


@define(eq=False)
class Barrier:
    """A barrier of a workgroup: warps that wait, and all that have arrived."""

    waiting: list[Warp] = attrs.Factory(list)
    arrived: int = 0
    needed: int = ALL  #: warps; ALL: those of the workgroup that have not ended
    last: float = 0.0  #: clock of the last arrival


@define(eq=False)
class Mbarrier:
    """An mbarrier of a workgroup. Bytes that are on their way count with the clock at which they land."""

    count: int = 1  #: arrivals of a phase
    pending: int = 1
    expected: int = 0  #: bytes that the phase still lacks
    last: float = 0.0  #: clock of the last arrival or byte of the phase
    ended: list[float] = attrs.Factory(list)  #: clocks at which phases have ended
    waiting: list[tuple[Warp, int]] = attrs.Factory(list)  #: warps, each with the phase that it waits for


@frozen
class Unit:
    """An SM that runs workgroups together, each of some warps."""

    latencies: Latencies

    def run(self, workgroups: Sequence[Workgroup], begins: Sequence[float] = ()) -> ModelRun:
        """Run all warps from the first instruction to the last; workgroups begin at clock 0, or as `begins` says."""
        return _Run(workgroups, begins, self.latencies).result()

    def busy_of(self, ops: Iterable[tuple[Op, float]]) -> dict[str, float]:
        """Return the busy clocks of each pipe for instructions with their executions: of the SM, or of one sub-core."""
        busy = dict.fromkeys((*PIPES.values(), _ISSUE), 0.0)
        for op, times in ops:
            busy[_ISSUE] += times * op.issue / SUBCORES
            busy[PIPES[Pipe.SHARED]] += times * op.shared
            busy[PIPES[Pipe.L2]] += times * op.loaded
            if op.pipe in PIPES:
                busy[PIPES[op.pipe]] += times * op.busy / (SUBCORES if op.pipe <= Pipe.MATRIX else 1)
        return busy


class _Run:
    """One run: warps by the time at which they may go on, and the times at which pipes are free."""

    def __init__(self, workgroups: Sequence[Workgroup], begins: Sequence[float], latencies: Latencies) -> None:
        streams = ((number, ops) for number, group in enumerate(workgroups) for ops in group)
        clocks = begins or [0.0] * len(workgroups)
        self.warps = [Warp(n % SUBCORES, group, ops, clocks[group], number=n) for n, (group, ops) in enumerate(streams)]
        self.queue = [(warp.free_at, warp.number) for warp in self.warps if warp.ops]
        self.live = [sum(warp.group == n and bool(warp.ops) for warp in self.warps) for n in range(len(workgroups))]
        self.latencies = latencies
        self.issuing = [0.0] * SUBCORES  #: when each sub-core may issue again
        self.subcore_free = [[0.0] * len(Pipe) for _ in range(SUBCORES)]  #: when each pipe of a sub-core is free
        self.unit_free = [0.0] * len(Pipe)  #: when each pipe of the SM is free
        self.barriers: dict[tuple[int, int], Barrier] = {}
        self.mbarriers: dict[tuple[int, int], Mbarrier] = {}
        self.occupied: list[Occupied] = []
        self.parked: dict[int, Warp] = {}  #: warps that wait for others, by number
        self.acts: Mapping[Act, Callable[[Warp, Op, float], float | None]] = {
            Act.PRODUCT: self._product,
            Act.COMMIT_PRODUCTS: lambda warp, op, now: _commit(warp.products, now),
            Act.AWAIT_PRODUCTS: lambda warp, op, now: max(now, warp.products.await_all_but(op.count)),
            Act.COPY: self._copy,
            Act.COMMIT_COPIES: lambda warp, op, now: _commit(warp.copies, now),
            Act.AWAIT_COPIES: lambda warp, op, now: max(now, warp.copies.await_all_but(op.count)),
            Act.COPIES_ARRIVE: self._copies_arrive,
            Act.LOAD_BULK: self._load_bulk,
            Act.STORE_BULK: self._store_bulk,
            Act.COMMIT_BULK: lambda warp, op, now: _commit(warp.bulk, now),
            Act.AWAIT_BULK: lambda warp, op, now: max(now, warp.bulk.await_all_but(op.count)),
            Act.MEET: self._meet,
            Act.PASS: self._pass,
            Act.INIT: self._initialise,
            Act.ARRIVE: self._arrive,
            Act.AWAIT_PHASE: self._await_phase,
        }

    def result(self) -> ModelRun:
        """Run until no warp has an instruction left; a warp that waits for ever goes on when no other can."""
        while self.queue or self.parked:
            if not self.queue:
                self._release(min(self.parked.values(), key=lambda warp: warp.done[-1]))
            now, number = heappop(self.queue)
            self._advance(self.warps[number], now)
        end = max((warp.done[-1] for warp in self.warps if warp.done), default=0.0)
        return ModelRun(end, self.warps, self.occupied)

    def _advance(self, warp: Warp, now: float) -> None:
        """Issue instructions of a warp until another warp comes first or it must wait."""
        while True:
            op: Op = warp.ops[len(warp.done)]
            start = self._start(warp, op, now)
            if start > now:
                if self.queue and self.queue[0][0] < start:
                    heappush(self.queue, (start, warp.number))
                    return
                now = start
                continue
            warp.free_since.append(warp.free_at)
            warp.issued.append(now)
            free_at = self._issue(warp, op, now)
            warp.done.append(now + op.issue if free_at is None else free_at)
            if free_at is None:
                self.parked[warp.number] = warp
                return
            warp.free_at = free_at
            if not self._has_more(warp):
                return
            if self.queue and self.queue[0][0] <= free_at:
                heappush(self.queue, (free_at, warp.number))
                return
            now = free_at

    def _has_more(self, warp: Warp) -> bool:
        """Return whether a warp has an instruction left; barriers no longer wait for one that has not."""
        if len(warp.done) < len(warp.ops):
            return True
        self.live[warp.group] -= 1
        for (group, _), barrier in self.barriers.items():
            if group == warp.group and barrier.waiting:
                self._open(barrier, group)
        return False

    def _start(self, warp: Warp, op: Op, now: float) -> float:
        """Return when everything is free that an instruction needs."""
        start = self.issuing[warp.simd]
        if start < now:
            start = now
        if op.pipe > Pipe.MATRIX:
            start = max(
                start, self.unit_free[op.pipe] - _QUEUE, self.unit_free[Pipe.L2] - _IN_FLIGHT if op.loaded else 0.0
            )
        elif op.pipe and op.act is not Act.PRODUCT:
            start = max(start, self.subcore_free[warp.simd][op.pipe])
        ready = warp.ready
        for register in op.reads:
            there = ready.get(register, 0.0)
            if there > start:
                start = there
        return start

    def _issue(self, warp: Warp, op: Op, now: float) -> float | None:
        """Issue an instruction; return when its warp may go on, None if other warps decide."""
        free_at = now + op.issue
        self.issuing[warp.simd] = free_at
        if op.act:
            return self.acts[op.act](warp, op, free_at)
        if op.pipe:
            end = self._serve(warp, op, now)
            result = end + op.latency
            if op.pipe is Pipe.LSU:
                result = self._loaded(op, end)
            elif op.pipe is Pipe.SHARED:
                result += self.latencies.shared
            for register in op.writes:
                warp.ready[register] = result
        return free_at

    def _serve(self, warp: Warp, op: Op, now: float) -> float:
        """Let the pipe of an instruction serve it; return when that ends."""
        is_of_unit = op.pipe > Pipe.MATRIX
        free = self.unit_free if is_of_unit else self.subcore_free[warp.simd]
        start = max(now, free[op.pipe])
        if op.shared:  # the port of shared memory serves work in the order of issue
            self.unit_free[Pipe.SHARED] = max(self.unit_free[Pipe.SHARED], now) + op.shared
        free[op.pipe] = start + op.busy
        if op.pipe in _SHOWN:
            self.occupied.append(Occupied(PIPES[op.pipe], None if is_of_unit else warp.simd, start, op.busy, op))
        return start + op.busy

    def _loaded(self, op: Op, served: float) -> float:
        """Return when the data of a load are there that its pipe has served; those of all loads take turns from L2."""
        if not op.loaded:
            return served + (0.0 if op.act else self.latencies.near)
        self.unit_free[Pipe.L2] = max(self.unit_free[Pipe.L2], served - op.busy) + op.loaded
        return max(self.unit_free[Pipe.L2], served) + self.latencies.memory

    # ------------------------------------------------------------ products and copies in flight

    def _product(self, warp: Warp, op: Op, now: float) -> float:
        """Start a wgmma: it keeps its sub-core's tensor core until shared memory has brought its factors."""
        end = max(self._serve(warp, op, now), self.unit_free[Pipe.SHARED])
        self.subcore_free[warp.simd][Pipe.MATRIX] = end
        warp.products.add(end + op.latency)
        return now

    def _copy(self, warp: Warp, op: Op, now: float) -> float:
        warp.copies.add(self._loaded(op, self._serve(warp, op, now)))
        return now

    def _copies_arrive(self, warp: Warp, op: Op, now: float) -> float:
        """Count arrivals at mbarriers when all copies of the warp so far have landed."""
        landed = max(now, warp.copies.open, *warp.copies.committed)
        for address, count in op.objects:
            self._complete(warp.group, address, count, 0, landed)
        return now

    def _load_bulk(self, warp: Warp, op: Op, now: float) -> float:
        landed = self._loaded(op, self._serve(warp, op, now)) + self.latencies.bulk
        for address, _ in op.objects:
            self._complete(warp.group, address, 0, op.count, landed)
        return now

    def _store_bulk(self, warp: Warp, op: Op, now: float) -> float:
        warp.bulk.add(self._serve(warp, op, now) + self.latencies.bulk)
        return now

    # ------------------------------------------------------------ barriers

    def _meet(self, warp: Warp, op: Op, now: float) -> float | None:
        """Arrive at a barrier and wait (bar.sync); None if other warps are still missing."""
        barrier = self._arrive_at(warp, op, now)
        if not self._is_complete(barrier, warp.group):
            barrier.waiting.append(warp)
            return None
        end = barrier.last + self.latencies.meeting
        self._open(barrier, warp.group)
        return end

    def _pass(self, warp: Warp, op: Op, now: float) -> float:
        """Arrive at a barrier without waiting (bar.arrive)."""
        self._open(self._arrive_at(warp, op, now), warp.group)
        return now

    def _arrive_at(self, warp: Warp, op: Op, now: float) -> Barrier:
        ((number, _),) = op.objects
        barrier = self.barriers.setdefault((warp.group, number), Barrier())
        barrier.arrived += 1
        barrier.needed = op.count
        barrier.last = max(barrier.last, now)
        return barrier

    def _is_complete(self, barrier: Barrier, group: int) -> bool:
        return barrier.arrived >= (self.live[group] if barrier.needed == ALL else barrier.needed)

    def _open(self, barrier: Barrier, group: int) -> None:
        """Let the warps at a barrier go on if all have arrived."""
        if not self._is_complete(barrier, group):
            return
        end, waiting = barrier.last + self.latencies.meeting, barrier.waiting
        barrier.waiting, barrier.arrived, barrier.last = [], 0, 0.0
        for warp in waiting:
            self._resume(warp, end)

    def _release(self, warp: Warp) -> None:
        """Let a warp go on that would wait for ever: the kernel lacks an arrival, or its trace does."""
        for barrier in self.barriers.values():
            barrier.waiting = [other for other in barrier.waiting if other is not warp]
        for mbarrier in self.mbarriers.values():
            mbarrier.waiting = [each for each in mbarrier.waiting if each[0] is not warp]
        self._resume(warp, 0.0)

    def _resume(self, warp: Warp, end: float) -> None:
        """Let a warp go on that other warps have kept waiting."""
        self.parked.pop(warp.number, None)
        warp.done[-1] = max(warp.done[-1], end)
        warp.free_at = warp.done[-1]
        if self._has_more(warp):
            heappush(self.queue, (warp.free_at, warp.number))

    # ------------------------------------------------------------ mbarriers

    def _initialise(self, warp: Warp, op: Op, now: float) -> float:
        for address, count in op.objects:
            self.mbarriers[warp.group, address] = Mbarrier(count, count)
            for other in self.warps:
                if other.group == warp.group:
                    other.phases.pop(address, None)
        return now

    def _arrive(self, warp: Warp, op: Op, now: float) -> float:
        for address, count in op.objects:
            self._complete(warp.group, address, count, -op.count, now)
        return now

    def _complete(self, group: int, address: int, arrivals: int, size: int, now: float) -> None:
        """Count arrivals, and bytes (negative: expected ones), of a phase; end it if nothing is missing."""
        mbarrier = self.mbarriers.setdefault((group, address), Mbarrier())
        mbarrier.pending -= arrivals
        mbarrier.expected -= size
        mbarrier.last = max(mbarrier.last, now)
        if mbarrier.pending > 0 or mbarrier.expected:
            return
        end = mbarrier.last + self.latencies.meeting
        mbarrier.ended.append(end)
        mbarrier.pending, mbarrier.last = mbarrier.count, 0.0
        passing = [warp for warp, phase in mbarrier.waiting if phase < len(mbarrier.ended)]
        mbarrier.waiting = [each for each in mbarrier.waiting if each[1] >= len(mbarrier.ended)]
        for warp in passing:
            self._resume(warp, end)

    def _await_phase(self, warp: Warp, op: Op, now: float) -> float | None:
        """Wait for the next phase of a parity that a warp has not waited for; phase -1 has always ended."""
        end = now
        for address, parity in op.objects:
            mbarrier = self.mbarriers.setdefault((warp.group, address), Mbarrier())
            phase = warp.phases.get(address, -2) + 1
            phase += phase % 2 != parity
            warp.phases[address] = phase
            if phase >= len(mbarrier.ended):
                mbarrier.waiting.append((warp, phase))
                return None
            end = max(end, mbarrier.ended[phase] if phase >= 0 else end)
        return end


def _commit(groups: Groups, now: float) -> float:
    groups.commit()
    return now
