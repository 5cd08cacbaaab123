"""Results of a run of the model of a unit: clocks and stalls by instruction, busy clocks of each pipe, and events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from convgen.backends.analysis import Line
from convgen.backends.event_model.shortened_loops import ShortenedLoop
from convgen.backends.event_model.waves import ModelRun, Op, Trace, UnitModel
from convgen.backends.timing import Slice, Step, TimedLine, UnitProfile, WaveTimes, exposed


def unit_profile(
    trace: Trace, loop: ShortenedLoop, result: ModelRun, unit: UnitModel, steady: tuple[float, float]
) -> UnitProfile:
    """Return the profile of a run of some workgroups on a unit.

    `steady` has the clocks of an iteration in the steady state, at normal latency and with loads `LATER` clocks later.
    """
    clocks, iteration = loop.clocks(result, steady[0])
    spent = _spent(loop, result)
    count = len(result.waves)
    lines = {at: trace.line(at) for at in sorted({op.at for op in spent})}
    times, stalled = dict.fromkeys(lines, 0.0), dict.fromkeys(lines, 0.0)
    for op, (weight, clocks_stalled) in spent.items():
        times[op.at] += weight / count
        stalled[op.at] += clocks_stalled / count
    return UnitProfile(
        groups=len(loop.workgroups),
        clocks=clocks,
        loop_iterations=loop.count,
        looping=loop.looping,
        iteration=iteration,
        steady=steady[0],
        exposed=exposed(*steady),
        left_out=loop.left_out,
        busy=unit.busy_of((op, weight) for op, (weight, _) in spent.items()),
        lines=tuple(TimedLine(line, stalled[at], times[at]) for at, line in lines.items()),
        slices=partial(_slices, result, lines),
        waves=partial(_waves, result, lines),
    )


def _spent(loop: ShortenedLoop, result: ModelRun) -> dict[Op, tuple[float, float]]:
    """Return the executions of each instruction over all waves, and the clocks that waves stall there."""
    spent: dict[Op, tuple[float, float]] = {}
    for number, wave in enumerate(result.waves):
        for op, stall, weight in zip(wave.ops, wave.stalls(), loop.weights(number, len(wave.ops)), strict=True):
            times, stalled = spent.get(op, (0.0, 0.0))
            spent[op] = times + weight, stalled + weight * stall
    return spent


# ---------------------------------------------------------------- times of waves, and events


def _waves(result: ModelRun, lines: Mapping[int, Line]) -> list[WaveTimes]:
    waves: list[WaveTimes] = []
    members: dict[int, int] = {}
    for wave in result.waves:
        member = members[wave.group] = members.get(wave.group, -1) + 1
        times = zip(wave.ops, wave.free_since, wave.issued, wave.done, strict=True)
        steps = tuple(Step(lines[op.at], free_since, issued, op.issue, done) for op, free_since, issued, done in times)
        waves.append(WaveTimes(wave.simd, wave.group, member, steps))
    return waves


def _slices(result: ModelRun, lines: Mapping[int, Line]) -> list[Slice]:
    """Return the events of waves and pipes, track by track, in order of time."""
    slices = [event for wave in _waves(result, lines) for event in _of_wave(wave)]
    for o in result.occupied:
        lane = "unit" if o.simd is None else f"SIMD {o.simd}"
        line = lines[o.op.at]
        slices.append(Slice(lane, o.pipe, o.start, o.clocks, line.kind, line.text, line.offset))
    return sorted(slices, key=lambda s: (s.lane, s.track, s.start))


def _of_wave(wave: WaveTimes) -> Iterator[Slice]:
    """Yield the events of a wave: waiting before an instruction, and issuing it or waiting at it."""
    lane, track = f"SIMD {wave.simd}", f"workgroup {wave.group} wave {wave.member}"
    for step in wave.steps:
        line = step.line
        kind = "wait" if step.waits_after_issue else line.kind
        if step.issued > step.free_since:
            yield Slice(lane, track, step.free_since, step.issued - step.free_since, "wait", line.text, line.offset)
        yield Slice(lane, track, step.issued, step.done - step.issued, kind, line.text, line.offset)
