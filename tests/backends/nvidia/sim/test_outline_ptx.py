"""Outlined runs: they go the way of whole runs and observe what these access, but compute no data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.nvidia.sim.recording import Unrecorded
from convgen.backends.nvidia.sim.state import WarpGroup
from convgen.backends.nvidia.sim.step import Step
from convgen.backends.simulation import SimReport
from tests.backends.nvidia.sim.test_ring_ptx import CHANGES, TEXT, operands, run_ring

Run = Callable[..., SimReport]
Array = npt.NDArray[Any]


class Observed:
    """All accesses to global memory, by kind and buffer: each byte offset with the number of accesses."""

    def __init__(self) -> None:
        self.accesses: Counter[tuple[str, str, int, int]] = Counter()

    def __call__(self, kind: str, buffer: str, groups: Array, offsets: Array, size: int) -> None:
        self.accesses.update((kind, buffer, offset, size) for offset in offsets.tolist())


class Executed(Unrecorded):
    """The instructions of each warp, in order."""

    def __init__(self) -> None:
        self.texts: dict[int, list[str]] = {}

    def execute(self, g: WarpGroup, step: Step) -> None:
        for warp in g.wave.tolist():
            self.texts.setdefault(warp, []).append(step.instruction.text)


def test_a_ring_is_observed_without_its_data(run: Run) -> None:
    a, b, c = operands()
    whole, outlined = Observed(), Observed()
    run_ring(run, TEXT, a, b, c, observe=whole)
    empty = np.zeros_like(c)
    report = run_ring(run, TEXT, a, b, empty, observe=outlined, recorder=Unrecorded())
    assert outlined.accesses == whole.accesses
    assert c.any()
    assert not empty.any()
    assert report.instructions["mma"] == 2 * 4 * 4 * 2 * 2  # consumers, warps, blocks, steps, tiles


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change[0]} -> {change[1]}")
def test_a_broken_ring_ends(run: Run, change: tuple[str, str, set[str]]) -> None:
    cut, instead, kinds = change
    if kinds != {"refused"}:
        run_ring(run, TEXT.replace(cut, instead), *operands(), recorder=Unrecorded())


LOADED_COUNT = """
    mov.u32 %r9, s; ld.global.u32 %r1, [%a0]; st.shared.u32 [%r9], %r1; bar.sync 0; ld.shared.u32 %r2, [%r9];
    mov.u32 %r3, 0;
LOOP:
    add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, %r2; @%p1 bra LOOP;
    st.global.u32 [%a0], %r3;
"""


def test_loaded_data_that_decide_are_computed(run: Run, text: Callable[..., str]) -> None:
    recorder, counts = Executed(), np.full(32, 7, np.uint32)
    run(text(LOADED_COUNT, 1, module=".shared .b8 s[16];"), counts, recorder=recorder)
    assert sum("add.u32" in each for each in recorder.texts[0]) == 7
    assert (counts == 7).all()  # the store is observed, not executed; the count was there


FLAGGED = """
    ld.global.f32 %f1, [%a0]; fma.rn.f32 %f2, %f1, %f1, %f1; setp.eq.f32 %p1, %f2, %f2; vote.sync.all.pred %p2, %p1, -1;
    @!%p2 bra SLOW;
    bra DONE;
SLOW:
    st.global.f32 [%a0], %f1;
DONE:
"""


def test_sums_that_decide_are_finite(run: Run, text: Callable[..., str]) -> None:
    observed = Observed()
    run(text(FLAGGED, 1), np.full(32, np.nan, np.float32), observe=observed, recorder=Unrecorded())
    assert {kind for kind, *_ in observed.accesses} == {"load"}
