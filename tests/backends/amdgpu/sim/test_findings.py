"""Each finding, in a kernel that deserves it and in its corrected form."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from convgen.backends.amdgpu.sim import sources

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
  v_and_b32_e32 v1, 0x1ff, v1
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
        " v_mov_b32_e32 v2, 0\n v_and_b32_e32 v1, 0x1ff, v1",
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
    "several waves store the same bytes": Case(
        "lds-race",
        "v_and_b32_e32 v4, 0xff, v1\n v_and_b32_e32 v5, 63, v0\n ds_write_b32 v4, v5\n v_mov_b32_e32 v2, 0\n"
        " v_and_b32_e32 v1, 0x1ff, v1",
        "63, v0",
        "127, v0",
        workgroup=128,
    ),
    "waves store the same bytes one after the other": Case(
        "lds-race",
        "v_and_b32_e32 v4, 0xff, v1\n v_and_b32_e32 v5, 63, v0\n v_readfirstlane_b32 s20, v0\n s_cmp_eq_u32 s20, 0\n"
        " s_cbranch_scc0 .Lone\n ds_write_b8 v4, v5\n.Lone:\n s_cbranch_scc1 .Lend\n ds_write_b8 v4, v5\n.Lend:\n"
        " v_mov_b32_e32 v2, 0\n v_and_b32_e32 v1, 0x1ff, v1",
        "63, v0",
        "127, v0",
        workgroup=128,
    ),
    "more in flight than lgkmcnt counts": Case(
        "wait-count",
        "ds_write_b32 v1, v0\n s_waitcnt lgkmcnt(0)\n"
        + "".join(f" ds_read_b32 v{16 + n}, v1\n" for n in range(17))
        + " s_waitcnt lgkmcnt(14)\n v_mov_b32_e32 v2, v17\n s_waitcnt lgkmcnt(0)",
        "s_waitcnt lgkmcnt(14)",
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


def test_more_in_flight_than_vmcnt_counts(sim: Any) -> None:
    """64 loads fill the counter; only a wait lands the first, be it for the largest number that the field has."""
    loads = "".join(f"buffer_load_dword v{16 + n}, v1, s[8:11], 0 offen\n" for n in range(64))
    buffers = {"in": np.arange(64, dtype=np.uint32), "out": np.zeros(64, np.uint32)}
    for wait in ("s_waitcnt vmcnt(62)", "s_waitcnt vmcnt(63)", ""):
        body = f"{PROLOGUE}{loads}{wait}\n v_mov_b32_e32 v2, v16\n{STORE_V2}"
        kinds = sim.kinds(sim.run("gfx942", sim.Source(body, vgprs=96), buffers))
        assert ("wait-count" in kinds) is not bool(wait)


def test_a_load_that_overwrites_another(sim: Any) -> None:
    """Vector memory loads return in order; LDS reads and flat loads do not say so (CDNA3 ISA 4.4)."""
    load = "buffer_load_dword v2, v1, s[8:11], 0 offen\n"
    order = {
        load + load.replace("offen", "offen offset:4"): [],
        "v_mov_b32_e32 v4, s6\n v_mov_b32_e32 v5, s7\n " + load + "flat_load_dword v2, v[4:5]\n": ["wait-count"],
        "ds_write_b32 v1, v0\n " + load + "ds_read_b32 v2, v1\n": ["wait-count"],
    }
    buffers = {"in": np.arange(65, dtype=np.uint32), "out": np.zeros(64, np.uint32)}
    for loads, kinds in order.items():
        body = PROLOGUE.replace("s_movk_i32 s10, 256", "s_movk_i32 s10, 260") + loads
        source = sim.Source(body + "s_waitcnt vmcnt(0) lgkmcnt(0)" + STORE_V2, lds=1024)
        assert sim.kinds(sim.run("gfx942", source, buffers)) == kinds
        if not kinds:
            np.testing.assert_array_equal(buffers["out"], np.arange(1, 65))


#: Of data that is not aligned: v2 becomes the dword at byte 4 * lane + 2 (1, 3) of what in holds.
UNALIGNED = {
    "global": "global_load_dword v2, v1, s[4:5] offset:2",
    "buffer": "buffer_load_dword v2, v1, s[8:11], 0 offen offset:2",
    "lds": (
        "v_lshlrev_b32_e32 v4, 2, v0\n buffer_load_dword v3, v1, s[8:11], 0 offen\n s_waitcnt vmcnt(0)\n"
        " ds_write_b32 v4, v3\n ds_read_b32 v3, v1 offset:4\n s_waitcnt lgkmcnt(0)\n ds_write_b32 v4, v3 offset:4\n"
        " s_barrier\n ds_read_b32 v2, v4 offset:2"
    ),
    "lds, what the offset does not show": (
        "buffer_load_dword v3, v1, s[8:11], 0 offen\n s_waitcnt vmcnt(0)\n ds_write_b32 v1, v3\n"
        " v_add_u32_e32 v4, 2, v1\n s_barrier\n ds_read_b32 v2, v4"
    ),
}


@pytest.mark.parametrize("name", UNALIGNED)
def test_data_that_is_not_aligned(sim: Any, name: str) -> None:
    """It is what stands there, and no manual forbids it in the mode that ROCm sets."""
    data = np.arange(65 * 4, dtype=np.uint8)
    buffers = {"in": data.view(np.uint32).copy(), "out": np.zeros(64, np.uint32)}
    body = PROLOGUE.replace("s_movk_i32 s10, 256", "s_movk_i32 s10, 260") + "ds_write_b32 v1, v0 offset:256\n"
    source = sim.Source(f"{body} {UNALIGNED[name]}\n s_waitcnt vmcnt(0) lgkmcnt(0)\n{STORE_V2}", lds=1024)
    report = sim.run("gfx942", source, buffers)
    assert [(f.kind, f.source.required) for f in report.findings] == [("misaligned", False)]
    there = np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(data, 4)[2::4]).view(np.uint32)[:, 0]
    np.testing.assert_array_equal(buffers["out"][:63], there[:63])


def test_v_registers_reach_the_whole_allocation(sim: Any) -> None:
    """v[n] at accum_offset is a0, and beyond the allocation there is nothing."""
    body = PROLOGUE + "v_accvgpr_write_b32 a1, v0\n v_mov_b32_e32 v2, v{}\n" + STORE_V2
    buffers = {"in": np.arange(64, dtype=np.uint32), "out": np.zeros(64, np.uint32)}
    report = sim.run("gfx942", sim.Source(body.format(33), vgprs=32, agprs=8), buffers)
    assert not report.findings, str(report.findings[0])
    np.testing.assert_array_equal(buffers["out"], np.arange(64))
    beyond = sim.run("gfx942", sim.Source(body.format(40), vgprs=32, agprs=8), buffers)
    assert sim.kinds(beyond) == ["register-range"]


#: What only LLVM asks for: (a body, whether a manual asks, too).
ASKED: dict[str, tuple[str, bool]] = {
    "a carry-in": ("v_cmp_gt_u32_e32 vcc, 3, v0\n v_cndmask_b32_e32 v2, v0, v1, vcc", False),
    "a constant": ("v_readfirstlane_b32 s20, v0\n v_add_u32_e32 v2, s20, v0", True),
    "readlane": ("v_mov_b32_e32 v3, v0\n v_readlane_b32 s20, v3, 0\n v_mov_b32_e32 v2, v0", True),
    "readfirstlane": ("v_mov_b32_e32 v3, v0\n v_readfirstlane_b32 s20, v3\n v_mov_b32_e32 v2, v0", False),
    "M0 before a buffer's LDS DMA": (_DMA.replace("s_nop 0", ""), False),
    "M0 before a global load's LDS DMA": (
        _DMA.replace("s_nop 0", "").replace(
            "buffer_load_dword v1, s[8:11], 0 offen lds", "global_load_lds_dword v1, s[4:5]"
        ),
        True,
    ),
    "EXEC of v_cmpx": ("v_cmpx_le_u32_e64 s[20:21], 0, v0\n" + _MFMA.split("s_nop 1")[1] + " s_nop 7\n", True),
    "EXEC of v_cmpx, set since": (
        "v_cmpx_le_u32_e64 s[20:21], 0, v0\n s_mov_b64 exec, -1\n" + _MFMA.split("s_nop 1")[1] + " s_nop 7\n",
        False,
    ),
    "a scalar of the VALU, set since": (
        "v_readfirstlane_b32 s20, v0\n s_mov_b32 s20, 0\n buffer_load_dword v2, v1, s[8:11], s20 offen\n"
        " s_waitcnt vmcnt(0)",
        False,
    ),
    "a load over a matrix result": (_MFMA + " buffer_load_dwordx4 v[8:11], v1, s[4:7], 0 offen", False),
    "an accumulator of another mnemonic": (
        _MFMA + " v_mfma_f32_16x16x16_bf16 v[8:11], v[4:5], v[4:5], v[8:11]\n s_nop 7\n",
        False,
    ),
    "a packed fma behind a matrix instruction of 4 passes": (
        _MFMA + " s_nop 1\n v_pk_fma_f32 v[12:13], v[8:9], v[4:5], v[4:5]",
        False,
    ),
    "a packed fma sooner": (_MFMA + " s_nop 0\n v_pk_fma_f32 v[12:13], v[8:9], v[4:5], v[4:5]", True),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_asks_for_wait_states(sim: Any, name: str) -> None:
    """Each finding says what asks for it; what LLVM alone asks for is told apart from what a manual does."""
    body, required = ASKED[name]
    setup = "v_mov_b32_e32 v2, 0\n v_mov_b32_e32 v4, 0\n v_mov_b32_e32 v5, 0\n s_nop 15\n"
    case = Case("wait-states", setup + body, "")
    found = [f for f in execute(sim, case, case.body).findings if f.kind == "wait-states"]
    assert found
    assert any(f.source.required for f in found) is required, [str(f) for f in found]
    assert all(("LLVM" in f.source.text or "AITER" in f.source.text) is not f.source.required for f in found)


def test_what_llvm_alone_asks_for_does_not_stop_a_run(sim: Any) -> None:
    body, _ = ASKED["a carry-in"]
    case = Case("wait-states", "\n".join([body] * 5) + "\n ds_write_b32 v1, v0 offset:2000", "")
    kinds = [f.kind for f in execute(sim, case, case.body, max_findings=1).findings]
    assert kinds == ["wait-states"] * 5 + ["lds-bounds"]


_EXCHANGE = """
  v_and_b32_e32 v4, 0xff, v1
  v_xor_b32_e32 v3, 0x80, v4
  v_cmp_gt_u32_e32 vcc, 64, v0
  s_mov_b64 s[22:23], exec
  s_mov_b64 exec, vcc
  buffer_store_dword v0, v4, s[8:11], 0 offen
  s_mov_b64 exec, s[22:23]
  {wait}
  {barrier}
  {load}
  s_waitcnt vmcnt(0) lgkmcnt(0)
  v_mov_b32_e32 v1, v4
