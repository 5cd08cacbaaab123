"""Defects of DG2 and Ponte Vecchio are gone round, read from the text of kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest

from convgen import driver
from convgen.backends import target as targets
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Lane
from convgen.ir.types import s32
from convgen.passes import pipeline
from convgen.problem.conv import Conv
from tests.backends.intel import kept

_MASKED_LOAD = re.compile(r"\((?:W&)?~?f\d\.\d\)\s+(?:load|atomic_\w+)\.\S+ \(\d+\|M0\)\s+r\d+")
_MATRIX = re.compile(r"dpasw?\.8x8 \(8\|M0\)\s+r\d+:\S+\s+(?:r\d+|null):\S+\s+r(\d+):")
_REFRESHED = re.compile(r"\s+mov \(8\|M0\)\s+r(\d+)\.0<1>:ud\s+r(\d+)\.0<1;1,0>:ud")


def stale(lines: Sequence[str]) -> Iterator[str]:
    """Matrix instructions of a block that may read a source 1 of before: nothing has written it since."""
    refreshed: set[str] | None = set()  # None once a matrix instruction has been seen to
    for line in lines:
        if (found := _REFRESHED.match(line)) and found[1] == found[2] and refreshed is not None:
            refreshed.add(found[1])
        elif (found := _MATRIX.search(line)) and refreshed is not None:
            if found[1] not in refreshed:
                yield line
            refreshed = None
        elif _MASKED_LOAD.match(line):
            refreshed = set()


@pytest.mark.parametrize(("target", "problem", "config"), kept.cases("xehpg"))
def test_no_matrix_instruction_reads_an_old_source_1(target: str, problem: str, config: str) -> None:
    for made, printed in kept.emitted(target, problem, config):
        blocks = [[line for line, _ in lines] for _, lines in kept.blocks(made, printed)]
        if any(_MASKED_LOAD.match(line) for lines in blocks for line in lines):
            assert not [line for lines in blocks for line in stale(lines)]
        else:
            assert "read anew" not in made.text


@pytest.mark.parametrize(("target", "follows"), [("xehpg", True), ("xehpc", True), ("xe2", False)])
def test_an_instruction_lies_behind_the_end(target: str, follows: bool) -> None:
    (problem, config), *_ = kept.rows(target)
    for made, _ in kept.emitted(target, problem, config):
        *_, last = made.text.splitlines()
        assert last.strip() == "nop" if follows else "EOT" in last


def ends(target: str, problem: str, config: str) -> Iterator[list[str]]:
    """Of each kernel the instructions ahead of the last message, without their comments."""
    made = driver.build(Conv.parse(problem, dir="BWD_W", dt="f16"), target, config)
    to = targets.get(target)
    for kernel in made.ir.kernels:
        lines = to.emit(pipeline.run(kernel, to.facts)).text.splitlines()
        (end,) = (n for n, line in enumerate(lines) if "EOT" in line)
        yield [line.partition("//")[0] for line in lines[end - 6 : end]]


_ADDED = "mb2ic32ih8oc32oh8kh3ph1"


@pytest.mark.parametrize(
    ("target", "mma", "fenced"), [("xehpg", "8x8x16", True), ("xehpc", "16x8x16", False), ("xe2", "16x8x16", False)]
)
def test_what_is_added_is_on_its_way_when_a_thread_ends(target: str, mma: str, fenced: bool) -> None:
    config = f"tile=32x32x16 waves=2x2 mma={mma} slots=2 slices=2 sum=last"
    for lines in ends(target, _ADDED, config):
        fences = [n for n, line in enumerate(lines) if "0x0210651F" in line]
        assert bool(fences) == fenced
        if fences:
            assert "mov (8|M0)" in "".join(lines[fences[0] + 1 :])  # reads the response


def test_pipes_settle_ahead_of_the_end_of_a_large_file() -> None:
    for size, registers, settles in ((8, 128, False), (80, 256, True)):
        k = KernelBuilder("k", width=8)
        x, y = (k.surface(k.buffer(name, s32, 8 * size)) for name in "xy")
        held = [k.global_load(f"v{n}", s32, x, Lane() * 4 + 32 * n) for n in range(size)]
        for n, value in enumerate(held):
            k.global_store(y, value, Lane() * 4 + 32 * n)
        to = targets.get("xehpg")
        text = to.emit(pipeline.run(k.done(), to.facts)).text
        assert f"//.grf_count {registers}" in text
        assert len(re.findall(r"csel \(4\|M0\) \(eq\)f0\.0", text)) == 2 * settles
