"""Run compiled code on the target's simulator and compare its outputs bit for bit with the reference."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from convgen.backends.simulation import STRICT, Coverage, Finding, Scrutiny, SimReport, joined
from convgen.ir.error import Unsupported, UserError, VerifyError
from convgen.ir.record import evolve, frozen
from convgen.problem.matmul import Problem, parse_problem
from convgen.run import npy, reference, specials
from convgen.run import reference_request as request
from convgen.run.code import Code, OutputRegion
from convgen.run.comparison import Comparison, Mismatch, compare, compare_unnamed, whole_outputs
from convgen.run.execution import (
    IDLE,
    Executor,
    Memory,
    Progress,
    ReportBytes,
    execute,
    predicted,
    predicted_sample,
    unpacked,
)
from convgen.run.fills import Fill
from convgen.run.launch_record import Buffer, KernelArgument, LaunchRecord, StoredTensor
from convgen.run.reference import Array, Tensor
from convgen.run.reference_request import RequestedTensor

#: Tiles sampled for the run with infinities and NaNs, if kernels compute no more parts of outputs. They are simulated
#: together; recomputing the sums of some takes up to seven times as long as a tile.
_FEW_TILES = 2
_CORNERS = 4  #: tiles sampled of each part if blocks of the output have padding: at its last rows and columns


_Sample = tuple[list[OutputRegion], list[tuple[int, ...]]]  #: regions of tiles, and their workgroups by launch


@frozen
class SpecialRun:
    """The run with infinities and NaNs: special input elements, compared outputs, seconds."""

    values: int
    checked: int
    seconds: float


@frozen
class Outcome:
    """The result of a run. `checked` counts elements of outputs; `first` holds the first few of the wrong ones.

    `checked`, `seconds` and `instructions` are those of the run on ordinary data; `mismatches` and `findings` include
    a second run with infinities and NaNs (`specials`), if there was one. `coverage` is that of the kernels over all
    runs on a simulator. `compared` tells whether there was a reference. `advice` tells whether findings without a
    manual's rule count (`Finding.source`): they do for convgen's own kernels. `on` names the device; "" is a simulator.
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
    specials: SpecialRun | None = None

    @property
    def passed(self) -> bool:
        return not self.mismatches and not any(self.advice or finding.source.required for finding in self.findings)

    @property
    def compared_outputs(self) -> int:
        """Return the number of output elements that were compared in all runs."""
        return self.checked + (0 if self.specials is None else self.specials.checked)

    @property
    def status(self) -> str:
        return "failed" if not self.passed else "passed" if self.compared else "executed"


@frozen
class _Setup:
    """A record to execute with the problem that it solves; the device `on`, if given, replaces the simulator."""

    problem: Problem
    record: LaunchRecord
    code_object: bytes | None
    progress: Progress | None
    report_bytes: ReportBytes
    scrutiny: Scrutiny = STRICT
    on: Executor | None = None

    def run_all(self, inputs: Mapping[str, Tensor], save: Callable[[Memory], None] = lambda memory: None) -> Outcome:
        """Run all workgroups and compare all outputs; `save` is called with the memory after the run."""
        self.report_bytes(predicted(self.record))
        memory, report = self._execute(inputs)
        save(memory)
        arrays = {name: np.asarray(tensor) for name, tensor in inputs.items()}  # looked at often, so computed once
        comparison = compare(self.problem, arrays, self.record, memory, whole_outputs(self.problem))
        for spec in request.outputs(self.problem):
            comparison += compare_unnamed(self.problem, arrays, self.record, memory, spec.name)
        return outcome_of(report, comparison, self.on)

    def run_tiles(self, inputs: Mapping[str, Tensor], sample: _Sample) -> tuple[SimReport, Comparison]:
        """Run the workgroups of sampled tiles and compare these tiles."""
        regions, workgroups = sample
        memory, report = self._execute(inputs, workgroups)
        return report, compare(self.problem, inputs, self.record, memory, regions)

    def _execute(
        self, inputs: Mapping[str, Tensor], workgroups: Sequence[Sequence[int]] | None = None
    ) -> tuple[Memory, SimReport]:
        return execute(self.record, self.code_object, inputs, workgroups, self.progress, self.scrutiny, self.on)


