"""From problem to code: build a program and compile it; this module has the loop over configs.

`build` takes the first config whose plan fits; if register allocation fails, `compile` takes the next one.
`choose.search` bounds the search. A search that takes too long refuses the problem; time never changes the config.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf
from os import PathLike
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from convgen.backends import target as targets
from convgen.backends.stages import Emitted, MachineKernel
from convgen.backends.target import Target
from convgen.choose.choose import Candidate, candidates
from convgen.choose.search import Search
from convgen.choose.supported import check_supported
from convgen.choose.workgroup_orders import ordered
from convgen.compile_steps import Observer, Step, check_names, steps
from convgen.default_target import DEFAULT_TARGET
from convgen.ir.build import KernelBuilder
from convgen.ir.error import DoesNotFit, Unsupported, UserError, visible
from convgen.ir.expr import restart_ids
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.memory import Global
from convgen.ir.mutate import greatest_id
from convgen.ir.node import compiling
from convgen.ir.program import Kernel, Program
from convgen.ir.record import define, evolve, frozen
from convgen.ir.verify import sound
from convgen.kernels import fused_launches
from convgen.kernels.launches import Tiles
from convgen.kernels.launches import build as build_launches
from convgen.passes import pipeline
from convgen.plan.config import BESIDE, Config
from convgen.plan.plan import Plan, make_plan
from convgen.problem.conv import Conv
from convgen.problem.fused_conv import FusedConv, Member
from convgen.problem.matmul import Matmul, Problem
from convgen.registry import find
from convgen.run.abi import Scalars, launch_record, tensors_of
from convgen.run.code import Code, KernelCost
from convgen.run.launch_record import Launch, LaunchRecord, StoredTensor

if TYPE_CHECKING:  # what few commands need
    from convgen.tile.tile_kernel import TileProgram


Made = TypeVar("Made")

_PATIENCE = 600  #: seconds; a longer search for a config refuses the problem


_warned: dict[Any, Any] = {}  #: registry of `warnings`: products that users were warned of


class SlowProduct(UserWarning):
    """A product of a tile kernel that no matrix instruction of the target makes."""


@frozen
class Attempt:
    """A config that was tried. `registers` is the plan's estimate, `actual` the allocated registers by class."""

    config: Config
    score: float | None  #: clocks by the chooser's model; None for a user's config
    registers: int | None = None
    shared_bytes: int | None = None
    refused: str | None = None
    actual: Mapping[str, int] | None = None


@frozen
class Options:
    """Disabled steps and observers: `observe` is called with each step, `tried` with each config, again once compiled.

    With `debug`, code carries line information into its IR.
    """

    disable: tuple[str, ...] = ()
    observe: Observer | None = None
    tried: Callable[[Attempt], None] | None = None
    debug: bool = False


