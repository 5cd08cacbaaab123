"""atom and red (PTX ISA, Parallel Synchronization and Communication Instructions: atom, red).

Lanes with equal addresses are combined in lane order; PTX leaves the order open.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from convgen.backends.nvidia.sim.fences import acquire, publish_and_observe, release
from convgen.backends.nvidia.sim.float_alu import flushed
from convgen.backends.nvidia.sim.memory_access import addresses, check_constant, in_spaces, space_of
from convgen.backends.nvidia.sim.operands import numbers_of, report_undefined, source, target
from convgen.backends.nvidia.sim.ptx_text import Instruction
from convgen.backends.nvidia.sim.ptx_types import TYPES, UNSIGNED
from convgen.backends.nvidia.sim.rounding import FORMATS, decode, encode, rounded
from convgen.backends.nvidia.sim.shared_access import located
from convgen.backends.nvidia.sim.state import WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step, unsupported
from convgen.backends.sim.combine import FLOATING, INTEGER, Combine, combine_lanes
from convgen.backends.sim.device_memory import Allocation
from convgen.backends.sim.global_access import check_stores, is_writable, issue_store, land_store, parts_of
from convgen.backends.sim.wave_arrays import Array, Bools, any_along
from convgen.ir.record import frozen


def _narrow_add(kind: str) -> Combine:
    def add(old: Array, new: Array) -> Array:
        total = decode(old, kind).astype(np.float64) + decode(new, kind)
        return encode(rounded(total, FORMATS[kind], "rn"), kind)

    return add


def _flushing_add(old: Array, new: Array) -> Array:
    """add.f32 on global memory, which flushes subnormal operands and results (PTX ISA, atom)."""
    total: Array = flushed(flushed(old.view(np.float32)) + flushed(new.view(np.float32))).view(np.uint32)
    return total


_INTEGER: Mapping[str, tuple[str, ...]] = {  # operation -> names in `combine` for unsigned and signed types
    "add": ("add", "add"),
    "min": ("umin", "smin"),
    "max": ("umax", "smax"),
    "and": ("and", "and"),
    "or": ("or", "or"),
    "xor": ("xor", "xor"),
    "inc": ("inc", "inc"),
    "dec": ("dec", "dec"),
    "exch": ("swap", "swap"),
    "cas": ("swap", "swap"),
}
_FLOAT: Mapping[tuple[str, str], Combine] = {
    ("add", "f32"): FLOATING["add_f32"][0],
    ("add", "f64"): FLOATING["add_f64"][0],
    ("add", "f16x2"): FLOATING["pk_add_f16"][0],
    ("add", "bf16x2"): FLOATING["pk_add_bf16"][0],
    ("add", "f16"): _narrow_add("f16"),
    ("add", "bf16"): _narrow_add("bf16"),
}


def _function(instruction: Instruction, operation: str, kind: str) -> Combine:
    if TYPES[kind].kind == "f":
        function = _FLOAT.get((operation, kind))
    else:
        names = _INTEGER.get(operation)
        function = None if names is None else INTEGER[names[TYPES[kind].kind == "s"]]
    if function is None:
        raise unsupported(instruction)
    return function


def reduction_of(step: Step, kind: str) -> Atomic:
    """Return the update of memory by cp.reduce.async.bulk of an element type. Raises Unsupported.

    Sums of f32 flush subnormal numbers as those of red do (PTX ISA, cp.reduce.async.bulk).
    """
    operation = next((m for m in step.instruction.modifiers if m in _INTEGER), "")
    function = _function(step.instruction, operation, kind)
    return Atomic(step, function, TYPES[kind].bits // 8, flushes=kind == "f32" and operation == "add", replaces=False)


def compile_atomic(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of atom or red; None for other instructions."""
    if instruction.name not in ("atom", "red"):
        return None
    if instruction.has("async", "v2", "v4", "v8"):
        raise unsupported(instruction)
    kind, space = instruction.types[-1], space_of(instruction)
    operation = next((m for m in instruction.modifiers if m in _INTEGER), "")
    function = _function(instruction, operation, kind)
    bits = TYPES[kind].bits
    if bits not in UNSIGNED:
        raise unsupported(instruction)
    operands = list(instruction.operands)
    write = target(context, instruction, operands.pop(0), f"b{bits}") if instruction.name == "atom" else None
    where = addresses(context, instruction, operands[0], wide=space != "shared")
    compare = operation == "cas"
    reads = [source(context, instruction, operand, f"b{bits}") for operand in operands[1 : 3 if compare else 2]]
    numbers = numbers_of(*operands)
    polls = operation in ("cas", "exch") or instruction.has("acquire", "acq_rel")
    step = Step(instruction, "atomic", lambda g: None, control="wait" if polls else "")
    atomic = Atomic(
        step, function, bits // 8, flushes=kind == "f32" and operation == "add", replaces=operation == "exch"
    )
    releases, acquires = instruction.has("release", "acq_rel"), instruction.has("acquire", "acq_rel")

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, numbers, "an operand of an atomic operation")
        values = [np.ascontiguousarray(np.broadcast_to(read(g), g.shape)) for read in reads]
        if releases:
            release(g)
        expected, new = (values[0], values[1]) if compare else (None, values[0])
        old = atomic.apply(g, space, where(g), new, expected)
        if acquires:
            acquire(g)
        g.polled = polls
        if write is not None:
            write(g, old, None)
        g.env.counters["atomic_bytes"] += bits // 8 * int(g.active.sum())

    return step.running(run)