def run(
    code: Code,
    *,
    groups: int | None = None,
    seed: int = 0,
    arrays: Mapping[str, Array] | None = None,
    progress: Progress | None = None,
    report_bytes: ReportBytes = lambda size: None,
    on: Executor | None = None,
) -> Outcome:
    """Simulate `code` and compare every output, or those of `groups` sampled tiles, exactly with the reference.

    `arrays` are logical inputs by buffer name; without them inputs are filled by `seed`, and where windows meet
    padding, or blocks of the output have padding, a few tiles run again with infinities and NaNs. The device `on`, if
    given, runs all workgroups. Raises Unsupported if there is no object to run, UserError if there is not memory
    enough.
    """
    problem = code.problem
    if problem is None:
        raise Unsupported("verification of code that carries no problem")
    if problem.is_empty:
        return outcome_of(IDLE, Comparison())
    record = with_requested_layouts(code.record, problem)
    setup = _Setup(problem, record, code.object, progress, report_bytes, on=on)
    fills = reference.fills(problem, seed) if arrays is None else {}
    inputs: Mapping[str, Tensor] = fills if arrays is None else arrays
    if groups is None:
        outcome = setup.run_all(inputs)
    else:
        sample = _sampled(code, groups, seed)
        whole = predicted(record)
        report_bytes(whole if on else min(whole, predicted_sample(problem, sample[0])))
        outcome = outcome_of(*setup.run_tiles(inputs, sample), on)
    if arrays is not None or not outcome.passed or code.tiles is None or not _specials_may_show_faults(code, problem):
        return outcome
    few = _CORNERS * len(code.tiles.grids) if specials.pads_blocks(problem) else _FEW_TILES
    return _with_specials(setup, fills, _sampled(code, few, seed), outcome)


def _specials_may_show_faults(code: Code, problem: Problem) -> bool:
    """Return whether infinities and NaNs beside padding or in other groups may show a fault of the code."""
    if specials.has_groups(problem):
        return True
    return code.keeps_padding_out if specials.pads(problem) else specials.pads_blocks(problem)


def _with_specials(setup: _Setup, fills: Mapping[str, Fill], sample: _Sample, before: Outcome) -> Outcome:
    """Run sampled tiles again with infinities and NaNs among the inputs; return the outcome of both runs."""
    inputs = specials.placed(setup.problem, fills, sample[0])
    report, comparison = setup.run_tiles(inputs, sample)
    return evolve(
        before,
        mismatches=comparison.mismatches,
        first=comparison.first,
        findings=report.findings,
        coverage=joined((*before.coverage, *report.coverage)),
        specials=SpecialRun(specials.count(inputs), comparison.checked, report.seconds),
    )


def with_requested_layouts(record: LaunchRecord, problem: Problem) -> LaunchRecord:
    """Return the record with each tensor's layout as the problem's text states it.

    A kernel that reads or writes elements at other places than the request states then gives a wrong result. Raises
    VerifyError if the record states another size, type or layout than the problem.
    """
    requested = request.tensors(problem)

    def with_tag(arg: KernelArgument) -> KernelArgument:
        if not isinstance(arg, Buffer) or arg.name not in requested:
            return arg
        wanted = requested[arg.name]
        if (arg.tensor.dims, arg.tensor.dtype) != (wanted.dims, wanted.dtype):
            given, asks = (f"{each.dtype}{list(each.dims)}" for each in (arg.tensor, wanted))
            raise VerifyError(f"kernels take {arg.name} of {given}, and {problem} asks for {asks}")
        if not _same_placement(arg.tensor, wanted):
            raise VerifyError(f"the record has {arg.name} as {arg.tensor.tag}, and {problem} asks for {wanted.tag}")
        return evolve(arg, tensor=evolve(arg.tensor, tag=wanted.tag))

    launches = (evolve(launch, args=tuple(map(with_tag, launch.args))) for launch in record.launches)
    return evolve(record, launches=tuple(launches))


def _same_placement(tensor: StoredTensor, wanted: RequestedTensor) -> bool:
    """Return whether two layout texts place every element alike."""
    return reference.storage(tensor).steps == reference.storage(wanted).steps


def sample_tiles(grids: Sequence[tuple[int, int]], count: int, seed: int) -> tuple[tuple[int, int], ...]:
    """Return `count` distinct tiles (part, number), or all if there are fewer: of each part in turn the corners, one
    of each edge, then the rest by seed; at least one of every part, even if `count` is less.
    """
    parts = [_sample_part(grid, count, (seed, 2, part)) for part, grid in enumerate(grids)]
    turns = itertools.zip_longest(*([(part, tile) for tile in tiles] for part, tiles in enumerate(parts)))
    sample = [chosen for turn in turns for chosen in turn if chosen is not None]
    return tuple(sample[: max(count, sum(map(bool, parts)))])


