"""`convgen run`: execute a launch record, or any code object without a record, on the simulator or a device."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convgen.commands import session
from convgen.commands.arguments import Parser, add_device, add_finding_options, number, refuse
from convgen.commands.wave_watch import watching_waves
from convgen.ir.error import UserError

if TYPE_CHECKING:
    from convgen.backends.simulation import Scrutiny
    from convgen.run.foreign_launch import LaunchOptions
    from convgen.run.verdict import Outcome

LAUNCH_OPTIONS = ("kernel", "grid", "block", "lds", "arg")  #: names of those that `add_launch_options` adds

_ARGUMENT = "an argument by name or number: a number, FILE.npy, TYPE:DIMS (undefined) or zeros:TYPE:DIMS (repeatable)"


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "run",
        "Execute the launches of a record, or any kernel of a code object, on the simulator or on a device.",
        "convgen run out/k.launch.json",
        "convgen run out/k.launch.json --data arrays --out results",
        "convgen run out/k.launch.json --set wgm=6",
        "convgen run out/k.launch.json --on {device}",
        "convgen run k{object} --grid 4 --block 256 --lds 8192 --arg A=a.npy --arg C=f32:64x64 --arg n=64"
        " --out C=c.npy",
    )
    add = parser.add_argument
    add("record", metavar="FILE", help="a launch record, whose object lies beside it, or a code object")
    add_device(add)
    add_finding_options(add)
    add("--trace", metavar="FILE", help="write each executed instruction: place, workgroups and waves, text")
    add("--break", dest="place", metavar="PLACE", help="print registers when a wave comes to a label, or +BYTES")
    add("--json", action="store_true", help="print one JSON object on stdout")
    add(
        "--out",
        action="append",
        default=[],
        metavar="DIR|NAME=FILE",
        help="write buffers after the run: a record's to DIR, array NAME of a code object to FILE.npy",
    )
    add = parser.add_argument_group("of a launch record").add_argument
    add(
        "--data",
        metavar="DIR",
        help="read inputs from NAME.npy; default: fill the record's problem and check its outputs",
    )
    add_scalars(add)
    add("--seed", type=number(0), default=0, metavar="N", help="seed of inputs (default 0)")
    add_launch_options(parser)
    return parser


def add_scalars(add: Callable[..., object]) -> None:
    """Add the option that sets scalars which a launch record lets the host choose."""
    add("--set", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="set a scalar (repeatable)")


def add_launch_options(parser: argparse.ArgumentParser, *, twice: bool = False) -> None:
    """Add the options that launch a code object without a record; options that may be given `twice` are lists."""
    add = parser.add_argument_group("of a code object").add_argument
    often: dict[str, Any] = {"action": "append", "default": []} if twice else {}
    add("--kernel", **often, metavar="SYMBOL", help="kernel to launch, if there are several")
    add("--grid", **often, type=_extents, metavar="X[,Y[,Z]]", help="workgroups")
    add("--block", **often, type=_extents, metavar="X[,Y[,Z]]", help="work-items of a workgroup")
    beyond = "local memory beyond what the kernel declares"
    add("--lds", **({"default": 0} | often), type=number(0), metavar="BYTES", help=beyond)
    add("--arg", type=_pair, action="append", default=[], metavar="NAME=VALUE", help=_ARGUMENT)


def refuse_launch_options(options: argparse.Namespace, path: Path) -> None:
    """Raise UserError for options that a launch record states itself."""
    refuse(options, LAUNCH_OPTIONS, f"with the launch record {path.name}, wanted it with a code object only")


def launch_of(options: argparse.Namespace) -> LaunchOptions:
    """Return the values of `add_launch_options`, for functions that launch a code object without a record."""
    from convgen.run.foreign_launch import LaunchOptions

    return LaunchOptions(options.kernel, options.grid, options.block, options.lds, options.arg)


def _setting(text: str) -> tuple[str, int]:
    name, sep, value = text.partition("=")
    if not sep or not re.fullmatch(r"-?[0-9]{1,10}", value):
        raise argparse.ArgumentTypeError(f"given {text!r}, wanted NAME=VALUE")
    return name, int(value)


def _pair(text: str) -> tuple[str, str]:
    name, sep, value = text.partition("=")
    if not sep or not name or not value:
        raise argparse.ArgumentTypeError(f"given {text!r}, wanted NAME=VALUE")
    return name, value


def _extents(text: str) -> tuple[int, int, int]:
    sizes = text.split(",")
    if len(sizes) > 3 or not all(re.fullmatch(r"[1-9][0-9]{0,9}", size) for size in sizes):
        raise argparse.ArgumentTypeError(f"given {text!r}, wanted X, X,Y or X,Y,Z from 1")
    x, y, z = [*map(int, sizes), 1, 1][:3]
    return x, y, z


def run(arguments: Sequence[str]) -> int:
    options = parser().parse_intermixed_args(arguments)
    path = Path(options.record)
    if options.on is not None:
        _refuse_simulator_options(options)

    from convgen.backends.simulation import Scrutiny
    from convgen.show import report

    with watching_waves(options.trace, options.place, sys.stderr if options.json else sys.stdout) as (watch, places):
        scrutiny = Scrutiny(options.allow, watch, places)
        outcome = _of_record(path, options, scrutiny) if path.suffix == ".json" else _directly(path, options, scrutiny)
    if options.json:
        print(json.dumps(report.outcome_json(outcome)))
    else:
        kind = "record" if path.suffix == ".json" else "object"
        hints = report.hint_rows(outcome) if kind == "object" else []
        report.show([(kind, options.record), *report.outcome_rows(outcome), *hints], sys.stdout)
    return session.FINE if outcome.passed else session.WRONG


def _refuse_simulator_options(options: argparse.Namespace) -> None:
    """Raise UserError for options that only a simulator supports."""
    given = {"trace": options.trace, "break": options.place, "allow": options.allow, "strict": options.strict == "llvm"}
    why = f"with --on {options.on}, wanted it without: only the simulator does that"
    refuse(argparse.Namespace(**given), given, why)


def _of_record(path: Path, options: argparse.Namespace, scrutiny: Scrutiny) -> Outcome:
    refuse_launch_options(options, path)
    for name, given in (("data", [options.data]), ("out", options.out)):
        if "" in given:
            raise UserError(f"given an empty name, wanted a directory, at --{name}")
    if len(options.out) > 1 or any("=" in out for out in options.out):
        raise UserError(f"given --out {options.out[-1]}, wanted one directory for the buffers of {path.name}")
    from convgen.run import verdict

    with session.progress_bar(options.record) as progress:
        return verdict.run_record(
            path,
            data=None if options.data is None else Path(options.data),
            out=Path(options.out[0]) if options.out else None,
            seed=options.seed,
            progress=progress,
            report_bytes=session.report_bytes,
            advice=options.strict == "llvm",
            scalars=dict(options.set),
            scrutiny=scrutiny,
            on=session.device_of(options),
        )


def _directly(path: Path, options: argparse.Namespace, scrutiny: Scrutiny) -> Outcome:
    refuse(options, ("data", "set", "seed"), f"without a launch record, wanted --arg for each argument of {path.name}")
    outputs = [(name, file) for name, _, file in (out.partition("=") for out in options.out)]
    for name, file in outputs:
        if not name or not file:
            raise UserError(f"given --out {name}, wanted NAME=FILE for each array of {path.name}")
    from convgen.run import foreign_launch

    with session.progress_bar(options.record) as progress:
        return foreign_launch.run(
            path,
            launch_of(options),
            outputs=outputs,
            progress=progress,
            advice=options.strict == "llvm",
            scrutiny=scrutiny,
            on=session.device_of(options),
        )
