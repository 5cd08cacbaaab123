"""Entry of the CDNA simulator: `simulate` executes launches of a code object."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache, partial
from math import prod

import numpy as np

from convgen.backends.amdgpu.sim.archs import arch_named
from convgen.backends.amdgpu.sim.code_object import CodeObject, KernelInfo
from convgen.backends.amdgpu.sim.compile import Program
from convgen.backends.amdgpu.sim.engine import WaveEngine
from convgen.backends.amdgpu.sim.environment import Environment
from convgen.backends.amdgpu.sim.launch import place_arguments, place_dispatch_packet, place_image, start_group
from convgen.backends.amdgpu.sim.scratch import place_scratch
from convgen.backends.amdgpu.sim.sources import OWN_ORDER, SOURCES
from convgen.backends.amdgpu.sim.state import LANES, WaveGroup
from convgen.backends.amdgpu.sim.step import KINDS
from convgen.backends.amdgpu.sim.watching import watcher
from convgen.backends.sim.causality import Causality
from convgen.backends.sim.errors import SimulatorError
from convgen.backends.sim.findings import LaunchStopped
from convgen.backends.sim.local import Lds
from convgen.backends.sim.run import MAX_INSTRUCTIONS, Buffers, Observer, Progress, Run
from convgen.backends.sim.wave_arrays import Array
from convgen.backends.simulation import STRICT, LaunchRequest, Scrutiny, SimReport

REGISTER_BYTES = 64 << 20  #: vector registers and their poison that a batch may hold
_LANE_BYTES = 5  #: a word of a register, and the flag of its poison
_THREADS_MAX = 1024  #: of a workgroup (LLVM, getMaxFlatWorkGroupSize)
BATCH_WAVES = 128  #: waves that a batch simulates together, at most


def simulate(
    code_object: bytes,
    launches: Sequence[LaunchRequest],
    buffers: Buffers,
    *,
    strict: bool = True,
    max_findings: int = 20,
    wave_order: str = "forward",
    progress: Progress | None = None,
    observe: Observer | None = None,
    uninitialised: Collection[str] = (),
    max_instructions: int = MAX_INSTRUCTIONS,
    approximate: int | None = None,
    scrutiny: Scrutiny = STRICT,
) -> SimReport:
    """Execute launches of a code object, one after the other, on buffers that are changed in place.

    `uninitialised` names buffers whose bytes are undefined until stored. With `strict` off, loads land at once and
    only findings remain that stop the execution. `wave_order` "reverse" runs workgroups and waves in descending order,
    to show results that depend on the order. The run stops after `max_findings` findings whose rule a manual states;
    findings on rules of LLVM alone (`Finding.source`) do not count. With a seed in `approximate`, transcendental
    instructions err as far as their documents allow. `progress` is called with the workgroups done and all workgroups,
    `observe` with each access to global memory, `scrutiny.watch` with a `Halt`. Raises SimulatorError, Unsupported.
    """
    run = _Run(buffers, uninitialised, max_findings, wave_order, max_instructions)
    run.observe, run.scrutiny = observe, scrutiny
    run.reporter.allow(scrutiny.allow)
    run.load(code_object, strict=strict, approximate=approximate)
    return run.report(launches, KINDS, progress)


@lru_cache(maxsize=16)
def _program(kernel: KernelInfo, arch: str, approximate: int | None) -> Program:
    """Return a kernel's program, cached so that a later run reuses compiled instructions."""
    return Program(kernel, arch_named(arch), approximate)


