"""Random problems and configs all the way: generated, assembled, run on the strict simulator, exactly right.

Inputs are small integers, and then, where the types have such, the same with a few infinities and NaNs somewhere.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, note, reject, settings
from hypothesis import strategies as st

from convgen import driver
from convgen.backends.target import get
from convgen.ir.error import UserError
from convgen.plan.config import Config
from convgen.plan.plan import Reduction, make_plan
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul, Problem
from convgen.problem.post_ops import Binary, Eltwise, Prelu, Sum
from convgen.run import reference, specials, verdict
from convgen.run.code import OutputRegion
from tests.product.problems import expect_right
from tests.strategies import FIXED, SWEEP, Case, cases, input_types, problems, products

TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpc", "xehpg", "sm_80", "sm_90")


PLACES = st.integers(0, 1 << 16)  #: where infinities and NaNs are: seeds


def with_specials(problem: Problem, place: int) -> dict[str, npt.NDArray[Any]] | None:
    """The inputs with infinities and NaNs that some sums read; None where no type has any."""
    random = np.random.default_rng(place)
    fills = reference.fills(problem)
    for spec in problem.outputs:
        rows, columns = (
            np.arange(size)[random.integers(size) :][: random.integers(1, 24)]
            for size in reference.output_shape(problem, spec.name)
        )
        fills = specials.placed(problem, fills, [OutputRegion(spec.name, rows, columns)] * 2)
    return {name: np.asarray(fill) for name, fill in fills.items()} if specials.count(fills) else None


def check(problem: Problem, target: str, config: Config | None, place: int) -> None:
    if problem.is_empty:
        assert not driver.compile(driver.build(problem, target)).record.launches
        return
    program = driver.build(problem, target, config)
    try:
        code = driver.compile(program)
    except UserError as error:  # the plan only estimates registers
        if config is None or "free words" not in str(error):
            raise
        reject()
    note(f"{problem}\n{target} {code.config}")
    _is_right(problem, verdict.run(code))
    if (code.keeps_padding_out or not specials.pads(problem)) and (arrays := with_specials(problem, place)):
        note(f"infinities and NaNs placed by {place}")
        _is_right(problem, verdict.run(code, arrays=arrays))


def _is_right(problem: Problem, outcome: verdict.Outcome) -> None:
    assert outcome.checked == sum(prod(t.dims) for t in problem.outputs)
    expect_right(outcome)


@st.composite
def targeted(draw: st.DrawFn, most: int, channels: int) -> tuple[Conv, str]:
    """A target, and a problem of types that it multiplies."""
    target = draw(st.sampled_from(TARGETS))
    types = input_types(get(target).facts)
    return draw(problems(most=most, channels=channels, types=types, unusual=True)), target


@st.composite
def targeted_products(draw: st.DrawFn) -> tuple[Matmul, str]:
    target = draw(st.sampled_from(TARGETS))
    return draw(products(types=input_types(get(target).facts))), target


@settings(FIXED, max_examples=5)
@given(targeted_products(), PLACES)
def test_products(case: tuple[Matmul, str], place: int) -> None:
    check(*case, None, place)


@pytest.mark.sweep
@SWEEP
@given(targeted_products(), PLACES)
def test_many_products(case: tuple[Matmul, str], place: int) -> None:
    check(*case, None, place)


@settings(FIXED, max_examples=6)
@given(targeted(12, 64), PLACES)
def test_problems(case: tuple[Conv, str], place: int) -> None:
    check(*case, None, place)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("target", TARGETS)
def test_problems_with_configs(target: str) -> None:
    @settings(FIXED, max_examples=2)
    @given(cases(get(target).facts, work=1000, unusual=True), PLACES)
    def run(case: Case, place: int) -> None:
        check(case[0], target, case[1], place)

    run()


@pytest.mark.sweep
@SWEEP
@given(targeted(16, 96), PLACES)
def test_many_problems(case: tuple[Conv, str], place: int) -> None:
    check(*case, None, place)


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_many_problems_with_configs(target: str) -> None:
    @settings(SWEEP, max_examples=100)
    @given(cases(get(target).facts, most=12, work=2000, unusual=True), PLACES)
    def run(case: Case, place: int) -> None:
        check(case[0], target, case[1], place)

    run()


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_many_slices_that_add_to_padded_blocks(target: str) -> None:
    """Random configs seldom add slices by atomics, and then seldom floats to a result with padding: here many do."""

    @settings(SWEEP, max_examples=40)
    @given(cases(get(target).facts, most=12, work=2000, sums=True), PLACES)
    def run(case: Case, place: int) -> None:
        check(case[0], target, case[1], place)

    run()


@pytest.mark.sweep
def test_slices_that_add_floats_to_padded_blocks_are_drawn() -> None:
    drawn: list[Case] = []

    @settings(FIXED, max_examples=100)
    @given(cases(get("gfx942").facts, most=12, work=2000, sums=True))
    def draw(case: Case) -> None:
        drawn.append(case)

    draw()
    assert (
        sum(
            problem.acc_type != "s32"
            and "padded blocks" in traits(problem, config)
            and make_plan(problem, config, get("gfx942").facts).reduction is Reduction.ATOMIC
            for problem, config in drawn
        )
        >= 10
    )


def traits(problem: Conv, config: Config) -> set[str]:
    """What is special about a problem and its config."""
    axes, types = problem.spatial, {t.dtype for t in problem.tensors}
    facts = {
        "no images": problem.mb == 0,
        "one group": problem.has_groups,
        "strided": any("x" in tag and tag[0].isdigit() for tag in (problem.stag, problem.wtag, problem.dtag)),
        "blocked": any(not t.layout.is_plain for t in problem.tensors),
        "padded blocks": any(t.layout.padded_dims != t.dims for t in problem.outputs),
        "stride and dilation": any(a.s > 1 and a.d for a in axes),
        "common factor": any(gcd(a.s, a.d + 1) > 1 for a in axes),
        "stride above kernel": any(a.s > a.k for a in axes),
        "stride above input": any(a.s > a.i for a in axes),
        "kernel above input": any(a.k > a.i for a in axes),
        "padding of the kernel": any(a.p >= a.extent for a in axes),
        "padding on both sides": any(a.p >= a.extent <= a.pad_r for a in axes),
        "negative right": any(a.pad_r < 0 for a in axes),
        "negative left": any(a.p < 0 for a in axes),
        "deterministic": problem.deterministic,
        "tf32": problem.fpmath == "tf32" and problem.inputs[0].dtype == "f32",
        "wider output": types >= {"f16", "f32"},
        "narrower output": problem.inputs[0].dtype == "f32" and "bf16" in types,
        "scaled": any(s.value is not None for s in problem.scales),
        "scaled along dims": any(s.value is None and s.mask != "common" for s in problem.scales),
        "chained": len(problem.post_ops) > 1,
        "narrow integers of floats": types >= {"f16", "s8"},
        "sliced": config.slices > 1,
        "uneven slices": config.slices == 3,
        "reordered": bool(config.reorder),
    }
    kinds = {Eltwise: "function", Sum: "sum", Binary: "operand", Prelu: "slopes"}
    names = {
        *(kinds[type(op)] for op in problem.post_ops),
        problem.direction.value,
        f"{problem.ndims - 2}-D",
        *types,
        config.taps,
        config.acc,
        f"{config.slots} slots",
    }
    return names | {name for name, there in facts.items() if there}


@pytest.mark.sweep
def test_every_trait_is_drawn() -> None:
    found: set[str] = set()

    @settings(FIXED, max_examples=300)
    @given(problems(most=12, channels=64, unusual=True), cases(get("gfx942").facts, most=12, work=2000, unusual=True))
    def draw(problem: Conv, case: Case) -> None:
        found.update(traits(*case), traits(problem, case[1]))

    draw()
    wanted = {
        *("FWD_B", "FWD_D", "FWD_I", "BWD_D", "BWD_W", "BWD_WB", "1-D", "2-D", "3-D"),
        *("f16", "bf16", "f32", "f64", "s8", "u8", "s32"),
        *("split", "chunk", "fused", "images", "runs", "resident", "v", "a", "1 slots", "2 slots", "3 slots"),
        *(
            "no images",
            "one group",
            "strided",
            "blocked",
            "padded blocks",
            "stride and dilation",
            "common factor",
            "stride above kernel",
        ),
        *("stride above input", "kernel above input", "padding of the kernel", "padding on both sides"),
        *("negative right", "negative left", "deterministic", "tf32", "wider output", "narrower output"),
        *("sliced", "uneven slices", "reordered", "scaled", "scaled along dims", "chained", "function", "sum"),
        *("operand", "slopes", "narrow integers of floats"),
    }
    assert found == wanted