def _sample_part(grid: tuple[int, int], count: int, seed: tuple[int, ...]) -> list[int]:
    """Return `count` distinct tiles of one part, or all if there are fewer."""
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
    report_bytes: ReportBytes = lambda size: None,
    advice: bool = False,
    scalars: Mapping[str, int] | None = None,
    scrutiny: Scrutiny = STRICT,
    on: Executor | None = None,
) -> Outcome:
    """Execute a launch record and the code object beside it.

    Without `advice`, findings on rules that no manual states do not fail the run, as for code of other compilers.

    `data` is a directory of NAME.npy for the buffers that are read; without it the record's problem is filled by
    `seed` and its outputs are checked. `out` receives NAME.npy of each buffer that is written. `scalars` are other
    values of arguments that a host may choose. The device `on`, if given, executes in place of the simulator. Raises
    UserError.
    """
    record = LaunchRecord.read(path).with_scalars(scalars or {})
    code_object = record.read_object(path)
    if not record.launches:
        return outcome_of(IDLE, Comparison())

    def save(memory: Memory) -> None:
        if out is not None:
            written = {n: b.tensor for n, b in record.buffers.items() if b.is_written}
            npy.save({out / f"{name}.npy": unpacked(tensor, memory[name]) for name, tensor in written.items()})

    if data is not None:
        report_bytes(predicted(record))
        inputs = npy.inputs(data, record)
        memory, report = execute(record, code_object, inputs, progress=progress, scrutiny=scrutiny, on=on)
        save(memory)
        return evolve(outcome_of(report, Comparison(), on), compared=False, advice=advice)
    if record.problem is None:
        raise UserError(f"given no --data, wanted a directory of arrays: {path.name} carries no problem to fill")
    problem = parse_problem(record.problem)
    check_buffers(record, problem, path.name)
    setup = _Setup(problem, record, code_object, progress, report_bytes, scrutiny, on)
    return evolve(setup.run_all(reference.fills(problem, seed), save), advice=advice)


def check_buffers(record: LaunchRecord, problem: Problem, where: str) -> None:
    """Refuse a record whose buffers cannot hold the tensors of its problem; their layouts are the record's.

    Raises UserError that names the file, `where`.
    """
    buffers = record.buffers
    for spec in request.outputs(problem):
        if spec.name not in buffers:
            raise UserError(f"given no buffer {spec.name}, wanted the outputs of {problem}, in {where}")
    for spec in request.tensors(problem).values():
        tensor = buffers[spec.name].tensor if spec.name in buffers else spec
        if (tensor.dims, tensor.dtype) != (spec.dims, spec.dtype):
            given, wanted = (f"{each.dtype}{list(each.dims)}" for each in (tensor, spec))
            raise UserError(f"given {spec.name} of {given}, wanted {wanted} of {problem}, in {where}")
        if spec.name in buffers and not buffers[spec.name].tensor.layout.is_apart:
            given = f"{spec.name} of tag {buffers[spec.name].tensor.tag}, which places several elements at one address"
            raise UserError(f"given {given}, wanted a place for each element, in {where}")


def _sampled(code: Code, count: int, seed: int) -> _Sample:
    """Return the output regions of sampled tiles, and for each launch the ascending workgroups that they need."""
    tiles = code.tiles
    if tiles is None:
        raise Unsupported("sampling workgroups of code that does not say which output tile needs which")
    sample = sample_tiles(tiles.grids, count, seed)
    by_launch = zip(*(tiles.groups(*tile) for tile in sample), strict=True)
    workgroups = [tuple(sorted({group for ids in launch for group in ids})) for launch in by_launch]
    return [region for tile in sample for region in tiles.regions(*tile)], workgroups


def outcome_of(report: SimReport, comparison: Comparison, on: Executor | None = None) -> Outcome:
    """Return the outcome of one run."""
    return Outcome(
        comparison.checked,
        comparison.mismatches,
        comparison.first,
        report.findings,
        report.seconds,
        report.instructions,
        on="" if on is None else str(on),
        coverage=report.coverage,
    )
