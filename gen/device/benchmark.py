"""Time kernels on a device, and compare with the prediction of `convgen profile`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from math import prod
from typing import TYPE_CHECKING

from convgen.backends import target as targets
from convgen.ir.error import UserError
from convgen.ir.record import frozen
from convgen.problem.fused_conv import FusedConv
from convgen.problem.matmul import Matmul
from convgen.profile import launch_times
from convgen.run import prepared, reference
from convgen.run.launch_record import LaunchRecord

if TYPE_CHECKING:
    from convgen.device.loaded import DeviceKernel, Program
    from convgen.device.tensor_arguments import Argument

_MOST = 1_000_000  #: calls


@frozen
class Benchmark:
    """The times of calls of a kernel, in us; a call is all launches of the program together."""

    kernel: str
    device: str
    times: tuple[float, ...]
    cold: bool  #: whether caches are flushed before each call
    bytes: int  #: bytes of inputs and outputs; a tensor that is read and written counts twice
    flop: int | None  #: 2 per multiply-accumulate, padding included; None without a problem
    predicted: float | None  #: us by the model of launches; None without one

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    @property
    def gigabytes(self) -> float:
        """Return GB/s if each input were read once and each output written once."""
        return self.bytes / self.median / 1e3

    @property
    def teraflops(self) -> float | None:
        """Return TFLOP/s; None without a problem."""
        return None if self.flop is None else self.flop / self.median / 1e6

    def __str__(self) -> str:
        spread = f"{min(self.times):.2f} to {max(self.times):.2f} in {len(self.times)} calls"
        lines = [
            f"{self.kernel} on {self.device}, {'cold' if self.cold else 'warm'} caches",
            f"  median     {self.median:.2f} us ({spread})",
            f"  GB/s       {self.gigabytes:.1f}",
        ]
        if self.teraflops is not None:
            lines.append(f"  TFLOP/s    {self.teraflops:.3f}")
        if self.predicted is not None:
            rates = f"{self.bytes / self.predicted / 1e3:.1f} GB/s"
            rates += "" if self.flop is None else f", {self.flop / self.predicted / 1e6:.3f} TFLOP/s"
            lines.append(f"  predicted  {self.predicted:.2f} us: {rates}")
        return "\n".join(lines)


def benchmark(
    kernel: DeviceKernel,
    given: Mapping[str, Argument],
    stream: object,
    *,
    warmup: int,
    repeats: int,
    flush_bytes: int | None,
    predict: bool,
) -> Benchmark:
    """Time calls as `DeviceKernel.benchmark` documents; `flush_bytes` None: twice the target's largest cache."""
    for name, count, least in (("warmup", warmup, 0), ("repeats", repeats, 1)):
        if not least <= count <= _MOST:
            raise UserError(f"given {name}={count}, wanted {least} to {_MOST}")
    program, device = kernel.program, kernel.device
    size = _flushing(program.record.target) if flush_bytes is None else flush_bytes
    with ExitStack() as held:
        ready = held.enter_context(kernel.ready(_filled(program, given), stream))
        scratch = 0
        if size:
            scratch = device.allocate(size)
            held.callback(device.free, scratch)
        times = []
        for number in range(warmup + repeats):
            if size:
                device.fill(scratch, size, number & 0xFF, ready.stream)
            first = device.record(ready.stream)
            kernel.enqueue(ready.record, ready.addresses, ready.stream)
            times.append(1e6 * device.seconds(first, device.record(ready.stream)))
    buffers = [ready.record.buffers[name] for name in dict.fromkeys((*program.inputs, *program.outputs))]
    moved = sum(b.tensor.bytes * (2 if b.name in program.inputs and b.is_written else 1) for b in buffers)
    predicted = _predicted(program, ready.record) if predict else None
    where = f"{device.name} ({device.title})"
    measured = tuple(times[warmup:])
    return Benchmark(program.name, where, measured, size > 0, moved, _flop(program, ready.record), predicted)


def _filled(program: Program, given: Mapping[str, Argument]) -> Mapping[str, Argument]:
    """Return the arguments that were passed; if they contain no tensor, also the problem's exact fill."""
    if program.problem is None or any(name not in program.scalars for name in given):
        return given
    return {**reference.fill(program.problem), **given}


def _flushing(target: str) -> int:
    """Return the bytes that displace everything else from a target's caches."""
    caches = targets.get(target).facts.caches
    return 2 * max(caches.memory_side_bytes, caches.l2_bytes * caches.dies)


def _flop(program: Program, record: LaunchRecord) -> int | None:
    problem = program.problem
    if problem is None:
        return None
    if isinstance(problem, FusedConv):
        return 2 * problem.macs
    outputs = prod(record.buffers[problem.outputs[0].name].tensor.dims)
    depth = record.buffers["src"].tensor.dims[-1] if isinstance(problem, Matmul) else reference.depth(problem)
    return 2 * outputs * depth


def _predicted(program: Program, record: LaunchRecord) -> float | None:
    """Return the predicted us; None for a target without a model of launches."""
    if not targets.has_timer(program.content):
        return None
    return launch_times.profile(prepared.of_launches(record, program.content, program.name)).total
