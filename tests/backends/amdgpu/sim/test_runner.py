"""bench/foreign.py: a folder of code objects with a manifest, run strictly and compared with numpy."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convgen.backends.amdgpu.sim import simulate
from convgen.backends.simulation import Scrutiny

RUNNER = Path(__file__).parents[4] / "bench" / "foreign.py"
FILES = ("triton_gfx942_small_gemm_NT.hsaco", "triton_gfx942_small_conv_3x3p1.hsaco")
#: Elements of the outputs, by the beginning of what follows the target in a file's name.
SIZES = {
    "small_gemm": 128 * 128,
    "small_conv": 2048,
    "softmax": 8 * 1000,
    "layer_norm": 6 * 500,
    "extremes": 5,
    "attention": 2 * 128 * 64,
    "gemm": 64 * 64,
    "scaled": 64 * 64,
    "bmm": 4 * 64 * 64,
    "functions": 1000,
    "swaps": 3,
}


def changed(sim: Any, folder: Path, file: str, **changes: Any) -> None:
    """A folder with one of the code objects, its entry changed."""
    (entry,) = (e for e in json.loads((sim.foreign / "manifest.json").read_text()) if e["file"] == file)
    shutil.copy(sim.foreign / file, folder / file)
    (folder / "manifest.json").write_text(json.dumps([entry | changes]))


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUNNER), str(folder), *options], capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.parametrize("match", ["gfx90a", pytest.param("", marks=pytest.mark.sweep)])
def test_a_folder(sim: Any, match: str) -> None:
    """Every kernel is right, and neither the manuals nor LLVM have anything to object to."""
    done = run(sim.foreign, "--json", "--strict", "llvm", "--match", match)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["file"] for row in rows} == {
        path.name for path in sim.foreign.glob(f"*{match}*.hsaco".replace("**", "*"))
    }
    for row in rows:
        (size,) = (n for what, n in SIZES.items() if row["file"].split("_", 2)[2].startswith(what))
        assert (row["status"], row["checked"], row["findings"]) == ("passed", size, []), row["file"]
        assert row["instructions"] > 300


@pytest.mark.sweep
@pytest.mark.parametrize("file", sorted(SIZES))
def test_deleted_waits_and_barriers_are_noticed(sim: Any, file: str) -> None:
    """All but those of which the manifest says why nothing depends on them, and these are not."""
    done = run(sim.foreign, "--match", file, "--delete")
    assert done.returncode == 0, done.stdout


#: Two waves: each writes a word, and reads the other's.
EXCHANGE = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
v_lshlrev_b32 v1, 2, v0
v_xor_b32 v2, 0x100, v1
s_mov_b32 s6, 2
ds_write_b32 v1, v0
s_waitcnt lgkmcnt(0)
{}
ds_read_b32 v3, v2
s_waitcnt lgkmcnt(0)
{}
global_store_dword v1, v3, s[4:5]
"""
LOOP = ".Lagain:\ns_barrier\ns_sub_u32 s6, s6, 1\ns_cmp_lg_u32 s6, 0\ns_cbranch_scc1 .Lagain"