@define
class Build:
    """Kernels on their way to a target. The build of a problem has its plan, and the configs to fall back on.

    `passed` names the last pass that dumped kernels have been through. `trail` lists the earlier states of the current
    kernel, each with the pass that made it. `origin` is the registry's line with the config, if there is one.
    """

    target: Target
    ir: Program
    options: Options
    stages: dict[str, float]
    problem: Problem | None = None
    plan: Plan | None = None
    attempt: Attempt | None = None
    scalars: Scalars = attrs.Factory(dict)
    passed: Mapping[str, str] = attrs.Factory(dict)
    trail: list[tuple[Kernel, str | None]] = attrs.Factory(list)
    tiles: Tiles | None = None
    fallbacks: Iterator[Kernel] = attrs.Factory(lambda: iter(()))  #: further kernels of a tile program
    origin: str = ""
    notes: tuple[str, ...] | None = None  #: remarks on a tile program; None of other kernels
    tensors: Mapping[str, StoredTensor] = attrs.Factory(dict)  #: of buffers by name, as far as they are known
    member: Member | None = None  #: the place of the problem in a fused call, if it is one of its members
    members: tuple[Build, ...] = ()  #: builds of the members of a fused call, in launch order
    _search: Search | None = attrs.field(default=None, alias="search")
    _candidate: Candidate | None = attrs.field(default=None, alias="candidate")  #: of the search
    _begun: float = attrs.field(default=0.0, alias="begun")  #: seconds, by `perf_counter`

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.ir.kernels))

    @property
    def config(self) -> str:
        """The config's line, of a fused call the lines of its members; empty for kernels that come from no problem."""
        if self.members:
            return BESIDE.join(member.config for member in self.members)
        return "" if self.plan is None else str(self.plan.config)

    @property
    def is_final(self) -> bool:
        """Return whether no other config can replace this one: it was given, or the search is at its end."""
        if self._search is None or self._candidate is None:
            return True
        return self._candidate.score == inf or self._search.at_any_cost

    @property
    def is_chosen(self) -> bool:
        """Return whether the search, not the user, took the config."""
        return self._search is not None

    def next_config(self, why: DoesNotFit) -> bool:
        """Replace the plan, or the kernel, by the next one that may fit; False if none is left.

        Raises Unsupported when the search has taken too long.
        """
        if self.problem is None or self.attempt is None:
            fallback = next(self.fallbacks, None)
            self.ir = self.ir if fallback is None else _program_of(fallback)
            return fallback is not None
        _report(self.options, evolve(self.attempt, refused=f"in the back end: {why}"))
        if self._search is None or self._candidate is None or self.plan is None:
            return False
        if perf_counter() - self._begun > _PATIENCE:
            given = f"given {self.problem} for {self.target.facts.name}, for which no config was found in {_PATIENCE} s"
            raise Unsupported(f"{given}; --config names one", rule="search")
        self._search.learn(self._candidate, self.plan, why)
        return self._take_next(self._search)

    def last_config(self, why: Unsupported) -> bool:
        """Replace the plan by the last resort's, whose kernels need least of a target; False if it was that already."""
        if self._search is None or self._candidate is None or self._candidate.score == inf or self.attempt is None:
            return False
        _report(self.options, evolve(self.attempt, refused=f"in the back end: {why}"))
        self._search.end()
        return self._take_next(self._search)

    def _take_next(self, search: Search) -> bool:
        if (chosen := _next_plan(search, self.options)) is None:
            return False
        self._candidate, self.plan, self.attempt = chosen
        self.ir, self.tiles = _launches(self.plan, self.member)
        return True


def _launches(plan: Plan, member: Member | None) -> tuple[Program, Tiles]:
    """Return the program of a plan and its output tiles, with the names of the fused call that it is a member of."""
    program, tiles = build_launches(plan)
    return (program, tiles) if member is None else fused_launches.named(program, tiles, member)


def facts(target: str) -> TargetFacts:
    """Return a target's facts: lanes of a subgroup, matrix instructions, local memory. Raises UserError."""
    expect("target", target, str)
    return targets.get(target).facts


def build(
    problem: Problem,
    target: str = DEFAULT_TARGET,
    config: str | Config | None = None,
    *,
    registry: str | PathLike[str] | None = None,
    disable: tuple[str, ...] = (),
    observe: Observer | None = None,
    tried: Callable[[Attempt], None] | None = None,
    debug: bool = False,
) -> Build:
    """Build the program of a problem under a config.

    The config is `config` (a line), else the registry's (the file `registry`, else that of CONVGEN_REGISTRY), else the
    best one that fits. `disable` names optimising steps to skip, `observe` is called after each step, `tried` with each
    config; with `debug` the code gets line information into its IR.

    A problem without outputs, of a size of 0, has no kernels: its code launches nothing.

    Raises UserError for wrong options or a given config that does not fit, Unsupported for the problem.
    """
    options = Options(disable, observe, tried, debug)
    expect("target", target, str)
    chosen = targets.get(target)
    _check_config(config)
    _check_disabled(disable, target)
    expect("problem", problem, Conv, Matmul)
    check_supported(problem, chosen.facts)
    if problem.is_empty:
        return Build(chosen, Program((), ()), options, {}, problem)
    entry = find(problem, target, registry) if config is None else None
    origin, config = ("", config) if entry is None else (entry.where, entry.config)
    if isinstance(problem, FusedConv):
        return _build_fused(problem, chosen, config, options, origin)
    return _build_one(problem, chosen, config, options, origin)


