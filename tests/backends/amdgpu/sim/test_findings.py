"""Each finding, in a kernel that deserves it and in its corrected form."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

#: Loads `in` and `out` pointers, makes descriptors s[8:11] and s[12:15] of 256 bytes, v1 = 4 * thread.
PROLOGUE = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  s_waitcnt lgkmcnt(0)
  s_mov_b32 s8, s4
  s_and_b32 s9, s5, 0xffff
  s_movk_i32 s10, 256
  s_mov_b32 s11, 0x27000
  s_mov_b32 s12, s6
  s_and_b32 s13, s7, 0xffff
  s_movk_i32 s14, 256
  s_mov_b32 s15, 0x27000
"""
STORE_V2 = "\n  buffer_store_dword v2, v1, s[12:15], 0 offen\n"


@attrs.frozen
class Case:
    """A body that is right, and a line of it whose loss (or replacement) must be noticed."""

    kind: str
    body: str
    line: str
    replacement: str = ""
    workgroup: int = 64
    grid: int = 1
    arch: str = "gfx942"


_MFMA = """
  v_mov_b32_e32 v4, 0
  v_mov_b32_e32 v5, 0
  s_nop 1
  v_mfma_f32_16x16x16_f16 v[8:11], v[4:5], v[4:5], 0
"""
_LDS_EXCHANGE = """
  v_xor_b32_e32 v3, 0x100, v1
  ds_write_b32 v1, v0
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b32 v2, v3
  s_waitcnt lgkmcnt(0)
  v_and_b32_e32 v1, 0xff, v1
"""
_DMA = """
  s_mov_b32 m0, 0
  s_nop 0
  buffer_load_dword v1, s[8:11], 0 offen lds
  s_waitcnt vmcnt(0)
  ds_read_b32 v2, v1
  s_waitcnt lgkmcnt(0)
"""

