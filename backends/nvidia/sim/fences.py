"""Fences, and the strong accesses that order workgroups (PTX ISA, Memory Consistency Model; membar, fence).

Each lane is a thread of its own. An acquire pattern is a strong read and an acquire or a fence behind it in program
order, which relates operations of one thread ("Release and Acquire Patterns", "Program Order"). So a lane acquires what
it has read itself. Causality order passes this on to other lanes by barriers only: bar.warp.sync, and barriers of the
workgroup, order the memory accesses of their participants. shfl.sync and vote.sync order none.

The simulator assumes some order that the model does not give: lanes that execute one strong access observe what any of
them reads, and a release also publishes what each lane that takes part has acquired.
"""

from __future__ import annotations

import numpy as np

from convgen.backends.nvidia.sim.lanes import packed_flags
from convgen.backends.nvidia.sim.ptx_text import Instruction
from convgen.backends.nvidia.sim.state import WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step, unsupported, wants_target
from convgen.backends.sim.causality import EVERY_LANE, Who
from convgen.backends.sim.device_memory import Allocation
from convgen.backends.sim.global_access import thread_states
from convgen.backends.sim.wave_arrays import Array, Bools
from convgen.ir.record import evolve

_WIDE = ("gpu", "gl", "sys", "cluster")  #: scopes of more than a workgroup


def orders_workgroups(instruction: Instruction) -> bool:
    """Return whether an instruction acquires other workgroups' stores."""
    if instruction.name in ("membar", "fence"):
        return instruction.has(*_WIDE)
    return instruction.has("acquire", "acq_rel")


def compile_fence(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of membar or fence; None for other instructions."""
    if instruction.name not in ("membar", "fence"):
        return None
    if instruction.has("proxy"):
        return _proxy_fence(instruction, context)
    if instruction.has("mbarrier_init"):
        wants_target(instruction, context, "sm_90")
        return Step(instruction, "other", lambda g: g.env.local.fence_proxy(g, mbarriers=True))
    if not orders_workgroups(instruction):
        return Step(instruction, "other", lambda g: None)

    def run(g: WarpGroup) -> None:
        release(g)
        acquire(g)

    return Step(instruction, "other", run)


def _proxy_fence(instruction: Instruction, context: Context) -> Step:
    """fence.proxy.async: orders the generic stores of the lanes that execute it before later reads by the async proxy.

    PTX ISA, Async Proxy. The fence counts for stores by its own lane, and where others have seen it by a barrier.
    """
    if not instruction.has("async"):
        raise unsupported(instruction, "proxies other than the async one are not simulated")
    wants_target(instruction, context, "sm_90")
    return Step(instruction, "other", lambda g: g.env.local.fence_proxy(g))


def release(g: WarpGroup) -> None:
    """Release all stores of the warps so far, and those of their workgroups before the last barrier.

    Stores of a lane that does not take part are left out, unless a barrier orders them before the lanes that do.
    """
    causality = g.env.causality
    if not causality.tracked:
        return
    for row, who in enumerate(_lanes_of(g, g.active)):
        if not who.lanes:
            continue
        first = g.env.first_store[g.thread[row]]
        first[g.active[row]] = 0
        unordered = first[first > 0]
        causality.release(who, int(unordered.min()) - 1 if unordered.size else causality.tickets)


def note_store(g: WarpGroup, lanes: Bools, ticket: int) -> None:
    """Record a store of some lanes, which only their own releases and those behind a barrier publish."""
    if g.env.causality.tracked:
        first = g.env.first_store[g.thread]
        g.env.first_store[g.thread] = np.where(lanes & (first == 0), ticket, first)


def order_lanes(g: WarpGroup, lanes: Bools, *, waits: bool = True) -> None:
    """Order the stores of lanes that arrive at a barrier before all later accesses of these lanes.

    Lanes that wait at the barrier also acquire what any of them has acquired.
    """
    if not g.env.causality.tracked:
        return
    g.env.first_store[g.thread] = np.where(lanes, 0, g.env.first_store[g.thread])
    for who in _lanes_of(g, lanes) if waits else ():
        g.env.causality.join_lanes(who.thread, who.lanes)


def acquire(g: WarpGroup) -> None:
    """Acquire, in each lane that takes part, what it has observed by strong accesses."""
    if g.env.causality.tracked:
        for who in _lanes_of(g, g.active):
            g.env.causality.acquire_observed(who)


def _lanes_of(g: WarpGroup, lanes: Bools) -> list[Who]:
    """Return each warp with its set of `lanes`: `EVERY_LANE` if all live lanes are among them."""
    executing, alive = packed_flags(lanes).tolist(), packed_flags(g.env.alive[g.thread]).tolist()
    sets = (EVERY_LANE if some and not there & ~some else some for some, there in zip(executing, alive, strict=True))
    return [evolve(who, lanes=some) for who, some in zip(thread_states(g), sets, strict=True)]


def publish_and_observe(
    g: WarpGroup, allocation: Allocation, offset: Array, size: int, lanes: Bools | None, kind: str
) -> None:
    """Publish at some places what the warps have released, and observe what others have published at these places."""
    causality = g.env.causality
    some = np.ones(offset.shape, np.bool_) if lanes is None else lanes
    threads = [int(thread) for thread in g.wave_ids()]
    observed = causality.publish_and_observe(allocation, allocation.units(offset, size), some, threads, kind)
    for who, number in zip(_lanes_of(g, some), observed[:, 0], strict=True):
        causality.observe(who.thread, int(number), who.lanes)
