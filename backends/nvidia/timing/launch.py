"""Launches on NVIDIA's GPUs, as `event_model.launch` profiles them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from convgen.backends.event_model.cache_traffic import Reads
from convgen.backends.event_model.launch import NEVER, SimulatorRun, TimedLaunch
from convgen.backends.family import check_rows
from convgen.backends.nvidia.analyze import RESERVED, allocated, groups_held, hot_loop
from convgen.backends.nvidia.costs import facts_of
from convgen.backends.nvidia.family import FAMILY
from convgen.backends.nvidia.sim.ptx_reader import parse
from convgen.backends.nvidia.sim.ptx_text import Kernel
from convgen.backends.nvidia.sim.recording import Unrecorded
from convgen.backends.nvidia.sim.simulate import BATCH_WARPS, simulate
from convgen.backends.nvidia.tables import FACTS, LANES
from convgen.backends.nvidia.timing.accesses import L1
from convgen.backends.nvidia.timing.executed import Trace
from convgen.backends.nvidia.timing.unit import Latencies, Unit
from convgen.backends.sim.run import Buffers
from convgen.ir.error import Unsupported
from convgen.ir.facts import TargetFacts
from convgen.ir.record import evolve, frozen

#: Findings that an outlined run can make: it moves no data, so that it knows nothing of races and undefined bytes.
_FINDINGS = frozenset("barrier control divergence no-progress out-of-bounds runaway shared-size trap".split())
#: Bytes of an SM's L1 and shared memory together (CUDA Programming Guide, "Compute Capabilities").
_UNIFIED_BYTES: Mapping[str, int] = {
    "sm_80": 192 << 10,
    "sm_86": 128 << 10,
    "sm_89": 128 << 10,
    "sm_90": 256 << 10,
    "sm_90a": 256 << 10,
    "sm_120": 128 << 10,
}
check_rows(FAMILY, {"timing/launch.py: _UNIFIED_BYTES": _UNIFIED_BYTES})


def architecture(content: bytes) -> str:
    """Return the target whose facts describe PTX. Raises SimulatorError, Unsupported."""
    target = parse(content).target
    facts = facts_of(target)
    if facts is None:
        raise Unsupported(f"given .target {target}, supported: {', '.join(FACTS)}")
    return facts.name


@frozen(eq=False, slots=False)
class _Launch(TimedLaunch):
    lanes = LANES
    batch_waves = BATCH_WARPS
    rounds_drift = True
    sampled = 4  # a persistent workgroup copies thousands of boxes

    def execute(
        self, groups: tuple[int, ...] | None, wanted: frozenset[int], *, as_last_arrivals: bool
    ) -> SimulatorRun:
        trace, reads = Trace(wanted, self.facts.name, L1(self.l1_bytes)), Reads(self.machine.line_bytes)
        memory, request = self.buffers(), evolve(self.request, groups=groups)
        report = simulate(self.code, [request], memory, observe=reads, max_findings=NEVER, recorder=trace)
        report = evolve(report, findings=tuple(f for f in report.findings if f.kind in _FINDINGS))
        return SimulatorRun(trace, self.workgroups if groups is None else len(groups), reads, memory, report)

    def unit(self, latency: float) -> Unit:
        return Unit(Latencies(latency))

    def observe(self, groups: tuple[int, ...], most: int, reads: Reads, buffers: Buffers) -> None:
        request = evolve(self.request, groups=groups)
        simulate(self.code, [request], buffers, observe=reads, max_instructions=most, recorder=Unrecorded())

    @cached_property
    def kernel(self) -> Kernel:
        return parse(self.code).kernels[self.request.kernel]

    @cached_property
    def facts(self) -> TargetFacts:
        return FACTS[architecture(self.code)]

    @property
    def entry(self) -> int:
        return self.kernel.code[0].address

    @cached_property
    def body(self) -> set[int]:
        return hot_loop(self.kernel, self.facts.name)

    @cached_property
    def resident(self) -> Mapping[str, int]:
        registers = allocated(self.code.decode()).get(self.request.kernel, {})
        return groups_held(self.facts, registers, self.request.shared_bytes, self.waves)

    @property
    def l1_bytes(self) -> int:
        if not any(each.name == "ld" and each.is_in("global") for each in self.kernel.code):
            return 0  # cp.async.cg and bulk copies go past L1
        return _UNIFIED_BYTES[self.facts.name] - self.full * (self.request.shared_bytes + RESERVED)


profile_launch = _Launch.profiled
