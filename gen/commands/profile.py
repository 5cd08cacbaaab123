"""`convgen profile`: how long launches take by a model of a compute unit, what bounds them, where waves wait."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from convgen.backends.timing import L2_LATENCY
from convgen.commands.arguments import Parser, number
from convgen.commands.execute import add_launch_options, add_scalars, refuse_launch_options
from convgen.commands.session import FINE
from convgen.ir.error import UserError

if TYPE_CHECKING:
    from convgen.backends.timing import KernelProfile, LaunchProfile, LoopProfile, TimedLine, UnitProfile
    from convgen.profile.chips import Chip
    from convgen.profile.launches import LaunchTime, Times
    from convgen.run.prepared import Prepared

_SHOWN = 12  #: instructions that wait longest
_HOT, _WARM = 0.1, 0.02  #: shares of all stalls from which lines stand in red, and in yellow


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "profile",
        "Time launches for CDNA of any compiler by an event model of one compute unit: waves issue in order, matrix\n"
        "units, LDS with its bank conflicts and address pipes take what comes first (docs/time.md). Some workgroups\n"
        "are executed on the simulator; what waves did there, grid and caches make the time of the launch. A code\n"
        "object without a launch: its loop alone, and nothing is executed.",
        "convgen profile out/k.launch.json",
        "convgen profile out/k.launch.json --timeline k.json -v",
        "convgen profile k.hsaco --grid 4 --block 256 --lds 8192 --arg A=f16:128x128 --arg C=f32:128x128 --arg n=128",
        "convgen profile out/k.hsaco --groups 2 -v",
    )
    add = parser.add_argument
    add("file", metavar="FILE", help="a launch record, a code object (.hsaco) or assembly (.s)")
    latency = f"from a load of vector memory to its data (default {L2_LATENCY:.0f})"
    add("--latency", type=number(1), default=int(L2_LATENCY), metavar="CLOCKS", help=latency)
    add("-v", dest="verbose", action="store_true", help="show all instructions, each with its stall")
    add("--json", action="store_true", help="print one JSON object")
    add = parser.add_argument_group("of a loop alone").add_argument
    add("--groups", type=number(1), metavar="N", help="workgroups on a unit (default: one, and all it holds)")
    add = parser.add_argument_group("of a launch").add_argument
    add("--chip", metavar="NAME", help="the chip: mi250, mi250x, mi300x, mi300a, mi308x or mi355x")
    add("--rounds", type=number(2), metavar="N", help="of equal rounds of a loop, model N (default 16)")
    add("--timeline", metavar="FILE", help="write what waves and pipes did: .json for Perfetto, .svg or .png")
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
    for name in ("chip", "rounds", "timeline", "set", "kernel", "lds", "arg"):
        if getattr(options, name):
            raise UserError(f"given --{name} without a launch, wanted a launch record, or --grid and --block")

    from convgen.backends import target
    from convgen.commands import report

    found = target.profile(path, float(options.latency), options.groups)
    if options.json:
        kernels = [_kernel_json(kernel, options.verbose) for kernel in found]
        print(json.dumps({"file": options.file, "latency": options.latency, "kernels": kernels}))
        return FINE
    for count, kernel in enumerate(found):
        if count:
            print()
        report.show([("kernel", kernel.name), ("target", kernel.target)], sys.stdout)
        for loop in kernel.loops:
            print()
            report.show(_loop_rows(kernel, loop), sys.stdout)
        print()
        _show_lines(kernel.loops[-1].lines, options.verbose)
    return FINE


def _loop_rows(kernel: KernelProfile, loop: LoopProfile) -> list[tuple[str, str]]:
    return [
        ("workgroups", f"{loop.groups} on a unit, which holds {kernel.resident} of {kernel.threads} threads"),
        ("iteration", f"{loop.clocks:.0f} clocks, {loop.clocks / loop.groups:.0f} a workgroup"),
        ("around it", f"{loop.around:.0f} clocks before and behind"),
        ("busy", _busy(loop.busy, loop.clocks)),
        ("bound", loop.bound),
    ]


def _kernel_json(kernel: KernelProfile, verbose: bool) -> dict[str, Any]:
    return {
        "kernel": kernel.name,
        "target": kernel.target,
        "threads": kernel.threads,
        "resident": kernel.resident,
        "flop": kernel.flop,
        "loops": [_loop_json(loop, verbose) for loop in kernel.loops],
    }


def _loop_json(loop: LoopProfile, verbose: bool) -> dict[str, Any]:
    return {
        "groups": loop.groups,
        "clocks": round(loop.clocks, 2),
        "around": round(loop.around, 2),
        "busy": _rounded(loop.busy),
        "bound": loop.bound,
        **({"lines": _lines_json(loop.lines)} if verbose else {}),
    }


# ---------------------------------------------------------------- launches


def _launches(path: Path, options: argparse.Namespace) -> int:
    """Some workgroups of each launch are executed."""
    if options.groups:
        raise UserError(f"given --groups with a launch of {path.name}, which says how many share a unit")

    from convgen.commands import report, timeline
    from convgen.profile import launches

    if options.timeline:
        timeline.check_output(options.timeline)
    rounds = options.rounds or launches.ROUNDS
    found = launches.profile(_prepared(path, options), options.chip, float(options.latency), rounds)
    if options.timeline:
        timeline.write([time.profile for time in found.launches], options.timeline)
    if options.json:
        print(json.dumps(_launches_json(options, found)))
        return FINE
    for time in found.launches:
        report.show(_launch_rows(time, found.chip), sys.stdout)
        print()
        _show_lines(time.profile.units[time.profile.full].lines, options.verbose)
        print()
    report.show(_total_rows(found), sys.stdout)
    return FINE


def _prepared(path: Path, options: argparse.Namespace) -> Prepared:
    from convgen.run import prepared

    if path.suffix == ".json":
        return prepared.of_record(path, dict(options.set))
    if options.set:
        raise UserError(f"given --set without a launch record, wanted --arg for each argument of {path.name}")
    return prepared.of_object(
        path,
        kernel=options.kernel,
        grid=options.grid,
        block=options.block,
        dynamic_lds=options.lds,
        arguments=options.arg,
    )


def _launch_rows(time: LaunchTime, chip: Chip) -> list[tuple[str, str]]:
    launch = time.profile
    unit, moved = launch.units[launch.full], launch.moved
    alone = launch.units[1]
    limits = ", ".join(f"{count} by {what}" for what, count in launch.held.items())
    rows = [
        ("kernel", launch.kernel),
        ("grid", f"{launch.workgroups} workgroups of {launch.threads} threads; a unit holds {limits}"),
        ("rounds", _rounds_text(launch, chip)),
        ("executed", _executed_text(launch)),
        ("loop", _loop_text(unit)),
        ("clocks", f"{alone.clocks:.0f} of a workgroup alone, {unit.clocks:.0f} of {unit.groups} on a unit"),
        ("busy", _busy(unit.busy, unit.clocks)),
        (
            "L1",
            f"{_bytes(moved.loaded)} read, in lines {_bytes(moved.requested)}, {_percent(moved.l1_hits)} found there",
        ),
        ("L2", f"{_bytes(moved.asked)} read in lines, {_percent(moved.l2_hits)} found there"),
        ("memory", f"{_bytes(moved.memory)} read, {_bytes(moved.stored)} written"),
        ("clock", f"{time.clock:.0f} MHz of {chip.clock}, with {_percent(time.used)} of all matrix units at work"),
        ("alone", ", ".join(f"{cause} {us:.2f}" for cause, us in time.causes.items()) + " us"),
        ("time", f"{time.total:.2f} us: {time.start:.2f} to start, {time.kernel:.2f} of workgroups{_meeting(time)}"),
        ("bound", time.bound),
    ]
    required = [finding for finding in launch.findings if finding.source.required]
    return [*rows, ("findings", f"{len(required)}: {required[0]}")] if required else rows


def _rounds_text(launch: LaunchProfile, chip: Chip) -> str:
    """How workgroups come to units."""
    whole = f"{launch.rounds} of {launch.full} on each of {chip.units} units"
    left = launch.workgroups - launch.rounds * launch.full * chip.units
    if not left:
        return whole
    last = f"{left} workgroups, {launch.last} on a unit"
    return f"{whole}, then {last}" if launch.rounds else f"{last} of {chip.units}"


def _executed_text(launch: LaunchProfile) -> str:
    what = "all alike" if launch.distinct == 1 else f"{launch.distinct} different ones"
    some = f"{len(launch.executed)} of {launch.workgroups} workgroups, {what}"
    return f"{some}; {launch.instructions:.0f} instructions a wave"


def _loop_text(unit: UnitProfile) -> str:
    if not unit.rounds:
        return "none"
    how = f"{unit.rounds:.4g} rounds, {unit.each:.0f} clocks each"
    return f"{how}; {unit.left_out} of them told by others that are equal" if unit.left_out else how


def _meeting(time: LaunchTime) -> str:
    return f", {time.meeting:.2f} of sums that meet" if time.meeting else ""


def _total_rows(found: Times) -> list[tuple[str, str]]:
    chip, total = found.chip, found.total
    flop = sum(time.profile.flop * time.profile.workgroups for time in found.launches)
    rate = f", {1e-6 * flop / total:.1f} TFLOP/s of matrix instructions" if flop else ""
    units = f"{chip.units} units of {chip.partitions} XCDs"
    entries = {time.entry.kind: time.entry for time in found.launches}
    return [
        ("chip", f"{chip.name} ({chip.target}), {units}"),
        ("all launches", f"{total:.2f} us{rate}"),
        *(
            ("constants", f"{e.kind}: {e.median:.1f} % off in the median of {e.rows} rows of {e.source}")
            for e in entries.values()
        ),
    ]


def _launches_json(options: argparse.Namespace, found: Times) -> dict[str, Any]:
    chip = found.chip
    return {
        "file": options.file,
        "latency": options.latency,
        "chip": {"name": chip.name, "target": chip.target, "units": chip.units, "xcds": chip.partitions},
        "us": round(found.total, 4),
        "launches": [_launch_json(time) for time in found.launches],
    }


def _launch_json(time: LaunchTime) -> dict[str, Any]:
    launch, moved = time.profile, time.profile.moved
    return {
        "kernel": launch.kernel,
        "workgroups": launch.workgroups,
        "threads": launch.threads,
        "held": dict(launch.held),
        "full": launch.full,
        "rounds": launch.rounds,
        "last": launch.last,
        "executed": list(launch.executed),
        "distinct": launch.distinct,
        "instructions": round(launch.instructions, 2),
        "flop": round(launch.flop * launch.workgroups),
        "element": launch.element,
        "moved": {
            **{name: round(count) for name, count in attrs.asdict(moved).items()},
            "added": round(launch.added),
            "l1_hit_rate": round(moved.l1_hits, 4),
            "l2_hit_rate": round(moved.l2_hits, 4),
        },
        "clock_mhz": round(time.clock, 1),
        "matrix_used": round(time.used, 4),
        "causes_us": {cause: round(us, 4) for cause, us in time.causes.items()},
        "start_us": round(time.start, 4),
        "kernel_us": round(time.kernel, 4),
        "meeting_us": round(time.meeting, 4),
        "us": round(time.total, 4),
        "bound": time.bound,
        "constants": time.entry.kind,
        "units": [_unit_json(unit) for unit in launch.units.values()],
        "findings": [str(finding) for finding in launch.findings],
        "seconds": round(launch.seconds, 4),
    }


def _unit_json(unit: UnitProfile) -> dict[str, Any]:
    return {
        "groups": unit.groups,
        "clocks": round(unit.clocks, 2),
        "rounds": round(unit.rounds, 2),
        "each": round(unit.each, 2),
        "left_out": unit.left_out,
        "busy": _rounded(unit.busy),
        "bound": unit.bound,
        "lines": _lines_json(unit.lines),
    }


# ---------------------------------------------------------------- both


def _show_lines(lines: Sequence[TimedLine], verbose: bool) -> None:
    """The instructions that wait longest, or all, in the order of their addresses."""
    from convgen.commands import report

    most = sorted(lines, key=lambda timed: -timed.stalled)[: None if verbose else _SHOWN]
    kept = [timed for timed in lines if timed in most and (verbose or timed.stalled >= 1)]
    several = any(timed.times != 1 for timed in lines)
    times = [(f"{timed.times:.4g}",) if several else () for timed in kept]
    rows = [
        (f"+{t.line.offset:#06x}", t.line.kind, *often, f"{t.stalled:.0f}", t.line.text)
        for t, often in zip(kept, times)
    ]
    header = ("at", "kind", *(("times",) if several else ()), "stalled", "instruction")
    total = sum(timed.stalled for timed in lines)
    report.show_table(header, rows, sys.stdout, [_style(timed.stalled / (total or 1)) for timed in kept])


def _style(share: float) -> str:
    """On a terminal, of a line that has such a share of all stalls."""
    return "bold red" if share >= _HOT else "yellow" if share >= _WARM else ""


def _lines_json(lines: Sequence[TimedLine]) -> list[dict[str, Any]]:
    return [
        {
            "offset": t.line.offset,
            "kind": t.line.kind,
            "times": round(t.times, 4),
            "stalled": round(t.stalled, 2),
            "text": t.line.text,
        }
        for t in lines
    ]


def _busy(busy: Mapping[str, float], clocks: float) -> str:
    return ", ".join(f"{pipe} {_percent(spent / clocks)}" for pipe, spent in busy.items())


def _rounded(busy: Mapping[str, float]) -> dict[str, float]:
    return {pipe: round(clocks, 2) for pipe, clocks in busy.items()}


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
