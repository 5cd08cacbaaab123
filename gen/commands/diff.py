"""`convgen diff`: compare two kernels, and report why one is faster."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from convgen.commands.arguments import Parser
from convgen.commands.execute import add_launch_options
from convgen.commands.explain import code, is_code, is_file
from convgen.commands.generate import add_knobs, described, parse_knobs
from convgen.commands.session import FINE, complain
from convgen.default_target import DEFAULT_TARGET
from convgen.ir.error import UserError

if TYPE_CHECKING:
    from convgen.explain.difference import Difference
    from convgen.explain.subject import Subject

_T = TypeVar("_T")
_CHOSEN = "auto"  #: value of --config for the chosen config


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "diff",
        "Show two kernels side by side: config, registers, local memory, instruction mix of their loops, times,\n"
        "bounds and stalls of their waves; then say in words what differs and what follows from it. A and B are\n"
        "problems, launch records, or code of any compiler; one problem with two targets or two configs is two\n"
        "kernels, too. Give an option once for both kernels, or twice: first A, then B. With one problem and a single\n"
        "--config, A has the chosen config. --arg A:NAME=VALUE and B:NAME=VALUE replace an --arg for both.",
        'convgen diff mb1ic64ih56oc64oh56kh3ph1 --dir FWD_D --dt f16 --config "tile=64x64x32 waves=2x2 mma=32x32x8"',
        "convgen diff 1024x1024:1024x1024 --dt f16 --target {target} --target {newest}",
        "convgen diff out/a.launch.json out/b.launch.json --json",
        "convgen diff out/k{object} theirs{object}",
        "convgen diff a{object} b{object} --grid 16 --grid 8 --block 256 --arg n=512 --arg A:C=f32:64 --arg B:D=f32:64",
    )
    add = parser.add_argument
    add("a", metavar="A", help="MxK:KxN, benchdnn's of a convolution; a launch record or code")
    add("b", metavar="B", nargs="?", help="default: A, under another --target, --config or --grid")
    add("--chip", metavar="NAME", help="chip to model; see `convgen profile --help`")
    add("--json", action="store_true", help="print one JSON object")
    add = parser.add_argument_group("of problems").add_argument
    add(
        "--target",
        action="append",
        default=[],
        help=f"see `convgen targets` (default {DEFAULT_TARGET}); twice: of A, of B",
    )
    line = f"this config instead of the chosen one, which is `{_CHOSEN}`; twice: of A, of B"
    add("--config", action="append", default=[], metavar="LINE", help=line)
    add_launch_options(parser, twice=True)
    add_knobs(parser, "conv", "deconv", "matmul")
    return parser


def diff(arguments: Sequence[str]) -> int:
    """`convgen diff`: 0 whether they differ or not."""
    options, knobs = parse_knobs(parser(), arguments, "conv", "deconv", "matmul")
    a, b = options.a, options.b or options.a
    targets = _pair("--target", options.target, DEFAULT_TARGET)
    configs = _configs(options, options.b is None and targets[0] == targets[1])
    launch_a, launch_b = _launches(options)
    is_twice = targets[0] == targets[1] and configs[0] == configs[1] and launch_a == launch_b
    if options.b is None and is_twice:
        raise UserError(f"given {a} alone, wanted two kernels: B, or two of --target, --config or --grid")
    files = [text for text in (a, b) if is_file(text)]
    if len(files) == 2 and (knobs or options.target or options.config):
        raise UserError("given two files with options of problems, wanted them with a problem only")
    _check_launches(options, (a, b))

    from convgen.explain.difference import Difference, as_json

    difference = Difference.of(
        _subject(a, targets[0], configs[0], launch_a, knobs, options.driver),
        _subject(b, targets[1], configs[1], launch_b, knobs, options.driver),
    )
    for side in (difference.a, difference.b):
        for remark in side.subject.remarks:
            if not options.json:
                complain(f"note: {side.letter}: {remark}")
    if options.json:
        print(json.dumps(as_json(difference)))
    else:
        _print(difference)
    return FINE


def _pair(what: str, given: Sequence[_T], default: _T | None) -> tuple[_T, _T]:
    """Return the values for A and for B; one value holds for both. Raises UserError."""
    if not given and default is not None:
        given = [default]
    if not 1 <= len(given) <= 2:
        raise UserError(f"given {len(given)} of {what}, wanted one or two: A, B")
    return given[0], given[-1]


def _configs(options: argparse.Namespace, is_one: bool) -> tuple[str | None, str | None]:
    """Return the config of each side, None for the chosen one. A single config of one problem is B's."""
    given = options.config
    if len(given) == 1 and is_one:
        given = [_CHOSEN, *given]
    a, b = _pair("--config", given, _CHOSEN)
    return None if a == _CHOSEN else a, None if b == _CHOSEN else b


