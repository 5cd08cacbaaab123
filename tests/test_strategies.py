"""The random cases reach what they are there for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from convgen.backends.target import get
from convgen.ir.expr import Shuffle
from convgen.ir.mutate import postorder
from convgen.ir.node import Node
from convgen.ir.stmt import AtomicView, Copy
from convgen.kernels import launches
from convgen.passes.messages.linear import linearize
from convgen.plan.plan import Reduction, make_plan
from tests.strategies import FIXED, Case, cases

FACTS = get("gfx942").facts


def features(case: Case) -> Iterator[str]:
    """What a case has that others may not."""
    problem, config = case
    plan = make_plan(problem, config, FACTS)
    program, _ = launches.build(plan)
    yield from (problem.direction.value, f"{problem.ndims}-D", plan.reduction.name, plan.mma.atom.a_elem.name)
    if plan.mma.atom.rounds_to:
        yield plan.mma.atom.rounds_to
    for kernel in program.kernels:
        yield from (name for n in postorder(kernel) for name in _of_node(n))


def _of_node(n: Node) -> Iterator[str]:
    if isinstance(n, (AtomicView, Shuffle)):
        yield type(n).__name__
    if isinstance(n, Copy):
        if n.loaded != n.layout:
            yield "a copy that turns"
        if any(d.reversed for axis in linearize(n.view).axes for d in axis):
            yield "a reversed dim"


@pytest.mark.sweep
def test_cases_reach_everything() -> None:
    found: set[str] = set()

    @settings(FIXED, max_examples=1000)
    @given(cases(FACTS))
    def collect(case: Case) -> None:
        found.update(features(case))

    collect()
    wanted = {
        "FWD_B",
        "FWD_D",
        "FWD_I",
        "BWD_D",
        "BWD_W",
        "BWD_WB",
        "3-D",
        "4-D",
        "5-D",
        "f16",
        "bf16",
        "f32",
        "f64",
        "s8",
    }
    wanted |= {m.name for m in Reduction} | {"AtomicView", "Shuffle", "a copy that turns", "a reversed dim", "xf32"}
    assert found == wanted


def test_fast_tests_are_the_same_everywhere_and_sweeps_are_not(request: pytest.FixtureRequest) -> None:
    """Of all tests that take examples and were collected beside this one."""
    drawn = [item for item in request.session.items if hasattr(getattr(item, "obj", None), "hypothesis")]
    for item in drawn:
        used = item.obj._hypothesis_internal_use_settings  # type: ignore[attr-defined]
        assert used.derandomize == (item.get_closest_marker("sweep") is None), item.nodeid
        assert used.database is None, item.nodeid
