"""The shared problem list on the simulator: every output of every problem exactly right, the rest refused in a line."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from time import perf_counter

import pytest

from convgen import driver
from convgen.problem.conv import Conv
from convgen.run import verdict
from tests.product.problems import chosen, expect_right, generated, listed

F16, BF16 = generated(), generated("bf16")
SMALL = [p for p in F16 if p.macs < 20_000_000]
UNSAMPLED = 10_000_000  #: wave-instructions up to which all workgroups run
GROUPS = 24

Row = Callable[[str, object], None]


def name(problem: Conv) -> str:
    return f"{problem.src_type}-{problem.descriptor}"


def test_the_list_is_complete() -> None:
    assert len(F16) == 52
    assert len(listed()) - len(F16) == 17


def check(problem: Conv, record_property: Row, groups: int | None) -> None:
    """Run the problem; report its row of the table."""
    start = perf_counter()
    code = driver.compile(driver.build(problem))
    outcome = verdict.run(code, groups=groups)
    executed = sum(outcome.instructions.values())
    seconds = perf_counter() - start
    sampled = "all" if groups is None else f"{groups} tiles"
    columns = (
        problem.descriptor,
        problem.src_type,
        code.config,
        sampled,
        outcome.checked,
        executed,
        f"{seconds:.1f} s",
    )
    record_property("row", "  ".join(map(str, columns)))
    expect_right(outcome)
    if groups is None:
        assert outcome.checked == prod(problem.dst_dims)


def affordable_groups(problem: Conv) -> int | None:
    """None, all workgroups, if one tile's instructions times all tiles are few enough."""
    code = driver.compile(driver.build(problem))
    assert code.tiles is not None
    one = verdict.run(code, groups=1)
    tiles = sum(m * n for m, n in code.tiles.grids)
    return None if sum(one.instructions.values()) * tiles <= UNSAMPLED else GROUPS


@pytest.mark.parametrize("problem", chosen(SMALL, 4), ids=name)
def test_small_problems(problem: Conv, record_property: Row) -> None:
    check(problem, record_property, None)


def test_a_resnet_layer(record_property: Row) -> None:
    check(Conv.parse("mb1ic64ih56oc64oh56kh3ph1", dir="FWD_D", dt="f16"), record_property, 8)


@pytest.mark.sweep
@pytest.mark.parametrize("problem", [*F16, *chosen(BF16, 10)], ids=name)
def test_all_problems(problem: Conv, record_property: Row) -> None:
    check(problem, record_property, affordable_groups(problem))


GROUPED = [p for p in listed() if p.groups > 1 and p.src_type == "f16"]


@pytest.mark.parametrize("problem", chosen(GROUPED, 3), ids=name)
def test_a_few_of_groups(problem: Conv, record_property: Row) -> None:
    check(problem, record_property, 2)


@pytest.mark.sweep
@pytest.mark.parametrize("problem", GROUPED, ids=name)
def test_all_of_groups(problem: Conv, record_property: Row) -> None:
    check(problem, record_property, affordable_groups(problem))