"""
_LOAD = "buffer_load_dword v2, v3, s[8:11], 0 offen"
_SCALAR_LOAD = "s_load_dword s20, s[4:5], 0x0\n s_waitcnt lgkmcnt(0)\n v_mov_b32_e32 v2, s20"
#: What stands between a wave's store and a load -> whether a manual or LLVM asks for more.
WITHIN_A_WORKGROUP = {
    "all": ({"wait": "s_waitcnt vmcnt(0)", "barrier": "s_barrier"}, None),
    "a barrier": ({"wait": "", "barrier": "s_barrier"}, False),
    "a wait": ({"wait": "s_waitcnt vmcnt(0)", "barrier": ""}, True),
    "nothing": ({"wait": "", "barrier": ""}, True),
    "nothing before a scalar load": ({"wait": "", "barrier": "", "load": _SCALAR_LOAD}, True),
}


@pytest.mark.parametrize("name", WITHIN_A_WORKGROUP)
def test_what_asks_for_order_within_a_workgroup(sim: Any, name: str) -> None:
    """LLVM has no wait for stores before a barrier (AMDGPUUsage, Memory Model: fence release - workgroup)."""
    between, required = WITHIN_A_WORKGROUP[name]
    body = _EXCHANGE.format(**{"load": _LOAD, **between})
    source = sim.Source(PROLOGUE + body + STORE_V2, lds=1024)
    buffers = {"in": np.arange(64, dtype=np.uint32), "out": np.zeros(64, np.uint32)}
    report = sim.run("gfx942", source, buffers, workgroup=128)
    found = [f.source.required for f in report.findings if f.kind == "global-visibility"]
    assert (max(found) if found else None) is required


def test_a_wave_reads_what_it_has_stored(sim: Any) -> None:
    body = "buffer_store_dword v0, v1, s[8:11], 0 offen\n buffer_load_dword v2, v1, s[8:11], 0 offen\n"
    source = sim.Source(PROLOGUE + body + "s_waitcnt vmcnt(0)" + STORE_V2)
    buffers = {"in": np.zeros(64, np.uint32), "out": np.zeros(64, np.uint32)}
    report = sim.run("gfx942", source, buffers)
    assert [(f.kind, f.source.required) for f in report.findings] == [("global-visibility", False)]
    np.testing.assert_array_equal(buffers["out"], np.arange(64))


def test_a_race_names_both_waves_and_places(sim: Any) -> None:
    case = CASES["barrier"]
    (found,) = execute(sim, case, case.body.replace("s_barrier", "", 1)).findings
    assert found.instruction == "ds_read_b32 v2, v3"
    assert {found.subgroup, int(found.message.partition("wave ")[2][0])} == {0, 1}
    assert "since the last barrier by `ds_write_b32 v1, v0` at +0x" in found.message


def test_a_race_says_that_a_read_was_not_waited_for_before_the_barrier(sim: Any) -> None:
    case = CASES["read outstanding at barrier"]
    found = [
        f for f in execute(sim, case, case.body.replace(case.line, case.replacement)).findings if f.kind == "lds-race"
    ]
    assert len(found) == 1
    assert "by `ds_read_b32 v2, v3` at +0x" in found[0].message
    assert "not waited for before the barrier" in found[0].message


def test_one_cause_is_one_finding(sim: Any) -> None:
    """Two reads of what one write without a barrier wrote."""
    body = _LDS_EXCHANGE.replace("ds_read_b32 v2, v3", "ds_read_b32 v5, v3\n ds_read_b32 v2, v3")
    found = execute(sim, Case("", body, "", workgroup=128), body.replace("s_barrier", "", 1)).findings
    assert [f.kind for f in found] == ["lds-race"]


@pytest.mark.parametrize("extract", ["v_bfe_u32 v2, v0, 10, 10", "v_lshrrev_b32_e32 v2, 10, v0"])
def test_a_work_item_id_that_the_descriptor_does_not_ask_for(sim: Any, extract: str) -> None:
    buffers = {"in": np.arange(64, dtype=np.uint32), "out": np.zeros(64, np.uint32)}
    for asked, kinds in (("0", ["work-item-id"]), ("1", [])):
        source = sim.Source(PROLOGUE + extract + STORE_V2, directives=f".amdhsa_system_vgpr_workitem_id {asked}")
        assert sim.kinds(sim.run("gfx942", source, buffers)) == kinds
    other = PROLOGUE + f"v_mov_b32_e32 v0, v1\n {extract}" + STORE_V2
    assert not sim.run("gfx942", sim.Source(other), buffers).findings


def test_findings_that_fail_nothing_name_the_document_that_permits_them() -> None:
    advice = [source for source in (*sources.SOURCES.values(), sources.OWN_ORDER) if not source.required]
    assert len(advice) == 3
    for source in advice:
        asks, _, permits = source.text.partition("; all the same it works")
        assert asks
        assert permits
