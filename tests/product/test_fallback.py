"""Where registers do not suffice, another config takes the place of one that was chosen, not of one that was given."""

from __future__ import annotations

import pytest

from convgen import driver
from convgen.choose.choose import Candidate, Ranking
from convgen.choose.search import AT_ANY_COST, Search
from convgen.ir.facts import TargetFacts
from convgen.plan.config import Config
from convgen.problem.conv import Conv
from convgen.problem.matmul import Problem

PROBLEM = Conv.parse("mb32ic256ih14oc256oh14kh3ph1", dir="BWD_D", dt="f16", stag="axb", wtag="axb", dtag="axb")
#: With its sums among the vector registers it fits only near the order as written: it has no loop.
LARGE = Config.parse("tile=256x64x288 waves=2x1x2 mma=32x32x16 slots=1 taps=resident acc=v")
NEAR = "order:   near program order"
#: Likewise, and only as written: it has one.
LOOP = Config.parse("tile=64x256x64 waves=2x2 mma=16x16x16 slots=2 taps=split acc=v")
AS_WRITTEN = "order:   program order"


def choose(monkeypatch: pytest.MonkeyPatch, *configs: Config) -> list[driver.Attempt]:
    """What is tried, where the chooser has these."""

    def candidates(problem: Problem, facts: TargetFacts) -> Ranking:
        return Ranking.of([], [Candidate(float(n), config) for n, config in enumerate(configs)])

    monkeypatch.setattr(driver, "candidates", candidates)
    return []


@pytest.mark.parametrize("config", [LARGE, LOOP])
def test_sums_go_to_a_file_of_their_own_rather_than_that_the_order_stays_as_written(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = choose(monkeypatch, config)
    code = driver.compile(driver.build(PROBLEM, "gfx950", tried=tried.append))
    assert "acc=a" in code.config
    assert "order:" not in code.asm
    assert [attempt.config.acc for attempt in tried] == ["v", "v", "a", "a"]
    assert (tried[1].refused or "").startswith("in the back end: ")


@pytest.mark.parametrize(("config", "order"), [(LARGE, NEAR), (LOOP, AS_WRITTEN)])
def test_what_was_given_stays_near_what_is_written(config: Config, order: str) -> None:
    code = driver.compile(driver.build(PROBLEM, "gfx950", config))
    assert "acc=v" in code.config
    assert order in code.asm


def test_after_many_that_did_not_fit_one_stays_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pass that keeps values few, say, thousands may not fit, each of which takes a while."""

    def forgets(search: Search, *_: object) -> None:
        search.kernels += 1

    tried = choose(monkeypatch, *[LOOP] * 9)
    monkeypatch.setattr(Search, "learn", forgets)
    code = driver.compile(driver.build(PROBLEM, "gfx950", tried=tried.append))
    assert AS_WRITTEN in code.asm
    assert sum(attempt.refused is not None for attempt in tried) == AT_ANY_COST
