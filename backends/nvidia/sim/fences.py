"""Fences, and the strong accesses that order workgroups (PTX ISA, Memory Consistency Model; membar, fence)."""

from __future__ import annotations

import numpy as np

from convgen.backends.nvidia.sim.ptx_text import Instruction
from convgen.backends.nvidia.sim.state import WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step, unsupported
from convgen.backends.sim.device_memory import Allocation
from convgen.backends.sim.global_access import thread_states
from convgen.backends.sim.wave_arrays import Array, Bools

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
    if instruction.has("proxy", "mbarrier_init"):
        raise unsupported(instruction, "proxies and mbarriers are not simulated yet")
    if not orders_workgroups(instruction):
        return Step(instruction, "other", lambda g: None)

    def run(g: WarpGroup) -> None:
        release(g)
        acquire(g)

    return Step(instruction, "other", run)


def release(g: WarpGroup) -> None:
    """Release all stores of the warps so far, and those of their workgroups before the last barrier.

    A lane's later stores are left out if it does not take part and no barrier has ordered them before those that do.
    """
    causality = g.env.causality
    if not causality.tracked:
        return
    for row, who in enumerate(thread_states(g)):
        first = g.env.first_store[g.thread[row]]
        first[g.active[row]] = 0
        behind = first[first > 0]
        causality.release(who, int(behind.min()) - 1 if behind.size else causality.tickets)


def note_store(g: WarpGroup, lanes: Bools, ticket: int) -> None:
    """Record a store of some lanes, which only their own releases and those behind a barrier publish."""
    if g.env.causality.tracked:
        first = g.env.first_store[g.thread]
        g.env.first_store[g.thread] = np.where(lanes & (first == 0), ticket, first)


def order_lanes(g: WarpGroup, lanes: Bools) -> None:
    """Order the stores of lanes that meet at a barrier before all that these lanes do next."""
    if g.env.causality.tracked:
        g.env.first_store[g.thread] = np.where(lanes, 0, g.env.first_store[g.thread])


def acquire(g: WarpGroup) -> None:
    """Acquire what the warps have observed by strong accesses."""
    causality = g.env.causality
    if causality.tracked:
        for who in thread_states(g):
            causality.acquire(who, causality.observed(who.thread))


def meet(g: WarpGroup, allocation: Allocation, offset: Array, size: int, lanes: Bools | None, kind: str) -> None:
    """Publish what the warps have released at some places, and observe what others published there."""
    causality = g.env.causality
    some = np.ones(offset.shape, np.bool_) if lanes is None else lanes
    threads = [int(thread) for thread in g.wave_ids()]
    met = causality.publish_and_observe(allocation, allocation.units(offset, size), some, threads, kind)
    for thread, number in zip(threads, met[:, 0], strict=True):
        causality.observe(thread, int(number))
