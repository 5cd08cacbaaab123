"""The model of an EU: what it issues, what tokens, distances and barriers wait for, and kernels on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from convgen.backends import target as targets
from convgen.backends.intel.assemble import available
from convgen.backends.intel.sim.decode import ALL_TOKENS
from convgen.backends.intel.timing.kernel import spread
from convgen.backends.intel.timing.ops import Op
from convgen.backends.intel.timing.unit import BARRIER, run
from convgen.backends.timing import KernelProfile
from convgen.commands import cli
from convgen.ir.error import UserError
from convgen.ir.record import evolve
from tests.backends.intel.listings import small_kernel

needs_iga = pytest.mark.skipif(not available("12p72"), reason="iga64 is not installed")

ADD = Op("I", busy=1, latency=10)
LOAD = Op("global", busy=4, latency=200, sets=0)
DPAS = Op("matrix", busy=8, latency=28, sets=1)
SIGNAL, WAIT = Op("", barrier="signal"), Op("", barrier="wait")


def end(*ops: Op, threads: int = 1, groups: int = 1) -> float:
    return run([[ops] * threads] * groups).end


def waits(*tokens: tuple[int, bool], distance: tuple[str, int] | None = None) -> Op:
    return Op("", waits=tokens, distance=distance)


def test_one_instruction_issues_a_clock() -> None:
    assert end(*[ADD] * 100) == 99 + 10
    assert end(*[ADD] * 100, threads=4) == 399 + 10
    assert end(*[ADD, Op("F", latency=10)] * 50, threads=2) == 199 + 10


def test_wide_results_hold_their_pipe() -> None:
    wide = Op("F", busy=2, latency=10)
    assert end(*[wide] * 50) == 2 * 49 + 1 + 10
    assert end(*[wide, ADD] * 50) <= 2 * 49 + 1 + 10 + 2


def test_matrix_instructions_follow_one_another_where_they_share_a_token() -> None:
    """A chain on one accumulator; another token's user waits for none of it."""
    assert end(*[DPAS] * 10) == 9 * 8 + 7 + 28
    assert end(DPAS, waits((1, False)), ADD) == pytest.approx(7 + 28 + 1 + 10)
    other = Op("global", busy=1, latency=200, sets=1)
    assert end(DPAS, other) == 7 + 28 + 200


def test_distances_count_the_instructions_of_a_pipe() -> None:
    first, second = (end(ADD, ADD, waits(distance=("I", n)), Op("F", latency=0)) for n in (2, 1))
    assert (first, second) == (12, 13)
    assert end(Op("F", latency=30), ADD, waits(distance=("A", 1)), Op("", latency=0)) == 32
    assert end(ADD, waits(distance=("F", 1))) < 12


def test_sources_are_read_before_data_are_there() -> None:
    read, there, all_of_it = (end(LOAD, waits(token), ADD) for token in ((0, True), (0, False), (ALL_TOKENS, False)))
    assert read == 3 + 200  # the load itself is what ends last
    assert there == all_of_it == 3 + 200 + 1 + 10


def test_threads_hide_one_another() -> None:
    work = [LOAD, waits((0, False)), *[ADD] * 50]
    assert end(*work * 4, threads=4) < 1.5 * end(*work * 4)


def test_barriers_hold_a_workgroup_and_no_other() -> None:
    quick, slow = [SIGNAL, WAIT, ADD], [*[ADD] * 100, SIGNAL, WAIT, ADD]
    assert run([[quick]]).end == BARRIER + 1 + 10
    together = run([[quick, slow]])
    assert sum(together.waves[0].stalls()) > 100
    apart = run([[quick], [slow]])
    assert sum(apart.waves[0].stalls()) < 100
    again = run([[[SIGNAL, WAIT, SIGNAL, WAIT], [SIGNAL, WAIT, *[ADD] * 100, SIGNAL, WAIT]]]).waves[0]
    assert list(again.stalls())[1] < BARRIER + 2 < 100 < list(again.stalls())[3]


def test_no_thread_takes_the_pass_of_one_that_is_late() -> None:
    """One comes to the next barrier before the other, which waits for a load, has passed the last."""
    late = evolve(WAIT, waits=((0, False),))
    model_run = run([[[LOAD, SIGNAL, late, SIGNAL, WAIT], [SIGNAL, WAIT, SIGNAL, WAIT]]])
    assert [len(list(thread.stalls())) for thread in model_run.waves] == [5, 4]
    assert model_run.end > 200 + BARRIER


def test_threads_go_to_engines_in_turn() -> None:
    assert spread(1, 32, 8) == [4]
    assert spread(4, 2, 8) == [1]
    assert spread(5, 2, 8) == [1, 1]
    assert spread(2, 12, 8) == [2, 1]


# ---------------------------------------------------------------- machine code

LOOP = """
loop:
        add (M|M0)       r71.0<1>:d  r71.0<1;1,0>:d  1:d
        add (M|M0)       r71.0<1>:d  r71.0<1;1,0>:d  1:d {@1}
(W)     load.slm.d32x64t.a32 (1|M0)  r16:REGS  [r10:1]  {$3}
        mov (M|M0)       r70.0<1>:f  r16.0<1;1,0>:f  {$3.dst}
        dpas.8x8 (M|M0)  r40:f  r40:f  r16.0:hf  r32.0:hf {$0}
(W&f0.0) jmpi loop
(W)     mov (8|M0)       r127.0<1>:f  r0.0<1;1,0>:f
(W)     send.gtwy (1|M0) null  r127  null:0  0x0  0x02000010  {EOT}
"""


def profiled(tmp_path: Path, target: str = "xehpc", **options: int) -> KernelProfile:
    path = tmp_path / "k.asm"
    path.write_text(small_kernel(LOOP, target))
    (found,) = targets.profile(path, **options)
    return found


@needs_iga
@pytest.mark.parametrize(("target", "registers"), [("xehpc", 4), ("xehpg", 8)])
def test_a_loop_of_one_thread(target: str, registers: int, tmp_path: Path) -> None:
    """The second sum waits for the first, the move for the load; the branch takes its time."""
    found = profiled(tmp_path, target)
    alone = found.loops[0]
    assert (found.target, found.threads, found.latency) == (target, 4 * {"xehpc": 16, "xehpg": 8}[target], 200)
    stalls = {timed.line.kind: timed.stalled for timed in alone.lines}
    assert stalls["mov"] == pytest.approx(registers - 1 + 28 - 1)
    assert alone.clocks == pytest.approx(10 + 1 + (registers - 1 + 28) + 1 + 1 + 23, abs=1)
    assert found.flop == 4 * alone.lines[4].line.flop > 0


@needs_iga
def test_more_workgroups_than_a_core_holds_are_refused(tmp_path: Path) -> None:
    held = profiled(tmp_path).resident
    assert profiled(tmp_path, groups=held).loops[0].groups == held
    with pytest.raises(UserError, match=f"given {held + 1} workgroups on a unit, wanted at most {held} of k"):
        profiled(tmp_path, groups=held + 1)


@needs_iga
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiled(tmp_path)
    assert cli.main(["profile", str(tmp_path / "k.asm"), "--json", "-v"]) == 0
    told = json.loads(capsys.readouterr().out)
    loop = told["kernels"][0]["loops"][-1]
    assert told["latency"] == 200
    assert loop["busy"]["matrix"] == 8 * loop["groups"] * 4 / 8
    assert [line["kind"] for line in loop["lines"]] == ["alu", "alu", "slm_load", "mov", "dpas", "branch"]
