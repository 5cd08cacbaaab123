"""Tensors larger than a surface: beyond 2^31 bytes, and small ones on a target whose surfaces are small.

The surface then moves with the tile, and offsets count from where it begins.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest

from convgen import driver
from convgen.backends import target as targets
from convgen.backends.amdgpu.targets import TARGETS
from convgen.backends.intel.targets import TARGETS as XE_TARGETS
from convgen.ir.error import Unsupported
from convgen.ir.record import evolve
from convgen.ir.types import scalar
from convgen.problem.conv import Conv
from convgen.problem.matmul import parse_problem
from convgen.run import verdict

pytestmark = pytest.mark.in_turn(2)

LIMIT = 2**31

#: few outputs far apart where the large tensor is read, one tap where it is written: what is multiplied stays small
PROBLEMS = [
    ("FWD_D", "mb3ic16iw23000003oc8kw3sw999pw1", "src"),
    ("FWD_D", "mb1ic16iw70000003oc8kw3sw2999pw1", "src"),
    ("FWD_B", "mb3ic2iw23000003oc16kw1", "dst"),
    ("BWD_D", "mb3ic16iw23000003oc2kw1", "diff_src"),
    ("BWD_W", "mb3ic16iw23000003oc8kw3sw999pw1", "src"),
    ("BWD_W", "mb1ic16iw70000003oc8kw3sw2999pw1", "src"),
]


@pytest.mark.sweep
def test_tensors_beyond_two_gigabytes() -> None:
    """Sampled: workgroups that read or write behind the mark are among them."""
    for direction, descriptor, large in PROBLEMS:
        problem = Conv.parse(descriptor, dir=direction, dt="f16")
        tensor = problem.tensor(large)
        assert tensor.layout.size_elems * scalar(tensor.dtype).bytes > LIMIT
        outcome = verdict.run(driver.compile(driver.build(problem)), groups=8)
        assert outcome.checked, direction
        assert not outcome.findings, f"{direction}: {outcome.findings[0]}"
        assert not outcome.mismatches, f"{direction}: {outcome.first[0]}"


@pytest.fixture
def surfaces(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Surfaces of so many bytes at most."""

    def limit(size: int) -> None:
        def get(name: str) -> targets.Target:
            target: targets.Target = (TARGETS.get(name) or XE_TARGETS[name])()
            target.facts = evolve(target.facts, surface_max=size)
            return target

        monkeypatch.setattr(targets, "get", get)

    return limit


SHAPES = [
    pytest.param("mb6ic16ih12oc16kh3ph1", "any", id="images"),
    pytest.param("mb1ic16ih40oc16kh3ph1", "any", id="rows"),
    pytest.param("mb1ic16ih40oc16kh3ph0sh2", "any", id="rows_apart"),
    pytest.param("mb1ic16ih40oc16kh3ph3dh2", "any", id="taps_apart"),
    pytest.param("mb1ic16id12oc16kd3pd1", "any", id="planes"),
    pytest.param("mb6ic16iw100oc16kw2pw0sw3", "any", id="images_of_one_axis"),
    pytest.param("mb12ic16ih9oc16kh3ph1", "abx", id="channels_first"),
]


@pytest.mark.parametrize("target", ["xehpg", "xehpc"])
@pytest.mark.parametrize(
    "line", ["--dir=FWD_D mb1ic16ih20oc16kh3ph1", "--dir=BWD_W mb6ic16ih8oc16kh3ph1", "300x32:32x47"]
)
def test_small_surfaces_of_flat_addresses(line: str, target: str, surfaces: Callable[[int], None]) -> None:
    """The offsets of 32 bits then count from a 64-bit address that moves with the tile."""
    problem = parse_problem(f"--dt=f16 {line}")
    surfaces(max(t.layout.size_elems * scalar(t.dtype).bytes for t in problem.tensors) * 7 // 8)
    outcome = verdict.run(driver.compile(driver.build(problem, target=target)))
    assert outcome.passed, str(outcome)
    assert outcome.checked == sum(prod(t.dims) for t in problem.outputs)


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("--dt=f16 --stag=ba 90044944x16:16x47", "xehpc"),
        ("--dt=f16 8x3:3x516510367", "gfx942"),
    ],
)
def test_tiles_beyond_two_gigabytes_are_refused_for_their_size(line: str, target: str) -> None:
    with pytest.raises(Unsupported, match=r"^given .* of which one tile spans [0-9]+ bytes") as refused:
        driver.compile(driver.build(parse_problem(line), target=target))
    assert refused.value.rule == "size"


@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D", pytest.param("BWD_W", marks=pytest.mark.sweep)])
@pytest.mark.parametrize(("descriptor", "tag"), SHAPES)
@pytest.mark.parametrize("taps", ["split", pytest.param("fused", marks=pytest.mark.sweep)])
def test_small_surfaces(descriptor: str, tag: str, direction: str, taps: str, surfaces: Callable[[int], None]) -> None:
    """The smallest surface that is not refused: the tensors are larger."""
    problem = Conv.parse(descriptor, dir=direction, dt="f16", stag=tag, dtag=tag)
    config = f"tile=32x32x16 waves=1x1 mma=16x16x16 slots=2 taps={taps}"
    largest = max(t.layout.size_elems * scalar(t.dtype).bytes for t in problem.tensors)
    for eighths in range(2, 9):
        surfaces(largest * eighths // 8)
        try:
            code = driver.compile(driver.build(problem, config=config))
        except Unsupported:
            continue
        outcome = verdict.run(code)
        assert outcome.checked == sum(prod(t.dims) for t in problem.outputs)
        assert not outcome.findings, str(outcome.findings[0])
        assert not outcome.mismatches, str(outcome.first[0])
        assert eighths < 8, "nothing moved"
        return
    raise AssertionError("refused with any surface")
