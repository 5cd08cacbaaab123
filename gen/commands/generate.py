"""`convgen conv` and `convgen gemm`: from problems to code, files and verdicts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from convgen.commands.arguments import Parser, add_pass_options, add_result_options
from convgen.commands.session import worst
from convgen.ir.error import UserError

if TYPE_CHECKING:
    from convgen.code import Code
    from convgen.matmul import Problem


def conv_parser() -> argparse.ArgumentParser:
    parser = Parser(
        "conv",
        "Generate convolution kernels; options apply to all descriptors, wherever they stand.",
        "convgen conv mb1ic64ih56oc64oh56kh3ph1 --dir FWD_D --dt f16 -o out/k --run",
        "convgen conv mb1ic64ih56oc64oh56kh3ph1 --dir FWD_D --dt f16 --dump changed -v >k.s",
        "convgen conv mb1ic64ih56oc64oh56kh3ph1 ic3oc64ih224oh112kh7sh2ph3 --dir FWD_D --dt f16 -o out/ --json",
    )
    add = parser.add_argument
    add("descriptors", metavar="DESC", nargs="*", help="benchdnn: [g][mb]ic ih oc [oh] kh [sh ph dh] ... [nNAME]")
    add("--dir", default="FWD_B", help="FWD_B (default), FWD_D, FWD_I, BWD_D, BWD_W or BWD_WB")
    _add_tensors(parser, "source", "weights", "destination")
    add("--mb", default="0", help="minibatch; 0 (default) keeps the descriptor's")
    return _finished(parser)


def gemm_parser() -> argparse.ArgumentParser:
    parser = Parser(
        "gemm",
        "Generate matrix multiplication kernels: dst[M, N] = src[M, K] * wei[K, N].",
        "convgen gemm 1024x512:512x256 --dt f16 -o out/g --run-groups 8",
        "convgen gemm 256x64:64x256 --dt bf16:bf16:f32 --wtag ab --run",
    )
    parser.add_argument("descriptors", metavar="MxK:KxN", nargs="*", help="benchdnn: the sizes of src and wei [nNAME]")
    _add_tensors(parser, "first matrix (ab: rows contiguous, ba: columns)", "second matrix", "result")
    return _finished(parser)


def _add_tensors(parser: argparse.ArgumentParser, *tensors: str) -> None:
    parser.add_argument("--dt", default="f32", help="one type, or src:wei:dst (default f32)")
    for letter, what in zip("swd", tensors):
        parser.add_argument(f"--{letter}tag", default="any", metavar="TAG", help=f"layout of the {what} (default any)")
    add = parser.add_argument
    add("--strides", default="", metavar="S:W:D", help="strides in place of tags: 3200x1x160x16::12800x1x640x64")
    add("--attr-deterministic", default="false", metavar="BOOL", help="the same bits in every run (default false)")
    add("--attr-fpmath", default="strict", metavar="MODE", help="strict (default), tf32, bf16, f16 or any")


def _finished(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--target", default="gfx942", help="see `convgen targets` (default gfx942)")
    parser.add_argument("--config", metavar="LINE", help="use this config instead of choosing one")
    add_result_options(parser)
    add_pass_options(parser)
    return parser


def conv(arguments: Sequence[str]) -> int:
    """`convgen conv`: each descriptor on its own; the exit code is the worst."""
    return _generate(conv_parser(), arguments, "mb1ic64ih56oc64oh56kh3ph1")


def gemm(arguments: Sequence[str]) -> int:
    """`convgen gemm`, in the same way."""
    return _generate(gemm_parser(), arguments, "128x64:64x128")


def _generate(parser: argparse.ArgumentParser, arguments: Sequence[str], example: str) -> int:
    options = parser.parse_intermixed_args(arguments)
    if not options.descriptors:
        raise UserError(f"given no descriptor, wanted at least one such as {example}")
    if options.output == "":
        raise UserError("given an empty prefix, wanted a file prefix or DIR/, at -o")
    if options.output and not options.output.endswith("/") and len(options.descriptors) > 1:
        given = f"{len(options.descriptors)} problems and -o {options.output}"
        raise UserError(f"given {given}, wanted one problem, or a directory DIR/")
    return worst([partial(_one, options, each) for each in options.descriptors], options.verbose)


def _one(options: argparse.Namespace, descriptor: str) -> int:
    """Generate one problem, write what was asked, run it if asked."""
    from convgen.backends import target as targets
    from convgen.commands import session

    problem = _problem(options, descriptor)
    targets.get(options.target)
    if problem.is_empty:
        return session.deliver(options, _empty(problem, options.target))
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
        code = driver.compile(watch.begin(program))
    return session.deliver(options, code)


def _problem(options: argparse.Namespace, descriptor: str) -> Problem:
    from convgen import grammar
    from convgen.matmul import Matmul
    from convgen.problem import Conv

    def given(knobs: Sequence[str]) -> dict[str, str]:
        return {keyword: getattr(options, keyword) for keyword in (knob.replace("-", "_") for knob in knobs)}

    if hasattr(options, "dir"):
        return Conv.parse(descriptor, **given(grammar.CONV_KNOBS))
    return Matmul.parse(descriptor, **given(grammar.MATMUL_KNOBS))


def _empty(problem: Problem, target: str) -> Code:
    """Code that launches nothing."""
    from convgen.code import Code
    from convgen.record import LaunchRecord

    return Code(problem, target, "", "", None, LaunchRecord(target, None, (), str(problem)), {}, {})
