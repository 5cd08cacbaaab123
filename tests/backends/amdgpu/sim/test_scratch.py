"""Scratch: private memory of each lane, by scratch instructions, the private segment's descriptor and flat ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convgen.backends.amdgpu.sim import Unsupported
from convgen.ir.record import evolve

LANES = np.arange(128)
#: What a kernel needs at its start, for v1 = 4 * thread, s[4:5] = out, and scratch at hand. User SGPRs of gfx90a are
#: the private segment's descriptor, the kernel arguments' pointer and FLAT_SCRATCH's first value.
START = {
    "gfx942": "s_load_dwordx2 s[4:5], s[0:1], 0x0\n v_lshlrev_b32_e32 v1, 2, v0\n s_waitcnt lgkmcnt(0)\n",
    "gfx90a": (
        "s_add_u32 flat_scratch_lo, s6, s9\n s_addc_u32 flat_scratch_hi, s7, 0\n s_add_u32 s0, s0, s9\n"
        " s_addc_u32 s1, s1, 0\n s_load_dwordx2 s[4:5], s[4:5], 0x0\n v_lshlrev_b32_e32 v1, 2, v0\n"
        " s_waitcnt lgkmcnt(0)\n"
    ),
}
DIRECTIVES = {
    "gfx942": ".amdhsa_private_segment_fixed_size 64\n .amdhsa_enable_private_segment 1",
    "gfx90a": (
        ".amdhsa_private_segment_fixed_size 64\n .amdhsa_user_sgpr_private_segment_buffer 1\n"
        " .amdhsa_user_sgpr_flat_scratch_init 1\n .amdhsa_system_sgpr_private_segment_wavefront_offset 1"
    ),
}
STORE = "\n s_waitcnt vmcnt(0) lgkmcnt(0)\n global_store_dword v1, v2, s[4:5]"


def run(sim: Any, arch: str, body: str, **options: Any) -> tuple[Any, Any]:
    source = sim.Source(START[arch] + body + STORE, directives=DIRECTIVES[arch], lds=1024)
    if arch == "gfx90a":
        source = evolve(source, user_sgprs=8)
    out = np.zeros(256, np.uint32)
    return sim.run(arch, source, {"out": out}, workgroup=128, grid=1, **options), out[:128]


#: Each lane stores what it is at bytes 8 and 12, and reads the first back.
CASES = {
    ("gfx942", "instruction offset"): (
        "scratch_store_dword off, v0, off offset:8\n scratch_store_dword off, v1, off offset:12\n"
        " scratch_load_dword v2, off, off offset:8"
    ),
    ("gfx942", "in a VGPR"): (
        "v_mov_b32_e32 v3, 8\n scratch_store_dword v3, v0, off\n scratch_store_dword v3, v1, off offset:4\n"
        " scratch_load_dword v2, v3, off"
    ),
    ("gfx942", "in an SGPR"): (
        "s_mov_b32 s8, 12\n scratch_store_dword off, v0, s8 offset:-4\n scratch_store_dword off, v1, s8\n"
        " scratch_load_dword v2, off, s8 offset:-4"
    ),
    ("gfx942", "four dwords"): (
        "v_mov_b32_e32 v4, v1\n v_mov_b32_e32 v5, v1\n v_mov_b32_e32 v6, v0\n v_mov_b32_e32 v7, v1\n"
        " scratch_store_dwordx4 off, v[4:7], off\n scratch_load_dword v2, off, off offset:8"
    ),
    ("gfx942", "narrow"): (
        "v_mov_b32_e32 v3, -1\n scratch_store_dword off, v3, off offset:8\n scratch_store_byte off, v0, off offset:10\n"
        " scratch_store_short off, v1, off offset:12\n scratch_load_ubyte v2, off, off offset:10"
    ),
    ("gfx942", "flat"): (
        "s_mov_b64 s[8:9], src_private_base\n v_mov_b32_e32 v4, 8\n v_mov_b32_e32 v5, s9\n"
        " scratch_store_dword off, v1, off offset:12\n flat_store_dword v[4:5], v0\n s_waitcnt vmcnt(0)\n"
        " flat_load_dword v2, v[4:5]\n s_waitcnt vmcnt(0)\n v_mov_b32_e32 v3, v2"
    ),
    ("gfx90a", "buffer"): (
        "buffer_store_dword v0, off, s[0:3], 0 offset:8\n buffer_store_dword v1, off, s[0:3], 0 offset:12\n"
        " buffer_load_dword v2, off, s[0:3], 0 offset:8"
    ),
    ("gfx90a", "buffer with an offset in a VGPR"): (
        "v_mov_b32_e32 v3, 4\n buffer_store_dword v0, v3, s[0:3], 0 offen offset:4\n"
        " buffer_store_dword v1, v3, s[0:3], 0 offen offset:8\n buffer_load_dword v2, off, s[0:3], 0 offset:8"
    ),
    ("gfx90a", "buffer, narrow"): (
        "buffer_store_byte v0, off, s[0:3], 0 offset:9\n buffer_store_byte v1, off, s[0:3], 0 offset:10\n"
        " buffer_load_ubyte v2, off, s[0:3], 0 offset:9"
    ),
    ("gfx90a", "flat"): (
        "s_mov_b64 s[12:13], src_private_base\n v_mov_b32_e32 v4, 8\n v_mov_b32_e32 v5, s13\n"
        " buffer_store_dword v0, off, s[0:3], 0 offset:8\n flat_load_dword v2, v[4:5]"
    ),
    ("gfx90a", "scratch instructions"): (
        "scratch_store_dword off, v0, s12 offset:8\n scratch_load_dword v2, off, s12 offset:8"
    ),
}


@pytest.mark.parametrize(("arch", "name"), CASES)
def test_each_lane_has_its_own(sim: Any, arch: str, name: str) -> None:
    for order in ("forward", "reverse"):
        report, out = run(sim, arch, "s_mov_b32 s12, 0\n" + CASES[arch, name], wave_order=order)
        assert not report.findings, str(report.findings[0])
        np.testing.assert_array_equal(out, LANES)


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
def test_flat_addresses_of_local_memory(sim: Any, arch: str) -> None:
    """Lanes 0..31 read LDS, the others their scratch, with one flat load; flat stores and atomics reach LDS, too."""
    own = {
        "gfx942": "scratch_store_dword off, v0, off offset:8",
        "gfx90a": "buffer_store_dword v0, off, s[0:3], 0 offset:8",
    }
    body = f"""
  {own[arch]}
  s_mov_b64 s[12:13], src_private_base
  s_mov_b64 s[14:15], src_shared_base
  v_add_u32_e32 v6, 1000, v0
  ds_write_b32 v1, v6
  v_mov_b32_e32 v8, s13
  v_mov_b32_e32 v9, s15
  v_and_b32_e32 v7, 63, v0
  v_cmp_gt_u32_e32 vcc, 32, v7
  v_mov_b32_e32 v4, 8
  s_nop 1
  v_cndmask_b32_e32 v4, v4, v1, vcc
  v_cndmask_b32_e32 v5, v8, v9, vcc
  s_waitcnt vmcnt(0) lgkmcnt(0)
  flat_load_dword v2, v[4:5]
  s_waitcnt vmcnt(0) lgkmcnt(0)
  v_mov_b32_e32 v10, v1
  v_mov_b32_e32 v11, s15
  flat_store_dword v[10:11], v2
  s_waitcnt vmcnt(0) lgkmcnt(0)
  v_mov_b32_e32 v12, 5
  flat_atomic_add v[10:11], v12
  s_waitcnt vmcnt(0) lgkmcnt(0)
  ds_read_b32 v2, v1
  s_waitcnt lgkmcnt(0)
  v_subrev_u32_e32 v2, 5, v2
