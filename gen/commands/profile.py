"""`convgen profile`: how long launches take by a model of a compute unit, what bounds them, where waves wait."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from convgen.backends.timing import L2_LATENCY, L3_LATENCY
from convgen.commands.arguments import Parser, number
from convgen.commands.execute import add_launch_options, add_scalars, launch_of, refuse_launch_options
from convgen.commands.session import FINE
from convgen.ir.error import UserError

if TYPE_CHECKING:
    from convgen.run.prepared import Prepared


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "profile",
        "Time launches for CDNA of any compiler by an event model of one compute unit: waves issue in order, matrix\n"
        "units, LDS with its bank conflicts and address pipes take what comes first (docs/time.md). Some workgroups\n"
        "are executed on the simulator; what waves did there, grid and caches make the time of the launch. A code\n"
        "object without a launch, and one for Xe: its loop alone, and nothing is executed.",
        "convgen profile out/k.launch.json",
        "convgen profile out/k.launch.json --timeline k.json -v",
        "convgen profile k.hsaco --grid 4 --block 256 --lds 8192 --arg A=f16:128x128 --arg C=f32:128x128 --arg n=128",
        "convgen profile out/k.hsaco --groups 2 -v",
    )
    add = parser.add_argument
    add("file", metavar="FILE", help="a launch record, a code object (.hsaco, .zebin) or assembly (.s, .asm)")
    latency = f"from a load of global memory to its data (default {L2_LATENCY:.0f}, Intel {L3_LATENCY:.0f})"
    add("--latency", type=number(1), metavar="CLOCKS", help=latency)
    add("-v", dest="verbose", action="store_true", help="show all instructions, each with its stall")
    add("--json", action="store_true", help="print one JSON object")
    add = parser.add_argument_group("of a loop alone").add_argument
    add("--groups", type=number(1), metavar="N", help="workgroups on a unit (default: one, and all it holds)")
    add = parser.add_argument_group("of a launch").add_argument
    add("--chip", metavar="NAME", help="the chip: mi250, mi250x, mi300x, mi300a, mi308x or mi355x")
    add("--rounds", type=number(8), metavar="N", help="of equal rounds of a loop, model N (default 16)")
    add("--timeline", metavar="FILE", help="write what waves and pipes did: .json for Perfetto, .svg or .png")
    add("--att", metavar="DIR", help="write it as rocprofv3 does a thread trace, for ROCprof Compute Viewer")
    add_scalars(add)
    add_launch_options(parser)
    return parser


def profile(arguments: Sequence[str]) -> int:
    """`convgen profile`."""
    options = parser().parse_intermixed_args(arguments)
    path = Path(options.file)
    if path.suffix == ".json":
        refuse_launch_options(options, path)
    if path.suffix != ".json" and options.grid is None and options.block is None:
        return _loops(path, options)
    return _launches(path, options)


# ---------------------------------------------------------------- a loop


def _loops(path: Path, options: argparse.Namespace) -> int:
    """Nothing is executed."""
    for name in ("chip", "rounds", "timeline", "att", "set", "kernel", "lds", "arg"):
        if getattr(options, name):
            raise UserError(f"given --{name} without a launch, wanted a launch record, or --grid and --block")

    from convgen.backends import target
    from convgen.show import profiled, report

    found = target.profile(path, options.latency, options.groups)
    if options.json:
        kernels = [profiled.kernel_json(kernel, options.verbose) for kernel in found]
        print(json.dumps({"file": options.file, "latency": found[0].latency, "kernels": kernels}))
        return FINE
    for count, kernel in enumerate(found):
        if count:
            print()
        report.show([("kernel", kernel.name), ("target", kernel.target)], sys.stdout)
        for loop in kernel.loops:
            print()
            report.show(profiled.loop_rows(kernel, loop), sys.stdout)
        print()
        profiled.show_lines(kernel.loops[-1].lines, options.verbose)
    return FINE


# ---------------------------------------------------------------- launches


def _launches(path: Path, options: argparse.Namespace) -> int:
    """Some workgroups of each launch are executed."""
    if options.groups:
        raise UserError(f"given --groups with a launch of {path.name}, which says how many share a unit")

    from convgen.backends import target
    from convgen.commands import att
    from convgen.profile import launch_times
    from convgen.show import profiled, report, timeline

    if options.timeline:
        timeline.check_output(options.timeline)
    rounds, latency = options.rounds or launch_times.ROUNDS, float(options.latency or L2_LATENCY)
    prepared = _prepared(path, options)
    found = launch_times.profile(prepared, options.chip, latency, rounds)
    if options.timeline:
        timeline.write([time.profile for time in found.launches], options.timeline)
    if options.att:
        kernels = {kernel.name: kernel for kernel in target.analyze_code(prepared.content, "code.hsaco").kernels}
        att.write([time.profile for time in found.launches], kernels, options.att, path.parent)
    if options.json:
        print(json.dumps({"file": options.file, "latency": latency, **profiled.launches_json(found)}))
        return FINE
    for time in found.launches:
        report.show(profiled.launch_rows(time, found.chip), sys.stdout)
        print()
        profiled.show_lines(time.profile.units[time.profile.full].lines, options.verbose)
        print()
    report.show(profiled.total_rows(found), sys.stdout)
    return FINE


def _prepared(path: Path, options: argparse.Namespace) -> Prepared:
    from convgen.run import prepared

    if path.suffix == ".json":
        return prepared.of_record(path, dict(options.set))
    if options.set:
        raise UserError(f"given --set without a launch record, wanted --arg for each argument of {path.name}")
    return prepared.of_object(path, **launch_of(options))
