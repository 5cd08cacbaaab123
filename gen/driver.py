"""From problem to code: build a program, compile it, simulate it. The loop over configs lives here.

`build` takes the first config whose plan fits; if registers do not suffice after all, `compile` takes the next.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from convgen.backends import target as targets
from convgen.backends.simulation import Finding
from convgen.backends.target import Emitted, Target
from convgen.choose import candidates
from convgen.code import Code, KernelCost
from convgen.config import Config
from convgen.conv import build_program
from convgen.ir.error import ConvgenError, DoesNotFit, UserError
from convgen.ir.layout import Layout
from convgen.ir.memory import Global
from convgen.ir.node import compiling
from convgen.ir.program import Kernel
from convgen.ir.program import Program as IrProgram
from convgen.passes import pipeline
from convgen.plan import Plan, check_supported, make_plan
from convgen.record import Access, Buffer, Launch, LaunchRecord, Tensor
from convgen.reference import unpack
from convgen.verify import execute
from convgen.views import Problem

Tell = Callable[[str], None]


@attrs.frozen
class Tiles:
    """Output tiles of a one-tile-a-workgroup kernel: tile number = workgroup id."""

    grid: tuple[int, int]
    size: tuple[int, int]  #: M, N of a tile

    def groups(self, tile: int) -> tuple[tuple[int, ...], ...]:
        """The one workgroup of the one launch."""
        return ((tile,),)

    def region(self, tile: int) -> tuple[range, range]:
        """Rows and columns of the output matrix."""
        m, n = divmod(tile, self.grid[1])
        return (
            range(m * self.size[0], (m + 1) * self.size[0]),
            range(n * self.size[1], (n + 1) * self.size[1]),
        )


@attrs.frozen
class Options:
    """How passes are run and reported."""

    disable: tuple[str, ...] = ()
    dump: str | None = None
    verbose: Tell | None = None


@attrs.define
class Program:
    """A problem with its plan and tile-level IR, and the configs to fall back on."""

    problem: Problem
    target: Target
    plan: Plan
    ir: IrProgram
    options: Options
    stages: dict[str, float]
    _rest: Iterator[tuple[float, Config]]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.ir.kernels))

    def next_config(self, why: DoesNotFit) -> bool:
        """Replace the plan by that of the next config that fits; False if none is left."""
        _report(self.options.verbose, self.plan.config, None, f"refused in the back end: {why}")
        found = _first_plan(self.problem, self.target, self._rest, self.options.verbose)
        if found is None:
            return False
        self.plan, self.ir = found, build_program(found)
        return True


def build(
    problem: Problem,
    target: str = "gfx942",
    config: str | Config | None = None,
    *,
    disable: tuple[str, ...] = (),
    dump: str | None = None,
    verbose: Tell | None = None,
) -> Program:
    """The program of a problem under `config` (a line), or under the best config that fits.

    Raises UserError for wrong options or a given config that does not fit, Unsupported for the problem.
    """
    _check_options(disable, dump)
    start = perf_counter()
    chosen = targets.get(target)
    if problem.is_empty:
        raise UserError("given an empty problem, wanted outputs to compute: there is no program for mb0")
    check_supported(problem, chosen.facts)
    with compiling():
        if config is not None:
            rest: Iterator[tuple[float, Config]] = iter(())
            given = Config.parse(config) if isinstance(config, str) else config
            try:
                plan: Plan | None = make_plan(problem, given, chosen.facts)
            except DoesNotFit as error:
                raise UserError(f"given --config {given}, wanted one that fits: {error}") from error
        else:
            rest = iter([(c.score, c.config) for c in candidates(problem, chosen.facts)])
            plan = _first_plan(problem, chosen, rest, verbose)
        if plan is None:
            raise DoesNotFit("no config fits, not even the last one")
        planned = perf_counter()
        program = build_program(plan)
    stages = {"plan": planned - start, "build": perf_counter() - planned}
    return Program(problem, chosen, plan, program, Options(disable, dump, verbose), stages, rest)


def _check_options(disable: tuple[str, ...], dump: str | None) -> None:
    pipeline.check_names(disable, optimising_only=True)
    if dump is not None and dump not in ("all", "changed"):
        if not dump.startswith("after:"):
            raise UserError(f"given --dump={dump}, wanted all, changed or after:PASS")
        pipeline.check_names([dump.removeprefix("after:")])


def _first_plan(
    problem: Problem, target: Target, rest: Iterator[tuple[float, Config]], verbose: Tell | None
) -> Plan | None:
    for score, config in rest:
        try:
            plan = make_plan(problem, config, target.facts)
        except DoesNotFit as error:
            _report(verbose, config, score, f"refused: {error}")
            continue
        lds = plan.weights_tile.bytes + plan.pixels_tile.bytes
        _report(verbose, config, score, f"about {plan.registers} registers, {lds} bytes of LDS")
        return plan
    return None


def _report(verbose: Tell | None, config: Config, score: float | None, what: str) -> None:
    if verbose is not None:
        verbose(f"{config}  {'' if score is None else f'{score:.0f} clocks, '}{what}")


def compile(program: Program) -> Code:
    """Lower, select, allocate, print and assemble; falls back to the next config if registers do not suffice."""
    while True:
        try:
            return _compile(program)
        except DoesNotFit as error:
            if not program.next_config(error):
                raise UserError(f"given config {program.plan.config}, wanted one that fits: {error}") from error


def _compile(program: Program) -> Code:
    stages = dict(program.stages)
    target, plan = program.target, program.plan
    with compiling():
        emitted = [_emit(program, kernel, stages) for kernel in program.ir.kernels]
    if program.options.verbose is not None:
        for e in emitted:
            program.options.verbose(f"{plan.config}  estimated {plan.registers} registers, took {dict(e.registers)}")
    text = target.module(emitted)
    start = perf_counter()
    code_object = target.assemble(text)
    stages["assemble"] = perf_counter() - start
    return Code(
        program.problem,
        target.facts.name,
        str(plan.config),
        text,
        code_object,
        _record(program, emitted),
        {e.name: KernelCost(e.registers, e.lds_bytes) for e in emitted},
        stages,
        Tiles(plan.grid, plan.config.tile[:2]),
    )


def _emit(program: Program, kernel: Kernel, stages: dict[str, float]) -> Emitted:
    options, dump = program.options, program.options.dump

    def observe(p: pipeline.Pass, before: Kernel, after: Kernel, seconds: float) -> None:
        stages[p.name] = stages.get(p.name, 0.0) + seconds
        if dump == "all" or dump == f"after:{p.name}" or (dump == "changed" and after is not before):
            print(f"// after {p.name}\n{after}\n", file=sys.stderr)

    lowered = pipeline.run(kernel, program.target.facts, options.disable, observe)
    header = [
        f"{kernel.name}: convgen for {program.target.facts.name}",
        f"problem: {program.problem}",
        f"config:  {program.plan.config}",
    ]
    made = program.target.emit(lowered, header)
    for stage, seconds in made.stages.items():
        stages[stage] = stages.get(stage, 0.0) + seconds
    return made


def _record(program: Program, emitted: list[Emitted]) -> LaunchRecord:
    launches = []
    for kernel, e in zip(program.ir.kernels, emitted):
        args = tuple(_argument(program.problem, p, offset) for p, (_, offset, _) in zip(kernel.params, e.arguments))
        workgroup = (kernel.subgroups * kernel.width, 1, 1)
        launches.append(Launch(kernel.name, kernel.grid, workgroup, args, e.kernarg_size, e.lds_bytes))
    return LaunchRecord(program.target.facts.name, None, tuple(launches), str(program.problem))


def _argument(problem: Problem, parameter: Global, offset: int) -> Buffer:
    tensors: dict[str, tuple[Layout, str, Access]] = {
        "src": (problem.src_layout, problem.src_type, "read"),
        "wei": (problem.wei_layout, problem.wei_type, "read"),
        "dst": (problem.dst_layout, problem.dst_type, "write"),
    }
    layout, dtype, access = tensors[parameter.name]
    return Buffer(parameter.name, offset, access, Tensor.of(layout, dtype))


class SimulationError(ConvgenError):
    """The simulator has findings; the message is the first, `findings` holds them all."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__(str(findings[0]))
        self.findings = tuple(findings)


def simulate(code: Code, **arrays: npt.NDArray[Any]) -> dict[str, npt.NDArray[np.generic]]:
    """Run compiled code on the simulator: logical arrays in (src, wei), logical arrays out (dst).

    Raises UserError for a missing or misshapen array, SimulationError if the simulator has a finding.
    """
    buffers = code.record.buffers
    wanted = {name: b.tensor.dims for name, b in buffers.items() if b.is_read}
    given = {name: a.shape for name, a in arrays.items()}
    if given != wanted:
        raise UserError(f"given arrays {_shapes(given)}, wanted {_shapes(wanted)}")
    memory, report = execute(code.record, code.object, arrays)
    if report.findings:
        raise SimulationError(report.findings)
    return {name: unpack(b.tensor.layout, b.tensor.dtype, memory[name]) for name, b in buffers.items() if b.is_written}


def _shapes(arrays: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in arrays.items())
