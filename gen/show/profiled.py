"""The output of `convgen profile`: rows and JSON of loops and launches, instructions with their stalls."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from convgen.backends import family as families
from convgen.ir.record import as_dict
from convgen.show import report

if TYPE_CHECKING:
    from convgen.backends.family import Chip
    from convgen.backends.timing import KernelProfile, LaunchProfile, LoopProfile, TimedLine, UnitProfile
    from convgen.profile.launch_times import LaunchTime, Times

_EQUAL = 0.99  #: share of the most work; workgroups with more count as equal
_SHOWN = 12  #: instructions with the longest stalls that are shown
_HOT, _WARM = 0.1, 0.02  #: shares of all stalls; lines above are red, and yellow


# ---------------------------------------------------------------- a loop


def loop_rows(kernel: KernelProfile, loop: LoopProfile) -> list[tuple[str, str]]:
    """Return the rows on a loop, or straight-line code, for a number of workgroups on a unit."""
    name, outside = ("iteration", "prologue and epilogue") if loop.is_loop else ("hot code", "code around it")
    return [
        ("workgroups", f"{loop.groups} on a unit, which holds {kernel.resident} of {kernel.threads} threads"),
        (name, f"{loop.clocks:.0f} clocks, {loop.clocks / loop.groups:.0f} a workgroup"),
        ("", f"{outside}: {loop.rest:.0f} clocks"),
        ("busy", _busy(loop.busy, loop.clocks)),
        ("bound", loop.bound),
    ]


def kernel_json(kernel: KernelProfile, verbose: bool) -> dict[str, Any]:
    """Return a kernel's loop for `--json`; `verbose`: with its instructions."""
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
        "loop": loop.is_loop,
        "clocks": round(loop.clocks, 2),
        "around": round(loop.rest, 2),
        "busy": _rounded(loop.busy),
        "bound": loop.bound,
        **({"lines": _lines_json(loop.lines)} if verbose else {}),
    }


# ---------------------------------------------------------------- launches


def launch_rows(time: LaunchTime, chip: Chip) -> list[tuple[str, str]]:
    """Return the rows on one launch."""
    launch = time.profile
    unit, moved = launch.units[launch.full], launch.moved
    alone = launch.units[1]
    limits = ", ".join(f"{count} by {what}" for what, count in launch.resident.items())
    rows = [
        ("kernel", launch.kernel),
        ("grid", f"{launch.workgroups} workgroups of {launch.threads} threads; a unit holds {limits}"),
        ("rounds", _rounds_text(launch, chip)),
        ("executed", _executed_text(launch)),
        ("loop", _loop_text(unit)),
        ("clocks", f"{alone.clocks:.0f} of a workgroup alone, {unit.clocks:.0f} of {unit.groups} on a unit"),
        ("busy", _busy(unit.busy, unit.clocks)),
        ("L1", f"{_bytes(moved.loaded)}, in lines {_bytes(moved.requested)}; {_percent(moved.l1_hits)} found there"),
        ("L2", f"{_bytes(moved.asked)} in lines; {_percent(moved.l2_hits)} found there"),
        ("memory", f"{_bytes(moved.memory)} read, {_bytes(moved.stored)} written"),
        ("clock", f"{time.clock:.0f} MHz of {chip.clock}, with {_percent(time.used)} of all matrix units at work"),
        ("alone", ", ".join(f"{cause} {us:.2f}" for cause, us in time.causes.items()) + " us"),
        ("time", f"{time.total:.2f} us: {time.start:.2f} to start, {time.kernel:.2f} of workgroups{_reduction(time)}"),
        ("bound", time.bound),
    ]
    required = [finding for finding in launch.findings if finding.source.required]
    return [*rows, ("findings", f"{len(required)}: {required[0]}")] if required else rows


def _rounds_text(launch: LaunchProfile, chip: Chip) -> str:
    """Return how workgroups are distributed over units."""
    whole = f"{launch.rounds} of {launch.full} on each of {chip.units} units"
    left = launch.workgroups - launch.rounds * launch.full * chip.units
    if not left:
        return whole
    last = f"{left} workgroups, {launch.last} on a unit"
    return f"{whole}, then {last}" if launch.rounds else f"{last} of {chip.units}"


def _executed_text(launch: LaunchProfile) -> str:
    kinds = "all alike" if launch.distinct == 1 else f"{launch.distinct} different ones"
    if launch.work.least < _EQUAL:
        least, mean = _percent(launch.work.least), _percent(launch.work.mean)
        kinds += f" with {least} or more of the longest's work, {mean} on average"
    some = f"{len(launch.executed)} of {launch.workgroups} workgroups, {kinds}"
    family = families.of_target(launch.target)
    return f"{some}; {launch.instructions:.0f} instructions a {family.terms.subgroup if family else 'subgroup'}"


