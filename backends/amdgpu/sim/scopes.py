"""Agent scope: what orders waves of different workgroups, by the architecture's own instructions (`archs`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convgen.backends.amdgpu.sim.decode import Instruction, Operand
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step
from convgen.backends.amdgpu.sim.waits import issue
from convgen.backends.sim.arrays import Array, Bools
from convgen.backends.sim.causality import Who
from convgen.backends.sim.global_access import everyone
from convgen.backends.sim.memory import Allocation

_GUESSED_WITHIN = 1024  #: instructions between a first guess and the operation that proves it
_CACHES = frozenset("buffer_wbinvl1 buffer_wbinvl1_vol buffer_wbl2 buffer_invl2 buffer_inv".split())


def names(instruction: Instruction, operation: str) -> bool:
    """Whether an instruction is an operation, given as mnemonic and modifiers; it may have more."""
    return set(operation.split()) <= set(instruction.text.split()) if operation else False


def compile_cache(instruction: Instruction, context: Context) -> Step | None:
    """A step for an instruction on caches, None when the mnemonic is none. Data is right whatever they do."""
    if instruction.name not in _CACHES:
        return None
    scope = context.arch.scope
    if instruction.name == "buffer_wbl2":
        step = Step(instruction, "other", lambda g: None)
        releases = names(instruction, scope.release)

        def write_back(g: WaveGroup) -> None:
            upto = np.full((g.count, 1), g.env.causality.tickets, np.int64)
            epochs = g.env.epoch[g.slot][:, None].astype(np.int64)
            issue(g, Pending(step, "vm", 0, (upto, epochs), _land_release if releases else _land_nothing))

        step.run = write_back
        return step
    if names(instruction, scope.acquire):
        return Step(instruction, "other", _acquire)
    return Step(instruction, "other", lambda g: None)


def _land_nothing(g: WaveGroup, pending: Pending) -> None:
    """A writeback to a scope that orders nothing here."""


def _land_release(g: WaveGroup, pending: Pending) -> None:
    """A writeback has been waited for; it covers what was issued before it. Payload: tickets, epochs [waves, 1]."""
    upto, epochs = pending.payload
    assert upto is not None
    assert epochs is not None
    for who, ticket, epoch in zip(everyone(g), upto[:, 0], epochs[:, 0], strict=True):
        g.env.causality.release(Who(who.thread, who.group, int(epoch)), int(ticket))


def _acquire(g: WaveGroup) -> None:
    for who in everyone(g):
        g.env.causality.acquire(who, g.env.causality.observed(who.thread))


def first_guesses(instructions: Sequence[Instruction]) -> frozenset[int]:
    """Addresses of plain loads that bring no more than what a compare-and-swap expects at their place.

    LLVM begins its loops of compare-and-swap so: what is stale the operation finds out (AtomicExpandPass).
    """
    swaps = (n for n, i in enumerate(instructions) if "_atomic_cmpswap" in i.name)
    loads = (_first_guess(instructions[n], instructions[max(0, n - _GUESSED_WITHIN) : n]) for n in swaps)
    return frozenset(load.address for load in loads if load is not None)


def _first_guess(swap: Instruction, before: Sequence[Instruction]) -> Instruction | None:
    """The load that writes the comparand last, if it does nothing else."""
    data, place = _data_and_place(swap)
    comparand = range(data.index + data.count // 2, data.index + data.count)
    for i in reversed(before):
        written = i.operands[0] if i.operands and i.operands[0].kind == "v" else None
        if written is None or not set(comparand) & set(range(written.index, written.index + written.count)):
            continue
        loads = "_load_dword" in i.name and (written.index, written.count) == (comparand.start, len(comparand))
        return i if loads and _data_and_place(i)[1] == place else None
    return None


def _data_and_place(i: Instruction) -> tuple[Operand, tuple[object, ...]]:
    """The data that an access moves, and all that says where."""
    flat = not i.name.startswith("buffer_")
    returns = flat and "_atomic_" in i.name and bool({"glc", "sc0"} & set(i.modifiers))
    operands = list(i.operands[returns:])
    data = operands.pop(1 if flat and "_atomic_" in i.name else 0)
    where = (operand.text for operand in operands)
    return data, (i.name.partition("_")[0], *where, *(i.modifiers.get(m) for m in ("offset", "offen", "idxen")))


def meet(
    g: WaveGroup, allocation: Allocation, offset: Array, size: int, lanes: Bools | None, ticket: int, kind: str
) -> Array | None:
    """An atomic operation at byte offsets [waves, lanes] of a buffer: publishes, and gives what the waves met there."""
    causality = g.env.causality
    if not causality.tracked:
        return None
    if kind != "load" and not g.env.arch.scope.release:
        upto = min(g.outstanding_stores(), default=ticket) - 1
        for who in everyone(g):
            causality.release(who, upto)
    some = np.ones(offset.shape, np.bool_) if lanes is None else lanes
    return causality.meet(allocation, allocation.units(offset, size), some, map(int, g.wave_ids()), kind)


def land_met(g: WaveGroup, pending: Pending) -> None:
    """An atomic operation has come back: its waves have observed what they met. Payload 4: numbers [waves, 1]."""
    met = pending.payload[4]
    if met is not None:
        g.polled = True
        for thread, number in zip(g.wave_ids(), met[:, 0], strict=True):
            g.env.causality.observe(int(thread), int(number))
