"""Control flow: divergence between waves, barriers taken by some, guards; entry state and errors."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from convgen.backends.amdgpu.sim import CodeObject, SimulatorError, Unsupported, simulate
from convgen.backends.simulation import KernelArg, LaunchRequest

#: s[6:7] = out, v1 = 4 * thread, s20 = wave.
PROLOGUE = """
  s_load_dwordx2 s[6:7], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  v_lshrrev_b32_e32 v2, 6, v0
  s_nop 0
  v_readfirstlane_b32 s20, v2
  s_waitcnt lgkmcnt(0)
"""


def execute(sim: Any, body: str, *, waves: int = 4, lds: int = 1024, **options: Any) -> tuple[Any, Any]:
    out = np.zeros(64 * waves, np.uint32)
    report = sim.run("gfx942", sim.Source(PROLOGUE + body, lds=lds), {"out": out}, workgroup=64 * waves, **options)
    return report, out


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_waves_loop_differently(sim: Any, order: str) -> None:
    """Each wave counts to its own number; paths meet again behind the loop."""
    body = """
      v_mov_b32_e32 v3, 0
      s_mov_b32 s21, 0
    loop:
      s_add_u32 s21, s21, 1
      v_add_u32_e32 v3, 10, v3
      s_cmp_le_u32 s21, s20
      s_cbranch_scc1 loop
      global_store_dword v1, v3, s[6:7]"""
    report, out = execute(sim, body, wave_order=order)
    assert not report.findings, str(report.findings[0])
    np.testing.assert_array_equal(out, np.repeat([10, 20, 30, 40], 64))
    assert report.instructions["vmem_store"] == 4


def test_lanes_diverge(sim: Any) -> None:
    body = """
      v_mov_b32_e32 v3, 7
      v_and_b32_e32 v4, 1, v0
      v_cmp_eq_u32_e32 vcc, 1, v4
      s_and_saveexec_b64 s[22:23], vcc
      s_cbranch_execz skip
      v_mov_b32_e32 v3, 9
    skip:
      s_or_b64 exec, exec, s[22:23]
      global_store_dword v1, v3, s[6:7]"""
    report, out = execute(sim, body)
    assert not report.findings, str(report.findings[0])
    np.testing.assert_array_equal(out, np.tile([7, 9], 128))


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_barrier_is_an_arrival_count(sim: Any, order: str) -> None:
    """Half of the waves take one barrier more at first and one less at last (ping-pong)."""
    body = """
      s_cmp_lt_u32 s20, 2
      s_cbranch_scc1 ahead
      s_barrier
    ahead:
      v_mov_b32_e32 v3, s20
      ds_write_b32 v1, v3
      s_waitcnt lgkmcnt(0)
      s_barrier
      s_barrier
      s_cmp_lt_u32 s20, 2
      s_cbranch_scc0 behind
      s_barrier
    behind:
      v_xor_b32_e32 v4, 0x200, v1
      ds_read_b32 v5, v4
      s_waitcnt lgkmcnt(0)
      global_store_dword v1, v5, s[6:7]"""
    report, out = execute(sim, body, wave_order=order)
    assert not report.findings, str(report.findings[0])
    np.testing.assert_array_equal(out, np.repeat([2, 3, 0, 1], 64))


def test_ended_waves_do_not_hold_a_barrier(sim: Any) -> None:
    body = "s_cmp_eq_u32 s20, 3\n s_cbranch_scc1 end\n s_barrier\n global_store_dword v1, v0, s[6:7]\n end:"
    report, out = execute(sim, body)
    assert not report.findings
    np.testing.assert_array_equal(out, np.where(np.arange(256) < 192, np.arange(256), 0))


def test_hazards_across_branches(sim: Any) -> None:
    """A wait state is missing on the path that jumps, not on the one that falls through."""
    body = """
      v_cmp_gt_u32_e32 vcc, 5, v0
      s_cmp_eq_u32 s20, {wave}
      s_cbranch_scc1 there
      s_nop 7
    there:
      v_cndmask_b32_e32 v3, v0, v1, vcc
      global_store_dword v1, v3, s[6:7]"""
    report, _ = execute(sim, body.format(wave=9))
    assert not report.findings
    tight = body.replace("s_cmp_eq_u32 s20, {wave}\n", "").replace("v_cmp_gt", "s_cmp_eq_u32 s20, {wave}\n v_cmp_gt")
    report, _ = execute(sim, tight.format(wave=2))
    assert [(f.kind, f.subgroup) for f in report.findings] == [("wait-states", 2)]


def test_runaway(sim: Any) -> None:
    report, _ = execute(sim, "loop: s_branch loop", max_instructions=1000)
    assert sim.kinds(report) == ["runaway"]


def test_another_workgroups_store(sim: Any) -> None:
    """The second workgroup loads what the first stored: nothing orders the two."""
    body = """
      v_mov_b32_e32 v4, 0
      s_cmp_eq_u32 s2, 0
      s_cbranch_scc0 load
      global_store_dword v1, v0, s[6:7]
      s_branch end
    load:
      global_load_dword v3, v1, s[6:7]
      s_waitcnt vmcnt(0)
    end:"""
    out = np.zeros(64, np.uint32)
    report = sim.run("gfx942", PROLOGUE + body, {"out": out}, grid=2)
    assert sim.kinds(report) == ["global-visibility"]


def test_partial_wave_and_work_items(sim: Any) -> None:
    """Three dimensions of work items packed in v0; lanes beyond the workgroup are off."""
    body = "s_load_dwordx2 s[6:7], s[0:1], 0x0\n v_and_b32_e32 v2, 0x3ff, v0\n"
    body += "v_bfe_u32 v3, v0, 10, 10\n v_bfe_u32 v4, v0, 20, 10\n"
    body += "v_mul_u32_u24_e32 v5, 5, v3\n v_mul_u32_u24_e32 v6, 15, v4\n"
    body += "v_add3_u32 v5, v5, v6, v2\n v_lshlrev_b32_e32 v5, 2, v5\n"
    body += "s_waitcnt lgkmcnt(0)\n global_store_dword v5, v0, s[6:7]"
    source = sim.Source(body, directives=".amdhsa_system_vgpr_workitem_id 2")
    code = sim.assemble("gfx942", {"k": source})
    out = np.zeros(40, np.uint32)
    request = LaunchRequest("k", (1, 1, 1), (5, 3, 2), (KernelArg(0, 8, "out"),))
    report = simulate(code, [request], {"out": out.view(np.uint8)})
    assert not report.findings
    want = [x | y << 10 | z << 20 for z in range(2) for y in range(3) for x in range(5)]
    np.testing.assert_array_equal(out, want + [0] * 10)


def test_kernarg_preload_enters_behind_the_fallback(sim: Any) -> None:
    body = "s_trap 2\n .fill 63, 4, 0xbf800000\n v_lshlrev_b32_e32 v1, 2, v0\n v_mov_b32_e32 v2, s4\n"
    body += "global_store_dword v1, v2, s[2:3]"
    directives = ".amdhsa_user_sgpr_kernarg_preload_length 3\n .amdhsa_user_sgpr_kernarg_preload_offset 0"
    code = sim.assemble("gfx942", {"k": sim.Source(body, user_sgprs=5, directives=directives)})
    out = np.zeros(64, np.uint32)
    args = (KernelArg(0, 8, "out"), KernelArg(8, 4, struct.pack("<i", 77)))
    report = simulate(code, [LaunchRequest("k", (1, 1, 1), (64, 1, 1), args)], {"out": out.view(np.uint8)})
    assert not report.findings
    assert (out == 77).all()


def test_unknown_instruction_is_an_error(sim: Any) -> None:
    with pytest.raises(Unsupported, match="s_setkill 1"):
        execute(sim, "s_setkill 1")


def test_skipped_vector_instructions(sim: Any) -> None:
    """Workgroups 1 and 3 skip what doubles v2, its compare and a store; the scalar addition between they do."""
    body = """s_load_dwordx2 s[4:5], s[0:1], 0x0
      v_lshlrev_b32_e32 v1, 2, v0
      v_mov_b32_e32 v2, 7
      s_mov_b64 vcc, 0
      s_lshl_b32 s6, s2, 8
      s_mov_b32 s7, 0xa
      s_waitcnt lgkmcnt(0)
      s_add_u32 s4, s4, s6
      s_addc_u32 s5, s5, 0
      s_setvskip s7, s2
      v_add_u32_e32 v2, v2, v2
      v_cmp_eq_u32_e32 vcc, v0, v0
      s_add_u32 s8, s2, 1
      s_setvskip 0, 0
      v_mov_b32_e32 v3, vcc_lo
      v_and_b32_e32 v3, 1, v3
      v_lshl_add_u32 v2, v3, 8, v2
      v_add_u32_e32 v2, s8, v2
      global_store_dword v1, v2, s[4:5]"""
    out = np.zeros((4, 64), np.uint32)
    assert not sim.run("gfx942", body, {"out": out}, grid=4).findings
    want = [256 + 14 + 1, 7 + 2, 256 + 14 + 3, 7 + 4]
    np.testing.assert_array_equal(out, np.repeat(want, 64).reshape(4, 64))


def test_a_trap_is_a_finding(sim: Any) -> None:
    report = sim.run("gfx942", "s_mov_b64 exec, 0\n s_cbranch_execnz 1f\n s_trap 2\n 1: s_nop 0", {})
    assert sim.kinds(report) == ["trap"]


def test_a_call(sim: Any) -> None:
    """The callee doubles v0 and comes back."""
    body = """s_load_dwordx2 s[4:5], s[0:1], 0x0
      v_lshlrev_b32_e32 v1, 2, v0
      s_call_b64 s[8:9], 1f
      s_branch 2f
      1: v_add_u32_e32 v2, v0, v0
      s_setpc_b64 s[8:9]
      2: s_waitcnt lgkmcnt(0)
      global_store_dword v1, v2, s[4:5]"""
    out = np.zeros(64, np.uint32)
    assert not sim.run("gfx942", body, {"out": out}).findings
    np.testing.assert_array_equal(out, 2 * np.arange(64))


def test_wrong_requests(sim: Any) -> None:
    code = sim.assemble("gfx942", {"k": sim.Source("s_nop 0")})
    with pytest.raises(SimulatorError, match="no kernel 'x'"):
        simulate(code, [sim.launch("x", [])], {})
    with pytest.raises(SimulatorError, match="no buffer 'y'"):
        simulate(code, [sim.launch("k", ["y"])], {})
    with pytest.raises(SimulatorError, match="not an ELF"):
        simulate(b"nothing", [], {})
    with pytest.raises(SimulatorError, match="2000 threads"):
        simulate(code, [LaunchRequest("k", (1, 1, 1), (2000, 1, 1), ())], {})


def test_lds_size(sim: Any) -> None:
    code = sim.assemble("gfx942", {"k": sim.Source("s_nop 0", lds=60000)})
    assert not simulate(code, [sim.launch("k", [])], {}).findings
    assert sim.kinds(simulate(code, [sim.launch("k", [], lds=65537)], {})) == ["lds-size"]


def test_code_object_facts(sim: Any) -> None:
    code = CodeObject.load((sim.foreign / "triton_gfx950_small_gemm_NT.hsaco").read_bytes())
    kernel = code.kernel("gemm")
    assert code.arch.name == "gfx950"
    assert kernel.descriptor.preload_length == 8
    assert ("hidden_block_count_x", 64, 4) in kernel.hidden_args
    assert kernel.instructions[kernel.entry].address == kernel.descriptor.entry + 256


#: s[22:23] is a mask that is defined for active lanes only, 0..31, of which it names the even ones.
_MASK = """
  s_mov_b64 exec, 0xffffffff
  v_and_b32_e32 v3, 1, v0
  v_cmp_eq_u32_e64 s[24:25], 0, v3
  s_andn2_b64 s[22:23], s[22:23], exec
  s_and_b64 s[24:25], s[24:25], exec
  s_or_b64 s[22:23], s[22:23], s[24:25]
