"""`convgen analyze`: the registers, the hot loop and the bound of each kernel of a file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from convgen.backends import family as families
from convgen.commands.arguments import Parser, files_of_code
from convgen.commands.session import FINE


def parser() -> argparse.ArgumentParser:
    slots = "; ".join(f"{family.vendor}'s {family.terms.slot}" for family in families.having("reader"))
    parser = Parser(
        "analyze",
        "Read a code object of any compiler, or assembly: registers, occupancy, the hot loop and what bounds it. Costs"
        f" are issue slots\nof one subgroup: {slots}.",
        "convgen analyze out/k{object}",
        "convgen analyze out/k{text} -v",
        "convgen analyze out/k{object} --json",
    )
    parser.add_argument("file", metavar="FILE", help=files_of_code())
    parser.add_argument("-v", dest="verbose", action="store_true", help="show the hot loop, each line with its cost")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def analyze(arguments: Sequence[str]) -> int:
    options = parser().parse_intermixed_args(arguments)

    from convgen.backends import target
    from convgen.show import analyzed, report

    analysis = target.analyze(Path(options.file))
    if options.json:
        kernels = [analyzed.as_json(kernel, analysis.terms, options.verbose) for kernel in analysis.kernels]
        print(json.dumps({"file": options.file, "target": analysis.target, "kernels": kernels}))
        return FINE
    for number, kernel in enumerate(analysis.kernels):
        if number:
            print()
        report.show(analyzed.rows(kernel, analysis), sys.stdout)
        print()
        report.show_table(("unit", "slots", "busy", "with"), analyzed.units(kernel.hot, analysis.terms), sys.stdout)
        if options.verbose:
            print()
            lines = [(f"+{n.offset:#06x}", n.kind, str(n.slots), n.text) for n in kernel.hot.lines]
            report.show_table(("at", "kind", "slots", "instruction"), lines, sys.stdout)
    return FINE
