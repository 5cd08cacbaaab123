"""The model of a compute unit: what each pipe lets through, what waits wait for, and where LDS accesses go."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from convgen import driver
from convgen.backends.amdgpu.sim import CodeObject
from convgen.backends.amdgpu.timing.kernel import loop_clocks, profile
from convgen.backends.amdgpu.timing.lds_places import lds_clocks
from convgen.backends.amdgpu.timing.ops import Op, Port
from convgen.backends.amdgpu.timing.unit import Latencies, Unit
from convgen.ir.error import UserError
from convgen.problem.conv import Conv
from convgen.run import execution, reference

FOREIGN = Path(__file__).parents[2] / "data" / "foreign"
MATRIX = Op(Port.MATRIX, 4, 32)
VALU = Op(Port.VALU, 4)
LOAD = Op(Port.GLOBAL, 4, 16)
READ = Op(Port.LDS, 4, 8)
BARRIER = Op(Port.NONE, 4, is_barrier=True)


def wait(vm: int = 1 << 30, lgkm: int = 1 << 30) -> Op:
    return Op(Port.NONE, 4, waits=(vm, lgkm))


def end(*ops: Op, groups: int = 1, waves: int = 4, latency: float = 500) -> float:
    return Unit(Latencies(latency)).run([[ops] * waves] * groups).end


def test_a_wave_issues_every_four_clocks() -> None:
    assert end(*[VALU] * 100, waves=1) == 400


def test_the_waves_of_a_simd_share_its_pipes() -> None:
    """Four waves have a SIMD each; of eight, two share each."""
    assert end(*[VALU] * 100, waves=4) == pytest.approx(400, abs=8)
    assert end(*[VALU] * 100, waves=8) == pytest.approx(800, abs=8)
    assert end(*[MATRIX] * 50, waves=4) == pytest.approx(49 * 32 + 4, abs=8)
    assert end(*[MATRIX] * 50, groups=2) == pytest.approx(99 * 32 + 4, abs=8)


def test_vector_instructions_hide_behind_matrix_instructions_up_to_their_passes() -> None:
    alone = end(*[MATRIX] * 50)
    assert end(*[MATRIX, *[VALU] * 7] * 50) <= alone + 40
    assert end(*[MATRIX, *[VALU] * 15] * 50) >= 1.9 * alone


def test_a_matrix_result_is_waited_for_unless_it_is_added_to() -> None:
    first = Op(Port.MATRIX, 4, 32, writes=0b11, reads=0b11)
    more = end(*[first] * 10, waves=1)
    reader = Op(Port.VALU, 4, reads=0b10)
    assert more == pytest.approx(9 * 32 + 4)
    assert end(first, reader, waves=1) == pytest.approx(32 + 8 + 4)


def test_waits_count_in_order() -> None:
    """The first of two loads is there a latency after it has gone; a wait for it does not wait for the second."""
    both, one = (end(LOAD, LOAD, wait(vm=n), waves=1) for n in (0, 1))
    assert (one, both) == (16 + 500, 32 + 500)
    assert end(LOAD, wait(lgkm=0), waves=1) < 20


def test_latency_and_clocks_of_a_pipe_only_add() -> None:
    times = [end(LOAD, READ, wait(vm=0, lgkm=0), VALU, latency=latency) for latency in (100, 500, 2000)]
    assert times == sorted(times)
    slow = Op(Port.LDS, 4, 64)
    assert end(*[slow, wait(lgkm=0)] * 9) > end(*[READ, wait(lgkm=0)] * 9)


def test_the_unit_has_one_lds_and_one_address_pipe() -> None:
    assert end(*[READ] * 100, wait(lgkm=0), waves=4) >= 400 * 8
    assert end(*[LOAD] * 50, wait(vm=0), waves=4) >= 200 * 16


def test_barriers_hold_a_workgroup_and_no_other() -> None:
    """Each wave works in turn behind the last one's barrier; another workgroup needs no longer beside it."""
    slow = [*[VALU] * 50, BARRIER]
    model_run = Unit().run([[slow] * 4])
    assert model_run.end == pytest.approx(204, abs=8)
    assert end(*slow * 3, groups=2) == pytest.approx(2 * end(*slow * 3), rel=0.1)


