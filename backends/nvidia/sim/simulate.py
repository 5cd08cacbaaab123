"""Entry of the PTX simulator: `simulate` executes launches of PTX text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from functools import partial

from convgen.backends.nvidia.sim.bulk_copies import BulkCopies
from convgen.backends.nvidia.sim.engine import WarpEngine
from convgen.backends.nvidia.sim.environment import Environment
from convgen.backends.nvidia.sim.launch import (
    parameter_block,
    place_variables,
    shared_layout,
    shared_limit,
    signature_of,
    start_group,
    tensor_maps,
)
from convgen.backends.nvidia.sim.local_memory import LocalMemory
from convgen.backends.nvidia.sim.mbarriers import Mbarriers
from convgen.backends.nvidia.sim.one_cluster import ClusterBarriers
from convgen.backends.nvidia.sim.outline import OutlinedCopies, OutlinedProgram
from convgen.backends.nvidia.sim.ptx_program import Program
from convgen.backends.nvidia.sim.ptx_reader import parse
from convgen.backends.nvidia.sim.ptx_text import Kernel, Module
from convgen.backends.nvidia.sim.recording import Recorder
from convgen.backends.nvidia.sim.register_pool import RegisterPool, at_entry
from convgen.backends.nvidia.sim.shared_memory import Shared
from convgen.backends.nvidia.sim.sources import SOURCES
from convgen.backends.nvidia.sim.state import LANES, WarpGroup
from convgen.backends.nvidia.sim.step import KINDS
from convgen.backends.sim.causality import Causality
from convgen.backends.sim.errors import SimulatorError, Unsupported, reading
from convgen.backends.sim.findings import LaunchStopped
from convgen.backends.sim.run import MAX_INSTRUCTIONS, Buffers, Observer, Progress, Run
from convgen.backends.sim.wave_arrays import Array
from convgen.backends.simulation import STRICT, LaunchRequest, Scrutiny, Signature, SimReport

BATCH_WARPS = 128  #: warps that execute side by side


def architecture(code_object: bytes) -> str:
    """Return the target that PTX names, such as sm_90. Raises SimulatorError."""
    return parse(code_object).target


def signatures(code_object: bytes) -> dict[str, Signature]:
    """Return the arguments, workgroup and shared memory of each kernel of PTX, by name. Raises SimulatorError."""
    module = parse(code_object)
    with reading("the PTX"):
        return {name: signature_of(module, kernel) for name, kernel in module.kernels.items()}


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
    scrutiny: Scrutiny = STRICT,
    early: bool = False,
    recorder: Recorder | None = None,
) -> SimReport:
    """Execute launches of PTX, one after the other, on buffers that are changed in place.

    `uninitialised` names buffers whose bytes are undefined until stored. `wave_order` "reverse" runs workgroups and
    warps in descending order. The run stops after `max_findings` findings. `progress` is called with the workgroups
    done and all workgroups, `observe` with each access to global memory. Bulk copies, and copies that an mbarrier
    counts, land as late as possible, or, with `early`, when they are issued. With a `recorder`, only instructions that
    decide control flow or addresses are executed (`outline`). Raises SimulatorError, Unsupported.
    """
    if scrutiny.watch is not None:
        raise Unsupported("given a trace or break on NVIDIA, supported on AMD only: run without")
    run = _Run(buffers, uninitialised, max_findings, wave_order, max_instructions)
    run.observe, run.early, run.recorder = observe, early or recorder is not None, recorder
    run.reporter.allow(scrutiny.allow)
    run.load(code_object)
    return run.report(launches, KINDS, progress)


def _line(lines: Sequence[int], address: int) -> str:
    """Return the line of an instruction in the PTX text, whose lines begin at the offsets `lines`."""
    return f"ptx:{bisect_right(lines, address)}"


class _Run(Run):
    sources = SOURCES
    module: Module
    _begun: list[Environment]
    early: bool  #: whether bulk copies, and copies that an mbarrier counts, land when they are issued
    recorder: Recorder | None

    def load(self, code_object: bytes) -> None:
        """Take the text of a module."""
        self.module = parse(code_object)
        self._programs: dict[str, Program] = {}

    def _kernel(self, name: str) -> Kernel:
        kernels = self.module.kernels
        if name not in kernels:
            wanted = f"one of {', '.join(kernels)}" if kernels else "PTX that has a kernel"
            raise SimulatorError(f"given kernel {name!r}, wanted {wanted}")
        return kernels[name]

    def _program(self, kernel: Kernel) -> Program:
        program = self._programs.get(kernel.name)
        if program is None:
            with reading(f"kernel {kernel.name}"):
                symbols = place_variables(self.memory, self.module, kernel)
                kind = Program if self.recorder is None else OutlinedProgram
                program = kind(kernel, symbols, self.module.target)
            self._programs[kernel.name] = program
        return program

    def _launch(self, launch: LaunchRequest) -> None:
        kernel = self._kernel(launch.kernel)
        program = self._program(kernel)
        # no bound method, by which the run and its memory would be part of a cycle
        self.reporter.start(kernel.name, kernel.address, partial(_line, self.module.lines))
        threads = launch.workgroup[0] * launch.workgroup[1] * launch.workgroup[2]
        self._check_threads(kernel, launch, threads)
        self.causality = Causality(tracked=program.tracked)
        for allocation in self.memory.allocations:
            allocation.start_launch(program.global_grain)
        static = shared_layout(self.module, kernel)[1]
        shared_bytes = max(static, launch.shared_bytes)
        limit = shared_limit(self.module.target)
        if shared_bytes > limit:
            finding = f"the launch asks for {shared_bytes} bytes of shared memory, {self.module.target} has {limit}"
            self.reporter.add("shared-size", finding, None)
            raise LaunchStopped
        waves = -(-threads // LANES)
        execute = partial(self._batch, program, launch, waves, shared_bytes, static)
        self._batches(launch, max(1, BATCH_WARPS // waves), program, execute)

    @staticmethod
    def _check_threads(kernel: Kernel, launch: LaunchRequest, threads: int) -> None:
        if not 1 <= threads <= 1024:
            raise SimulatorError(f"given a workgroup of {threads} threads, wanted 1 to 1024")
        x, y, z = kernel.limits.get("reqnctapercluster", (1, 1, 1))
        if x * y * z > 1:
            raise Unsupported(f"given clusters of {x * y * z} workgroups, supported: of one")
        wanted = kernel.limits.get("reqntid")
        if wanted is not None and wanted != launch.workgroup:
            raise SimulatorError(f"given workgroups of {launch.workgroup}, wanted {wanted} for {kernel.name}")
        most = kernel.limits.get("maxntid")
        if most is not None and threads > most[0] * most[1] * most[2]:
            given = f"given a workgroup of {threads} threads"
            raise SimulatorError(f"{given}, wanted at most {most[0] * most[1] * most[2]} for {kernel.name}")

    def _batch(
        self, program: Program, launch: LaunchRequest, waves: int, shared: int, static: int, groups: Array
    ) -> None:
        """Run some workgroups; start further ones if they wait for memory that none of them changes."""
        begin = partial(self._begin, program, launch, waves, shared, static)
        self._begun = []

        def begin_more() -> WarpGroup | None:
            more = self._next()
            return None if more is None else begin(more)

        first = begin(groups)
        WarpEngine(first.env, program, self.limit, begin_more, self.recorder).run(first)
        for env in self._begun:
            env.bulk_copies.check_end()
            env.mbarriers.check_end(program.instructions[-1])

    def _bulk_copies(self, warps: int) -> BulkCopies:
        return BulkCopies(warps, early=self.early) if self.recorder is None else OutlinedCopies(warps, self.recorder)

    def _begin(
        self, program: Program, launch: LaunchRequest, waves: int, shared: int, static: int, groups: Array
    ) -> WarpGroup:
        """Return the warps of some workgroups at the kernel's entry, in an environment of their own."""
        count = len(groups)
        memory = Shared(count, shared, program.shared_grain, waves, has_agents=program.has_agents)
        env = Environment(self, memory, count, waves, self.causality, program.dtypes, program.live)
        env.grid, env.workgroup = launch.grid, launch.workgroup
        env.shared_bytes, env.dynamic_bytes = shared, max(shared - static, 0)
        env.names = program.names
        env.mbarriers = Mbarriers(memory, self.reporter, early=self.early)
        env.bulk_copies = self._bulk_copies(count * waves)
        env.tensor_maps = tensor_maps(self.memory, launch)
        env.cluster_barriers = ClusterBarriers(count, waves)
        env.register_pool = RegisterPool(count, waves, at_entry(program.kernel.limits))
        env.parameters, env.parameters_defined = parameter_block(self.memory, program.kernel, launch)
        env.thread_local = LocalMemory(count * waves, program.kernel.local_bytes)
        if self._begun:
            env.constant_reads = self._begun[0].constant_reads
        self._begun.append(env)
        first = start_group(env, launch, groups)
        if self.backwards:
            first = first.reversed()
        return first
