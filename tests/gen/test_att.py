"""A launch as a thread trace: the files of rocprofv3 3.0.0 as its sources write them, with the clocks of the timeline.

The schema is that of ROCm/rocm-systems, projects/rocprofiler-sdk/source/lib/att-tool: wave.cpp (a wave), code.cpp
(code.json, snapshots.json, the table), filenames.cpp, occupancy.cpp, wstates.cpp; numbers are of trace_decoder_types.h
in ROCm/rocprof-trace-decoder.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from convgen.backends.amdgpu import att
from convgen.backends.amdgpu.att import Category, State, Traced
from convgen.backends.analysis import KernelAnalysis, Line, Stretch
from convgen.backends.timing import Step, WaveTimes
from convgen.commands import cli
from convgen.commands.profile import remove_old
from convgen.ir.record import evolve
from tests.gen.test_launches import USUAL, unit

#: Of wave.cpp, filenames.cpp, occupancy.cpp: what there is, and what it holds.
WAVE = {"name": str, "duration": int, "wave": dict, "num_stitched": int, "num_insts": int}
INNER = {"cu": int, "id": int, "simd": int, "slot": int, "begin": int, "end": int,
         "instructions": list, "timeline": list, "waitcnt": list}  # fmt: skip
NAMES = {"global_begin_time": int, "gfxv": str, "gfxip": int, "version": str, "counter_names": list,
         "wave_filenames": dict}  # fmt: skip
#: Of code.cpp: ISA, _, LineNumber, Source, Codeobj, Vaddr, Hit, Latency, Stall, Idle.
ROW = [str, int, int, str, int, int, int, int, int, int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product behind a fill with zeros, with debug information, and its timeline."""
    into = tmp_path_factory.mktemp("att")
    config = "tile=32x32x32 waves=2x1 mma=16x16x16 slices=2"
    made = ["gemm", "64x128:128x64", "--dt", "f16", "--config", config, "-g", "-o", str(into / "k")]
    assert cli.main(made) == 0
    arguments = [str(into / "k.launch.json"), "--timeline", str(into / "t.json"), "--att", str(into / "out")]
    assert cli.main(["profile", *arguments]) == 0
    return into


def shape(found: dict[str, Any]) -> dict[str, type]:
    return {name: type(value) for name, value in found.items()}


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def launches(folder: Path) -> list[Path]:
    return sorted((folder / "out").glob("ui_output_agent_0_dispatch_*"))


# ---------------------------------------------------------------- what files hold


def test_files_are_those_that_the_viewer_reads(folder: Path) -> None:
    assert [path.name for path in launches(folder)] == [f"ui_output_agent_0_dispatch_{n}" for n in (1, 2)]
    for path in launches(folder):
        names = read(path / "filenames.json")
        assert shape(names) == NAMES
        assert (names["gfxv"], names["gfxip"], names["version"][0]) == ("vega", 9, "3")
        listed = []
        for engine, simds in names["wave_filenames"].items():
            for simd, slots in simds.items():
                for slot, numbers in slots.items():
                    for number, (file, begin, end) in numbers.items():
                        assert file == f"se{engine}_sm{simd}_sl{slot}_wv{number}.json"
                        wave = read(path / file)
                        assert shape(wave) == WAVE
                        assert shape(wave["wave"]) == INNER
                        inner = wave["wave"]
                        assert [inner[key] for key in ("simd", "slot", "id")] == [int(simd), int(slot), int(number)]
                        assert [inner["begin"], inner["end"]] == [begin, end]
                        assert wave["duration"] == end - begin
                        assert wave["num_insts"] == wave["num_stitched"] == len(inner["instructions"])
                        listed.append(file)
        assert sorted(listed) == sorted(p.name for p in path.glob("se*"))
        assert listed


