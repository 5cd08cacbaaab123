"""`analyze`: kernels of other compilers and ours, counted by hand; costs against the simulator's tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import convgen as cg
from convgen.backends import target as targets
from convgen.backends.amdgpu import costs
from convgen.backends.amdgpu.sim import CodeObject
from convgen.backends.amdgpu.sim.decode import parse_instruction
from convgen.backends.amdgpu.sim.mfma_table import MATRIX_ROWS, SPARSE_ROWS
from convgen.backends.analysis import KernelAnalysis, Line
from convgen.commands import cli
from convgen.ir.record import evolve

FOREIGN = Path(__file__).parents[2] / "data" / "foreign"


def line(text: str, arch: str = "gfx942", word: int = 0) -> Line:
    return costs.line_of(parse_instruction(64, (word,), text), 64, arch)


def kernel(name: str) -> KernelAnalysis:
    (found,) = targets.analyze(FOREIGN / name).kernels
    return found


def test_a_gemm_of_triton() -> None:
    found = kernel("triton_gfx942_small_gemm_NT.hsaco")
    assert (found.name, found.loops, found.workgroup) == ("gemm", 1, 256)
    assert found.registers == {"vgpr": 56, "agpr": 0, "sgpr": 34}
    assert found.occupancy == {"registers": 8, "lds": 8}
    hot = found.hot
    assert hot.is_loop
    assert hot.mix["mfma"] == 16
    assert hot.flop == 16 * 2 * 16 * 16 * 16
    # four waves share tiles of 64x32 and 32x64 halves: a quarter of both is loaded and stored by each
    assert hot.bytes["global load"] == hot.bytes["lds write"] == 2 * 64 * 32 * 2 // 4 * 2
    assert hot.slots["matrix"] == 16 * 4
    assert hot.bound == "lds"
    assert hot.lines[-1].kind == "branch"
    assert hot.lines[-1].text.endswith(f" +{hot.lines[0].offset:#x}")


def test_loads_to_lds_move_both() -> None:
    found = kernel("triton_gfx950_small_gemm_NT.hsaco")
    assert found.hot.mix["vmem_load"] == 8
    assert found.hot.bytes["lds write"] == found.hot.bytes["global load"] == 8 * 16 * 64
    assert "ds_write" not in found.hot.mix
    assert found.hot.flop == 16 * 2 * 16 * 16 * 32


def test_a_kernel_without_loops_is_taken_whole() -> None:
    found = kernel("iree_gfx942_small_gemm_NT.hsaco")
    assert (found.loops, found.hot.is_loop) == (0, False)
    assert found.hot.flop * 4 * 2 == 2 * 128**3  # two workgroups of four waves do all of it
    assert found.hot.lines[0].offset == 0
    assert found.hot.lines[-1].text == "s_endpgm"
    assert found.shared_bytes == 50688
    assert found.occupancy == {"registers": 1, "lds": 1}
    assert found.hot.bytes["global store"] * 8 == 128 * 128 * 4


def test_our_own_hot_loop(tmp_path: Path) -> None:
    config = "tile=64x32x32 waves=2x1 mma=16x16x16 slots=1 taps=split acc=a"
    problem = cg.Conv.parse("mb1ic64oc32ih8kh3ph1", dir="FWD_D", dt="f16")
    code = cg.compile(cg.build(problem, config=config))
    path = tmp_path / "k.s"
    path.write_text(code.asm)
    (found,) = targets.analyze(path).kernels
    assert found.registers["agpr"] == code.kernels[code.name].registers["agpr"] == 16
    assert found.shared_bytes == code.kernels[code.name].shared_bytes
    loop = found.hot
    assert loop.is_loop
    iterations, rest = divmod(9 * 2, loop.flop // (2 * 32 * 32 * 32))  # 18 blocks of K; a wave has 32x32 outputs
    assert iterations
    assert loop.mix["mfma"] * 2 * 16**3 == loop.flop
    assert loop.others_per_matrix == (len(loop.lines) - loop.mix["mfma"]) / loop.mix["mfma"]
    assert path.with_suffix(".s").read_text().count("v_mfma") >= loop.mix["mfma"] + rest
    path.with_suffix(".hsaco").write_bytes(code.object or b"")
    assert targets.analyze(path.with_suffix(".hsaco")) == targets.analyze(path)


TWO_LOOPS = """
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.text
.globl k
.p2align 8
.type k,@function
k:
first:
  v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]
  s_cbranch_scc1 first
second:
  v_add_u32 v8, v8, v8
  v_add_u32 v8, v8, v8
  v_add_u32 v8, v8, v8
  s_cbranch_scc1 second
  s_endpgm
.section .rodata,"a",@progbits
.p2align 6
.amdhsa_kernel k
  .amdhsa_next_free_vgpr 9
  .amdhsa_accum_offset 12
  .amdhsa_next_free_sgpr 8
