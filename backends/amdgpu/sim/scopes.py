"""Agent scope: cache instructions and atomic operations that order waves of different workgroups (`archs`)."""

from __future__ import annotations

import numpy as np

from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step
from convgen.backends.amdgpu.sim.transfer import land_nothing
from convgen.backends.amdgpu.sim.waits import issue
from convgen.backends.sim.causality import Who
from convgen.backends.sim.device_memory import Allocation
from convgen.backends.sim.global_access import thread_states
from convgen.backends.sim.wave_arrays import Array, Bools

_CACHES = frozenset("buffer_wbinvl1 buffer_wbinvl1_vol buffer_wbl2 buffer_invl2 buffer_inv".split())


def is_operation(instruction: Instruction, operation: str) -> bool:
    """Return whether an instruction has the mnemonic and all modifiers of `operation`."""
    return operation.startswith(instruction.name) and set(operation.split()) <= set(instruction.text.split())


def compile_cache(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a cache instruction, which changes no data; None for other mnemonics."""
    if instruction.name not in _CACHES:
        return None
    scope = context.arch.scope
    if instruction.name == "buffer_wbl2":
        step = Step(instruction, "other", lambda g: None)
        # A write-back that does not reach agent scope releases nothing.
        land = _land_release if is_operation(instruction, scope.release) else land_nothing

        def write_back(g: WaveGroup) -> None:
            upto = np.full((g.count, 1), g.env.causality.tickets, np.int64)
            epochs = g.env.epoch[g.slot][:, None].astype(np.int64)
            issue(g, Pending(step, "vm", 0, (upto, epochs), land))

        step.run = write_back
        return step
    if is_operation(instruction, scope.acquire):
        return Step(instruction, "other", _acquire)
    return Step(instruction, "other", lambda g: None)


def _land_release(g: WaveGroup, pending: Pending) -> None:
    """Release the stores issued before a write-back that was waited for. Payload: tickets, epochs [waves, 1]."""
    upto, epochs = pending.payload
    assert upto is not None
    assert epochs is not None
    for who, ticket, epoch in zip(thread_states(g), upto[:, 0], epochs[:, 0], strict=True):
        g.env.causality.release(Who(who.thread, who.group, int(epoch)), int(ticket))


def _acquire(g: WaveGroup) -> None:
    for who in thread_states(g):
        g.env.causality.acquire(who, g.env.causality.observed(who.thread))


def publish_and_observe(
    g: WaveGroup, allocation: Allocation, offset: Array, size: int, lanes: Bools | None, ticket: int, kind: str
) -> Array | None:
    """Publish by an atomic operation at byte offsets [waves, lanes]; return what each wave observes (`causality`)."""
    causality = g.env.causality
    if not causality.tracked:
        return None
    if kind != "load" and not g.env.arch.scope.release:
        upto = min(g.outstanding_stores(), default=ticket) - 1
        for who in thread_states(g):
            causality.release(who, upto)
    if kind != "load":
        unwaited = frozenset(t for p in g.vm if p.step.kind == "vmem_store" for t in p.tickets) - {ticket}
        for thread in map(int, g.wave_ids()):
            causality.leave_unwaited(thread, ticket, unwaited)
    some = np.ones(offset.shape, np.bool_) if lanes is None else lanes
    return causality.publish_and_observe(allocation, allocation.units(offset, size), some, map(int, g.wave_ids()), kind)


def land_observed(g: WaveGroup, pending: Pending) -> None:
    """Record what the waves of a returned atomic operation observe. Payload 4: numbers of publications [waves, 1]."""
    observed = pending.payload[4]
    if observed is not None:
        g.polled = True
        for thread, number in zip(g.wave_ids(), observed[:, 0], strict=True):
            g.env.causality.observe(int(thread), int(number))
