"""The thread trace of a unit, in the files that AMD's ROCprof Compute Viewer opens.

Their format is that of rocprofv3 for a trace taken on hardware (`--att`, tool version 3.0.0). Names, units and nesting
are those of its writer (ROCm/rocm-systems, projects/rocprofiler-sdk/source/lib/att-tool: code.cpp, filenames.cpp,
occupancy.cpp, wave.cpp, wstates.cpp), numbers of kinds and states those of the decoder (ROCm/rocprof-trace-decoder,
trace_decoder_types.h); the viewer reads them in src/data/json_emitter.cpp and wavemanager.cpp. Times are clocks of the
unit, which is CU 0 of shader engine 0; a wave's slot is its number on its SIMD.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate, groupby, pairwise
from pathlib import Path, PurePath
from typing import Any

from convgen.backends.analysis import KernelAnalysis
from convgen.backends.timing import LaunchProfile, Step, WaveTimes
from convgen.ir import untrusted
from convgen.ir.record import as_dict, define, frozen

_VERSION = "3.0.0"  #: version of rocprofv3 whose format the files have
_SOURCE_BYTES_MAX = 1 << 24  #: of a source file that is copied
_GFXIP = 9  #: the major version of all CDNA
_ENGINE = _UNIT = 0
_CODE_OBJECT = 1  #: number of the code object; 0 is unknown code
_KERNEL = 1  #: number of the kernel; 0 is none
_HEADER = "ISA, _, LineNumber, Source, Codeobj, Vaddr, Hit, Latency, Stall, Idle"
_COLUMNS = ("CodeObj", "Vaddr", "Instruction", "Hitcount", "Latency", "Stall", "Idle", "Source")
EARLIER_FILES = "ui_output_agent_0_dispatch_*/se*_sm*_sl*_wv*.json"  #: waves of an earlier trace
_COUNTS = re.compile(r"(vmcnt|lgkmcnt)\((\d+)\)")


class Category(IntEnum):
    """Categories of instructions (rocprofiler_thread_trace_decoder_inst_category_t)."""

    SMEM = 1
    SALU = 2
    VMEM = 3
    FLAT = 4
    LDS = 5
    VALU = 6
    JUMP = 7  #: a branch that is taken
    NEXT = 8  #: a branch that is not taken
    IMMED = 9  #: executed by the wave itself, such as s_nop and s_waitcnt
    MESSAGE = 11


class State(IntEnum):
    """States of a wave (rocprofiler_thread_trace_decoder_wstate_type_t)."""

    EMPTY = 0
    IDLE = 1
    EXEC = 2
    WAIT = 3
    STALL = 4


_CATEGORIES: Mapping[str, Category] = {
    "smem": Category.SMEM,
    "salu": Category.SALU,
    "vmem_load": Category.VMEM,
    "vmem_store": Category.VMEM,
    "vmem_atomic": Category.VMEM,
    "ds_read": Category.LDS,
    "ds_write": Category.LDS,
    "ds_other": Category.LDS,
    "valu": Category.VALU,
    "mfma": Category.VALU,
    "waitcnt": Category.IMMED,
    "barrier": Category.IMMED,
    "nop": Category.IMMED,
    "other": Category.IMMED,
}


@frozen(eq=False)
class Traced:
    """A wave in its slot, in whole clocks."""

    simd: int
    slot: int
    begin: int
    end: int
    #: (clock of the first attempt to issue, category, stall clocks, stall and issue clocks, row number)
    instructions: tuple[tuple[int, int, int, int, int], ...]
    timeline: tuple[tuple[int, int], ...]  #: state, clocks
    waits: tuple[tuple[int, tuple[int, ...]], ...]  #: rows that wait, with the rows that they wait for

    @property
    def file(self) -> str:
        return f"se{_ENGINE}_sm{self.simd}_sl{self.slot}_wv0.json"


def files(
    launches: Sequence[LaunchProfile], kernels: Mapping[str, KernelAnalysis], beside: Path
) -> dict[PurePath, bytes]:
    """Return a folder and a table for each launch, as rocprofv3 names them: contents by path.

    `kernels` has the code by name; sources of debug information lie in the folder `beside`.
    """
    contents: dict[PurePath, bytes] = {}
    for number, launch in enumerate(launches, 1):
        name, kernel = f"ui_output_agent_0_dispatch_{number}", kernels[launch.kernel]
        contents |= {PurePath(name, file): content for file, content in _files(launch, kernel, beside)}
        contents[PurePath(f"stats_{name}.csv")] = _table(launch, kernel).encode()
    return contents


def _files(launch: LaunchProfile, kernel: KernelAnalysis, beside: Path) -> Iterator[tuple[str, bytes]]:
    waves = traced(launch, kernel)
    sources = _sources(kernel, beside)
    contents = {
        "filenames.json": filenames(waves),
        "code.json": code(launch, kernel, waves),
        "occupancy.json": occupancy(launch.kernel, waves),
        **{f"wstates{state}.json": made for state in State if (made := states(waves, state))},
        **{wave.file: wave_of(wave) for wave in waves},
        **({"snapshots.json": _tree(sources)} if sources else {}),
    }
    for name, content in contents.items():
        yield name, json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    for source, name in sources.items():
        yield name, untrusted.read(beside / source, "a source file", _SOURCE_BYTES_MAX)


# ---------------------------------------------------------------- waves


def traced(launch: LaunchProfile, kernel: KernelAnalysis) -> list[Traced]:
    """Return the waves of a full unit."""
    rows = {line.offset: row for row, line in enumerate(kernel.lines, 1)}
    next_offsets = {a.offset: b.offset for a, b in pairwise(kernel.lines)}
    slots: Counter[int] = Counter()
    waves = []
    for wave in launch.units[launch.full].waves():
        if wave.steps:
            waves.append(_traced(wave, slots[wave.simd], rows, next_offsets))
            slots[wave.simd] += 1
    return waves


def _traced(wave: WaveTimes, slot: int, rows: Mapping[int, int], next_offsets: Mapping[int, int]) -> Traced:
    instructions = []
    states: list[tuple[State, int]] = []
    for step, after in zip(wave.steps, (*wave.steps[1:], None)):
        free_since, issued, done = (round(clocks) for clocks in (step.free_since, step.issued, step.done))
        waited = min(done - issued, round(step.done - step.issued - step.issue)) if step.waits_after_issue else 0
        falls = after is None or after.line.offset == next_offsets.get(step.line.offset)
        stall = issued - free_since + waited
        instructions.append((free_since, category(step, falls), stall, done - free_since, rows[step.line.offset]))
        states += [(State.STALL, issued - free_since), (State.EXEC, done - issued - waited), (State.WAIT, waited)]
    timeline = [(state, sum(clocks for _, clocks in some)) for state, some in _runs(states)]
    begin, end = round(wave.steps[0].free_since), round(wave.steps[-1].done)
    waits = tuple(_waits(wave.steps, rows))
    return Traced(wave.simd, slot, begin, end, tuple(instructions), tuple(timeline), waits)


def _runs(states: Sequence[tuple[State, int]]) -> Iterator[tuple[State, Iterator[tuple[State, int]]]]:
    return groupby((each for each in states if each[1]), key=lambda each: each[0])


def category(step: Step, falls: bool) -> Category:
    """Return the category of an instruction; `falls`: whether the wave continues with the next instruction."""
    text = step.line.text
    if step.line.kind == "branch":
        return Category.NEXT if falls and not text.startswith("s_branch") else Category.JUMP
    if text.startswith("flat_"):
        return Category.FLAT
    return Category.MESSAGE if text.startswith("s_sendmsg") else _CATEGORIES[step.line.kind]


def _waits(steps: Sequence[Step], rows: Mapping[int, int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the row of each wait for memory with the rows that it waits for, where the counts determine these.

    A nonzero count determines nothing while operations are outstanding that return out of order: scalar loads for
    lgkmcnt, flat operations for both counters.
    """
    pending: dict[str, list[int]] = {"vmcnt": [], "lgkmcnt": []}
    unordered: set[str] = set()
    for step in steps:
        row, kind = rows[step.line.offset], step.line.kind
        if kind == "waitcnt":
            for counter, number in _COUNTS.findall(step.line.text):
                allowed, mine = int(number), pending[counter]
                if allowed and counter in unordered:
                    continue
                done = mine[: max(0, len(mine) - allowed)]
                del mine[: len(done)]
                if not allowed:
                    unordered.discard(counter)
                if done:
                    yield row, tuple(done)
        elif step.line.text.startswith("flat_"):
            for counter, mine in pending.items():
                mine.append(row)
                unordered.add(counter)
        elif kind.startswith("vmem_"):
            pending["vmcnt"].append(row)
        elif kind == "smem" or kind.startswith("ds_") or step.line.text.startswith("s_sendmsg"):
            pending["lgkmcnt"].append(row)
            if kind == "smem":
                unordered.add("lgkmcnt")


