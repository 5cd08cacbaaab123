"""Every pass keeps the meaning: the interpreter agrees with numpy before the pipeline and after each of its passes."""

from __future__ import annotations

import pytest
from hypothesis import given, note, settings

from convgen.backends.target import get
from convgen.ir.program import Kernel
from convgen.ir.verify import Level, verify
from convgen.passes import pipeline
from convgen.passes.pipeline import OPTIMISING, PASSES, Pass
from tests.passes.running import assert_right, tile_kernel
from tests.strategies import FIXED, Case, cases

GFX942, GFX950 = get("gfx942").facts, get("gfx950").facts

OPTIONAL = tuple(p.name for p in PASSES if p.kind == OPTIMISING)

FEW = settings(FIXED, max_examples=18)
MANY = settings(FEW, max_examples=200)


def check_every_pass(case: Case) -> None:
    """The kernel is right and well-formed at every stage of the pipeline."""
    problem, config = case
    kernel = tile_kernel(problem, config, GFX942)
    assert_right(problem, kernel)
    level: Level = "tile"

    def observe(p: Pass, before: Kernel, after: Kernel, seconds: float) -> None:
        nonlocal level
        level = "message" if p.level == "message" or p.name == "lower_tiles" else level
        note(f"{problem} {config} after {p.name}")
        verify(after, level)
        if after is not before:
            assert_right(problem, after)

    pipeline.run(kernel, GFX942, observe=observe)


def check_without(case: Case, disabled: tuple[str, ...]) -> None:
    """The result is right without some optimising passes."""
    problem, config = case
    kernel = tile_kernel(problem, config, GFX942)
    note(f"{problem} {config} without {disabled}")
    assert_right(problem, pipeline.run(kernel, GFX942, disable=disabled))


DISABLED = [*((name,) for name in OPTIONAL), OPTIONAL]


@FEW
@given(cases(GFX942))
def test_each_pass_keeps_the_meaning(case: Case) -> None:
    check_every_pass(case)


@pytest.mark.parametrize("disabled", DISABLED, ids="+".join)
@settings(FEW, max_examples=8)
@given(case=cases(GFX942))
def test_optimising_passes_may_be_left_out(disabled: tuple[str, ...], case: Case) -> None:
    check_without(case, disabled)


@settings(FEW, max_examples=6)
@given(cases(GFX950))
def test_facts_of_another_target(case: Case) -> None:
    problem, config = case
    assert_right(problem, pipeline.run(tile_kernel(problem, config, GFX950), GFX950))


@pytest.mark.sweep
@MANY
@given(cases(GFX942))
def test_each_pass_keeps_the_meaning_of_many(case: Case) -> None:
    check_every_pass(case)


@pytest.mark.sweep
@pytest.mark.parametrize("disabled", DISABLED, ids="+".join)
@settings(MANY, max_examples=60)
@given(case=cases(GFX942))
def test_optimising_passes_may_be_left_out_of_many(disabled: tuple[str, ...], case: Case) -> None:
    check_without(case, disabled)
