"""Atomic LDS operations: values against a loop over lanes, and what they may race with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.amdgpu.sim import simulate

Array = npt.NDArray[Any]
CELLS = 16
#: v1 = 8 * (lane % 16) the cell, v[4:7] the lane's data, v[8:9] what the cell starts with.
SETUP = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_load_dwordx2 s[8:9], s[0:1], 0x10
  v_and_b32_e32 v1, 15, v0
  v_lshlrev_b32_e32 v1, 3, v1
  v_lshlrev_b32_e32 v3, 4, v0
  s_waitcnt lgkmcnt(0)
  global_load_dwordx4 v[4:7], v3, s[4:5]
  global_load_dwordx2 v[8:9], v1, s[6:7]
  v_mov_b32_e32 v10, 0
  v_mov_b32_e32 v11, 0
  s_waitcnt vmcnt(0)
  ds_write_b64 v1, v[8:9]
"""
FINISH = """
  ds_read_b64 v[12:13], v1
  s_waitcnt lgkmcnt(0)
  v_mov_b32_e32 v14, v10
  v_mov_b32_e32 v15, v11
  global_store_dwordx4 v3, v[12:15], s[8:9]
"""
Meaning = Callable[[Any, Any, Any], Any]
SIGNED = {4: np.int32, 8: np.int64}
REAL = {4: np.float32, 8: np.float64}


def viewed(dtype: Any, function: Callable[[Any, Any], Any]) -> Meaning:
    """`function` on the numbers of a type instead of unsigned integers; `old` and `new` are arrays of one."""

    def apply(old: Array, new: Array, comparand: Array) -> Array:
        word = old.dtype
        result: Array = function(old.view(dtype), new.view(dtype)).astype(dtype).view(word)
        return result

    return apply


def operations(size: int) -> dict[str, Meaning]:
    bits = 8 * size
    result: dict[str, Meaning] = {
        f"ds_add{{}}_u{bits}": lambda o, n, c: o + n,
        f"ds_sub{{}}_u{bits}": lambda o, n, c: o - n,
        f"ds_rsub{{}}_u{bits}": lambda o, n, c: n - o,
        f"ds_min{{}}_u{bits}": lambda o, n, c: np.minimum(o, n),
        f"ds_max{{}}_i{bits}": viewed(SIGNED[size], np.maximum),
        f"ds_and{{}}_b{bits}": lambda o, n, c: o & n,
        f"ds_or{{}}_b{bits}": lambda o, n, c: o | n,
        f"ds_xor{{}}_b{bits}": lambda o, n, c: o ^ n,
        f"ds_inc{{}}_u{bits}": lambda o, n, c: np.where(o >= n, 0, o + 1).astype(o.dtype),
        f"ds_cmpst{{}}_b{bits}": lambda o, n, c: np.where(o == c, n, o),
        f"ds_mskor{{}}_b{bits}": lambda o, n, c: (o & ~c) | n,
        f"ds_cmpst{{}}_f{bits}": lambda o, n, c: np.where(o.view(REAL[size]) == c.view(REAL[size]), n, o),
        f"ds_add{{}}_f{bits}": viewed(REAL[size], np.add),
        f"ds_max{{}}_f{bits}": viewed(REAL[size], np.fmax),
    }
    return result


NAMES = [(name, size, meaning) for size in (4, 8) for name, meaning in operations(size).items()]
PACKED = [
    ("ds_pk_add{}_f16", 4, viewed(np.float16, np.add)),
    ("ds_pk_add{}_bf16", 4, viewed(ml_dtypes.bfloat16, lambda o, n: o.astype(np.float32) + n.astype(np.float32))),
]


def inputs(name: str, size: int) -> tuple[Array, Array, Array]:
    """Unsigned words: 64 of data, 64 comparands, 16 cells."""
    rng, word = np.random.default_rng(len(name)), np.uint32 if size == 4 else np.uint64
    if "_f" in name or "bf16" in name:
        dtype = ml_dtypes.bfloat16 if "bf16" in name else np.float16 if "f16" in name else REAL[size]
        many = size // np.dtype(dtype).itemsize
        return tuple(  # type: ignore[return-value]
            rng.integers(-8, 9, n * many).astype(dtype).view(word) for n in (64, 64, CELLS)
        )
    top = 3 if "cmpst" in name else np.iinfo(word).max
    return tuple(rng.integers(0, top, n, dtype=word) for n in (64, 64, CELLS))  # type: ignore[return-value]