def wave_of(wave: Traced) -> dict[str, Any]:
    """Return the file of one wave."""
    return {
        "name": f"SE{_ENGINE}",
        "duration": wave.end - wave.begin,
        "num_insts": len(wave.instructions),
        "num_stitched": len(wave.instructions),
        "wave": {
            "cu": _UNIT,
            "id": 0,
            "simd": wave.simd,
            "slot": wave.slot,
            "begin": wave.begin,
            "end": wave.end,
            "instructions": wave.instructions,
            "timeline": wave.timeline,
            "waitcnt": [[row, [[on, 0] for on in rows]] for row, rows in wave.waits],
        },
    }


# ---------------------------------------------------------------- all waves


def filenames(waves: Sequence[Traced]) -> dict[str, Any]:
    """Return filenames.json: each wave's file, begin and end, by engine, SIMD, slot and number there."""
    files_by_simd: dict[str, dict[str, Any]] = {}
    for wave in waves:
        files_by_simd.setdefault(str(wave.simd), {})[str(wave.slot)] = {"0": [wave.file, wave.begin, wave.end]}
    return {
        "counter_names": [],
        "gfxip": _GFXIP,
        "gfxv": "vega",
        "global_begin_time": 0,
        "version": _VERSION,
        "wave_filenames": {str(_ENGINE): files_by_simd},
    }


