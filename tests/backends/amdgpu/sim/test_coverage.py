"""Which instructions of a kernel a run executed."""

from __future__ import annotations

from typing import Any

import numpy as np

from convgen.backends.amdgpu.sim import simulate
from convgen.backends.simulation import Coverage, SimReport


def covered(sim: Any, body: str, **options: Any) -> Coverage:
    out = np.zeros(256, np.uint32)
    report: SimReport = sim.run("gfx942", sim.Source(body), {"out": out}, workgroup=256, **options)
    assert not report.findings, str(report.findings[0])
    (found,) = report.coverage
    return found


def test_a_branch_that_no_wave_takes_is_missed(sim: Any) -> None:
    found = covered(
        sim,
        """
        s_cmp_eq_u32 s2, 0
        s_cbranch_scc1 behind
        s_mov_b32 s4, 1
        v_mov_b32_e32 v1, 0x12345678
      behind:
        s_nop 0""",
    )
    assert (found.places, found.executed) == (6, 4)
    assert [(p.pc, p.end, p.instruction.split()[0]) for p in found.missed] == [
        (8, 12, "s_mov_b32"),
        (12, 20, "v_mov_b32_e32"),
    ]


def test_a_branch_that_one_wave_takes_is_executed(sim: Any) -> None:
    body = """
        v_lshrrev_b32_e32 v2, 6, v0
        s_nop 0
        v_readfirstlane_b32 s4, v2
        s_cmp_eq_u32 s4, 3
        s_cbranch_scc0 behind
        s_mov_b32 s5, 1
      behind:
        s_nop 0"""
    assert not covered(sim, body).missed


def test_instructions_of_lanes_need_an_active_lane(sim: Any) -> None:
    """Scalar instructions between them are executed all the same."""
    body = """
        s_mov_b64 exec, 0
        s_nop 4
        v_mov_b32_e32 v1, 0
        s_mov_b32 s4, 1
        s_mov_b64 exec, -1
        v_mov_b32_e32 v2, 0"""
    (missed,) = covered(sim, body).missed
    assert missed.instruction.startswith("v_mov_b32_e32 v1")


def test_what_lies_between_kernels_and_in_others_is_no_place_of_a_kernel(sim: Any) -> None:
    """Neither padding behind the end nor another kernel's code."""
    sources = {"a": sim.Source("s_mov_b32 s4, 1"), "b": sim.Source("s_mov_b32 s4, 1\n s_mov_b32 s5, 1")}
    code = sim.assemble("gfx942", sources)
    for name, count in (("a", 2), ("b", 3)):
        (found,) = simulate(code, [sim.launch(name, [])], {}).coverage
        assert (found.kernel, found.places, found.missed) == (name, count, ())


def test_code_behind_a_computed_jump_counts_once_it_is_executed(sim: Any) -> None:
    body = """
        s_getpc_b64 s[4:5]
        s_add_u32 s4, s4, 16
        s_addc_u32 s5, s5, 0
        s_swappc_b64 s[6:7], s[4:5]
        s_branch behind
        s_nop 0
        s_nop 1
        s_setpc_b64 s[6:7]
      behind:
        s_nop 2"""
    found = covered(sim, body)
    assert (found.places, found.missed) == (10, ())


def test_code_behind_a_call_whose_distance_is_in_the_instruction_counts(sim: Any) -> None:
    body = """
        s_branch behind
      callee:
        s_nop 1
        s_setpc_b64 s[6:7]
      behind:
        s_cmp_eq_u32 s2, 0
        s_cbranch_scc1 end
        s_call_b64 s[6:7], callee
      end:
        s_nop 2"""
    found = covered(sim, body)
    assert (found.places, [missed.instruction.split()[0] for missed in found.missed]) == (
        8,
        ["s_nop", "s_setpc_b64", "s_call_b64"],
    )


def test_a_copy_under_relative_addressing_counts_as_the_text(sim: Any) -> None:
    body = """
        v_mov_b32_e32 v16, 0
        v_mov_b32_e32 v19, 0
        s_mov_b32 s8, 3
        s_set_gpr_idx_on s8, gpr_idx(SRC0)
        v_mov_b32_e32 v2, v16
        s_set_gpr_idx_off"""
    found = covered(sim, body)
    assert (found.places, found.missed) == (7, ())


def test_launches_of_one_kernel_count_together(sim: Any) -> None:
    source = sim.Source("s_load_dword s4, s[0:1], 0x0\n s_waitcnt lgkmcnt(0)\n s_cmp_eq_u32 s4, 0\n"
                        " s_cbranch_scc1 zero\n s_mov_b32 s5, 1\n s_branch behind\nzero:\n s_mov_b32 s5, 2\n"
                        "behind:\n s_nop 0")  # fmt: skip
    code = sim.assemble("gfx942", {"k": source})
    one = simulate(code, [sim.launch("k", [0])], {}).coverage[0]
    assert (one.executed, one.places) == (7, 9)
    both = simulate(code, [sim.launch("k", [0]), sim.launch("k", [1])], {}).coverage
    assert [(c.executed, c.places) for c in both] == [(9, 9)]
    assert simulate(code, [sim.launch("k", [0])], {}).coverage[0] == one  # nothing is kept from the run before
