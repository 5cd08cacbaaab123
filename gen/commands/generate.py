"""`convgen conv`, `convgen deconv` and `convgen gemm`: generate code and files of problems, and verify them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from convgen.commands import session
from convgen.commands.arguments import (
    OUTPUT,
    Parser,
    add_config_options,
    add_pass_options,
    add_result_options,
    add_target,
)
from convgen.ir.error import UserError

if TYPE_CHECKING:
    from convgen.problem.matmul import Problem
    from convgen.problem.requests import Request
    from convgen.run.code import Code


def conv_parser() -> argparse.ArgumentParser:
    parser = Parser(
        "conv",
        "Generate convolution kernels; options apply to all descriptors, wherever they stand. A whole\n"
        "MIOpenDriver line is a descriptor too: quoted, or as the last words of the command.",
        "convgen conv mb1ic64ih56oc64oh56kh3ph1 --dir FWD_D --dt f16 -o out/k --run",
        "convgen conv mb1ic64ih56oc64oh56kh3ph1 --dir FWD_D --dt f16 --dump changed -v >k.s",
        "convgen conv mb1ic64ih56oc64oh56kh3ph1 ic3oc64ih224oh112kh7sh2ph3 --dir FWD_D --dt f16 -o out/ --json",
        "convgen conv --run './bin/MIOpenDriver convfp16 -n 1 -c 64 -H 14 -W 14 -k 64 -y 3 -x 3 -p 1 -q 1 -F 1'",
    )
    add = parser.add_argument
    add("descriptors", metavar="DESC", nargs="*", help="benchdnn: [g][mb]ic ih oc [oh] kh [sh ph dh] ... [nNAME]")
    add_knobs(parser, "conv")
    return finished(parser)


def deconv_parser() -> argparse.ArgumentParser:
    parser = Parser(
        "deconv",
        "Generate transposed convolution kernels. Source position i and tap k of an axis add to position\n"
        "i*s - p + k*(d + 1) of the destination; a larger `oh` is output padding.",
        "convgen deconv mb1ic64ih28oc32kh4sh2ph1 --dir FWD_D --dt f16 -o out/k --run",
        "convgen deconv mb1ic64ih28oc32oh56kh3sh2ph1 --dt f16 --bia-dt f16 --attr-post-ops relu --run",
    )
    parser.add_argument("descriptors", metavar="DESC", nargs="*", help="benchdnn: [g][mb]ic ih oc [oh] kh ... [nNAME]")
    add_knobs(parser, "deconv")
    return finished(parser)


def gemm_parser() -> argparse.ArgumentParser:
    parser = Parser(
        "gemm",
        "Generate matrix multiplication kernels: dst[M, N] = src[M, K] * wei[K, N]. A whole line of\n"
        "hipblaslt-bench or rocblas-bench is a descriptor too: quoted, or as the last words of the command.",
        "convgen gemm 1024x512:512x256 --dt f16 -o out/g --run-groups 8",
        "convgen gemm 256x64:64x256 --dt bf16:bf16:f32 --wtag ab --run",
        "convgen gemm hipblaslt-bench -m 256 -n 128 -k 64 --transA T --a_type f16_r --b_type f16_r --d_type f16_r",
    )
    parser.add_argument("descriptors", metavar="MxK:KxN", nargs="*", help="benchdnn: the sizes of src and wei [nNAME]")
    add_knobs(parser, "matmul")
    return finished(parser)


def add_knobs(parser: argparse.ArgumentParser, *drivers: str) -> None:
    """Add the knobs of benchdnn's drivers; options that only control benchdnn itself are accepted and ignored."""
    from convgen.problem import options

    rest = "Its other options are taken as well; they change nothing, or a rule refuses them (docs/requests.md)."
    add = parser.add_argument_group("knobs of benchdnn", rest).add_argument
    rows = {option.name: option for driver in drivers for option in options.KNOBS_OF[driver]}
    for option in rows.values():
        spelled = [f"--{name}" for name in (option.name, *option.aliases)]
        add(*spelled, dest=option.keyword, metavar="VALUE", help=option.help if option.is_useful else argparse.SUPPRESS)
    for driver in drivers:  # as a whole line of benchdnn may have them
        parser.add_argument(
            f"--{driver}", dest="driver", action="store_const", const=driver, default=None, help=argparse.SUPPRESS
        )
    parser.add_argument("--reset", dest="ignored", action="store_true", help=argparse.SUPPRESS)
    for option in options.RUN_OPTIONS:
        parser.add_argument(f"--{option.name}", dest="ignored", type=option.value, help=argparse.SUPPRESS)


def described(descriptor: str, knobs: Mapping[str, str], driver: str | None) -> Problem:
    """Return the problem of a descriptor of benchdnn's `driver`, or without one of the kind that it looks like."""
    from convgen.problem.matmul import PROBLEMS, kind_of

    kind = PROBLEMS[driver] if driver else kind_of(descriptor)
    return kind.of(descriptor, dict(knobs))


def finished(parser: argparse.ArgumentParser, output: tuple[str, str] = OUTPUT) -> argparse.ArgumentParser:
    """Return the parser with the options of every generating command; `output` is the value of -o and its help."""
    add_target(parser)
    add_config_options(parser)
    parser.add_argument("--no-cache", dest="cache", action="store_false", help="ignore the compile cache")
    add_result_options(parser, output)
    add_pass_options(parser)
    return parser


def conv(arguments: Sequence[str]) -> int:
    """Run `convgen conv`, each problem on its own; the exit code is the worst."""
    from convgen.problem import miopen
    from convgen.problem import requests as batch

    options, knobs = parse_knobs(conv_parser(), _joined(arguments, miopen.is_program), "conv")
    return _generate(options, partial(batch.problems, "conv", knobs=knobs), "mb1ic64ih56oc64oh56kh3ph1")


