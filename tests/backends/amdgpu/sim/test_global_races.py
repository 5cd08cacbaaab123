"""Races in device memory and waits for flat loads: each in a kernel that has the fault, and in a twin without it."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from convgen.backends.amdgpu.sim import simulate

#: s[4:5] = data, s[6:7] = words that are zeros at first; v1 = 4 * thread, v3 = 0, s8 = the wave's first thread.
PROLOGUE = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  v_mov_b32_e32 v3, 0
  v_readfirstlane_b32 s8, v0
  s_waitcnt lgkmcnt(0)
"""


@attrs.frozen
class Twin:
    """A body without fault, and the replacement that makes the fault."""

    kind: str
    right: str
    part: str
    wrong: str = ""
    workgroup: int = 64
    grid: int = 1


_WAVES_IN_TURN = """
  s_cmp_eq_u32 s8, 0
  s_cbranch_scc0 .Lsecond
  v_mov_b32_e32 v4, 1
  global_store_dword v3, v4, s[4:5]
  s_waitcnt vmcnt(0)
  s_barrier
  s_branch .Lend
.Lsecond:
  s_barrier
  v_mov_b32_e32 v4, 2
  global_store_dword v3, v4, s[4:5]
.Lend:
"""
_READ_THEN_STORED = """
  s_cmp_eq_u32 s8, 0
  s_cbranch_scc0 .Lsecond
  global_load_dword v5, v3, s[4:5]
  s_waitcnt vmcnt(0)
  s_barrier
  s_branch .Lend
.Lsecond:
  s_barrier
  v_mov_b32_e32 v4, 77
  global_store_dword v3, v4, s[4:5]
.Lend:
"""
TWINS = {
    "a wave stores what another wave has read": Twin(
        "global-race", _READ_THEN_STORED, ".Lsecond:\n  s_barrier", ".Lsecond:", workgroup=128
    ),
    "workgroups store what others have read": Twin(
        "global-race",
        "v_mov_b32_e32 v6, s2\n v_lshlrev_b32_e32 v6, 2, v6\n v_mov_b32_e32 v7, v6\n"
        " global_load_dword v5, v7, s[4:5]\n s_waitcnt vmcnt(0)\n v_add_u32_e32 v5, 100, v5\n"
        " global_store_dword v6, v5, s[4:5]",
        "v_mov_b32_e32 v7, v6",
        "v_mov_b32_e32 v7, 4",
        grid=3,
    ),
    "two waves store at once": Twin(
        "global-race",
        "global_store_dword v1, v0, s[4:5]",
        "v1, v0",
        "v3, v0",
        workgroup=128,
    ),
    "two waves store one after the other": Twin(
        "global-race", _WAVES_IN_TURN, ".Lsecond:\n  s_barrier", ".Lsecond:", workgroup=128
    ),
    "workgroups store different values": Twin(
        "global-race",
        "v_mov_b32_e32 v4, 7\n global_store_dword v3, v4, s[4:5]",
        "v_mov_b32_e32 v4, 7",
        "v_mov_b32_e32 v4, s2",
        grid=3,
    ),
    "workgroups of several batches store different values": Twin(
        "global-race",
        "v_mov_b32_e32 v4, 7\n global_store_dword v3, v4, s[4:5]",
        "v_mov_b32_e32 v4, 7",
        "v_mov_b32_e32 v4, s2",
        grid=200,
    ),
    "workgroups add": Twin(
        "global-race",
        "v_mov_b32_e32 v4, s2\n global_atomic_add v3, v4, s[4:5]",
        "global_atomic_add",
        "global_store_dword",
        grid=3,
    ),
}


def kinds(sim: Any, body: str, twin: Twin, order: str = "forward") -> list[str]:
    buffers = {"data": np.arange(256, dtype=np.uint32), "flags": np.zeros(256, np.uint32)}
    source = sim.Source(PROLOGUE + body, lds=1024)
    report = sim.run("gfx942", source, buffers, grid=twin.grid, workgroup=twin.workgroup, wave_order=order)
    found: list[str] = sim.kinds(report)
    return found


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("name", TWINS)
def test_a_race_is_found_and_its_twin_is_clean(sim: Any, name: str, order: str) -> None:
    twin = TWINS[name]
    assert twin.part in twin.right
    assert not kinds(sim, twin.right, twin, order)
    assert kinds(sim, twin.right.replace(twin.part, twin.wrong, 1), twin, order) == [twin.kind]


def test_a_wave_overwrites_its_own_store(sim: Any) -> None:
    body = "global_store_dword v1, v0, s[4:5]\n global_store_dword v1, v1, s[4:5]"
    assert not kinds(sim, body, Twin("", "", ""))


