"""Running compiled code on the target's simulator and comparing it, bit for bit, with the reference."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt

from convgen import reference
from convgen.backends import target as targets
from convgen.backends.simulation import Finding, SimReport
from convgen.code import Code, Region
from convgen.ir.error import Unsupported, UserError
from convgen.matmul import Problem, parse_problem
from convgen.record import Buffer, LaunchRecord
from convgen.reference import Array

Memory = dict[str, npt.NDArray[np.uint8]]
Progress = Callable[[int, int], None]

SENTINEL = 0xA5  #: fills what the kernels must write; no small integer wider than a byte looks like it
FOREIGN = 0xFF  #: fills the gaps of strided inputs, which kernels may not use: NaN in every floating type, no small u8

_SHOWN = 8
_ROWS = 4096  #: rows compared at a time


@attrs.frozen
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


@attrs.frozen
class Outcome:
    """What a run showed. `checked` and `mismatches` count elements of outputs; `first` holds the first few wrong.

    `advice` tells whether findings count for which no manual asks (`Finding.source`): they do for our own kernels.
    """

    checked: int
    mismatches: int
    first: tuple[Mismatch, ...]
    findings: tuple[Finding, ...]
    seconds: float
    instructions: Mapping[str, int]
    advice: bool = True

    @property
    def passed(self) -> bool:
        return not self.mismatches and not any(self.advice or finding.source.required for finding in self.findings)

    @property
    def status(self) -> str:
        return "passed" if self.passed else "failed"


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
) -> Outcome:
    """Simulate `code` and compare every output, or those of `groups` sampled tiles, exactly with the reference.

    `arrays` are logical inputs by buffer name; without them inputs are filled by `seed`. Raises Unsupported if there
    is no object to run.
    """
    if code.problem is None:
        raise Unsupported("verification of code that carries no problem")
    if code.problem.is_empty:
        return _outcome(_IDLE, _NOTHING)
    inputs = reference.fill(code.problem, seed) if arrays is None else arrays
    regions, workgroups = _everything(code.problem), None
    if groups is not None:
        regions, workgroups = _sampled(code, groups, seed)
    memory, report = execute(code.record, code.object, inputs, workgroups, progress)
    return _outcome(report, _compare(code.problem, inputs, code.record, memory, regions))


def execute(
    record: LaunchRecord,
    code_object: bytes | None,
    inputs: Mapping[str, Array],
    groups: Sequence[Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> tuple[Memory, SimReport]:
    """Run the launches of `record` over buffers that hold `inputs` (logical arrays by name), and sentinels elsewhere.

    `groups` holds the linear workgroup ids of each launch (all if None). Returns the memory of every buffer after the
    last launch.
    """
    memory = {name: _allocate(buffer, inputs.get(name)) for name, buffer in record.buffers.items()}
    if not record.launches:
        return memory, _IDLE
    target = targets.get(record.target)
    if code_object is None:
        raise Unsupported(f"running without a code object: no assembler was found ({target.assembler})")
    return memory, target.simulate(code_object, record.requests(groups), memory, progress=progress)


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
    advice: bool = False,
) -> Outcome:
    """Execute a launch record and the code object beside it, which may be anybody's: without `advice`, findings for
    which no manual asks do not fail it.

    `data` is a directory of NAME.npy for the buffers that are read; without it the record's problem is filled by
    `seed` and its outputs are checked. `out` receives NAME.npy of each buffer that is written. Raises UserError.
    """
    record = LaunchRecord.from_json(_read(path).decode(errors="replace"), path.name)
    code_object = None if record.object is None else _read(path.parent / record.object)
    if not record.launches:
        return _outcome(_IDLE, _NOTHING)
    problem = parse_problem(record.problem) if record.problem is not None else None
    if data is not None:
        inputs = _load_inputs(data, record)
    elif problem is not None:
        _check_buffers(record, problem, path.name)
        inputs = reference.fill(problem, seed)
    else:
        raise UserError(f"given no --data, wanted a directory of arrays: {path.name} carries no problem to fill")
    memory, report = execute(record, code_object, inputs, progress=progress)
    if out is not None:
        _save(out, record, memory)
    comparison = _NOTHING
    if problem is not None and data is None:
        comparison = _compare(problem, inputs, record, memory, _everything(problem))
    return attrs.evolve(_outcome(report, comparison), advice=advice)


def _check_buffers(record: LaunchRecord, problem: Problem, where: str) -> None:
    """Refuse a record whose buffers cannot hold the tensors of its problem; how they lie is the record's business."""
    buffers = record.buffers
    for spec in problem.outputs:
        if spec.name not in buffers:
            raise UserError(f"given no buffer {spec.name}, wanted the outputs of {problem}, in {where}")
    for spec in problem.tensors:
        tensor = buffers[spec.name].tensor if spec.name in buffers else spec
        if (tensor.dims, tensor.dtype) != (spec.dims, spec.dtype):
            given, wanted = (f"{each.dtype}{list(each.dims)}" for each in (tensor, spec))
            raise UserError(f"given {spec.name} of {given}, wanted {wanted} of {problem}, in {where}")


