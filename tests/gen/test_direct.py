"""`convgen run` of a code object without a launch record: arguments, checks that are allowed, looking at registers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.amdgpu.sim import Halt, simulate
from convgen.backends.simulation import KernelArg, LaunchRequest, Scrutiny
from convgen.commands import cli

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"
GEMM = str(FOREIGN / "triton_gfx942_small_gemm_NT.hsaco")
LAUNCH = ["--grid", "4", "--block", "256", "--lds", "8192"]
SIZES = [f"--arg={number}=128" for number in range(3, 9)]


@pytest.fixture(autouse=True)
def arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A and B as a.npy and b.npy in the working directory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-4, 5, (128, 128)).astype(np.float16) for _ in range(2))
    np.save("a.npy", a)
    np.save("b.npy", b)
    return a, b


def run(*arguments: str) -> int:
    return cli.main(["run", GEMM, *arguments])


def gemm(*more: str) -> int:
    return run(*LAUNCH, "--arg", "0=a.npy", "--arg", "1=b.npy", "--arg", "2=f32:128x128", *SIZES, *more)


def test_arguments_by_number(arrays: tuple[npt.NDArray[Any], npt.NDArray[Any]]) -> None:
    assert gemm("--out", "2=c.npy") == 0
    a, b = (array.astype(np.float32) for array in arrays)
    np.testing.assert_array_equal(np.load("c.npy"), a @ b.T)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (LAUNCH, "given no argument 3, wanted its value"),
        (["--grid", "4"], "given no --block, wanted one to launch triton_gfx942_small_gemm_NT.hsaco"),
        ([*LAUNCH, "--arg", "n=1"], "given the argument n of gemm, wanted one of 0, 1, 2, 3, 4, 5, 6, 7, 8"),
        ([*LAUNCH, "--arg", "0=x.bin"], "given 0=x.bin, wanted FILE.npy"),
        ([*LAUNCH, "--arg", "0=no.npy"], "cannot read no.npy"),
        ([*LAUNCH, "--arg", "0=f33:4"], "given the type f33 of 0"),
        (
            [*LAUNCH, "--arg", "0=s4:64x2"],
            "given the type s4 of 0, wanted one of whole bytes; use u8 for a pair of elements",
        ),
        ([*LAUNCH, "--arg", "3=5000000000"], "given 3=5000000000, wanted a number of 4 bytes"),
        ([*LAUNCH, "--arg", "3=1", "--arg", "3=2"], "given the argument 3 twice"),
        ([*LAUNCH, "--kernel", "gem"], "given the kernel 'gem' (did you mean gemm?), wanted one of gemm"),
        ([*LAUNCH, "--data", "x"], "given --data without a launch record"),
        ([*LAUNCH, *SIZES, "--out", "2=c.npy"], "given --out 2, wanted one of none"),
        ([*LAUNCH, *SIZES, "--allow", "lds-bound"], "given the check 'lds-bound', wanted one of buffer-soffset"),
        (["--grid", "0", "--block", "1"], "given '0', wanted X, X,Y or X,Y,Z from 1, at --grid"),
        ([*LAUNCH, "--trace", "t", "--break", "+0"], "given --trace and --break"),
        ([*LAUNCH, *SIZES, "--break", "nowhere"], "given the place nowhere, where no instruction of gemm starts"),
    ],
)
def test_complaints(arguments: Sequence[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    told = capsys.readouterr().err
    assert complaint in told
    assert told.count("\n") == 1


def test_a_file_that_is_no_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "a.npy", *LAUNCH]) == 2
    wanted = "given a.npy, wanted a launch record, or a code object for a GPU of AMD, Intel or NVIDIA"
    assert wanted in capsys.readouterr().err


def test_findings_that_are_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    """Without the local memory that the host asks for, accesses to it are findings."""
    small = [*LAUNCH[:4], "--lds", "4096", "--arg", "0=a.npy", "--arg", "1=b.npy", "--arg", "2=f32:128x128", *SIZES]
    assert run(*small) == 1
    told = capsys.readouterr().out
    assert "lds-bounds: " in told
    assert "what the kernel declares and the launch adds (--lds)" in told
    assert run(*small, "--allow", "lds-bounds", "--allow", "lds-race", "--allow", "poison") == 0


def test_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert gemm("--trace", "t.txt") == 0
    lines = Path("t.txt").read_text().splitlines()
    assert lines[0].split("\t")[0] == "gemm+0x100"
    assert lines[-1].split("\t")[2] == "s_endpgm"
    executed = sum(line.split("\t")[1].count(".") for line in lines)
    assert f"simulated     {executed} subgroup instructions" in capsys.readouterr().out


def test_registers_at_a_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert gemm("--break", "+0x104") == 0
    told = capsys.readouterr().out
    assert told.startswith("gemm+0x104: ")
    assert "workgroup 0 wave 0, 64 lanes active" in told
    assert "\n  exec_lo  0xffffffff\n" in told
    assert "\n  v0       0x00000000 0x00000001 0x00000002" in told
    assert gemm("--break", "+0x0") == 0
    assert "no wave came to +0x0" in capsys.readouterr().out


def test_registers_as_arrays(arrays: tuple[npt.NDArray[Any], npt.NDArray[Any]]) -> None:
    """Behind the entry lanes number the work-items of their waves, and everything else is undefined."""
    seen: list[tuple[list[int], npt.NDArray[np.uint32], npt.NDArray[np.bool_]]] = []

    def watch(halt: Halt) -> None:
        seen.append((halt.waves.tolist(), halt.vectors, halt.undefined[0]))

    a, b = arrays
    buffers = {"A": a.reshape(-1).view(np.uint8), "B": b.reshape(-1).view(np.uint8), "C": np.zeros(1 << 16, np.uint8)}
    args = [KernelArg(8 * n, 8, name) for n, name in enumerate("ABC")]
    args += [KernelArg(24 + 4 * n, 4, (128).to_bytes(4, "little")) for n in range(6)]
    request = LaunchRequest("gemm", (4, 1, 1), (256, 1, 1), tuple(args), 8192, groups=(1,))
    simulate(Path(GEMM).read_bytes(), [request], buffers, scrutiny=Scrutiny(watch=watch, places=(0x100,)))
    ((waves, vectors, undefined),) = seen
    assert waves == [0, 1, 2, 3]
    np.testing.assert_array_equal(vectors[:, 0], np.arange(256).reshape(4, 64))
    assert not undefined[:, 0].any()
    assert undefined[:, 1:].all()