@pytest.mark.parametrize("returning", [False, True])
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_values(sim: Any, arch: str, returning: bool) -> None:
    """Four lanes of the wave meet in each cell."""
    kernels, launches, wanted = {}, [], {}
    buffers: dict[str, Array] = {}
    for name, size, meaning in NAMES + (PACKED if arch != "gfx90a" else []):
        data, comparand, cells = inputs(name, size)
        first, second = ("v4", "v5") if size == 4 else ("v[4:5]", "v[6:7]")
        values = f"{second}, {first}" if "cmpst" in name or "mskor" in name else first
        target = ("v10, " if size == 4 else "v[10:11], ") if returning else ""
        kernel = name.format("_rtn" if returning else "")
        line = f"{kernel} {target}v1, {values}\n s_waitcnt lgkmcnt(0)"
        kernels[kernel] = sim.Source(SETUP + line + FINISH, lds=CELLS * 8)
        per_lane, start = np.zeros((64, 16), np.uint8), np.zeros((CELLS, 8), np.uint8)
        per_lane[:, :size] = data.view(np.uint8).reshape(64, -1)
        per_lane[:, size : 2 * size] = comparand.view(np.uint8).reshape(64, -1)
        start[:, :size] = cells.view(np.uint8).reshape(CELLS, -1)
        names = [f"{kind} {kernel}" for kind in ("data", "cells", "out")]
        buffers |= zip(names, (per_lane.reshape(-1), start.reshape(-1), np.zeros(1024, np.uint8)), strict=True)
        launches.append(sim.launch(kernel, names))
        old = np.zeros(64, cells.dtype)
        for lane in range(64):
            cell = slice(lane % CELLS, lane % CELLS + 1)
            old[lane] = cells[cell][0]
            cells[cell] = meaning(cells[cell], data[lane : lane + 1], comparand[lane : lane + 1])
        wanted[kernel] = (cells, old, size)
    report = simulate(sim.assemble(arch, kernels), launches, buffers)
    assert not report.findings, str(report.findings[0])
    for kernel, (cells, old, size) in wanted.items():
        out = buffers[f"out {kernel}"].reshape(64, 16)
        got, found = (np.ascontiguousarray(out[:, at : at + size]).view(cells.dtype)[:, 0] for at in (0, 8))
        np.testing.assert_array_equal(got, cells[np.arange(64) % CELLS], kernel)
        if returning:
            np.testing.assert_array_equal(found, old, kernel)


def test_wrap_and_exchanges_of_two(sim: Any) -> None:
    """Lanes of their own cells: wrap takes off a limit or adds, wrxchg2 replaces two elements and gives both."""
    lines: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
        "ds_wrap_rtn_b32 v10, v1, v4, v5": lambda cell, x, y: (cell - x if cell >= x else cell + y, cell),
        "ds_wrxchg2_rtn_b32 v[10:11], v1, v4, v5 offset1:1": lambda cell, x, y: (x, cell),
        "ds_wrxchg2st64_rtn_b32 v[10:11], v1, v4, v5 offset1:1": lambda cell, x, y: (x, cell),
    }
    rng = np.random.default_rng(4)
    data, cells = (rng.integers(0, 1000, shape, dtype=np.uint32) for shape in ((64, 4), (CELLS, 2)))
    for line, meaning in lines.items():
        body = SETUP.replace("ds_write", "s_mov_b64 exec, 0xffff\n ds_write")
        body += f"{line}\n s_waitcnt lgkmcnt(0){FINISH}"
        if "st64" in line:
            body = body.replace("ds_write_b64 v1, v[8:9]", "ds_write_b64 v1, v[8:9]\n ds_write_b32 v1, v9 offset:256")
        out = np.zeros((64, 4), np.uint32)
        report = sim.run("gfx942", sim.Source(body, lds=512), {"data": data, "cells": cells, "out": out})
        assert not report.findings, str(report.findings[0])
        for lane in range(CELLS):
            (cell, second), (x, y) = cells[lane].tolist(), data[lane, :2].tolist()
            left, found = meaning(cell, x, y)
            other = y if "wrxchg2_" in line else second
            assert out[lane].tolist() == [left, other, found, second if "wrxchg" in line else 0], line


