"""Simulate compiled code as a function of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from convgen.backends.simulation import Finding
from convgen.driver import expect
from convgen.ir.error import ConvgenError, UserError
from convgen.ir.types import scalar
from convgen.run.code import Code
from convgen.run.launch_record import Buffer, size_given

#: An output, or a dict by name of several. `Any`: callers know how many outputs their kernel has.
Results: TypeAlias = "npt.NDArray[Any] | Any"


class SimulationError(ConvgenError):
    """The simulator has findings; the message is the first, `findings` holds them all."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__(str(findings[0]))
        self.findings = tuple(findings)


def simulate(code: Code, **given: npt.ArrayLike) -> Results:
    """Run compiled code on the simulator; return its output as an array, or a dict by name of several.

    A problem takes logical arrays of its inputs (src, wei) and returns its outputs (dst). A tile kernel takes an array
    of the tensor's shape for each tensor that it reads, and returns one for each that it writes. A kernel built by hand
    takes arrays with as many elements as its buffers, and returns rows of elements. Lists become arrays of the buffer's
    type, objects with `__array__` the array that it returns. Sizes known at launch only are numbers by name, or dims of
    the arrays; by default they are the problem's.

    Raises UserError for a missing or misshapen array, SimulationError if the simulator has a finding.
    """
    from convgen.run.execution import execute, logical, unpacked

    expect("code", code, Code)
    sizes, buffers = code.record.sizes, code.record.buffers
    arrays = {name: _array(name, a, buffers.get(name)) for name, a in given.items() if name not in sizes}
    shapes = {name: a.shape for name, a in arrays.items()}
    record = code.record.with_scalars(_launch_sizes(code, given, shapes))
    buffers = record.buffers
    if code.problem is None:
        wanted = {name: b.tensor.dims for name, b in buffers.items() if b.is_read}
        shaped = {name: logical(buffers[name].tensor, a) for name, a in arrays.items() if name in wanted}
        arrays |= {name: array for name, array in shaped.items() if array is not None}
        outputs = [name for name, b in buffers.items() if b.is_written]
    else:
        inputs = code.problem.inputs
        wanted = {s.name: buffers[s.name].tensor.dims if s.name in buffers else s.dims for s in inputs}
        outputs = [spec.name for spec in code.problem.outputs]
    if {name: a.shape for name, a in arrays.items()} != wanted:
        given_text = f"arrays {_shapes(shapes)}" if shapes else "no arrays"
        raise UserError(f"given {given_text}, wanted {_shapes(wanted)}")
    memory, report = execute(record, code.object, arrays)
    if report.findings:
        raise SimulationError(report.findings)
    results = {name: unpacked(buffers[name].tensor, memory[name]) for name in outputs if name in buffers}
    if code.problem is not None and code.problem.is_empty:
        results = {spec.name: np.empty(spec.dims, scalar(spec.dtype).numpy) for spec in code.problem.outputs}
    return results if len(results) != 1 else results[outputs[0]]


def _launch_sizes(
    code: Code, given: Mapping[str, npt.ArrayLike], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """Return the sizes known at launch only: given numbers, else dims of arrays; a problem's default is its own.

    Raises UserError for a missing size of a hand-written kernel.
    """
    sizes = code.record.sizes
    numbers = code.record.sizes_of(shapes) if code.problem is None else {}
    numbers |= {name: size_given(name, given[name]) for name in sizes if name in given}
    missing = [name for name in sizes if name not in numbers]
    if missing and code.problem is None:
        raise UserError(f"given no {missing[0]}, wanted a number for each of {', '.join(sizes)}")
    return numbers


def _array(name: str, given: npt.ArrayLike, buffer: Buffer | None) -> npt.NDArray[Any]:
    """Convert an argument to an array; an argument without a type gets the buffer's."""
    from convgen.run.reference import numpy_type

    is_typed = hasattr(given, "dtype") or hasattr(given, "__array__")
    try:
        return np.asarray(given, None if is_typed or buffer is None else numpy_type(buffer.tensor.dtype))
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(f"given {name} that is no array ({error}), wanted numbers") from None


def _shapes(arrays: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape)) or '(one number)'}" for name, shape in arrays.items())
