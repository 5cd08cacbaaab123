"""The hazard tables against what LLVM 22's hazard recognizer inserts, pair by pair (tests/data/amdgpu_hazards.json)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from convgen.backends.amdgpu.sim.hazards import SGEMM_KIND, TABLES, Table
from convgen.backends.amdgpu.sim.mfma_table import MATRIX_ROWS

DATA = json.loads((Path(__file__).parents[3] / "data" / "amdgpu_hazards.json").read_text())["rows"]

#: The recognizer's probes by our role.
ROLES = {
    "valu_read": "valu_read",
    "valu_waw": "valu_write",
    "gstore": "mem_read",
    "dswrite": "mem_read",
    "gload_waw": "mem_write",
    "dsread_waw": "mem_write",
    "C_same": "c_same",
    "C_overlap": "c_overlap",
    "A": "ab",
    "B": "ab",
    "A_of_16x16x16f16": "ab",
    "A_of_dgemm": "ab",
    "C_of_dgemm4": "c64_overlap",
}
#: Our (producer, role) for the probes that do not involve a matrix result.
GENERAL = {
    "valu->mfma_AB": ("valu", "ab"),
    "valu->mfma_C": ("valu", "c_overlap"),
    "dot->mfma_AB": ("dot", "ab"),
    "vcmpx_exec->mfma_b": ("valu_exec", "exec_mfma"),
    "vcmpx_exec->dpp": ("valu_exec", "exec_dpp"),
    "vcmpx_exec->readlane": ("valu_exec", "exec_lane"),
    "valu_sgpr->vmem": ("valu_sgpr", "vmem_sgpr"),
    "valu_sgpr->gload_saddr": ("valu_sgpr", "vmem_sgpr"),
    "valu_sgpr->valu_const": ("valu_sgpr", "valu_sgpr"),
    "valu_vcc->valu_vcc_cndmask": ("valu_sgpr", "valu_mask"),
    "valu_cmp_sgpr->cndmask_e64": ("valu_sgpr", "valu_mask"),
    "valu_sgpr->readlane_sel": ("valu_sgpr", "lane_select"),
    "vcc_valu->div_fmas": ("valu_sgpr", "div_fmas"),
    "valu_vgpr->readlane": ("valu", "lane_read"),
    "valu_vgpr->readfirstlane": ("valu", "first_lane_read"),
    "valu_vgpr->dpp": ("valu", "dpp"),
    "valu_vgpr->valu": ("valu", "valu_read"),
    "trans->valu": ("trans", "plain_read"),
    "trans->mfma": ("valu", "ab"),
    "opsel_dst->valu (v_fma_mixhi / d16hi)": ("partial", "valu_read"),
    "cvt_pk_fp8_opsel->valu": ("partial", "valu_read"),
    "m0->lds_dma_buffer": ("m0", "m0_buffer"),
    "m0->global_load_lds": ("m0", "m0_use"),
    "m0->sendmsg": ("m0", "m0_use"),
    "store128->valu_write_data": ("wide_store", "valu_write"),
    "bufstore128_nosoff->valu_write_data": ("wide_store", "valu_write"),
    "bufstore128_soff->valu_write_data": ("wide_store_soffset", "valu_write"),
    "setreg->getreg": ("setreg", "hwreg"),
    "setreg->setreg": ("setreg", "hwreg"),
    "valu->permlane16_swap": ("valu", "permlane"),
    "permlane32_swap->mfma": ("valu", "ab"),
}
#: Rows where our table is stricter on purpose, with the reason.
STRICTER = {
    "bufstore128_soff->valu_write_data": "LLVM pull request 197267 adds one wait state on gfx940 and later",
    "dot->mfma_AB": "the manuals ask for 3 between a dot product and any other instruction",
}
#: The same for results of matrix instructions: (class, role).
STRICTER_MATRIX = {
    ("dgemm16", "valu_write"): "CDNA4 ISA 7.6: 19 between V_MFMA_16x16x4_F64 and a VALU instruction that writes, too",
}


def states(table: Table, pair: tuple[str, str], passes: int) -> int:
    """The wait states of a row; 0 where there is none."""
    row = table.get(pair)
    return 0 if row is None else row.states.get(passes, 0)


def matrix_rows(arch: str, probe: str) -> list[tuple[str, int]]:
    """(hazard class, passes) of the instructions that a probe's name stands for."""
    name, _, formats = probe.lower().partition("_f8f6f4_")
    if formats:
        name = name.replace("_scale", "") + "_f8f6f4"
    squeezed = {
        mnemonic.replace("_", "").replace("2b", "").replace("16b", "").replace("4b", ""): row
        for mnemonic, row in MATRIX_ROWS[arch].items()
    }
    key = name.replace("_", "").replace("2b", "").replace("16b", "").replace("4b", "")
    row = squeezed.get(key) or squeezed.get(key.removesuffix("1k"))
    assert row is not None, probe
    kind = row.hazard_class
    passes = row.passes // 2 if formats == "f4_f4" else row.passes
    return [(SGEMM_KIND[arch] if kind == "sgemm" else kind, passes)]


@pytest.mark.parametrize("arch", DATA)
def test_matrix_rows(arch: str) -> None:
    table = TABLES[arch]
    checked = 0
    for probe, measured in DATA[arch]["mfma"].items():
        if not isinstance(measured, int):
            continue
        name, _, use = probe.partition("|")
        for kind, passes in matrix_rows(arch, name):
            if use in ("war_C_valu", "war_C_dsread"):
                pair = ("xdl_c", "valu_write" if use == "war_C_valu" else "mem_write") if kind == "xdl" else None
            else:
                role = ROLES.get(use)
                pair = None if role is None else (kind, role)
            if pair is None:
                continue
            ours = states(table, pair, passes)
            stricter_by_design = (kind == "dgemm4" and use in ("C_overlap", "C_same")) or pair in STRICTER_MATRIX
            assert ours >= measured if stricter_by_design else ours == measured, (probe, ours, measured)
            checked += 1
    assert checked > 50


@pytest.mark.parametrize("arch", DATA)
def test_general_rows(arch: str) -> None:
    table = TABLES[arch]
    for probe, pair in GENERAL.items():
        measured = DATA[arch]["gen"][probe]
        ours = states(table, pair, 0)
        assert ours == measured or (probe in STRICTER and ours > measured), (probe, ours, measured)
