"""Two complete kernels: exact products on both platforms, and the loss of any annotation is noticed."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.intel.sim import simulate
from convgen.backends.simulation import SimReport

Array = npt.NDArray[Any]


@attrs.frozen
class Gemm:
    """C[M, N] = A[M, K] B[K, N] in f16 with f32 sums; B is given row by row or column by column."""

    file: str
    columns: int  #: of a workgroup's tile; it has 16 rows
    simd: int
    slm: int
    ids: int
    skip: int
    inline: int
    transposed: bool

    def run(
        self, sim: Any, platform: str, text: str | None = None, size: int = 32, depth: int = 48, **options: Any
    ) -> tuple[SimReport, Array, Array]:
        rng = np.random.default_rng(3)
        a = rng.integers(-4, 5, (size, depth)).astype(np.float16)
        b = rng.integers(-4, 5, (depth, size)).astype(np.float16)
        c = np.full((size, size), np.nan, np.float32)
        text = text or (sim.kernels / self.file).read_text()
        source = sim.Source(
            text, slm=self.slm, barriers=1, inline=self.inline, skip=self.skip, ids=self.ids, simd=self.simd
        )
        code = sim.zebin(platform, {"gemm": source})
        given = {"A": a, "B": np.ascontiguousarray(b.T) if self.transposed else b, "C": c}
        raw = {name: data.view(np.uint8).reshape(-1) for name, data in given.items()}
        grid = (size // self.columns, size // 16, 1)
        request = sim.launch("gemm", ["A", "B", "C", size, size, depth], grid, 2 * self.simd)
        report = simulate(code, [request], raw, **options)
        return report, c, a.astype(np.float32) @ b.astype(np.float32)


GEMMS = {
    "xehpc": Gemm("gemm_xehpc.asm", 16, 16, 1024, 192, 128, 0, False),
    "xehpg": Gemm("gemm_xehpg.asm", 8, 8, 512, 96, 192, 32, True),
}


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("platform", GEMMS)
def test_gemm(sim: Any, platform: str, order: str) -> None:
    report, got, want = GEMMS[platform].run(sim, platform, hardware_ids=True, wave_order=order)
    assert not report.findings, "\n".join(map(str, report.findings))
    np.testing.assert_array_equal(got, want)
    assert report.instructions["dpas"] == 2 * 3 * (report.instructions["send_gtwy"] // 8)
