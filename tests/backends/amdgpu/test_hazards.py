"""Wait states: listings that hold the expected no-ops, and the rows against the simulator's own table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from convgen.backends.amdgpu.hazards import _MATRIX_EVENTS, HAZARDS, Event, Use, insert_nops
from convgen.backends.amdgpu.isa import MATRIX
from convgen.backends.amdgpu.sim.hazards import SGEMM_KIND, TABLES
from convgen.backends.amdgpu.sim.mfma_table import MATRIX_ROWS
from convgen.backends.amdgpu.tables import FACTS
from convgen.ir.layout.mma import MmaAtom
from tests.backends.amdgpu.listing import function, listing, physical, tidy

#: (target, what) -> a listing with its no-ops. `_f16` instructions of gfx942: 16x16x16 has 4 passes, 32x32x8 has 8.
EXPECTED = {
    ("gfx942", "accumulating into the same tuple"): """
        v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]
        v_mfma_f32_16x16x16_f16 a[0:3], v[4:5], v[6:7], a[0:3]
    """,
    ("gfx942", "accumulating into the same tuple, behind two passes"): """
        v_mfma_f32_4x4x4_16b_f16 a[0:3], v[0:1], v[2:3], a[0:3]
        s_nop 1
        v_mfma_f32_4x4x4_16b_f16 a[0:3], v[4:5], v[6:7], a[0:3]
    """,
    ("gfx90a", "accumulating into the same tuple, behind two passes"): """
        v_mfma_f32_4x4x4f16 a[0:3], v[0:1], v[2:3], a[0:3]
        v_mfma_f32_4x4x4f16 a[0:3], v[4:5], v[6:7], a[0:3]
    """,
    ("gfx942", "accumulating into the same tuple, in f32"): """
        v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]
        s_nop 4
        v_mfma_f32_16x16x4_f32 a[0:3], v4, v6, a[0:3]
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
    ("gfx942", "transcendental results, in another such instruction and in a plain one"): """
        v_exp_f32 v1, v0
        v_rcp_f32 v2, v1
        s_nop 0
        v_sub_f32 v3, v2, v1
    """,
    ("gfx942", "other lanes' results"): """
        v_mov_b32 v1, v0
        s_nop 1
        v_mov_b32_dpp v2, v1 row_mirror row_mask:0xf bank_mask:0xf
        v_mov_b32 v3, v2
    """,
    ("gfx90a", "transcendental results"): """
        v_exp_f32 v1, v0
        v_sub_f32 v3, v2, v1
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
    ("gfx942", "f32: as operand, read, and its addend overwritten"): """
        v_mfma_f32_16x16x4_f32 v[0:3], v8, v10, v[4:7]
        v_mov_b32 v4, 0
        v_mfma_f32_32x32x2_f32 a[0:15], v8, v10, a[0:15]
        s_nop 7
        v_mfma_f32_16x16x4_f32 v[12:15], v2, v10, 0
        s_nop 8
        v_accvgpr_read_b32 v20, a3
    """,
    ("gfx90a", "f32: an addend overwritten"): """
        v_mfma_f32_16x16x4f32 v[0:3], v8, v10, v[4:7]
        s_nop 6
        v_mov_b32 v4, 0
    """,
    ("gfx942", "xf32 counts as the narrow types do"): """
        v_mfma_f32_16x16x8_xf32 v[0:3], v[8:9], v[10:11], v[4:7]
        s_nop 2
        v_mov_b32 v4, 0
        s_nop 2
        v_mov_b32 v20, v0
    """,
    ("gfx942", "f64: accumulated, read and stored"): """
        v_mfma_f64_16x16x4_f64 v[0:7], v[8:9], v[10:11], v[0:7]
        v_mfma_f64_16x16x4_f64 v[0:7], v[8:9], v[10:11], v[0:7]
        s_nop 10
        v_add_f64 v[20:21], v[0:1], v[4:5]
        s_nop 5
        buffer_store_dwordx2 v[2:3], v8, s[0:3], 0
    """,
    ("gfx950", "f64: accumulated, read and stored"): """
        v_mfma_f64_16x16x4_f64 v[0:7], v[8:9], v[10:11], v[0:7]
        v_mfma_f64_16x16x4_f64 v[0:7], v[8:9], v[10:11], v[0:7]
        s_nop 15
        s_nop 2
        v_add_f64 v[20:21], v[0:1], v[4:5]
        buffer_store_dwordx2 v[2:3], v8, s[0:3], 0
    """,
    ("gfx942", "f64: an addend that overlaps, and one that is overwritten"): """
        v_mfma_f64_16x16x4_f64 v[0:7], v[8:9], v[10:11], v[20:27]
        v_mov_b32 v20, 0
        s_nop 7
        v_mfma_f64_16x16x4_f64 v[2:9], v[12:13], v[10:11], v[2:9]
    """,
    ("gfx90a", "f64 between what a vector instruction makes and the memory instruction that takes it"): """
        v_mov_b32 v20, 0
        v_mfma_f64_16x16x4f64 v[0:7], v[8:9], v[10:11], v[0:7]
        s_nop 0
        ds_read_b64 v[30:31], v20
        v_mov_b32 v20, 0
        ds_read_b64 v[32:33], v20
        v_mov_b32 v20, 0
        v_mfma_f32_16x16x4f32 a[0:3], v12, v13, a[0:3]
        ds_read_b64 v[34:35], v20
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
    ("gfx942", "where a load into shared memory goes"): """
        s_mov_b32 m0, 64
        s_nop 0
        buffer_load_dword v8, s[0:3], 0 lds
        s_add_u32 m0, s4, 64
        v_mov_b32 v9, 0
        buffer_load_dword v8, s[0:3], 0 lds
        s_mov_b32 m0, 0
        buffer_load_dword v1, v8, s[0:3], 0
    """,
    ("gfx942", "part of a register, of which the other part is kept"): """
        v_cvt_pk_fp8_f32 v0, v1, v2
        v_mov_b32 v4, v0
        v_cvt_pk_fp8_f32 v0, v1, v2 op_sel:[0,0,1]
        s_nop 0
        v_mov_b32 v4, v0
    """,
    ("gfx942", "transcendental results, stored"): """
        v_exp_f32 v1, v0
        ds_write_b32 v20, v1
        v_sub_f32 v3, v2, v0
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
    f = insert_nops(function(EXPECTED[case], case[0]), physical(), case[0])
    assert listing(f) == tidy(EXPECTED[case])


#: The simulator's words for our rows: (producer, consumer). Those of f32 inputs differ by target.
_NAMES = {
    Event.MFMA_RESULT: "xdl",
    Event.MFMA_F64_RESULT: "dgemm16",
    Event.MFMA_ADDEND: "xdl_c",
    Event.VALU_VECTOR: "valu",
    Event.VALU_BEFORE_F64: "valu",
    Event.VALU_PART: "partial",
    Event.TRANSCENDENTAL: "trans",
    Event.VALU_SCALAR: "valu_sgpr",
    Event.WIDE_STORE: "wide_store",
    Event.WIDE_STORE_SOFFSET: "wide_store_soffset",
    Event.SCALAR_M0: "m0",
    Use.MFMA_AB: "ab",
    Use.MFMA_C: "c_overlap",
    Use.MFMA_CHAIN: "c_same",
    Use.VALU_READ: "valu_read",
    Use.PLAIN_READ: "plain_read",
    Use.VALU_WRITE: "valu_write",
    Use.MEMORY_READ: "mem_read",
    Use.MEMORY_WRITE: "mem_write",
    Use.LANE_READ: "lane_read",
    Use.DPP_READ: "dpp",
    Use.DIRECT_M0: "m0_buffer",
    Use.SCALAR_TO_VALU: "valu_sgpr",
    Use.SCALAR_TO_MEMORY: "vmem_sgpr",
}


#: Rows about three instructions, for which the simulator has a role of its own.
_BETWEEN = {(Event.VALU_BEFORE_F64, Use.MEMORY_READ): ("valu", "mem_read_behind_dgemm")}


def event_names(target: str) -> dict[Event, str]:
    """The simulator's words for our producers."""
    of_f32 = SGEMM_KIND[target]
    own = {e: name for e, name in _NAMES.items() if isinstance(e, Event)}
    return own | {Event.MFMA_F32_RESULT: of_f32, Event.MFMA_F32_ADDEND: f"{of_f32}_c"}


