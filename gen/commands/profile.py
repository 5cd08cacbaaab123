"""`convgen profile`: predict the time of launches by a model of a compute unit, their bound, and where waves wait."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from convgen.backends import family as families
from convgen.backends.family import Family, Viewer
from convgen.commands import execute
from convgen.commands.arguments import Parser, files_of_code, number, refuse
from convgen.commands.session import FINE
from convgen.ir.error import UserError, imported

if TYPE_CHECKING:
    from convgen.backends.timing import LaunchProfile
    from convgen.run.prepared import Prepared


def parser() -> argparse.ArgumentParser:
    timed = families.having("timer")
    rest = [family for family in families.having("model") if family not in timed]
    others = f", and for {_titles(rest)}" if rest else ""
    parser = Parser(
        "profile",
        f"Predict the time of launches for {_titles(timed)}, code of any compiler, by an event model of one unit:\n"
        "subgroups issue in order and compete for matrix units, shared memory with its bank conflicts, and address\n"
        "pipes (docs/time.md). The simulator executes some workgroups; their instructions, the grid and the caches\n"
        f"give the time of the launch. Without a launch{others}, the loop alone is timed, and nothing runs.",
        "convgen profile out/k.launch.json",
        "convgen profile out/k.launch.json --timeline k.json -v",
        "convgen profile k{object} --grid 4 --block 256 --lds 8192 --arg A=f16:128x128 --arg C=f32:128x128 --arg n=128",
        "convgen profile out/k{object} --groups 2 -v",
    )
    add = parser.add_argument
    add("file", metavar="FILE", help=f"a launch record, {files_of_code()}")
    defaults = ", ".join(f"{family.vendor} {family.load_latency:.0f}" for family in families.having("model"))
    latency = f"from a load of global memory to its data (default: {defaults})"
    add("--latency", type=number(1), metavar="CLOCKS", help=latency)
    add("-v", dest="verbose", action="store_true", help="show all instructions, each with its stall")
    add("--json", action="store_true", help="print one JSON object")
    add = parser.add_argument_group("of a loop alone").add_argument
    add("--groups", type=number(1), metavar="N", help="workgroups on a unit (default: one, and all it holds)")
    add = parser.add_argument_group("of a launch").add_argument
    add("--chip", metavar="NAME", help=f"chip to model: {families.listed(families.chips())}")
    add("--rounds", type=number(8), metavar="N", help="model N of the equal iterations of a loop (default 16)")
    add("--timeline", metavar="FILE", help="write a timeline of waves and pipes: .json for Perfetto, .svg or .png")
    for viewer in _viewers():
        add(viewer.option, metavar="DIR", help=viewer.help)
    execute.add_scalars(add)
    execute.add_launch_options(parser)
    return parser


def profile(arguments: Sequence[str]) -> int:
    options = parser().parse_intermixed_args(arguments)
    path = Path(options.file)
    if path.suffix == ".json":
        execute.refuse_launch_options(options, path)
    if path.suffix != ".json" and options.grid is None and options.block is None:
        return _loops(path, options)
    return _launches(path, options)


# ---------------------------------------------------------------- a loop


def _loops(path: Path, options: argparse.Namespace) -> int:
    """Time the loops of code without a launch. Nothing is executed."""
    names = ("chip", "rounds", "timeline", *(viewer.dest for viewer in _viewers()), "set", *execute.LAUNCH_OPTIONS)
    refuse(options, names, "without a launch, wanted a launch record, or --grid and --block")

    from convgen.backends import target
    from convgen.show import profiled, report

    profiles = target.profile(path, options.latency, options.groups)
    if options.json:
        kernels = [profiled.kernel_json(kernel, options.verbose) for kernel in profiles]
        print(json.dumps({"file": options.file, "latency": profiles[0].latency, "kernels": kernels}))
        return FINE
    for count, kernel in enumerate(profiles):
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
    """Time launches; some workgroups of each are executed."""
    refuse(options, ["groups"], f"with a launch of {path.name}, wanted it with a loop alone")

    from convgen.profile import launch_times
    from convgen.show import profiled, report, timeline

    if options.timeline:
        timeline.check_output(options.timeline)
    rounds, latency = options.rounds or launch_times.ROUNDS, float(options.latency) if options.latency else None
    prepared = _prepared(path, options)
    family = families.of_object(prepared.content)
    for viewer in _viewers():
        if getattr(options, viewer.dest) and (family is None or family.viewer != viewer):
            raise UserError(f"given {viewer.option} with {path.name}, wanted it with code that this viewer shows")
    times = launch_times.profile(prepared, options.chip, latency, rounds)
    assert family is not None  # it has a timer
    if options.timeline:
        timeline.write([time.profile for time in times.launches], options.timeline)
    if family.viewer and (folder := getattr(options, family.viewer.dest)):
        profiles = [time.profile for time in times.launches]
        write_for_viewer(family, profiles, prepared.content, Path(folder), path.parent)
    if options.json:
        latency_used = latency or family.load_latency
        print(json.dumps({"file": options.file, "latency": latency_used, **profiled.launches_json(times)}))
        return FINE
    for time in times.launches:
        report.show(profiled.launch_rows(time, times.chip), sys.stdout)
        print()
        profiled.show_lines(time.profile.units[time.profile.full].lines, options.verbose)
        print()
    report.show(profiled.total_rows(times), sys.stdout)
    return FINE


def write_for_viewer(
    family: Family, launches: Sequence[LaunchProfile], content: bytes, folder: Path, beside: Path
) -> None:
    """Write launches of a code object into a folder as a family's viewer reads them.

    Sources of debug information lie `beside`. Raises UserError where a file cannot be written.
    """
    from convgen.backends import target
    from convgen.run.files import write_all

    assert family.viewer is not None
    module = imported(family.viewer.module)
    analysis = target.analyze_code(content, f"code{family.object_suffix}")
    kernels = {kernel.name: kernel for kernel in analysis.kernels}
    files: Mapping[PurePath, bytes] = module.files(launches, kernels, beside)
    contents = {folder / path: content for path, content in files.items()}
    write_all(contents, family.viewer.option)
    remove_old(folder, module.EARLIER_FILES, contents)


def remove_old(folder: Path, pattern: str, written: Collection[Path]) -> None:
    """Remove files that an earlier call left in folders that were written to."""
    for old in set(folder.glob(pattern)) - set(written):
        if any(path.parent == old.parent for path in written):
            old.unlink(missing_ok=True)


def _viewers() -> list[Viewer]:
    return [family.viewer for family in families.families() if family.viewer]


def _titles(some: Iterable[Family]) -> str:
    return families.listed((family.title for family in some), "and")


def _prepared(path: Path, options: argparse.Namespace) -> Prepared:
    from convgen.run import prepared

    if path.suffix == ".json":
        return prepared.of_record(path, dict(options.set))
    refuse(options, ["set"], f"without a launch record, wanted --arg for each argument of {path.name}")
    return prepared.of_object(path, execute.launch_of(options))
