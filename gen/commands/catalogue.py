"""`convgen targets` and `convgen passes`: list targets, matrix instructions and passes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from convgen.commands.arguments import Parser
from convgen.commands.session import FINE
from convgen.default_target import DEFAULT_TARGET

if TYPE_CHECKING:
    from convgen.backends.target import Target


def targets_parser() -> argparse.ArgumentParser:
    parser = Parser(
        "targets",
        "List the targets of --target; for one TARGET, its matrix instructions and their types (`mma=` in a config).",
        "convgen targets",
        "convgen targets {target}",
        "convgen targets --json",
    )
    parser.add_argument("target", nargs="?", metavar="TARGET", help="list the matrix instructions of this target")
    parser.add_argument("--json", action="store_true", help="print one JSON array, of targets with their instructions")
    return parser


def targets(arguments: Sequence[str]) -> int:
    """`convgen targets`: one line a target, or one line a matrix instruction of one target."""
    options = targets_parser().parse_args(arguments)

    from convgen.backends import target
    from convgen.show import report

    listed = [(name, target.get(name)) for name in ([options.target] if options.target else target.names())]
    if options.json:
        print(json.dumps([_target_json(name, each) for name, each in listed]))
    elif options.target:
        rows = [tuple(map(str, row.values())) for _, each in listed for row in _instructions(each)]
        report.show_table(_INSTRUCTION, rows, sys.stdout)
    else:
        header = ("target", "units", "lanes", "shared KiB", "matrix instructions", "products")
        rows = [
            (
                name,
                str(each.facts.compute_units),
                str(each.facts.subgroup_size),
                str(each.facts.shared_bytes // 1024),
                str(len(each.facts.atoms)),
                ", ".join(each.products),
            )
            for name, each in listed
        ]
        report.show_table(header, rows, sys.stdout)
    return FINE


_INSTRUCTION = ("mma", "instruction", "a", "b", "sums", "clocks")


def _instructions(target: Target) -> list[dict[str, str | int]]:
    """Return a row for each matrix instruction, by the columns of `_INSTRUCTION`."""
    rows: list[dict[str, str | int]] = []
    for atom in (*target.facts.atoms, *target.facts.scaled_atoms):
        a, b = (elem if not atom.rounds_to else f"{elem} ({atom.rounds_to})" for elem in atom.factor_types)
        values = f"{atom.n}x{atom.m}x{atom.k}", atom.name, str(a), str(b), str(atom.acc), atom.clocks
        rows.append(dict(zip(_INSTRUCTION, values)))
    return rows


def _target_json(name: str, target: Target) -> dict[str, object]:
    facts = target.facts
    return {
        "target": name,
        "products": list(target.products),
        "compute_units": facts.compute_units,
        "subgroup_size": facts.subgroup_size,
        "shared_bytes": facts.shared_bytes,
        "matrix_instructions": _instructions(target),
    }


def passes_parser() -> argparse.ArgumentParser:
    parser = Parser(
        "passes",
        "List the passes in order, then the stages of a target's back end. --disable switches optimising ones off.",
        "convgen passes --target {other}",
        "convgen passes --json",
    )
    parser.add_argument(
        "--target", default=DEFAULT_TARGET, help=f"target whose stages are listed (default {DEFAULT_TARGET})"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    return parser


def passes(arguments: Sequence[str]) -> int:
    """`convgen passes`: name, level, kind and contract of each."""
    options = passes_parser().parse_args(arguments)

    from convgen.compile_steps import steps
    from convgen.show import report

    rows = [{"name": s.name, "level": s.level, "kind": s.kind, "contract": s.contract} for s in steps(options.target)]
    if options.json:
        print(json.dumps(rows))
    else:
        report.show_table(tuple(rows[0]), [tuple(row.values()) for row in rows], sys.stdout)
    return FINE
