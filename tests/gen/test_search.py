"""The search for a config ends soon, remembers refusals, and depends on no clock."""

from __future__ import annotations

from math import inf

import pytest

from convgen import driver
from convgen.backends.target import get
from convgen.backends.tuning import tuning
from convgen.choose import search
from convgen.choose.choose import Candidate, Ranking, candidates
from convgen.choose.search import Search
from convgen.ir.error import BOTH_FILES, DoesNotFit, Unsupported, UserError
from convgen.ir.facts import TargetFacts
from convgen.ir.record import evolve
from convgen.plan.config import COLUMNS, MERGED, Config
from convgen.plan.plan import Plan, make_plan, vector_registers
from convgen.problem.conv import Conv
from convgen.problem.matmul import Problem

LAYER = Conv.parse("mb1ic64oc64ih14oh14kh3ph1", dir="FWD_D", dt="f16", stag="axb", wtag="axb", dtag="axb")
LARGE = Conv.parse("mb16ic256ih28oc256oh28kh3ph1", dir="FWD_D", dt="f16", stag="axb", wtag="axb", dtag="axb")
#: 3-D windows of odd channels: sums made again without padding take 106 scalars, and XeHPG has 8 a register.
MANY_SCALARS = "g1ic17oc17_id8od5kd3pd3sd2"
#: Weights of 4 bits whose pairs lie along N: of sums made again lanes have one of a pair each.
HALVES = "mb1ic2oc2ih8oh1kh7sh4"
#: Phases whose tiles have gaps at different places, of which one serves all.
GAPS = "mb1ic64oc64ih14oh7kh3sh2ph1"


def searching(target: str = "gfx942", problem: Problem = LAYER) -> Search:
    facts = get(target).facts
    return Search(problem, candidates(problem, facts), facts)


def found(of: Search) -> tuple[Candidate, Plan]:
    pair = of.next()
    assert pair is not None
    return pair


@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "xehpc", "xehpg"])
def test_a_config_short_of_registers_rules_out_configs_of_about_as_many(target: str) -> None:
    of = searching(target, LARGE)
    last = inf
    for _ in range(3):
        candidate, plan = found(of)
        assert vector_registers(plan) < last
        others = tuning(of.facts).other_registers
        last = others + 7 / 8 * (vector_registers(plan) - others)
        of.learn(candidate, plan, DoesNotFit("registers", short_of="v"))


def test_want_of_registers_in_both_files_spares_configs_with_fewer_in_all() -> None:
    """A config with more vector registers but fewer accumulators may fit where a SIMD's subgroups have too few."""
    lines = ("tile=256x256x32 waves=2x4 mma=32x32x8 acc=a", "tile=128x256x32 waves=2x4 mma=32x32x8 stages=2 acc=v")
    both, one = (Config.parse(line) for line in lines)
    for short_of, taken in ((BOTH_FILES, one), ("v", None)):
        ranking = Ranking.of([], [Candidate(1.0, both), Candidate(2.0, evolve(both, slots=3)), Candidate(3.0, one)])
        of = Search(LARGE, ranking, get("gfx942").facts)
        candidate, plan = found(of)
        assert vector_registers(plan) < plan.registers
        of.learn(candidate, plan, DoesNotFit("registers", short_of=short_of))
        then = of.next()
        assert (then and then[1].config) == taken


@pytest.mark.parametrize(("tile", "is_worth_it"), [("128x128x32", True), ("32x32x128", False)])
def test_accumulators_that_are_many_go_to_a_file_of_their_own_first(tile: str, is_worth_it: bool) -> None:
    config = Config.parse(f"tile={tile} waves=2x2 mma=16x16x16 acc=v")
    of = Search(LARGE, Ranking.of([], [Candidate(1.0, config)]), get("gfx90a").facts)
    candidate, plan = found(of)
    of.learn(candidate, plan, DoesNotFit("registers", short_of="v"))
    then = of.next()
    assert (then is not None and then[1].config == evolve(config, acc="a")) == is_worth_it