def passes_of(target: str, event: Event) -> list[int]:
    """The passes that instructions with such an event have."""
    kinds = {Event.MFMA_F32_RESULT: "sgemm", Event.MFMA_F32_ADDEND: "sgemm", Event.MFMA_F64_RESULT: "dgemm16"}
    kind = kinds.get(event, "xdl")
    names = [atom.name for atom in FACTS[target].atoms] + [atom.name for atom in FACTS[target].blocks]
    rows = [MATRIX_ROWS[target][name.partition(".")[0]] for name in names]
    found = sorted({row.passes for row in rows if row.hazard_class == kind})
    assert found
    return found


@pytest.mark.parametrize("target", FACTS)
def test_rows_agree_with_the_simulator(target: str) -> None:
    names = event_names(target)
    for (event, use), row in HAZARDS[target].items():
        theirs = TABLES[target].get(_BETWEEN.get((event, use), (names[event], _NAMES[use])))
        for p in passes_of(target, event):
            wanted = 0 if theirs is None else theirs.states.get(p, 0)
            assert max(0, row.states(p)) == wanted, (event, use, p)


@pytest.mark.parametrize("target", FACTS)
def test_no_row_of_the_simulator_is_missing(target: str) -> None:
    """What our instructions do, and the simulator has a row for, has a row here."""
    uses = {_NAMES[u]: u for u in Use if u is not Use.SCALAR_TO_VALU} | {"valu_sgpr": Use.SCALAR_TO_VALU}
    theirs: set[tuple[Event, Use]] = {
        (event, uses[u])
        for event, name in event_names(target).items()
        for e, u in TABLES[target]
        if e == name
        and u in uses
        and event is not Event.VALU_BEFORE_F64
        and (u != "c_same" or event in (Event.MFMA_RESULT, Event.MFMA_F32_RESULT))  # else no chain
    }
    theirs |= {ours_ for ours_, pair in _BETWEEN.items() if pair in TABLES[target]}
    assert theirs <= HAZARDS[target].keys()


