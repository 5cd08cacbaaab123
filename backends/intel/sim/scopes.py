"""Device scope: what orders threads of different workgroups, and what of it is still under way.

A fence of the global unit releases, or acquires, when it is known to be done, as its reach and what it does to the
first-level cache say; an atomic operation is observed when its result is. Neither counts before the scoreboard says so.
"""

from __future__ import annotations

import attrs
import numpy as np

from convgen.backends.intel.sim import messages as msg
from convgen.backends.intel.sim.decode import Instruction
from convgen.backends.intel.sim.platforms import Platform
from convgen.backends.intel.sim.state import ThreadGroup, Underway
from convgen.backends.intel.sim.step import Step
from convgen.backends.sim.arrays import Array, Bools
from convgen.backends.sim.causality import Who
from convgen.backends.sim.global_access import everyone
from convgen.backends.sim.memory import Allocation

#: What a fence must do to the first-level cache, which holds what is stored (write-back) and what was loaded. Stores of
#: IGC go by the driver's default and past that cache, so that on XeHPC it releases without a flush; that is not
#: believed here. On XeHPG such a fence would reach the core only (Mesa, Wa_14012437816).
_RELEASES, _ACQUIRES = (msg.EVICT, msg.CLEAN), (msg.EVICT, msg.INVALIDATE)


@attrs.frozen
class Order:
    """What a fence does to the order of workgroups."""

    releases: bool = False
    acquires: bool = False


def order_of(instruction: Instruction, platform: Platform) -> Order:
    """What an instruction does to the order of workgroups; nothing where it is no fence of the global unit."""
    message = instruction.message
    if message is None or message.unit != "ugm" or message.descriptor is None:
        return Order()
    fence = msg.Fence.decode(message.descriptor)
    if msg.Lsc.decode(message.descriptor).op != msg.FENCE or fence.scope < platform.launch_scope:
        return Order()
    return Order(fence.flush in _RELEASES, fence.flush in _ACQUIRES)


def begin_fence(g: ThreadGroup, step: Step, order: Order) -> None:
    """A fence is issued: it covers what was stored, and what has been observed, so far."""
    causality = g.env.causality
    if causality.tracked and (order.releases or order.acquires):
        observed = [causality.observed(int(thread)) if order.acquires else 0 for thread in g.wave_ids()]
        upto = causality.tickets if order.releases else 0
        epochs = g.env.epoch[g.slot].astype(np.int64)
        g.underway.append(Underway(step.index, upto, epochs, np.array(observed, np.int64)))


def begin_atomic(
    g: ThreadGroup, step: Step, allocation: Allocation, offset: Array, size: int, lanes: Bools, kind: str
) -> None:
    """An atomic operation at byte offsets [threads, lanes] of a buffer is issued: it publishes, and meets others'."""
    causality = g.env.causality
    if causality.tracked:
        met = causality.meet(allocation, allocation.units(offset, size), lanes, map(int, g.wave_ids()), kind)
        if step.writes:
            g.underway.append(Underway(step.index, None, np.zeros(g.count, np.int64), met[:, 0]))


def land(g: ThreadGroup, done: frozenset[int]) -> None:
    """Out-of-order instructions have completed."""
    causality = g.env.causality
    for one in g.underway:
        if one.step not in done:
            continue
        for who, epoch, number in zip(everyone(g), one.epochs, one.numbers, strict=True):
            if one.upto is None:
                causality.observe(who.thread, int(number))
                continue
            if one.upto:
                causality.release(Who(who.thread, who.group, int(epoch)), one.upto)
            if number:
                causality.acquire(who, int(number))
    g.underway = [one for one in g.underway if one.step not in done]