def test_waves_have_times_in_order_and_rows_of_the_code(folder: Path) -> None:
    for path in launches(folder):
        code = read(path / "code.json")
        assert set(code) == {"code", "header", "version"}
        assert len(code["header"].split(", ")) == len(ROW)
        rows = {row[2]: row for row in code["code"]}
        assert [[type(cell) for cell in row] for row in code["code"]] == [ROW] * len(rows)
        assert list(rows) == list(range(len(rows)))
        assert rows[0][0].startswith("; ")
        assert all(a[5] < b[5] for a, b in pairwise(code["code"][1:]))
        assert rows[0][5] == rows[1][5] > 0
        for file in path.glob("se*"):
            inner = read(file)["wave"]
            for time, category, stall, duration, row in inner["instructions"]:
                assert inner["begin"] <= time <= time + duration <= inner["end"]
                assert 0 <= stall <= duration
                assert Category(category)
                assert rows[row][6] > 0
            assert all(a[0] + a[3] <= b[0] for a, b in pairwise(inner["instructions"]))
            assert sum(clocks for _, clocks in inner["timeline"]) == inner["end"] - inner["begin"]
            assert all(a[0] != b[0] and State(a[0]) for a, b in pairwise(inner["timeline"]))
            for row, on in inner["waitcnt"]:
                assert rows[row][0].startswith("s_waitcnt")
                assert on
                assert all(zero == 0 and not rows[other][0].startswith(("s_waitcnt", "v_")) for other, zero in on)


def test_occupancy_and_states_are_of_the_waves(folder: Path) -> None:
    for path in launches(folder):
        waves = [read(file)["wave"] for file in path.glob("se*")]
        found = read(path / "occupancy.json")
        assert set(found) == {"0", "dispatches", "version"}
        assert found["dispatches"]["1"] == read(path / "code.json")["code"][0][0][2:]
        wanted = [
            [w[edge], 0, w["simd"], w["slot"], int(edge == "begin"), 1] for w in waves for edge in ("begin", "end")
        ]
        assert found["0"] == sorted(wanted)
        for state in State:
            file, spent = path / f"wstates{state}.json", sum(c for w in waves for s, c in w["timeline"] if s == state)
            assert file.exists() == (spent > 0)
            if spent:
                told = read(file)
                assert set(told) == {"name", "state", "time"}
                assert told["name"] == file.name
                assert told["time"] == sorted(set(told["time"]))
                assert told["state"][-1] == 0
                lasting = (count * (b - a) for count, (a, b) in zip(told["state"], pairwise(told["time"])))
                assert sum(lasting) == spent


def test_the_table_says_what_the_code_does(folder: Path) -> None:
    for path in launches(folder):
        with (folder / "out" / f"stats_{path.name}.csv").open(newline="") as file:
            header, *rows = list(csv.reader(file))
        assert header == ["CodeObj", "Vaddr", "Instruction", "Hitcount", "Latency", "Stall", "Idle", "Source"]
        code = read(path / "code.json")["code"]
        assert rows == [
            [str(c) for c in (of, at, text, *counts, source)] for text, _, _, source, of, at, *counts in code
        ]


def test_sources_are_those_of_debug_information(folder: Path) -> None:
    for path in launches(folder):
        named = {row[3].rpartition(":")[0] for row in read(path / "code.json")["code"]} - {""}
        tree = read(path / "snapshots.json")
        assert set(tree) == named != set()
        for source, copy in tree.items():
            assert (path / copy).read_text() == (folder / source).read_text()


# ---------------------------------------------------------------- the timeline's numbers


