"""Scalar stores and atomic operations, as far as waves see them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

SETUP = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_mov_b32 s12, 5
  s_mov_b32 s13, 9
  s_waitcnt lgkmcnt(0)
"""
#: What is done to words 0 to 3 of memory, 7 8 9 10, by one wave; what s[12:13] hold then is stored behind them.
CASES = {
    "s_store_dwordx2 s[12:13], s[4:5], 0x4": ([7, 5, 9, 10], [5, 9]),
    "s_movk_i32 s14, 0x8\n s_store_dword s13, s[4:5], s14": ([7, 8, 9, 10], [5, 9]),
    "s_atomic_add s12, s[4:5], 0x4": ([7, 13, 9, 10], [5, 9]),
    "s_atomic_add s12, s[4:5], 0x4 glc": ([7, 13, 9, 10], [8, 9]),
    "s_atomic_inc s12, s[4:5], 0x0 glc": ([0, 8, 9, 10], [7, 9]),
    "s_atomic_swap_x2 s[12:13], s[4:5], 0x8 glc": ([7, 8, 5, 9], [9, 10]),
    "s_atomic_cmpswap s[12:13], s[4:5], 0x8 glc": ([7, 8, 5, 10], [9, 9]),
    "s_atomic_cmpswap s[12:13], s[4:5], 0x4 glc": ([7, 8, 9, 10], [8, 9]),
}


@pytest.mark.parametrize("line", CASES)
def test_values(sim: Any, line: str) -> None:
    body = f"{SETUP} {line}\n s_waitcnt lgkmcnt(0)\n s_store_dwordx2 s[12:13], s[6:7], 0x0\n s_waitcnt lgkmcnt(0)"
    memory, out = np.array([7, 8, 9, 10], np.uint32), np.zeros(2, np.uint32)
    report = sim.run("gfx942", body, {"memory": memory, "out": out})
    assert not report.findings, str(report.findings[0])
    assert (memory.tolist(), out.tolist()) == CASES[line]


def test_each_wave_adds(sim: Any) -> None:
    memory = np.zeros(4, np.uint32)
    body = f"{SETUP} s_atomic_add s12, s[4:5], 0x0\n s_waitcnt lgkmcnt(0)"
    report = sim.run("gfx90a", body, {"memory": memory, "out": np.zeros(2, np.uint32)}, grid=3, workgroup=256)
    assert not report.findings
    assert memory[0] == 3 * 4 * 5


def test_a_result_that_is_not_waited_for(sim: Any) -> None:
    body = f"{SETUP} s_atomic_add s12, s[4:5], 0x0 glc\n s_add_u32 s14, s12, s12\n s_waitcnt lgkmcnt(0)"
    report = sim.run("gfx942", body, {"memory": np.zeros(4, np.uint32), "out": np.zeros(2, np.uint32)})
    assert sim.kinds(report) == ["wait-count"]


@pytest.mark.parametrize(("wait", "found"), [("", ["global-visibility"]), ("s_waitcnt lgkmcnt(0)\n", [])])
def test_a_load_behind_a_store_that_is_not_waited_for(sim: Any, wait: str, found: list[str]) -> None:
    body = f"""{SETUP} s_store_dword s12, s[4:5], 0x0
        v_mov_b32 v2, 0
        {wait}
        global_load_dword v1, v2, s[4:5]
        s_waitcnt vmcnt(0) lgkmcnt(0)"""
    report = sim.run("gfx942", body, {"memory": np.zeros(4, np.uint32), "out": np.zeros(2, np.uint32)})
    assert sim.kinds(report) == found


@pytest.mark.parametrize("returns", ["", " glc"])
@pytest.mark.parametrize(("wait", "found"), [("", ["global-visibility"]), ("s_waitcnt lgkmcnt(0)\n", [])])
def test_another_wave_sees_an_atomic_operation_behind_a_wait_and_a_barrier(
    sim: Any, wait: str, found: list[str], returns: str
) -> None:
    body = f"""{SETUP} s_atomic_add s12, s[4:5], 0x0{returns}
        v_mov_b32 v2, 0
        {wait}
        s_barrier
        global_load_dword v1, v2, s[4:5]
        s_waitcnt vmcnt(0) lgkmcnt(0)"""
    buffers = {"memory": np.zeros(4, np.uint32), "out": np.zeros(2, np.uint32)}
    assert set(sim.kinds(sim.run("gfx942", body, buffers, workgroup=128))) == set(found)


@pytest.mark.parametrize(("operation", "found"), [("add", ["poison"]), ("swap", [])])
def test_an_atomic_operation_that_reads_undefined_memory(sim: Any, operation: str, found: list[str]) -> None:
    body = f"{SETUP} s_atomic_{operation} s12, s[4:5], 0x0\n s_waitcnt lgkmcnt(0)"
    buffers = {"memory": np.zeros(4, np.uint32), "out": np.zeros(2, np.uint32)}
    assert sim.kinds(sim.run("gfx942", body, buffers, uninitialised=("memory",))) == found


def test_an_atomic_operation_races_with_a_plain_store_of_another_wave(sim: Any) -> None:
    """Both waves store plainly, then update atomically, without a barrier between."""
    body = f"""{SETUP} v_mov_b32 v2, 0
        v_mov_b32 v3, 1
        global_store_dword v2, v3, s[4:5]
        s_waitcnt vmcnt(0)
        s_atomic_add s12, s[4:5], 0x0
        s_waitcnt lgkmcnt(0)"""
    buffers = {"memory": np.zeros(4, np.uint32), "out": np.zeros(2, np.uint32)}
    assert "global-race" in sim.kinds(sim.run("gfx942", body, buffers, workgroup=128))
