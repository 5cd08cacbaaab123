"""Atomic operations on device memory. Lanes with equal addresses are combined in lane order.

Atomic operations do not race with each other; they race with plain accesses of other waves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.amdgpu.sim import transfer
from convgen.backends.amdgpu.sim.addressing import Address
from convgen.backends.amdgpu.sim.alu.operands import check_tuple
from convgen.backends.amdgpu.sim.decode import Instruction, Operand
from convgen.backends.amdgpu.sim.ds_access import locate
from convgen.backends.amdgpu.sim.ds_atomics import note_update
from convgen.backends.amdgpu.sim.scopes import land_observed, publish_and_observe
from convgen.backends.amdgpu.sim.scratch import Where
from convgen.backends.amdgpu.sim.sources import ALIGNED
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step, unsupported
from convgen.backends.amdgpu.sim.waits import issue
from convgen.backends.sim.combine import FLOATING, INTEGER, Combine, combine_lanes
from convgen.backends.sim.device_memory import Allocation
from convgen.backends.sim.global_access import check_stores, is_writable, issue_store, parts_of
from convgen.backends.sim.wave_arrays import Array, Bools, any_along
from convgen.ir.record import evolve, frozen

#: function and bytes by the mnemonic's suffix
ATOMICS: Mapping[str, tuple[Combine, int]] = {
    **{name: (function, 4) for name, function in INTEGER.items()},
    **{f"{name}_x2": (function, 8) for name, function in INTEGER.items()},
    "cmpswap": (INTEGER["swap"], 4),
    "cmpswap_x2": (INTEGER["swap"], 8),
    **FLOATING,
}
_RETURNING = frozenset("glc sc0".split())


def atomic_step(
    instruction: Instruction,
    context: Context,
    space: str,
    what: str,
    operands: list[Operand],
    make: Callable[[Instruction, Context, list[Operand]], Address],
) -> Step:
    """Return the step of a buffer, global or flat atomic `what`; cmpswap reads data, then comparand."""
    if what not in ATOMICS:
        raise unsupported(instruction)
    function, size = ATOMICS[what]
    target = None if _RETURNING.isdisjoint(instruction.modifiers) else operands[0]
    if target is not None and space != "buffer":
        operands.pop(0)
    data = operands.pop(0 if space == "buffer" else 1)
    compare = what.startswith("cmpswap")
    check_tuple(data, size // 4 * (2 if compare else 1), context)
    if target is not None:
        target = evolve(target, count=size // 4)
        check_tuple(target, size // 4, context)
    address = make(instruction, context, operands)
    step = transfer.memory_step(instruction, context, "atomic", address, target, context.bits(data))
    update = Update(step, function, size, what.startswith("swap"))
    return step.running(_Atomic(update, space, address, context.registers(data), compare).run)


def _land_both(g: WaveGroup, pending: Pending) -> None:
    transfer.land_registers(g, pending)
    transfer.land_stores(g, pending)
    land_observed(g, pending)


def _check_guesses(g: WaveGroup, allocation: Allocation, offset: Array, size: int, lanes: Bools) -> None:
    """Tell the reporter that a compare-and-swap showed its waves whether their earlier loads were stale."""
    units = allocation.units(offset, size)
    threads = np.broadcast_to(g.wave_ids()[:, None], units.shape)
    taken = np.broadcast_to(lanes, units.shape)
    pairs = zip(threads[taken].tolist(), units[taken].tolist(), strict=True)
    g.env.reporter.check_guesses({(thread, allocation.name, unit) for thread, unit in pairs})


@frozen(eq=False)
class _Atomic:
    """One atomic instruction of vector memory."""

    update: Update
    space: str  #: "buffer", "global" or "flat"
    address: Address
    registers: tuple[int, ...]  #: registers of the data, then of the comparand
    compare: bool

    def run(self, g: WaveGroup) -> None:
        step, size = self.update.step, self.update.size
        transfer.check_address(g, step, self.address)
        transfer.refuse_poison(g, step, step.reads, self.registers, "the data of an atomic operation")
        ticket = issue_store(g)
        where = self.address.resolve(g, step, size, transfer.active(g))
        values = transfer.register_values(g, self.registers[0], size)
        expected = transfer.register_values(g, self.registers[0] + size // 4, size) if self.compare else None
        old, observed = self.update.apply(g, where, values, expected, ticket)
        g.env.counters["atomic_bytes"] += g.active_lanes() * size
        queue = transfer.queue_of(self.space, where)
        if step.writes:
            back = np.moveaxis(old[..., None].view(np.uint32), -1, 0)
            kept = None if g.exec_full else g.exec.copy()
            issue(g, Pending(step, queue, step.writes, (back, None, kept, None, observed), _land_both, (ticket,)))
        else:
            issue(g, Pending(step, queue, 0, (), transfer.land_stores, (ticket,)))


@frozen(eq=False)
class Update:
    """The effect of an atomic instruction on memory: device memory, or LDS for lanes of a flat instruction."""

    step: Step
    function: Combine
    size: int  #: bytes
    replaces: bool  #: whether the new value ignores the old one (swap), so that memory need not be defined

    def apply(
        self, g: WaveGroup, where: Where, values: Array, expected: Array | None, ticket: int
    ) -> tuple[Array, Array | None]:
        """Update memory; return old values (0 outside a descriptor's range) and what waves observe (`causality`)."""
        size = self.size
        old = np.zeros(values.shape, values.dtype)
        observed: Array | None = None
        if where.local is not None:
            old = self._local(g, where, values, expected)
        parts = parts_of(g, self.step, where.address, size, where.device_lanes, size, ALIGNED)
        for allocation, offset, taken in parts:
            if not is_writable(g, self.step, allocation, taken):
                continue
            lanes = np.ones(values.shape, np.bool_) if taken is None else taken
            if g.env.strict:
                self._check(g, allocation, offset, lanes)
                observed = publish_and_observe(g, allocation, offset, size, lanes, ticket, "update")
            allocation.touch(offset[lanes], size)
            memory = allocation.data[: len(allocation.data) // size * size].view(values.dtype)
            before = combine_lanes(memory, offset // size, values, lanes, self.function, expected)
            old = np.where(lanes, before, old)
            if g.env.strict:
                self._note(g, allocation, offset, lanes if expected is None else lanes & (before == expected), ticket)
                if expected is not None and g.env.reporter.has_postponed:
                    _check_guesses(g, allocation, offset, self.size, lanes)
            g.env.memory.changes += bool((memory[offset[lanes] // size] != before[lanes]).any())
            allocation.define(offset[lanes], size)
        return old, observed

    def _local(self, g: WaveGroup, where: Where, values: Array, expected: Array | None) -> Array:
        """Update LDS for the lanes of a flat operation that address it; return their old values."""
        at = locate(g, self.step, where.local_offset, self.size, lanes=where.local, aligned=ALIGNED)
        taking = np.ones(at.place.shape, np.bool_) if at.lanes is None else at.lanes
        if g.env.strict:
            note_update(g, self.step, at.units, taking, replaces=self.replaces)
        memory = g.env.local.data.view(values.dtype)
        return combine_lanes(memory, at.place // self.size, values, taking, self.function, expected)

    def _note(self, g: WaveGroup, allocation: Allocation, offset: Array, lanes: Bools, ticket: int) -> None:
        """Stamp the operation for the lanes that write, which excludes compare-and-swaps that fail."""
        waves = np.broadcast_to(g.wave_ids()[:, None], lanes.shape)[lanes]
        if waves.size:
            allocation.mark_update(offset[lanes], self.size, ticket, waves)

    def _check(self, g: WaveGroup, allocation: Allocation, offset: Array, lanes: Bools) -> None:
        """Report undefined memory, and unordered plain stores if the architecture marks atomic stores."""
        if g.env.arch.scope.store or not g.env.causality.tracked or self.size < 4:
            check_stores(g, self.step, allocation, offset, self.size, lanes, "atomically updates")
        undefined = allocation.load_poison(offset, self.size)
        if undefined is not None and not self.replaces and (undefined & lanes).any():
            g.env.reporter.at_first(
                "poison",
                "the memory of an atomic operation is undefined",
                self.step.instruction,
                g,
                any_along(undefined & lanes, 0),
            )
