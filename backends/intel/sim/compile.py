"""Compile decoded instructions into steps: find the module that knows one, check the rules that hold for all."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache

from convgen.backends.hot_code import reachable
from convgen.backends.intel.sim.alu import compile_alu
from convgen.backends.intel.sim.code_object import KernelInfo
from convgen.backends.intel.sim.control import compile_control
from convgen.backends.intel.sim.decode import Instruction, follows
from convgen.backends.intel.sim.defects import defects_of
from convgen.backends.intel.sim.dpas import compile_dpas
from convgen.backends.intel.sim.gateway import compile_gateway
from convgen.backends.intel.sim.hdc import compile_hdc
from convgen.backends.intel.sim.lsc import compile_lsc
from convgen.backends.intel.sim.messages import STORE, STORE_2D, STORE_QUAD, Lsc
from convgen.backends.intel.sim.platforms import Platform
from convgen.backends.intel.sim.register_file import Layout
from convgen.backends.intel.sim.scopes import order_of
from convgen.backends.intel.sim.scoreboard import Scoreboard
from convgen.backends.intel.sim.step import Context, Rules, Step, unsupported
from convgen.backends.intel.sim.syntax_rules import check
from convgen.ir.record import evolve

_COMPILERS: tuple[Callable[[Instruction, Context], Step | None], ...] = (
    compile_gateway,
    compile_control,
    compile_dpas,
    compile_lsc,
    compile_hdc,
    compile_alu,
)


def grains(instructions: tuple[Instruction, ...]) -> tuple[int, int]:
    """Return the bytes that a race stamp covers in local and in global memory: the narrowest accesses of the code."""
    local, store = 8, 4
    for instruction in instructions:
        message = instruction.message
        if message is None or message.descriptor is None:
            continue
        if message.unit in ("ugm", "slm"):
            decoded = Lsc.decode(message.descriptor)
            size = decoded.memory_bytes or 8
            if message.unit == "slm":
                local = min(local, size)
            elif decoded.op in (STORE, STORE_QUAD, STORE_2D):
                store = min(store, size)
        elif message.unit.startswith("dc"):
            local, store = 1, 1
    return local, store


class Program:
    """A kernel's instructions, compiled when first executed."""

    def __init__(
        self, kernel: KernelInfo, instructions: tuple[Instruction, ...], platform: Platform, rules: Rules
    ) -> None:
        self.kernel = kernel
        self.instructions = instructions
        layout = Layout.of(platform, kernel.registers)
        index_of = {instruction.address: index for index, instruction in enumerate(instructions)}
        self.local_grain, self.store_grain = grains(instructions)
        #: whether workgroups may be ordered
        self.tracked = any(order_of(i, platform, trust_igc=rules.trust_igc).acquires for i in instructions)
        self.rules = rules
        self.context = Context(platform, layout, kernel.simd, index_of)
        self.steps: list[Step | None] = [None] * len(instructions)
        self.executed = [0] * len(instructions)  #: thread-instructions, by instruction
        wanted = platform.defects if rules.errata else frozenset()
        self.defects = defects_of(instructions, layout, wanted)  #: by instruction
        self.board = Scoreboard(platform, layout, self.steps, rules)

    @cached_property
    def places(self) -> list[Instruction]:
        """Return the instructions that control flow reaches."""
        return reachable(self.instructions, 0, follows)

    def compile(self, index: int) -> Step:
        """Compile the instruction at an index and keep the step."""
        instruction, context = self.instructions[index], self.context
        targets = tuple((o.value, context.index_of.get(o.value, -1)) for o in instruction.sources if o.kind == "label")
        step = _compiled(index, instruction, context.platform, context.layout, context.simd, self.rules, targets)
        if index in self.defects:
            step = evolve(step, faults=(*step.faults, *self.defects[index]))
        self.steps[index] = step
        return step


@lru_cache(maxsize=1 << 12)
def _compiled(
    index: int,
    instruction: Instruction,
    platform: Platform,
    layout: Layout,
    simd: int,
    rules: Rules,
    targets: tuple[tuple[int, int], ...],
) -> Step:
    """Compile an instruction; `targets` holds (address, index) of its labels.

    The cache outlives a kernel: the next simulation often runs that kernel again, or one that differs in a few lines.
    """
    context = Context(platform, layout, simd, dict(targets), rules)
    for compiler in _COMPILERS:
        step = compiler(instruction, context)
        if step is not None:
            break
    else:
        raise unsupported(instruction)
    check(instruction, step, context)
    step.index = index
    step.unit = instruction.op if instruction.message is None else instruction.message.unit
    step.faults = tuple(context.faults)
    return step
