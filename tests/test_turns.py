"""The cases that `in_turn(n)` chooses: neither a value that recurs nor a family is lost."""

from __future__ import annotations

from itertools import product

import pytest

from tests.turns import FAMILY, FEW, TARGET, in_turn

Cases = dict[str, dict[str, object]]

TARGETS = {"gfx90a": "amdgpu", "gfx942": "amdgpu", "xehpc": "intel", "sm_90": "nvidia"}
CROSSED: Cases = {
    f"{target}-{dt}-{direction}": {TARGET: target, "dt": dt, "direction": direction, FAMILY: TARGETS[target]}
    for target, dt, direction in product(TARGETS, ("f16", "f32", "s8"), ("FWD_D", "BWD_D", "BWD_W"))
}
OF_TARGETS: Cases = {target: {TARGET: target, FAMILY: family} for target, family in TARGETS.items()}
LISTED: Cases = {f"line{n}": {"line": n} for n in range(20)}


def values(cases: Cases, names: set[str]) -> set[tuple[str, object]]:
    return {item for name in names for item in cases[name].items()}


def others(values: set[tuple[str, object]]) -> set[tuple[str, object]]:
    return {(name, value) for name, value in values if name != TARGET}


@pytest.mark.parametrize("n", [1, 2, 4, 9, 100])
def test_every_family_and_every_value_that_recurs_is_chosen(n: int) -> None:
    assert others(values(CROSSED, in_turn(CROSSED, n))) == others(values(CROSSED, set(CROSSED)))


@pytest.mark.parametrize(("n", "count"), [(1, 36), (2, 18), (4, 9), (9, 4), (100, 3)])
def test_one_case_in_n_is_chosen(n: int, count: int) -> None:
    """Three cases hold all families, types and directions."""
    assert len(in_turn(CROSSED, n)) == count


def test_pairs_of_values_recur_as_late_as_they_can() -> None:
    """Twelve cases hold all pairs of two parameters."""
    chosen = in_turn(CROSSED, 3)
    for one, other, count in ((TARGET, "dt", 12), (TARGET, "direction", 12), ("dt", "direction", 9)):
        assert len({(CROSSED[name][one], CROSSED[name][other]) for name in chosen}) == count


def test_one_target_of_each_family_is_chosen() -> None:
    chosen = in_turn(OF_TARGETS, 100)
    assert sorted(TARGETS[target] for target in chosen) == ["amdgpu", "intel", "nvidia"]


def test_of_values_that_do_not_recur_one_in_n_is_chosen() -> None:
    assert len(in_turn(LISTED, 4)) == 5


def test_a_few_cases_are_all_chosen() -> None:
    few = dict(list(LISTED.items())[:FEW])
    assert in_turn(few, 100) == set(few)


def test_the_order_of_cases_does_not_matter() -> None:
    backwards = dict(reversed(CROSSED.items()))
    assert in_turn(backwards, 3) == in_turn(CROSSED, 3)
