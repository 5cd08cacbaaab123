"""Launches that were executed, on the model of a unit: what waves did, rounds left out, lines that caches share."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen.backends.amdgpu.sim.simulate import simulate
from convgen.backends.amdgpu.timing import kernel
from convgen.backends.amdgpu.timing.launch import profile_launch
from convgen.backends.amdgpu.timing.ops import Op, Port
from convgen.backends.amdgpu.timing.unit import Latencies, Unit
from convgen.backends.event_model.cache_traffic import Distribution, Reads
from convgen.backends.event_model.shortened_loops import ShortenedLoop, shortened
from convgen.backends.event_model.waves import ModelRun
from convgen.backends.simulation import KernelArg, LaunchRequest
from convgen.backends.target import get
from convgen.backends.timing import LaunchProfile, Machine
from convgen.choose.workgroup_orders import LaunchTraffic
from convgen.ir.layout.order import Order
from convgen.ir.record import evolve
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul
from convgen.run import prepared
from convgen.run.code import Code

FOREIGN = Path(__file__).parents[2] / "data" / "foreign"
MI300X = Machine("gfx942", 304, 8, 4 << 20, 256 << 20, 128)

#: Clocks of the LDS: phases.
LEAST = {"ds_read_b64": 4, "ds_read_b128": 8, "ds_write_b32": 2, "ds_write_b64": 4, "ds_write_b128": 8}
READ = Op(Port.LDS, 4, 8, at=0)
WAIT = Op(Port.NONE, 4, waits=(None, 0), at=4)
MATRIX = Op(Port.MATRIX, 4, 32, at=8)
SLOW = Op(Port.LDS, 4, 64, at=0)
BARRIER = Op(Port.NONE, 4, is_barrier=True, at=12)
END = Op(Port.SALU, 4, at=16)
BODY = {0, 4, 8, 12}


# ---------------------------------------------------------------- rounds that are left out


def run(rounds: ShortenedLoop) -> ModelRun:
    return Unit(Latencies(300)).run(rounds.workgroups)


def total(rounds: ShortenedLoop, fewer: ShortenedLoop) -> float:
    model_run = run(rounds)
    return rounds.clocks(model_run, rounds.pace_of(fewer, model_run.end - run(fewer).end))[0]


@pytest.mark.parametrize("kinds", [[READ], [READ, SLOW], [READ, READ, SLOW]])
def test_rounds_that_are_left_out_take_as_long_as_those_like_them(kinds: list[Op]) -> None:
    """Slots that take turns make rounds that are alike only every second or third time."""
    loop = [op for n in range(120) for op in (kinds[n % len(kinds)], WAIT, MATRIX, BARRIER)]
    waves = [[[END] * 5 + loop + [END] * 9] * 4] * 2
    whole, short, shorter = (shortened(waves, BODY, keep) for keep in (1000, 12, 6))
    assert whole.left_out == 0
    assert short.left_out >= 100
    assert sum(map(len, short.workgroups[0])) < 0.2 * sum(map(len, waves[0]))
    assert short.count == whole.count == 120
    assert total(short, shorter) == pytest.approx(run(whole).end, rel=0.01)
    weights = short.weights(0, len(short.workgroups[0][0]))
    assert sum(weights) == pytest.approx(len(waves[0][0]))


def test_a_round_of_few_takes_what_one_of_many_does() -> None:
    """Two workgroups share matrix units, which nobody sees where one is through before the other begins."""
    loop = [READ, WAIT, *[MATRIX] * 4] * 3
    waves = [[loop] * 4, [[END] * 200 + loop] * 4]
    rounds, unit = shortened(waves, {4}, 8), Unit(Latencies(8))
    alone = shortened(waves[:1], {4}, 8).steady(unit, 100)
    assert 2 * 4 * 32 <= rounds.steady(unit, 100) < 1.1 * 2 * 4 * 32
    assert rounds.clocks(unit.run(rounds.workgroups), 0.0)[1] == pytest.approx(alone, rel=0.05)


def test_rounds_that_differ_stay() -> None:
    loop = [op for n in range(40) for op in ([SLOW] * (n + 1)) + [WAIT, MATRIX]]
    assert shortened([[loop]], {4, 8}, 4).left_out == 0


def test_waves_that_go_round_differently_often_are_left_whole() -> None:
    few, many = ([READ, WAIT, MATRIX] * n for n in (20, 60))
    assert shortened([[few, many]], BODY, 4).left_out == 0


def test_code_without_a_loop_is_one_round() -> None:
    rounds = shortened([[[END] * 10]], BODY, 4)
    assert rounds.count == 0
    assert rounds.clocks(run(rounds), 0.0) == (40, 40)


def test_without_a_loop_a_round_is_from_the_first_product_to_the_last() -> None:
    """What stands around them is the launch's, as it is around a loop."""
    rounds = shortened([[[END] * 10 + [MATRIX] + [END] * 50 + [MATRIX] + [END] * 30]], {99}, 4)
    assert rounds.count == 0
    assert rounds.clocks(run(rounds), 0.0) == (92 * 4, 51 * 4)


