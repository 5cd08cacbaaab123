"""Device scope: fences and atomic operations that order threads of different workgroups, complete or in flight.

A fence of the global unit releases or acquires, depending on its scope and its operation on the first-level cache; an
atomic operation observes by its result. Either takes effect once the scoreboard shows that it is complete.

IGC 1.0.12504 assumes more, which is simulated on request only (`Rules.trust_igc`): its stores bypass the first-level
cache, so that on XeHPC a fence releases them without a flush, and a fence waits for earlier atomic operations, so that
their results need not have arrived.
"""

from __future__ import annotations

import numpy as np

from convgen.backends.intel.sim import messages as msg
from convgen.backends.intel.sim.decode import Instruction
from convgen.backends.intel.sim.platforms import Platform
from convgen.backends.intel.sim.state import ThreadGroup, Underway
from convgen.backends.intel.sim.step import Step
from convgen.backends.sim.causality import Who
from convgen.backends.sim.device_memory import Allocation
from convgen.backends.sim.global_access import thread_states
from convgen.backends.sim.wave_arrays import Array, Bools
from convgen.ir.record import frozen

#: Operations on the first-level cache that release (write back stores) and acquire (drop loaded lines).
_RELEASES, _ACQUIRES = (msg.EVICT, msg.CLEAN), (msg.EVICT, msg.INVALIDATE)
_RELEASES_OF_IGC = (*_RELEASES, msg.NO_FLUSH, msg.INVALIDATE)


@frozen
class Order:
    """The effect of a fence on the order of workgroups."""

    releases: bool = False
    acquires: bool = False
    waits: bool = False  #: for atomic operations that are under way


def order_of(instruction: Instruction, platform: Platform, *, trust_igc: bool) -> Order:
    """Return an instruction's effect on the order of workgroups; none unless it is a fence of the global unit."""
    message = instruction.message
    if message is None or message.unit != "ugm" or message.descriptor is None:
        return Order()
    fence = msg.Fence.decode(message.descriptor)
    if msg.Lsc.decode(message.descriptor).op != msg.FENCE or fence.scope < platform.launch_scope:
        return Order()
    if fence.flush == msg.NO_FLUSH and not platform.plain_fences:
        return Order()
    releases = fence.flush in (_RELEASES_OF_IGC if trust_igc else _RELEASES)
    return Order(releases, fence.flush in _ACQUIRES, waits=trust_igc)


def begin_fence(g: ThreadGroup, step: Step, order: Order) -> None:
    """Issue a fence, which covers the stores issued and the publications observed so far."""
    causality = g.env.causality
    if causality.tracked and (order.releases or order.acquires):
        for operation in g.underway if order.waits else ():
            _observe(g, operation)
        observed = [causality.observed(int(thread)) if order.acquires else 0 for thread in g.wave_ids()]
        upto = causality.tickets if order.releases else 0
        epochs = g.env.epoch[g.slot].astype(np.int64)
        g.underway.append(Underway(step.index, upto, epochs, np.array(observed, np.int64)))


def begin_atomic(
    g: ThreadGroup, step: Step, allocation: Allocation, offset: Array, size: int, lanes: Bools, kind: str
) -> None:
    """Issue an atomic operation at byte offsets [threads, lanes]: it publishes, and will observe publications."""
    causality = g.env.causality
    if causality.tracked:
        met = causality.publish_and_observe(
            allocation, allocation.units(offset, size), lanes, map(int, g.wave_ids()), kind
        )
        if step.writes:
            g.underway.append(Underway(step.index, None, np.zeros(g.count, np.int64), met[:, 0]))


def _observe(g: ThreadGroup, operation: Underway) -> None:
    """Record what the threads of a completed atomic operation observe."""
    if operation.upto is None:
        for thread, number in zip(g.wave_ids(), operation.numbers, strict=True):
            g.env.causality.observe(int(thread), int(number))


def land(g: ThreadGroup, complete: frozenset[int]) -> None:
    """Let the fences and atomic operations among completed instructions take effect."""
    causality = g.env.causality
    for operation in g.underway:
        if operation.step not in complete:
            continue
        _observe(g, operation)
        for who, epoch, number in zip(thread_states(g), operation.epochs, operation.numbers, strict=True):
            if operation.upto:
                causality.release(Who(who.thread, who.group, int(epoch)), operation.upto)
            if operation.upto is not None:
                causality.acquire(who, int(number))
    g.underway = [operation for operation in g.underway if operation.step not in complete]
