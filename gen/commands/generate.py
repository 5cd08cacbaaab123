"""`convgen conv` and `convgen gemm`: from problems to code, files and verdicts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from convgen.commands.arguments import Parser, add_pass_options, add_result_options
from convgen.commands.session import worst
from convgen.ir.error import UserError

if TYPE_CHECKING:
    from convgen.batch import Request
    from convgen.code import Code
    from convgen.matmul import Problem


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
    add_conv_knobs(parser)
    return finished(parser)


def gemm_parser() -> argparse.ArgumentParser:
    parser = Parser(
        "gemm",
        "Generate matrix multiplication kernels: dst[M, N] = src[M, K] * wei[K, N].",
        "convgen gemm 1024x512:512x256 --dt f16 -o out/g --run-groups 8",
        "convgen gemm 256x64:64x256 --dt bf16:bf16:f32 --wtag ab --run",
    )
    parser.add_argument("descriptors", metavar="MxK:KxN", nargs="*", help="benchdnn: the sizes of src and wei [nNAME]")
    _add_tensors(parser, "first matrix (ab: rows contiguous, ba: columns)", "second matrix", "result")
    return finished(parser)


def add_conv_knobs(parser: argparse.ArgumentParser) -> None:
    """What describes a convolution besides its sizes."""
    parser.add_argument("--dir", default="FWD_B", help="FWD_B (default), FWD_D, FWD_I, BWD_D, BWD_W or BWD_WB")
    _add_tensors(parser, "source", "weights", "destination")
    parser.add_argument("--mb", default="0", help="minibatch; 0 (default) keeps the descriptor's")


def _add_tensors(parser: argparse.ArgumentParser, *tensors: str) -> None:
    parser.add_argument("--dt", default="f32", help="one type, or src:wei:dst (default f32)")
    for letter, what in zip("swd", tensors):
        parser.add_argument(f"--{letter}tag", default="any", metavar="TAG", help=f"layout of the {what} (default any)")
    add = parser.add_argument
    add("--strides", default="", metavar="S:W:D", help="strides in place of tags: 3200x1x160x16::12800x1x640x64")
    add("--attr-deterministic", default="false", metavar="BOOL", help="the same bits in every run (default false)")
    add("--attr-fpmath", default="strict", metavar="MODE", help="strict (default), tf32, bf16, f16 or any")


def finished(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """A parser with the options that every generating command has."""
    parser.add_argument("--target", default="gfx942", help="see `convgen targets` (default gfx942)")
    parser.add_argument("--config", metavar="LINE", help="use this config instead of choosing one")
    add_result_options(parser)
    add_pass_options(parser)
    return parser


def conv(arguments: Sequence[str]) -> int:
    """`convgen conv`: each problem on its own; the exit code is the worst."""
    from convgen import batch, grammar, miopen

    first = next((number for number, word in enumerate(arguments) if miopen.is_program(word)), len(arguments))
    line = " ".join(arguments[first:])  # what stands behind the name of the driver belongs to it
    words = [*arguments[:first], *filter(None, [line])]
    options, knobs = parse_knobs(conv_parser(), words, grammar.CONV_KNOBS)
    return _generate(options, partial(batch.convolutions, knobs=knobs), "mb1ic64ih56oc64oh56kh3ph1")


def gemm(arguments: Sequence[str]) -> int:
    """`convgen gemm`, in the same way."""
    from convgen import batch, grammar

    options, knobs = parse_knobs(gemm_parser(), arguments, grammar.MATMUL_KNOBS)
    return _generate(options, partial(batch.matmuls, knobs=knobs), "128x64:64x128")


def parse_knobs(
    parser: argparse.ArgumentParser, arguments: Sequence[str], names: Sequence[str]
) -> tuple[argparse.Namespace, dict[str, str]]:
    """The options, and the knobs among `names` that were given."""
    keywords = {name: name.replace("-", "_") for name in names}
    parser.set_defaults(**dict.fromkeys(keywords.values()))
    options = parser.parse_intermixed_args(arguments)
    values = {name: getattr(options, keyword) for name, keyword in keywords.items()}
    return options, {name: value for name, value in values.items() if value is not None}


def _generate(options: argparse.Namespace, parse: Callable[[str], Iterable[Problem]], example: str) -> int:
    from convgen import batch

    if not options.descriptors:
        raise UserError(f"given no descriptor, wanted at least one such as {example}")
    if options.output == "":
        raise UserError("given an empty prefix, wanted a file prefix or DIR/, at -o")
    requests = [each for text in options.descriptors for each in batch.requested(text, partial(parse, text))]
    if options.output and not options.output.endswith("/") and len(requests) > 1:
        given = f"{len(requests)} problems and -o {options.output}"
        raise UserError(f"given {given}, wanted one problem, or a directory DIR/")
    return worst([partial(_one, options, request) for request in requests], options.verbose)


def _one(options: argparse.Namespace, request: Request) -> int:
    """Generate what is requested, write what was asked, run it if asked."""
    from convgen.commands import session

    if request.problem is None:
        assert request.error is not None
        raise request.error
    return session.deliver(options, make(options, request.problem))


def make(options: argparse.Namespace, problem: Problem) -> Code:
    """The code of a problem."""
    from convgen.backends import target as targets
    from convgen.commands import session

    targets.get(options.target)
    if problem.is_empty:
        return _empty(problem, options.target)
    with session.watching(options) as watch:
        from convgen import driver

        program = driver.build(
            problem,
            target=options.target,
            config=options.config,
            disable=tuple(options.disable),
            observe=watch.observe,
            tried=watch.tried,
            debug=options.debug,
        )
        return driver.compile(watch.begin(program))


def _empty(problem: Problem, target: str) -> Code:
    """Code that launches nothing."""
    from convgen.code import Code
    from convgen.record import LaunchRecord

    return Code(problem, target, "", "", None, LaunchRecord(target, None, (), str(problem)), {}, {})
