"""Execute the launches of a record over buffers, on the target's simulator or on a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from convgen.backends import target as targets
from convgen.backends.simulation import STRICT, Budget, LaunchRequest, Pages, Scrutiny, SimReport
from convgen.ir import types
from convgen.ir.error import Unsupported, UserError
from convgen.problem.matmul import Problem
from convgen.run import footprint, reference
from convgen.run.code import OutputRegion
from convgen.run.fills import Fill
from convgen.run.launch_record import Buffer, LaunchRecord, StoredTensor
from convgen.run.reference import Array, Tensor

Memory = dict[str, Pages]
Progress = Callable[[int, int], None]
ReportBytes = Callable[[int], None]  #: called before a run with the bytes of memory that it will take


class Executor(Protocol):
    """Executes launches on a device, in place of a simulator; `str` returns the device's name."""

    def execute(
        self, content: bytes, requests: Sequence[LaunchRequest], buffers: Mapping[str, Any], target: str = ""
    ) -> SimReport:
        """Run launches of a code object for `target`; buffers (bytes, or `Pages`) change in place."""


SENTINEL = 0xA5  #: fill byte of outputs; no small integer wider than a byte consists of it
FOREIGN = 0xFF  #: fill byte of gaps in strided inputs, which kernels must not use: NaN in every float type, no small u8

MOST_GROUPS = 1 << 24  #: workgroups of a launch that may be simulated; more take days

_BESIDE = 2  #: bytes that the simulator keeps per byte that kernels write: a stamp of 8 bytes per dword

IDLE = SimReport((), {}, {}, 0.0)  #: report of a record without launches


def execute(
    record: LaunchRecord,
    code_object: bytes | None,
    inputs: Mapping[str, Tensor],
    groups: Sequence[Sequence[int]] | None = None,
    progress: Progress | None = None,
    scrutiny: Scrutiny = STRICT,
    on: Executor | None = None,
) -> tuple[Memory, SimReport]:
    """Run the launches of `record` over buffers of `inputs` (logical arrays by name), all others filled with sentinels.

    `groups` holds the linear workgroup ids of each launch (None: all); the device `on`, if given, runs all. Return the
    memory of every buffer after the last launch; only touched pages exist. Raises UserError if buffers do not fit in
    memory.
    """
    _check_size(record, sampled=groups is not None and on is None)
    memory = allocate(record, inputs)
    if not record.launches:
        return memory, IDLE
    target = targets.get(record.target)
    if code_object is None:
        raise Unsupported(f"running without a code object: no assembler was found ({target.assembler})")
    if on is not None:
        return memory, on.execute(code_object, record.requests(), memory, record.target)
    return memory, target.simulate(code_object, record.requests(groups), memory, progress=progress, scrutiny=scrutiny)


def allocate(record: LaunchRecord, inputs: Mapping[str, Tensor]) -> Memory:
    """Return the memory of every buffer before the first launch: `inputs`, zeros, or sentinels."""
    budget = Budget(footprint.available())
    return {name: _allocate(buffer, inputs.get(name), budget) for name, buffer in record.buffers.items()}


def _check_size(record: LaunchRecord, *, sampled: bool) -> None:
    """Refuse a run that needs more memory than there is, or more workgroups than can be simulated."""
    if not sampled:
        for launch in record.launches:
            check_workgroups(launch.kernel, launch.grid, ", or --run-groups for a sample of them")
    needed, available = predicted(record), footprint.available()
    if not sampled and needed > available:
        given, wanted = footprint.text(needed), footprint.text(available)
        raise UserError(f"given a run that takes {given} of memory, wanted at most {wanted}, or --run-groups")


def check_workgroups(kernel: str, grid: Sequence[int], otherwise: str = " on the simulator") -> None:
    """Raise UserError for more workgroups than can be simulated; `otherwise` ends its message."""
    if math.prod(grid) > MOST_GROUPS:
        given = f"given {math.prod(grid)} workgroups of kernel {kernel}"
        raise UserError(f"{given}, wanted at most {MOST_GROUPS}{otherwise}")


def predicted(record: LaunchRecord) -> int:
    """Return the bytes that a run of all workgroups takes: buffers, and their stamps or input arrays."""
    return sum(b.tensor.bytes * (1 + (_BESIDE if b.is_written else 1)) for b in record.buffers.values())


def predicted_sample(problem: Problem, regions: Sequence[OutputRegion]) -> int:
    """Estimate the bytes that a run of the workgroups of `regions` takes: outputs, and the inputs that they read."""
    depth = reference.depth(problem)
    widest = max(types.scalar(spec.dtype).bytes for spec in problem.tensors)
    elements = sum((r.rows.size + r.columns.size) * depth + r.rows.size * r.columns.size for r in regions)
    return elements * widest * (1 + _BESIDE)


def _allocate(buffer: Buffer, logical: Tensor | None, budget: Budget) -> Pages:
    """Return the bytes of a buffer: a logical array in its layout, zeros if the record asks for them, or sentinels."""
    size = 0
    if logical is not None:
        wanted, elem = reference.numpy_type(buffer.tensor.dtype), types.scalar(buffer.tensor.dtype)
        if logical.shape != buffer.tensor.dims or logical.dtype != wanted:
            given = f"{logical.dtype}{list(logical.shape)}"
            raise UserError(f"given {buffer.name} of {given}, wanted {wanted}{list(buffer.tensor.dims)}")
        size = elem.size(reference.storage(buffer.tensor).elements)
    if logical is not None and not isinstance(logical, Fill):
        memory = np.full(buffer.tensor.bytes, SENTINEL, np.uint8)
        memory[:size] = reference.pack(buffer.tensor, logical, FOREIGN)
        return Pages.of(memory)

    def make(places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        memory = np.full(places.shape, 0 if buffer.zero else SENTINEL, np.uint8)
        if logical is not None:
            drawn = reference.packed_bytes(buffer.tensor, logical, places, FOREIGN)
            np.copyto(memory, drawn, where=places < size)
        return memory

    return Pages(buffer.tensor.bytes, make, budget, _BESIDE if buffer.is_written else 0)


def logical(tensor: StoredTensor, given: Array) -> Array | None:
    """Return `given` in the logical shape of a tensor; None if it has another shape.

    A tensor of one dim, such as the buffer of a kernel built by hand, takes any shape with its number of elements, row
    after row. Others also take one row of all elements in memory order.
    """
    if given.shape == tensor.dims:
        return given
    if len(tensor.dims) == 1:
        return given.reshape(-1) if given.size == tensor.dims[0] else None
    stored = reference.storage(tensor)
    return stored.read(given)[tuple(map(slice, tensor.dims))] if given.shape == (stored.elements,) else None


def unpacked(tensor: StoredTensor, memory: Pages) -> Array:
    """Return the logical tensor in a buffer."""
    size = types.scalar(tensor.dtype).size(reference.storage(tensor).elements)
    return reference.unpack(tensor, tensor.dtype, memory.whole(size))