def test_clocks_and_counts_are_those_of_the_timeline(folder: Path) -> None:
    """Of each launch, wave by wave: when it begins and ends, and by instruction how often it comes and for how long."""
    events = read(folder / "t.json")["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    for path in launches(folder):
        code = {row[2]: row for row in read(path / "code.json")["code"]}
        kernel, entry = code[0][0][2:], code[0][5]
        first = min(e["ts"] for e in events if e["ph"] == "X" and processes[e["pid"]].startswith(f"{kernel}: "))
        clocks, counts = Counter[int](), Counter[int]()
        ends: list[tuple[int, int, int]] = []
        for (pid, tid), track in sorted(tracks.items(), key=lambda each: each[1]):
            if not processes[pid].startswith(f"{kernel}: SIMD") or not track.startswith("workgroup"):
                continue
            mine = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (pid, tid)]
            times = [round((e["ts"] - first) * 1000) for e in mine]
            ends.append((int(processes[pid][-1]), times[0], times[-1] + round(mine[-1]["dur"] * 1000)))
            for event in mine:
                at = int(event["name"].split()[0], 16)
                clocks[at] += round(event["dur"] * 1000)
                waits = event["name"].split()[1].startswith(("s_waitcnt", "s_barrier"))
                counts[at] += event["cat"] != "wait" or waits
        assert clocks == {row[5] - entry: row[7] for n, row in code.items() if n and row[7]}
        assert counts == {row[5] - entry: row[6] for n, row in code.items() if n and row[6]}
        waves = [read(file)["wave"] for file in path.glob("se*")]
        assert sorted(ends) == sorted((w["simd"], w["begin"], w["end"]) for w in waves)
        assert all(row[7] >= row[8] for row in code.values())
        assert any(row[8] for row in code.values())


# ---------------------------------------------------------------- single things


def step(text: str, kind: str, offset: int = 0, times: tuple[float, ...] = (0, 0, 4, 4)) -> Step:
    return Step(Line(offset, text, kind, "", 1), *times)


@pytest.mark.parametrize(
    ("text", "kind", "falls", "category"),
    [
        ("s_branch +0x10", "branch", True, Category.JUMP),
        ("s_cbranch_scc1 +0x10", "branch", True, Category.NEXT),
        ("s_cbranch_scc1 +0x10", "branch", False, Category.JUMP),
        ("flat_load_dword v0, v[2:3]", "vmem_load", True, Category.FLAT),
        ("global_load_dword v0, v[2:3], off", "vmem_load", True, Category.VMEM),
        ("s_sendmsg sendmsg(MSG_INTERRUPT)", "salu", True, Category.MESSAGE),
        ("v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], 0", "mfma", True, Category.VALU),
        ("ds_read_b64 v[0:1], v2", "ds_read", True, Category.LDS),
        ("s_nop 3", "nop", True, Category.IMMED),
    ],
)
def test_categories(text: str, kind: str, falls: bool, category: Category) -> None:
    assert att.category(step(text, kind), falls) == category


def traced(*steps: Step) -> Traced:
    lines = tuple({s.line.offset: s.line for s in steps}.values())
    kernel = KernelAnalysis("k", {}, 0, 64, 64, {}, 0, Stretch(lines, False), lines)
    launch = evolve(USUAL, units={2: unit(2, waves=lambda: [WaveTimes(1, 0, 0, tuple(steps))])})
    (found,) = att.traced(launch, kernel)
    return found


def test_waves_stall_before_and_wait_at_instructions() -> None:
    """Halves of clocks do not add up to more than the whole."""
    stalling = step("v_mov_b32 v0, 0", "valu", 0, (1.5, 8.5, 4, 12.5))
    found = traced(stalling, step("s_waitcnt vmcnt(0)", "waitcnt", 4, (12.5, 12.5, 4, 100)))
    assert found.instructions == ((2, 6, 6, 10, 1), (12, 9, 84, 88, 2))
    assert found.timeline == ((State.STALL, 6), (State.EXEC, 8), (State.WAIT, 84))
    assert (found.simd, found.slot, found.begin, found.end) == (1, 0, 2, 100)