@pytest.mark.parametrize("target", FACTS)
def test_the_simulator_asks_nothing_of_equal_accumulators(target: str) -> None:
    """An addend that is exactly the last result needs no row, but behind two passes."""
    names = event_names(target)
    for event in (Event.MFMA_RESULT, Event.MFMA_F32_RESULT, Event.MFMA_F64_RESULT):
        for role in ("c_same", "c64_same"):
            theirs = TABLES[target].get((names[event], role))
            assert theirs is None or not any(theirs.states.get(p, 0) for p in passes_of(target, event) if p > 2)


#: What LLVM's hazard recognizer was probed for (tests/data/amdgpu_hazards.json), as our uses of a matrix result.
_PROBES = {
    "A": Use.MFMA_AB,
    "B": Use.MFMA_AB,
    "C_overlap": Use.MFMA_C,
    "valu_read": Use.VALU_READ,
    "valu_waw": Use.VALU_WRITE,
    "gstore": Use.MEMORY_READ,
    "dswrite": Use.MEMORY_READ,
    "gload_waw": Use.MEMORY_WRITE,
    "dsread_waw": Use.MEMORY_WRITE,
}
#: What the manual asks for beyond LLVM: CDNA4 ISA 7.6, V_MFMA_16x16x4_F64 and a VALU instruction that writes.
_BEYOND = {("gfx950", Event.MFMA_F64_RESULT, Use.VALU_WRITE): 19}
#: The same for what a matrix instruction reads as srcC.
_ADDEND_PROBES = {"war_C_valu": Use.VALU_WRITE, "war_C_dsread": Use.MEMORY_WRITE}


def test_every_row_says_what_asks_for_it() -> None:
    assert all(row.source for rows in HAZARDS.values() for row in rows.values())


_MEASURED = json.loads((Path(__file__).parents[2] / "data" / "amdgpu_hazards.json").read_text())["rows"]


def measured(target: str, atom: MmaAtom) -> dict[str, int]:
    """LLVM's wait states after a matrix instruction, by probe. It names instructions in the style of CDNA2, those of
    8-bit floats as if both were of one type.
    """
    alike = re.sub(r"\.[bfp]+8_[bfp]+8$", "_f8_f8", atom.name).replace("bf8", "fp8")

    def bare(name: str) -> str:
        return name.lower().replace("_", "").removesuffix("1k")

    found = {}
    for name, states in _MEASURED[target]["mfma"].items():
        producer, _, probe = name.partition("|")
        if bare(producer) == bare(alike):
            found[probe] = states
    return found


def required(target: str, event: Event | None, use: Use, passes: int) -> int:
    row = None if event is None else HAZARDS[target].get((event, use))
    return 0 if row is None else row.states(passes)


@pytest.mark.parametrize(
    ("target", "atom"),
    [pytest.param(t, a, id=f"{t}-{a.name}") for t, facts in FACTS.items() for a in facts.atoms],
)
def test_matrix_rows_are_those_of_llvm(target: str, atom: MmaAtom) -> None:
    """The recognizer's numbers, instruction by instruction, and from the listing what each instruction leaves."""
    theirs = measured(target, atom)
    made, taken = _MATRIX_EVENTS[MATRIX[target][atom.name][0].hazard]
    for probe, use in _PROBES.items():
        assert required(target, made, use, atom.clocks // 4) == _BEYOND.get((target, made, use), theirs[probe]), probe
    for probe, use in _ADDEND_PROBES.items():
        assert max(0, required(target, taken, use, atom.clocks // 4)) == theirs[probe], probe
    assert theirs["C_same"] == 0
