"""The activity of a unit's subgroups and pipes over time: Chrome's trace format, which Perfetto opens, and a picture.

In the trace a clock is a nanosecond, whatever the chip's clock rate, so that every time is a whole number. Each SIMD is
a process with a track for each of its subgroups and one for its matrix unit; shared memory and the address pipe belong
to the unit. The groups of kinds of instructions come from the target's family (`backends.analysis.Terms`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from convgen.backends import family as families
from convgen.backends.analysis import GROUPS, Terms
from convgen.backends.timing import LaunchProfile, Slice, UnitProfile
from convgen.ir.error import UserError
from convgen.run.files import write_all
from convgen.show import drawing
from convgen.show.drawing import EMPTY, FAINT, PALETTE, Box, Drawing, Line

_KNOB = "--timeline"
_PER_US = 1000  #: clocks of a microsecond of the trace
_LEFT, _TOP, _WIDTH, _ROW, _TEXT = 220, 72, 960, 18, 12  #: pixels
_MARKS = 10  #: steps of the axis at most
_COLOURS = dict(zip(GROUPS, (PALETTE[0], FAINT, PALETTE[1], PALETTE[3], PALETTE[2], PALETTE[4]), strict=True))


def check_output(output: str) -> None:
    """Raise UserError unless a timeline can have this name."""
    if Path(output).suffix not in (".json", ".svg", ".png"):
        raise UserError(f"given {output}, wanted FILE.json, FILE.svg or FILE.png, at {_KNOB}")


def write(launches: Sequence[LaunchProfile], output: str) -> None:
    """Write all launches, one after the other, as a trace; or a picture of the longest one."""
    if Path(output).suffix != ".json":
        longest = max(launches, key=lambda launch: launch.units[launch.full].clocks)
        drawing.write(picture(longest), output, knob=_KNOB)
    else:
        write_all({Path(output): json.dumps(trace(launches)).encode() + b"\n"}, _KNOB)


# ---------------------------------------------------------------- a trace


def trace(launches: Sequence[LaunchProfile]) -> dict[str, Any]:
    """Return Chrome's JSON object: the names of processes and threads, then complete events by time."""
    named: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    begin, process = 0.0, 0
    for launch in launches:
        slices = launch.units[launch.full].slices()
        for lane, tracks in _lanes(slices):
            process += 1
            named.append(_metadata("process_name", process, 0, f"{launch.kernel}: {lane}"))
            for thread, (track, some) in enumerate(tracks):
                named.append(_metadata("thread_name", process, thread, track))
                events += [_event(s, begin, process, thread) for s in some]
        begin += max((s.start + s.clocks for s in slices), default=0.0)
    events.sort(key=lambda event: (event["ts"], event["pid"], event["tid"]))
    remarks = {"clocks": "1 ns is 1 clock", "kernels": [launch.kernel for launch in launches]}
    return {"traceEvents": [*named, *events], "displayTimeUnit": "ns", "otherData": remarks}


def _lanes(slices: Iterable[Slice]) -> Iterator[tuple[str, list[tuple[str, list[Slice]]]]]:
    """Yield the slices by lane and track, in this order."""
    for lane, slices_of_lane in groupby(slices, lambda s: s.lane):
        yield lane, [(track, list(some)) for track, some in groupby(slices_of_lane, lambda s: s.track)]