def test_a_branch_that_goes_back_is_taken() -> None:
    found = traced(step("v_nop", "valu", 0), step("s_cbranch_scc1 +0x0", "branch", 4), step("v_nop", "valu", 0),
                   step("s_cbranch_scc1 +0x0", "branch", 4), step("s_endpgm", "other", 8))  # fmt: skip
    assert [Category(i[1]).name for i in found.instructions] == ["VALU", "JUMP", "VALU", "NEXT", "IMMED"]


def test_what_is_waited_for() -> None:
    """Counts leave the youngest; with scalar loads or flat operations outstanding, none but 0 tells which are done."""
    code = [("buffer_load_dword v0", "vmem_load"), ("ds_read_b32 v1, v2", "ds_read"), ("ds_read_b32 v3, v4", "ds_read"),
            ("buffer_load_dword v5", "vmem_load"), ("s_waitcnt vmcnt(1) lgkmcnt(1)", "waitcnt"),
            ("s_load_dword s0, s[2:3], 0x0", "smem"), ("s_waitcnt lgkmcnt(1)", "waitcnt"),
            ("s_waitcnt lgkmcnt(0)", "waitcnt"), ("flat_load_dword v0, v[2:3]", "vmem_load"),
            ("s_waitcnt vmcnt(0)", "waitcnt"), ("buffer_load_dword v0", "vmem_load"),
            ("buffer_load_dword v1", "vmem_load"), ("s_waitcnt vmcnt(1)", "waitcnt")]  # fmt: skip
    found = traced(*(step(text, kind, 4 * n) for n, (text, kind) in enumerate(code)))
    assert found.waits == ((5, (1,)), (5, (2,)), (8, (3, 6)), (10, (4, 9)), (13, (11,)))
    flat = [("flat_load_dword v0, v[2:3]", "vmem_load"), ("buffer_load_dword v1", "vmem_load"),
            ("s_waitcnt vmcnt(1)", "waitcnt")]  # fmt: skip
    assert traced(*(step(text, kind, 4 * n) for n, (text, kind) in enumerate(flat))).waits == ()


def test_waves_of_a_simd_have_slots() -> None:
    end = step("s_endpgm", "other")
    kernel = KernelAnalysis("k", {}, 0, 4, 64, {}, 0, Stretch((end.line,), False), (end.line,))
    waves = [WaveTimes(simd, group, 0, (end,)) for group, simd in enumerate((1, 0, 1))]
    found = att.traced(evolve(USUAL, units={2: unit(2, waves=lambda: waves)}), kernel)
    assert [w.file for w in found] == [f"se0_sm{simd}_sl{slot}_wv0.json" for simd, slot in ((1, 0), (0, 0), (1, 1))]


def test_old_waves_go(tmp_path: Path) -> None:
    old = tmp_path / "ui_output_agent_0_dispatch_1" / "se0_sm3_sl7_wv0.json"
    kept = tmp_path / "ui_output_agent_0_dispatch_2" / "se0_sm3_sl7_wv0.json"
    for path in (old, kept):
        path.parent.mkdir()
        path.write_text("{}")
    line = Line(0, "s_endpgm", "other", "", 1)
    kernel = KernelAnalysis("k", {}, 0, 4, 64, {}, 0, Stretch((line,), False), (line,))
    written = att.files([evolve(USUAL, units={2: unit(2)})], {"k": kernel}, tmp_path)
    assert any(path.name == "filenames.json" for path in written)
    remove_old(tmp_path, att.EARLIER_FILES, [tmp_path / path for path in written])
    assert not old.exists()
    assert kept.exists()


def test_wrong_folders(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "file").write_text("")
    record = str(folder / "k.launch.json")
    assert cli.main(["profile", record, "--att", str(folder / "file")]) == 2
    assert (
        f"cannot write {folder / 'file' / 'ui_output_agent_0_dispatch_1'}: Not a directory" in capsys.readouterr().err
    )
    assert cli.main(["profile", str(folder / "k.hsaco"), "--att", str(folder / "x")]) == 2
    assert "given --att without a launch, wanted a launch record, or --grid and --block" in capsys.readouterr().err
