"""Every pass keeps the meaning: the interpreter agrees with numpy before the pipeline and after each of its passes."""

from __future__ import annotations

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from convgen.backends.target import get
from convgen.ir.facts import TargetFacts
from convgen.ir.program import Kernel
from convgen.ir.verify import Level, verify
from convgen.passes import pipeline
from convgen.passes.pipeline import OPTIMISING, PASSES, Pass
from tests.passes.running import assert_right, tile_kernels
from tests.strategies import FIXED, SWEEP, Case, cases

GFX942 = get("gfx942").facts
XE = ("xehpc", "xehpg")

OPTIONAL = tuple(p.name for p in PASSES if p.kind == OPTIMISING)

FEW = settings(FIXED, max_examples=10)


def check_every_pass(case: Case, facts: TargetFacts = GFX942) -> None:
    """The kernels are right and well-formed at every stage of the pipeline, each among the others as they were."""
    problem, config = case
    kernels = tile_kernels(problem, config, facts)
    assert_right(problem, *kernels)

    for n, kernel in enumerate(kernels):
        level: Level = "tile"

        def observe(p: Pass, before: Kernel, after: Kernel, seconds: float, n: int = n) -> None:
            nonlocal level
            level = "message" if p.level == "message" or p.name == "lower_tiles" else level
            note(f"{problem} {config} after {p.name}")
            verify(after, level)
            if after is not before:
                assert_right(problem, *kernels[:n], after, *kernels[n + 1 :])

        pipeline.run(kernel, facts, observe=observe)


def check_without(case: Case, disabled: tuple[str, ...], facts: TargetFacts = GFX942) -> None:
    """The result is right without some optimising passes."""
    problem, config = case
    kernels = tile_kernels(problem, config, facts)
    note(f"{problem} {config} without {disabled}")
    assert_right(problem, *(pipeline.run(k, facts, disable=disabled) for k in kernels))


DISABLED = [*((name,) for name in OPTIONAL), OPTIONAL]


@settings(FEW, max_examples=3)
@given(cases(GFX942))
def test_each_pass_keeps_the_meaning(case: Case) -> None:
    check_every_pass(case)


@pytest.mark.parametrize("disabled", DISABLED, ids="+".join)
@settings(FEW, max_examples=2)
@given(case=cases(GFX942))
def test_optimising_passes_may_be_left_out(disabled: tuple[str, ...], case: Case) -> None:
    check_without(case, disabled)


@pytest.mark.parametrize("target", XE)
@settings(FEW, max_examples=2)
@given(data=st.data())
def test_each_pass_keeps_the_meaning_on_xe(target: str, data: st.DataObject) -> None:
    """Flat addresses, blocks, halves of barriers; on xehpg, instructions of two subgroups."""
    facts = get(target).facts
    check_every_pass(data.draw(cases(facts)), facts)


@pytest.mark.parametrize("target", XE)
@settings(FEW, max_examples=4)
@given(data=st.data())
def test_optimising_passes_may_be_left_out_on_xe(target: str, data: st.DataObject) -> None:
    facts = get(target).facts
    check_without(data.draw(cases(facts)), data.draw(st.sampled_from(DISABLED)), facts)


@pytest.mark.parametrize("target", ["gfx90a", "gfx950", "sm_90"])
@settings(FEW, max_examples=4)
@given(data=st.data())
def test_facts_of_other_targets(target: str, data: st.DataObject) -> None:
    facts = get(target).facts
    problem, config = data.draw(cases(facts))
    kernels = tile_kernels(problem, config, facts)
    assert_right(problem, *(pipeline.run(k, facts) for k in kernels))


@pytest.mark.sweep
@pytest.mark.parametrize("target", XE)
@settings(SWEEP, max_examples=100)
@given(data=st.data())
def test_each_pass_keeps_the_meaning_of_many_on_xe(target: str, data: st.DataObject) -> None:
    facts = get(target).facts
    case = data.draw(cases(facts))
    check_every_pass(case, facts)
    check_without(case, data.draw(st.sampled_from(DISABLED)), facts)


@pytest.mark.sweep
@SWEEP
@given(cases(GFX942))
def test_each_pass_keeps_the_meaning_of_many(case: Case) -> None:
    check_every_pass(case)


@pytest.mark.sweep
@pytest.mark.parametrize("disabled", DISABLED, ids="+".join)
@settings(SWEEP, max_examples=60)
@given(case=cases(GFX942))
def test_optimising_passes_may_be_left_out_of_many(disabled: tuple[str, ...], case: Case) -> None:
    check_without(case, disabled)
