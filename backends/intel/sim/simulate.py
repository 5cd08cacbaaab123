"""Entry of the Xe simulator: `simulate` executes launches of a code object."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import numpy as np

from convgen.backends.intel.sim.adversary import Adversary
from convgen.backends.intel.sim.code_object import CodeObject
from convgen.backends.intel.sim.compile import Program
from convgen.backends.intel.sim.engine import ThreadEngine
from convgen.backends.intel.sim.environment import Environment
from convgen.backends.intel.sim.launch import Payload, place_payload, start_group, surfaces_of, threads_of
from convgen.backends.intel.sim.slm import Slm
from convgen.backends.intel.sim.sources import SOURCES
from convgen.backends.intel.sim.step import KINDS, Rules
from convgen.backends.sim.causality import Causality
from convgen.backends.sim.errors import SimulatorError, Unsupported
from convgen.backends.sim.findings import LaunchStopped
from convgen.backends.sim.run import MAX_INSTRUCTIONS, Buffers, Observer, Progress, Run
from convgen.backends.sim.wave_arrays import Array
from convgen.backends.simulation import STRICT, LaunchRequest, Scrutiny, SimReport

BATCH_THREADS = 256  #: threads that a batch simulates together, at most


def simulate(
    code_object: bytes,
    launches: Sequence[LaunchRequest],
    buffers: Buffers,
    *,
    max_findings: int = 20,
    wave_order: str = "forward",
    progress: Progress | None = None,
    observe: Observer | None = None,
    uninitialised: Collection[str] = (),
    max_instructions: int = MAX_INSTRUCTIONS,
    hardware_ids: bool = False,
    errata: bool = True,
    trust_igc: bool = False,
    approximate: int | None = None,
    scrutiny: Scrutiny = STRICT,
    adversary: Adversary | None = None,
) -> SimReport:
    """Execute launches of a code object, one after the other, on buffers that are changed in place.

    `uninitialised` names buffers whose bytes are undefined until stored. `wave_order` "reverse" runs workgroups and
    threads in descending order. The run stops after `max_findings` findings. `progress` is called with the workgroups
    done and all workgroups, `observe` with each lane-by-lane access to global memory. With `hardware_ids`, local ids
    are in registers and threads start after the prologue that loads them; runtimes do both. Code of Intel's compiler
    needs `trust_igc` (see `scoreboard`); code of IGC 1.0.12504, which lacks a workaround for a defect of XeHPC, needs
    `errata` off. With the seed `approximate`, math functions err as far as documented (see `curves`). An `adversary`
    delays loads and orders threads unfavourably. Raises SimulatorError, and Unsupported if `scrutiny` has a `watch`.
    """
    if scrutiny.watch is not None:
        raise Unsupported("given a trace or break on Xe, supported on AMD only: run without")
    run = _Run(buffers, uninitialised, max_findings, wave_order, max_instructions)
    run.observe, run.adversary = observe, adversary
    run.reporter.allow(scrutiny.allow)
    run.load(code_object, Rules(errata, trust_igc, approximate), hardware_ids=hardware_ids)
    return run.report(launches, KINDS, progress)


class _Run(Run):
    sources = SOURCES
    adversary: Adversary | None = None

    def load(self, code_object: bytes, rules: Rules, *, hardware_ids: bool) -> None:
        """Take a code object, and by which rules it runs."""
        self.code, self.rules, self.hardware_ids = CodeObject.load(code_object), rules, hardware_ids
        self.programs: dict[str, Program] = {}

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

    def _launch(self, launch: LaunchRequest) -> None:
        """Execute a launch in batches of workgroups."""
        kernel = self.code.kernel(launch.kernel)
        program = self._program(launch.kernel)
        self.reporter.start(kernel.name, 0)
        if kernel.required_size is not None and launch.workgroup != kernel.required_size:
            raise SimulatorError(f"kernel {kernel.name!r} wants workgroups of {kernel.required_size}")
        payload = place_payload(self.memory, kernel, launch)
        self.causality = Causality(tracked=program.tracked)
        for allocation in self.memory.allocations:
            allocation.start_launch(program.store_grain)
        slm_bytes = max(kernel.slm, launch.shared_bytes)
        if slm_bytes > self.code.platform.max_slm:
            limit = self.code.platform.max_slm
            finding = f"the launch asks for {slm_bytes} bytes of local memory, a workgroup has {limit}"
            self.reporter.add("slm-size", finding, None)
            raise LaunchStopped
        waves = threads_of(kernel, launch)
        execute = partial(self._batch, program, launch, payload, waves, slm_bytes)
        self._batches(launch, max(1, BATCH_THREADS // waves), program, execute)

    def _batch(
        self, program: Program, launch: LaunchRequest, payload: Payload, waves: int, slm_bytes: int, groups: Array
    ) -> None:
        """Execute some workgroups side by side, in an environment of their own."""
        kernel, count = program.kernel, len(groups)
        slm = Slm(count, slm_bytes, program.local_grain)
        surfaces = surfaces_of(self.memory, kernel, launch)
        platform, barriers = self.code.platform, kernel.barriers
        fused = platform.fused and not kernel.unfused
        env = Environment(
            *(self, platform, slm, count, waves, surfaces, barriers, self.causality),
            fused=fused,
            adversary=self.adversary,
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
