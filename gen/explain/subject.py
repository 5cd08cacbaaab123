"""The material of a page or comparison: the results of generating a problem, or what a file contains.

A launch record of convgen names its problem. The kernel is generated again; if the code is equal, instruction by
instruction, all that the generator knows also holds for the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from convgen import driver
from convgen.backends import family as families
from convgen.backends import target as targets
from convgen.backends.analysis import Analysis
from convgen.backends.timing import KernelProfile, TimedLine
from convgen.choose.choose import Candidate, candidates
from convgen.driver import Attempt
from convgen.explain.history import Recorder, StepHistory
from convgen.ir.error import Unsupported, UserError
from convgen.ir.layout.order import IN_ROWS
from convgen.ir.record import evolve, frozen
from convgen.plan.config import BESIDE, Config
from convgen.plan.plan import Plan
from convgen.problem.fused_conv import FusedConv
from convgen.problem.matmul import Problem, parse_problem
from convgen.problem.tensors import check_outputs
from convgen.profile import launch_times as launches
from convgen.profile.launch_times import Times
from convgen.run import prepared
from convgen.run.launch_record import Launch, LaunchRecord
from convgen.run.prepared import Prepared

if TYPE_CHECKING:
    from convgen.run.code import Code
    from convgen.run.verdict import Outcome

_NO_MODEL = "Nothing is timed: for this target there is no model."
_CONFIG = re.compile(r"^// config:\s+(\S.*)$", re.MULTILINE)


@frozen(eq=False, kw_only=True)
class Choice:
    """The choice of a config for a problem, which may be a member of a fused call."""

    problem: Problem
    plan: Plan
    ranking: Sequence[Candidate]  #: best first

    @property
    def unordered(self) -> Config:
        """Return the config without its order of workgroups, as candidates have none."""
        return evolve(self.plan.config, map=IN_ROWS)

    @property
    def together(self) -> int:
        """Return the workgroups of the chosen config that run together on a unit, by the chooser's model."""
        return next((c.together for c in self.ranking if c.config == self.unordered), 1)


@frozen(eq=False, kw_only=True)
class Generated:
    """The generation of a problem's kernels: plans, configs, attempts, and steps."""

    problem: Problem
    code: Code
    members: Sequence[Choice]  #: one, or in a fused call one of each problem
    histories: Mapping[str, StepHistory]  #: by kernel
    attempts: Sequence[Attempt]
    origin: str = ""  #: the line of a registry that the config stands in, if any

    @property
    def longest(self) -> Choice:
        """Return the choice for the problem with most multiply-accumulates."""
        return max(self.members, key=lambda member: member.problem.macs)

    @property
    def config(self) -> str:
        """Return the config's line, as `--config` takes it."""
        return self.code.config


@frozen(eq=False, kw_only=True)
class Subject:
    """The material of a page or of one side of a comparison."""

    name: str  #: the problem, or the file's name
    target: str
    generated: Generated | None = None
    launches: Sequence[Launch] = ()
    text: str | None = None  #: assembly
    content: bytes = b""  #: the analysed code
    file: str = ""  #: name of the file that holds it
    analysis: Analysis | None = None  #: None where nothing was assembled
    times: Times | None = None  #: times of executed launches
    loops: Sequence[KernelProfile] = ()  #: clocks of the loops of kernels that were not executed
    outcome: Outcome | None = None  #: comparison of some tiles with the reference
    remarks: Sequence[str] = ()  #: notes on parts that the page lacks, and why

    def timed(self, kernel: str) -> Sequence[TimedLine]:
        """Return the instructions of a kernel that were timed: of its launch, else of its loop."""
        for time in self.times.launches if self.times else ():
            if time.profile.kernel == kernel:
                return time.profile.units[time.profile.full].lines
        return next((k.loops[-1].lines for k in self.loops if k.name == kernel), ())

    @property
    def by_loops(self) -> Subject:
        """Return the subject with clocks of loops in place of times of launches."""
        return evolve(self, times=None, loops=targets.profile_code(self.content, self.file))


# ---------------------------------------------------------------- a problem


def of_problem(
    problem: Problem,
    target: str,
    config: str | None = None,
    registry: str | None = None,
    disable: tuple[str, ...] = (),
    chip: str | None = None,
    groups: int = 0,
) -> Subject:
    """Generate the kernels of a problem. `groups` tiles are executed and compared with the reference.

    Raises UserError, Unsupported.
    """
    return _with_results(generate(problem, target, config, registry, disable), chip, groups)


def generate(
    problem: Problem, target: str, config: str | None = None, registry: str | None = None, disable: tuple[str, ...] = ()
) -> Generated:
    """Generate the kernels of a problem and record plan, attempts and steps. Raises UserError, Unsupported."""
    check_outputs(problem)
    recorder, attempts = Recorder(), dict[str, Attempt]()

    def tried(attempt: Attempt) -> None:
        attempts[str(attempt.config)] = attempt

    build = driver.build(
        problem, target, config, registry=registry, disable=disable, observe=recorder.observe, tried=tried, debug=True
    )
    code = driver.compile(build)
    histories = {name: recorder.histories[name] for name in code.kernels}
    return Generated(
        problem=problem,
        code=code,
        members=tuple(map(_choice, build.members or (build,))),
        histories=histories,
        attempts=tuple(attempts.values()),
        origin=build.origin,
    )


def _choice(build: driver.Build) -> Choice:
    assert build.problem is not None
    assert build.plan is not None
    ranking = candidates(build.problem, build.target.facts)
    return Choice(problem=build.problem, plan=build.plan, ranking=ranking)


