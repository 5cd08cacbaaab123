"""Asynchronous copies: the kernel before selection is interpreted, its PTX is simulated, and both are right."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from convgen import driver
from convgen.backends.target import get
from convgen.ir.error import UserError
from convgen.passes import pipeline
from convgen.plan.config import Config
from convgen.problem.conv import Conv
from convgen.problem.matmul import parse_problem
from convgen.run import verdict
from convgen.run.code import Code
from tests.passes.running import assert_right, tile_kernels
from tests.strategies import FIXED, SWEEP

NHWC = "--stag=axb --wtag=axb --dtag=axb"
#: types of a problem -> instruction
ATOMS = {
    "f16": "8x16x16",
    "bf16": "8x16x16",
    "f16:f16:f32": "8x16x16",
    "s8": "8x16x32",
    "f32": "8x4x4",
    "f64": "8x4x2",
}
_SIZE = {"f16": 2, "bf16": 2, "f16:f16:f32": 2, "s8": 1, "f32": 4, "f64": 8}


@st.composite
def direct(draw: st.DrawFn) -> tuple[str, str, str]:
    """A target, a problem with ragged ends and padding, and a config that copies both inputs directly."""
    target, kind = draw(st.sampled_from(("sm_80", "sm_90"))), draw(st.sampled_from(("gemm", "FWD_D", "BWD_D", "BWD_W")))
    types = draw(st.sampled_from(tuple(ATOMS)))
    if kind == "BWD_W" or kind == "BWD_D":  # s8 and halves are read transposed or refused
        types = draw(st.sampled_from(("f16", "bf16", "f32", "f64")))
    run = 16 // _SIZE[types]  # elements of a copy of 16 bytes
    whole, any_size = st.integers(1, 96 // run).map(lambda n: n * run), st.integers(1, 40)
    slots = draw(st.integers(2, 4))
    taps = "fused" if kind in ("gemm", "BWD_W") else "split"
    tile_k = 64 if types == "s8" else 32
    config = f"tile=32x32x{tile_k} waves=1x2 mma={ATOMS[types]} slots={slots} taps={taps} copy=direct"
    if kind == "gemm":
        m, n, k = draw(any_size), draw(any_size), draw(whole)
        return target, f"--dt={types} --stag=ab --wtag=ba {m}x{k}:{k}x{n}", config
    ic, oc = draw(whole), draw(whole)
    size, kernel = draw(st.integers(3, 7)), draw(st.integers(1, 3))
    pad, images = draw(st.integers(0, kernel)), draw(st.integers(1, 2))
    line = f"mb{images}ic{ic}oc{oc}ih{size}kh{kernel}ph{pad}iw{draw(st.integers(3, 6))}kw{kernel}pw1"
    stride = f"sh{draw(st.integers(1, 2))}" if kind != "BWD_D" else ""
    return target, f"--dir={kind} --dt={types} {NHWC} {line}{stride}", config


def check(case: tuple[str, str, str]) -> bool:
    """Interpret and simulate a case; return whether the config fits it."""
    target, line, config = case
    note(" ".join(case))
    problem, facts = parse_problem(line), get(target).facts
    try:
        code = driver.compile(driver.build(problem, target, config))
    except UserError as error:
        if "copy=direct" not in str(error):
            raise
        return False
    assert "cp.async" in code.asm
    if isinstance(problem, Conv):
        kernels = tile_kernels(problem, Config.parse(code.config), facts)
        assert_right(problem, *(pipeline.run(kernel, facts) for kernel in kernels))
    outcome = verdict.run(code)
    assert not outcome.findings, "\n".join(map(str, outcome.findings[:3]))
    assert not outcome.mismatches, "\n".join(map(str, outcome.first))
    return True


def test_copies_land_before_they_are_read() -> None:
    fitting = []

    @settings(FIXED, max_examples=12)
    @given(direct())
    def run(case: tuple[str, str, str]) -> None:
        fitting.append(check(case))

    run()
    assert sum(fitting) >= len(fitting) / 2


@pytest.mark.sweep
@settings(SWEEP, max_examples=150)
@given(direct())
def test_copies_of_many_problems_land_before_they_are_read(case: tuple[str, str, str]) -> None:
    check(case)


def gemm(slots: int) -> Code:
    config = f"tile=32x32x32 waves=2x2 mma=8x16x16 slots={slots} taps=fused copy=direct"
    return driver.compile(driver.build(parse_problem("--dt=f16 64x960:960x64"), "sm_90", config))


@pytest.mark.parametrize("slots", [2, 3, 4])
def test_all_slots_but_one_are_in_flight(slots: int) -> None:
    """A barrier of the loop waits for the oldest block; the others, `slots - 2`, may be pending."""
    loop = re.split(r"^(?:LOOP|END)_\d+:", gemm(slots).asm, flags=re.MULTILINE)[1]
    waits = [int(n) for n in re.findall(r"wait_group (\d+)", loop)]
    assert set(waits) == {slots - 2}
    assert loop.count("commit_group") == loop.count("bar.sync") == len(waits)


def test_one_slot_waits_for_all() -> None:
    assert set(re.findall(r"wait_group (\d+)", gemm(1).asm)) == {"0"}


def test_kernels_without_copies_have_no_groups() -> None:
    config = "tile=32x32x32 waves=2x2 mma=8x16x16 slots=3 taps=fused"
    text = driver.compile(driver.build(parse_problem("--dt=f16 64x320:320x64"), "sm_90", config)).asm
    assert "cp.async" not in text


@pytest.mark.parametrize(("dt", "runs", "width"), [("f16", 8, 16), ("f16", 4, 8), ("f16", 2, 4), ("f32", 1, 4)])
def test_copies_are_as_wide_as_memory_is_aligned(dt: str, runs: int, width: int) -> None:
    """`.cg`, which leaves out L1, takes 16 bytes only."""
    k = 32 + runs
    atom = "8x16x16" if dt == "f16" else "8x4x4"
    config = f"tile=32x32x32 waves=1x2 mma={atom} slots=3 taps=fused copy=direct"
    code = driver.compile(driver.build(parse_problem(f"--dt={dt} --wtag=ba 32x{k}:{k}x32"), "sm_90", config))
    found = set(re.findall(r"cp\.async\.(c[ag])\.shared\.global\S* \[[^]]*\], \[[^]]*\], (\d+)", code.asm))
    assert found == {("cg" if width == 16 else "ca", str(width))}
    assert verdict.run(code).passed