"""
    report, out = run(sim, arch, body)
    assert not report.findings, str(report.findings[0])
    np.testing.assert_array_equal(out, np.where(LANES % 64 < 32, 1000 + LANES, LANES))
    late = body.replace("s_waitcnt vmcnt(0) lgkmcnt(0)\n  v_mov_b32_e32 v10", "s_waitcnt vmcnt(0)\n  v_mov_b32_e32 v10")
    assert "wait-count" in sim.kinds(run(sim, arch, late)[0])


FAULTS = {
    ("gfx942", "poison"): "scratch_load_dword v2, off, off offset:8",
    ("gfx90a", "poison"): "buffer_load_dword v2, off, s[0:3], 0 offset:8",
    ("gfx942", "scratch-bounds"): "scratch_store_dword off, v0, off offset:64\n v_mov_b32_e32 v2, 0",
    ("gfx90a", "scratch-bounds"): "buffer_store_dword v0, off, s[0:3], 0 offset:64\n v_mov_b32_e32 v2, 0",
    ("gfx942", "misaligned"): "scratch_store_dword off, v0, off offset:2\n v_mov_b32_e32 v2, 0",
    ("gfx942", "wait-count"): (
        "scratch_store_dword off, v0, off\n scratch_load_dword v2, off, off\n v_add_u32_e32 v2, 1, v2"
    ),
}


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
def test_data_that_is_not_aligned(sim: Any, arch: str) -> None:
    """A lane's bytes stand in dwords that are interleaved with other lanes'."""
    at = "off, s[0:3], 0 offset" if arch == "gfx90a" else "off, off offset"
    space = "buffer" if arch == "gfx90a" else "scratch"
    store = "v_mov_b32_e32 v3, 0x03020100\n v_mov_b32_e32 v5, 0x07060504\n v_or_b32_e32 v3, v3, v0\n"
    moves = {"gfx942": "scratch_store_{0} off, v{1}, off offset:{2}\n", "gfx90a": "buffer_store_{0} v{1}, {3}:{2}\n"}
    store += moves[arch].format("dword", 3, 5, at) + moves[arch].format("dword", 5, 9, at)
    for load, result in (
        (f"{space}_load_dword v2, {at}:7", np.full(128, 0x05040302)),
        (f"{space}_load_dword v2, {at}:5", 0x03020100 | LANES),
        (f"{space}_load_ushort v2, {at}:7", np.full(128, 0x0302)),
        (f"{space}_load_ubyte v2, {at}:10", np.full(128, 5)),
    ):
        report, out = run(sim, arch, store + load)
        assert {(f.kind, f.source.required) for f in report.findings} == {("misaligned", False)}
        np.testing.assert_array_equal(out, result)


@pytest.mark.parametrize(("arch", "kind"), FAULTS)
def test_faults(sim: Any, arch: str, kind: str) -> None:
    assert kind in sim.kinds(run(sim, arch, FAULTS[arch, kind])[0])


def test_a_base_that_was_not_set(sim: Any) -> None:
    """On gfx90a the kernel sets FLAT_SCRATCH; one that forgot reads an undefined base."""
    source = sim.Source("scratch_store_dword off, v0, s8", directives=DIRECTIVES["gfx90a"], user_sgprs=8)
    assert "poison" in sim.kinds(sim.run("gfx90a", source, {"out": np.zeros(64, np.uint32)}))


@pytest.mark.parametrize(
    "line",
    [
        "v_mov_b32_e32 v2, src_private_base",
        "s_or_b32 s3, s3, 0x80000000\n s_or_b32 s1, s1, 0x80000000\n buffer_load_dword v2, off, s[0:3], 0",
    ],
)
def test_what_is_not_simulated_is_one_line(sim: Any, line: str) -> None:
    with pytest.raises(Unsupported) as error:
        run(sim, "gfx942", line)
    assert "\n" not in str(error.value)
