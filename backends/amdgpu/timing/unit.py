"""An event model of one compute unit: waves issue in order, units take what comes first.

Each wave has a time at which it may issue next. The earliest wave goes; if what its instruction needs is not free, it
comes again when that is. A SIMD takes one instruction of a kind at a time from its waves; the LDS and the address pipe
of vector memory belong to all of them. Loads return in the order of their issue, no sooner than a latency after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import attrs

from convgen.backends.amdgpu.timing.ops import SLOT, Count, Op, Port

_SIMDS = 4
_SCALAR_LATENCY = 200.0  #: clocks; a scalar load that hits its cache


@attrs.frozen
class Latencies:
    """Clocks from issue to the first data."""

    vector: float = 500.0  #: vector memory, L2 (MIOpen rows: 300 to 600)
    lds: float = 64.0


@attrs.define(eq=False)
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


@attrs.define(eq=False)
class Unit:
    """Runs the same instructions in some workgroups of some waves each."""

    groups: int
    waves: int
    latencies: Latencies = attrs.field(factory=Latencies)

    def run(self, ops: Sequence[Op]) -> Course:
        """All waves, from the first instruction to the last."""
        waves = [
            _Wave((group * self.waves + wave) % _SIMDS, group, float(group * self.waves + wave))
            for group in range(self.groups)
            for wave in range(self.waves)
        ]
        queue: list[tuple[float, int, _Wave]] = [(wave.since, n, wave) for n, wave in enumerate(waves)]
        free = [[0.0] * 6 for _ in range(_SIMDS)]  # by SIMD and port, when it takes the next instruction
        shared = {Port.LDS: 0.0, Port.GLOBAL: 0.0}
        latency = {Port.LDS: self.latencies.lds, Port.GLOBAL: self.latencies.vector}
        returned = {Port.LDS: 0.0, Port.GLOBAL: 0.0}
        arrived: list[list[tuple[float, int, _Wave]]] = [[] for _ in range(self.groups)]
        end, count = 0.0, len(ops)
        stalled = [0.0] * count
        while queue:
            now, number, wave = heappop(queue)
            op = ops[wave.at]
            port = op.port
            mine = free[wave.simd]
            start = max(now, mine[port])
            if op.reads and wave.ready:
                start = max(start, _written(wave, op, now))
            if port is Port.LDS or port is Port.GLOBAL:
                # Some operations wait in the queue of the unit before waves must.
                start = max(start, shared[port] - 64)
            if start > now:
                heappush(queue, (start, number, wave))
                continue
            done = now + op.issue
            stalled[wave.at] += now - wave.since
            if op.waits is not None:
                done = max(done, _waited(wave.vm, op.waits[0], now), _waited(wave.lgkm, op.waits[1], now))
                stalled[wave.at] += done - now - op.issue
            elif port is Port.MATRIX:
                mine[Port.MATRIX] = now + op.busy
                mine[Port.VALU] = max(mine[Port.VALU], now + SLOT)
                wave.ready = {bits: t for bits, t in wave.ready.items() if t > now}
                wave.ready[op.writes] = now + op.busy + 2 * SLOT
            elif port is Port.LDS or port is Port.GLOBAL:
                mine[port] = now + SLOT
                taken = max(shared[port], now) + op.busy
                shared[port] = taken
                returned[port] = max(taken + latency[port], returned[port])
                (wave.vm if op.count is Count.VM else wave.lgkm).append(returned[port])
            elif op.is_scalar_load:
                wave.lgkm.append(now + _SCALAR_LATENCY)
                mine[port] = now + SLOT
            elif port is not Port.NONE:
                mine[port] = now + op.issue
            wave.at += 1
            wave.since = done
            if op.is_barrier:
                waiting = arrived[wave.group]
                waiting.append((done, number, wave))
                if len(waiting) == self.waves:
                    opened = max(time for time, _, _ in waiting)
                    for time, own, other in waiting:
                        stalled[other.at - 1] += opened - time
                        other.since = opened
                        if other.at < count:
                            heappush(queue, (opened, own, other))
                    waiting.clear()
            elif wave.at < count:
                heappush(queue, (done, number, wave))
            end = max(end, done)
        return Course(end, stalled)


def _waited(outstanding: list[float], allowed: int, now: float) -> float:
    """When no more than `allowed` are outstanding; those are forgotten that are done by then."""
    excess = len(outstanding) - allowed
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
