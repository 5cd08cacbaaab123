"""The command line: problems in; assembly, objects, launch records and verdicts out.

Exit codes: 0 fine, 1 a wrong result or a finding, 2 a wrong or unsupported request, 3 an internal error. Errors are one
line on stderr. Heavy modules are imported where they are needed, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from convgen.ir.caret import PointedError
from convgen.ir.error import Unsupported, UserError

if TYPE_CHECKING:
    from convgen.code import Code
    from convgen.problem import Conv
    from convgen.verify import Outcome, Progress

FINE, WRONG, REFUSED, INTERNAL = range(4)

_USAGE = """\
usage: convgen COMMAND ...

GPU convolution kernels from a problem line, verified without a GPU.

commands:
  conv [KNOBS] DESC [DESC ...]   generate, assemble and verify convolutions (benchdnn descriptors)
  run LAUNCH.json [KNOBS]        execute a code object on the simulator
  targets                        list the targets

`convgen COMMAND --help` explains a command."""


def entry() -> NoReturn:
    """The `convgen` program."""
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has left: `convgen ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def main(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code. Only a command's `--help` leaves by SystemExit."""
    return _guarded(partial(_dispatch, arguments))


def _dispatch(arguments: Sequence[str]) -> int:
    commands = {"conv": _conv, "run": _run, "targets": _targets}
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", ())
    if command in ("--help", "-h"):
        print(_USAGE)
        return FINE
    if command not in commands:
        given = repr(command) if command else "no command"
        raise UserError(f"given {given}, wanted one of {', '.join(commands)}; see convgen --help")
    return commands[command](rest)


def _guarded(work: Callable[[], int], verbose: bool = False) -> int:
    """The exit code of `work`; its exceptions become one line on stderr and the code that fits."""
    try:
        return work()
    except BrokenPipeError:
        raise
    except PointedError as error:
        _complain(f"{error}\n{error.excerpt}" if _on_terminal() else error.one_line)
        return REFUSED
    except UserError as error:
        _complain(_flat(str(error)))
        return REFUSED
    except Unsupported as error:
        _complain(f"unsupported: {_flat(str(error))}")
        return REFUSED
    except Exception as error:
        if verbose:
            traceback.print_exc()
        notes = "".join(f" ({_flat(note)})" for note in getattr(error, "__notes__", []))
        _complain(f"internal error: {type(error).__name__}: {_flat(str(error))}{notes}")
        return INTERNAL


def _complain(text: str) -> None:
    print(f"convgen: {text}", file=sys.stderr)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _on_terminal() -> bool:
    return sys.stderr.isatty()


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are ours: one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise UserError(_flat(message))


def _number(least: int) -> Callable[[str], int]:
    """An argparse type: a decimal integer from `least`."""

    def convert(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) >= least):
            raise argparse.ArgumentTypeError(f"given {text!r}, wanted an integer from {least}")
        return int(text)

    return convert


def _conv_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="convgen conv",
        description="Generate convolution kernels; options apply to all descriptors, wherever they stand.",
        epilog='Example: convgen conv "mb1ic64ih56oc64oh56kh3ph1" --dir FWD_D --dt f16 -o out/k --run',
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "descriptors",
        metavar="DESC",
        nargs="*",
        help="benchdnn descriptor: [g][mb]ic ih oc [oh] kh [sh ph dh] ... [nNAME]",
    )
    add("--dir", default="FWD_B", help="FWD_B (default), FWD_D, FWD_I, BWD_D, BWD_W or BWD_WB")
    add("--dt", default="f32", help="one type, or src:wei:dst (default f32)")
    for tensor, what in (("s", "source"), ("w", "weights"), ("d", "destination")):
        add(f"--{tensor}tag", default="any", metavar="TAG", help=f"layout of the {what} (default any)")
    add("--mb", default="0", help="minibatch; 0 (default) keeps the descriptor's")
    add("--target", default="gfx942", help="see `convgen targets` (default gfx942)")
    add(
        "-o",
        dest="output",
        metavar="PREFIX",
        help="write PREFIX.s, PREFIX.hsaco, PREFIX.launch.json; DIR/ names by kernel",
    )
    add("--run", action="store_true", help="execute on the simulator and compare every output with the reference")
    add("--run-groups", type=_number(1), metavar="N", help="the same for N sampled output tiles only")
    add("--seed", type=_number(0), default=0, metavar="N", help="of fills and samples (default 0)")
    add("--config", metavar="LINE", help="use this config instead of choosing one")
    add("--dump", metavar="WHAT", help="print the IR to stderr: all, changed or after:PASS")
    add("--disable", action="append", default=[], metavar="PASS", help="switch an optimising pass off (repeatable)")
    add("--json", action="store_true", help="print one JSON object a problem, and nothing else, on stdout")
    add("-v", dest="verbose", action="store_true", help="tell of each config that is tried and what it costs")
    return parser