#: Lanes 0..31 of v[4:5] lead to LDS, the others to global memory.
_FLAT = """
  s_mov_b64 s[14:15], src_shared_base
  ds_write_b32 v1, v0
  v_mov_b32_e32 v8, s4
  v_mov_b32_e32 v9, s15
  v_mov_b32_e32 v10, s5
  v_cmp_gt_u32_e32 vcc, 32, v0
  s_nop 1
  v_cndmask_b32_e32 v4, v8, v1, vcc
  v_cndmask_b32_e32 v5, v10, v9, vcc
  s_waitcnt lgkmcnt(0)
  {loads}
  s_waitcnt {wait}
  v_add_u32_e32 v2, 1, v2
  s_waitcnt vmcnt(0) lgkmcnt(0)
"""
_FLAT_LOAD = "flat_load_dword v2, v[4:5]\n"
_THEN_GLOBAL = _FLAT_LOAD + "global_load_dword v6, v1, s[4:5]"
_THEN_LDS = _FLAT_LOAD + "ds_read_b32 v6, v1"
_BEHIND_GLOBAL = "global_load_dword v2, v1, s[4:5]\n flat_load_dword v6, v[4:5]"


@pytest.mark.parametrize(
    ("loads", "wait", "safe"),
    [
        (_THEN_GLOBAL, "vmcnt(0) lgkmcnt(0)", True),
        (_THEN_GLOBAL, "vmcnt(1) lgkmcnt(0)", False),
        (_THEN_LDS, "vmcnt(0) lgkmcnt(0)", True),
        (_THEN_LDS, "vmcnt(0) lgkmcnt(1)", False),
        (_BEHIND_GLOBAL, "vmcnt(0)", True),
        (_BEHIND_GLOBAL, "vmcnt(1)", False),
    ],
)
def test_only_a_wait_for_zero_is_sure_of_a_flat_load(sim: Any, loads: str, wait: str, safe: bool) -> None:
    found = kinds(sim, _FLAT.format(loads=loads, wait=wait), Twin("", "", ""))
    assert found == ([] if safe else ["wait-count"])


@pytest.mark.parametrize(
    ("lds", "wait", "safe"),
    [
        (False, "vmcnt(0)", True),
        (False, "lgkmcnt(0)", False),
        (True, "vmcnt(0)", False),
        (True, "vmcnt(0) lgkmcnt(0)", True),
    ],
)
def test_a_flat_atomic_without_a_lane_in_lds_completes_with_vmcnt(sim: Any, lds: bool, wait: str, safe: bool) -> None:
    to_memory = "" if lds else "v_mov_b32_e32 v4, v8\n v_mov_b32_e32 v5, v10\n v_lshl_add_u32 v4, v0, 2, v4\n"
    loads = to_memory + "flat_atomic_add v2, v[4:5], v0 sc0"
    found = kinds(sim, _FLAT.format(loads=loads, wait=wait), Twin("", "", ""))
    assert found == ([] if safe else ["wait-count"])


#: Workgroup 0 stores data past its caches and sets a flag, for which workgroup 1 waits.
_MESSAGE = """
  v_mov_b32_e32 v4, 9
  s_mov_b64 exec, 1
  v_mov_b32_e32 v5, 1
  s_cmp_eq_u32 s2, 0
  s_cbranch_scc0 .Lwait
  global_store_dword v3, v4, s[4:5] sc0 sc1
  s_waitcnt vmcnt(0)
  global_atomic_add v3, v5, s[6:7] sc1
  s_branch .Lend
.Lwait:
  s_sleep 1
  global_load_dword v6, v3, s[6:7] sc0 sc1
  s_waitcnt vmcnt(0)
  v_cmp_eq_u32_e32 vcc, 0, v6
  s_cbranch_vccnz .Lwait
  buffer_inv sc0 sc1
  global_load_dword v7, v3, s[4:5] sc0 sc1
  s_waitcnt vmcnt(0)
.Lend:
"""


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("flag", ["global_atomic_add v3, v5, s[6:7] sc1", "global_store_dword v3, v5, s[6:7] sc0 sc1"])
def test_data_is_waited_for_before_its_flag(sim: Any, order: str, flag: str) -> None:
    twin = Twin("", "", "", grid=2)
    body = _MESSAGE.replace("global_atomic_add v3, v5, s[6:7] sc1", flag)
    assert not kinds(sim, body, twin, order)
    late = body.replace("s_waitcnt vmcnt(0)\n", "", 1)
    assert kinds(sim, late, twin, order) == ["global-visibility"]


def test_own_stores_stay_ordered_in_workgroups_of_any_number(sim: Any) -> None:
    body = """
  v_mov_b32_e32 v4, 1
  global_store_dword v3, v4, s[4:5]
  s_waitcnt vmcnt(0)
  v_mov_b32_e32 v4, 2
  global_store_dword v3, v4, s[4:5]
"""
    buffers = {"data": np.zeros(4, np.uint32), "flags": np.zeros(4, np.uint32)}
    for group in ((1 << 24) - 1, 1 << 24, (1 << 26) - 2):
        launch = attrs.evolve(sim.launch("k", list(buffers), grid=group + 1), groups=(group,))
        code = sim.assemble("gfx942", {"k": sim.Source(PROLOGUE + body)})
        report = simulate(code, [launch], {name: data.view(np.uint8) for name, data in buffers.items()})
        assert [finding.kind for finding in report.findings] == []
