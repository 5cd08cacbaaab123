"""A kernel's clocks by its machine code: of an iteration of its loop, and of what stands around it."""

from __future__ import annotations

from functools import cached_property

import attrs

from convgen.backends.amdgpu.analyze import follows, waves_held
from convgen.backends.amdgpu.costs import flop, line_of
from convgen.backends.amdgpu.sim import CodeObject
from convgen.backends.amdgpu.sim.compile import Program
from convgen.backends.amdgpu.timing.ops import Op, Port, op_of
from convgen.backends.amdgpu.timing.places import lds_clocks
from convgen.backends.amdgpu.timing.unit import Latencies, Unit
from convgen.backends.hot_code import basic_blocks, hottest_blocks, reachable
from convgen.backends.timing import LoopClocks

_SHARED = (1, 2, 4, 8)  #: workgroups on a unit, between which clocks are interpolated
_WAVE, _SIMDS = 64, 4
_TURNS = (2, 6)  #: iterations of two runs; by what one takes longer, one iteration is told


def loop_clocks(code: bytes, latency: float) -> LoopClocks:
    """Of the first kernel of a code object; `latency` in clocks, of vector memory."""
    kernel = _Kernel(code)
    held = kernel.resident
    groups = sorted({min(n, held) for n in (*_SHARED, held)})
    shared = {n: kernel.clocks(n, latency) for n in groups}
    return LoopClocks(kernel.threads, held, kernel.flop, kernel.matrix, shared)


@attrs.frozen(eq=False)
class _Kernel:
    """The first kernel of a code object: prologue, loop and epilogue in the order of their addresses."""

    code: bytes

    @cached_property
    def _program(self) -> Program:
        loaded = CodeObject.load(self.code)
        return Program(next(iter(loaded.kernels.values())), loaded.arch)

    @cached_property
    def threads(self) -> int:
        """Of a workgroup."""
        return int(self._program.kernel.metadata.get(".max_flat_workgroup_size", 1024))

    @cached_property
    def resident(self) -> int:
        """Workgroups that a unit holds."""
        program = self._program
        waves = waves_held(program.kernel, program.context.arch.name)
        return max(1, min(waves.values()) * _SIMDS * _WAVE // self.threads)

    @cached_property
    def _parts(self) -> tuple[range, list[int], range]:
        """Numbers of the instructions before the loop, in it and behind it."""
        kernel, arch = self._program.kernel, self._program.context.arch.name
        code = reachable(kernel.instructions, kernel.entry, follows)
        lines = [line_of(i, 0, arch) for i in code]
        blocks = hottest_blocks(lines, *basic_blocks(code, follows))
        index = self._program.context.index_of
        body = sorted(index[code[n].address] for block in blocks for n in block)
        first, last = index[code[0].address], index[code[-1].address]
        return range(first, body[0]), body, range(body[-1] + 1, last + 1)

    @cached_property
    def _ops(self) -> tuple[list[Op], list[Op], list[Op]]:
        before, body, after = self._parts
        arch = self._program.context.arch.name
        lds = lds_clocks(self.code, self._program.kernel.name, self.threads, [*before, *body, *after])
        first, loop, last = ([op_of(self._program, n, arch, lds.get(n)) for n in p] for p in (before, body, after))
        return first, loop, last

    @cached_property
    def flop(self) -> int:
        """Of an iteration of a workgroup."""
        instructions = self._program.instructions
        return sum(flop(instructions[n]) for n in self._parts[1]) * self.threads // _WAVE

    @cached_property
    def matrix(self) -> float:
        """Clocks of the matrix unit, of an iteration of one wave."""
        return sum(op.busy for op in self._ops[1] if op.port is Port.MATRIX)

    def clocks(self, groups: int, latency: float) -> tuple[float, float]:
        """Of an iteration in the steady state, and of all the rest, where so many workgroups share a unit."""
        before, body, after = self._ops
        few, many = _TURNS
        unit = Unit(groups, self.threads // _WAVE, Latencies(latency))
        short, long = (unit.run([*before, *(body * turns), *after]) for turns in _TURNS)
        each = (long - short) / (many - few)
        return each, max(0.0, short - few * each)
