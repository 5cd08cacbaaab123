"""Launches prepared for profiling and inspection: code, requests, and memory before the first launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from convgen.backends.simulation import LaunchRequest
from convgen.ir.record import frozen
from convgen.problem.matmul import parse_problem
from convgen.run import execution, foreign_launch, reference
from convgen.run.foreign_launch import LaunchOptions
from convgen.run.launch_record import LaunchRecord


@frozen(eq=False)
class Prepared:
    """The launches of a code object, in order."""

    name: str  #: for errors
    content: bytes
    requests: tuple[LaunchRequest, ...]
    buffers: Callable[[], Mapping[str, Any]]  #: new ones each time
    macs: int = 0  #: multiply-accumulates of the problem; 0 if the problem is unknown


def of_record(path: Path, scalars: Mapping[str, int]) -> Prepared:
    """Prepare the launches of a record, with other values of scalars that a host may choose; inputs are filled if it
    carries a problem. Raises UserError.
    """
    record = LaunchRecord.read(path).with_scalars(scalars)
    return of_launches(record, record.read_object(path), path.name)


def of_launches(record: LaunchRecord, content: bytes | None, where: str) -> Prepared:
    """Return the launches of a record and its code object. Raises UserError if there are none."""
    code_object = record.required(content, where)
    problem = None if record.problem is None else parse_problem(record.problem)
    drawn = {} if problem is None else reference.fills(problem, 0)
    sizes = {name: buffer.tensor.dims for name, buffer in record.buffers.items()}
    inputs = {name: tensor for name, tensor in drawn.items() if sizes.get(name) == tensor.shape}
    macs = 0 if problem is None else problem.macs
    return Prepared(where, code_object, record.requests(), lambda: execution.allocate(record, inputs), macs)


def of_object(path: Path, options: LaunchOptions) -> Prepared:
    """Return a launch of a code object without a record (`foreign_launch`). Raises UserError."""
    content, launch = foreign_launch.read(path, options)

    def copies() -> dict[str, Any]:
        return {name: data.copy() for name, data in launch.array_bytes.items()}

    return Prepared(path.name, content, (launch.request,), copies)
