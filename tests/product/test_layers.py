"""Whole layers with the configs that they get by default: some tiles of each, on every target.

Small problems get other configs, and have other tails: what goes wrong in the prologue of a loop that is long enough,
or where tiles come out even, is seen here only.
"""

from __future__ import annotations

from itertools import product

import pytest

from convgen import driver
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul, Problem
from convgen.run import execution, reference, verdict
from tests import samples
from tests.product.problems import expect_right
from tests.strategies import always

#: Of ResNet-50 for 32 images.
LAYERS = {
    "stem": "mb32ic3ih224oc64oh112kh7sh2ph3",
    "3x3": "mb32ic64ih56oc64oh56kh3ph1",
    "strided": "mb32ic128ih56oc128oh28kh3sh2ph1",
    "1x1": "mb32ic256ih56oc64oh56kh1ph0",
    "14": "mb32ic256ih14oc256oh14kh3ph1",
    "7": "mb32ic512ih7oc512oh7kh3ph1",
}
DIRECTIONS = ("FWD_D", "BWD_D", "BWD_W")
#: Layers of every run; a simulated `dpas` of a tile takes longer than an MFMA, so Xe has one of a short sum.
DAILY = {
    **dict.fromkeys(("gfx90a", "gfx942", "gfx950"), (("strided", "BWD_D"), ("14", "FWD_D"))),
    **dict.fromkeys(("xehpg", "xehpc"), (("strided", "BWD_D"), ("1x1", "FWD_D"))),
    "sm_90": (("strided", "BWD_D"), ("1x1", "FWD_D")),
    "sm_90a": (("strided", "BWD_D"), ("1x1", "FWD_D")),
}


def assert_right(problem: Problem, target: str) -> None:
    outcome = verdict.run(driver.compile(driver.build(problem, target)), groups=2)
    expect_right(outcome)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("layer", "direction", "target"),
    always(product(LAYERS, DIRECTIONS, samples.SIMULATED), lambda n, case: case[:2] in DAILY[case[2]]),
)
def test_a_layer_is_right(layer: str, direction: str, target: str) -> None:
    assert_right(Conv.parse(LAYERS[layer], dir=direction, dt="f16"), target)


@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize(
    ("layer", "direction"),
    [
        pytest.param(*each, marks=[] if each in {("3x3", "BWD_D"), ("14", "FWD_D")} else pytest.mark.sweep)
        for each in product(LAYERS, DIRECTIONS)
    ],
)
def test_a_workgroup_meets_no_bank_twice(layer: str, direction: str, target: str) -> None:
    assert_apart(LAYERS[layer], direction, target)


def test_turned_columns_of_few_rows_stand_in_all_banks() -> None:
    """Of 16 channels on gfx950: columns of two chunks, which change places."""
    assert_apart(
        "mb2ic16ih16oc16oh16kh3ph1", "BWD_W", "gfx950", "tile=32x16x32 waves=1x1 mma=16x16x32 slots=3 taps=split"
    )


def assert_apart(sizes: str, direction: str, target: str, config: str | None = None) -> None:
    """Lanes of a workgroup meet in no bank of shared memory."""
    tags = dict.fromkeys(("stag", "wtag", "dtag"), "axb")
    problem = Conv.parse(sizes, dir=direction, dt="f16", **tags)
    code = driver.compile(driver.build(problem, target, config))
    first = [(0,) for _ in code.record.launches]
    _, report = execution.execute(code.record, code.object, reference.fills(problem), first)
    assert report.counters["lds_read_bytes"]
    assert report.counters["lds_bank_conflict_cycles"] == 0


@pytest.mark.sweep
@pytest.mark.parametrize("target", samples.SIMULATED)
def test_a_great_product_is_right(target: str) -> None:
    assert_right(Matmul.parse("4096x4096:4096x4096", dt="f16"), target)
