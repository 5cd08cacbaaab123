"""The time of launches that were executed: constants for any chip and type, what makes it longer, what bounds it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from convgen.backends.analysis import Line
from convgen.backends.family import chips
from convgen.backends.target import get, timer
from convgen.backends.timing import LaunchProfile, Moved, Slice, TimedLine, UnitProfile, Work
from convgen.ir.error import Unsupported, UserError
from convgen.ir.record import evolve
from convgen.profile.launch_times import LaunchTime, chip_named, constants_for, time_of
from convgen.show import timeline
from convgen.show.drawing import EMPTY

CHIP, CACHES = chips()["mi300x"], get("gfx942").facts.caches
BUSY = {"matrix": 6000.0, "lds": 2000.0, "addresses": 1000.0, "valu": 500.0, "salu": 300.0}
IDLE = dict.fromkeys(BUSY, 100.0)
LINES = tuple(
    TimedLine(Line(4 * n, text, kind, "", 1), stalled, 8.0)
    for n, (kind, text, stalled) in enumerate([("mfma", "v_mfma_f32", 10.0), ("waitcnt", "s_waitcnt", 900.0)])
)


def slices() -> list[Slice]:
    """Two waves on a SIMD, its matrix unit, and the LDS."""
    waves = [
        Slice("SIMD 0", f"workgroup 0 wave {wave}", 1.5 * wave + 4 * n, 4, kind, "v_mfma", 4 * n)
        for wave in range(2)
        for n, kind in enumerate(["mfma", "wait", "valu"])
    ]
    return sorted(
        [*waves, Slice("SIMD 0", "matrix", 0, 32, "mfma", "v_mfma", 0), Slice("unit", "lds", 3, 8, "ds_read", "d", 4)],
        key=lambda s: (s.lane, s.track, s.start),
    )


def unit(groups: int = 1, **changes: Any) -> UnitProfile:
    busy = {pipe: clocks * groups for pipe, clocks in BUSY.items()}
    usual = UnitProfile(
        groups, 9000.0 * groups, 8.0, 1.0, 1000.0 * groups, 1000.0 * groups, 1.0, 0, busy, LINES, slices, list
    )
    return evolve(usual, **changes)


USUAL = LaunchProfile(
    kernel="k",
    target="gfx942",
    entry=0,
    workgroups=700,
    threads=256,
    resident={"registers": 2, "lds": 4},
    executed=(0, 699),
    distinct=1,
    instructions=1000.0,
    work=Work(1.0, 1.0, 3.0),
    flop=1e6,
    element="f16",
    moved=Moved(8e7, 8e7, 8e7, 2e7, 1e7, 1e6),
    added=0.0,
    full=2,
    rounds=1,
    last=1,
    units={1: unit(), 2: unit(2)},
    findings=(),
    seconds=0.1,
)


def timed(**changes: Any) -> LaunchTime:
    """Of workgroups that have as much to do as one another, unless their work is given."""
    launch = evolve(USUAL, **changes)
    if "work" not in changes:
        launch = evolve(launch, work=Work(1.0, 1.0, float(launch.on_busiest)))
    return time_of(launch, CHIP, CACHES)


# ---------------------------------------------------------------- times


def moved(**changes: float) -> dict[str, Any]:
    return {"moved": evolve(USUAL.moved, **changes)}


FEW = moved(loaded=1e3, requested=1e3, asked=1e3, fill=1e3, memory=1e3, stored=1e3)


@pytest.mark.parametrize(
    "changes",
    [
        {"workgroups": 1400, "rounds": 2, "last": 1},
        {"units": {1: unit(iteration=1500.0, clocks=13000.0), 2: unit(2, iteration=3000.0, clocks=26000.0)}},
        {"units": {1: unit(), 2: unit(2, clocks=30000.0)}},
        {"added": 1e8},
        moved(fill=1e11, loaded=1e11, requested=1e11, asked=1e11),
        moved(memory=1e9),
        moved(stored=1e8),
    ],
)
def test_more_of_anything_takes_longer(changes: dict[str, Any]) -> None:
    assert timed(**changes).total > timed().total


def test_further_launches_start_sooner_or_later() -> None:
    entry, terms = constants_for(CHIP, "f16")
    first, next_one = (time_of(USUAL, CHIP, CACHES, further=further) for further in (False, True))
    assert first.entry is entry
    assert (first.start, next_one.start) == (terms.start, terms.other)
    assert first.kernel == next_one.kernel


@pytest.mark.parametrize(
    ("bound", "changes"),
    [
        ("matrix", {"units": {1: unit(), 2: unit(2)}, "workgroups": 608 * 60, "rounds": 60, "last": 0}),
        (
            "launch",
            {
                "workgroups": 1,
                "rounds": 0,
                "full": 1,
                "units": {1: unit(clocks=600.0, loop_iterations=1.0, iteration=200.0, busy=IDLE)},
                **FEW,
            },
        ),
        ("memory", moved(memory=4e9)),
        ("l2", moved(loaded=1e9, requested=1e9, asked=1e9)),
    ],
)
def test_bounds(bound: str, changes: dict[str, Any]) -> None:
    assert timed(**changes).bound == bound


def test_where_nothing_takes_half_of_the_time_it_is_latency() -> None:
    units = {
        1: unit(busy=IDLE, clocks=90_000.0, iteration=10_000.0),
        2: unit(2, busy=IDLE, clocks=1e5, iteration=12_000.0),
    }
    assert timed(units=units, **FEW).bound == "latency"


def test_matrix_units_that_work_lower_the_clock() -> None:
    assert timed(units={1: unit(busy=BUSY | {"matrix": 0.0}), 2: unit(2)}).clock == CHIP.clock
    busy = timed(workgroups=608 * 4, rounds=4, last=0)
    assert busy.clock < CHIP.clock
    assert 0.4 < busy.used < 1


@pytest.mark.parametrize(
    ("chip", "element", "kind"),
    [
        ("mi300x", "f16", "miopen code/mi300x/f16"),
        ("mi300x", "bf16", "miopen code/mi300x/f16"),
        ("mi300x", "i8", "aiter/mi300x/fp8"),
        ("mi300x", "", "miopen code/mi300x/f32"),
        ("mi300a", "f16", "miopen code/mi300x/f16"),
        ("mi355x", "fp4", "aiter code/mi355x/fp4"),
        ("mi355x", "f16", "aiter code/mi355x/bf16"),
        ("mi250x", "f16", "rocblas/mi250x/f16"),
        ("mi250", "bf16", "rocblas/mi250x/bf16"),
        ("mi250x", "i8", "rocblas/mi250x/s8_out_s32"),
    ],
)
def test_constants_of_the_nearest_kind(chip: str, element: str, kind: str) -> None:
    entry, terms = constants_for(chips()[chip], element)
    assert entry.kind == kind
    assert 0.5 < terms.start < 5  # us, also where the table's ticks are clocks
    assert 2 < terms.other < 8
    assert 5e5 < terms.memory < 2e7  # bytes a us


def test_chips_by_name() -> None:
    facts = get("gfx942").facts
    assert chip_named(None, facts).name == "mi300x"
    assert chip_named("mi308x", facts).units == 80
    with pytest.raises(UserError, match="given the chip 'mi250', wanted one of mi300x, mi300a, mi308x for gfx942"):
        chip_named("mi250", facts)


def test_launches_on_others_have_no_model() -> None:
    zebin = b"\x7fELF".ljust(18, b"\0") + (205).to_bytes(2, "little")
    with pytest.raises(
        Unsupported,
        match=r"^timing launches of k\.zebin: Intel's Xe has no model of launches, wanted code for AMD or NVIDIA$",
    ):
        timer(zebin, "k.zebin")


# ---------------------------------------------------------------- timelines


def test_a_trace_is_chromes(tmp_path: Path) -> None:
    """Complete events by time, of no track two at once, whole nanoseconds; names ahead; launches in turn."""
    timeline.write([USUAL, USUAL], str(tmp_path / "t.json"))
    found = json.loads((tmp_path / "t.json").read_text())
    named = [e for e in found["traceEvents"] if e["ph"] == "M"]
    events = [e for e in found["traceEvents"] if e["ph"] == "X"]
    assert [e["ph"] for e in found["traceEvents"]] == ["M"] * len(named) + ["X"] * len(events)
    tracks = {(e["pid"], e["tid"]) for e in events}
    assert tracks == {(e["pid"], e["tid"]) for e in named if e["name"] == "thread_name"}
    assert {e["args"]["name"] for e in named if e["name"] == "process_name"} == {"k: SIMD 0", "k: unit"}
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    assert all(e["dur"] >= 0 and round(1000 * e["ts"], 6).is_integer() for e in events)
    for track in tracks:
        mine = [e for e in events if (e["pid"], e["tid"]) == track]
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-9 for a, b in pairwise(mine))
    assert len(events) == 2 * len(slices())
    assert max(e["ts"] for e in events[: len(slices())]) <= 0.032 <= events[len(slices())]["ts"]


def test_a_picture_has_a_row_for_each_track() -> None:
    drawn = timeline.picture(evolve(USUAL, units={2: unit(2, left_out=5)}))
    rows = {box.y for box in drawn.boxes if box.height > 13 and box.colour != EMPTY}
    assert len(rows) == 4
    assert all(box.x >= 0 and box.x + box.width <= drawn.width for box in drawn.boxes)
    texts = [line.text for line in drawn.lines]
    assert "5 of 8 iterations of the loop are left out; the picture has 32 clocks" in texts
    assert drawn.title.startswith("k on gfx942: 2 workgroups on a unit")
    alone = timeline.picture(evolve(USUAL, full=1, units={1: unit()}))
    assert alone.title.startswith("k on gfx942: 1 workgroup on a unit, 9000 clocks")
    assert not any("more than waves" in line.text for line in alone.lines)
    ended = timeline.picture(evolve(USUAL, full=1, units={1: unit(clocks=28.0)}))
    assert "pipes work 4 clocks longer than subgroups, on the last stores" in [line.text for line in ended.lines]


@pytest.mark.parametrize(
    ("end", "last", "count"), [(1, 1, 2), (32, 30, 7), (2608, 2500, 6), (999.9, 900, 10), (1e6, 1e6, 11)]
)
def test_an_axis_has_few_round_clocks(end: float, last: int, count: int) -> None:
    marks = timeline.marks(end)
    assert (marks[0], marks[-1], len(marks)) == (0, last, count)


def test_the_axis_of_a_picture_stands_over_its_rows() -> None:
    drawn = timeline.picture(evolve(USUAL, full=1, units={1: unit()}))
    wanted = {f"{clock}": clock for clock in timeline.marks(34)}
    labels = {line.text: line.x for line in drawn.lines if line.text in wanted}
    assert labels.keys() == wanted.keys()
    lines = sorted(box.x for box in drawn.boxes if box.colour == EMPTY)
    assert lines == sorted(round(x) for x in labels.values())
    last = max(box.x + box.width for box in drawn.boxes if box.height == 14)
    assert max(labels.values()) <= last
    assert "clock" in [line.text for line in drawn.lines]


def test_names_of_timelines() -> None:
    with pytest.raises(UserError, match=r"given t\.pdf, wanted FILE\.json, FILE\.svg or FILE\.png, at --timeline"):
        timeline.check_output("t.pdf")
    with pytest.raises(UserError, match=r"cannot write /dev/null: File exists, at --timeline"):
        timeline.write([USUAL], "/dev/null/t.json")
