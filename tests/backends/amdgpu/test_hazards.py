"""Wait states: listings that hold the expected no-ops, and the rows against the simulator's own table."""

from __future__ import annotations

import pytest

from convgen.backends.amdgpu.hazards import ROWS, Event, Use, insert_nops
from convgen.backends.amdgpu.sim.hazards import TABLES
from convgen.backends.amdgpu.tables import FACTS
from tests.backends.amdgpu.listing import function, listing, physical, tidy

#: (target, what) -> a listing with its no-ops. `_f16` instructions of gfx942: 16x16x16 has 4 passes, 32x32x8 has 8.
EXPECTED = {
    ("gfx942", "accumulating into the same tuple"): """
        v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]
        v_mfma_f32_16x16x16_f16 a[0:3], v[4:5], v[6:7], a[0:3]
    """,
    ("gfx942", "an addend that overlaps the last result"): """
        v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]
        s_nop 8
        v_mfma_f32_16x16x16_f16 a[4:7], v[4:5], v[6:7], a[4:7]
    """,
    ("gfx942", "a result as operand"): """
        v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], v[0:3]
        s_nop 6
        v_mfma_f32_16x16x16_f16 v[4:7], v[2:3], v[10:11], v[4:7]
    """,
    ("gfx942", "reading an accumulator"): """
        v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]
        s_nop 10
        v_accvgpr_read_b32 v4, a15
    """,
    ("gfx950", "reading an accumulator"): """
        v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]
        s_nop 11
        v_accvgpr_read_b32 v4, a15
    """,
    ("gfx90a", "reading an accumulator, with more states than one no-op holds"): """
        v_mfma_f32_32x32x8f16 a[0:15], v[0:1], v[2:3], a[0:15]
        s_nop 15
        s_nop 2
        v_accvgpr_read_b32 v4, a15
    """,
    ("gfx942", "what lies between counts"): """
        v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], v[0:3]
        s_mov_b32 s0, 0
        v_mov_b32 v20, 0
        v_mfma_f32_16x16x16_f16 v[4:7], v[8:9], v[10:11], v[4:7]
        s_nop 3
        v_mov_b32 v21, v3
        s_nop 1
        v_mov_b32 v21, v4
    """,
    ("gfx942", "storing and overwriting a result"): """
        v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], v[0:3]
        s_nop 6
        ds_write_b64 v20, v[2:3]
        v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], v[0:3]
        s_nop 6
        ds_read_b64 v[0:1], v20
    """,
    ("gfx942", "overwriting an addend"): """
        v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], v[4:7]
        s_nop 2
        v_mov_b32 v4, 0
    """,
    ("gfx942", "overwriting an operand"): """
        v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], 0
        v_mov_b32 v8, 0
        ds_read_b64 v[10:11], v20
    """,
    ("gfx942", "operands made by vector instructions"): """
        v_mov_b32 v8, 0
        s_nop 1
        v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], v[0:3]
        v_accvgpr_write_b32 a0, 0
        v_mov_b32 v20, 0
        s_nop 0
        v_mfma_f32_16x16x16_f16 a[0:3], v[8:9], v[10:11], a[0:3]
    """,
    ("gfx942", "reading a lane"): """
        v_lshrrev_b32 v1, 6, v0
        s_nop 0
        v_readfirstlane_b32 s4, v1
    """,
    ("gfx90a", "reading a lane"): """
        v_lshrrev_b32 v1, 6, v0
        v_readfirstlane_b32 s4, v1
    """,
    ("gfx942", "a scalar made by a vector instruction"): """
        v_readfirstlane_b32 s4, v1
        s_add_u32 s5, s4, 1
        s_nop 0
        v_add_u32 v2, s4, v3
        s_nop 1
        buffer_load_dword v9, v8, s[8:11], s4
    """,
    ("gfx942", "a mask"): """
        v_cmp_lt_i32 s[4:5], v0, v1
        s_nop 1
        v_cndmask_b32 v2, v0, v1, s[4:5]
    """,
    ("gfx90a", "a mask"): """
        v_cmp_lt_i32 s[4:5], v0, v1
        v_cndmask_b32 v2, v0, v1, s[4:5]
    """,
    ("gfx942", "overwriting what a wide store takes"): """
        buffer_store_dwordx4 v[0:3], v8, s[0:3], 0
        s_nop 1
        v_mov_b32 v3, 0
        buffer_store_dwordx4 v[0:3], v8, s[0:3], s9
        s_nop 0
        v_mov_b32 v3, 0
        buffer_store_dwordx2 v[0:1], v8, s[0:3], 0
        v_mov_b32 v1, 0
    """,
    ("gfx942", "over the back edge"): """
        loop:
        s_nop 3
        v_accvgpr_read_b32 v4, a0
        v_mov_b32 v20, 0
        v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]
        s_add_u32 s4, s4, 1
        s_cmp_lt_u32 s4, 9
        s_cbranch_scc1 loop
        end:
        s_nop 3
        v_accvgpr_read_b32 v5, a3
    """,
    ("gfx942", "the nearer of two ways in"): """
        v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], 0
        loop:
        s_nop 6
        v_mov_b32 v20, v0
        s_cbranch_scc1 loop
        end:
        v_mov_b32 v21, v1
    """,
}


@pytest.mark.parametrize("case", EXPECTED, ids=" ".join)
def test_expected_nops(case: tuple[str, str]) -> None:
    f = function(EXPECTED[case])
    insert_nops(f, physical(), case[0])
    assert listing(f) == tidy(EXPECTED[case])


#: The simulator's words for our rows: (producer, consumer).
_NAMES = {
    Event.MFMA_RESULT: "xdl",
    Event.MFMA_ADDEND: "xdl_c",
    Event.VALU_VECTOR: "valu",
    Event.VALU_PART: "partial",
    Event.VALU_SCALAR: "valu_sgpr",
    Event.WIDE_STORE: "wide_store",
    Event.WIDE_STORE_SOFFSET: "wide_store_soffset",
    Use.MFMA_AB: "ab",
    Use.MFMA_C: "c_overlap",
    Use.VALU_READ: "valu_read",
    Use.VALU_WRITE: "valu_write",
    Use.MEMORY_READ: "mem_read",
    Use.MEMORY_WRITE: "mem_write",
    Use.LANE_READ: "lane_read",
    Use.SCALAR_TO_VALU: "valu_sgpr",
    Use.SCALAR_TO_MEMORY: "vmem_sgpr",
}


@pytest.mark.parametrize("target", FACTS)
def test_rows_agree_with_the_simulator(target: str) -> None:
    passes = sorted({atom.passes for atom in FACTS[target].atoms})
    for row in ROWS:
        theirs = TABLES[target].get((_NAMES[row.event], _NAMES[row.use]), {})
        for p in passes:
            assert row.states(target, p) == theirs.get(p, 0), (row.event, row.use, p)


@pytest.mark.parametrize("target", FACTS)
def test_no_row_of_the_simulator_is_missing(target: str) -> None:
    """What our instructions do, and the simulator has a row for, has a row here."""
    events = {_NAMES[e]: e for e in Event}
    uses = {_NAMES[u]: u for u in Use if u is not Use.SCALAR_TO_VALU} | {"valu_sgpr": Use.SCALAR_TO_VALU}
    ours = {(row.event, row.use) for row in ROWS}
    theirs = {(events[e], uses[u]) for e, u in TABLES[target] if e in events and u in uses}
    assert theirs <= ours