def deconv(arguments: Sequence[str]) -> int:
    """Run `convgen deconv`, each problem on its own; the exit code is the worst."""
    from convgen.problem import requests as batch

    options, knobs = parse_knobs(deconv_parser(), arguments, "deconv")
    return _generate(options, partial(batch.problems, "deconv", knobs=knobs), "mb1ic64ih28oc32kh4sh2ph1")


def gemm(arguments: Sequence[str]) -> int:
    """Run `convgen gemm`, each problem on its own; the exit code is the worst."""
    from convgen.problem import blas
    from convgen.problem import requests as batch

    options, knobs = parse_knobs(gemm_parser(), _joined(arguments, blas.is_program), "matmul")
    return _generate(options, partial(batch.problems, "matmul", knobs=knobs), "128x64:64x128")


def _joined(arguments: Sequence[str], is_program: Callable[[str], bool]) -> list[str]:
    """Return the words of a command; words after the name of a program are joined to it."""
    first = next((number for number, word in enumerate(arguments) if is_program(word)), len(arguments))
    return [*arguments[:first], *filter(None, [" ".join(arguments[first:])])]


def parse_knobs(
    parser: argparse.ArgumentParser, arguments: Sequence[str], *drivers: str
) -> tuple[argparse.Namespace, dict[str, str]]:
    """Return the options, and the given knobs of these drivers."""
    from convgen.problem.options import KNOBS_OF

    options = parser.parse_intermixed_args(arguments)
    knobs = {option.name: getattr(options, option.keyword) for driver in drivers for option in KNOBS_OF[driver]}
    return options, {name: value for name, value in knobs.items() if value is not None}


def _generate(options: argparse.Namespace, parse: Callable[[str], Iterable[Problem]], example: str) -> int:
    from convgen.problem import requests as batch

    if not options.descriptors:
        raise UserError(f"given no descriptor, wanted at least one such as {example}")
    if options.output == "":
        raise UserError("given an empty prefix, wanted a file prefix or DIR/, at -o")
    session.check_device(options)
    requests = [each for text in options.descriptors for each in batch.requested(text, partial(parse, text))]
    if options.output and not options.output.endswith("/") and len(requests) > 1:
        given = f"{len(requests)} problems and -o {options.output}"
        raise UserError(f"given {given}, wanted one problem, or a directory DIR/")
    return max(session.guarded(partial(_one, options, request), options.verbose) for request in requests)


def _one(options: argparse.Namespace, request: Request) -> int:
    if request.problem is None:
        assert request.error is not None
        raise request.error
    return session.deliver(options, make(options, request.problem))


def check(problem: Problem, target: str) -> None:
    """Raise Unsupported for a problem that `make` would refuse, in most cases without generating it.

    Whether tensors exceed a surface depends on the chosen tiles: such problems are generated.
    """
    from convgen.backends import target as targets
    from convgen.choose.supported import check_supported
    from convgen.ir.types import scalar

    facts = targets.get(target).facts
    check_supported(problem, facts)
    if any(t.layout.size_elems * scalar(t.dtype).bytes > facts.surface_max for t in problem.tensors):
        from convgen import driver

        driver.compile(driver.build(problem, target=target))


def make(options: argparse.Namespace, problem: Problem) -> Code:
    from convgen.backends import target as targets

    targets.get(options.target)
    if problem.is_empty:  # nothing to choose, to cache or to watch
        from convgen import driver

        return driver.compile(driver.build(problem, options.target))
    config = _config_words(options, problem)
    if not options.cache or _watched(options):
        return _built(options, problem)
    from convgen.run.cache import Cache, key_of

    tool = targets.get(options.target).assembled_by()
    key = key_of(problem, options.target, config, options.disable, options.debug, tool)
    code = Cache(session.complain).code(key, problem, options.target, lambda: _built(options, problem))
    if code.tiles is None and options.run_groups is not None:
        from convgen import driver

        code = driver.with_tiles(code)
    return code


def _config_words(options: argparse.Namespace, problem: Problem) -> str | None:
    """Return the config of --config, else that of the registry, which is reported."""
    from convgen import registry

    if options.config is not None:
        return str(options.config)
    entry = registry.find(problem, options.target, options.registry)
    if entry is None:
        return None
    session.complain(f"note: the config is that of {entry.where}")
    return entry.config


def _watched(options: argparse.Namespace) -> bool:
    """Return whether an option asks to see how code is generated."""
    folder = options.dump_dir is not None
    return bool(options.verbose or options.dump or folder or options.check_passes or options.time_passes)


def _built(options: argparse.Namespace, problem: Problem) -> Code:
    with session.watching(options) as watch:
        from convgen import driver

        if options.verbose and options.config is None:
            _show_ranking(problem, options.target)
        program = driver.build(
            problem,
            target=options.target,
            config=options.config,
            registry=options.registry,
            disable=tuple(options.disable),
            observe=watch.observe,
            tried=watch.tried,
            debug=options.debug,
        )
        return driver.compile(watch.begin(program))


def _show_ranking(problem: Problem, target: str) -> None:
    """Print the chooser's ranking, whether or not these configs will be tried."""
    from convgen.backends import target as targets
    from convgen.choose.choose import candidates
    from convgen.problem.matmul import members_of
    from convgen.show import report

    for member in members_of(problem):
        best = candidates(member, targets.get(target).facts)[:10]
        report.show_table(*report.ranking_table(best), sys.stderr)
        print(file=sys.stderr)
