"""The simulator's entry: launches over buffers, batch by batch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from convgen.backends.amdgpu.sim.code_object import CodeObject, KernelInfo
from convgen.backends.amdgpu.sim.compile import Program
from convgen.backends.amdgpu.sim.engine import WaveEngine
from convgen.backends.amdgpu.sim.environment import Environment
from convgen.backends.amdgpu.sim.launch import place_arguments, place_dispatch_packet, place_image, start_group
from convgen.backends.amdgpu.sim.step import KINDS
from convgen.backends.sim.errors import SimulatorError
from convgen.backends.sim.findings import LaunchStopped, Reporter
from convgen.backends.sim.local import Lds
from convgen.backends.sim.memory import Memory
from convgen.backends.simulation import LaunchRequest, SimReport

Progress = Callable[[int, int], None]
REGISTER_BYTES = 64 << 20  #: vector registers and their poison that a batch may hold
BATCH_WAVES = 128
MAX_INSTRUCTIONS = 20_000_000  #: a wave that executes more has run away


def simulate(
    code_object: bytes,
    launches: Sequence[LaunchRequest],
    buffers: Mapping[str, npt.NDArray[np.uint8]],
    *,
    strict: bool = True,
    max_findings: int = 20,
    wave_order: str = "forward",
    progress: Progress | None = None,
    uninitialised: Collection[str] = (),
    max_instructions: int = MAX_INSTRUCTIONS,
) -> SimReport:
    """Execute launches of a code object, one after the other, on buffers that are changed in place.

    `uninitialised` names buffers whose bytes are undefined until stored. With `strict` off, loads land at once and
    only what cannot be executed sensibly is a finding. `wave_order` "reverse" runs workgroups and waves the other way
    round, for kernels whose result should not depend on it. The run stops after `max_findings` findings.
    `progress` is called with workgroups done and in all.
    """
    if wave_order not in ("forward", "reverse"):
        raise SimulatorError(f"wave_order: 'forward' or 'reverse' is wanted, got {wave_order!r}")
    started = time.perf_counter()
    code = CodeObject.load(code_object)
    memory = Memory(buffers, uninitialised)
    place_image(memory, code.image)
    reporter = Reporter(max_findings)
    kinds: Counter[str] = Counter()
    counters: Counter[str] = Counter()
    run = _Run(code, memory, reporter, counters, strict, wave_order == "reverse", max_instructions)
    total = sum(len(run.groups_of(launch)) for launch in launches)
    run.report = (lambda done: progress(done, total)) if progress is not None else None
    with np.errstate(all="ignore"):
        for launch in launches:
            try:
                run.launch(launch, kinds)
            except LaunchStopped:
                break
    memory.finish()
    instructions = {kind: kinds[kind] for kind in KINDS if kinds[kind]}
    return SimReport(tuple(reporter.findings), instructions, dict(counters), time.perf_counter() - started)


class _Run:
    """The launches of one call."""

    def __init__(
        self,
        code: CodeObject,
        memory: Memory,
        reporter: Reporter,
        counters: Counter[str],
        strict: bool,
        backwards: bool,
        limit: int,
    ) -> None:
        self.code, self.memory, self.reporter, self.counters = code, memory, reporter, counters
        self.strict, self.backwards, self.limit = strict, backwards, limit
        self.programs: dict[str, Program] = {}
        self.done = 0
        self.report: Callable[[int], None] | None = None

    def groups_of(self, launch: LaunchRequest) -> tuple[int, ...]:
        """The linear ids of the workgroups to run."""
        count = launch.grid[0] * launch.grid[1] * launch.grid[2]
        if launch.groups is None:
            return tuple(range(count))
        bad = [group for group in launch.groups if not 0 <= group < count]
        if bad:
            raise SimulatorError(f"workgroup {bad[0]} is not in the grid of {count}")
        return launch.groups

    def launch(self, launch: LaunchRequest, kinds: Counter[str]) -> None:
        """Run one launch to its end."""
        kernel = self.code.kernel(launch.kernel)
        program = self.programs.setdefault(launch.kernel, Program(kernel, self.code.arch))
        descriptor = kernel.descriptor
        self.reporter.start(kernel.name, descriptor.entry)
        place_arguments(self.memory, kernel, launch)
        place_dispatch_packet(self.memory, kernel, launch)
        for allocation in self.memory.allocations:
            allocation.start_launch(program.context.global_grain)
        lds_bytes = max(descriptor.group_segment, launch.lds_bytes)
        if lds_bytes > self.code.arch.lds_bytes:
            limit = self.code.arch.lds_bytes
            self.reporter.add("lds-size", f"{lds_bytes} bytes of LDS are wanted, {limit} are there", None)
            raise LaunchStopped
        threads = launch.workgroup[0] * launch.workgroup[1] * launch.workgroup[2]
        if not 1 <= threads <= 1024:
            raise SimulatorError(f"a workgroup of {threads} threads; 1 to 1024 are possible")
        waves = -(-threads // 64)
        order = np.array(self.groups_of(launch), np.int64)
        if self.backwards:
            order = order[::-1]
        size = batch_groups(kernel, waves)
        before = list(program.executed)
        try:
            for start in range(0, len(order), size):
                self._batch(program, launch, order[start : start + size], waves, lds_bytes)
        finally:
            for step, count, old in zip(program.steps, program.executed, before, strict=True):
                if step is not None:
                    kinds[step.kind] += count - old

    def _batch(
        self, program: Program, launch: LaunchRequest, groups: npt.NDArray[np.int64], waves: int, lds_bytes: int
    ) -> None:
        count = len(groups)
        lds = Lds(count, lds_bytes, program.context.lds_grain)
        env = Environment(
            self.code.arch, self.memory, lds, self.reporter, self.counters, count, waves, strict=self.strict
        )
        first = start_group(env, program.kernel.descriptor, launch, np.arange(count), groups)
        first.pc = program.kernel.entry
        if self.backwards:
            first = first.select(np.arange(first.count)[::-1])
        if not self.strict:
            first.poison = 0
        WaveEngine(env, program, self.limit).run(first)
        self.done += count
        if self.report is not None:
            self.report(self.done)


def batch_groups(kernel: KernelInfo, waves: int) -> int:
    """Workgroups that run together: enough waves to spread the cost of an instruction, within a memory budget."""
    registers = max(kernel.descriptor.vgprs, kernel.descriptor.accum_offset)
    fitting = REGISTER_BYTES // (registers * 64 * 5)
    return max(1, min(BATCH_WAVES, fitting) // waves)
