"""An event model of one compute unit: waves issue in order, units take what comes first.

Each wave has a time at which it may issue next. The earliest wave goes; if what its instruction needs is not free, it
comes again when that is. A SIMD takes one instruction of a kind at a time from its waves; the LDS and the address pipe
of vector memory belong to all of them. Loads return in the order of their issue, no sooner than a latency after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import attrs

from convgen.backends.amdgpu.timing.ops import SLOT, Op, Port
from convgen.backends.timing import L2_LATENCY

SIMDS = 4
_QUEUE = 64  #: clocks of work that the LDS and the address pipe take in before waves must wait
_SCALAR_LATENCY = 200.0  #: clocks; a scalar load that hits its cache


@attrs.frozen
class Latencies:
    """Clocks from issue to the first data."""

    vector: float = L2_LATENCY  #: vector memory
    lds: float = 64.0


@attrs.frozen(eq=False)
class Course:
    """What became of a run."""

    end: float  #: clocks until the last wave has ended
    stalled: list[float]  #: by instruction, clocks in which waves could have issued it but for what it needs


@attrs.define(eq=False)
class _Wave:
    simd: int
    group: int
    since: float  #: when it could issue the next instruction
    at: int = 0  #: number of the next instruction
    vm: list[float] = attrs.Factory(list)  #: when each outstanding operation is done, in order
    lgkm: list[float] = attrs.Factory(list)
    ready: dict[int, float] = attrs.Factory(dict)  #: of registers that matrix instructions write, when they are there


@attrs.frozen
class Unit:
    """Runs the same instructions in some workgroups of some waves each."""

    groups: int
    waves: int
    latencies: Latencies = Latencies()

    def run(self, ops: Sequence[Op]) -> Course:
        """All waves, from the first instruction to the last."""
        return _Run(self, ops).course()


class _Run:
    """One run: waves by the time at which they may go on, and when each pipe takes the next instruction."""

    def __init__(self, unit: Unit, ops: Sequence[Op]) -> None:
        self.ops, self.members = ops, unit.waves
        waves = (_Wave(n % SIMDS, n // unit.waves, float(n)) for n in range(unit.groups * unit.waves))
        self.queue = [(wave.since, n, wave) for n, wave in enumerate(waves)]
        self.free = [[0.0] * len(Port) for _ in range(SIMDS)]  #: by SIMD and port
        self.shared = {Port.LDS: 0.0, Port.GLOBAL: 0.0}
        self.latency = {Port.LDS: unit.latencies.lds, Port.GLOBAL: unit.latencies.vector}
        self.returned = {Port.LDS: 0.0, Port.GLOBAL: 0.0}  #: when the last of the data are there
        self.arrived: list[list[tuple[float, int, _Wave]]] = [[] for _ in range(unit.groups)]  #: at a barrier
        self.stalled = [0.0] * len(ops)

    def course(self) -> Course:
        """Until no wave has an instruction left."""
        end = 0.0
        while self.queue:
            now, number, wave = heappop(self.queue)
            op = self.ops[wave.at]
            start = self._start(wave, op, now)
            if start > now:
                heappush(self.queue, (start, number, wave))
                continue
            self.stalled[wave.at] += now - wave.since
            done = self._issue(wave, op, now)
            wave.at += 1
            wave.since = done
            if op.is_barrier:
                self._arrive(wave, number, done)
            elif wave.at < len(self.ops):
                heappush(self.queue, (done, number, wave))
            end = max(end, done)
        return Course(end, self.stalled)

    def _start(self, wave: _Wave, op: Op, now: float) -> float:
        """When all is free that an instruction needs."""
        start = max(now, self.free[wave.simd][op.port])
        if op.reads and wave.ready:
            start = max(start, _written(wave, op, now))
        if op.port in self.shared:
            start = max(start, self.shared[op.port] - _QUEUE)
        return start

    def _issue(self, wave: _Wave, op: Op, now: float) -> float:
        """Take what it needs; when its wave may go on."""
        done, port, mine = now + op.issue, op.port, self.free[wave.simd]
        if op.waits is not None:
            vm, lgkm = op.waits
            until = max(done, _waited(wave.vm, vm, now), _waited(wave.lgkm, lgkm, now))
            self.stalled[wave.at] += until - done
            return until
        if port is Port.MATRIX:
            mine[Port.MATRIX] = now + op.busy
            mine[Port.VALU] = max(mine[Port.VALU], now + SLOT)
            wave.ready = {bits: t for bits, t in wave.ready.items() if t > now}
            wave.ready[op.writes] = now + op.busy + 2 * SLOT
        elif port in self.shared:
            mine[port] = now + SLOT
            self.shared[port] = max(self.shared[port], now) + op.busy
            self.returned[port] = max(self.shared[port] + self.latency[port], self.returned[port])
            (wave.vm if port is Port.GLOBAL else wave.lgkm).append(self.returned[port])
        elif port is not Port.NONE:
            mine[port] = now + op.issue
        if op.is_scalar_load:
            wave.lgkm.append(now + _SCALAR_LATENCY)
        return done

    def _arrive(self, wave: _Wave, number: int, at: float) -> None:
        """At a barrier; the last of a workgroup's waves opens it."""
        waiting = self.arrived[wave.group]
        waiting.append((at, number, wave))
        if len(waiting) < self.members:
            return
        opened = max(time for time, _, _ in waiting)
        for time, own, other in waiting:
            self.stalled[other.at - 1] += opened - time
            other.since = opened
            if other.at < len(self.ops):
                heappush(self.queue, (opened, own, other))
        waiting.clear()


def _waited(outstanding: list[float], allowed: int | None, now: float) -> float:
    """When no more than `allowed` are outstanding; those are forgotten that are done by then."""
    excess = len(outstanding) - (len(outstanding) if allowed is None else allowed)
    if excess <= 0:
        return now
    until = max(outstanding[:excess])
    del outstanding[:excess]
    return until


def _written(wave: _Wave, op: Op, now: float) -> float:
    """When the matrix results that an instruction reads are there; an accumulator that is added to needs no wait."""
    times = (
        time
        for bits, time in wave.ready.items()
        if bits & op.reads and not (op.port is Port.MATRIX and bits == op.writes)
    )
    return max(times, default=now)
