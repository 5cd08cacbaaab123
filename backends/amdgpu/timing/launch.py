"""Launches on CDNA, as `event_model.launch` profiles them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from convgen.backends.amdgpu.analyze import groups_held, hot_code
from convgen.backends.amdgpu.family import FAMILY
from convgen.backends.amdgpu.foreign import architecture
from convgen.backends.amdgpu.sim import CodeObject
from convgen.backends.amdgpu.sim.compile import Program
from convgen.backends.amdgpu.sim.simulate import BATCH_WAVES, simulate
from convgen.backends.amdgpu.tables import WAVE
from convgen.backends.amdgpu.timing.executed import Trace
from convgen.backends.amdgpu.timing.unit import Latencies, Unit
from convgen.backends.event_model.cache_traffic import Reads
from convgen.backends.event_model.launch import NEVER, SimulatorRun, TimedLaunch
from convgen.backends.family import check_rows
from convgen.backends.sim.run import Buffers
from convgen.backends.simulation import Scrutiny
from convgen.ir.record import evolve, frozen

__all__ = ["architecture", "profile_launch"]

#: Bytes of a CU's L1 (ROCm Compute Profiler documentation, "vL1D"; CDNA3 white paper).
_L1_BYTES: Mapping[str, int] = {"gfx90a": 16 << 10, "gfx942": 32 << 10, "gfx950": 32 << 10}
check_rows(FAMILY, {"timing/launch.py: _L1_BYTES": _L1_BYTES})


@frozen(eq=False, slots=False)
class _Launch(TimedLaunch):
    lanes = WAVE
    batch_waves = BATCH_WAVES

    def execute(
        self, groups: tuple[int, ...] | None, wanted: frozenset[int], *, as_last_arrivals: bool
    ) -> SimulatorRun:
        trace, reads = Trace(self.program.context, wanted, self.entry, as_last_arrivals), Reads(self.machine.line_bytes)
        memory, request = self.buffers(), evolve(self.request, groups=groups)
        scrutiny = Scrutiny(watch=trace)
        report = simulate(self.code, [request], memory, observe=reads, scrutiny=scrutiny, max_findings=NEVER)
        return SimulatorRun(trace, self.workgroups if groups is None else len(groups), reads, memory, report)

    def unit(self, latency: float) -> Unit:
        return Unit(Latencies(latency))

    def observe(self, groups: tuple[int, ...], most: int, reads: Reads, buffers: Buffers) -> None:
        request = evolve(self.request, groups=groups)
        simulate(self.code, [request], buffers, strict=False, observe=reads, max_instructions=most)

    @cached_property
    def program(self) -> Program:
        loaded = CodeObject.load(self.code)
        return Program(loaded.kernel(self.request.kernel), loaded.arch)

    @property
    def entry(self) -> int:
        return self.program.kernel.descriptor.entry

    @cached_property
    def body(self) -> set[int]:
        _, hot, is_loop = hot_code(self.program.kernel, self.machine.target)
        return {i.address for i in hot if is_loop}

    @cached_property
    def resident(self) -> dict[str, int]:
        shared = max(self.program.kernel.descriptor.group_segment, self.request.shared_bytes)
        return groups_held(self.program.kernel, self.machine.target, self.waves, shared)

    @property
    def l1_bytes(self) -> int:
        return _L1_BYTES[self.machine.target]


profile_launch = _Launch.profiled
