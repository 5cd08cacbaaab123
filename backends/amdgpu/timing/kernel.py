"""Clocks of a kernel from its machine code: an iteration of its loop, and the code around it."""

from __future__ import annotations

from functools import cached_property

from convgen.backends.amdgpu.analyze import groups_held, hot_code, most_threads, readable, shared_bytes
from convgen.backends.amdgpu.costs import flop, line_of
from convgen.backends.amdgpu.family import FAMILY
from convgen.backends.amdgpu.sim import CodeObject
from convgen.backends.amdgpu.sim.compile import Program
from convgen.backends.amdgpu.tables import WAVE
from convgen.backends.amdgpu.timing.lds_places import lds_clocks
from convgen.backends.amdgpu.timing.ops import Op, Port, op_of, registers_of
from convgen.backends.amdgpu.timing.unit import Latencies, Unit, busy_of
from convgen.backends.steady_loop import ITERATIONS, Steady
from convgen.backends.timing import LATER, KernelProfile, LoopClocks, LoopProfile, Pace, TimedLine, exposed
from convgen.ir.error import UserError
from convgen.ir.record import frozen

_GROUPS = (1, 2, 4, 8)  #: workgroups on a CU for which clocks are computed; others are interpolated


def profile(content: bytes, where: str, latency: float | None = None, groups: int | None = None) -> list[KernelProfile]:
    """Return the profiles of the kernels of a code object, or of assembly text, which is assembled first.

    `where` names the file in errors. `latency` is that of vector memory in clocks, by default of L2. Raises UserError
    for content that is neither, or if `groups` workgroups do not fit a CU.
    """
    with readable(content, where) as (loaded, code):
        return [_profile(_Kernel(code, name), latency or FAMILY.load_latency, groups) for name in loaded.kernels]


def _profile(kernel: _Kernel, latency: float, groups: int | None) -> KernelProfile:
    if groups and groups > kernel.resident:
        raise UserError(f"given {groups} workgroups on a unit, wanted at most {kernel.resident} of {kernel.name}")
    counts = [groups] if groups else sorted({1, kernel.resident})
    loops = tuple(kernel.loop(n, latency) for n in counts)
    sizes = kernel.threads, kernel.resident, kernel.flop
    return KernelProfile(kernel.name, kernel.arch, latency, *sizes, loops)


def loop_clocks(code: bytes, latency: float) -> LoopClocks:
    """Return the clocks of the first kernel of a code object; `latency` is that of vector memory in clocks."""
    kernel = _Kernel(code, next(iter(CodeObject.load(code).kernels)))
    resident = kernel.resident
    groups = sorted({min(n, resident) for n in (*_GROUPS, resident)})
    shared = {n: kernel.pace(n, latency) for n in groups}
    return LoopClocks(kernel.name, kernel.arch, kernel.threads, resident, kernel.flop, kernel.matrix, shared)


@frozen(eq=False)
class _Kernel:
    """A kernel of a code object: prologue, loop and epilogue in the order of their addresses."""

    code: bytes
    name: str

    @cached_property
    def _program(self) -> Program:
        loaded = CodeObject.load(self.code)
        return Program(loaded.kernels[self.name], loaded.arch)

    @property
    def arch(self) -> str:
        """Return the name of the processor."""
        return self._program.context.arch.name

    @cached_property
    def threads(self) -> int:
        """Return the work-items of a workgroup."""
        return most_threads(self._program.kernel)

    @cached_property
    def resident(self) -> int:
        """Return the workgroups that a CU holds."""
        kernel = self._program.kernel
        return max(1, min(groups_held(kernel, self.arch, self.waves, shared_bytes(kernel)).values()))

    @property
    def waves(self) -> int:
        """Return the waves of a workgroup."""
        return -(-self.threads // WAVE)

    @cached_property
    def _parts(self) -> tuple[range, list[int], range]:
        """Return the indices of the instructions before the hot code, in it and after it."""
        code, hot, _ = hot_code(self._program.kernel, self.arch)
        index = self._program.context.text.index_of
        body = sorted(index[i.address] for i in hot)
        first, last = index[code[0].address], index[code[-1].address]
        return range(first, body[0]), body, range(body[-1] + 1, last + 1)

    @cached_property
    def _ops(self) -> tuple[list[Op], list[Op], list[Op]]:
        before, body, after = self._parts
        lds = lds_clocks(self.code, self.name, self.threads, [*before, *body, *after])
        first, loop, last = ([self._op(n, lds.get(n)) for n in part] for part in (before, body, after))
        return first, loop, last

    def _op(self, index: int, lds: float | None) -> Op:
        return op_of(self._program.instructions[index], self.arch, registers_of(self._program, index), lds)

    @cached_property
    def flop(self) -> int:
        """Return the operations of an iteration of a workgroup."""
        return self._flops[1] * self.waves

    @cached_property
    def _flops(self) -> tuple[int, int, int]:
        """Return the operations of a wave before the hot code, in it and after it."""
        before, body, after = (
            sum(flop(self._program.instructions[n], self.arch) for n in part) for part in self._parts
        )
        return before, body, after

    @cached_property
    def matrix(self) -> float:
        """Return the clocks of the matrix unit for an iteration of one wave."""
        return sum(op.busy for op in self._ops[1] if op.port is Port.MATRIX)

    def pace(self, groups: int, latency: float) -> Pace:
        """Return the clocks in the steady state, and of the rest, when `groups` workgroups share a CU.

        Products outside the loop count as further iterations of equal length.
        """
        soon, later = (self._steady(groups, each) for each in (latency, latency + LATER))
        rest = max(0.0, soon.rest - self._beside * soon.iteration)
        return Pace(soon.iteration, rest, exposed(soon.iteration, later.iteration))

    @cached_property
    def _beside(self) -> float:
        """Return the iterations that products outside the loop amount to."""
        before, body, after = self._flops
        return (before + after) / body if body else 0.0

    def loop(self, groups: int, latency: float) -> LoopProfile:
        """Return the loop's profile when `groups` workgroups share a CU."""
        steady = self._steady(groups, latency)
        (first, *_), _, is_loop = hot_code(self._program.kernel, self.arch)
        code = [self._program.instructions[n] for n in self._parts[1]]
        lines = (line_of(i, i.address - first.address, self.arch) for i in code)
        timed = tuple(TimedLine(line, stall) for line, stall in zip(lines, steady.stalls))
        busy = busy_of((op, groups * self.waves) for op in self._ops[1])
        return LoopProfile(groups, is_loop, steady.iteration, steady.rest, busy, timed)

    def _steady(self, groups: int, latency: float) -> Steady:
        before, body, after = self._ops
        streams = ([*before, *(body * turns), *after] for turns in ITERATIONS)
        short, long = (Unit(Latencies(latency)).run([[ops] * self.waves] * groups) for ops in streams)
        return Steady.of(short, long, len(before), len(body))