@frozen(eq=False)
class Atomic:
    """The update of memory by one atomic instruction."""

    step: Step
    function: Combine
    size: int
    flushes: bool  #: subnormal numbers on global memory
    replaces: bool  #: whether the new value ignores the old one, so that memory need not be defined

    def apply(self, g: WarpGroup, space: str, address: Array, values: Array, expected: Array | None) -> Array:
        """Update memory; return old values [rows, lanes]."""
        result = np.zeros(values.shape, values.dtype)

        def work(where: str, at: Array, lanes: Bools | None) -> None:
            nonlocal result
            if where == "shared":
                old = self._shared(g, at, values, expected, lanes)
            elif where == "global":
                old = self.update(g, at, values, expected, lanes)
            else:
                raise ValueError(f"an atomic operation on {where} memory")
            result = old if lanes is None else np.where(lanes, old, result)

        in_spaces(g, space, address, work)
        return result

    def _shared(self, g: WarpGroup, offset: Array, values: Array, expected: Array | None, lanes: Bools | None) -> Array:
        access = located(g, self.step, offset, self.size, lanes)
        old = np.zeros(values.shape, values.dtype)
        if access is None:
            return old
        undefined = g.env.local.note_updates(g, self.step, access)
        if undefined is not None and not self.replaces:
            column = int(undefined.any(axis=0).argmax())
            finding = "the memory of an atomic operation is undefined"
            row, lane = int(access.row[column]), int(access.lane[column])
            g.env.reporter.add("poison", finding, self.step.instruction, g, row, lane)
        place: Array = np.zeros(values.shape, np.int64)
        place[access.row, access.lane] = access.place // self.size
        acting = np.zeros(values.shape, np.bool_)
        acting[access.row, access.lane] = True
        memory = g.env.local.data.view(values.dtype)
        g.env.memory.changes += 1
        return combine_lanes(memory, place, values, acting, self.function, expected)

    def update(self, g: WarpGroup, address: Array, values: Array, expected: Array | None, lanes: Bools | None) -> Array:
        """Update global memory at addresses [rows, any number]; return old values."""
        old = np.zeros(values.shape, values.dtype)
        ticket = issue_store(g)
        check_constant(g, self.step, address, self.size, lanes)
        function = _flushing_add if self.flushes else self.function
        for allocation, offset, in_buffer in parts_of(g, self.step, address, self.size, lanes, self.size):
            if not is_writable(g, self.step, allocation, in_buffer):
                continue
            some = np.ones(values.shape, np.bool_) if in_buffer is None else in_buffer
            check_stores(g, self.step, allocation, offset, self.size, some, "atomically updates")
            self._check_defined(g, allocation, offset, some)
            if g.env.causality.tracked:
                publish_and_observe(g, allocation, offset, self.size, some, "update")
            allocation.touch(offset[some], self.size)
            memory = allocation.data[: len(allocation.data) // self.size * self.size].view(values.dtype)
            before = combine_lanes(memory, offset // self.size, values, some, function, expected)
            old = np.where(some, before, old)
            changes = some if expected is None else some & (before == expected)
            waves = np.broadcast_to(g.wave_ids()[:, None], some.shape)[changes]
            if waves.size:
                allocation.mark_update(offset[changes], self.size, ticket, waves)
            g.env.memory.changes += bool((memory[offset[some] // self.size] != before[some]).any())
            allocation.define(offset[some], self.size)
        land_store(g, (ticket,))
        return old

    def _check_defined(self, g: WarpGroup, allocation: Allocation, offset: Array, lanes: Bools) -> None:
        undefined = allocation.load_poison(offset, self.size)
        if undefined is not None and not self.replaces and (undefined & lanes).any():
            finding = "the memory of an atomic operation is undefined"
            bad = any_along(undefined & lanes, 0)
            g.env.reporter.at_first("poison", finding, self.step.instruction, g, bad)
