"""The loop of a product has the instructions that it needs, and none to move sums or to compute addresses again."""

from __future__ import annotations

import re
from collections import Counter

import pytest

import convgen as cg
from convgen.backends.nvidia.analyze import analyze
from convgen.backends.nvidia.ptx import at
from convgen.problem.matmul import parse_problem
from convgen.run import verdict


def loop(line: str, config: str | None = None) -> list[str]:
    """The lines of the first loop of a problem's kernel."""
    text = cg.compile(cg.build(parse_problem(line), target="sm_90", config=config)).asm
    found = re.search(r"^LOOP_\d+:\n(.*?bra\.uni LOOP_\d+;)", text, re.M | re.S)
    assert found
    return [each.strip() for each in found[1].splitlines()]


def names(lines: list[str]) -> Counter[str]:
    """The kinds of instructions, by the word before the first dot."""
    return Counter(re.sub(r"^@\S+ ", "", each).split(".")[0] for each in lines)


def test_a_large_product_computes_no_address_twice() -> None:
    """One address of either input goes on, and the slot; these are moved, and other copies take immediate offsets."""
    lines = loop("--dt=f16 4096x4096:4096x4096")
    count = names(lines)
    assert count["mma"] >= 128
    assert set(count) == {"mma", "ldmatrix", "cp", "bar", "add", "mul", "mov", "setp", "selp", "bra"}
    assert sum(each.startswith("add.u64") for each in lines) == 2
    assert count["mov"] == 3
    copies = [each for each in lines if "cp.async" in each and "group" not in each]
    assert all(each.startswith("@%p") for each in copies)  # a predicate says whether a block is left
    assert len({re.sub(r"[+-]\d+\]", "]", each.split("[")[2].split(",")[0]) for each in copies}) == 2
    sums = re.compile(r"mma\S+ (\{[^}]*\}), \{[^}]*\}, \{[^}]*\}, (\{[^}]*\})")
    assert all(found[1] == found[2] for each in lines if (found := sums.match(each)))


def test_loads_take_immediate_offsets() -> None:
    lines = loop("--dt=f16 256x4096:4096x256", "tile=64x64x32 waves=2x2 mma=8x16x16 slots=2")
    loads = [each for each in lines if "ld.global" in each]
    assert len({re.sub(r"[+-]\d+\]", "]", each.split("[")[1].split(";")[0]) for each in loads}) <= 2
    assert names(lines)["add"] <= 4


@pytest.mark.parametrize("config", ["slots=1", "slots=2", "slots=3 copy=direct"])
def test_sums_in_place_are_right(config: str) -> None:
    problem = parse_problem("--dt=f16 64x400:400x64")
    words = f"tile=32x32x32 waves=1x2 mma=8x16x16 {config}"
    assert verdict.run(cg.compile(cg.build(problem, target="sm_90", config=words))).passed


def test_offsets_below_zero_are_written_as_the_assembler_takes_them() -> None:
    """ptxas refuses `[%rd1-16]`."""
    assert at("%rd1", -16) == "%rd1+-16"
    assert at("%rd1", 0) == "%rd1"


def test_a_loop_that_waits_is_a_part_of_the_loop_around_it() -> None:
    config = "tile=64x64x64 waves=1x4 mma=64x64x16 slots=2 copy=tensor"
    code = cg.compile(cg.build(parse_problem("--dt=f16 --wtag=ba 64x256:256x64"), target="sm_90a", config=config))
    (kernel,) = analyze(code.asm.encode(), "code").kernels
    assert kernel.hot.mix["mma"] == 4
    assert kernel.hot.is_loop