#: Two waves; v1 = 4 * lane, s3 the wave. The second one sees what the first did only behind the barrier.
TWO = """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshrrev_b32_e32 v2, 6, v0
  s_nop 1
  v_readfirstlane_b32 s3, v2
  v_and_b32_e32 v1, 63, v0
  v_lshlrev_b32_e32 v1, 2, v1
  v_mov_b32_e32 v2, 1
  s_waitcnt lgkmcnt(0)
  s_cmp_lg_u32 s3, 0
  s_cbranch_scc1 1f
  ds_write_b32 v1, v2
  s_waitcnt lgkmcnt(0)
1:
  s_barrier
"""
ADD, READ, WRITE = "ds_add_u32 v1, v2", "ds_read_b32 v4, v1", "ds_write_b32 v1, v2"
SPLIT = "s_cmp_lg_u32 s3, 0\n s_cbranch_scc1 2f\n {first}\n s_branch 3f\n 2: {second}\n 3: s_waitcnt lgkmcnt(0)\n"


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize(("first", "second"), [(ADD, ADD), (ADD, READ), (READ, ADD), (ADD, WRITE), (WRITE, ADD)])
def test_races(sim: Any, first: str, second: str, order: str) -> None:
    report = sim.run(
        "gfx942",
        sim.Source(TWO + SPLIT.format(first=first, second=second), lds=256),
        {"out": np.zeros(64, np.uint32)},
        workgroup=128,
        wave_order=order,
    )
    assert sim.kinds(report) == ([] if first == second else ["lds-race"])


@pytest.mark.parametrize(
    ("line", "kind"), [("s_waitcnt lgkmcnt(0)\n s_barrier", []), ("s_barrier", ["lds-race"]), ("", ["lds-race"])]
)
def test_sums_behind_a_barrier(sim: Any, line: str, kind: list[str]) -> None:
    """Both waves add; what they read behind a wait and a barrier is the sum."""
    out = np.zeros(64, np.uint32)
    body = TWO + f"{ADD}\n {ADD}\n {line}\n {READ}\n s_waitcnt lgkmcnt(0)\n global_store_dword v1, v4, s[4:5]"
    report = sim.run("gfx950", sim.Source(body, lds=256), {"out": out}, workgroup=128)
    assert sim.kinds(report) == kind
    if not kind:
        assert (out == 5).all()


def test_undefined_lds(sim: Any) -> None:
    start = "v_lshlrev_b32_e32 v1, 2, v0\n v_mov_b32_e32 v2, 1\n"
    for lines, kinds in ((ADD, ["poison"]), ("ds_wrxchg_rtn_b32 v4, v1, v2\n" + ADD, []), (WRITE + "\n" + ADD, [])):
        assert sim.kinds(sim.run("gfx90a", sim.Source(start + lines, lds=256), {})) == kinds


#: Two waves add 1 each in a loop of compare-and-swap; the first guess is in another register, by another address.
GUESS = """
  v_mov_b32_e32 v1, 0
  ds_write_b32 v1, v1 offset:8
  ds_write_b32 v1, v1 offset:12
  s_waitcnt lgkmcnt(0)
  s_barrier
  s_mov_b64 exec, 1
  v_mov_b32_e32 v2, 4
  ds_read_b32 v6, v2 offset:{guess}
  s_waitcnt lgkmcnt(0)
  v_mov_b32_e32 v5, v6
1:
  v_add_u32_e32 v4, 1, v5
  ds_cmpst_rtn_b32 v4, v1, v5, v4 offset:8
  s_waitcnt lgkmcnt(0)
  v_cmp_ne_u32_e32 vcc, v4, v5
  v_mov_b32_e32 v5, v4
  s_cbranch_vccnz 1b
  ds_add_u32 v1, v4 offset:12
  {between}
  s_waitcnt lgkmcnt(0)
  {barrier}
  ds_read_b32 v6, v1 offset:8
  s_waitcnt lgkmcnt(0)
"""


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, []),
        ({"guess": 8}, ["lds-race"]),
        ({"barrier": ""}, ["lds-race"]),
        ({"between": "ds_write_b32 v1, v1 offset:8"}, ["lds-race"]),
    ],
    ids=["found out", "of another place", "read without a barrier", "overwritten"],
)
def test_a_first_guess_may_be_stale(sim: Any, arch: str, changes: dict[str, Any], kinds: list[str]) -> None:
    body = GUESS.format(**{"guess": 4, "barrier": "s_barrier", "between": "", **changes})
    for order in ("forward", "reverse"):
        report = sim.run(arch, sim.Source(body, lds=16), {"o": np.zeros(4, np.uint32)}, workgroup=128, wave_order=order)
        assert sim.kinds(report) == kinds
