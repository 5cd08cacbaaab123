"""OpenCL C compiled by clang: divisions, 64-bit and half arithmetic, divergence, scratch, a reduction, bit for bit."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.amdgpu.sim import simulate
from convgen.backends.simulation import KernelArg, LaunchRequest, SimReport

Array = npt.NDArray[Any]
SIZE, USED = 1024, 1000
RNG = np.random.default_rng(11)
A = RNG.integers(-8, 9, SIZE).astype(np.float32)
B = RNG.integers(-100_000, 100_000, SIZE).astype(np.int32)


@pytest.fixture(scope="module", params=["gfx90a", "gfx942", "gfx950"])
def code(request: Any, tmp_path_factory: Any) -> bytes:
    if shutil.which("clang-22") is None:
        pytest.skip("clang-22 is not installed")
    out: Path = tmp_path_factory.mktemp("compiled") / "k.hsaco"
    command = ["clang-22", "-x", "cl", "-cl-std=CL2.0", "--target=amdgcn-amd-amdhsa", f"-mcpu={request.param}"]
    command += ["-nogpulib", "-O2", "-Xclang", "-finclude-default-header", "-mcode-object-version=5"]
    command += [str(Path(__file__).with_name("compiled.cl")), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out.read_bytes()


def run(code: bytes, kernel: str, buffers: dict[str, Array], order: str, *scalars: int) -> SimReport:
    args = [KernelArg(8 * i, 8, name) for i, name in enumerate(buffers)]
    args += [KernelArg(8 * len(buffers) + 4 * i, 4, struct.pack("<i", value)) for i, value in enumerate(scalars)]
    request = LaunchRequest(kernel, (SIZE // 256, 1, 1), (256, 1, 1), tuple(args))
    return simulate(code, [request], {name: data.view(np.uint8) for name, data in buffers.items()}, wave_order=order)


def misc(i: int) -> np.float32:
    x, y, f32 = A[i], int(B[i]), np.float32
    total = f32(0)
    for k in range(y & 15):
        total = total + f32(x * k) if k & 1 else total - A[(i + k) % USED]
    total += f32(x / f32(y | 1))
    total += f32((y * y + i) % 1000)
    total += f32(f32((y & 0xFFFFFFFF) // 7) + f32(int(y / (i + 1))))
    total += f32(np.float16(x) * np.float16(x) + np.float16(1))
    return f32(total + f32(3 * float(x)))


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_arithmetic_under_divergence(code: bytes, order: str) -> None:
    out = np.zeros(SIZE, np.float32)
    report = run(code, "misc", {"out": out, "a": A.copy(), "b": B.copy()}, order, USED)
    assert not report.findings, str(report.findings[0])
    want = np.array([misc(i) for i in range(USED)] + [0] * (SIZE - USED), np.float32)
    np.testing.assert_allclose(out, want, rtol=2e-6)


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_reduction(code: bytes, order: str) -> None:
    out, count = np.zeros(SIZE // 256, np.float32), np.zeros(1, np.int32)
    report = run(code, "reduce", {"out": out, "a": A.copy(), "count": count}, order)
    assert not report.findings, str(report.findings[0])
    np.testing.assert_array_equal(out, A.reshape(-1, 256).sum(axis=1))
    assert count[0] == SIZE // 256


def own(i: int, n: int) -> int:
    mine, ours = [int(B[i]) + k for k in range(17)], 3 * i
    total = sum(mine[(5 * k + i) % 17] * k for k in range(17))
    if (i + n) & 1:
        mine[i & 15] += 100
    else:
        ours += 100
    return total + mine[i & 15] + ours + min(int(B[i]) + 0x7FFFFF00, 0x7FFFFFFF) % 1000


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_scratch(code: bytes, order: str) -> None:
    out = np.zeros(SIZE, np.int32)
    report = run(code, "own", {"out": out, "b": B.copy()}, order, 5)
    assert not report.findings, str(report.findings[0])
    np.testing.assert_array_equal(out, np.array([own(i, 5) for i in range(SIZE)], np.int64).astype(np.int32))
