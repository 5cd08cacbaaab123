"""`convgen targets` and `convgen passes`: what there is."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from convgen.commands.arguments import Parser
from convgen.commands.session import FINE


def targets_parser() -> argparse.ArgumentParser:
    return Parser("targets", "List the targets that --target takes.", "convgen targets")


def targets(arguments: Sequence[str]) -> int:
    """`convgen targets`: one line a target."""
    targets_parser().parse_args(arguments)

    from convgen.backends import target

    for name in target.names():
        facts = target.get(name).facts
        print(
            f"{name:<8} {facts.compute_units} compute units, subgroups of {facts.subgroup_size},"
            f" {facts.shared_bytes // 1024} KiB of local memory, {len(facts.atoms)} matrix instructions"
        )
    return FINE


def passes_parser() -> argparse.ArgumentParser:
    parser = Parser(
        "passes",
        "List the passes in the order in which they run, and the stages of a target's back end behind them. An"
        " optimising one can be switched off with --disable.",
        "convgen passes --target xehpc",
        "convgen passes --json",
    )
    parser.add_argument("--target", default="gfx942", help="whose stages (default gfx942)")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    return parser


def passes(arguments: Sequence[str]) -> int:
    """`convgen passes`: name, level, kind and contract of each."""
    options = passes_parser().parse_args(arguments)

    from convgen.commands import report
    from convgen.commands.steps import steps

    rows = [{"name": s.name, "level": s.level, "kind": s.kind, "contract": s.contract} for s in steps(options.target)]
    if options.json:
        print(json.dumps(rows))
    else:
        report.show_table(tuple(rows[0]), [tuple(row.values()) for row in rows], sys.stdout)
    return FINE
