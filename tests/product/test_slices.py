"""Sums cut in slices: deterministic ones have the same bits in whatever order workgroups run, the others are exact
where every order is.

The simulator runs the workgroups of a launch in the order in which they are given; here one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from math import prod

import numpy as np
import numpy.typing as npt
import pytest

from convgen import driver
from convgen.plan.plan import Reduction
from convgen.problem.conv import Conv
from convgen.problem.matmul import parse_problem
from convgen.run import execution, reference, verdict
from convgen.run.code import Code

pytestmark = pytest.mark.in_turn(6)

Inputs = dict[str, npt.NDArray[np.generic]]

PROBLEMS = {
    "FWD_B": "mb2ic64ih5oc20kh3ph1",
    "BWD_D": "mb2ic20iw9oc64kw3pw1sw2",
    "BWD_WB": "mb2ic8oc20ih8kh3ph1",
}


@pytest.fixture(autouse=True)
def _one_workgroup_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("convgen.backends.amdgpu.sim.simulate"), "BATCH_WAVES", 1)


def sliced(dir: str, *, deterministic: bool, dt: str = "f32", slices: int = 4) -> Code:
    problem = Conv.parse(PROBLEMS[dir], dir=dir, dt=dt, attr_deterministic=deterministic)
    shape = "16x16x4" if problem.inputs[0].dtype == "f32" else "16x16x16"
    depth = 16 if problem.inputs[0].dtype == "f32" else 32
    config = f"tile=32x32x{depth} waves=1x1 mma={shape} slots=2 taps=fused slices={slices}"
    return driver.compile(driver.build(problem, config=config))


def uneven(problem: Conv) -> Inputs:
    """Values whose sums depend on the order of additions."""
    random = np.random.default_rng(5)
    return {t.name: random.standard_normal(t.dims).astype(reference.numpy_type(t.dtype)) for t in problem.inputs}


def orders(code: Code) -> Iterator[list[list[int]]]:
    """Ascending, descending, at random: the workgroups of each launch."""
    random = np.random.default_rng(9)
    counts = [prod(launch.grid) for launch in code.record.launches]
    yield [list(range(count)) for count in counts]
    yield [list(range(count))[::-1] for count in counts]
    yield [list(map(int, random.permutation(count))) for count in counts]


def results(code: Code, inputs: Inputs, output: str) -> list[bytes]:
    """The bytes of an output, for each order."""
    found = []
    for groups in orders(code):
        memory, report = execution.execute(code.record, code.object, inputs, groups)
        assert not report.findings, str(report.findings[0])
        found.append(memory[output].whole().tobytes())
    return found


def atomics(code: Code) -> int:
    return code.asm.count("_atomic_")


@pytest.mark.parametrize("dir", PROBLEMS)
@pytest.mark.parametrize("dt", ["f32", pytest.param("bf16", marks=pytest.mark.sweep)])
def test_deterministic_sums_have_the_same_bits_in_every_order(dir: str, dt: str) -> None:
    code = sliced(dir, deterministic=True, dt=dt)
    assert code.problem is not None
    assert isinstance(code.problem, Conv)
    assert atomics(code) == 0
    assert max(launch.grid[1] for launch in code.record.launches) == 4
    for output in code.problem.outputs:
        assert len(set(results(code, uneven(code.problem), output.name))) == 1


@pytest.mark.parametrize("dir", PROBLEMS)
def test_atomic_sums_depend_on_the_order(dir: str) -> None:
    """So the orders are different ones, and a deterministic sum that used atomics would be noticed."""
    code = sliced(dir, deterministic=False)
    assert isinstance(code.problem, Conv)
    assert atomics(code) > 0
    found = results(code, uneven(code.problem), code.problem.outputs[0].name)
    assert len(set(found)) > 1
    if dir == "BWD_WB":
        assert len(set(results(code, uneven(code.problem), "diff_bia"))) == 1


@pytest.mark.parametrize("dir", PROBLEMS)
def test_atomic_sums_of_integers_are_exact_in_every_order(dir: str) -> None:
    code = sliced(dir, deterministic=False)
    assert isinstance(code.problem, Conv)
    inputs = reference.fill(code.problem)
    (output, *_) = code.problem.outputs
    right = reference.pack(output.layout, reference.whole(code.problem, inputs, output.name)).tobytes()
    assert set(results(code, inputs, output.name)) == {right}


@pytest.mark.parametrize("dir", PROBLEMS)
@pytest.mark.parametrize("dt", ["f16", "bf16"])
def test_outputs_narrower_than_their_sums_take_no_atomics(dir: str, dt: str) -> None:
    """Adding to them would round again and again."""
    code = sliced(dir, deterministic=False, dt=dt)
    assert atomics(code) == 0
    assert verdict.run(code).passed


@pytest.mark.parametrize("dir", PROBLEMS)
@pytest.mark.parametrize("dt", ["f32", "f64", "f16"])
def test_what_the_chooser_takes_is_deterministic_when_asked(dir: str, dt: str) -> None:
    """Deep sums of few outputs, which it slices."""
    descriptor = {
        "FWD_B": "mb1ic4096iw4oc16kw1",
        "BWD_D": "mb1ic16iw4oc4096kw1",
        "BWD_WB": "mb64ic16ih16oc16kh1",
    }[dir]
    code = driver.compile(driver.build(Conv.parse(descriptor, dir=dir, dt=dt, attr_deterministic=True)))
    assert "slices=" in code.config
    tickets = code.asm.count("// counts ticket")  # those say who is the last to arrive; what he adds is in order
    assert atomics(code) == tickets


@pytest.mark.parametrize("dt", ["u8:s32:u8", "s8:s32:u8", "s8:s32:s8"])
def test_padding_of_blocks_stays_zero_where_slices_add_to_it(dt: str) -> None:
    """Zeros that are multiplied as -128 make sums that are none."""
    problem = Conv.parse("mb2ic22ih6oc35kh1", dir="BWD_W", dt=dt, stag="axb", wtag="cAdB2a2b", dtag="axb")
    config = "tile=32x32x64 waves=1x2 mma=16x16x32 slots=1 taps=chunk slices=3"
    assert verdict.run(driver.compile(driver.build(problem, config=config))).passed


_AMD = "tile=32x32x16 waves=1x1 mma=16x16x4 slots=1 taps=fused"
_XE = "tile=32x32x32 waves=1x2 mma=16x8x16 slots=1 taps=fused"
_NVIDIA = "tile=32x32x32 waves=1x2 mma=8x16x16 slots=2 taps=fused"
_BLOCKED = [
    ("--dir=FWD_D --dt=f64 --stag=axb --dtag=acB8b mb2ic40oc17_iw8ow8kw1dw2pw1", "gfx942", f"{_AMD} slices=3"),
    ("--dir=FWD_B --dt=f16:f16:f32 --dtag=AcB4a8b mb3ic40oc17_iw8ow6kw3", "sm_90", f"{_NVIDIA} slices=3"),
    ("--dir=BWD_D --dt=f32:f16:f16 --stag=aBcd16b mb1ic5oc40ih6oh3kh2sh2", "xehpc", f"{_XE} slices=2"),
    ("--dir=BWD_W --dt=f32 --wtag=ABcd8b16a mb2ic20oc20ih5kh2", "gfx942", f"{_AMD} map=stream:5 sum=atomic"),
    ("--dt=f16:f16:f32 --dtag=BA8a16b 20x70:70x21", "xehpc", f"{_XE} slices=2"),
]


@pytest.mark.parametrize(("line", "target", "config"), _BLOCKED)
def test_padding_of_blocks_stays_zero_beside_a_nan(line: str, target: str, config: str) -> None:
    """A lane multiplies the zeros of padding by a NaN; slices must not add the product."""
    problem = parse_problem(line)
    built = driver.build(problem, target, config)
    assert built.plan is not None
    assert built.plan.reduction is Reduction.ATOMIC
    code, inputs = driver.compile(built), reference.fill(problem)
    for factor in problem.factors:
        inputs[factor.name] = inputs[factor.name].copy()
        inputs[factor.name][(0,) * len(factor.dims)] = np.nan
    outcome = verdict.run(code, arrays=inputs)
    assert outcome.passed, outcome.first
