"""Circular loops: what they read ahead, how long they wait, and that products are right for every trip count."""

from __future__ import annotations

import re
from itertools import takewhile

import pytest

import convgen as cg
from convgen.driver import Build
from convgen.ir.mutate import postorder, statements
from convgen.ir.program import Kernel
from convgen.ir.stmt import For, MatrixRead, stmts_of
from convgen.passes import pipeline
from convgen.problem.matmul import parse_problem
from convgen.run import verdict

CONFIG = "tile=16x8x64 waves=1x1 mma=8x16x16 copy=direct"


def build(k: int, slots: int, target: str = "sm_80") -> Build:
    return cg.build(parse_problem(f"--dt=f16 8x{k}:{k}x16"), target=target, config=f"{CONFIG} slots={slots}")


def lowered(program: Build) -> Kernel:
    return pipeline.run(program.ir.kernels[0], program.target.facts)


def circular(kernel: Kernel) -> list[For]:
    return [s for s in statements(kernel.body) if isinstance(s, For) and s.circular]


def test_the_first_step_is_read_in_the_iteration_before() -> None:
    (loop,) = circular(lowered(build(256, 2)))
    reads = [n for n in stmts_of(loop.body) if isinstance(n, MatrixRead)]
    assert [read.site.slot for read in reads] == [0, 0, 0, 0, 1, 1]  # two of six belong to the next block
    assert {read.var for read in reads[4:]} <= set(loop.yields)


@pytest.mark.parametrize("slots", [2, 3, 4])
def test_a_barrier_waits_for_one_block(slots: int) -> None:
    """Behind the prologue all other blocks stay pending; in the loop, one slot is free."""
    waits = re.findall(r"cp\.async\.wait_group (\d+)", cg.compile(build(640, slots)).asm)
    assert [int(n) for n in waits[:2]] == [slots - 1, slots - 2]


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("k", [64, 128, 192, 200, 256, 320, 440, 640])
def test_products_of_any_length_are_right(slots: int, k: int) -> None:
    program = build(k, slots)
    assert len(circular(lowered(program))) == (-(-k // 64) > slots)
    assert verdict.run(cg.compile(program)).passed


def test_a_product_in_slices_is_right() -> None:
    program = cg.build(parse_problem("--dt=f16 8x1000:1000x16"), target="sm_90", config=f"{CONFIG} slots=3 slices=2")
    assert verdict.run(cg.compile(program)).passed


def test_short_products_repeat_their_body() -> None:
    """Two steps along K hide no barrier."""
    words = "tile=16x8x32 waves=1x1 mma=8x16x16 copy=direct slots=3"
    kernel = lowered(cg.build(parse_problem("--dt=f16 8x640:640x16"), target="sm_80", config=words))
    assert not circular(kernel)
    assert any(isinstance(n, MatrixRead) for n in postorder(kernel.body))


def test_targets_with_slots_in_instructions_have_no_circular_loops() -> None:
    words = "tile=32x32x64 waves=1x1 mma=32x32x16 copy=direct slots=3"
    kernel = lowered(cg.build(parse_problem("--dt=f16 32x1024:1024x32"), target="gfx950", config=words))
    assert not circular(kernel)


def test_a_predicate_stops_the_copies_of_the_last_iterations() -> None:
    lines = cg.compile(build(640, 3)).asm.split("LOOP")[1].splitlines()
    copies = [each.strip() for each in lines if "cp.async.c" in each and "group" not in each]
    assert copies
    assert all(each.startswith("@%p") for each in copies)
    assert not any("JOIN" in each for each in takewhile(lambda each: "END" not in each, lines))
