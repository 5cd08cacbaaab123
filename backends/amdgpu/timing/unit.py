"""An event model of one compute unit: waves issue in order, units serve instructions first come, first served.

Each wave has a time at which it may issue next. The earliest wave goes; if its instruction needs a busy resource, the
wave is queued again for when that is free. A SIMD takes one instruction of a kind at a time from its waves; LDS and the
address pipe of vector memory are shared by all SIMDs. Loads return in issue order, at least a latency after issue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

import attrs

from convgen.backends.amdgpu.family import FAMILY
from convgen.backends.amdgpu.timing.ops import SLOT, Op, Port
from convgen.backends.event_model import waves
from convgen.backends.event_model.waves import ModelRun, Occupied, Workgroup
from convgen.ir.record import define, frozen

SIMDS = 4
#: Clocks of work that the LDS and the address pipe queue before waves must wait (assumed). With 32 or 128, the loop of
#: two workgroups of a 3x3 convolution (56x56, 64 channels, f16, gfx942) takes 4 or 8 % longer.
_QUEUE = 64
#: Clocks; a scalar load that hits its cache (assumed). With 50 to 200, that convolution takes the same time.
_SCALAR_LATENCY = 200.0


@frozen
class Latencies:
    """Clocks from issue to the first data."""

    vector: float = FAMILY.load_latency  #: vector memory
    lds: float = 64.0


@define(eq=False)
class Wave(waves.Wave):
    """One wave with its outstanding operations."""

    vm: list[float] = attrs.Factory(list)  #: completion of each outstanding vmcnt operation, in order
    lgkm: list[float] = attrs.Factory(list)
    ready: dict[int, float] = attrs.Factory(dict)  #: registers of matrix results, as bits -> when they are ready


PIPES = {Port.MATRIX: "matrix", Port.LDS: "lds", Port.GLOBAL: "addresses", Port.VALU: "valu", Port.SALU: "salu"}
_EACH_SIMD = (Port.MATRIX, Port.VALU, Port.SALU)  #: pipes of which each SIMD has its own


def busy_of(ops: Iterable[tuple[Op, float]]) -> dict[str, float]:
    """Return the busy clocks of each pipe for instructions with their executions: of the CU, or of one SIMD."""
    busy = dict.fromkeys(PIPES.values(), 0.0)
    for op, times in ops:
        if op.port in PIPES:
            clocks = op.issue if op.port in (Port.VALU, Port.SALU) else op.busy
            busy[PIPES[op.port]] += times * clocks / (SIMDS if op.port in _EACH_SIMD else 1)
    return busy


@frozen
class Unit:
    """A CU that runs workgroups together, each of some waves."""

    latencies: Latencies = Latencies()

    def run(self, workgroups: Sequence[Workgroup], begins: Sequence[float] = ()) -> ModelRun:
        """Run all waves from the first instruction to the last; workgroups begin at clock 0, or as `begins` says."""
        return _Run(workgroups, begins, self.latencies).result()

    def busy_of(self, ops: Iterable[tuple[Op, float]]) -> dict[str, float]:
        """Return the busy clocks of each pipe for instructions with their executions: of the CU, or of one SIMD."""
        return busy_of(ops)


class _Run:
    """One run: waves by the time at which they may go on, and the times at which pipes are free."""

    def __init__(self, workgroups: Sequence[Workgroup], begins: Sequence[float], latencies: Latencies) -> None:
        streams = ((number, ops) for number, group in enumerate(workgroups) for ops in group)
        clocks = begins or [0.0] * len(workgroups)
        # waves begin one after the other
        self.waves = [Wave(n % SIMDS, group, ops, clocks[group] + n) for n, (group, ops) in enumerate(streams)]
        self.queue = [(wave.free_at, n, wave) for n, wave in enumerate(self.waves) if wave.ops]
        self.live = [sum(wave.group == n and bool(wave.ops) for wave in self.waves) for n in range(len(workgroups))]
        self.free = [[0.0] * len(Port) for _ in range(SIMDS)]  #: by SIMD and port
        self.shared = {Port.LDS: 0.0, Port.GLOBAL: 0.0}
        self.latency = {Port.LDS: latencies.lds, Port.GLOBAL: latencies.vector}
        self.returned = {Port.LDS: 0.0, Port.GLOBAL: 0.0}  #: when the last data return
        self.arrived: list[list[tuple[int, Wave]]] = [[] for _ in workgroups]  #: waves that wait at a barrier
        self.occupied: list[Occupied] = []

    def result(self) -> ModelRun:
        """Run until no wave has an instruction left."""
        while self.queue:
            now, number, wave = heappop(self.queue)
            op = wave.ops[len(wave.done)]
            start = self._start(wave, op, now)
            if start > now:
                heappush(self.queue, (start, number, wave))
                continue
            wave.free_since.append(wave.free_at)
            wave.issued.append(now)
            wave.done.append(self._issue(wave, op, now))
            if op.is_barrier:
                self.arrived[wave.group].append((number, wave))
                self._open(wave.group)
            else:
                self._go_on(number, wave)
        return ModelRun(
            max((wave.done[-1] for wave in self.waves if wave.done), default=0.0), self.waves, self.occupied
        )

    def _go_on(self, number: int, wave: Wave) -> None:
        """Queue a wave's next instruction, or end the wave, which barriers then no longer wait for."""
        wave.free_at = wave.done[-1]
        if len(wave.done) < len(wave.ops):
            heappush(self.queue, (wave.free_at, number, wave))
            return
        self.live[wave.group] -= 1
        if self.arrived[wave.group]:
            self._open(wave.group)

    def _start(self, wave: Wave, op: Op, now: float) -> float:
        """Return when everything is free that an instruction needs."""
        start = max(now, self.free[wave.simd][op.port])
        if op.reads and wave.ready:
            start = max(start, _written(wave, op, now))
        if op.port in self.shared:
            start = max(start, self.shared[op.port] - _QUEUE)
        return start

    def _issue(self, wave: Wave, op: Op, now: float) -> float:
        """Issue an instruction; return when its wave may go on."""
        done, port, mine = now + op.issue, op.port, self.free[wave.simd]
        if op.waits is not None:
            vm, lgkm = op.waits
            return max(done, _waited(wave.vm, vm, now), _waited(wave.lgkm, lgkm, now))
        if port is Port.MATRIX:
            self.occupied.append(Occupied(PIPES[port], wave.simd, now, op.busy, op))
            mine[Port.MATRIX] = now + op.busy
            mine[Port.VALU] = max(mine[Port.VALU], now + SLOT)
            wave.ready = {bits: t for bits, t in wave.ready.items() if t > now}
            wave.ready[op.writes] = now + op.busy + 2 * SLOT
        elif port in self.shared:
            mine[port] = now + SLOT
            start = max(self.shared[port], now)
            self.occupied.append(Occupied(PIPES[port], None, start, op.busy, op))
            self.shared[port] = start + op.busy
            self.returned[port] = max(self.shared[port] + self.latency[port], self.returned[port])
            (wave.vm if port is Port.GLOBAL else wave.lgkm).append(self.returned[port])
        elif port is not Port.NONE:
            mine[port] = now + op.issue
        if op.is_scalar_load:
            wave.lgkm.append(now + _SCALAR_LATENCY)
        return done

    def _open(self, group: int) -> None:
        """Open a workgroup's barrier if all waves that have not ended are there."""
        waiting = self.arrived[group]
        if len(waiting) < self.live[group]:
            return
        opened = max(wave.done[-1] for _, wave in waiting)
        self.arrived[group] = []
        for number, wave in waiting:
            wave.done[-1] = opened
            self._go_on(number, wave)


def _waited(outstanding: list[float], allowed: int | None, now: float) -> float:
    """Return when no more than `allowed` operations are outstanding, and drop those that are done by then."""
    excess = len(outstanding) - (len(outstanding) if allowed is None else allowed)
    if excess <= 0:
        return now
    until = max(outstanding[:excess])
    del outstanding[:excess]
    return until


def _written(wave: Wave, op: Op, now: float) -> float:
    """Return when the matrix results that an instruction reads are ready; adding to an accumulator needs no wait."""
    times = (
        time
        for bits, time in wave.ready.items()
        if bits & op.reads and not (op.port is Port.MATRIX and bits == op.writes)
    )
    return max(times, default=now)
