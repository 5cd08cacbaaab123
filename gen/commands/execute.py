"""`convgen run`: a launch record and its code object on the simulator."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from convgen.commands import session
from convgen.commands.arguments import Parser, number


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "run",
        "Execute a code object on the simulator.",
        "convgen run out/k.launch.json",
        "convgen run out/k.launch.json --data arrays --out results",
        "convgen run out/k.launch.json --set wgm=6",
    )
    add = parser.add_argument
    add("record", metavar="LAUNCH.json", help="a launch record; its object lies beside it")
    add(
        "--data",
        metavar="DIR",
        help="NAME.npy of each buffer that is read; else the record's problem is filled, checked",
    )
    add("--out", metavar="DIR", help="write NAME.npy of each buffer that is written")
    add(
        "--set", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="a scalar argument (repeatable)"
    )
    add("--seed", type=number(0), default=0, metavar="N", help="of fills (default 0)")
    add(
        "--strict",
        choices=("manual", "llvm"),
        default="manual",
        help="whose rules fail a run: the ISA manuals' (default), or also what LLVM alone asks for",
    )
    add("--json", action="store_true", help="print one JSON object on stdout")
    return parser


def _setting(text: str) -> tuple[str, int]:
    name, sep, value = text.partition("=")
    if not sep or not re.fullmatch(r"-?[0-9]{1,10}", value):
        raise argparse.ArgumentTypeError(f"given {text!r}, wanted NAME=VALUE")
    return name, int(value)


def run(arguments: Sequence[str]) -> int:
    """`convgen run`."""
    options = parser().parse_intermixed_args(arguments)

    from convgen.commands import report
    from convgen.run import verify

    with session.progress_bar(options.record) as progress:
        outcome = verify.run_record(
            Path(options.record),
            data=None if options.data is None else Path(options.data),
            out=None if options.out is None else Path(options.out),
            seed=options.seed,
            progress=progress,
            taking=session.tell_memory,
            advice=options.strict == "llvm",
            scalars=dict(options.set),
        )
    if options.json:
        print(json.dumps(report.outcome_json(outcome)))
    else:
        report.show([("record", options.record), *report.outcome_rows(outcome)], sys.stdout)
    return session.FINE if outcome.passed else session.WRONG