def test_barriers_do_not_wait_for_waves_that_have_ended() -> None:
    model_run = Unit().run([[[END], [END, BARRIER, END], [END] * 50 + [BARRIER, END]]])
    assert [wave.done[-1] for wave in model_run.waves] == [4, pytest.approx(208, abs=4), pytest.approx(208, abs=4)]


# ---------------------------------------------------------------- caches


def test_workgroups_come_to_dies_and_units_in_turn() -> None:
    share = Distribution(evolve(MI300X, units=8, dies=4), 40, 2)
    assert share.round(0) == [0, 4, 8, 12]
    assert share.round(1) == [16, 20, 24, 28]
    assert share.unit(0) == [0, 8]  # two units a die


def test_a_line_is_read_once_an_instruction_and_workgroup() -> None:
    reads = Reads(128)
    lanes = np.arange(64)
    for times in range(3):
        reads("load", "a", lanes // 32, lanes % 32 * 16 + 4096 * (times // 2), 16)
    reads("load", "b", lanes * 0, lanes * 0, 4)
    reads("store", "b", lanes, lanes, 4)
    assert (reads.halves, reads.stored) == (3 * 2 * 8 + 1, 256)  # all lanes of one address touch one half
    assert reads.count == 3 * 8 + 1
    assert len(reads.of([0])) == 9
    assert reads.misses([0, 1], 100) == (25, 9)
    assert reads.misses([0, 1], 2) == (25, 25)  # two lines are gone before they are touched again


# ---------------------------------------------------------------- launches


@cache
def product(order: str = "rows", line: str = "512x256:256x256") -> Code:
    config = f"tile=32x32x32 waves=1x1 mma=32x32x8 map={order}"
    return cg.compile(cg.build(Matmul.parse(line, dt="f16"), config=config))


def profiled(code: Code, **changes: Any) -> LaunchProfile:
    given = prepared.of_launches(code.record, code.object, "x")
    settings: dict[str, Any] = {"machine": MI300X, "latency": 500.0, "keep": 16, **changes}
    return profile_launch(given.content, given.requests[-1], given.buffers, **settings)


@pytest.mark.parametrize(
    ("order", "units", "l2"),
    [("rows", 304, 4 << 20), ("xcc:8+group:2m", 304, 4 << 20), ("rows", 8, 4 << 20), ("rows", 8, 1 << 16)],
)
def test_dies_take_in_what_the_traffic_model_says(order: str, units: int, l2: int) -> None:
    """In one round of workgroups, and in two, of which the second finds something or nothing there."""
    found = profiled(product(order), machine=evolve(MI300X, units=units, l2_bytes=l2))
    facts = get("gfx942").facts
    plan = make_plan(
        Matmul.parse("512x256:256x256", dt="f16"),
        Config.parse(f"tile=32x32x32 waves=1x1 mma=32x32x8 map={order}"),
        evolve(facts, compute_units=units, caches=evolve(facts.caches, l2_bytes=l2)),
    )
    traffic = LaunchTraffic.of(plan, found.full).traffic(Order.parse(order))
    assert found.moved.fill == pytest.approx(traffic.fill, rel=0.01)
    assert found.moved.loaded == pytest.approx(traffic.requested, rel=0.01)
    assert found.moved.stored == 512 * 256 * 2
    assert found.moved.memory == (512 + 256) * 256 * 2


def test_what_waves_execute() -> None:
    """All of it: FLOP, rounds, instructions as the simulator counts them; the loop as long as without the rest."""
    code = product()
    found = profiled(code)
    given = prepared.of_launches(code.record, code.object, "x")
    report = simulate(given.content, given.requests, given.buffers())
    assert found.flop * found.workgroups == 2 * 512 * 256 * 256
    assert found.instructions * found.workgroups == sum(report.instructions.values())
    assert found.element == "f16"
    assert found.distinct == 1
    unit = found.units[found.full]
    assert unit.busy["matrix"] * 4 == 8 * 4 * 8 * 4  # blocks, instructions, passes, clocks
    assert sum(t.stalled for t in unit.lines) <= unit.clocks


def test_conflicts_are_those_of_the_addresses_that_waves_had() -> None:
    problem = Matmul.parse("64x64:64x64", dt="f16", stag="ba", wtag="ab")
    code = cg.compile(cg.build(problem, config="tile=32x32x16 waves=1x1 mma=16x16x16"))
    found, given = profiled(code), prepared.of_launches(code.record, code.object, "x")
    counters = simulate(given.content, given.requests, given.buffers()).counters
    unit = found.units[1]
    least = sum(t.times * LEAST[t.line.text.split()[0]] for t in unit.lines if t.line.kind.startswith("ds_"))
    assert counters["lds_bank_conflict_cycles"] > 0
    assert unit.busy["lds"] == least + counters["lds_bank_conflict_cycles"] / found.workgroups


def test_latency_and_company_make_a_unit_slower() -> None:
    code = product()
    near, far = (profiled(code, latency=latency).units[1].clocks for latency in (200.0, 2000.0))
    assert near < far
    crowded = profiled(code, machine=evolve(MI300X, units=16))
    alone, full = crowded.units[1], crowded.units[crowded.full]
    assert (crowded.full, crowded.rounds, crowded.last) == (8, 1, 0)
    assert alone.clocks < full.clocks < 8 * alone.clocks


def test_fewer_rounds_in_detail_say_nearly_the_same() -> None:
    code = product(line="32x1024:1024x32")
    whole, short = (profiled(code, keep=keep).units[1] for keep in (100, 8))
    assert whole.left_out == 0 < short.left_out
    assert short.clocks == pytest.approx(whole.clocks, rel=0.05)


@pytest.mark.parametrize(("ways", "blocks"), [("slots=1", 1), ("slots=2 stages=2", 2), ("slots=3", 3)])
def test_products_beside_a_loop_are_iterations_of_it(ways: str, blocks: int) -> None:
    """Of 17 blocks of K so many are a round; those that are left and those on the way out stand behind the loop."""
    problem = Matmul.parse("32x544:544x32", dt="f16")
    code = cg.compile(cg.build(problem, config=f"tile=32x32x32 waves=1x1 mma=32x32x8 {ways}"))
    unit = profiled(code).units[1]
    assert unit.loop_iterations * blocks < 17
    assert unit.iterations * blocks == pytest.approx(17)
    around = kernel.profile(code.object or b"", "x")[0].loops[0].rest
    each, rest, _ = kernel.loop_clocks(code.object or b"", 500.0).shared[1]
    beside = 17 / blocks - unit.loop_iterations
    assert around - rest == pytest.approx(beside * each) or rest == 0


def test_a_loop_exposes_latency_as_far_as_it_does_not_load_ahead() -> None:
    """Of 500 clocks more a round with loads one block ahead, which has waited before, exposes nearly all; one of four
    blocks with loads five blocks ahead exposes little, all in all.
    """
    problem = Matmul.parse("64x8192:8192x64", dt="f16")

    def exposed(ways: str) -> list[float]:
        code = cg.compile(cg.build(problem, config=f"tile=64x64x32 waves=2x1 mma=32x32x8 {ways}"))
        of_launch = profiled(code, keep=8).units[1].exposed
        return [of_launch, kernel.loop_clocks(code.object or b"", 500.0).shared[1].exposed]

    assert exposed("slots=1") == pytest.approx([1, 1], abs=0.1)
    assert all(part < 0.3 for part in exposed("slots=2 stages=4"))


def test_a_kernel_of_another_compiler() -> None:
    """Arguments by the manifest: a product of 128 x 128 x 128 in four workgroups."""
    entry = json.loads((FOREIGN / "manifest.json").read_text())[0]
    code = (FOREIGN / entry["file"]).read_bytes()
    numbers = {"A": 0, "B": 8, "C": 16}
    args = [KernelArg(offset, 8, name) for name, offset in numbers.items()]
    args += [KernelArg(24 + 4 * n, 4, (128).to_bytes(4, "little")) for n in range(6)]
    request = LaunchRequest(entry["kernel"], (4, 1, 1), (256, 1, 1), tuple(args), entry["shared"])

    def buffers() -> dict[str, Any]:
        return {name: np.zeros(128 * 128 * (4 if name == "C" else 2), np.uint8) for name in numbers}

    found = profile_launch(code, request, buffers, MI300X, 500.0, 16)
    assert not [finding for finding in found.findings if finding.source.required]
    assert found.flop * 4 == 2 * 128**3
    assert found.moved.stored == 128 * 128 * 4
    assert {line.line.kind for line in found.units[1].lines} >= {"mfma", "ds_read", "vmem_load", "barrier"}


def test_workgroups_of_unequal_depth() -> None:
    """Stride phases of 4, 2, 2 and 1 taps in one grid: those that have most to do are timed, all are counted."""
    problem = Conv.parse("mb8ic64ih19oc64oh10kh3sh2ph1", dir="BWD_D", dt="f16", stag="axb", wtag="axb", dtag="axb")
    config = "tile=32x32x32 waves=1x1 mma=32x32x8 slots=2 taps=split grids=merged"
    parts = make_plan(problem, Config.parse(config), get("gfx942").facts).parts
    depth = {part.mapping.numbers: part.k_blocks for part in parts}
    deepest = max(part.k_blocks for part in parts)
    mean = sum(part.mapping.numbers * part.k_blocks for part in parts) / sum(part.mapping.numbers for part in parts)
    assert len(set(depth.values())) > 1
    found = profiled(cg.compile(cg.build(problem, config=config)), machine=evolve(MI300X, units=8))
    assert found.work.mean == pytest.approx(mean / deepest, rel=0.03)
    assert found.work.least == pytest.approx(0.25)
    assert found.work.mean * found.workgroups / 8 <= found.work.busiest <= found.on_busiest
    assert found.share < 0.7
    assert profiled(product()).share == 1


def meeting(way: str) -> LaunchProfile:
    """The product's launch of 32 slices that meet so."""
    problem = Matmul.parse("64x2048:2048x64", dt="f16")
    config = f"tile=32x32x64 waves=2x2 mma=16x16x16 slots=2 slices=32 sum={way}"
    code = cg.compile(cg.build(problem, "gfx942", config))
    given = prepared.of_launches(code.record, code.object, "x")
    return profile_launch(given.content, given.requests[0], given.buffers, MI300X, 500.0, 16)


def test_the_last_to_arrive_is_timed() -> None:
    """Of workgroups that are not all executed one at each tile adds up what all have left."""
    apart, last, grouped = map(meeting, ("launch", "last", "last:8"))
    left = 32 * 64 * 64 * 4  # bytes; of all slices, which those four read once
    assert len(last.executed) < last.workgroups == 4 * 32
    assert left <= last.moved.asked - apart.moved.asked < 1.1 * left
    assert left <= grouped.moved.asked - apart.moved.asked < 1.3 * left  # and sums of groups
    assert apart.units[1].clocks + 2 * 500 < grouped.units[1].clocks < last.units[1].clocks
