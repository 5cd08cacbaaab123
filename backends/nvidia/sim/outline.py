"""Outlined runs: only instructions that decide where threads go and what they address are executed.

Sums, data of loads and stores, and products are left out, so that a run of a long loop is fast. Accesses to global
memory are still reported to the observer, mbarriers count the bytes of bulk copies, and results in memory are
undefined. The hot loops of matrix kernels compute addresses from a few registers; a kernel whose control flow depends
on loaded data executes what writes to the state space of these data, too. Where it depends on sums of products, these
are zero, as finite as those of usual data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import numpy as np

from convgen.backends.nvidia.sim.async_copies import sizes_of
from convgen.backends.nvidia.sim.atomics import Atomic
from convgen.backends.nvidia.sim.bulk_copies import BulkCopies
from convgen.backends.nvidia.sim.flow import reads_and_writes
from convgen.backends.nvidia.sim.mbarriers import Mbarrier, Transfer
from convgen.backends.nvidia.sim.memory_access import addresses, space_of
from convgen.backends.nvidia.sim.ptx_program import Program, guarded
from convgen.backends.nvidia.sim.ptx_text import Address, Instruction, Kernel, registers_of
from convgen.backends.nvidia.sim.ptx_types import bytes_of
from convgen.backends.nvidia.sim.recording import Recorder
from convgen.backends.nvidia.sim.state import WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step
from convgen.backends.nvidia.sim.tensor_boxes import Chunks
from convgen.backends.sim.global_access import buffers_of, tell_observer
from convgen.backends.sim.wave_arrays import Array, Bools

_CONTROLS = frozenset("bra brx ret exit trap call bar barrier mbarrier nanosleep".split())
_LOADS, _STORES, _UPDATES = (
    frozenset({"ld", "ldu", "ldmatrix"}),
    frozenset({"st", "stmatrix"}),
    frozenset({"atom", "red"}),
)
_PRODUCTS = frozenset({"mma", "wgmma", "fma"})
_SPACES = ("global", "shared")


@lru_cache(maxsize=16)
def deciding(kernel: Kernel, carry: int) -> frozenset[Instruction]:
    """Return the instructions that decide control flow or addresses; `carry` is the number of the carry flag."""
    effects = {instruction: reads_and_writes(instruction, carry) for instruction in kernel.code}
    registers, spaces = 0, frozenset[str]()
    while True:
        executed = frozenset(
            instruction
            for instruction, (_, writes) in effects.items()
            if _is_kept(instruction, writes & registers, spaces)
        )
        needed = registers
        for instruction, (reads, _) in effects.items():
            needed |= reads if instruction in executed else _addressing(instruction)
        read = frozenset(
            space for instruction in executed if instruction.name in _LOADS for space in _spaces(instruction)
        )
        if needed == registers and read <= spaces:
            return executed
        registers, spaces = needed, spaces | read


def _is_kept(instruction: Instruction, decides: int, spaces: Iterable[str]) -> bool:
    """Return whether to execute an instruction: it `decides` by a register, or writes to `spaces` that decide."""
    name = instruction.name
    if name in _PRODUCTS:
        return False
    if name in _CONTROLS or (name == "cp" and instruction.has("bulk", "mbarrier")) or decides:
        return True
    writes = name in _STORES or name in _UPDATES or name == "cp"
    return writes and any(space in spaces for space in _spaces(instruction))


def _spaces(instruction: Instruction) -> tuple[str, ...]:
    """Return the state spaces that a load or store may access and that threads may change."""
    if instruction.name in ("ldmatrix", "stmatrix", "cp"):
        return ("shared",)
    space = space_of(instruction)
    return (space,) if space in _SPACES else _SPACES if not space else ()


def _addressing(instruction: Instruction) -> int:
    """Return the registers of addresses, sizes and the predicate of an access to memory, as a set of bits."""
    if instruction.name not in (*_LOADS, *_STORES, *_UPDATES, "cp"):
        return 0
    places = (
        instruction.operands
        if instruction.name == "cp"
        else [o for o in instruction.operands if isinstance(o, Address)]
    )
    registers = [register for operand in places for register in registers_of(operand)]
    registers += [instruction.guard[0]] if instruction.guard is not None else []
    return sum(1 << number for number in {register.number for register in registers})


class OutlinedProgram(Program):
    """A program that executes `deciding` instructions only; other accesses to global memory are observed."""

    def __init__(self, kernel: Kernel, symbols: Mapping[str, tuple[str, int]], target: str) -> None:
        super().__init__(kernel, symbols, target)
        self._deciding = deciding(kernel, self.context.carry)

    def compile(self, index: int) -> Step:
        step = super().compile(index)  # refuses what the simulator refuses
        instruction = self.instructions[index]
        if index in self.jumps or instruction in self._deciding:
            return step
        observe = _observation(instruction, self.context)
        outlined = Step(instruction, step.kind, observe or (lambda g: None))
        if observe is not None and instruction.guard is not None:
            guarded(outlined)
        self.steps[index] = outlined
        return outlined


def _observation(instruction: Instruction, context: Context) -> Callable[[WarpGroup], None] | None:
    """Return a function that tells the observer of an access to global memory; None for other instructions."""
    name, operands = instruction.name, instruction.operands
    if name == "cp" and not instruction.has("commit_group", "wait_group", "wait_all"):
        return _of_copy(instruction, context)
    if name not in _LOADS | _STORES | _UPDATES or "global" not in _spaces(instruction):
        return None
    address = addresses(context, instruction, next(o for o in operands if isinstance(o, Address)), wide=True)
    size = bytes_of(instruction.types[-1]) * instruction.vector
    if name in _UPDATES:
        return lambda g: _count_updates(g, size * int(g.active.sum()))
    kind = "load" if name in _LOADS else "store"
    return lambda g: _observe(g, kind, address(g), size, g.lanes)


def _count_updates(g: WarpGroup, size: int) -> None:
    g.env.counters["atomic_bytes"] += size


def _of_copy(instruction: Instruction, context: Context) -> Callable[[WarpGroup], None]:
    """Return the observation of a `cp.async`: its lanes read `size` bytes each, or none."""
    size, read_bytes = sizes_of(instruction, context)
    address = addresses(context, instruction, instruction.operands[1], wide=True)

    def observe(g: WarpGroup) -> None:
        lanes = g.active & (np.broadcast_to(read_bytes(g), g.shape) > 0)
        _observe(g, "load", address(g), size, lanes)

    return observe


def _observe(g: WarpGroup, kind: str, address: Array, size: int, lanes: Bools | None) -> None:
    for allocation, offset, in_buffer in buffers_of(g, address, size, lanes):
        tell_observer(g, kind, allocation, offset, size, in_buffer)


class OutlinedCopies(BulkCopies):
    """Bulk copies that move no bytes: the observer hears of them, and mbarriers count them as complete."""

    def __init__(self, warps: int, recorder: Recorder) -> None:
        super().__init__(warps, early=True)
        self.recorder = recorder

    def load(self, g: WarpGroup, step: Step, lane: int, chunks: Chunks, base: int, mbarrier: Mbarrier) -> None:
        self.recorder.copy(g, step, chunks, mbarrier.address)
        _observe(g, "load", _places(chunks, base), chunks.size, chunks.inside[None])
        size = chunks.size * len(chunks.place)
        g.env.mbarriers.attach(g, mbarrier, Transfer(step, size, 0, lambda waiting, agent, clock: None))

    def store(self, g: WarpGroup, step: Step, lane: int, chunks: Chunks, base: int, atomic: Atomic | None) -> None:
        self.recorder.copy(g, step, chunks, None)
        if atomic is None:
            _observe(g, "store", _places(chunks, base), chunks.size, chunks.inside[None])
        else:
            _count_updates(g, chunks.size * int(np.count_nonzero(chunks.inside)))


def _places(chunks: Chunks, base: int) -> Array:
    return np.asarray(np.uint64(base) + chunks.offset.astype(np.uint64)[None])