def _sampled(code: Code, count: int, seed: int) -> tuple[list[Region], list[tuple[int, ...]]]:
    """The output regions of sampled tiles, and for each launch the workgroups they need, ascending, each once."""
    tiles = code.tiles
    if tiles is None:
        raise Unsupported("sampling workgroups of code that does not say which output tile needs which")
    sample = sample_tiles(tiles.grids, count, seed)
    by_launch = zip(*(tiles.groups(*tile) for tile in sample), strict=True)
    workgroups = [tuple(sorted({group for ids in launch for group in ids})) for launch in by_launch]
    return [region for tile in sample for region in tiles.regions(*tile)], workgroups


def _allocate(buffer: Buffer, logical: Array | None) -> npt.NDArray[np.uint8]:
    """The bytes of a buffer: a logical array in its layout, or the sentinel for outputs and workspaces."""
    memory = np.full(buffer.tensor.bytes, SENTINEL, np.uint8)
    if logical is not None:
        wanted = reference.numpy_type(buffer.tensor.dtype)
        if logical.shape != buffer.tensor.dims or logical.dtype != wanted:
            given = f"{logical.dtype}{list(logical.shape)}"
            raise UserError(f"given {buffer.name} of {given}, wanted {wanted}{list(buffer.tensor.dims)}")
        packed = reference.pack(buffer.tensor.layout, logical, FOREIGN)
        memory[: packed.size] = packed
    return memory


def _everything(problem: Problem) -> list[Region]:
    """Every element of every output."""
    regions = []
    for spec in problem.outputs:
        rows, columns = reference.output_shape(problem, spec.name)
        for start in range(0, rows, _ROWS):
            regions.append(Region(spec.name, np.arange(start, min(start + _ROWS, rows)), np.arange(columns)))
    return regions


def _compare(
    problem: Problem, inputs: Mapping[str, Array], record: LaunchRecord, memory: Memory, regions: Sequence[Region]
) -> _Comparison:
    """Compare the outputs in `regions` as bits."""
    checked, mismatches, first = 0, 0, list[Mismatch]()
    for region in regions:
        indices = reference.output_index(problem, region.output, region.rows, region.columns)
        tensor = record.buffers[region.output].tensor
        got = reference.gather(tensor.layout, tensor.dtype, memory[region.output], indices)
        expected = reference.outputs(problem, inputs, region.output, region.rows, region.columns)
        wrong = _bits(expected) != _bits(got)
        checked += wrong.size
        mismatches += int(np.count_nonzero(wrong))
        for row, column in np.argwhere(wrong)[: _SHOWN - len(first)]:
            index = tuple(int(np.broadcast_to(i, wrong.shape)[row, column]) for i in indices)
            there = got[row, column]
            unwritten = there.tobytes() == bytes([SENTINEL]) * there.itemsize
            first.append(Mismatch(region.output, index, float(expected[row, column]), float(there), unwritten))
    return checked, mismatches, tuple(first)


def _outcome(report: SimReport, comparison: _Comparison) -> Outcome:
    return Outcome(*comparison, report.findings, report.seconds, report.instructions)


def _bits(values: Array) -> npt.NDArray[np.unsignedinteger]:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _load_inputs(data: Path, record: LaunchRecord) -> dict[str, Array]:
    """An array for each buffer that is only read, and for those also written that have a file."""
    arrays = {}
    for name, buffer in record.buffers.items():
        path = data / f"{name}.npy"
        if not buffer.is_written or (buffer.is_read and path.exists()):
            arrays[name] = _load(path, buffer)
    return arrays


def _load(path: Path, buffer: Buffer) -> Array:
    """A logical array from `.npy`; types that numpy has not are raw bits of the same size."""
    try:
        array: Array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"given {path} that is not an .npy file: {error}") from None
    wanted = reference.numpy_type(buffer.tensor.dtype)
    if not isinstance(array, np.ndarray):
        raise UserError(f"given {path} that holds several arrays, wanted one")
    return array.view(wanted) if array.dtype == _stored(wanted) else array


def _save(directory: Path, record: LaunchRecord, memory: Memory) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, buffer in record.buffers.items():
            if buffer.is_written:
                array = reference.unpack(buffer.tensor.layout, buffer.tensor.dtype, memory[name])
                np.save(directory / f"{name}.npy", array.view(_stored(array.dtype)))
    except OSError as error:
        raise UserError(f"cannot write {directory}: {error.strerror}") from None


def _stored(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """How `.npy` keeps a type: as itself, or as raw bits if it is none of numpy's own."""
    return dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")