def test_stalls_are_told_where_they_are() -> None:
    (only,) = Unit(Latencies(500)).run([[[LOAD, VALU, wait(vm=0), VALU]]]).waves
    assert list(only.stalls()) == [0, 0, pytest.approx(500 + 16 - 12), 0]


# ---------------------------------------------------------------- machine code


@pytest.mark.parametrize("line", ["--dtag=axb", "--stag=abx --wtag=abx --dtag=abx"])
def test_lds_clocks_are_those_that_the_simulator_counts(line: str) -> None:
    """Of a kernel whose loop runs once: conflicts of all waves, beside the clocks that each access takes anyway."""
    problem = Conv.parse("mb2ic32ih8oc64oh8kh1", dir="FWD_D", dt="f16", stag="axb" if "abx" not in line else "abx")
    code = driver.compile(driver.build(problem, "gfx942", "tile=64x64x32 waves=2x2 mma=16x16x16 slots=1 taps=split"))
    launch = next(n for n in code.record.launches if n.kernel.endswith("main"))
    assert code.object
    kernel = CodeObject.load(code.object).kernels[launch.kernel]
    order = range(kernel.entry, len(kernel.instructions))
    found = lds_clocks(code.object, launch.kernel, launch.workgroup[0], order)
    waves = launch.workgroup[0] // 64
    extra = sum((clocks - round(min_clocks(kernel.instructions[n].name))) * waves for n, clocks in found.items())
    _, report = execution.execute(code.record, code.object, reference.fills(problem))
    groups = int(np.prod(launch.grid))
    assert report.counters["lds_bank_conflict_cycles"] == pytest.approx(extra * groups)


def min_clocks(name: str) -> float:
    bits = int(name.rpartition("_b")[2])
    return {32: 2, 64: 4, 96: 8, 128: 8}[bits]


def test_a_kernel_of_another_compiler_has_clocks() -> None:
    code = (FOREIGN / "triton_gfx942_small_gemm_NT.hsaco").read_bytes()
    found = loop_clocks(code, 500.0)
    assert found.threads == 256
    assert found.flop > 0
    alone, all_of_it = found.of(1)[0], found.of(found.resident)[0]
    assert 4 * found.matrix / 4 <= alone < all_of_it <= found.resident * alone


def test_profiles_tell_what_the_loop_waits_for() -> None:
    (kernel,) = profile((FOREIGN / "triton_gfx942_small_gemm_NT.hsaco").read_bytes(), "a.hsaco", 2000.0)
    alone = kernel.loops[0]
    longest = max(alone.lines, key=lambda timed: timed.stalled)
    assert alone.bound == "waiting"
    assert "vmcnt" in longest.line.text
    assert sum(timed.stalled for timed in alone.lines) <= alone.clocks * 1.01


def test_kernels_without_a_loop_are_their_own() -> None:
    (kernel,) = profile((FOREIGN / "iree_gfx942_small_gemm_NT.hsaco").read_bytes(), "a.hsaco", 500.0)
    assert kernel.loops[0].rest < kernel.loops[0].clocks


def test_more_workgroups_than_fit_are_refused() -> None:
    code = (FOREIGN / "triton_gfx942_small_gemm_NT.hsaco").read_bytes()
    with pytest.raises(UserError, match="given 99 workgroups on a unit, wanted at most 8"):
        profile(code, "a.hsaco", 500.0, 99)


def test_a_loop_hides_loads_though_few_waves_share_the_pipes() -> None:
    """48 workgroups of two waves, each alone on a unit: pipes are half as busy as by four."""
    problem = Conv.parse("mb1ic768ih14oc96oh14kh3ph1", dir="FWD_D", dt="s8")
    config = "tile=32x16x1152 waves=2x1 mma=16x16x32 slots=2 taps=resident acc=v"
    code = driver.compile(driver.build(problem, "gfx942", config)).object
    assert code is not None
    two_blocks = loop_clocks(code, 500.0).of(1)
    assert two_blocks.exposed < 1