def _conv(arguments: Sequence[str]) -> int:
    """`convgen conv`: each descriptor on its own; the exit code is the worst."""
    options = _conv_parser().parse_intermixed_args(arguments)
    if not options.descriptors:
        raise UserError("given no descriptor, wanted at least one such as mb1ic64ih56oc64oh56kh3ph1")
    if options.output == "":
        raise UserError("given an empty prefix, wanted a file prefix or DIR/, at -o")
    if options.output and not options.output.endswith("/") and len(options.descriptors) > 1:
        given = f"{len(options.descriptors)} problems and -o {options.output}"
        raise UserError(f"given {given}, wanted one problem, or a directory DIR/")
    return max(_guarded(partial(_one_conv, options, each), options.verbose) for each in options.descriptors)


def _one_conv(options: argparse.Namespace, descriptor: str) -> int:
    """Generate one convolution, write what was asked, run it if asked."""
    from convgen.backends import target as targets
    from convgen.problem import Conv

    knobs = {name: getattr(options, name) for name in ("dir", "dt", "stag", "wtag", "dtag", "mb")}
    problem = Conv.parse(descriptor, **knobs)
    target = targets.get(options.target)
    code = _compile(options, problem)
    files, outcome = None, None
    if options.output is not None:
        from convgen.files import write_code

        files = write_code(code, options.output, target.text_suffix, target.object_suffix)
    if options.run or options.run_groups is not None:
        from convgen import verify

        with _progress(str(problem)) as progress:
            outcome = verify.run(code, groups=options.run_groups, seed=options.seed, progress=progress)
    elif code.record.launches and code.object is None:
        _complain("note: no assembler found (Debian: clang-22 and lld-22), so text and launch record only")

    if options.json:
        from convgen import report

        print(json.dumps(report.as_json(str(problem), code, files, outcome)))
    elif outcome is not None:
        from convgen import report

        report.show(report.code_rows(str(problem), code) + report.outcome_rows(outcome), sys.stdout)
    elif options.output is None:
        sys.stdout.write(code.asm)
    return FINE if outcome is None or outcome.passed else WRONG


def _compile(options: argparse.Namespace, problem: Conv) -> Code:
    """The code of a problem; that of an empty one launches nothing."""
    if problem.is_empty:
        from convgen.code import Code
        from convgen.record import LaunchRecord

        return Code(problem, options.target, "", "", None, LaunchRecord(options.target, None, (), str(problem)), {}, {})
    from convgen import driver

    program = driver.build(
        problem,
        target=options.target,
        config=options.config,
        disable=tuple(options.disable),
        dump=options.dump,
        verbose=_tell if options.verbose else None,
    )
    return driver.compile(program)


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


@contextmanager
def _progress(title: str) -> Iterator[Progress | None]:
    """A progress bar on stderr while a simulation runs, if a terminal watches."""
    if not _on_terminal():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _run(arguments: Sequence[str]) -> int:
    """`convgen run`: a launch record and its code object on the simulator."""
    parser = _Parser(prog="convgen run", description="Execute a code object on the simulator.", allow_abbrev=False)
    add = parser.add_argument
    add("record", metavar="LAUNCH.json", help="a launch record; its object lies beside it")
    add(
        "--data",
        metavar="DIR",
        help="NAME.npy of each buffer that is read; else the record's problem is filled, checked",
    )
    add("--out", metavar="DIR", help="write NAME.npy of each buffer that is written")
    add("--seed", type=_number(0), default=0, metavar="N", help="of fills (default 0)")
    add("--json", action="store_true", help="print one JSON object on stdout")
    options = parser.parse_intermixed_args(arguments)

    from pathlib import Path

    from convgen import report, verify

    with _progress(options.record) as progress:
        outcome: Outcome = verify.run_record(
            Path(options.record),
            data=None if options.data is None else Path(options.data),
            out=None if options.out is None else Path(options.out),
            seed=options.seed,
            progress=progress,
        )
    if options.json:
        print(json.dumps(report.outcome_json(outcome)))
    else:
        report.show([("record", options.record), *report.outcome_rows(outcome)], sys.stdout)
    return FINE if outcome.passed else WRONG


def _targets(arguments: Sequence[str]) -> int:
    """`convgen targets`: one line a target."""
    parser = _Parser(prog="convgen targets", description="List the targets that --target takes.", allow_abbrev=False)
    parser.parse_args(arguments)

    from convgen.backends import target as targets

    for name in targets.names():
        facts = targets.get(name).facts
        print(
            f"{name:<8} {facts.compute_units} compute units, subgroups of {facts.subgroup_size},"
            f" {facts.shared_bytes // 1024} KiB of local memory, {len(facts.atoms)} matrix instructions"
        )
    return FINE
