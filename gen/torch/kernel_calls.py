"""Kernels of operators: found, compiled and launched on the device of their tensors, or refused, which is counted.

Code is compiled once a process and problem (and kept in the compile cache, `run.cache`). While a CUDA graph is captured
nothing is compiled.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from threading import Lock
from typing import Any, TypeAlias

import attrs
import torch

from convgen.backends.device import Device
from convgen.cached_code import cached_code, compile_ahead
from convgen.device.devices import open_device
from convgen.device.loaded import DeviceKernel, Program
from convgen.ir.error import ConvgenError, UserError
from convgen.ir.record import define, evolve, frozen
from convgen.problem.matmul import Problem
from convgen.torch.layer_problems import TYPES, ConvRequest, ProductRequest, Tensor

log = logging.getLogger("convgen.torch")

Request: TypeAlias = ConvRequest | ProductRequest


@define
class Calls:
    """Calls of a layer's operators, gradients included: by convgen, and by torch for each reason."""

    by_convgen: int = 0
    by_torch: Counter[str] = attrs.field(factory=Counter)


@frozen(eq=False)
class Loaded:
    """A kernel on a device, its outputs, and its workspaces: name, bytes, and whether launches want zeros there."""

    kernel: DeviceKernel
    outputs: tuple[str, ...]
    workspaces: tuple[tuple[str, int, bool], ...]

    @classmethod
    def of(cls, kernel: DeviceKernel) -> Loaded:
        buffers = kernel.program.record.buffers
        workspaces = ((name, buffers[name].tensor.bytes, buffers[name].zero) for name in kernel.program.workspaces)
        return cls(kernel, kernel.program.outputs, tuple(workspaces))


#: calls by layer
calls: defaultdict[str, Calls] = defaultdict(Calls)

_kernels: dict[tuple[Request, Any], Loaded | str] = {}  #: a kernel, or why there is none, by request and device
_lock = Lock()
_collected: list[tuple[Problem, str]] | None = None  #: problems and their targets, inside `prepared`


def kernel_of(request: Request, tensors: tuple[Tensor, ...], layer: str) -> Loaded | None:
    """Return the kernel of a request on the device of its tensors; None if torch is to compute it.

    The call is counted for the layer, unless problems are collected. The first call with a reason for torch is logged.
    """
    if _collected is not None:
        _collect(request, tensors[0].device, _collected)
        return None
    kernel = _kernel_or_reason(request, tensors)
    if not isinstance(kernel, str):
        calls[layer].by_convgen += 1
        return kernel
    reasons = calls[layer].by_torch
    if kernel not in reasons:
        log.info("%s: computed by torch: %s", shown(layer) or "functional", kernel)
    reasons[kernel] += 1
    return None


def shown(layer: str) -> str:
    """Return the name of a layer without the number of its model."""
    return layer.partition(":")[2]


def _kernel_or_reason(request: Request, tensors: tuple[Tensor, ...]) -> Loaded | str:
    device = tensors[0].device
    if any(tensor.device != device for tensor in tensors):
        return f"given tensors on {' and '.join(sorted({str(t.device) for t in tensors}))}, wanted one device"
    if any(tensor.dtype != tensors[0].dtype for tensor in tensors):
        return f"given {' and '.join(sorted({str(t.dtype) for t in tensors}))}, wanted one type"
    if request.dtype not in TYPES.values():
        return f"given {request.dtype}, wanted float16, bfloat16, or float32 as TF32"
    if request.dtype == "f32" and not request.tf32:
        return "given float32 where torch does not allow TF32, wanted that, float16 or bfloat16"
    if any(tensor.numel() == 0 for tensor in tensors):
        return "given a tensor without elements"
    kernel = _kernels.get((request, device))
    return _looked_up(request, device) if kernel is None else kernel


def _collect(request: Request, device: Any, collected: list[tuple[Problem, str]]) -> None:
    """Add the problem of a request, unless it has none: a later call says why."""
    with suppress(ConvgenError):
        collected.append((request.problem, target_of(device)))


def _looked_up(request: Request, device: Any) -> Loaded | str:
    """Return a kernel that this process has not used, compiled and loaded; or why torch is to compute the request."""
    try:
        target = target_of(device)
        if capturing():
            return "its kernel was not compiled before a graph was captured; a call before the capture compiles it"
        with _lock:
            if (request, device) not in _kernels:
                _kernels[request, device] = loaded(request.problem, target, device)
    except ConvgenError as error:
        _kernels[request, device] = str(error)
    return _kernels[request, device]


def loaded(problem: Problem, target: str, device: Any) -> Loaded:
    """Compile a problem and load its code. Raises ConvgenError.

    Machine code that ptxas made is loaded in place of PTX, which the driver would compile again.
    """
    log.debug("compiling %s for %s", problem, target)
    code, to = cached_code(problem, target), _device(device)
    program = Program.of(code)
    if code.machine is not None:
        with suppress(UserError):  # of a ptxas newer than the driver
            return Loaded.of(DeviceKernel(evolve(program, content=code.machine), to))
    return Loaded.of(DeviceKernel(program, to))


@cache
def _device(device: Any) -> Device:
    """Return convgen's device of torch's. Raises UserError where convgen has no runtime for it."""
    if device.type != "cuda":
        raise UserError(f"given tensors on {device.type}, wanted them on a GPU that torch reaches by CUDA or HIP")
    return open_device(f"{'cuda' if torch.version.hip is None else 'hip'}:{device.index or 0}")


def target_of(device: Any) -> str:
    """Return the target of a device's own code. Raises UserError for a device that convgen has no code for."""
    return _device(device).runs[-1]


def convolutions_allow_tf32() -> bool:
    """Return whether torch lets convolutions of f32 multiply TF32."""
    return bool(torch.backends.cudnn.allow_tf32)


def products_allow_tf32() -> bool:
    """Return whether torch lets products of f32 matrices multiply TF32."""
    return bool(torch.backends.cuda.matmul.allow_tf32)


def capturing() -> bool:
    """Return whether the current stream is captured into a graph."""
    return bool(torch.cuda.is_current_stream_capturing())


def launch(loaded: Loaded, tensors: Mapping[str, Tensor]) -> None:
    """Enqueue a kernel in torch's current stream, on tensors of the sizes and strides of its launch record.

    Workspaces come from torch's allocator at each call, so that layers share them, and a graph has its own.
    """
    kernel, device = loaded.kernel, next(iter(tensors.values())).device
    stream = torch.cuda.current_stream(device).cuda_stream
    alignment = kernel.device.alignment
    memory = {
        name: tensor if name in loaded.outputs or tensor.data_ptr() % alignment == 0 else tensor.clone()
        for name, tensor in tensors.items()
    }
    for name, size, zero in loaded.workspaces:
        memory[name] = (torch.zeros if zero else torch.empty)(size, dtype=torch.uint8, device=device)
    kernel.launch({name: tensor.data_ptr() for name, tensor in memory.items()}, stream)


@contextmanager
def prepared(processes: int | None = None) -> Iterator[None]:
    """Collect the problems that operators ask for in the block, which torch computes; compile them at its end.

    `processes` compile in parallel, by default as many as there are processors, into the compile cache, from which
    later calls load them. Problems that convgen refuses are refused again by later calls, which log the reason.
    """
    global _collected
    _collected = []
    try:
        yield
    finally:
        collected, _collected = _collected, None
    by_target: dict[str, list[str]] = {}
    for problem, target in collected:
        by_target.setdefault(target, []).append(str(problem))
    for target, lines in by_target.items():
        compile_ahead(lines, target, processes or os.cpu_count() or 1)
