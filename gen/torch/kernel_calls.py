"""Kernels of operators: found, compiled and launched on the device of their tensors, or refused, which is counted.

Code is compiled once a process and problem (and kept in the compile cache, `run.cache`). While a CUDA graph is captured
nothing is compiled.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import attrs
import torch

from convgen.backends.device import Device
from convgen.cached_code import cached_code, compile_ahead
from convgen.device.devices import open_device
from convgen.device.loaded import DeviceKernel, Program
from convgen.ir.error import ConvgenError, UserError
from convgen.ir.record import define, evolve, frozen
from convgen.problem.matmul import Problem
from convgen.torch.layer_problems import TYPES, ConvRequest, ProductRequest, Tensor, empty, in_format, is_dense

log = logging.getLogger("convgen.torch")

Request: TypeAlias = ConvRequest | ProductRequest
Key: TypeAlias = tuple[Hashable, ...]  #: of a plan

_CAPTURED = "its kernel was not compiled before a graph was captured; a call before the capture compiles it"


@define
class Calls:
    """Calls of a layer's operators, gradients included: by convgen, and by torch for each reason."""

    by_convgen: int = 0
    by_torch: Counter[str] = attrs.field(factory=Counter)


class Outline(NamedTuple):
    """A call of an operator: what the kernel computes, and the formats of its tensors (`layer_problems`).

    `formats` say of each input whether the kernel reads it as channels_last; None for one that it reads as it is.
    """

    request: Request
    inputs: tuple[Tensor, ...]
    formats: tuple[bool | None, ...]
    channels_last: bool  #: format of the result

    def result_strides(self) -> tuple[int, ...]:
        """Return the strides of the result, in elements."""
        return tuple(empty(self.inputs[0], self.request.result_sizes, channels_last=self.channels_last).stride())


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


@frozen(eq=False)
class Plan:
    """How an operator's calls with tensors of certain sizes, strides and types are computed."""

    kernel: Loaded | None  #: None if torch computes them
    reason: str  #: why torch does
    copies: tuple[tuple[int, bool], ...]  #: numbers of inputs without the format that kernels read, and that format
    channels_last: bool  #: format of the result
    sizes: tuple[int, ...] = ()  #: elements, of the result; only beside a kernel
    strides: tuple[int, ...] = ()

    @classmethod
    def of(cls, outline: Outline, kernel: Loaded | str) -> Plan:
        """Return the plan of an outline, with its kernel or the reason for torch."""
        if isinstance(kernel, str):
            return cls(None, kernel, (), outline.channels_last)
        pairs = enumerate(zip(outline.inputs, outline.formats, strict=True))
        copies = tuple((n, last) for n, (t, last) in pairs if last is not None and not is_dense(t, channels_last=last))
        sizes, strides = outline.request.result_sizes, outline.result_strides()
        return cls(kernel, "", copies, outline.channels_last, sizes, strides)

    def in_format(self, result: Tensor) -> Tensor:
        """Return torch's result in the format of the operator's."""
        return in_format(result, channels_last=self.channels_last)

    def read(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Return the inputs in the formats that the kernel reads; those that have others are copied."""
        if not self.copies:
            return tensors
        formatted = list(tensors)
        for number, channels_last in self.copies:
            formatted[number] = in_format(tensors[number], channels_last=channels_last)
        return formatted


#: calls by layer
calls: defaultdict[str, Calls] = defaultdict(Calls)

_kernels: dict[tuple[Request, Any], Loaded | str] = {}  #: a kernel, or why there is none, by request and device
_plans: dict[Key, Plan] = {}
_lock = Lock()
_collected: list[tuple[Problem, str]] | None = None  #: problems and their targets, inside `prepared`


def plan_of(key: Key, layer: str) -> Plan | None:
    """Return the plan of earlier calls with a key, and count the call; None if the caller has to ask `new_plan`."""
    plan = _plans.get(key)
    if plan is not None and _collected is None:
        _count(plan, layer)
        return plan
    return None


def new_plan(key: Key, layer: str, outline: Outline) -> Plan:
    """Return the plan of a call, count the call for the layer, and keep the plan for calls with an equal key.

    A key has the operator, sizes, strides, types and devices of its tensors, and all else that decides the outline.
    While problems are collected (`prepared`), the call is neither counted nor its plan kept.
    """
    if _collected is not None:
        _collect(outline.request, outline.inputs[0].device, _collected)
        return Plan.of(outline, "its problem is collected")
    plan = Plan.of(outline, _kernel_or_reason(outline.request, outline.inputs))
    if plan.reason != _CAPTURED:
        _plans[key] = plan
    _count(plan, layer)
    return plan


def _count(plan: Plan, layer: str) -> None:
    """Count a call for a layer. The first call with a reason for torch is logged."""
    if plan.kernel is not None:
        calls[layer].by_convgen += 1
        return
    reasons = calls[layer].by_torch
    if plan.reason not in reasons:
        log.info("%s: computed by torch: %s", shown(layer) or "functional", plan.reason)
    reasons[plan.reason] += 1


def shown(layer: str) -> str:
    """Return the name of a layer without the number of its model."""
    return layer.partition(":")[2]


def _kernel_or_reason(request: Request, tensors: tuple[Tensor, ...]) -> Loaded | str:
    """Return the kernel of a request on the device of some tensors, or why torch has to compute it."""
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
    """Add the problem of a request; one that convgen refuses is left out, and a later call logs the reason."""
    with suppress(ConvgenError):
        collected.append((request.problem, target_of(device)))


def _looked_up(request: Request, device: Any) -> Loaded | str:
    """Compile and load a kernel that this process has not used; return it, or why torch has to compute the request."""
    try:
        target = target_of(device)
        if capturing():
            return _CAPTURED
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
    kernel, memory, addresses = loaded.kernel, [], {}
    alignment, outputs = kernel.device.alignment, loaded.outputs
    for name, tensor in tensors.items():
        address = tensor.data_ptr()
        if address % alignment and name not in outputs:
            memory.append(tensor.clone())
            address = memory[-1].data_ptr()
        addresses[name] = address
    device = tensor.device
    for name, size, zero in loaded.workspaces:
        memory.append((torch.zeros if zero else torch.empty)(size, dtype=torch.uint8, device=device))
        addresses[name] = memory[-1].data_ptr()
    kernel.launch(addresses, current_stream(device))


def current_stream(device: Any) -> int:
    """Return the handle of torch's current stream of a device."""
    return int(torch._C._cuda_getCurrentRawStream(device.index))


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
