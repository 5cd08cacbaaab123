"""`convgen run` and `convgen check` execute PTX: of launch records, of other compilers, and of folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from convgen.backends import family as families
from convgen.backends.nvidia.sim import architecture, signatures
from convgen.commands import cli

DATA = Path(__file__).parents[3] / "data" / "nvidia"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_run_takes_arguments_and_writes_results(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("a.npy", a := np.arange(100, dtype=np.float32))
    np.save("b.npy", b := a[::-1].copy())
    words = f"run {DATA / 'nvcc.ptx'} --kernel vector_add --grid 2 --block 64 --arg 0=a.npy --arg 1=b.npy"
    code = cli.main([*words.split(), "--arg", "2=f32:100", "--arg", "3=100", "--out", "2=c.npy"])
    assert code == 0, capsys.readouterr().err
    assert (np.load("c.npy") == a + b).all()
    assert "findings      0" in capsys.readouterr().out


def test_check_judges_each_kernel_and_makes_up_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["check", str(DATA / "nvcc.ptx"), "--kernel", "histogram", "--block", "128", "--arg", "2=500"])
    shown = capsys.readouterr().out
    assert code == 0
    assert "kernel        histogram for sm_90" in shown
    assert "verdict       CLEAN" in shown


def test_check_finds_a_missing_barrier(capsys: pytest.CaptureFixture[str]) -> None:
    text = (DATA / "pipelined_gemm.ptx").read_text()
    Path("k.ptx").write_text(text.replace("cp.async.wait_group 1;", "", 1))
    code = cli.main(["check", "k.ptx", "--lds", "49152", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 1
    (kernel,) = found["kernels"]
    assert {finding["kind"] for finding in kernel["findings"]} >= {"cp-async"}
    assert kernel["findings"][0]["line"].startswith("ptx:")


def test_a_folder_of_ptx_is_searched(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("triton_softmax", "pipelined_gemm"):
        Path(f"{name}.ptx").write_bytes((DATA / f"{name}.ptx").read_bytes())
    Path("other.txt").write_text("// no code\n")
    code = cli.main(["check", ".", "--kernel", "kern", "--lds", "49152"])
    assert code == 0
    assert "kern for sm_80" in capsys.readouterr().out


def test_a_kernel_of_convgen_passes(capsys: pytest.CaptureFixture[str]) -> None:
    words = "conv mb1ic16ih4oc16kh3ph1 --dir FWD_D --dt f16 --target sm_90 -o k --run"
    assert cli.main(words.split()) == 0, capsys.readouterr().err
    assert "result        PASSED" in capsys.readouterr().out
    assert cli.main(["run", "k.launch.json"]) == 0
    assert "findings      0" in capsys.readouterr().out


def test_metadata_of_kernels() -> None:
    content = (DATA / "nvcc.ptx").read_bytes()
    assert architecture(content) == "sm_90"
    known = signatures(content)
    saxpy = known["saxpy4"]
    assert [(p.offset, p.size, p.is_pointer) for p in saxpy.parameters] == [
        (0, 8, True),
        (8, 8, True),
        (16, 4, False),
        (20, 4, False),
    ]
    assert known["block_sum"].shared_bytes == 1024
    triton = signatures((DATA / "triton_matmul.ptx").read_bytes())
    (matmul,) = triton.values()
    assert matmul.workgroup == (128, 1, 1)
    assert [p.is_pointer for p in matmul.parameters[:6]] == [True] * 3 + [False] * 3


def test_ptx_is_known_by_its_beginning() -> None:
    for name in ("nvcc", "clang", "triton_matmul", "pipelined_gemm"):
        family = families.of_object((DATA / f"{name}.ptx").read_bytes()[: families.BEGINNING])
        assert family is not None
        assert family.name == "nvidia"
    assert families.of_object(b"// a comment\nint main() {}\n") is None
