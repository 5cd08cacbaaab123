"""The simulator's entry: launches over buffers, batch by batch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from convgen.backends.intel.sim.code_object import CodeObject
from convgen.backends.intel.sim.compile import Program
from convgen.backends.intel.sim.engine import ThreadEngine
from convgen.backends.intel.sim.environment import Environment
from convgen.backends.intel.sim.launch import Payload, place_payload, start_group, surfaces_of, threads_of
from convgen.backends.intel.sim.scoreboard import Rules
from convgen.backends.intel.sim.step import KINDS
from convgen.backends.sim.arrays import Array
from convgen.backends.sim.errors import SimulatorError
from convgen.backends.sim.findings import LaunchStopped, Reporter
from convgen.backends.sim.local import Lds
from convgen.backends.sim.memory import Memory
from convgen.backends.simulation import LaunchRequest, SimReport

Progress = Callable[[int, int], None]
BATCH_THREADS = 256
MAX_INSTRUCTIONS = 20_000_000  #: a thread that executes more has run away


def simulate(
    code_object: bytes,
    launches: Sequence[LaunchRequest],
    buffers: Mapping[str, npt.NDArray[np.uint8]],
    *,
    max_findings: int = 20,
    wave_order: str = "forward",
    progress: Progress | None = None,
    uninitialised: Collection[str] = (),
    max_instructions: int = MAX_INSTRUCTIONS,
    hardware_ids: bool = False,
    errata: bool = True,
    trust_igc: bool = False,
) -> SimReport:
    """Execute launches of a code object, one after the other, on buffers that are changed in place.

    `uninitialised` names buffers whose bytes are undefined until stored. `wave_order` "reverse" runs workgroups and
    threads the other way round. The run stops after `max_findings` findings. `progress` is called with workgroups done
    and in all. With `hardware_ids`, threads start behind the prologue that loads local ids, which come in registers:
    runtimes do both. Code of Intel's compiler wants `trust_igc` (see `scoreboard`) and, where it is older
    than the workaround for a defect of XeHPC, as IGC 1.0.12504 is, no look for `errata`.
    """
    if wave_order not in ("forward", "reverse"):
        raise SimulatorError(f"wave_order: 'forward' or 'reverse' is wanted, got {wave_order!r}")
    started = time.perf_counter()
    code = CodeObject.load(code_object)
    reporter = Reporter(max_findings)
    run = _Run(code, Memory(buffers, uninitialised), reporter, wave_order == "reverse", max_instructions)
    run.hardware_ids, run.rules = hardware_ids, Rules(errata, trust_igc)
    total = sum(len(run.groups_of(launch)) for launch in launches)
    run.report = (lambda done: progress(done, total)) if progress is not None else None
    with np.errstate(all="ignore"):
        for launch in launches:
            try:
                run.launch(launch)
            except LaunchStopped:
                break
    run.memory.finish()
    instructions = {kind: run.kinds[kind] for kind in KINDS if run.kinds[kind]}
    return SimReport(tuple(reporter.findings), instructions, dict(run.counters), time.perf_counter() - started)


class _Run:
    """The launches of one call."""

    hardware_ids = False
    rules = Rules()

    def __init__(self, code: CodeObject, memory: Memory, reporter: Reporter, backwards: bool, limit: int) -> None:
        self.code, self.memory, self.reporter = code, memory, reporter
        self.backwards, self.limit = backwards, limit
        self.kinds: Counter[str] = Counter()
        self.counters: Counter[str] = Counter()
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

    def _program(self, name: str) -> Program:
        program = self.programs.get(name)
        if program is None:
            kernel = self.code.kernel(name)
            platform = self.code.platform
            if kernel.registers not in platform.tokens:
                raise SimulatorError(f"kernel {name!r}: grf_count {kernel.registers}; 128 or 256 are possible")
            program = Program(kernel, self.code.instructions(name), platform, self.rules)
            self.programs[name] = program
        return program

    def launch(self, launch: LaunchRequest) -> None:
        """Run one launch to its end."""
        kernel = self.code.kernel(launch.kernel)
        program = self._program(launch.kernel)
        self.reporter.start(kernel.name, 0)
        if kernel.required_size is not None and launch.workgroup != kernel.required_size:
            raise SimulatorError(f"kernel {kernel.name!r} wants workgroups of {kernel.required_size}")
        payload = place_payload(self.memory, kernel, launch)
        for allocation in self.memory.allocations:
            allocation.start_launch(program.store_grain)
        slm_bytes = max(kernel.slm, launch.lds_bytes)
        if slm_bytes > self.code.platform.max_slm:
            limit = self.code.platform.max_slm
            self.reporter.add("slm-size", f"{slm_bytes} bytes of local memory are wanted, {limit} are there", None)
            raise LaunchStopped
        waves = threads_of(kernel, launch)
        order = np.array(self.groups_of(launch), np.int64)
        if self.backwards:
            order = order[::-1]
        size = max(1, BATCH_THREADS // waves)
        before = list(program.executed)
        try:
            for start in range(0, len(order), size):
                self._batch(program, launch, payload, order[start : start + size], waves, slm_bytes)
        finally:
            for step, count, old in zip(program.steps, program.executed, before, strict=True):
                if step is not None:
                    self.kinds[step.kind] += count - old

    def _batch(
        self, program: Program, launch: LaunchRequest, payload: Payload, groups: Array, waves: int, slm_bytes: int
    ) -> None:
        kernel, count = program.kernel, len(groups)
        slm = Lds(count, slm_bytes, program.local_grain, "slm-race")
        surfaces = surfaces_of(self.memory, kernel, launch)
        env = Environment(
            self.code.platform,
            self.memory,
            slm,
            self.reporter,
            self.counters,
            count,
            waves,
            surfaces,
            barriers=kernel.barriers,
        )
        first = start_group(
            env,
            kernel,
            program.context.layout,
            program.board.empty,
            launch,
            payload,
            groups,
            hardware_ids=self.hardware_ids,
        )
        entry = kernel.skip_offset if self.hardware_ids else 0
        first.pc = program.context.index_of.get(entry, -1)
        if self.backwards:
            first = first.select(np.arange(first.count)[::-1])
        ThreadEngine(env, program, self.limit).run(first)
        self.done += count
        if self.report is not None:
            self.report(self.done)