def _build_fused(
    problem: FusedConv, target: Target, config: str | Config | None, options: Options, origin: str
) -> Build:
    """Build the members of a fused call, each with a config of its own: one of those that BESIDE separates in a line.

    An empty config is chosen.
    """
    configs = ["" for _ in problem.members] if config is None else str(config).split(BESIDE)
    if len(configs) != len(problem.members):
        given = f"given {len(configs)} config for {len(problem.members)} convolutions"
        raise UserError(f"{given}{_from(origin)}, wanted one of each, separated by {BESIDE!r}")
    members = tuple(
        _build_one(member.problem, target, own or None, options, origin, member)
        for member, own in zip(problem.members, configs, strict=True)
    )
    build = Build(target, Program((), ()), options, {}, problem, origin=origin, members=members)
    _join(build)
    return build


def _join(build: Build) -> None:
    """Set the program, the output tiles and the seconds of a fused call from those of its members."""
    assert build.problem is not None
    names = dict.fromkeys(name for member in build.members for name in member.stages)
    build.stages = {name: sum(member.stages.get(name, 0.0) for member in build.members) for name in names}
    build.ir = fused_launches.joined_program([member.ir for member in build.members])
    tiles = [member.tiles for member in build.members if member.tiles is not None]
    build.tiles = fused_launches.joined_tiles(build.problem, tiles)


def _build_one(
    problem: Problem,
    chosen: Target,
    config: str | Config | None,
    options: Options,
    origin: str,
    member: Member | None = None,
) -> Build:
    """Build the program of one problem, perhaps a member of a fused call. Raises as `build` does."""
    start = perf_counter()
    with compiling():
        search, candidate = None, None
        if config is not None:
            plan, attempt = _given_plan(problem, chosen, config, options, origin)
        else:
            search = _search(problem, chosen, options)
            if (first := _next_plan(search, options)) is None:
                raise search.none_fits()
            candidate, plan, attempt = first
        planned = perf_counter()
        program, tiles = _launches(plan, member)
    stages = {"plan": planned - start, "build": perf_counter() - planned}
    return Build(
        chosen, program, options, stages, problem, plan, attempt, tensors=tensors_of(problem),
        tiles=tiles, member=member, origin=origin, search=search, candidate=candidate, begun=start,
    )  # fmt: skip


def _check_disabled(names: tuple[str, ...], target: str) -> None:
    """Raise UserError unless `names` are optimising steps of the target."""
    if isinstance(names, str):
        raise UserError(f"given disable={names!r}, wanted a tuple of names")
    check_names(names, steps(target), optional=True)


def _check_config(config: object) -> None:
    """Raise UserError unless a config is a line or a `Config`, or none is given."""
    if config is not None and not isinstance(config, str | Config):
        given = f"given config of type {type(config).__name__}"
        raise UserError(f"{given}, wanted a line such as 'tile=128x128x32 waves=2x2 mma=32x32x8', see docs/config.md")


def wrap(
    kernel: Kernel | KernelBuilder | TileProgram,
    target: str = DEFAULT_TARGET,
    scalars: Scalars | None = None,
    options: Options | None = None,
) -> Build:
    """Build the program of one hand-written kernel; `scalars` has the values of its scalar arguments.

    Raises UserError for a kernel that breaks a rule of the IR.
    """
    from convgen.tile.tile_kernel import TileProgram

    if not isinstance(kernel, TileProgram):
        first = sound(kernel.done() if isinstance(kernel, KernelBuilder) else kernel)
        return Build(targets.get(target), _program_of(first), options or Options(), {}, scalars=scalars or {})
    chosen = targets.get(target)
    notes, fallbacks = _remarked(kernel, chosen.facts), kernel.kernels(chosen.facts)
    tensors = {tensor.name: StoredTensor.of(tensor.layout, tensor.dtype) for tensor in kernel.tensors}
    return Build(
        chosen, _program_of(next(fallbacks)), options or Options(), {},
        scalars=scalars or {}, fallbacks=fallbacks, notes=notes, tensors=tensors,
    )  # fmt: skip


def _remarked(program: TileProgram, facts: TargetFacts) -> tuple[str, ...]:
    """Return remarks on a program for a target, and warn the user at the source lines that they concern."""
    notes = []
    for product, at in program.by_lanes(facts):
        note = f"{product}: no matrix instruction of {facts.name} fits, so lanes multiply and add"
        notes.append(f"{note}, at {at}" if at else note)
        if at:
            advice = f'{note}; mma="fma" asks for that'
            warnings.warn_explicit(advice, SlowProduct, at.file, at.number, at.module, _warned)
    return tuple(notes)


def _program_of(kernel: Kernel) -> Program:
    return Program((kernel,), tuple(p for p in kernel.params if isinstance(p, Global)))