def _loop_text(unit: UnitProfile) -> str:
    if not unit.loop_iterations:
        return "none"
    how = f"{unit.loop_iterations:.4g} iterations, {unit.iteration:.0f} clocks each"
    return f"{how}; {unit.left_out} of them taken from equal ones" if unit.left_out else how


def _reduction(time: LaunchTime) -> str:
    return f", {time.reduction:.2f} to reduce slices" if time.reduction else ""


def total_rows(times: Times) -> list[tuple[str, str]]:
    """Return the rows on all launches."""
    chip, total = times.chip, times.total
    flop = sum(time.profile.flop * time.profile.workgroups for time in times.launches)
    useful = f", {2e-6 * times.macs / total:.1f} TFLOP/s of the problem" if times.macs else ""
    rate = f", {1e-6 * flop / total:.1f} TFLOP/s of matrix instructions with padding" if flop else ""
    family = families.of_target(chip.target)
    assert family is not None, chip.target
    units = f"{chip.units} units of {chip.partitions} {family.terms.partition}s"
    entries = {time.entry.kind: time.entry for time in times.launches}
    return [
        ("chip", f"{chip.name} ({chip.target}), {units}"),
        ("all launches", f"{total:.2f} us{useful}{rate}"),
        *(
            ("constants", f"{e.kind}: {e.median:.1f} % off in the median of {e.rows} rows of {e.source}")
            for e in entries.values()
        ),
    ]


def launches_json(times: Times) -> dict[str, Any]:
    """Return all launches for `--json`, each with its instructions."""
    chip = times.chip
    return {
        "chip": {"name": chip.name, "target": chip.target, "units": chip.units, "xcds": chip.partitions},
        "us": round(times.total, 4),
        "problem_flop": 2 * times.macs or None,
        "launches": [_launch_json(time) for time in times.launches],
    }


def _launch_json(time: LaunchTime) -> dict[str, Any]:
    launch, moved = time.profile, time.profile.moved
    return {
        "kernel": launch.kernel,
        "workgroups": launch.workgroups,
        "threads": launch.threads,
        "held": dict(launch.resident),
        "full": launch.full,
        "rounds": launch.rounds,
        "last": launch.last,
        "executed": list(launch.executed),
        "distinct": launch.distinct,
        "instructions": round(launch.instructions, 2),
        "work": {name: round(share, 4) for name, share in as_dict(launch.work).items()},
        "flop": round(launch.flop * launch.workgroups),
        "element": launch.element,
        "moved": {
            **{name: round(count) for name, count in as_dict(moved).items()},
            "added": round(launch.added),
            "l1_hit_rate": round(moved.l1_hits, 4),
            "l2_hit_rate": round(moved.l2_hits, 4),
        },
        "clock_mhz": round(time.clock, 1),
        "matrix_used": round(time.used, 4),
        "causes_us": {cause: round(us, 4) for cause, us in time.causes.items()},
        "start_us": round(time.start, 4),
        "kernel_us": round(time.kernel, 4),
        "meeting_us": round(time.reduction, 4),
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
        "rounds": round(unit.loop_iterations, 2),
        "each": round(unit.iteration, 2),
        "left_out": unit.left_out,
        "busy": _rounded(unit.busy),
        "bound": unit.bound,
        "lines": _lines_json(unit.lines),
    }


# ---------------------------------------------------------------- both


def show_lines(lines: Sequence[TimedLine], verbose: bool) -> None:
    """Print the instructions that stall longest, longest first, or with `verbose` all in the order of the code.

    Clocks are of one subgroup: total, and per execution where some instruction is executed several times.
    """
    longest = [timed for timed in sorted(lines, key=lambda timed: -timed.stalled)[:_SHOWN] if timed.stalled >= 1]
    kept = lines if verbose else longest
    several = any(timed.times != 1 for timed in lines)
    repeats = [(f"{t.times:.4g}", f"{t.stalled / (t.times or 1):.0f}") if several else () for t in kept]
    rows = [
        (f"+{t.line.offset:#06x}", t.line.kind, f"{t.stalled:.0f}", *repeated, t.line.text)
        for t, repeated in zip(kept, repeats)
    ]
    repeated_header = ("times", "clocks each") if several else ()
    header = ("at", "kind", "stall clocks", *repeated_header, "instruction")
    total = sum(timed.stalled for timed in lines)
    report.show_table(header, rows, sys.stdout, [_style(timed.stalled / (total or 1)) for timed in kept])


def _style(share: float) -> str:
    """Return the terminal style of a line by its share of all stalls."""
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
