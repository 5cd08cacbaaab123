"""A kernel's program: instructions in the order of execution, compiled when they are first executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from convgen.backends.nvidia.sim.async_copies import compile_copy
from convgen.backends.nvidia.sim.atomics import compile_atomic
from convgen.backends.nvidia.sim.bulk_steps import compile_bulk
from convgen.backends.nvidia.sim.control import compile_control, guard_of
from convgen.backends.nvidia.sim.conversions import compile_conversion
from convgen.backends.nvidia.sim.fences import compile_fence, orders_workgroups
from convgen.backends.nvidia.sim.float_alu import compile_comparison, compile_float
from convgen.backends.nvidia.sim.flow import blocks_of, live_registers, ordered, reads_and_writes
from convgen.backends.nvidia.sim.integers import compile_integer
from convgen.backends.nvidia.sim.lanes import compile_lanes
from convgen.backends.nvidia.sim.matrix import compile_matrix
from convgen.backends.nvidia.sim.mbarrier_steps import compile_mbarrier
from convgen.backends.nvidia.sim.memory_access import compile_memory, space_of
from convgen.backends.nvidia.sim.moves import compile_move
from convgen.backends.nvidia.sim.one_cluster import compile_cluster
from convgen.backends.nvidia.sim.ptx_text import Instruction, Kernel
from convgen.backends.nvidia.sim.ptx_types import bytes_of, storage
from convgen.backends.nvidia.sim.register_pool import compile_register_pool
from convgen.backends.nvidia.sim.state import WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step, unsupported
from convgen.backends.nvidia.sim.wgmma import compile_warpgroup

Compile = Callable[[Instruction, Context], Step | None]
_COMPILERS: Sequence[Compile] = (
    compile_move, compile_memory, compile_cluster, compile_control, compile_matrix, compile_warpgroup,
    compile_mbarrier, compile_bulk, compile_copy, compile_fence, compile_lanes, compile_atomic, compile_conversion,
    compile_comparison, compile_float, compile_integer, compile_register_pool,
)  # fmt: skip
#: Opcodes that are refused, with what they belong to.
_LATER: Mapping[str, str] = {
    "tcgen05": "tensor memory is not simulated",
    "wmma": "wmma leaves its fragments open; mma.sync is simulated",
    "tex": "textures are not simulated",
    "tld4": "textures are not simulated",
    "suld": "surfaces are not simulated",
    "sust": "surfaces are not simulated",
    "multimem": "multimem is not simulated",
    "alloca": "alloca is not simulated",
}


class Program:
    """The instructions of a kernel in the engine's order; `executed` counts the warps that have executed each."""

    def __init__(self, kernel: Kernel, symbols: Mapping[str, tuple[str, int]], target: str) -> None:
        self.kernel = kernel
        carry = len(kernel.registers)
        self.dtypes = [*(storage(kind) for kind in kernel.registers), np.bool_]
        self.names = [*kernel.names, "CC.CF"]
        blocks = blocks_of(kernel)
        order = ordered(blocks)
        self.instructions: list[Instruction] = []
        self.jumps: dict[int, int] = {}  #: index of a jump that the order of blocks adds -> block
        place_of: dict[int, int] = {}
        live: list[int] = []
        in_use = live_registers(kernel, blocks, order, carry)
        for position, number in enumerate(order):
            block = blocks[number]
            for index in range(block.start, block.end):
                place_of[index] = len(self.instructions)
                self.instructions.append(kernel.code[index])
                live.append(in_use[index])
            following = order[position + 1] if position + 1 < len(order) else -1
            if block.falls >= 0 and block.falls != following:
                self.jumps[len(self.instructions)] = block.falls
                self.instructions.append(kernel.code[block.end - 1])
                live.append(in_use[blocks[block.falls].start])
        self._places = {number: place_of[blocks[number].start] for number in order}
        self._live = [*live, 0]
        self._listed: dict[int, Sequence[int]] = {}
        self.steps: list[Step | None] = [None] * len(self.instructions)
        self.executed = [0] * len(self.instructions)
        #: Instructions that coverage counts: those of the text that can be reached, without jumps that the order adds.
        self.places = [kernel.code[i] for number in order for i in range(blocks[number].start, blocks[number].end)]
        self.context = Context(kernel, symbols, place_of, carry, target)
        self.tracked = any(map(orders_workgroups, kernel.code))
        #: Whether there are agents that access shared memory by the async proxy.
        self.has_agents = any(map(_has_agents, kernel.code))
        self._accessed: dict[int, int] = {}
        self.shared_grain = _grain(kernel, ("shared", ""))
        self.global_grain = _grain(kernel, ("global", "", "const"))

    def live(self, index: int) -> Sequence[int]:
        """Return the numbers of the registers in use ahead of an instruction."""
        listed = self._listed.get(index)
        if listed is None:
            bits = self._live[index]
            listed = [number for number in range(bits.bit_length()) if bits >> number & 1]
            self._listed[index] = listed
        return listed

    def accessed(self, index: int) -> int:
        """Return the registers that an instruction reads or writes, as a set of bits."""
        registers = self._accessed.get(index)
        if registers is None:
            reads, writes = reads_and_writes(self.instructions[index], self.context.carry)
            registers = self._accessed[index] = reads | writes
        return registers

    def compile(self, index: int) -> Step:
        """Compile an instruction. Raises Unsupported, SimulatorError."""
        instruction = self.instructions[index]
        if index in self.jumps:
            step = self._jump(instruction, self._places[self.jumps[index]])
        else:
            step = compile_step(instruction, self.context)
        self.steps[index] = step
        return step

    @staticmethod
    def _jump(instruction: Instruction, to: int) -> Step:
        def run(g: WarpGroup) -> None:
            g.targets = None
            g.pc = to

        return Step(instruction, "jump", run, control="branch")


def _has_agents(instruction: Instruction) -> bool:
    """Return whether an instruction belongs to an agent that accesses shared memory in flight."""
    return instruction.name in ("wgmma", "mbarrier") or (instruction.name == "cp" and instruction.has("bulk"))


def compile_step(instruction: Instruction, context: Context) -> Step:
    """Return the step of an instruction, which runs in the lanes that its predicate selects."""
    if instruction.name in _LATER:
        raise unsupported(instruction, _LATER[instruction.name])
    step = next(filter(None, (make(instruction, context) for make in _COMPILERS)), None)
    if step is None:
        raise unsupported(instruction)
    if instruction.guard is not None and step.control != "branch":
        guarded(step)
    return step


def guarded(step: Step) -> None:
    """Let a step run only in lanes whose predicate holds."""
    run = step.run

    def selected(g: WarpGroup) -> None:
        active = guard_of(g, step)
        if not active.any():
            return
        if active is not g.mask and not (active == g.mask).all():
            g.guard, g.active, g.every = active, active, False
        run(g)
        g.ready()

    step.run = selected


def _grain(kernel: Kernel, spaces: Sequence[str]) -> int:
    """Return the bytes of the narrowest access of a kernel to some state spaces, at most 4."""
    grain = 4
    for instruction in kernel.code:
        accesses = instruction.name in ("ld", "st", "atom", "red", "ldu") and space_of(instruction) in spaces
        if accesses and instruction.types:
            grain = min(grain, bytes_of(instruction.types[-1]) * instruction.vector)
    return grain