def with_tiles(code: Code) -> Code:
    """Return cached code with its output tiles, recomputed from its config."""
    assert code.problem is not None
    return evolve(code, tiles=build(code.problem, code.target, code.config).tiles)


def _given_plan(
    problem: Problem, target: Target, config: str | Config, options: Options, origin: str
) -> tuple[Plan, Attempt]:
    """Return the plan of a config that the user or the registry gives. Raises UserError where it does not fit."""
    given = Config.parse(config) if isinstance(config, str) else config
    try:
        plan = make_plan(problem, given, target.facts)
    except DoesNotFit as error:
        raise UserError(f"given the config {given}{_from(origin)}, wanted one that fits: {error}") from error
    return plan, _report_plan(options, plan, None)


def _from(origin: str) -> str:
    return f" of {origin}" if origin else ""


def _search(problem: Problem, target: Target, options: Options) -> Search:
    """Return a search through the candidates that reports refused ones."""

    def refused(candidate: Candidate, error: DoesNotFit) -> None:
        _report(options, Attempt(candidate.config, candidate.score, refused=str(error)))

    return Search(problem, candidates(problem, target.facts), target.facts, refused)


def _next_plan(search: Search, options: Options) -> tuple[Candidate, Plan, Attempt] | None:
    """Return the next candidate whose plan fits, the plan in its best order, and the reported attempt."""
    if (fitting := search.next()) is None:
        return None
    candidate, plan = fitting
    plan = ordered(plan, candidate.together)
    return candidate, plan, _report_plan(options, plan, candidate.score)


def _report_plan(options: Options, plan: Plan, score: float | None) -> Attempt:
    """Report the attempt to compile a plan, and return it."""
    attempt = Attempt(plan.config, score, plan.registers, plan.shared_bytes)
    _report(options, attempt)
    return attempt


def _report(options: Options, attempt: Attempt) -> None:
    if options.tried is not None:
        options.tried(attempt)


def compile(
    program: Build | Kernel | KernelBuilder | TileProgram, target: str | None = None, scalars: Scalars | None = None
) -> Code:
    """Lower, select, allocate, print and assemble; fall back to the next config if registers do not suffice.

    A hand-written kernel is compiled for `target`, else for the default one; `scalars` has the values of its scalar
    arguments.

    Raises UserError for another target than a `Build` was built for.
    """
    wanted = "one that fits"
    if isinstance(program, Build) and target not in (None, program.target.facts.name):
        asked = targets.get(str(target)).facts.name
        built = program.target.facts.name
        raise UserError(f"given target={asked} for a program built for {built}, wanted target={built} or none")
    if not isinstance(program, Build):
        from convgen.tile.tile_kernel import TileProgram

        expect("program", program, Build, Kernel, KernelBuilder, TileProgram)
        to = target or DEFAULT_TARGET
        if isinstance(program, TileProgram):
            largest = program.largest(targets.get(to).facts)
            wanted = f"one whose blocks fit the registers: smaller blocks, or more subgroups; {largest}"
        program = wrap(program, to, scalars)
    if not program.members:
        return _fitting(program, wanted, _compile)
    emitted = [kernel for member in program.members for kernel in _fitting(member, wanted, _emitted)]
    _join(program)
    return _code_of(program, emitted)


def _fitting(program: Build, wanted: str, make: Callable[[Build], Made]) -> Made:
    """Return what is made of the first config whose registers suffice.

    Raises UserError, which says that `wanted` was wanted, or Unsupported, if there is none.
    """
    while True:
        try:
            return make(program)
        except Unsupported as error:
            if not program.last_config(error):
                raise
        except DoesNotFit as error:
            if program.next_config(error):
                continue
            if program.is_chosen:
                given = f"given {program.problem}, wanted a problem for which a config fits {program.target.facts.name}"
                raise Unsupported(f"{given}: not even {program.config} does: {error}", rule="search") from error
            given = f"config {program.config}" if program.plan else f"kernel {program.ir.kernels[0].name}"
            given += _from(program.origin)
            notes = (str(error),) if program.notes is None else program.notes
            raise UserError(f"given {given}, wanted {': '.join((wanted, *notes))}") from error


def _compile(program: Build) -> Code:
    """Return the code of the current kernels. Raises DoesNotFit, Unsupported."""
    return _code_of(program, _emitted(program))