def test_want_of_scalars_rules_out_large_instructions_then_the_cut_of_k() -> None:
    """Most are for sums that are made again without padding; the tile and its slots have no part in it."""
    of = searching()
    cuts: dict[str, list[int]] = {}
    while (pair := of.next()) is not None and pair[0].score < inf:
        mma = pair[1].config.mma
        cuts.setdefault(pair[1].config.taps, []).append(mma[0] * mma[1] if isinstance(mma, tuple) else mma.size)
        of.learn(*pair, DoesNotFit("scalars", short_of="s"))
    assert len(cuts) > 1
    assert all(len(sums) <= 2 and sums == sorted({*sums}, reverse=True) for sums in cuts.values())


def test_a_kind_of_which_many_plans_do_not_fit_is_ruled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search comes to what fits, behind more refusals than it may make."""

    def planned(problem: Problem, config: Config, facts: TargetFacts) -> Plan:
        if config.copy:
            raise DoesNotFit("rows over subgroups")
        return make_plan(problem, config, facts)

    monkeypatch.setattr(search, "make_plan", planned)
    config = Config.parse("tile=64x64x32 waves=2x2 mma=16x16x16 slots=2")
    others = [Candidate(1.0 + n, evolve(config, tile=(64, 64, 32 * n), copy=("direct",))) for n in range(1, 200)]
    of = Search(LARGE, Ranking.of([], [*others, Candidate(300.0, config), Candidate(inf, config)]), get("gfx942").facts)
    candidate, _ = found(of)
    assert candidate.score == 300.0
    assert of.plans == search.MOST_ALIKE


def test_shared_memory_that_did_not_suffice_is_not_asked_for_again() -> None:
    of = searching()
    candidate, plan = found(of)
    of.learn(candidate, plan, DoesNotFit("shared memory", short_of="shared"))
    assert found(of)[1].shared_bytes < plan.shared_bytes


@pytest.mark.parametrize("short_of", ["v", BOTH_FILES, "s", "shared", ""])
def test_refused_kernels_end_in_the_last_resort(short_of: str) -> None:
    of = searching()
    scores = []
    while (pair := of.next()) is not None:
        scores.append(pair[0].score)
        of.learn(*pair, DoesNotFit("anything", short_of=short_of))
    assert len(scores) <= search.MOST_KERNELS + 1
    assert scores[-1] == inf
    assert of.at_any_cost or len(scores) <= search.AT_ANY_COST


def test_refused_plans_end_in_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []

    def refuse(problem: Problem, config: Config, facts: object) -> Plan:
        raise DoesNotFit("anything")

    monkeypatch.setattr(search, "make_plan", refuse)
    of = Search(LAYER, candidates(LAYER, get("gfx942").facts), get("gfx942").facts, lambda c, _: tried.append(c.score))
    assert of.next() is None
    assert len(tried) == search.MOST_PLANS + 1
    assert tried[-1] == inf


def test_a_place_from_is_the_first_with_few_enough_registers() -> None:
    ranking = candidates(LAYER, get("gfx942").facts)
    registers = ranking.registers[ranking.order]
    for most in (60, 80, 120):
        at = ranking.place_from(5, most)
        assert at >= 5
        assert registers[at] <= most
        assert (registers[5:at] > most).all()
    assert ranking.place_from(5, -1) == len(ranking)


def test_a_search_without_end_refuses_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never takes another config than on a quicker machine."""

    def refuse(program: driver.Build) -> None:
        raise DoesNotFit("registers", short_of="v")

    built = driver.build(LAYER, "gfx942")
    monkeypatch.setattr(driver, "_PATIENCE", 0)
    monkeypatch.setattr(driver, "_compile", refuse)
    with pytest.raises(Unsupported, match="for which no config was found in 0 s; --config names one"):
        driver.compile(built)


def test_a_search_that_finds_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(program: driver.Build) -> None:
        raise DoesNotFit("no registers at all", short_of="v")

    built = driver.build(LAYER, "gfx942")
    monkeypatch.setattr(driver, "_compile", refuse)
    with pytest.raises(Unsupported, match=r"for which a config fits gfx942: not even tile=.*: no registers at all"):
        driver.compile(built)


