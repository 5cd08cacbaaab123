"""Relative addressing of vector registers: s_set_gpr_idx_on, _off, _mode and _idx."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convgen.backends.amdgpu.sim import Unsupported

#: v[16 + n] = 100 n + lane, for 16 of them; v1 = 4 * thread.
SETUP = "s_load_dwordx2 s[4:5], s[0:1], 0x0\n v_lshlrev_b32_e32 v1, 2, v0\n" + "".join(
    f" v_add_u32_e32 v{16 + n}, {100 * n}, v0\n" for n in range(16)
)
STORE = "\n s_waitcnt lgkmcnt(0)\n global_store_dword v1, v2, s[4:5]"
LANE = np.arange(64)

#: (body, what v2 then holds)
CASES = {
    "source 0": (
        "s_mov_b32 s8, 3\n s_set_gpr_idx_on s8, gpr_idx(SRC0)\n v_mov_b32_e32 v2, v16\n s_set_gpr_idx_off",
        300,
    ),
    "source 1": (
        "v_mov_b32_e32 v3, 0\n s_mov_b32 s8, 4\n s_set_gpr_idx_on s8, gpr_idx(SRC1)\n"
        " v_add_u32_e32 v2, v3, v16\n s_set_gpr_idx_off",
        400,
    ),
    "source 2": (
        "v_mov_b32_e32 v3, 0\n s_mov_b32 s8, 5\n s_set_gpr_idx_on s8, gpr_idx(SRC2)\n"
        " v_add3_u32 v2, v3, v3, v16\n s_set_gpr_idx_off",
        500,
    ),
    "destination": (
        "s_mov_b32 s8, 2\n s_set_gpr_idx_on s8, gpr_idx(DST)\n v_mov_b32_e32 v18, v21\n s_set_gpr_idx_off\n"
        " v_mov_b32_e32 v2, v20",
        500,
    ),
    "pairs": (
        "v_mov_b32_e32 v4, 1.0\n v_mov_b32_e32 v5, 1.0\n v_cvt_f32_u32_e32 v16, v16\n v_cvt_f32_u32_e32 v18, v18\n"
        " v_cvt_f32_u32_e32 v19, v19\n s_mov_b32 s8, 2\n s_set_gpr_idx_on s8, gpr_idx(SRC0)\n"
        " v_pk_mul_f32 v[6:7], v[16:17], v[4:5]\n s_set_gpr_idx_off\n v_cvt_u32_f32_e32 v2, v7",
        300,
    ),
    "another index": (
        "s_mov_b32 s8, 3\n s_mov_b32 s9, 7\n s_set_gpr_idx_on s8, gpr_idx(SRC0)\n s_set_gpr_idx_idx s9\n"
        " v_mov_b32_e32 v2, v16\n s_set_gpr_idx_off",
        700,
    ),
    "another mode": (
        "v_mov_b32_e32 v3, 0\n s_mov_b32 s8, 1\n s_set_gpr_idx_on s8, gpr_idx(SRC0)\n"
        " s_set_gpr_idx_mode gpr_idx(SRC1)\n v_add_u32_e32 v2, v3, v16\n s_set_gpr_idx_off",
        100,
    ),
    "M0 written": (
        "s_mov_b32 s8, 3\n s_set_gpr_idx_on s8, gpr_idx(SRC0)\n s_movk_i32 m0, 0x1006\n v_mov_b32_e32 v2, v16\n"
        " s_set_gpr_idx_off",
        600,
    ),
    "off": (
        "s_mov_b32 s8, 3\n s_set_gpr_idx_on s8, gpr_idx(SRC0)\n s_set_gpr_idx_off\n v_mov_b32_e32 v2, v17",
        100,
    ),
    "scalars and stores stand still": (
        "s_mov_b32 s8, 3\n s_mov_b32 s11, 9\n s_set_gpr_idx_on s8, gpr_idx(SRC0)\n v_mov_b32_e32 v2, s8\n s_nop 0\n"
        " s_set_gpr_idx_off\n v_add_u32_e32 v2, v2, v0",
        3,
    ),
    "a loop": (
        "s_mov_b32 s8, 0\n s_mov_b32 s9, 4\n v_mov_b32_e32 v2, 0\n v_mov_b32_e32 v3, 0\n"
        ".Lnext:\n s_set_gpr_idx_on s8, gpr_idx(SRC0)\n v_mov_b32_e32 v3, v16\n s_cmp_eq_u32 s8, s9\n"
        " s_cbranch_scc1 .Lout\n s_set_gpr_idx_off\n s_add_u32 s8, s8, 1\n"
        " s_branch .Lnext\n.Lout:\n s_set_gpr_idx_off\n v_mov_b32_e32 v2, v3",
        400,
    ),
}


def run(sim: Any, body: str, workgroup: int = 64, **options: Any) -> tuple[Any, Any]:
    out = np.zeros(workgroup, np.uint32)
    return sim.run("gfx942", SETUP + body + STORE, {"out": out}, workgroup=workgroup, **options), out


@pytest.mark.parametrize("name", CASES)
def test_index(sim: Any, name: str) -> None:
    body, base = CASES[name]
    report, out = run(sim, body)
    assert not report.findings, str(report.findings[0])
    np.testing.assert_array_equal(out, base + LANE)
    assert sum(report.instructions.values()) > len(CASES[name][0].splitlines())


def test_each_wave_has_its_index(sim: Any) -> None:
    body = (
        "v_lshrrev_b32_e32 v3, 6, v0\n s_nop 0\n v_readfirstlane_b32 s8, v3\n s_set_gpr_idx_on s8, gpr_idx(SRC0)\n"
        " v_mov_b32_e32 v2, v16\n s_set_gpr_idx_off\n s_barrier"
    )
    report, out = run(sim, body, workgroup=256)
    assert not report.findings, str(report.findings[0])
    np.testing.assert_array_equal(out, np.arange(256) + 100 * (np.arange(256) // 64))


def test_beyond_the_allocation(sim: Any) -> None:
    body, _ = CASES["source 0"]
    assert sim.kinds(run(sim, body.replace("s8, 3", "s8, 0x30"))[0]) == ["register-range"]


def test_an_undefined_index(sim: Any) -> None:
    body, _ = CASES["source 0"]
    assert sim.kinds(run(sim, body.replace("s_mov_b32 s8, 3", "s_nop 0"))[0]) == ["poison"]


def test_registers_in_flight_are_those_meant(sim: Any) -> None:
    """The load's register is v19, which v16 names with an index of 3."""
    body, _ = CASES["source 0"]
    report, _ = run(sim, "s_waitcnt lgkmcnt(0)\n global_load_dword v19, v1, s[4:5]\n " + body)
    assert "wait-count" in sim.kinds(report)


@pytest.mark.parametrize(
    "line", ["v_fmac_f32_e32 v2, v16, v17", "v_readfirstlane_b32 s9, v16", "v_lshlrev_b32_e32 v2, 1, v16"]
)
def test_other_roles_are_refused(sim: Any, line: str) -> None:
    with pytest.raises(Unsupported, match="under relative addressing"):
        run(
            sim,
            f"v_mov_b32_e32 v2, 0\n s_mov_b32 s8, 0\n s_set_gpr_idx_on s8, gpr_idx(SRC0,SRC1)\n {line}",
        )