def _with_results(generated: Generated, chip: str | None, groups: int) -> Subject:
    """Return the subject with the results of the models and the simulator."""
    code, target = generated.code, targets.get(generated.code.target)
    subject = Subject(
        name=str(generated.problem),
        target=code.target,
        generated=generated,
        launches=code.record.launches,
        text=code.asm,
    )
    if code.object is None:
        remark = f"No assembler was found ({target.assembler}), so machine code and clocks are missing."
        return evolve(subject, remarks=(remark,))
    if not target.family.reader:
        remark = f"{target.family.vendor}'s {target.family.title} has no reader of code, so its analysis is missing."
        return evolve(subject, remarks=(remark,))
    name = f"{code.name}{target.family.object_suffix}"
    analysis = targets.analyze_code(code.object, name)
    times, loops, remarks = _clocks(prepared.of_launches(code.record, code.object, name), chip)
    subject = evolve(subject, content=code.object, file=name, analysis=analysis)
    subject = evolve(subject, times=times, loops=loops, remarks=remarks)
    if not groups:
        return subject
    from convgen.run import verdict

    return evolve(subject, outcome=verdict.run(code, groups=groups))


def _clocks(given: Prepared, chip: str | None) -> tuple[Times | None, Sequence[KernelProfile], tuple[str, ...]]:
    """Return the times of launches, else the clocks of loops; and remarks that say why launches are not timed."""
    if targets.has_timer(given.content):
        return launches.profile(given, chip), (), ()
    if chip is not None:
        raise UserError(f"given the chip {chip} with {given.name}, wanted none: launches on it have no model")
    family = families.of_object(given.content)
    if family is None or not family.model:
        return None, (), (_NO_MODEL,)
    remark = "Only loops are timed: there is no model of this target's launches."
    return None, targets.profile_code(given.content, given.name), (remark,)


# ---------------------------------------------------------------- a file


def of_record(path: Path, scalars: Mapping[str, int], chip: str | None = None, groups: int = 0) -> Subject:
    """Return the subject of a launch record and its object, with other values of scalars that a host may choose.

    Raises UserError.
    """
    record = LaunchRecord.read(path).with_scalars(scalars)
    if record.object is None or not record.launches:
        missing = "a code object" if record.launches else "launches"
        raise UserError(f"given {path.name} without {missing}, wanted a record that has both")
    file = path.parent / record.object
    content = targets.read(file)
    analysis = targets.analyze_code(content, file.name)
    generated, remarks = _generated_again(record, file, analysis)
    if generated is not None:
        code = evolve(generated.code, record=record)
        subject = _with_results(evolve(generated, code=code), chip, 0 if scalars else groups)
        if scalars:
            chosen = ", ".join(f"{name}={value}" for name, value in scalars.items())
            remarks += (f"Launches and times are those of {chosen}; the mapping shown is the default's.",)
        return evolve(subject, remarks=(*remarks, *subject.remarks))
    times, loops, more = _clocks(prepared.of_launches(record, content, file.name), chip)
    return Subject(
        name=path.name,
        target=analysis.target,
        launches=record.launches,
        text=_text_beside(file),
        content=content,
        file=file.name,
        analysis=analysis,
        times=times,
        loops=loops,
        remarks=(*remarks, *more),
    )


def _generated_again(record: LaunchRecord, file: Path, analysis: Analysis) -> tuple[Generated | None, tuple[str, ...]]:
    """Generate a record's kernels again; return them if they equal the file's code, and remarks on the result."""
    if record.problem is None:
        return None, ("The record names no problem, so the steps that made the kernel are unknown.",)
    problem = parse_problem(record.problem)
    try:
        generated = generate(problem, record.target, _config_of(problem, _text_beside(file)))
    except (UserError, Unsupported) as error:
        return None, (f"This convgen cannot generate the kernel again: {error}.",)
    if generated.code.object is not None:
        again = targets.analyze_code(generated.code.object, file.name)
        if _instructions(again) == _instructions(analysis):
            return generated, (f"Generated again, the code equals that of {file.name}, instruction by instruction.",)
    remark = f"For the record's problem this convgen generates other code than {file.name} has, so no steps are shown."
    return None, (remark,)


def _config_of(problem: Problem, text: str | None) -> str | None:
    """Return the config that the headers of kernels name in assembly, one of each member of a fused call."""
    configs = list(dict.fromkeys(_CONFIG.findall(text or "")))
    if isinstance(problem, FusedConv) and len(configs) == 1:
        configs *= len(problem.members)
    return BESIDE.join(configs) or None


def _instructions(analysis: Analysis) -> list[list[str]]:
    """Return the instructions of each kernel, without offsets: line information shifts those of text."""
    return [[line.text for line in kernel.lines] for kernel in analysis.kernels]


def _text_beside(file: Path) -> str | None:
    """Return the assembly that was written beside an object."""
    family = families.of_suffix(file.suffix)
    beside = file.with_suffix(family.text_suffix) if family and file.suffix == family.object_suffix else None
    return targets.read(beside).decode(errors="replace") if beside and beside.is_file() else None


def of_code(path: Path, launch: Prepared | None, chip: str | None = None) -> Subject:
    """Return the subject of any code object or assembly; with a launch, its times. Raises UserError, Unsupported."""
    content = targets.read(path)
    analysis = targets.analyze_code(content, path.name)
    family = families.of_suffix(path.suffix)
    is_text = family is not None and path.suffix == family.text_suffix
    text = content.decode() if is_text else None
    subject = Subject(
        name=path.name, target=analysis.target, text=text, content=content, file=path.name, analysis=analysis
    )
    if launch is not None:
        return evolve(subject, times=launches.profile(launch, chip))
    if family is None or not family.model:
        return evolve(subject, remarks=(_NO_MODEL,))
    remark = "Only loops are timed: nothing is executed without a launch (--grid, --block)."
    return evolve(subject, loops=targets.profile_code(content, path.name), remarks=(remark,))