def tried(problem: Problem, target: str) -> list[str]:
    """Why configs are refused until one becomes a kernel."""
    attempts: list[driver.Attempt] = []
    driver.compile(driver.build(problem, target, tried=attempts.append))
    return [attempt.refused for attempt in attempts if attempt.refused]


def test_many_scalars_have_room_where_registers_are_short() -> None:
    """90 configs were refused in turn, each of which took a second and more."""
    assert not tried(Conv.parse(MANY_SCALARS, dir="FWD_D", dt="f16"), "xehpg")


def test_what_the_back_end_lacks_for_one_config_it_may_not_lack_for_the_last() -> None:
    """Lanes of large workgroups convert less than a dword each, which selection on Xe refuses."""
    (refused,) = tried(Conv.parse("mb2ic32oc4_ih14oh4kh1sh4ph0", dir="BWD_W", dt="u8:f32:u4"), "xehpc")
    assert "an operation on u8x2" in refused


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
def test_the_plan_knows_where_lanes_would_have_one_element_of_a_pair(target: str) -> None:
    """The chooser does not offer what the lowering would refuse, and a config that is given is refused before it."""
    problem = Conv.parse(HALVES, dir="BWD_D", dt="f16:s4:f16")
    ranking, facts = candidates(problem, get(target).facts), get(target).facts
    assert all(candidate.config.phases != COLUMNS for candidate in ranking[:50])
    mma, tile = ("16x8x16", "32x32x16") if target == "xehpc" else ("16x16x16", "32x32x32")
    config = Config.parse(f"tile={tile} waves=2x1 mma={mma} taps=fused in=f16 phases=columns")
    with pytest.raises(DoesNotFit, match="padding=exact: no pairs of neighbours along n"):
        make_plan(problem, config, facts)
    with pytest.raises(UserError, match="no pairs of neighbours"):
        driver.build(problem, target, config)


@pytest.mark.parametrize(
    ("line", "dt", "target"),
    [
        ("mb1ic4oc16_ih6oh12kh5ph5", "s8:s4:f32", "xehpg"),
        ("mb2ic2oc8_ih14oh4kh5sh4ph2", "u4:s8:f32", "gfx90a"),
        ("mb1ic4oc8_ih6oh2kh3sh4ph1", "s4:f8_e4m3:f16", "gfx950"),
    ],
)
def test_elements_of_four_bits_are_offered_neither_runs_nor_packed(line: str, dt: str, target: str) -> None:
    """On XeHPG the first 128 plans were refused for that."""
    facts = get(target).facts
    problem = Conv.parse(line, dir="FWD_D", dt=dt)
    narrow = {t.name for t in problem.factors if t.dtype[1:2] == "4"}
    configs = [candidate.config for candidate in candidates(problem, facts)[:200]]
    assert not any(config.taps == "runs" or narrow & set(config.packed) for config in configs)
    assert make_plan(problem, configs[0], facts)


def test_products_of_one_grid_take_one_tile_wherever_gaps_suit_each() -> None:
    """1288 plans were refused in turn, each of whose phases had gaps of its own."""
    problem = Conv.parse(GAPS, dir="BWD_D", dt="f16")
    config = Config.parse("tile=32x32x64 waves=2x2 mma=16x8x16 slots=2 taps=split grids=merged")
    plan = make_plan(problem, config, get("xehpc").facts)
    assert len(plan.parts) == 4
    assert len({part.tiles for part in plan.parts}) == 1
    first = candidates(problem, get("xehpc").facts)[0].config
    assert first.grids == MERGED
    assert make_plan(problem, first, get("xehpc").facts)


def test_rankings_without_tables_are_walked_to_their_end() -> None:
    config = Config.parse("tile=32x32x32 waves=1x1 mma=32x32x8")
    of = Search(LAYER, Ranking.of([], [Candidate(1.0, config)]), get("gfx942").facts)
    assert of.next() is not None
    assert of.next() is None
