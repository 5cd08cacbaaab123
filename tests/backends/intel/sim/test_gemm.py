"""Two complete kernels: exact products on both platforms, and the loss of any annotation is noticed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.intel.sim import simulate
from convgen.backends.simulation import SimReport
from tests.strategies import always

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
        given: dict[str, Array] = {"A": a, "B": np.ascontiguousarray(b.T) if self.transposed else b, "C": c}
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


@pytest.mark.parametrize("platform", GEMMS)
def test_local_ids_from_memory(sim: Any, platform: str) -> None:
    """Threads that start at the prologue load their local ids."""
    gemm = GEMMS[platform]
    text = (sim.kernels / gemm.file).read_text()
    last = "(W)     mov (16|M0)              r127.0<1>:f   r0.0<1;1,0>:f"
    report, got, want = gemm.run(sim, platform, text.replace(last, last + " {$1.src}"), errata=False)
    assert not report.findings, "\n".join(map(str, report.findings))
    np.testing.assert_array_equal(got, want)


def test_prologue_of_the_compiler(sim: Any) -> None:
    """The XeHPC prologue is IGC's: it overwrites an address behind `.src`, and nothing waits for the ids in r3."""
    report, _, _ = GEMMS["xehpc"].run(sim, "xehpc")
    assert [(finding.kind, finding.pc) for finding in report.findings] == [("send-war", 0x60), ("token-wait", 0x4B0)]


def mutants(text: str) -> Iterator[tuple[int, str]]:
    """Each annotation of each line taken away or weakened, each sync, barrier and fence left out."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        code = line.split("//")[0]
        options = re.search(r"\{([^}]*)\}", code)
        if re.search(r"sync\.(nop|bar|allwr)|send\.gtwy .*0x02000004|send\.slm .*0x0210011F", code):
            yield number, _changed(lines, number, "")
        if options is None or "sync" in code:
            continue
        given = [option.strip() for option in options[1].split(",")]
        for option in given:
            if option in ("AccWrEn", "EOT") or re.fullmatch(r"\$\d+", option):
                continue
            rest = [other for other in given if other != option]
            weaker = []
            if option.endswith(".dst"):
                weaker.append(option.replace(".dst", ".src"))
            distance = re.fullmatch(r"([FILMA]?)@(\d)", option)
            if distance and int(distance[2]) < 7:
                weaker.append(f"{distance[1]}@{int(distance[2]) + 1}")
            for new in [[], *([one] for one in weaker)]:
                kept = ", ".join([*rest, *new])
                changed = code.replace(options[0], f"{{{kept}}}" if kept else "")
                yield number, _changed(lines, number, changed)


def _changed(lines: list[str], number: int, line: str) -> str:
    return "\n".join([*lines[:number], line, *lines[number + 1 :]])


#: Lines (from 0) with an annotation that may be weakened, because another one covers it: A@1 where A@2 would do, a wait
#: for the loads of the prologue, the distance of an addition that only needs the accumulator (which is interlocked) but
#: also covers the address behind it.
REDUNDANT = {
    "xehpc": {21, 22, 69, 74, 76, 79},
    "xehpg": {25, 28, *range(42, 57), 64, 65, 93, 95, *range(100, 118), *range(129, 144)},
}


@pytest.mark.parametrize("platform", always([(name,) for name in GEMMS], lambda n, case: case[0] == "xehpc"))
def test_mutations_are_noticed(sim: Any, platform: str) -> None:
    """Behind the prologue, the loss of any annotation that matters is a finding; what remains correct stays exact."""
    gemm = GEMMS[platform]
    text = (sim.kernels / gemm.file).read_text()
    entry = text[: text.index("entry:")].count("\n")
    unnoticed = {}
    for number, mutant in mutants(text):
        if number < entry:
            continue
        try:
            report, got, want = gemm.run(sim, platform, mutant, hardware_ids=True, max_findings=1)
        except sim.NotAssembled:
            continue
        if not report.findings:
            np.testing.assert_array_equal(got, want)
            unnoticed[number] = text.splitlines()[number] + " -> " + mutant.splitlines()[number]
    assert set(unnoticed) == REDUNDANT[platform], "\n".join(f"{n}: {line}" for n, line in unnoticed.items())