def occupancy(kernel: str, waves: Sequence[Traced]) -> dict[str, Any]:
    """Return occupancy.json: the begin and end of waves, as (time, unit, SIMD, slot, 1 for a begin, kernel)."""
    events = [(w.begin, _UNIT, w.simd, w.slot, 1, _KERNEL) for w in waves]
    events += [(w.end, _UNIT, w.simd, w.slot, 0, _KERNEL) for w in waves]
    return {str(_ENGINE): sorted(events), "dispatches": {"0": "0 / 0x0", str(_KERNEL): kernel}, "version": _VERSION}


def states(waves: Sequence[Traced], state: State) -> dict[str, Any] | None:
    """Return the number of waves in a state over time; None if no wave is ever in it."""
    changes: Counter[int] = Counter()
    for wave in waves:
        begins = accumulate((clocks for _, clocks in wave.timeline), initial=wave.begin)
        for begin, (mine, clocks) in zip(begins, wave.timeline):
            if mine == state:
                changes[begin] += 1
                changes[begin + clocks] -= 1
    if not changes:
        return None
    times = sorted(changes)
    return {"name": f"wstates{state}.json", "state": list(accumulate(changes[t] for t in times)), "time": times}


# ---------------------------------------------------------------- code


@define
class _Spent:
    hits: int = 0
    latency: int = 0
    stall: int = 0
    idle: int = 0


def code(launch: LaunchProfile, kernel: KernelAnalysis, waves: Sequence[Traced]) -> dict[str, Any]:
    """Return code.json: the kernel's instructions with hits, latency, stall and idle clocks of the traced waves."""
    return {"code": list(_rows(launch, kernel, waves)), "header": _HEADER, "version": _VERSION}


def _rows(launch: LaunchProfile, kernel: KernelAnalysis, waves: Sequence[Traced]) -> Iterator[tuple[object, ...]]:
    spent = _spent(waves)
    yield f"; {launch.kernel}", 0, 0, "", _CODE_OBJECT, launch.entry, 0, 0, 0, 0
    for row, line in enumerate(kernel.lines, 1):
        source = kernel.sources.get(line.offset, "")
        counts = as_dict(spent.get(row, _Spent())).values()
        yield line.text, 0, row, source, _CODE_OBJECT, launch.entry + line.offset, *counts


def _spent(waves: Sequence[Traced]) -> dict[int, _Spent]:
    spent: dict[int, _Spent] = {}
    for wave in waves:
        before = wave.begin
        for time, _, stall, duration, row in wave.instructions:
            mine = spent.setdefault(row, _Spent())
            mine.hits += 1
            mine.latency += duration
            mine.stall += stall
            mine.idle += max(0, time - before)
            before = max(before, time + duration)
    return spent


def _table(launch: LaunchProfile, kernel: KernelAnalysis) -> str:
    """Return the rows of `code` as CSV."""
    text = io.StringIO()
    table = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    table.writerow(_COLUMNS)
    for name, _, _, source, of, address, *counts in _rows(launch, kernel, traced(launch, kernel)):
        table.writerow([of, address, name, *counts, source])
    return text.getvalue()


def _sources(kernel: KernelAnalysis, beside: Path) -> dict[str, str]:
    """Return source file -> name of its copy, for existing files that debug information names."""
    names = sorted({source.rpartition(":")[0] for source in kernel.sources.values()})
    files = [name for name in names if (beside / name).is_file()]
    copied = [name for name in files if (beside / name).stat().st_size <= _SOURCE_BYTES_MAX]
    return {name: f"source_{n}_{PurePath(name).name}" for n, name in enumerate(copied)}


def _tree(sources: Mapping[str, str]) -> dict[str, Any]:
    """Return the names of the copies as a tree: one level per part of the source's path."""
    tree: dict[str, Any] = {}
    for source, copy in sources.items():
        *folders, name = PurePath(source).parts
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = copy
    return tree
