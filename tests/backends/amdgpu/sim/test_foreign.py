"""Kernels of other compilers: exact results without findings; the loss of a wait, barrier or wait state is noticed."""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from elftools.elf.elffile import ELFFile

from convgen.backends.amdgpu.sim import CodeObject, simulate
from convgen.backends.simulation import KernelArg, LaunchRequest, SimReport
from convgen.ir.record import evolve, frozen
from tests.strategies import always

Array = npt.NDArray[Any]
S_NOP_0 = 0xBF800000


def small_integers(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """f16 numbers whose products and sums are exact in f32."""
    values: Array = rng.integers(-4, 5, shape).astype(np.float16)
    return values


@frozen
class Gemm:
    """C[M, N] = A[M, K] B[N, K]ᵀ."""

    file: str
    kernel: str
    lds: int
    grid: int
    scalars: bool
    depth: int = 128

    def run(
        self, folder: Any, code: bytes | None = None, size: int = 128, **options: Any
    ) -> tuple[SimReport, Array, Array]:
        rng = np.random.default_rng(7)
        a, b = (small_integers(rng, (size, self.depth)) for _ in range(2))
        c = np.full((size, size), -1, np.float32)
        args = [KernelArg(8 * i, 8, name) for i, name in enumerate("ABC")]
        if self.scalars:
            numbers = (size, size, self.depth, self.depth, self.depth, size)
            args += [KernelArg(24 + 4 * i, 4, struct.pack("<i", number)) for i, number in enumerate(numbers)]
        request = LaunchRequest(self.kernel, (self.grid * (size // 128) ** 2, 1, 1), (256, 1, 1), tuple(args), self.lds)
        buffers = {name: data.view(np.uint8).reshape(-1) for name, data in zip("ABC", (a, b, c), strict=True)}
        report = simulate(code or (folder / self.file).read_bytes(), [request], buffers, **options)
        return report, c, a.astype(np.float32) @ b.astype(np.float32).T


IREE = "mm_dispatch_0_matmul_like_128x128x128_f16xf16xf32"
GEMMS = {
    "triton gfx942": Gemm("triton_gfx942_small_gemm_NT.hsaco", "gemm", 8192, 4, True),
    "triton gfx950": Gemm("triton_gfx950_small_gemm_NT.hsaco", "gemm", 16832, 4, True),
    "iree gfx942": Gemm("iree_gfx942_small_gemm_NT.hsaco", IREE, 0, 2, False),
}


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("name", GEMMS)
def test_gemm(sim: Any, name: str, order: str) -> None:
    report, got, want = GEMMS[name].run(sim.foreign, wave_order=order)
    assert not report.findings, str(report.findings[0])
    np.testing.assert_array_equal(got, want)
    assert report.instructions["mfma"] > 100


def test_gemm_in_several_batches(sim: Any) -> None:
    done: list[tuple[int, int]] = []
    report, got, want = GEMMS["triton gfx942"].run(
        sim.foreign, size=1024, progress=lambda now, total: done.append((now, total))
    )
    assert not report.findings
    np.testing.assert_array_equal(got, want)
    assert done[-1] == (256, 256)
    assert len(done) > 1


def test_not_strict(sim: Any) -> None:
    report, got, want = GEMMS["triton gfx950"].run(sim.foreign, strict=False)
    assert not report.findings
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_convolution(sim: Any, order: str) -> None:
    rng = np.random.default_rng(3)
    x, w = (small_integers(rng, shape) for shape in ((1, 8, 8, 32), (32, 3, 3, 32)))
    y = np.full((1, 8, 8, 32), -1, np.float32)
    args = tuple(KernelArg(8 * i, 8, name) for i, name in enumerate("XWY"))
    buffers = {name: data.view(np.uint8).reshape(-1) for name, data in zip("XWY", (x, w, y), strict=True)}
    code = (sim.foreign / "triton_gfx942_small_conv_3x3p1.hsaco").read_bytes()
    request = LaunchRequest("conv", (1, 1, 1), (256, 1, 1), args, 6144)
    report = simulate(code, [request], buffers, wave_order=order)
    padded = np.pad(x.astype(np.float32), ((0, 0), (1, 1), (1, 1), (0, 0)))
    want = sum(padded[:, r : r + 8, s : s + 8] @ w[:, r, s].astype(np.float32).T for r in range(3) for s in range(3))
    assert not report.findings, str(report.findings[0])
    np.testing.assert_array_equal(y, want)


def test_some_workgroups(sim: Any) -> None:
    """Only the named workgroups run; the others' tiles keep what was there."""
    gemm = GEMMS["triton gfx942"]
    code = (sim.foreign / gemm.file).read_bytes()
    ones = np.ones((128, 128), np.float16)
    c = np.zeros((128, 128), np.float32)
    numbers = (128, 128, 128, 128, 128, 128)
    args = [KernelArg(8 * i, 8, name) for i, name in enumerate("ABC")]
    args += [KernelArg(24 + 4 * i, 4, struct.pack("<i", number)) for i, number in enumerate(numbers)]
    request = LaunchRequest("gemm", (4, 1, 1), (256, 1, 1), tuple(args), 8192, groups=(2,))
    buffers = {
        "A": ones.view(np.uint8).reshape(-1),
        "B": ones.view(np.uint8).reshape(-1),
        "C": c.view(np.uint8).reshape(-1),
    }
    assert not simulate(code, [request], buffers).findings
    assert (c == 128).sum() == 64 * 64


def waits(code: bytes, names: set[str]) -> list[Any]:
    """The executed instructions of some mnemonics."""
    (kernel,) = CodeObject.load(code).kernels.values()
    end = next(i for i in range(kernel.entry, len(kernel.instructions)) if kernel.instructions[i].name == "s_endpgm")
    return [instruction for instruction in kernel.instructions[kernel.entry : end] if instruction.name in names]


def patched(code: bytes, address: int, word: int) -> bytes:
    """The code object with one instruction word replaced."""
    text = ELFFile(BytesIO(code)).get_section_by_name(".text")
    assert text is not None
    at = address - text["sh_addr"] + text["sh_offset"]
    return code[:at] + struct.pack("<I", word) + code[at + 4 :]


def weakened(word: int) -> list[int]:
    """An s_waitcnt with each of its fields allowing one operation more."""
    vm, lgkm = (word & 0xF) | (word >> 10 & 0x30), word >> 8 & 0xF
    found = []
    if vm < 63:
        found.append((word & ~0xC00F) | (vm + 1 & 0xF) | (vm + 1 & 0x30) << 10)
    if lgkm < 15:
        found.append((word & ~0xF00) | lgkm + 1 << 8)
    return found


#: What the compilers emit without need: a wait behind which nothing is outstanding, a barrier before the end.
REDUNDANT = {"triton gfx950": {0x2360}, "iree gfx942": {0x1EA4}}


@pytest.mark.parametrize("name", always(((name,) for name in GEMMS), lambda n, case: case[0] == "iree gfx942"))
def test_mutations_are_noticed(sim: Any, name: str) -> None:
    """Delete each barrier and wait, weaken each field of a wait and each s_nop by one: all needed ones are noticed.

    Two depths take both paths through the software-pipelined loops.
    """
    gemm = GEMMS[name]
    code = (sim.foreign / gemm.file).read_bytes()
    variants = [gemm, evolve(gemm, depth=288)] if gemm.scalars else [gemm]
    unnoticed = set()
    for instruction in waits(code, {"s_waitcnt", "s_barrier", "s_nop"}):
        word = instruction.words[0]
        mutants = {
            "s_barrier": [S_NOP_0],
            "s_waitcnt": [S_NOP_0, *weakened(word)],
            "s_nop": [word - 1] * (word & 0xF > 0),
        }
        for mutant_word in mutants[instruction.name]:
            mutant = patched(code, instruction.address, mutant_word)
            for variant in variants:
                report, got, want = variant.run(sim.foreign, mutant, max_findings=1)
                if report.findings:
                    break
                np.testing.assert_array_equal(got, want)
            else:
                unnoticed.add(instruction.address)
    assert unnoticed == REDUNDANT.get(name, set())
