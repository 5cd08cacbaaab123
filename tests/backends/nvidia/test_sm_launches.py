"""Launches on the model of an SM: what warps execute, what a kernel's shape changes, and kernels that are broken."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lib import silicon_fit

import convgen as cg
from convgen.backends.nvidia.sim.simulate import simulate
from convgen.backends.nvidia.timing.launch import profile_launch
from convgen.backends.simulation import KernelArg, LaunchRequest
from convgen.backends.timing import LaunchProfile, Machine
from convgen.ir.record import evolve
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul
from convgen.profile import constants
from convgen.run import prepared
from convgen.run.code import Code
from tests.backends.nvidia.sim.conftest import kernel_text

ROOT = Path(__file__).parents[3]
H200 = Machine("sm_90a", 132, 1, 50 << 20, 0, 128)
A100 = Machine("sm_80", 108, 1, 40 << 20, 0, 128)
RING = "tile=128x128x64 waves=2x4 mma=128x64x16 slots={slots} taps=split acc=v copy=tensor"
COPIES = "tile=64x64x32 waves=2x2 mma=8x16x16 slots={slots} copy=direct"


@cache
def product(line: str, config: str, target: str = "sm_90a") -> Code:
    return cg.compile(cg.build(Matmul.parse(line, dt="f16", wtag="ba"), target, config=config))


def profiled(code: Code, **changes: Any) -> LaunchProfile:
    given = prepared.of_launches(code.record, code.object, "x")
    settings: dict[str, Any] = {"machine": H200, "latency": 500.0, "keep": 16, **changes}
    return profile_launch(given.content, given.requests[-1], given.buffers, **settings)


def of_text(body: str, **changes: Any) -> LaunchProfile:
    """Return the profile of statements as a kernel of 32 threads with a buffer of 64 KiB at %a0."""
    ptx = kernel_text(body, 1, module=".shared .align 16 .b8 s[16384];").encode()
    request = LaunchRequest("k", (1, 1, 1), (32, 1, 1), (KernelArg(0, 8, "p0"),))
    machine = evolve(H200, target="sm_90")
    buffers = lambda: {"p0": np.zeros(1 << 16, np.uint8)}  # noqa: E731
    return profile_launch(ptx, request, buffers, **{"machine": machine, "latency": 500.0, "keep": 16, **changes})


def clocks(found: LaunchProfile) -> float:
    return found.units[found.full].clocks


# ---------------------------------------------------------------- two instructions


def test_a_kernel_of_two_instructions() -> None:
    found = of_text("ld.global.u32 %r1, [%a0]; add.u32 %r2, %r1, 1;")
    assert (found.workgroups, found.threads, found.executed, found.full) == (1, 32, (0,), 1)
    assert [t.line.text for t in found.units[1].lines][-3:] == [
        "ld.global.u32 %r1, [%a0]",
        "add.u32 %r2, %r1, 1",
        "ret",
    ]
    assert 500 <= clocks(found) <= 540
    assert (found.flop, found.element, found.moved.requested, found.moved.stored) == (0, "", 128, 0)


def test_a_stall_stands_at_the_instruction_that_waits() -> None:
    found = of_text("ld.global.u32 %r1, [%a0]; mov.u32 %r3, 7; add.u32 %r2, %r1, 1;")
    stalls = {t.line.text.split()[0]: t.stalled for t in found.units[1].lines}
    assert stalls["add.u32"] == pytest.approx(500, abs=10)
    assert stalls["mov.u32"] < 5


def test_what_a_workgroup_has_loaded_is_near() -> None:
    once, twice = (
        clocks(of_text("ld.global.u32 %r1, [%a0]; add.u32 %r2, %r1, 1; " + again))
        for again in ("", "ld.global.u32 %r3, [%a0]; add.u32 %r4, %r3, %r2;")
    )
    assert twice - once == pytest.approx(40, abs=15)


def test_bank_conflicts_cost() -> None:
    reads = (
        "mov.u32 %r1, s; mad.lo.u32 %r1, %r0, {stride}, %r1;"
        + "ld.shared.u32 %r2, [%r1];" * 40
        + "add.u32 %r3, %r2, 1;"
    )
    free, paired, worst = (clocks(of_text(reads.format(stride=stride))) for stride in (4, 8, 128))
    assert free < paired < worst
    assert worst - free == pytest.approx(40 * 31, rel=0.1)


# ---------------------------------------------------------------- products


@pytest.mark.parametrize(
    ("config", "target", "machine", "warps"),
    [(RING.format(slots=4), "sm_90a", H200, 4 * 12), (COPIES.format(slots=3), "sm_80", A100, 16 * 4)],
    ids=["ring", "copies"],
)
def test_what_warps_execute(config: str, target: str, machine: Machine, warps: int) -> None:
    code = product("256x256:256x256", config, target)
    found = profiled(code, machine=machine)
    given = prepared.of_launches(code.record, code.object, "x")
    report = simulate(given.content, given.requests, given.buffers())
    assert found.flop * found.workgroups == 2 * 256**3
    assert found.element == "f16"
    assert found.distinct == 1
    assert found.moved.memory == 2 * 256 * 256 * 2
    assert found.moved.stored == 256 * 256 * 2
    assert report.instructions["mma"] == sum(t.times * t.line.kind.count("mma") for t in found.units[1].lines) * warps
    assert {"matrix", "issue", "shared", "lsu", "tma"} <= set(found.units[1].busy)


@pytest.mark.parametrize("config", [RING.format(slots=4), COPIES.format(slots=3)], ids=["ring", "copies"])
def test_twice_the_depth_takes_longer(config: str) -> None:
    short, long = (profiled(product(f"128x{k}:{k}x128", config)) for k in (1024, 2048))
    assert 1.5 * clocks(short) < clocks(long) < 2.1 * clocks(short)
    assert long.units[1].loop_iterations == pytest.approx(2 * short.units[1].loop_iterations, abs=4)
    assert long.units[1].steady == pytest.approx(short.units[1].steady, rel=0.1)


def test_more_slots_take_no_longer() -> None:
    ring, copies = (
        [clocks(profiled(product("128x512:512x128", form.format(slots=slots)))) for slots in counts]
        for form, counts in ((RING, (2, 4, 6)), (COPIES, (2, 4)))
    )
    for ends in (ring, copies):
        assert all(more <= 1.02 * fewer for fewer, more in pairwise(ends))
    assert ring[-1] < 0.8 * ring[0]


def test_latency_is_exposed_as_far_as_copies_do_not_run_ahead() -> None:
    few, many = (profiled(product("128x512:512x128", RING.format(slots=slots))).units[1] for slots in (2, 6))
    assert few.exposed > 0.3 > many.exposed


def test_iterations_that_are_left_out_take_as_long_as_those_like_them() -> None:
    code = product("128x2048:2048x128", RING.format(slots=4))
    whole, short = (profiled(code, keep=keep).units[1] for keep in (100, 8))
    assert whole.left_out == 0 < short.left_out
    assert short.loop_iterations == whole.loop_iterations == 32
    assert short.clocks == pytest.approx(whole.clocks, rel=0.02)


def test_tiles_that_are_left_out_take_as_long_as_those_like_them() -> None:
    """Whole tiles of persistent workgroups repeat, each with its epilogue."""
    code = product("1024x256:256x512", RING.format(slots=4) + " map=persist:4")
    whole, short = (profiled(code, machine=evolve(H200, units=4), keep=keep).units[1] for keep in (1000, 4))
    assert whole.left_out == 0 < short.left_out
    assert short.clocks == pytest.approx(whole.clocks, rel=0.05)


def test_registers_and_shared_memory_limit_what_an_sm_holds() -> None:
    found = profiled(product("256x256:256x256", RING.format(slots=6)))
    assert found.resident["shared memory"] == 1
    assert found.resident["warps"] == 5
    assert profiled(product("256x256:256x256", COPIES.format(slots=2))).resident["shared memory"] > 4


def test_rounds_of_workgroups() -> None:
    found = profiled(product("512x256:256x512", RING.format(slots=4)), machine=evolve(H200, units=6))
    assert (found.workgroups, found.full, found.rounds, found.last) == (16, 1, 2, 1)


def test_padding_is_not_read() -> None:
    """A gradient of weights by im2col: pixels beyond the image are zeros."""
    problem = Conv.parse("mb2ic64ih7oc64oh7kh3ph1", dt="f16", dir="BWD_W", stag="axb", wtag="axb", dtag="axb")
    config = "tile=64x192x64 waves=1x4 mma=192x64x16 slots=4 taps=fused acc=v copy=tensor"
    found = profiled(cg.compile(cg.build(problem, "sm_90a", config=config)))
    assert found.moved.memory <= 2 * 2 * 64 * 7 * 7 * 2


BROKEN = [
    *((RING.format(slots=3), wait) for wait in ("wgmma.wait_group", "mbarrier.try_wait", "wgmma.commit_group")),
    *((RING.format(slots=3), wait) for wait in ("fence.mbarrier_init", "bar.sync")),
    *((COPIES.format(slots=3), wait) for wait in ("cp.async.wait_group", "bar.sync")),
]


@pytest.mark.parametrize(("config", "wait"), BROKEN)
def test_a_kernel_without_its_waits_ends(config: str, wait: str) -> None:
    code = product("256x256:256x256", config)
    assert code.object is not None
    text = re.sub(
        rf"^ *(@!?%p\d+ )?{re.escape(wait)}[^;]*;.*\n( *@!%p\d+ bra WAIT\S*.*\n)?", "", code.object.decode(), flags=re.M
    )
    assert text.encode() != code.object
    given = prepared.of_launches(code.record, text.encode(), "x")
    assert clocks(profile_launch(text.encode(), given.requests[-1], given.buffers, H200, 500.0, 16)) > 0


def test_later_rounds_are_out_of_step() -> None:
    """Workgroups that begin one after the other hide each other's loads; those of a single round begin together."""
    code = product("2048x64:64x256", COPIES.format(slots=2))
    one, many = (profiled(code, machine=evolve(H200, units=units)) for units in (16, 4))
    assert one.full == many.full > 1 >= one.rounds
    assert many.rounds > 1
    in_step, later = (found.units[found.full].clocks for found in (one, many))
    assert 0.5 * in_step < later < in_step


@pytest.mark.parametrize(
    "ending",
    ["mb32ic480ih14oc80oh14kh1", "mb32ic256ih56oc64oh56kh1", "2048x2048:2048x2048"],
)
def test_launches_take_about_as_long_as_on_an_h200(ending: str) -> None:
    """Rows of docs/silicon.json: a small ring, `mma.sync` with copies, a large product."""
    row = next(row for row in silicon_fit.measured_rows(ROOT / "docs/silicon.json") if row["problem"].endswith(ending))
    terms = constants.known()[silicon_fit.KIND].terms
    predicted = silicon_fit.profiled(row, None).predicted(terms)
    assert predicted == pytest.approx(row["ours_us"], rel=0.3)
