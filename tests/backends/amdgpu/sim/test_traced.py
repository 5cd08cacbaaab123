"""What the model of a unit is told of waves that were executed: paths taken, lanes, workgroups that wait for others."""

from __future__ import annotations

from typing import Any

import numpy as np

from convgen.backends.amdgpu.timing.launch import profile_launch
from convgen.backends.timing import LaunchProfile, Machine

MACHINE = Machine("gfx942", 304, 8, 4 << 20, 256 << 20, 128)
START = """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 4, v0
  s_waitcnt lgkmcnt(0)
"""


def profiled(sim: Any, body: str, grid: int = 1, workgroup: int = 64) -> LaunchProfile:
    code = sim.assemble("gfx942", {"k": sim.Source(body)})
    request = sim.launch("k", ["data"], grid, workgroup)
    return profile_launch(code, request, lambda: {"data": np.zeros(4096, np.uint8)}, MACHINE, 500.0, 16)


def test_only_what_is_executed_counts(sim: Any) -> None:
    """Of two sides of a branch one; the body of a loop as often as it runs."""
    side = "  s_add_u32 s8, s8, 1\n" * 30
    body = f"{START}  s_mov_b32 s9, 5\n  s_cmp_eq_u32 s9, 5\n  s_cbranch_scc1 .Lskip\n{side}.Lskip:\n"
    body += ".Lloop:\n  v_mov_b32_e32 v2, 0\n  s_sub_u32 s9, s9, 1\n  s_cmp_lg_u32 s9, 0\n  s_cbranch_scc1 .Lloop\n"
    found = profiled(sim, body)
    times = {line.line.text.split()[0]: line.times for line in found.units[1].lines}
    assert "s_add_u32" not in times
    assert (times["s_sub_u32"], times["s_load_dwordx2"]) == (5, 1)
    assert found.units[1].loop_iterations == 5
    assert found.instructions == 3 + 3 + 5 * 4 + 1


def test_lanes_that_are_off_ask_for_nothing(sim: Any) -> None:
    """A load of 16 bytes a lane takes 16 clocks of addresses; of no lane, only its turn to issue."""
    busy, loaded = {}, {}
    for lanes in (64, 8, 0):
        mask = f"  s_mov_b64 exec, {(1 << lanes) - 1 if lanes < 64 else -1}\n"
        found = profiled(sim, f"{START}{mask}  global_load_dwordx4 v[4:7], v1, s[4:5]\n  s_waitcnt vmcnt(0)\n")
        busy[lanes], loaded[lanes] = found.units[1].busy["addresses"], found.moved.loaded
    assert busy == {64: 16, 8: 16, 0: 4}
    assert loaded == {64: 1024, 8: 128, 0: 0}


def test_workgroups_that_wait_for_all_others(sim: Any) -> None:
    """Each counts itself and waits until twelve have: those that are looked at do not end without the rest."""
    body = f"""{START}
  v_mov_b32_e32 v1, 0
  v_mov_b32_e32 v2, 1
  s_mov_b64 exec, 1
  global_atomic_add v1, v2, s[4:5]
  s_waitcnt vmcnt(0)
.Lwait:
  global_load_dword v3, v1, s[4:5] sc1
  s_waitcnt vmcnt(0)
  v_cmp_gt_u32_e32 vcc, 12, v3
  s_cbranch_vccnz .Lwait
  buffer_inv sc1
"""
    found = profiled(sim, body, grid=12)
    assert len(found.executed) == 8
    assert not found.findings
    assert found.added == 12 * 4


def test_lines_are_told_apart_by_width(sim: Any) -> None:
    """Two reads from the same addresses, of one dword and of four: each has its own phases and conflicts."""
    reads = "  ds_read_b32 v2, v1\n  ds_read_b128 v[4:7], v1\n  s_waitcnt lgkmcnt(0)\n"
    body = f"{START}  ds_write_b128 v1, v[8:11]\n  s_waitcnt lgkmcnt(0)\n{reads}"
    code = sim.assemble("gfx942", {"k": sim.Source(body, lds=1024)})
    request = sim.launch("k", ["data"], 1, 64)
    found = profile_launch(code, request, lambda: {"data": np.zeros(64, np.uint8)}, MACHINE, 500.0, 16)
    assert found.units[1].busy["lds"] == 8 + 2 * 4 + 8  # a stride of 16 bytes puts four of 32 lanes in a bank
