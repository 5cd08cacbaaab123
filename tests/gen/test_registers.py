"""The estimate of a lane's vector registers: what a loop holds, what short sums do not, and what allocation takes."""

from __future__ import annotations

import numpy as np
import pytest

from convgen import driver
from convgen.backends.target import get
from convgen.backends.tuning import tuning
from convgen.choose.choose import candidates
from convgen.ir.facts import TargetFacts
from convgen.plan.config import Staging
from convgen.plan.registers import LaneRegisters, Pipeline
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul

FACTS = get("gfx950").facts
TUNED = tuning(FACTS)
PARTS = LaneRegisters(sums=64, fragments=32, copied=16, masks=4)
AT_ONCE, OVERLAPPED = TUNED.fragment_sets
MANY = 100  #: blocks of K
TAGS = {"stag": "axb", "wtag": "axb", "dtag": "axb"}


def registers(
    staging: Staging,
    blocks: int = MANY,
    *,
    by_taps: bool = False,
    facts: TargetFacts = FACTS,
    parts: LaneRegisters = PARTS,
) -> int:
    return int(parts.registers(blocks, Pipeline.of(lambda name: getattr(staging, name)), facts, by_taps=by_taps))


def beside(sets: float, on_way: int, facts: TargetFacts = FACTS) -> int:
    """Sums with so many sets of fragments, and blocks on their way."""
    return int(64 + 32 * sets + 16 * on_way + 4 * tuning(facts).mask_registers + tuning(facts).other_registers)


def test_a_loop_reads_ahead_if_there_is_another_slot_or_tap() -> None:
    assert registers(Staging(2)) == beside(OVERLAPPED, 1)
    assert registers(Staging(1)) == beside(AT_ONCE, 1)
    assert registers(Staging(1), by_taps=True) == beside(OVERLAPPED, 1)


def test_loops_over_taps_on_several_slots_hold_all_blocks_on_their_way_and_more_fragments() -> None:
    assert registers(Staging(2), by_taps=True) == beside(OVERLAPPED, 2) + TUNED.tap_registers
    assert registers(Staging(2), blocks=4, by_taps=True) == beside(AT_ONCE, 1)


def test_blocks_wait_in_registers_for_stages_and_for_slots() -> None:
    assert registers(Staging(2, stages=2)) == beside(OVERLAPPED, 2)
    assert registers(Staging(3, stages=2)) == beside(OVERLAPPED, 3)


def test_short_sums_hold_no_more_than_there_is() -> None:
    assert registers(Staging(2, stages=2), blocks=1) == beside(AT_ONCE, 0)
    assert registers(Staging(2, stages=2), blocks=2) == beside(AT_ONCE, 1)


def test_where_statements_stay_in_order_a_block_is_stored_as_soon_as_it_is_there() -> None:
    facts = get("xehpc").facts
    assert registers(Staging(3), facts=facts) == beside(tuning(facts).fragment_sets[1], 1, facts)


def test_many_configs_at_a_time_have_what_each_has() -> None:
    stagings = [Staging(2), Staging(3, stages=2), Staging(1)]
    together = Pipeline.of(lambda name: np.array([getattr(staging, name) for staging in stagings]))
    assert PARTS.registers(MANY, together, FACTS, by_taps=False).tolist() == [
        registers(staging) for staging in stagings
    ]


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize(
    ("line", "direction"),
    [
        ("mb32ic256ih56oc64oh56kh1", "BWD_D"),  # short sums
        ("mb4ic128ih28oc128oh28kh3ph1", "FWD_D"),
        ("mb4ic128ih28oc128oh28kh3ph1", "BWD_W"),
    ],
)
def test_the_best_configs_take_about_what_was_estimated(line: str, direction: str, target: str) -> None:
    problem = Conv.parse(line, dir=direction, dt="f16", **TAGS)
    off = []
    for candidate in candidates(problem, get(target).facts)[:40:5]:
        build = driver.build(problem, target, candidate.config)
        costs = driver.compile(build).kernels.values()
        assert build.plan is not None
        off.append(build.plan.registers - max(each.registers["vgpr"] + each.registers["agpr"] for each in costs))
    assert np.median(np.abs(off)) <= 34


def test_what_fits_after_all_is_chosen() -> None:
    """One block of K, which two stages of a second slot would never hold: workgroups run side by side."""
    problem = Conv.parse("mb32ic256ih56oc64oh56kh1", dir="BWD_D", dt="f16", **TAGS)
    best = candidates(problem, get("gfx950").facts)[0]
    assert best.together > 1


@pytest.mark.parametrize("name", ["gelu_erf", "gelu_tanh", "swish", "tanh"])
@pytest.mark.parametrize("shape", ["2048x2048:2048x2048", "1024x64:64x1024"])
def test_a_function_of_the_sums_takes_no_more_registers_than_the_loop(shape: str, name: str) -> None:
    """The first config is taken, and takes what it does with a rectifier: as far as the plan knows, too."""
    taken, estimated = {}, {}
    for post_op in ("relu", name):
        tried: list[driver.Attempt] = []
        problem = Matmul.parse(shape, dt="f16", attr_post_ops=post_op)
        build = driver.build(problem, "gfx942", tried=tried.append)
        code = driver.compile(build)
        assert not [attempt for attempt in tried if attempt.refused]
        (cost,) = code.kernels.values()
        taken[post_op] = cost.registers["vgpr"] + cost.registers["agpr"]
        assert build.plan
        estimated[post_op] = build.plan.registers
    assert taken[name] <= taken["relu"] + 8
    assert estimated[name] == estimated["relu"]


def test_temporaries_behind_the_loop_count_where_the_loop_holds_less() -> None:
    parts = LaneRegisters(sums=64, fragments=4, copied=0, masks=0, epilogue=12)
    assert registers(Staging(1), parts=parts) == 64 + 12 + TUNED.other_registers