def _metadata(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _event(s: Slice, begin: float, process: int, thread: int) -> dict[str, Any]:
    return {
        "name": f"+{s.offset:#06x} {s.name}",
        "cat": s.kind,
        "ph": "X",
        "ts": round(begin + s.start) / _PER_US,
        "dur": (round(begin + s.start + s.clocks) - round(begin + s.start)) / _PER_US,
        "pid": process,
        "tid": thread,
    }


# ---------------------------------------------------------------- a picture


def picture(launch: LaunchProfile) -> Drawing:
    """Draw a row for each track under an axis of clocks; each pixel shows the group that takes most of its clocks."""
    family = families.of_target(launch.target)
    assert family is not None, launch.target
    terms, unit = family.terms, launch.units[launch.full]
    slices = unit.slices()
    end = max((s.start + s.clocks for s in slices), default=1.0)
    groups = f"{unit.groups} workgroup{'s' * (unit.groups > 1)}"
    title = f"{launch.kernel} on {launch.target}: {groups} on a unit, {unit.clocks:.0f} clocks"
    lines = [Line(_LEFT / 10, _TOP / 3, title, size=_TEXT + 4)]
    tracks_of = list(_lanes(slices))
    boxes = list(_grid(end, _ROW * sum(len(tracks) for _, tracks in tracks_of)))
    lines += _axis(end)
    y = float(_TOP)
    for lane, tracks in tracks_of:
        for track, some in tracks:
            lines.append(Line(_LEFT - 8, y + _ROW / 2, f"{lane}, {track}", "end", _TEXT))
            boxes += _row(some, terms, end, y)
            y += _ROW
    for n, (name, colour) in enumerate(_COLOURS.items()):
        boxes.append(Box(_LEFT + n * 110, y + _ROW, _TEXT, _TEXT, colour))
        shown = terms.shared if name == "shared" else name
        lines.append(Line(_LEFT + n * 110 + 18, y + _ROW + _TEXT / 2, shown, size=_TEXT))
    remark = _remark(unit, end)
    lines.append(Line(_LEFT, y + 3 * _ROW, remark, size=_TEXT))
    return Drawing(title, remark or title, _LEFT + _WIDTH + 24, int(y + 4 * _ROW), 0, boxes, lines)


def marks(end: float) -> list[int]:
    """Return the clocks that an axis up to `end` names: at most _MARKS steps of 1, 2 or 5 times a power of ten."""
    steps = (factor * 10**power for power in range(12) for factor in (1, 2, 5))
    step = next(step for step in steps if end <= _MARKS * step)
    return list(range(0, int(end) + 1, step))


def _axis(end: float) -> Iterator[Line]:
    """Yield the axis above the rows: its name, and the clock of each mark."""
    yield Line(_LEFT - 8, _TOP - _ROW / 2, "clock", "end", _TEXT)
    for clock in marks(end):
        yield Line(_LEFT + clock / end * _WIDTH, _TOP - _ROW / 2, f"{clock:,}", "middle", _TEXT)


def _grid(end: float, height: int) -> Iterator[Box]:
    """Yield a line down through all rows at each mark."""
    for clock in marks(end):
        yield Box(round(_LEFT + clock / end * _WIDTH), _TOP, 1, height, EMPTY)


def _remark(unit: UnitProfile, end: float) -> str:
    """Return why the picture ends at another clock than the unit does; empty if it does not."""
    if unit.left_out:
        of_loop = f"{unit.left_out} of {unit.loop_iterations:.0f} iterations of the loop"
        return f"{of_loop} are left out; the picture has {end:.0f} clocks"
    behind = end - unit.clocks
    return f"pipes work {behind:.0f} clocks longer than subgroups, on the last stores" if behind >= 1 else ""


def _row(slices: Sequence[Slice], terms: Terms, end: float, y: float) -> Iterator[Box]:
    """Yield the boxes of a track: each pixel that is busy for half of its time shows its main group of instructions."""
    spent = np.zeros((len(GROUPS), _WIDTH))
    for s in slices:
        a, b = s.start / end * _WIDTH, (s.start + s.clocks) / end * _WIDTH
        for column in range(int(a), min(_WIDTH, int(b) + 1)):
            spent[GROUPS.index(terms.group(s.kind)), column] += max(0.0, min(b, column + 1) - max(a, column))
    shown = np.where(spent.sum(axis=0) > 0.5, spent.argmax(axis=0), -1).tolist()  # at least half a pixel of work
    x = 0
    for kind, run in groupby(shown):
        width = len(list(run))
        if kind >= 0:
            yield Box(_LEFT + x, y + 2, width, _ROW - 4, _COLOURS[GROUPS[kind]])
        x += width
