"""Compare outputs in memory with the reference: bit for bit, or with a range if several values are right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.backends.simulation import Pages
from convgen.ir import types
from convgen.ir.record import evolve, frozen
from convgen.problem.matmul import Problem
from convgen.run import reference
from convgen.run import reference_request as request
from convgen.run.code import OutputRegion
from convgen.run.execution import SENTINEL, Memory
from convgen.run.launch_record import LaunchRecord, StoredTensor
from convgen.run.ranges import Range
from convgen.run.reference import Array, Tensor

_SHOWN = 8  #: mismatches that a comparison holds
_ROWS = 4096  #: rows compared at a time


@frozen
class Mismatch:
    """One wrong element of an output, at its logical index: n, oc, [d,] h, w of dst, or m, n."""

    output: str
    index: tuple[int, ...]
    expected: float
    got: float
    unwritten: bool  #: whether the sentinel still stands there

    def __str__(self) -> str:
        got = "nothing written" if self.unwritten else f"got {self.got:g}"
        return f"{self.output}[{', '.join(map(str, self.index))}]: expected {self.expected:g}, {got}"


@frozen
class Comparison:
    """A comparison: elements compared, number of wrong elements, and the first wrong ones."""

    checked: int = 0
    mismatches: int = 0
    first: tuple[Mismatch, ...] = ()

    def __add__(self, other: Comparison) -> Comparison:
        first = (*self.first, *other.first)[:_SHOWN]
        return Comparison(self.checked + other.checked, self.mismatches + other.mismatches, first)


def whole_outputs(problem: Problem) -> Iterator[OutputRegion]:
    """Yield regions that together hold every element of every output, and the padding of their blocks."""
    for spec in request.outputs(problem):
        rows, columns = reference.output_shape(problem, spec.name)
        if not reference.has_padding(spec):
            yield from (OutputRegion(spec.name, some, np.arange(columns)) for some in _in_turn(rows))
            continue
        padded_rows, padded_columns = reference.shape_in_blocks(problem, spec.name)
        for some in _in_turn(padded_rows):
            in_blocks = some, np.arange(padded_columns)
            yield OutputRegion(spec.name, some[some < rows], np.arange(columns), in_blocks)


def _in_turn(rows: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the numbers of rows, a few thousand at a time."""
    return (np.arange(start, min(start + _ROWS, rows)) for start in range(0, rows, _ROWS))


def compare(
    problem: Problem,
    inputs: Mapping[str, Tensor],
    record: LaunchRecord,
    memory: Memory,
    regions: Iterable[OutputRegion],
) -> Comparison:
    """Compare the outputs in `regions` with the reference, bit for bit or by range; padding of blocks must be zero."""
    checked, mismatches, first = 0, 0, list[Mismatch]()
    for region in regions:
        region = evolve(region, rows=reference.stored_rows(problem, inputs, region.output, region.rows))
        for wrong, indices, right, got in _compared(problem, inputs, record, memory, region):
            mismatches += int(np.count_nonzero(wrong))
            for row, column in np.argwhere(wrong)[: _SHOWN - len(first)]:
                index = tuple(int(np.broadcast_to(i, wrong.shape)[row, column]) for i in indices)
                expected, there = float(right[row, column]), got[row, column]
                unwritten = there.tobytes() == bytes([SENTINEL]) * there.itemsize
                first.append(Mismatch(region.output, index, expected, float(there), unwritten))
        checked += region.rows.size * region.columns.size
    return Comparison(checked, mismatches, tuple(first))


def compare_unnamed(
    problem: Problem, inputs: Mapping[str, Tensor], record: LaunchRecord, memory: Memory, output: str
) -> Comparison:
    """Compare the rows of a scattered output that no row of the product names with their content before the launches.

    They are not counted as outputs.
    """
    rows, columns = reference.unnamed_rows(problem, inputs, output), reference.output_shape(problem, output)[1]
    if not len(rows):
        return Comparison()
    index, tensor = [rows[:, None], np.arange(columns)[None, :]], record.buffers[output].tensor
    got = _gathered(memory[output], tensor, index)
    untouched = np.frombuffer(bytes([SENTINEL]) * got.itemsize, got.dtype)[0]
    before = np.asarray(inputs[output][rows]) if output in inputs else np.full_like(got, untouched)
    wrong = _bits(before) != _bits(got)
    first = [
        Mismatch(output, (int(rows[row]), int(column)), float(before[row, column]), float(got[row, column]), False)
        for row, column in np.argwhere(wrong)[:_SHOWN]
    ]
    return Comparison(0, int(np.count_nonzero(wrong)), tuple(first))


#: flags of wrong elements, their logical indices, the right elements and those in memory
_Compared = tuple[npt.NDArray[np.bool_], list[reference.Indices], Array, Array]


def _compared(
    problem: Problem, inputs: Mapping[str, Tensor], record: LaunchRecord, memory: Memory, region: OutputRegion
) -> Iterator[_Compared]:
    """Yield the comparison of a region's elements with the reference, and of its padding with zero."""
    tensor = record.buffers[region.output].tensor
    if region.rows.size and region.columns.size:
        indices = reference.stored_index(problem, inputs, region.output, region.rows, region.columns)
        got = _gathered(memory[region.output], tensor, indices)
        with np.errstate(invalid="ignore", over="ignore"):  # infinities may be among the inputs
            right = reference.ranges(problem, inputs, region.output, region.rows, region.columns)
        yield _differs(right.least, got) if right.is_one else ~_within(right, got), indices, right.least, got
    if region.in_blocks:
        indices = reference.index_in_blocks(problem, region.output, *region.in_blocks)
        got = _gathered(memory[region.output], tensor, indices)
        is_padding = np.logical_or.reduce(np.broadcast_arrays(*(at >= n for at, n in zip(indices, tensor.dims))))
        yield is_padding & (_bits(got) != 0), indices, np.zeros_like(got), got


def _differs(expected: Array, got: Array) -> npt.NDArray[np.bool_]:
    """Return flags of differing bits; all NaNs are equal, as no document states which NaN an operation returns."""
    flags: npt.NDArray[np.bool_] = (_bits(expected) != _bits(got)) & ~((expected != expected) & (got != got))
    return flags


def _within(right: Range, got: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return flags of values that lie in a range, or are NaN where NaN is right."""
    with np.errstate(invalid="ignore"):  # a NaN of few bits is compared
        flags: npt.NDArray[np.bool_] = ((right.least <= got) & (got <= right.most)) | ((got != got) & right.nan)
    return flags


def _gathered(memory: Pages, tensor: StoredTensor, index: Sequence[reference.Indices]) -> Array:
    """Return the elements of a tensor at logical indices."""
    elem = types.scalar(tensor.dtype)
    memory.touch(reference.storage(tensor).offset(index) * elem.spacing // 8, elem.bytes)
    return reference.gather(tensor, tensor.dtype, memory.data, index)


def _bits(values: Array) -> npt.NDArray[np.unsignedinteger]:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
