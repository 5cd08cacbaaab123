"""Running compiled code on the target's simulator and comparing it, bit for bit, with the reference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from convgen.backends import target as targets
from convgen.backends.simulation import (
    STRICT,
    Budget,
    Coverage,
    Finding,
    LaunchRequest,
    Pages,
    Scrutiny,
    SimReport,
    joined,
)
from convgen.ir import types
from convgen.ir.error import Unsupported, UserError
from convgen.ir.record import evolve, frozen
from convgen.problem.matmul import Problem, parse_problem
from convgen.problem.tensors import TensorSpec
from convgen.run import footprint, npy, reference, specials
from convgen.run.code import Code, OutputRegion
from convgen.run.fills import Fill
from convgen.run.launch_record import Buffer, LaunchRecord, StoredTensor
from convgen.run.ranges import Range
from convgen.run.reference import Array, Tensor

Memory = dict[str, Pages]
Progress = Callable[[int, int], None]
Taking = Callable[[int], None]  #: is told how many bytes of memory a run will take, before it begins


class Executor(Protocol):
    """Who executes launches in place of a simulator: a device. As text, how people call it."""

    def execute(
        self, content: bytes, requests: Sequence[LaunchRequest], buffers: Mapping[str, Any], target: str = ""
    ) -> SimReport:
        """Run launches of a code object for `target`; buffers (bytes, or `Pages`) change in place."""


SENTINEL = 0xA5  #: fills what the kernels must write; no small integer wider than a byte looks like it
FOREIGN = 0xFF  #: fills the gaps of strided inputs, which kernels may not use: NaN in every floating type, no small u8

MOST_GROUPS = 1 << 24  #: workgroups of a launch that may be simulated: days of work

_SHOWN = 8
#: Tiles sampled for the run with infinities and NaNs, if kernels compute no more parts of outputs. They are simulated
#: together; recomputing the sums of some takes up to seven times as long as a tile.
_FEW_TILES = 2
_BESIDE = 2  #: bytes that the simulator keeps beside each byte that kernels write: a stamp of 8 for each dword
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
class Few:
    """The run with infinities and NaNs: how many elements of inputs had one, how many outputs were compared."""

    values: int
    checked: int
    seconds: float


@frozen
class Outcome:
    """What a run showed. `checked` counts elements of outputs; `first` holds the first few of the wrong ones.

    `checked`, `seconds` and `instructions` are those of the run on ordinary data; where a second one had infinities and
    NaNs (`specials`), `mismatches` and `findings` are those of both. `coverage` is that of the kernels over all runs,
    where a simulator executed them.
    `compared` says whether anybody knew what is right.
    `advice` tells whether findings count for which no manual asks (`Finding.source`): they do for our own kernels.
    `on` names the device that ran it; empty for a simulator.
    """

    checked: int
    mismatches: int
    first: tuple[Mismatch, ...]
    findings: tuple[Finding, ...]
    seconds: float
    instructions: Mapping[str, int]
    compared: bool = True
    advice: bool = True
    on: str = ""
    coverage: tuple[Coverage, ...] = ()
    specials: Few | None = None

    @property
    def passed(self) -> bool:
        return not self.mismatches and not any(self.advice or finding.source.required for finding in self.findings)

    @property
    def compared_outputs(self) -> int:
        """Elements of outputs that were compared in all runs."""
        return self.checked + (0 if self.specials is None else self.specials.checked)

    @property
    def status(self) -> str:
        return "failed" if not self.passed else "passed" if self.compared else "executed"


_Comparison = tuple[int, int, tuple[Mismatch, ...]]  #: elements checked, elements wrong, the first of these
_NOTHING: _Comparison = (0, 0, ())
_IDLE = SimReport((), {}, {}, 0.0)


def run(
    code: Code,
    *,
    groups: int | None = None,
    seed: int = 0,
    arrays: Mapping[str, Array] | None = None,
    progress: Progress | None = None,
    taking: Taking | None = None,
    on: Executor | None = None,
) -> Outcome:
    """Simulate `code` and compare every output, or those of `groups` sampled tiles, exactly with the reference.

    `arrays` are logical inputs by buffer name; without them inputs are filled by `seed`, and where windows meet padding
    a few tiles run again with infinities and NaNs. The device `on`, if given, runs all workgroups. Raises Unsupported
    if there is no object to run, UserError if there is not memory enough.
    """
    problem = code.problem
    if problem is None:
        raise Unsupported("verification of code that carries no problem")
    if problem.is_empty:
        return _outcome(_IDLE, _NOTHING)
    if arrays is not None:
        return _run(code, problem, arrays, groups, seed, progress, taking, on)
    inputs = reference.fills(problem, seed)
    outcome = _run(code, problem, inputs, groups, seed, progress, taking, on)
    if not outcome.passed or code.tiles is None or not code.keeps_padding_out or not specials.pads(problem):
        return outcome
    return _with_specials(code, problem, inputs, outcome, seed, progress, on)


def _run(
    code: Code,
    problem: Problem,
    inputs: Mapping[str, Tensor],
    groups: int | None,
    seed: int,
    progress: Progress | None,
    taking: Taking | None,
    on: Executor | None,
) -> Outcome:
    """Execute all of `code` or sampled tiles once, on one set of inputs."""
    if groups is None:
        return _verified(problem, code.record, code.object, inputs, progress, taking, on=on)
    regions, workgroups = _sampled(code, groups, seed)
    all_of_it = predicted(code.record)
    _tell(taking, all_of_it if on else min(all_of_it, _predicted_sample(problem, regions)))
    memory, report = execute(code.record, code.object, inputs, workgroups, progress, on=on)
    return _outcome(report, _compare(problem, inputs, code.record, memory, regions), on)


def _with_specials(
    code: Code,
    problem: Problem,
    fills: Mapping[str, Fill],
    before: Outcome,
    seed: int,
    progress: Progress | None,
    on: Executor | None,
) -> Outcome:
    """What is known after a few tiles have run with infinities and NaNs as well."""
    regions, workgroups = _sampled(code, _FEW_TILES, seed)
    inputs = specials.placed(problem, fills, regions)
    memory, report = execute(code.record, code.object, inputs, workgroups, progress, on=on)
    checked, mismatches, first = _compare(problem, inputs, code.record, memory, regions)
    return evolve(
        before,
        mismatches=mismatches,
        first=first,
        findings=report.findings,
        coverage=joined((*before.coverage, *report.coverage)),
        specials=Few(specials.count(inputs), checked, report.seconds),
    )


def _verified(
    problem: Problem,
    record: LaunchRecord,
    code_object: bytes | None,
    inputs: Mapping[str, Tensor],
    progress: Progress | None,
    taking: Taking | None,
    save: Callable[[Memory], None] = lambda memory: None,
    scrutiny: Scrutiny = STRICT,
    on: Executor | None = None,
) -> Outcome:
    """Run all workgroups and compare all outputs."""
    _tell(taking, predicted(record))
    memory, report = execute(record, code_object, inputs, progress=progress, scrutiny=scrutiny, on=on)
    save(memory)
    arrays = {name: np.asarray(tensor) for name, tensor in inputs.items()}  # looked at often, so computed once
    found = _compare(problem, arrays, record, memory, _everything(problem))
    return _outcome(report, _with_padding(found, record, memory, problem.outputs), on)


def _tell(taking: Taking | None, size: int) -> None:
    if taking is not None:
        taking(size)


def execute(
    record: LaunchRecord,
    code_object: bytes | None,
    inputs: Mapping[str, Tensor],
    groups: Sequence[Sequence[int]] | None = None,
    progress: Progress | None = None,
    scrutiny: Scrutiny = STRICT,
    on: Executor | None = None,
) -> tuple[Memory, SimReport]:
    """Run the launches of `record` over buffers that hold `inputs` (logical arrays by name), and sentinels elsewhere.

    `groups` holds the linear workgroup ids of each launch (all if None); the device `on`, if given, runs all. Returns
    the memory of every buffer after the last launch, of which those pages are there that were touched. Raises UserError
    where they do not fit in memory.
    """
    _check_size(record, sampled=groups is not None and on is None)
    memory = allocate(record, inputs)
    if not record.launches:
        return memory, _IDLE
    target = targets.get(record.target)
    if code_object is None:
        raise Unsupported(f"running without a code object: no assembler was found ({target.assembler})")
    if on is not None:
        return memory, on.execute(code_object, record.requests(), memory, record.target)
    known = evolve(scrutiny, allow=(*scrutiny.allow, *target.open_defects))
    return memory, target.simulate(code_object, record.requests(groups), memory, progress=progress, scrutiny=known)


def allocate(record: LaunchRecord, inputs: Mapping[str, Tensor]) -> Memory:
    """The memory of every buffer before the first launch: `inputs` where they are given, else sentinels."""
    budget = Budget(footprint.available())
    return {name: _allocate(buffer, inputs.get(name), budget) for name, buffer in record.buffers.items()}


def sample_tiles(grids: Sequence[tuple[int, int]], count: int, seed: int) -> tuple[tuple[int, int], ...]:
    """`count` distinct tiles (part, number), or all if there are fewer: of each part in turn the corners, one of each
    edge, then the rest by seed. At least one of every part, even if `count` is less than that.
    """
    parts = [_sample_part(grid, count, (seed, 2, part)) for part, grid in enumerate(grids)]
    turns = itertools.zip_longest(*([(part, tile) for tile in tiles] for part, tiles in enumerate(parts)))
    sample = [chosen for turn in turns for chosen in turn if chosen is not None]
    return tuple(sample[: max(count, sum(map(bool, parts)))])


def _sample_part(grid: tuple[int, int], count: int, seed: tuple[int, ...]) -> list[int]:
    """`count` distinct tiles of one part, or all if there are fewer."""
    rows, columns = grid
    if not rows * columns:
        return []
    random = np.random.default_rng(seed)
    row, column = int(random.integers(rows)), int(random.integers(columns))
    corners = [(m, n) for m in (0, rows - 1) for n in (0, columns - 1)]
    edges = [(row, 0), (row, columns - 1), (0, column), (rows - 1, column)]
    first = [m * columns + n for m, n in corners + edges]
    rest = random.choice(rows * columns, min(rows * columns, count + len(first)), replace=False)
    return list(dict.fromkeys([*first, *map(int, rest)]))[:count]


def run_record(
    path: Path,
    *,
    data: Path | None = None,
    out: Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    taking: Taking | None = None,
    advice: bool = False,
    scalars: Mapping[str, int] | None = None,
    scrutiny: Scrutiny = STRICT,
    on: Executor | None = None,
) -> Outcome:
    """Execute a launch record and the code object beside it, which may be anybody's: without `advice`, findings for
    which no manual asks do not fail it.

    `data` is a directory of NAME.npy for the buffers that are read; without it the record's problem is filled by
    `seed` and its outputs are checked. `out` receives NAME.npy of each buffer that is written. `scalars` are other
    values of arguments that a host may choose. The device `on`, if given, executes in place of the simulator. Raises
    UserError.
    """
    record = LaunchRecord.read(path)
    record = record.with_scalars(scalars) if scalars else record
    code_object = None if record.object is None else targets.read(path.parent / record.object)
    if not record.launches:
        return _outcome(_IDLE, _NOTHING)

    def save(memory: Memory) -> None:
        if out is not None:
            arrays = {n: unpacked(b.tensor, memory[n]) for n, b in record.buffers.items() if b.is_written}
            npy.save(out, arrays)

    if data is None and record.problem is not None:
        problem = parse_problem(record.problem)
        check_buffers(record, problem, path.name)
        outcome = _verified(
            problem, record, code_object, reference.fills(problem, seed), progress, taking, save, scrutiny, on
        )
        return evolve(outcome, advice=advice)
    if data is None:
        raise UserError(f"given no --data, wanted a directory of arrays: {path.name} carries no problem to fill")
    _tell(taking, predicted(record))
    inputs = npy.inputs(data, record)
    memory, report = execute(record, code_object, inputs, progress=progress, scrutiny=scrutiny, on=on)
    save(memory)
    return evolve(_outcome(report, _NOTHING, on), compared=False, advice=advice)


def check_buffers(record: LaunchRecord, problem: Problem, where: str) -> None:
    """Refuse a record whose buffers cannot hold the tensors of its problem; how they lie is the record's business.

    Raises UserError that names the file, `where`.
    """
    buffers = record.buffers
    for spec in problem.outputs:
        if spec.name not in buffers:
            raise UserError(f"given no buffer {spec.name}, wanted the outputs of {problem}, in {where}")
    for spec in problem.tensors:
        tensor = buffers[spec.name].tensor if spec.name in buffers else spec
        if (tensor.dims, tensor.dtype) != (spec.dims, spec.dtype):
            given, wanted = (f"{each.dtype}{list(each.dims)}" for each in (tensor, spec))
            raise UserError(f"given {spec.name} of {given}, wanted {wanted} of {problem}, in {where}")
        if spec.name in buffers and not buffers[spec.name].tensor.layout.is_apart:
            given = f"{spec.name} of tag {buffers[spec.name].tensor.tag}, in which elements meet"
            raise UserError(f"given {given}, wanted elements apart, in {where}")


def _sampled(code: Code, count: int, seed: int) -> tuple[list[OutputRegion], list[tuple[int, ...]]]:
    """The output regions of sampled tiles, and for each launch the workgroups they need, ascending, each once."""
    tiles = code.tiles
    if tiles is None:
        raise Unsupported("sampling workgroups of code that does not say which output tile needs which")
    sample = sample_tiles(tiles.grids, count, seed)
    by_launch = zip(*(tiles.groups(*tile) for tile in sample), strict=True)
    workgroups = [tuple(sorted({group for ids in launch for group in ids})) for launch in by_launch]
    return [region for tile in sample for region in tiles.regions(*tile)], workgroups


def _check_size(record: LaunchRecord, *, sampled: bool) -> None:
    """Refuse what would take more memory, or more time than anybody has, before anything is done."""
    for launch in record.launches:
        if not sampled and math.prod(launch.grid) > MOST_GROUPS:
            given = f"{math.prod(launch.grid)} workgroups of kernel {launch.kernel}"
            raise UserError(f"given {given}, wanted at most {MOST_GROUPS}, or --run-groups for a sample of them")
    needed, there = predicted(record), footprint.available()
    if not sampled and needed > there:
        given, wanted = footprint.text(needed), footprint.text(there)
        raise UserError(f"given a run that takes {given} of memory, wanted at most {wanted}, or --run-groups")


def predicted(record: LaunchRecord) -> int:
    """Bytes that a run of all workgroups takes: buffers, and beside them stamps of stores or the arrays they hold."""
    return sum(b.tensor.bytes * (1 + (_BESIDE if b.is_written else 1)) for b in record.buffers.values())


def _predicted_sample(problem: Problem, regions: Sequence[OutputRegion]) -> int:
    """The same for workgroups that make some regions, about: outputs, and the inputs summed for rows and columns."""
    depth = reference.depth(problem)
    widest = max(types.scalar(spec.dtype).bytes for spec in problem.tensors)
    elements = sum((r.rows.size + r.columns.size) * depth + r.rows.size * r.columns.size for r in regions)
    return elements * widest * (1 + _BESIDE)


def _allocate(buffer: Buffer, logical: Tensor | None, budget: Budget) -> Pages:
    """The bytes of a buffer: a logical array in its layout, or zeros where it wants them, or the sentinel."""
    layout, size = buffer.tensor.layout, 0
    if logical is not None:
        wanted, elem = reference.numpy_type(buffer.tensor.dtype), types.scalar(buffer.tensor.dtype)
        if logical.shape != buffer.tensor.dims or logical.dtype != wanted:
            given = f"{logical.dtype}{list(logical.shape)}"
            raise UserError(f"given {buffer.name} of {given}, wanted {wanted}{list(buffer.tensor.dims)}")
        size = elem.size(layout.size_elems)
    if logical is not None and not isinstance(logical, Fill):
        memory = np.full(buffer.tensor.bytes, SENTINEL, np.uint8)
        memory[:size] = reference.pack(layout, logical, FOREIGN)
        return Pages.of(memory)

    def make(places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        memory = np.full(places.shape, 0 if buffer.zero else SENTINEL, np.uint8)
        if logical is not None:
            drawn = reference.packed_bytes(layout, logical, places, FOREIGN)
            np.copyto(memory, drawn, where=places < size)
        return memory

    return Pages(buffer.tensor.bytes, make, budget, _BESIDE if buffer.is_written else 0)


def _everything(problem: Problem) -> Iterator[OutputRegion]:
    """Every element of every output."""
    for spec in problem.outputs:
        rows, columns = reference.output_shape(problem, spec.name)
        for start in range(0, rows, _ROWS):
            yield OutputRegion(spec.name, np.arange(start, min(start + _ROWS, rows)), np.arange(columns))


def _compare(
    problem: Problem,
    inputs: Mapping[str, Tensor],
    record: LaunchRecord,
    memory: Memory,
    regions: Iterable[OutputRegion],
) -> _Comparison:
    """Compare the outputs in `regions`: as bits, or where several values are right with these."""
    checked, mismatches, first = 0, 0, list[Mismatch]()
    for region in regions:
        indices = reference.output_index(problem, region.output, region.rows, region.columns)
        tensor = record.buffers[region.output].tensor
        got = _gathered(memory[region.output], tensor, indices)
        with np.errstate(invalid="ignore", over="ignore"):  # infinities may be among the inputs
            right = reference.ranges(problem, inputs, region.output, region.rows, region.columns)
        wrong = _differs(right.least, got) if right.is_one else ~_within(right, got)
        checked += wrong.size
        mismatches += int(np.count_nonzero(wrong))
        for row, column in np.argwhere(wrong)[: _SHOWN - len(first)]:
            index = tuple(int(np.broadcast_to(i, wrong.shape)[row, column]) for i in indices)
            first.append(_mismatch(region.output, index, right.least[row, column], got[row, column]))
    return checked, mismatches, tuple(first)


def _mismatch(output: str, index: tuple[int, ...], expected: Any, there: Any) -> Mismatch:
    unwritten = there.tobytes() == bytes([SENTINEL]) * there.itemsize
    return Mismatch(output, index, float(expected), float(there), unwritten)


def _with_padding(
    found: _Comparison, record: LaunchRecord, memory: Memory, outputs: Sequence[TensorSpec]
) -> _Comparison:
    """The same with what blocks add to the outputs, which is zero."""
    checked, mismatches, first = found
    for spec in outputs:
        tensor = record.buffers[spec.name].tensor
        if tensor.layout.padded_dims == tensor.dims:
            continue
        whole = reference.unpack(tensor.layout.padded, tensor.dtype, memory[spec.name].whole(_layout_bytes(tensor)))
        whole[tuple(map(slice, tensor.dims))] = 0
        wrong = np.argwhere(_bits(whole))
        mismatches += len(wrong)
        for index in wrong[: _SHOWN - len(first)]:
            first = (*first, _mismatch(spec.name, tuple(map(int, index)), 0.0, whole[tuple(index)]))
    return checked, mismatches, first


def _differs(expected: Array, got: Array) -> npt.NDArray[np.bool_]:
    """Where bits differ, but for those of a NaN: which one an operation gives is not said."""
    found: npt.NDArray[np.bool_] = (_bits(expected) != _bits(got)) & ~((expected != expected) & (got != got))
    return found


def _within(right: Range, got: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether values are in a range, or no numbers where that is right."""
    with np.errstate(invalid="ignore"):  # a NaN of few bits is compared
        found: npt.NDArray[np.bool_] = ((right.least <= got) & (got <= right.most)) | ((got != got) & right.nan)
    return found


def _gathered(memory: Pages, tensor: StoredTensor, index: Sequence[reference.Indices]) -> Array:
    """The elements of a tensor at logical indices."""
    size = types.scalar(tensor.dtype).bytes
    memory.touch(np.asarray(tensor.layout.offset(index)) * size, size)
    return reference.gather(tensor.layout, tensor.dtype, memory.data, index)


def _outcome(report: SimReport, comparison: _Comparison, on: Executor | None = None) -> Outcome:
    where = "" if on is None else str(on)
    return Outcome(
        *comparison, report.findings, report.seconds, report.instructions, on=where, coverage=report.coverage
    )


def _bits(values: Array) -> npt.NDArray[np.unsignedinteger]:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def unpacked(tensor: StoredTensor, memory: Pages) -> Array:
    """The logical tensor in a buffer."""
    return reference.unpack(tensor.layout, tensor.dtype, memory.whole(_layout_bytes(tensor)))


def _layout_bytes(tensor: StoredTensor) -> int:
    return types.scalar(tensor.dtype).size(tensor.layout.size_elems)
