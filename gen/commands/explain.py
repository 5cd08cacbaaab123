"""`convgen explain`: write a page that shows how a kernel was generated, and where it waits."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from convgen.backends import family as families
from convgen.commands import execute
from convgen.commands.arguments import Parser, add_config_options, add_disable, add_target, number, refuse
from convgen.commands.generate import add_knobs, described, parse_knobs
from convgen.commands.session import FINE, WRONG
from convgen.default_target import DEFAULT_TARGET
from convgen.ir.error import UserError

if TYPE_CHECKING:
    from convgen.explain.subject import Subject

_OF_PROBLEMS = ("config", "registry", "disable")


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "explain",
        "Write a page of HTML on a kernel, complete in one file: the problem, why it has its config, what every pass\n"
        "changed, layouts, who computes which tile, and the assembly with its lines of IR and what each instruction\n"
        "waits for. Kernels of convgen's launch records are generated again; a page on other code shows what can be\n"
        "read from it.",
        "convgen explain mb1ic64ih56oc64oh56kh3ph1 --dir FWD_D --dt f16 -o k.html",
        "convgen explain 4096x4096:4096x4096 --dt f16 --target {newest} -o g.html",
        "convgen explain out/k.launch.json -o k.html",
        "convgen explain k{object} --grid 4 --block 256 --arg A=f16:128x128 --arg C=f32:128x128 --arg n=128 -o k.html",
    )
    add = parser.add_argument
    add("subject", metavar="PROBLEM|FILE", help="MxK:KxN, benchdnn's of a convolution; a launch record or code")
    add("-o", dest="output", metavar="FILE.html", required=True, help="write this page")
    add("--chip", metavar="NAME", help="chip to model; see `convgen profile --help`")
    groups = "execute and compare N sampled output tiles (default 2; 0: none)"
    add("--run-groups", type=number(0), metavar="N", help=groups)
    of_problems = parser.add_argument_group("of a problem")
    add_target(of_problems, default=None)
    add_config_options(of_problems)
    add_disable(of_problems.add_argument)
    execute.add_scalars(parser.add_argument_group("of a launch record").add_argument)
    execute.add_launch_options(parser)
    add_knobs(parser, "conv", "deconv", "matmul")
    return parser


def is_file(text: str) -> bool:
    """Return whether a word names a launch record or a file of code."""
    return text.endswith(".json") or is_code(text)


def is_code(text: str) -> bool:
    """Return whether a word names a file of code, by its suffix."""
    return families.of_suffix(Path(text).suffix) is not None


def explain(arguments: Sequence[str]) -> int:
    """Run `convgen explain`; the exit code is 1 if the simulator finds the kernel wrong."""
    options, knobs = parse_knobs(parser(), arguments, "conv", "deconv", "matmul")
    if not options.output.endswith((".html", ".htm")):
        raise UserError(f"given {options.output}, wanted FILE.html, at -o")
    subject = _of_file(options, knobs) if is_file(options.subject) else _of_problem(options, knobs)

    from convgen.explain.page import page
    from convgen.run.files import write_all

    write_all({Path(options.output): page(subject).encode()})
    return FINE if subject.outcome is None or subject.outcome.passed else WRONG


def _of_problem(options: argparse.Namespace, knobs: dict[str, str]) -> Subject:
    _refuse(options, ("set", *execute.LAUNCH_OPTIONS), f"the problem {options.subject}")

    from convgen.explain import subject

    problem = described(options.subject, knobs, options.driver)
    disable, target = tuple(options.disable), options.target or DEFAULT_TARGET
    groups = 2 if options.run_groups is None else options.run_groups
    return subject.of_problem(problem, target, options.config, options.registry, disable, options.chip, groups)


def _of_file(options: argparse.Namespace, knobs: dict[str, str]) -> Subject:
    path = Path(options.subject)
    _refuse(options, ("target", *_OF_PROBLEMS), f"the file {path.name}")
    if knobs:
        raise UserError(f"given --{next(iter(knobs))} with the file {path.name}, wanted it with a problem only")

    from convgen.explain import subject

    if path.suffix == ".json":
        execute.refuse_launch_options(options, path)
        groups = 2 if options.run_groups is None else options.run_groups
        return subject.of_record(path, dict(options.set), options.chip, groups)
    _refuse(options, ("set", "run_groups"), f"the code {path.name}")
    if options.grid is None and options.block is None:
        _refuse(options, ("chip", "kernel", "lds", "arg"), f"{path.name} and no --grid and --block")
    return code(path, options)


def code(path: Path, options: argparse.Namespace) -> Subject:
    """Return the subject of a code object or assembly, with a launch if the options have one."""
    from convgen.explain import subject
    from convgen.run import prepared

    if options.grid is None and options.block is None:
        return subject.of_code(path, None)
    return subject.of_code(path, prepared.of_object(path, execute.launch_of(options)), options.chip)


def _refuse(options: argparse.Namespace, names: Sequence[str], given: str) -> None:
    refuse(options, names, f"with {given}, where it has no meaning: see --help")