"""
_END = "\n s_mov_b64 exec, -1\n global_store_dword v1, v4, s[6:7]"
_SPILL = "v_writelane_b32 v5, s22, 3\n v_writelane_b32 v5, s23, 7\n"
_FILL = "v_readlane_b32 s22, v5, 3\n v_readlane_b32 s23, v5, 7\n"
_SAVED = "s_mov_b64 exec, -1\n scratch_store_dword off, v5, off\n v_mov_b32_e32 v5, 0\n"
_RESTORED = "scratch_load_dword v5, off, off\n s_waitcnt vmcnt(0)\n s_mov_b64 exec, 0xffffffff\n"
#: What is done with it -> whether that is sound.
MASKS = {
    "active lanes leave": ("s_andn2_b64 exec, exec, s[22:23]", True),
    "active lanes stay": ("s_and_saveexec_b64 s[26:27], s[22:23]", True),
    "others come": ("s_or_b64 exec, exec, s[22:23]", False),
    "others come and are told": ("s_or_saveexec_b64 s[26:27], s[22:23]", False),
    "lanes choose": ("v_cndmask_b32_e64 v4, v4, v0, s[22:23]", True),
    "other lanes choose": ("s_mov_b64 exec, -1\n v_cndmask_b32_e64 v4, v4, v0, s[22:23]", False),
    "a bit is set": ("s_and_b64 s[26:27], s[22:23], -1\n s_cbranch_scc0 1\n s_nop 0", True),
    "a bit may be set": ("s_andn2_b64 s[26:27], s[22:23], exec\n s_cbranch_scc0 1\n s_nop 0", False),
    "a bit of vcc is set": ("s_mov_b64 vcc, s[22:23]\n s_nop 4\n s_cbranch_vccz 1\n s_nop 0", True),
    "moved": (
        "s_mov_b32 s28, s22\n s_mov_b32 s29, s23\n s_not_b64 s[28:29], s[28:29]\n s_and_b64 exec, exec, s[28:29]",
        True,
    ),
    "selected": (
        "s_cmp_eq_u32 s20, s20\n s_cselect_b64 s[28:29], s[22:23], s[30:31]\n s_and_b64 exec, exec, s[28:29]",
        True,
    ),
    "in lanes of a vector register": (_SPILL + "s_nop 4\n" + _FILL + "s_and_b64 exec, exec, s[22:23]", True),
    "others, in lanes": (_SPILL + "s_nop 4\n" + _FILL + "s_or_b64 exec, exec, s[22:23]", False),
    "in scratch": (_SPILL + _SAVED + _RESTORED + _FILL + "s_nop 4\n s_and_b64 exec, exec, s[22:23]", True),
    "others, in scratch": (_SPILL + _SAVED + _RESTORED + _FILL + "s_nop 4\n s_or_b64 exec, exec, s[22:23]", False),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_are_defined_for_active_lanes(sim: Any, name: str) -> None:
    """As compilers make them for loops with several exits, and spill them."""
    use, sound = MASKS[name]
    scratch = ".amdhsa_private_segment_fixed_size 16\n .amdhsa_enable_private_segment 1"
    source = sim.Source(f"{PROLOGUE} v_mov_b32_e32 v4, 0\n{_MASK} s_nop 4\n{use}{_END}", directives=scratch)
    report = sim.run("gfx942", source, {"out": np.zeros(128, np.uint32)}, workgroup=128)
    assert sim.kinds(report) == ([] if sound else ["poison"])


def test_the_mode_from_what_is_no_register(sim: Any) -> None:
    with pytest.raises(Unsupported, match=r"s_setreg_b32 .*ttmp0"):
        execute(sim, "s_setreg_b32 hwreg(HW_REG_MODE, 4, 2), ttmp0")