.end_amdhsa_kernel
"""


def test_the_hot_loop_has_the_matrix_work_not_the_length(tmp_path: Path) -> None:
    (tmp_path / "k.s").write_text(TWO_LOOPS)
    (found,) = targets.analyze(tmp_path / "k.s").kernels
    assert found.loops == 2
    assert found.hot.mix == {"mfma": 1, "branch": 1}


@pytest.mark.parametrize(
    ("sums", "skip", "start", "is_loop"),
    [
        (4, "s_cbranch_vccz done", "", True),
        (5, "s_cbranch_vccz done", "", False),
        (40, "", "", True),
        (40, "s_cbranch_vccz done", "s_cbranch_vccnz first", True),
    ],
    ids=["as pipelines have it", "more than that", "none skips the loop", "some skip the rest"],
)
def test_what_every_wave_runs_through_may_be_hot(
    tmp_path: Path, sums: int, skip: str, start: str, is_loop: bool
) -> None:
    """Matrix work of more than four iterations, in front of a loop that waves may skip."""
    mfma = "v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]\n"
    text = TWO_LOOPS.replace("first:\n", f"{start}\n{mfma * sums}{skip}\nfirst:\n")
    (tmp_path / "k.s").write_text(text.replace("s_endpgm", "done:\n  s_endpgm"))
    (found,) = targets.analyze(tmp_path / "k.s").kernels
    assert found.hot.is_loop == is_loop
    assert found.hot.mix["mfma"] == (1 if is_loop else sums)
    assert found.loops == 2


#: Passes, written apart from the simulator's table (AMD matrix instruction calculator, "Execution statistics", and
#: llvm-mca's reciprocal throughput): architectures, pattern of the mnemonic, passes. The first match counts.
PASSES = [
    ("gfx950", r"v_mfma_f64_16x16x4_?f64", 16),
    ("gfx90a gfx942 gfx950", r"v_mfma_f64_16x16x4_?f64", 8),
    ("gfx90a gfx942 gfx950", r"v_mfma_f64_4x4x4_?(4b_)?f64", 4),
    ("gfx950", r"v_mfma_(scale_)?f32_32x32x64_f8f6f4", 16),
    ("gfx950", r"v_mfma_(scale_)?f32_16x16x128_f8f6f4", 8),
    ("gfx90a gfx942 gfx950", r"v_mfma_\w+?_4x4x\w+", 2),
    ("gfx942 gfx950", r"v_mfma_f32_32x32x2_f32", 16),
    ("gfx942 gfx950", r"v_mfma_f32_16x16x4_f32", 8),
    ("gfx942 gfx950", r"v_mfma_\w+?_32x32x\d+_2b_\w+", 16),
    ("gfx942 gfx950", r"v_mfma_\w+?_16x16x\d+_4b_\w+", 8),
    ("gfx942 gfx950", r"v_s?mfm?ac?_\w+?_32x32x\w+", 8),
    ("gfx942 gfx950", r"v_s?mfm?ac?_\w+?_16x16x\w+", 4),
    ("gfx90a", r"v_mfma_\w+?_32x32x\w+", 16),
    ("gfx90a", r"v_mfma_\w+?_16x16x\w+", 8),
]
BITS = {"f16": 16, "bf16": 16, "f32": 32, "xf32": 32, "f64": 64}  # all other types: 8
ROWS = [(arch, name) for arch in MATRIX_ROWS for name in (*MATRIX_ROWS[arch], *SPARSE_ROWS[arch])]


@pytest.mark.parametrize(("arch", "name"), ROWS)
def test_matrix_costs(arch: str, name: str) -> None:
    """The shape is that of the mnemonic; a dense instruction has as many blocks as fill the registers of operand A."""
    row = MATRIX_ROWS[arch].get(name) or SPARSE_ROWS[arch][name]
    bits = BITS.get(row.a_type, 8)
    registers = row.m * row.k * row.blocks * bits // 32 // 64
    a = "v0" if registers <= 1 else f"v[0:{registers - 1}]"
    found = line(f"{name} a[0:3], {a}, {a}, a[0:3]", arch)
    assert found.slots == next(n for archs, pattern, n in PASSES if arch in archs and re.match(pattern, name))
    sizes = re.search(r"_(\d+)x(\d+)x(\d+)", name)
    assert sizes
    m, n, k = map(int, sizes.groups())
    blocks = 1 if row.sparse or row.a_type == "f8f6f4" else registers * 32 * 64 // (m * k * bits)
    assert found.flop == 2 * m * n * k * max(1, blocks)


COSTS = [
    ("v_add_u32_e32 v0, v1, v2", "valu", "valu", 1, {}),
    ("v_mul_lo_u32 v0, v1, v2", "valu", "valu", 4, {}),
    ("v_mul_hi_u32_u24_e32 v0, v1, v2", "valu", "valu", 1, {}),
    ("v_mul_lo_u16_e32 v0, v1, v2", "valu", "valu", 1, {}),
    ("v_rcp_f32_e32 v0, v1", "valu", "valu", 4, {}),
    ("s_add_i32 s0, s1, s2", "salu", "", 1, {}),
    ("s_load_dwordx4 s[0:3], s[4:5], 0x0", "smem", "", 1, {}),
    ("s_memrealtime s[4:5]", "smem", "", 1, {}),
    ("s_atomic_add s4, s[6:7], 0x0 glc", "smem", "", 1, {}),
    ("s_buffer_atomic_add s4, s[8:11], 0x0", "smem", "", 1, {}),
    ("s_call_b64 s[6:7], 4", "branch", "", 1, {}),
    ("s_setprio 1", "other", "", 1, {}),
    ("s_barrier", "barrier", "", 1, {}),
    ("s_waitcnt vmcnt(0)", "waitcnt", "", 1, {}),
    ("ds_read_b128 v[0:3], v4 offset:64", "ds_read", "lds", 8, {"lds read": 1024}),
    ("ds_read2st64_b64 v[0:3], v4 offset1:8", "ds_read", "lds", 8, {"lds read": 1024}),
    ("ds_read_u16_d16_hi v0, v1", "ds_read", "lds", 1, {"lds read": 128}),
    ("ds_read_b64_tr_b16 v[0:1], v2", "ds_read", "lds", 4, {"lds read": 512}),
    ("ds_write_b8 v0, v1", "ds_write", "lds", 1, {"lds write": 64}),
    ("ds_write2_b32 v0, v1, v2 offset1:1", "ds_write", "lds", 4, {"lds write": 512}),
    ("ds_bpermute_b32 v0, v1, v2", "ds_other", "lds", 2, {}),
    ("buffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen", "vmem_load", "global", 16, {"global load": 1024}),
    ("buffer_load_ushort v0, v4, s[0:3], 0 offen", "vmem_load", "global", 2, {"global load": 128}),
    ("buffer_load_dword v4, s[0:3], 0 offen lds", "vmem_load", "global", 4, {"global load": 256, "lds write": 256}),
    ("global_load_lds_dwordx4 v[0:1], off", "vmem_load", "global", 16, {"global load": 1024, "lds write": 1024}),
    ("global_store_short_d16_hi v[0:1], v2, off", "vmem_store", "global", 2, {"global store": 128}),
    ("flat_atomic_add_x2 v[0:1], v[2:3]", "vmem_atomic", "global", 8, {"global atomic": 512}),
    ("buffer_load_format_xyz v[0:2], v4, s[0:3], 0 offen", "vmem_load", "global", 12, {"global load": 768}),
    ("buffer_load_format_d16_xyzw v[0:1], v4, s[0:3], 0 offen", "vmem_load", "global", 8, {"global load": 512}),
    ("global_atomic_add_f64 v[0:1], v[2:3], off", "vmem_atomic", "global", 8, {"global atomic": 512}),
]


@pytest.mark.parametrize(("text", "kind", "unit", "slots", "moved"), COSTS, ids=[row[0].split()[0] for row in COSTS])
def test_costs(text: str, kind: str, unit: str, slots: int, moved: dict[str, int]) -> None:
    found = line(text)
    assert (found.kind, found.unit, found.slots, dict(found.bytes)) == (kind, unit, slots, moved)
    assert found.issue == 1


def test_nops_and_branches() -> None:
    assert line("s_nop 7", word=0xBF800007).issue == 8
    assert line("s_cbranch_scc1 65535", word=0xBF85FFFF).text == "s_cbranch_scc1 +0x40"
    assert line("v_smfmac_f32_32x32x16_f16 v[0:15], v[16:17], v[18:21], v22").flop == 2 * 32 * 32 * 16


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FOREIGN / "triton_gfx942_small_gemm_NT.hsaco")
    assert cli.main(["analyze", path, "-v"]) == 0
    out = capsys.readouterr().out
    for text in ("vgpr 56 agpr 0 sgpr 34", "1 : 3.06", "131072 a wave, an iteration", "lds: 384 clocks at least"):
        assert text in out
    loop = out[out.index("instruction\n") :].splitlines()[1:]
    assert len(loop) == 65
    assert loop[0].split()[0] == "+0x030c"
    assert sum(row.split()[1] == "mfma" for row in loop) == 16
    assert cli.main(["analyze", path, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["file"], data["target"]) == (path, "gfx942")
    (found,) = data["kernels"]
    assert found["hot"]["mix"]["mfma"] == 16
    assert found["hot"]["bound"] == "lds"
    assert "lines" not in found["hot"]


def test_formats_of_four_bits_take_half_the_passes() -> None:
    """Which formats an instruction has, its modifiers say: two products of 4-bit numbers on gfx950."""
    content = (FOREIGN / "triton_gfx950_scaled_mxfp4.hsaco").read_bytes()
    (loaded,) = CodeObject.load(content).kernels.values()
    found = [i for i in loaded.instructions if i.name.endswith("_f8f6f4")]
    assert {costs.element(i, "gfx950") for i in found} == {"fp4"}
    assert {costs.line_of(i, 0, "gfx950").slots for i in found} == {8}
    wide = evolve(found[0], modifiers={"cbsz": "4"})
    assert (costs.element(wide, "gfx950"), costs.line_of(wide, 0, "gfx950").slots) == ("fp8", 16)