def _emitted(program: Build) -> list[Emitted]:
    """Return the current kernels emitted. Raises DoesNotFit, Unsupported."""
    if not program.ir.kernels:
        return []
    restart_ids(greatest_id(*program.ir.kernels))
    with compiling():
        return [_emit(program, number, program.stages) for number in range(len(program.ir.kernels))]


def _code_of(program: Build, emitted: list[Emitted]) -> Code:
    """Return the code of the current kernels, which were emitted."""
    stages = dict(program.stages)
    target = program.target
    if not program.ir.kernels:
        line = None if program.problem is None else str(program.problem)
        nothing = LaunchRecord(target.facts.name, None, (), line)
        return Code(program.problem, target.facts.name, "", "", None, nothing, {}, stages)
    text = target.module(emitted)
    record = _record(program, emitted)
    start = perf_counter()
    code_object, machine = target.assemble(text), target.machine_code(text)
    stages["assemble"] = perf_counter() - start
    compiled = {} if machine is None else machine.registers
    costs = {e.name: KernelCost(compiled.get(e.name, e.registers), e.shared_bytes) for e in emitted}
    if program.attempt is not None:
        _report(program.options, evolve(program.attempt, actual=_most_registers(costs.values())))
    return Code(
        program.problem,
        target.facts.name,
        program.config,
        text,
        code_object,
        record,
        kernels=costs,
        stages=stages,
        tiles=program.tiles,
        listings={f"{e.name}.ir": e.listing for e in emitted if e.listing is not None},
        remarks=program.notes or (),
        machine=None if machine is None else machine.content,
    )


def _record(program: Build, emitted: Sequence[Emitted]) -> LaunchRecord:
    """Return the launch record of emitted kernels; buffers of a fused call have their names in the call."""
    target, problem = program.target.facts.name, program.problem
    if not program.members:
        return launch_record(target, program.ir.kernels, emitted, problem, program.scalars, program.tensors)
    launches, rest = list[Launch](), list(emitted)
    for build in program.members:
        own, rest = rest[: len(build.ir.kernels)], rest[len(build.ir.kernels) :]
        record = launch_record(target, build.ir.kernels, own, build.problem, build.scalars, build.tensors)
        assert build.member is not None
        launches += (launch.renamed(build.member.name) for launch in record.launches)
    return LaunchRecord(target, None, tuple(launches), str(problem))


def _most_registers(costs: Collection[KernelCost]) -> dict[str, int]:
    classes = dict.fromkeys(name for cost in costs for name in cost.registers)
    return {name: max(cost.registers.get(name, 0) for cost in costs) for name in classes}


def _emit(program: Build, number: int, stages: dict[str, float]) -> Emitted:
    """Return a kernel lowered and emitted; add each step's seconds to `stages`. Raises DoesNotFit, Unsupported."""
    options, kernel = program.options, program.ir.kernels[number]

    def observe(step: Step, before: Kernel | MachineKernel, after: Kernel | MachineKernel, seconds: float) -> None:
        stages[step.name] = stages.get(step.name, 0.0) + seconds
        if isinstance(after, Kernel):
            program.trail.append((after, step.name))
        if options.observe is not None:
            options.observe(step, before, after, seconds)

    passed = program.passed.get(kernel.name)
    program.trail = [(kernel, passed)]
    facts = program.target.facts
    lowered = pipeline.run(kernel, facts, options.disable, observe, passed)
    if lowered.shared_bytes > facts.shared_bytes:
        too_much = f"{lowered.shared_bytes} bytes of shared memory, at most {facts.shared_bytes}"
        raise DoesNotFit(too_much, short_of="shared")
    header = [f"{kernel.name}: convgen for {facts.name}"]
    header += [] if program.problem is None else [f"problem: {program.problem}", f"config:  {program.config}"]
    header += [f"remark:  {note}" for note in program.notes or ()]
    shown, debug = list(map(visible, header)), number + 1 if options.debug else 0
    final = program.is_final
    return program.target.emit(lowered, shown, debug=debug, disable=options.disable, observe=observe, allows_slow=final)


def expect(argument: str, given: object, *kinds: type) -> None:
    """Raise UserError unless an argument is of one of the kinds."""
    if not isinstance(given, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise UserError(f"given {argument} of type {type(given).__name__}, wanted {wanted}")