# ---------------------------------------------------------------- launches of code

_ONCE: Mapping[str, Any] = {"kernel": None, "grid": None, "block": None, "lds": 0}  #: option of a side -> default
_SIDES = ("A:", "B:")


def _launches(options: argparse.Namespace) -> tuple[argparse.Namespace, argparse.Namespace]:
    """Return the launches of A and B, as options of commands that take one launch."""
    a: dict[str, Any] = {"chip": options.chip}
    b = dict(a)
    for name, missing in _ONCE.items():
        a[name], b[name] = _pair(f"--{name}", getattr(options, name) or [missing], None)
    for found, side in zip((a, b), _SIDES):
        own = [(name.removeprefix(side), value) for name, value in options.arg if name.startswith(side)]
        both = [(name, value) for name, value in options.arg if not name.startswith(_SIDES)]
        found["arg"] = [each for each in both if each[0] not in dict(own)] + own
    return argparse.Namespace(**a), argparse.Namespace(**b)


def _check_launches(options: argparse.Namespace, subjects: tuple[str, str]) -> None:
    """Raise UserError for launch options without a code object, or for a side that is none."""
    are_code = list(map(is_code, subjects))
    if not any(are_code) and any(getattr(options, name) for name in (*_ONCE, "arg")):
        raise UserError("given a launch without a code object, wanted --grid, --block and --arg with one only")
    if all(are_code):
        return
    for name in _ONCE:
        if len(getattr(options, name)) > 1:
            raise UserError(f"given two of --{name} with one code object, wanted one")
    nobody = _SIDES[are_code.index(False)]
    for name, _ in options.arg:
        if name.startswith(nobody):
            raise UserError(f"given --arg {name} where {nobody[0]} is no code object, wanted it without {nobody}")


def _subject(
    text: str,
    target: str,
    config: str | None,
    launch: argparse.Namespace,
    knobs: Mapping[str, str],
    driver: str | None,
) -> Subject:
    from convgen.explain import subject

    path = Path(text)
    if not is_file(text):
        return subject.of_problem(described(text, knobs, driver), target, config, chip=launch.chip)
    if path.suffix == ".json":
        return subject.of_record(path, {}, launch.chip)
    return code(path, launch)


def _print(difference: Difference) -> None:
    from convgen.explain.difference import shown
    from convgen.show import report

    for side in (difference.a, difference.b):
        rows = [(side.letter, side.name), ("target", side.subject.target)]
        rows += [("kernel", side.kernel.name)] if side.kernel else []
        rows += [("config", " ".join(f"{k}={v}" for k, v in side.config.items()))] if side.config else []
        report.show([*rows, *([("bound", side.bound)] if side.bound else [])], sys.stdout)
        print()
    if words := difference.config():
        report.show_table(("config", "A", "B"), words, sys.stdout)
        print()
    of = "an iteration" if difference.has_loops else f"a {difference.subgroup}"
    for title, rows_of in (
        ("", difference.numbers),
        (f"{of} has", difference.mix),
        ("clocks waited", difference.stalls),
    ):
        if pairs := rows_of():
            rows_ = [
                (name, shown(a), shown(b), f"{b / a:.2f}" if a and b is not None else "")
                for name, (a, b) in pairs.items()
            ]
            report.show_table((title, "A", "B", "B : A"), rows_, sys.stdout)
            print()
    for sentence in difference.sentences():
        print(sentence)