@pytest.mark.parametrize(
    ("between", "behind", "barriers"),
    [
        ("s_barrier", "", 1),
        ("s_barrier\ns_barrier", "", 0),  # each orders what the other does
        (LOOP, "", 1),  # both times the same
        ("s_barrier", "s_barrier", 1),  # local memory before the last, device memory behind it
        ("s_barrier", "s_barrier\ns_barrier\nds_write_b32 v1, v3", 1),
        ("s_barrier", "s_barrier\nds_write_b32 v1, v3", 2),
    ],
)
def test_barriers_that_order_nothing_alone_are_no_cases(sim: Any, between: str, behind: str, barriers: int) -> None:
    code = sim.assemble("gfx942", {"k": sim.Source(EXCHANGE.format(between, behind), lds=512)})

    def noticed(code: bytes, scrutiny: Scrutiny) -> bool:
        out = {"y": np.zeros(512, np.uint8)}
        findings = simulate(code, [sim.launch("k", ["y"], workgroup=128)], out, scrutiny=scrutiny).findings
        return any(finding.source.required for finding in findings)

    spec = importlib.util.spec_from_file_location("deletion", RUNNER.parent / "lib" / "deletion.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = [(instruction.name, seen) for instruction, seen in module.deletions(code, "k", noticed)]
    assert sorted(found) == [("s_barrier", True)] * barriers + [("s_waitcnt", True)] * 2


def test_a_table(sim: Any) -> None:
    done = run(sim.foreign, "--match", "iree_gfx942_small")
    assert "iree_gfx942_small_gemm_NT" in done.stdout
    assert done.stdout.count("PASSED") == 1


def test_wrong_elements_fail(sim: Any, tmp_path: Path) -> None:
    """With one workgroup only, the other tiles keep what was there."""
    changed(sim, tmp_path, FILES[0], grid=[1, 1, 1])
    done = run(tmp_path, "--json")
    assert done.returncode == 1
    row = json.loads(done.stdout)
    assert (row["status"], row["mismatches"]) == ("failed", 3 * 64 * 64)


def test_deletions_from_a_kernel_that_is_wrong_say_nothing(sim: Any, tmp_path: Path) -> None:
    changed(sim, tmp_path, FILES[0], grid=[1, 1, 1])
    done = run(tmp_path, "--delete")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: given gemm, of which something is noticed as it is, wanted a kernel in order\n"


@pytest.mark.sweep
def test_what_is_called_needless_but_is_not_fails(sim: Any, tmp_path: Path) -> None:
    changed(sim, tmp_path, "triton_gfx942_softmax_f32.hsaco", needless={"0x10": "the sun shines"})
    done = run(tmp_path, "--delete")
    assert done.returncode == 1
    assert "  0x10: NOTICED, or no case: the sun shines\n" in done.stdout


def test_what_the_simulator_finds_fails(sim: Any, tmp_path: Path) -> None:
    """Less local memory than the kernel uses."""
    changed(sim, tmp_path, FILES[1], shared=4096)
    done = run(tmp_path, "--json")
    assert done.returncode == 1
    row = json.loads(done.stdout)
    assert row["status"] == "failed"
    assert {f["kind"] for f in row["findings"]} == {"lds-bounds"}
    assert all(f["required"] for f in row["findings"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "error: cannot read"),
        ("[", "that is not JSON"),
        ("{}", "wanted a list of entries"),
        ('[{"file": "gone.hsaco"}]', "cannot read gone.hsaco"),
    ],
)
def test_requests_that_are_wrong(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    done = run(tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


#: What no compiler emits for compute, or what no manual explains.
REFUSED = frozenset(
    "ds_append ds_condxchg32_rtn_b64 ds_consume ds_read_addtid_b32 ds_write_addtid_b32 s_atc_probe s_atc_probe_buffer "
    "s_cbranch_g_fork s_cbranch_i_fork s_cbranch_join s_rfe_b64 s_rfe_restore_b64 s_scratch_load_dword "
    "s_scratch_load_dwordx2 s_scratch_load_dwordx4 s_scratch_store_dword s_scratch_store_dwordx2 "
    "s_scratch_store_dwordx4 s_setkill scratch_load_lds_dword scratch_load_lds_sbyte scratch_load_lds_sshort "
    "scratch_load_lds_ubyte scratch_load_lds_ushort v_cvt_f32_bf8_dpp v_cvt_f32_fp8_dpp v_cvt_pk_f32_bf8_dpp "
    "v_cvt_pk_f32_fp8_dpp v_cvt_pk_u8_f32 v_cvt_pkaccum_u8_f32 v_mfma_ld_scale_b32 v_mqsad_u32_u8 "
    "v_pk_fmac_f16_dpp v_pk_fmac_f16_sdwa v_screen_partition_4se_b32_dpp v_screen_partition_4se_b32_e32 "
    "v_screen_partition_4se_b32_e64".split()
)


@pytest.mark.sweep
def test_all_other_instructions_are_executed() -> None:
    """Each mnemonic that LLVM decodes for a target; what is refused is refused in one line that names it."""
    done = subprocess.run(
        [sys.executable, str(RUNNER.with_name("isa.py")), "--json"], capture_output=True, text=True, check=True
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["target"] for row in rows] == ["gfx90a", "gfx942", "gfx950"]
    for row in rows:
        assert row["mnemonics"] > 1600
        assert set(row["refused"]) <= REFUSED
        for mnemonic, why in row["refused"].items():
            assert f"`{mnemonic} " in why or f"`{mnemonic}`" in why