CASES = {
    "vmcnt": Case(
        "wait-count", "buffer_load_dword v2, v1, s[8:11], 0 offen\n s_waitcnt vmcnt(0)", "s_waitcnt vmcnt(0)"
    ),
    "vmcnt weakened": Case(
        "wait-count",
        "buffer_load_dword v2, v1, s[8:11], 0 offen\n buffer_load_dword v3, v1, s[8:11], 0 offen\n s_waitcnt vmcnt(1)",
        "s_waitcnt vmcnt(1)",
        "s_waitcnt vmcnt(2)",
    ),
    "smem wait": Case(
        "wait-count",
        "s_load_dword s20, s[4:5], 0x0\n s_waitcnt lgkmcnt(0)\n v_mov_b32_e32 v2, s20",
        "s_waitcnt lgkmcnt(0)\n v_mov",
        "v_mov",
    ),
    "smem out of order": Case(
        "wait-count",
        "s_load_dword s20, s[4:5], 0x0\n s_load_dword s21, s[4:5], 0x4\n s_waitcnt lgkmcnt(0)\n v_mov_b32_e32 v2, s20",
        "s_waitcnt lgkmcnt(0)\n v_mov",
        "s_waitcnt lgkmcnt(1)\n v_mov",
    ),
    "overwrite in flight": Case(
        "wait-count",
        "buffer_load_dword v3, v1, s[8:11], 0 offen\n s_waitcnt vmcnt(0)\n v_mov_b32_e32 v3, 0\n v_mov_b32_e32 v2, 0",
        "s_waitcnt vmcnt(0)",
    ),
    "lds wait": Case(
        "wait-count",
        "ds_write_b32 v1, v0\n ds_read_b32 v2, v1\n s_waitcnt lgkmcnt(0)",
        "s_waitcnt lgkmcnt(0)",
    ),
    "lds wait weakened": Case(
        "wait-count",
        "ds_write_b32 v1, v0\n ds_read_b32 v2, v1\n ds_read_b32 v3, v1\n s_waitcnt lgkmcnt(1)",
        "s_waitcnt lgkmcnt(1)",
        "s_waitcnt lgkmcnt(2)",
    ),
    "barrier": Case("lds-race", _LDS_EXCHANGE, "s_barrier", workgroup=128),
    "wait before barrier": Case(
        "lds-race", _LDS_EXCHANGE, "s_waitcnt lgkmcnt(0)\n  s_barrier", "s_barrier", workgroup=128
    ),
    "write after read": Case(
        "lds-race",
        _LDS_EXCHANGE.replace("v_and_b32", "s_barrier\n ds_write_b32 v1, v0\n v_and_b32"),
        "s_barrier\n ds_write",
        "ds_write",
        workgroup=128,
    ),
    "write after write": Case(
        "lds-race",
        "v_xor_b32_e32 v3, 0x100, v1\n ds_write_b32 v1, v0\n s_waitcnt lgkmcnt(0)\n s_barrier\n ds_write_b32 v3, v0\n"
        " v_mov_b32_e32 v2, 0\n v_and_b32_e32 v1, 0xff, v1",
        "s_barrier",
        workgroup=128,
    ),
    "read outstanding at barrier": Case(
        "lds-race",
        _LDS_EXCHANGE.replace("v_and_b32", "s_barrier\n ds_write_b32 v1, v0\n v_and_b32"),
        "s_waitcnt lgkmcnt(0)\n  s_barrier\n ds_write",
        "s_barrier\n s_waitcnt lgkmcnt(0)\n ds_write",
        workgroup=128,
    ),
    "dma lands with vmcnt": Case("poison", _DMA, "s_waitcnt vmcnt(0)"),
    "m0 before dma": Case("wait-states", _DMA, "s_nop 0"),
    "mfma result read": Case("wait-states", _MFMA + " s_nop 6\n v_mov_b32_e32 v2, v8", "s_nop 6", "s_nop 5"),
    "mfma operand": Case("wait-states", _MFMA + " s_nop 7\n v_mov_b32_e32 v2, v8", "s_nop 1", "s_nop 0"),
    "mfma chain overlap": Case(
        "wait-states",
        _MFMA
        + " v_mov_b32_e32 v12, 0\n v_mov_b32_e32 v13, 0\n s_nop 2\n"
        + " v_mfma_f32_16x16x16_f16 v[10:13], v[4:5], v[4:5], v[10:13]\n s_nop 7\n v_mov_b32_e32 v2, v13",
        "s_nop 2",
        "s_nop 1",
    ),
    "valu sgpr to vmem": Case(
        "wait-states",
        "v_readfirstlane_b32 s20, v0\n s_nop 4\n buffer_load_dword v2, v1, s[8:11], s20 offen\n s_waitcnt vmcnt(0)",
        "s_nop 4",
        "s_nop 3",
    ),
    "v_cmp to cndmask": Case(
        "wait-states",
        "v_cmp_gt_u32_e32 vcc, 3, v0\n s_nop 1\n v_cndmask_b32_e32 v2, v0, v1, vcc",
        "s_nop 1",
        "s_nop 0",
    ),
    "transcendental": Case("wait-states", "v_rcp_f32_e32 v2, v1\n s_nop 0\n v_add_f32_e32 v2, 1.0, v2", "s_nop 0"),
    "dot product read by another instruction": Case(
        "wait-states", "v_dot2_f32_f16 v2, v1, v1, v1\n s_nop 2\n v_add_f32_e32 v2, 1.0, v2", "s_nop 2", "s_nop 1"
    ),
    "dot product stored": Case(
        "wait-states",
        "v_dot2_f32_f16 v2, v1, v1, v1\n s_nop 2\n buffer_store_dword v2, v1, s[12:15], 0 offen",
        "s_nop 2",
    ),
    "wide store data": Case(
        "wait-states",
        "v_mov_b32_e32 v4, 0\n v_mov_b32_e32 v5, 0\n v_mov_b32_e32 v6, 0\n v_mov_b32_e32 v7, 0\n v_mov_b32_e32 v3, 0\n"
        " s_mov_b64 exec, 1\n buffer_store_dwordx4 v[4:7], v3, s[8:11], 0 offen\n s_nop 1\n v_mov_b32_e32 v4, 0\n"
        " v_mov_b32_e32 v2, 0",
        "s_nop 1",
        "s_nop 0",
    ),
    "dpp source": Case(
        "wait-states",
        "v_mov_b32_e32 v3, 1\n s_nop 1\n v_mov_b32_dpp v2, v3 row_mirror row_mask:0xf bank_mask:0xf",
        "s_nop 1",
        "s_nop 0",
    ),
    "uninitialised register": Case("poison", "v_mov_b32_e32 v2, 0", "v_mov_b32_e32 v2, 0"),
    "selection of defined data": Case(
        "poison",
        "v_cmp_gt_u32_e32 vcc, 64, v0\n s_nop 1\n v_cndmask_b32_e32 v2, v40, v0, vcc",
        "v40, v0",
        "v0, v40",
    ),
    "low word of a 64-bit addition": Case(
        "poison",
        "v_mov_b32_e32 v40, 1\n v_mad_u64_u32 v[2:3], s[20:21], v0, v1, v[40:41]",
        "v_mov_b32_e32 v40, 1",
    ),
    "uninitialised lds": Case(
        "poison", "ds_write_b32 v1, v0\n ds_read_b32 v2, v1\n s_waitcnt lgkmcnt(0)", "ds_write_b32 v1, v0"
    ),
    "uninitialised branch": Case(
        "poison", "v_mov_b32_e32 v2, 0\n s_mov_b32 s30, 0\n s_cmp_eq_u32 s30, 0\n s_cbranch_scc1 0", "s_mov_b32 s30, 0"
    ),
    "uninitialised address": Case(
        "poison",
        "v_mov_b32_e32 v9, v1\n buffer_load_dword v2, v9, s[8:11], 0 offen\n s_waitcnt vmcnt(0)",
        "v_mov_b32_e32 v9, v1",
    ),
    "uninitialised exec": Case(
        "poison", "v_mov_b32_e32 v2, 0\n s_mov_b64 s[20:21], -1\n s_mov_b64 exec, s[20:21]", "s_mov_b64 s[20:21], -1"
    ),
    "register beyond allocation": Case("register-range", "v_mov_b32_e32 v63, 0\n v_mov_b32_e32 v2, 0", "v63", "v64"),
    "lds beyond allocation": Case(
        "lds-bounds", "v_mov_b32_e32 v2, 0\n ds_write_b32 v1, v0 offset:256", "offset:256", "offset:1020"
    ),
    "lds misaligned": Case(
        "misaligned",
        "v_mov_b32_e32 v2, 0\n v_mov_b32_e32 v5, 0\n v_lshlrev_b32_e32 v4, 3, v0\n ds_write_b64 v4, v[4:5] offset:8",
        "offset:8",
        "offset:4",
    ),
    "outside the allocation": Case(
        "out-of-bounds",
        "s_movk_i32 s10, 256\n buffer_load_dword v2, v1, s[8:11], 0 offen offset:128\n s_waitcnt vmcnt(0)",
        "s_movk_i32 s10, 256\n buffer_load",
        "s_movk_i32 s10, 0x200\n buffer_load",
    ),
    "misaligned global": Case(
        "misaligned",
        "v_and_b32_e32 v4, 0x7c, v1\n buffer_load_dword v2, v4, s[8:11], 0 offen offset:4\n s_waitcnt vmcnt(0)",
        "offset:4",
        "offset:2",
    ),
    "soffset decides": Case(
        "buffer-soffset",
        "s_movk_i32 s20, 128\n v_and_b32_e32 v4, 0x7c, v1\n"
        " buffer_load_dword v2, v4, s[8:11], s20 offen\n s_waitcnt vmcnt(0)",
        "v_and_b32_e32 v4, 0x7c, v1",
        "v_mov_b32_e32 v4, v1",
    ),
    "offset wraps": Case(
        "buffer-wrap",
        "v_subrev_u32_e32 v4, 16, v1\n buffer_load_dword v2, v4, s[8:11], 0 offen offset:0\n s_waitcnt vmcnt(0)",
        "offset:0",
        "offset:16",
    ),
    "own store read back": Case(
        "global-visibility",
        "buffer_store_dword v0, v1, s[8:11], 0 offen\n s_waitcnt vmcnt(0)\n"
        " buffer_load_dword v2, v1, s[8:11], 0 offen\n"
        " s_nop 0\n s_waitcnt vmcnt(0)",
        "s_waitcnt vmcnt(0)\n buffer_load",
        "buffer_load",
    ),
    "store before barrier": Case(
        "global-visibility",
        "v_and_b32_e32 v4, 0xff, v1\n v_xor_b32_e32 v3, 0x80, v4\n s_and_saveexec_b64 s[20:21], -1\n"
        " v_cmp_gt_u32_e32 vcc, 64, v0\n s_mov_b64 s[22:23], exec\n s_mov_b64 exec, vcc\n"
        " buffer_store_dword v0, v4, s[8:11], 0 offen\n s_mov_b64 exec, s[22:23]\n s_waitcnt vmcnt(0)\n s_barrier\n"
        " buffer_load_dword v2, v3, s[8:11], 0 offen\n s_waitcnt vmcnt(0)\n v_mov_b32_e32 v1, v4",
        "s_barrier",
        workgroup=128,
    ),
}


def execute(sim: Any, case: Case, body: str, **options: Any) -> Any:
    source = sim.Source(PROLOGUE + body + STORE_V2, lds=1024)
    buffers = {"in": np.arange(64, dtype=np.uint32), "out": np.zeros(64, np.uint32)}
    return sim.run(case.arch, source, buffers, grid=case.grid, workgroup=case.workgroup, **options)


@pytest.mark.parametrize("name", CASES)
def test_right_form_is_clean(sim: Any, name: str) -> None:
    case = CASES[name]
    assert case.line in case.body
    report = execute(sim, case, case.body)
    assert not report.findings, str(report.findings[0])


@pytest.mark.parametrize("name", CASES)
def test_wrong_form_is_noticed(sim: Any, name: str) -> None:
    case = CASES[name]
    wrong = case.body.replace(case.line, case.replacement, 1)
    for order in ("forward", "reverse"):
        assert case.kind in sim.kinds(execute(sim, case, wrong, wave_order=order))
