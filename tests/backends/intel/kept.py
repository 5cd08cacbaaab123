"""Kernels of the kept list (`tests/golden/kept`) for Xe: their text, and the instructions that its lines stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import pytest

from convgen import driver
from convgen.backends import target as targets
from convgen.backends.intel.isa import XeInstruction
from convgen.backends.stages import Emitted, MachineKernel, Stage
from convgen.passes import pipeline
from convgen.problem.matmul import parse_problem
from tests.conftest import FOLDER

TARGETS = "xehpg", "xehpc", "xe2"
IN_EVERY_RUN = 3  #: cases a target; `./dev test-all` takes all


def rows(target: str) -> Sequence[tuple[str, str]]:
    """The problem and the config of each case."""
    lines = (FOLDER / "kept" / f"{target}.txt").read_text().splitlines()
    return [(problem, config) for _, problem, config in (line.split(" | ") for line in lines)]


def cases(*wanted: str) -> Sequence[object]:
    """Parameters (target, problem, config) of a test: a few, and all others as a sweep."""
    found = []
    for target in wanted:
        kept = rows(target)
        few = range(0, len(kept), len(kept) // IN_EVERY_RUN)
        for n, (problem, config) in enumerate(kept):
            marks = [] if n in few else [pytest.mark.sweep]
            found.append(pytest.param(target, problem, config, marks=marks, id=f"{target}-{n}"))
    return found


@cache
def emitted(target: str, problem: str, config: str) -> Sequence[tuple[Emitted, MachineKernel]]:
    """The kernels of a case as text, each with what the text was printed from; padding takes part in sums."""
    to, program = targets.get(target), driver.build(parse_problem(problem), target, f"{config} padding=zeros")
    found = []
    for kernel in program.ir.kernels:
        printed: list[MachineKernel] = []

        def observe(stage: Stage, before: MachineKernel, _after: MachineKernel, _seconds: float) -> None:
            if stage.name == "print":
                printed.append(before)  # noqa: B023 (called within the loop)

        made = to.emit(pipeline.run(kernel, to.facts), observe=observe)
        found.append((made, printed[0]))
    return found


def blocks(made: Emitted, printed: MachineKernel) -> Iterator[tuple[str, Sequence[tuple[str, XeInstruction]]]]:
    """The label of each block, with its lines of text and the instructions that these stand for."""
    lines = [line for line in made.text.splitlines() if line.strip() and not line.startswith("//")]
    at = iter(lines)
    for n, block in enumerate(printed.code.blocks):
        label = next(at).partition(":")[0] if n else block.label
        assert label == block.label
        yield label, [(next(at), i) for i in block.instructions if isinstance(i, XeInstruction)]
    assert not set(at) - {"        nop"}