class _Run(Run):
    sources = SOURCES
    scrutiny = STRICT
    _begun: list[Environment]  #: the running batch's, and those of workgroups that it waits for

    def load(self, code_object: bytes, *, strict: bool, approximate: int | None) -> None:
        """Load a code object and place its image in memory."""
        self.code, self.strict, self.approximate = CodeObject.load(code_object), strict, approximate
        place_image(self.memory, self.code)

    def _launch(self, launch: LaunchRequest) -> None:
        kernel = self.code.kernel(launch.kernel)
        program = _program(kernel, self.code.arch.name, self.approximate)
        descriptor = kernel.descriptor
        self.reporter.start(kernel.name, descriptor.entry, self.code.line)
        self.look = watcher(self.code, kernel, self.scrutiny)
        place_arguments(self.memory, kernel, launch)
        place_dispatch_packet(self.memory, kernel, launch)
        self.causality = Causality(tracked=self.strict and program.context.text.acquires)
        for allocation in self.memory.allocations:
            allocation.start_launch(program.context.text.global_grain)
        lds_bytes = max(descriptor.group_segment, launch.shared_bytes)
        if lds_bytes > self.code.arch.lds_bytes:
            limit = self.code.arch.lds_bytes
            what = f"the launch asks for {lds_bytes} bytes of LDS, {self.code.arch.name} has {limit} per workgroup"
            self.reporter.add("lds-size", what, None)
            raise LaunchStopped
        threads = prod(launch.workgroup)
        if not 1 <= threads <= _THREADS_MAX:
            raise SimulatorError(f"a workgroup of {threads} threads; 1 to {_THREADS_MAX} are possible")
        waves = -(-threads // LANES)
        execute = partial(self._batch, program, launch, waves, lds_bytes)
        self._batches(launch, batch_groups(kernel, waves), program, execute)

    def _batch(self, program: Program, launch: LaunchRequest, waves: int, lds_bytes: int, groups: Array) -> None:
        """Run some workgroups; start further ones if they wait for memory that none of them changes."""
        begin = partial(self._begin, program, launch, waves, lds_bytes)
        self._living, self._begun = 0, []

        def begin_more() -> WaveGroup | None:
            more = self._next()
            return None if more is None else begin(more)

        first = begin(groups)
        engine = WaveEngine(first.env, program, self.limit, begin_more)
        engine.look = self.look
        engine.run(first)
        for env in self._begun:
            for slot in range(len(env.epoch)):
                env.local.report_stale_guesses(slot, int(env.epoch[slot]))

    def _begin(self, program: Program, launch: LaunchRequest, waves: int, lds_bytes: int, groups: Array) -> WaveGroup:
        """Return the waves of some workgroups at the kernel's entry, in an environment of their own."""
        count = len(groups)
        lds = Lds(count, lds_bytes, program.context.text.lds_grain)
        scratch = place_scratch(self.memory, self._living, count * waves, program.kernel.descriptor.private_segment)
        env = Environment(self, self.code.arch, lds, count, waves, self.causality, scratch, strict=self.strict)
        env.own_order = None if program.kernel.descriptor.tg_split else OWN_ORDER
        self._living += 1
        self._begun.append(env)
        first = start_group(env, program.kernel.descriptor, launch, np.arange(count), groups)
        first.pc = program.kernel.entry
        if self.backwards:
            first = first.select(np.arange(first.count)[::-1])
        if not self.strict:
            first.poison = 0
        return first


def waves_at_entry(code_object: bytes, kernel: str, threads: int) -> tuple[Program, WaveGroup]:
    """Return the waves of one workgroup at the kernel's entry, with arguments and registers zero except for ids."""
    run = _Run({}, (), 1, "forward", MAX_INSTRUCTIONS)
    run.load(code_object, strict=False, approximate=None)
    program = Program(run.code.kernel(kernel), run.code.arch)
    launch = LaunchRequest(kernel, (1, 1, 1), (threads, 1, 1), ())
    place_arguments(run.memory, program.kernel, launch)
    place_dispatch_packet(run.memory, program.kernel, launch)
    run.causality, run._living, run._begun = Causality(tracked=False), 0, []
    return program, run._begin(program, launch, -(-threads // LANES), run.code.arch.lds_bytes, np.arange(1))


def batch_groups(kernel: KernelInfo, waves: int) -> int:
    """Return how many workgroups run together: as many as waves and register memory of a batch allow."""
    registers = max(kernel.descriptor.vgprs, kernel.descriptor.accum_offset)
    fitting = REGISTER_BYTES // (registers * LANES * _LANE_BYTES)
    return max(1, min(BATCH_WAVES, fitting) // waves)
