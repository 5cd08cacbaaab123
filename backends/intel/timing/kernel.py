"""Clocks of a kernel from its machine code: an iteration of its loop on an Xe core, and the code around it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from convgen.backends.intel.analyze import hot_code, most_items, occupancy, readable
from convgen.backends.intel.costs import line_of
from convgen.backends.intel.family import FAMILY
from convgen.backends.intel.sim import CodeObject, KernelInfo
from convgen.backends.intel.sim.decode import Instruction
from convgen.backends.intel.tables import FACTS
from convgen.backends.intel.timing.ops import Op, op_of
from convgen.backends.intel.timing.unit import run
from convgen.backends.steady_loop import ITERATIONS, Steady
from convgen.backends.timing import KernelProfile, LoopProfile, TimedLine
from convgen.ir.error import UserError
from convgen.ir.record import frozen


def profile(content: bytes, where: str, latency: float | None = None, groups: int | None = None) -> list[KernelProfile]:
    """Return the profiles of the kernels of a zebin, or of assembly text, which is assembled first.

    `where` names the file in errors. `latency` is that of global memory in clocks, by default of L3. Raises UserError
    for content that is neither, or if `groups` workgroups do not fit a core.
    """
    with readable(content, where) as loaded:
        return [
            _profile(_Kernel(loaded, kernel, latency or FAMILY.load_latency), groups)
            for kernel in loaded.kernels.values()
        ]


def _profile(kernel: _Kernel, groups: int | None) -> KernelProfile:
    name, target = kernel.info.name, kernel.target
    if groups and groups > kernel.resident:
        raise UserError(f"given {groups} workgroups on a unit, wanted at most {kernel.resident} of {name}")
    counts = [groups] if groups else sorted({1, kernel.resident})
    loops = tuple(kernel.loop(n) for n in counts)
    return KernelProfile(name, target, kernel.latency, most_items(kernel.info), kernel.resident, kernel.flop, loops)


@frozen(eq=False, slots=False)
class _Kernel:
    """A kernel: prologue, loop and epilogue in the order of their addresses."""

    loaded: CodeObject
    info: KernelInfo
    latency: float  #: clocks; of loads from global memory

    @property
    def target(self) -> str:
        """Return the name of the target."""
        return self.loaded.platform.name

    @cached_property
    def threads(self) -> int:
        """Return the threads of a workgroup."""
        return -(-most_items(self.info) // self.info.simd)

    @cached_property
    def resident(self) -> int:
        """Return the workgroups that a core holds."""
        engine_threads = min(occupancy(self.info, self.target).values())
        return max(1, engine_threads * FACTS[self.target].core.simds // self.threads)

    @cached_property
    def _hot(self) -> tuple[list[Instruction], list[Instruction], bool]:
        return hot_code(self.loaded.instructions(self.info.name), self.target)

    @cached_property
    def _parts(self) -> tuple[list[Instruction], list[Instruction], list[Instruction]]:
        """Return the instructions before the hot code, in it and after it."""
        code, hot, _ = self._hot
        body = sorted(hot, key=lambda i: i.address)
        first, last = body[0].address, body[-1].address
        return [i for i in code if i.address < first], body, [i for i in code if i.address > last]

    @cached_property
    def _ops(self) -> tuple[list[Op], list[Op], list[Op]]:
        platform = self.loaded.platform
        before, body, after = ([op_of(i, platform, self.latency) for i in part] for part in self._parts)
        return before, body, after

    @cached_property
    def flop(self) -> int:
        """Return the operations of an iteration of a workgroup."""
        return sum(line_of(i, self.target).flop for i in self._parts[1]) * self.threads

    def loop(self, groups: int) -> LoopProfile:
        """Return the loop's profile when `groups` workgroups share a core."""
        before, body, after = self._ops
        streams = ([*before, *(body * turns), *after] for turns in ITERATIONS)
        threads = spread(groups, self.threads, FACTS[self.target].core.simds)
        short, long = (run([[ops] * count for count in threads]) for ops in streams)
        steady = Steady.of(short, long, len(before), len(body))
        lines = (line_of(i, self.target) for i in self._parts[1])
        timed = tuple(TimedLine(line, stall) for line, stall in zip(lines, steady.stalls))
        return LoopProfile(groups, self._hot[2], steady.iteration, steady.rest, _busy(body, sum(threads)), timed)


def spread(groups: int, threads: int, engines: int) -> list[int]:
    """Return how many threads of each workgroup are on the first EU, without zeros; EUs take threads in turn."""
    counts = (len(range(-group * threads % engines, threads, engines)) for group in range(groups))
    return [count for count in counts if count]


_PIPES = {"F": "float", "I": "integer", "L": "long", "M": "math"}


def _busy(body: Sequence[Op], threads: int) -> dict[str, float]:
    """Return the busy clocks of each pipe of an EU in an iteration, and those in which it issues."""
    busy = dict.fromkeys(("matrix", "lds", "global", *_PIPES.values(), "issue"), 0.0)
    for op in body:
        busy["issue"] += threads
        if op.pipe:
            busy[_PIPES.get(op.pipe, op.pipe)] += threads * op.busy
    return {pipe: clocks for pipe, clocks in busy.items() if clocks}
