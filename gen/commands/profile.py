"""`convgen profile`: clocks of a kernel's loop by a model of a compute unit, and which instructions wait there."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convgen.backends.timing import L2_LATENCY
from convgen.commands.arguments import Parser, number
from convgen.commands.session import FINE

if TYPE_CHECKING:
    from convgen.backends.timing import KernelProfile, LoopProfile

_SHOWN = 12  #: instructions that wait longest


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "profile",
        "Time the loop of a kernel of any compiler for CDNA, by an event model of one compute unit: waves issue in"
        " order, matrix\nunits, LDS with its bank conflicts and address pipes take what comes first (docs/time.md)."
        " Nothing is executed.",
        "convgen profile out/k.hsaco",
        "convgen profile out/k.hsaco --groups 2 -v",
        "convgen profile out/k.hsaco --json",
    )
    parser.add_argument("file", metavar="FILE", help="a code object (.hsaco) or assembly (.s)")
    parser.add_argument(
        "--groups", type=number(1), metavar="N", help="workgroups on a unit (default: one, and all it holds)"
    )
    parser.add_argument(
        "--latency",
        type=number(1),
        default=int(L2_LATENCY),
        metavar="CLOCKS",
        help=f"from a load of vector memory to its data (default {L2_LATENCY:.0f})",
    )
    parser.add_argument("-v", dest="verbose", action="store_true", help="show the whole loop, each line with its stall")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def profile(arguments: Sequence[str]) -> int:
    """`convgen profile`."""
    options = parser().parse_intermixed_args(arguments)

    from convgen.backends import target
    from convgen.commands import report

    found = target.profile(Path(options.file), float(options.latency), options.groups)
    if options.json:
        kernels = [_as_json(kernel, options.verbose) for kernel in found]
        print(json.dumps({"file": options.file, "latency": options.latency, "kernels": kernels}))
        return FINE
    for count, kernel in enumerate(found):
        if count:
            print()
        report.show([("kernel", kernel.name), ("target", kernel.target)], sys.stdout)
        for loop in kernel.loops:
            print()
            report.show(_rows(kernel, loop), sys.stdout)
        print()
        _show_lines(kernel.loops[-1], options.verbose)
    return FINE


def _rows(kernel: KernelProfile, loop: LoopProfile) -> list[tuple[str, str]]:
    busy = ", ".join(f"{pipe} {_share(clocks, loop)}" for pipe, clocks in loop.busy.items())
    return [
        ("workgroups", f"{loop.groups} on a unit, which holds {kernel.resident} of {kernel.threads} threads"),
        ("iteration", f"{loop.clocks:.0f} clocks, {loop.clocks / loop.groups:.0f} a workgroup"),
        ("around it", f"{loop.around:.0f} clocks before and behind"),
        ("busy", busy),
        ("bound", loop.bound),
    ]


def _share(clocks: float, loop: LoopProfile) -> str:
    return f"{100 * clocks / loop.clocks:.0f}%"


def _show_lines(loop: LoopProfile, verbose: bool) -> None:
    """The instructions that wait longest, or all, in the order of the loop."""
    from convgen.commands import report

    most = sorted(loop.lines, key=lambda timed: -timed.stalled)[: None if verbose else _SHOWN]
    kept = [timed for timed in loop.lines if timed in most and (verbose or timed.stalled >= 1)]
    rows = [(f"+{t.line.offset:#06x}", t.line.kind, f"{t.stalled:.0f}", t.line.text) for t in kept]
    report.show_table(("at", "kind", "stalled", "instruction"), rows, sys.stdout)


def _as_json(kernel: KernelProfile, verbose: bool) -> dict[str, Any]:
    return {
        "kernel": kernel.name,
        "target": kernel.target,
        "threads": kernel.threads,
        "resident": kernel.resident,
        "flop": kernel.flop,
        "loops": [_loop_json(loop, verbose) for loop in kernel.loops],
    }


def _loop_json(loop: LoopProfile, verbose: bool) -> dict[str, Any]:
    lines = [
        {"offset": t.line.offset, "kind": t.line.kind, "stalled": round(t.stalled, 2), "text": t.line.text}
        for t in loop.lines
    ]
    return {
        "groups": loop.groups,
        "clocks": round(loop.clocks, 2),
        "around": round(loop.around, 2),
        "busy": {pipe: round(clocks, 2) for pipe, clocks in loop.busy.items()},
        "bound": loop.bound,
        **({"lines": lines} if verbose else {}),
    }
