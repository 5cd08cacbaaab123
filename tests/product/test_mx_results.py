"""Results with scales that they decide: each group along the last dim gets one from its greatest absolute value.

With MX formats the rule here is that of the specification (OCP Microscaling Formats 1.0, 6.3), with saturation as in
oneDNN. Groups of 16 with scales of f8_e4m3 (NVFP4) have that of oneDNN (ref_matmul.cpp).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import convgen as cg
from convgen.ir.types import scalar
from convgen.problem.matmul import Matmul, parse_problem
from convgen.run import verdict
from tests.strategies import always

pytestmark = pytest.mark.in_turn(6)

Array = npt.NDArray[Any]

TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpg", "xehpc", "sm_89", "sm_90a")
GROUP = 32
MX = "dst:mx:e8m0:1x32"
FP = "dst:dynamic_fp:f8_e4m3:1x16"
LARGEST = {
    "f8_e4m3": (8, 448.0),
    "f8_e5m2": (15, 57344.0),
    "f4_e2m1": (2, 6.0),
}  #: exponent of the greatest power of two, greatest number


def quantised(values: Array, dtype: str) -> tuple[Array, Array]:
    """Return the elements and the codes of scales of rows."""
    emax, most = LARGEST[dtype]
    elements = np.empty(values.shape, scalar(dtype).numpy)
    codes = np.empty((len(values), -(-values.shape[1] // GROUP)), np.uint8)
    for row, number in np.ndindex(codes.shape):
        own = slice(number * GROUP, (number + 1) * GROUP)
        group = values[row, own].astype(np.float64)
        greatest = max([0.0, *np.abs(group[~np.isnan(group)])])
        if np.isinf(greatest):
            codes[row, number], scale = 255, np.nan
        else:
            exponent = int(np.floor(np.log2(greatest))) if greatest else -(1 << 20)
            exponent = max(exponent - emax, -127)
            codes[row, number], scale = exponent + 127, 2.0**exponent
        quotients = group / scale
        elements[row, own] = np.where(np.isnan(quotients), -most, np.clip(quotients, -most, most))
    return elements, codes


def divided(values: Array, dtype: str) -> tuple[Array, Array]:
    """Return the elements and the scales of rows, in groups of 16: the greatest number divided by that of the type."""
    one, most = np.float32(1), np.float32(LARGEST[dtype][1])
    elements = np.empty(values.shape, scalar(dtype).numpy)
    scales = np.empty((len(values), -(-values.shape[1] // 16)), scalar("f8_e4m3").numpy)
    for row, number in np.ndindex(scales.shape):
        own = slice(number * 16, (number + 1) * 16)
        group = values[row, own].astype(np.float32)
        greatest = np.float32(max([0.0, *np.abs(group[~np.isnan(group)])]))
        scales[row, number] = min(max(greatest / most, np.float32(0.125)), np.float32(448))
        quotients = group * (one / scales[row, number].astype(np.float32))
        elements[row, own] = np.where(np.isnan(quotients), -most, np.clip(quotients, -most, most))
    return elements, scales


def stored(line: str, target: str, values: Array, config: str | None = None) -> dict[str, Array]:
    """Return the results in memory for sums that are `values`: those times 1/16, times a diagonal of 16."""
    problem = parse_problem(line)
    code = cg.compile(cg.build(problem, target, config))
    with np.errstate(over="ignore"):
        results = cg.simulate(code, src=values / 16, wei=np.float32(16) * np.eye(values.shape[1], dtype=np.float32))
    assert isinstance(results, dict)
    return results


def special(n: int, dtype: str) -> Array:
    """Rows of numbers near all limits: of f32, of the type, zeros, denormals and ties of rounding."""
    rng = np.random.default_rng(n)
    rows = [rng.normal(size=n) * 2.0 ** rng.integers(-20, 20, n) for _ in range(6)]
    rows.append(np.zeros(n))
    rows.append(np.full(n, 2.0**-120))
    rows.append(rng.choice([2.0**-126, 2.0**-127 * 1.5, 0.0, -(2.0**-130)], n))
    rows.append(rng.choice([2.0**127, -(2.0**126), 1.0], n))
    rows.append(np.where(np.arange(n) % GROUP == 3, LARGEST[dtype][1] * 1.125, 2.0**-9))
    rows.append(np.arange(n) / 16 + 1)
    return np.array(rows).astype(np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", sorted(LARGEST))
def test_groups_get_the_scale_of_their_greatest_number(target: str, dtype: str) -> None:
    values = special(72, dtype)
    line = f"--dt=f32:f32:{dtype} --attr-scales={MX} {len(values)}x72:72x72"
    results = stored(line, target, values)
    elements, codes = quantised(values, dtype)
    assert np.array_equal(results["dst_scales"].view(np.uint8), codes)
    assert np.array_equal(results["dst"].astype(np.float32), elements.astype(np.float32))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", sorted(LARGEST))
def test_groups_get_their_greatest_number_divided_by_that_of_the_type(target: str, dtype: str) -> None:
    most, steps = LARGEST[dtype][1], np.arange(72) // 16
    values = special(72, dtype)
    near = [most * np.float32(1 + n / 16) * np.float32(2) ** (steps - 2) for n in range(16)]  # all eighths, and ties
    values = np.concatenate([values, [row * np.linspace(-1, 1, 72, dtype=np.float32) for row in near]])
    values = np.concatenate([values, [np.where(np.arange(72) % 16 == 7, row, row / 3) for row in near]])
    values = values.astype(np.float32)
    line = f"--dt=f32:f32:{dtype} --attr-scales={FP} {len(values)}x72:72x72"
    results = stored(line, target, values)
    elements, scales = divided(values, dtype)
    assert np.array_equal(results["dst_scales"].view(np.uint8), scales.view(np.uint8))
    assert np.array_equal(results["dst"].astype(np.float32), elements.astype(np.float32))


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90a"])
def test_infinite_sums_make_the_scale_the_greatest_number_of_its_type(target: str) -> None:
    src, wei = np.ones((2, 32), np.float32), np.eye(32, dtype=np.float32)
    src[0, 0] = 2.0**127
    src[1, 0] = np.nan
    wei[0, 0] = 4
    code = cg.compile(cg.build(parse_problem(f"--dt=f32:f32:f8_e4m3 --attr-scales={FP} 2x32:32x16"), target))
    results = cg.simulate(code, src=src, wei=np.ascontiguousarray(wei[:, :16]))
    assert isinstance(results, dict)
    assert results["dst_scales"].astype(np.float32).tolist() == [[448], [0.125]]
    assert results["dst"][0, 0].astype(np.float32) == 448
    assert (results["dst"][1].astype(np.float32) == -448).all()


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90a"])
def test_infinite_sums_make_the_scale_nan_and_nans_have_no_part_in_it(target: str) -> None:
    values = np.ones((3, 64), np.float32)
    src, wei = values / 16, np.float32(16) * np.eye(64, dtype=np.float32)
    src[1, 5] = 2.0**125
    src[2, 0] = np.nan
    code = cg.compile(cg.build(parse_problem(f"--dt=f32:f32:f8_e4m3 --attr-scales={MX} 3x64:64x64"), target))
    results = cg.simulate(code, src=src, wei=wei)
    assert isinstance(results, dict)
    assert results["dst_scales"].view(np.uint8).tolist() == [[119, 119], [255, 119], [0, 0]]
    assert (results["dst"][0].astype(np.float32) == 256).all()
    assert (results["dst"][1, :32].astype(np.float32) == -448).all()
    assert (results["dst"][1, 32:].astype(np.float32) == 256).all()
    assert (results["dst"][2].astype(np.float32) == -448).all()


#: Lines with steps before the scales, a result that is contiguous along rows, batches, and the factors' own scales.
LINES = [
    f"--dt=f16:f16:f8_e4m3 --attr-scales={MX} 50x72:72x80",
    f"--dt=bf16:bf16:f8_e5m2 --dtag=ba --bia-dt=f32 --attr-scales={MX} --attr-post-ops=relu 40x64:64x100",
    f"--dt=f8_e4m3:f8_e4m3:f8_e4m3 --attr-scales=src:per_ocic:e8m0:1x32+wei:per_ocic:e8m0:32x1+{MX} 2x6x64:2x64x48",
    f"--dt=f16:f16:f8_e4m3 --attr-scales={MX} --attr-post-ops=tanh+linear:1:3 20x64:64x20",
    f"--dt=f4_e2m1:f4_e2m1:f4_e2m1 --attr-scales=src:per_ocic:e8m0:1x32+wei:per_ocic:e8m0:32x1+{MX} 6x64:64x48",
    f"--dt=f16:f16:f4_e2m1 --dtag=acb --attr-scales={MX} --attr-post-ops=relu 2x34x24:2x24x40",
    f"--dt=s8:s8:f8_e4m3 --attr-scales=wei:per_oc:f32+{MX} 9x32:32x40",
    f"--dt=s8:s8:f8_e4m3 --attr-scales=src:1:f32+wei:4:f16+{MX} --grouped=0:3:1+0+4 5x3:3x3x96",
    f"--dt=f16:f16:f8_e4m3 --attr-scales={FP} --grouped=0:2:40+30 70x64:2x64x96",
    f"--dt=f16:f16:f8_e4m3 --attr-scales={MX} --grouped=0:3:1+2+2 5x32:3x32x90",
    f"--dt=f16:f16:f4_e2m1 --attr-scales={FP} 50x72:72x80",
    f"--dt=bf16:bf16:f8_e4m3 --dtag=ba --bia-dt=f32 --attr-scales={FP} --attr-post-ops=relu+linear:9:3 40x64:64x90",
    f"--dt=f4_e2m1:f4_e2m1:f4_e2m1 --attr-scales=src:per_ocic:f8_e4m3:1x16+wei:per_ocic:f8_e4m3:16x1+{FP} 6x64:64x48",
]


@pytest.mark.parametrize("line", always(((line,) for line in LINES), lambda n, row: n % 3 == 0))
@pytest.mark.parametrize("target", TARGETS)
def test_scales_are_outputs_beside_the_result(target: str, line: str) -> None:
    code = cg.compile(cg.build(parse_problem(line), target))
    outcome = verdict.run(code)
    assert outcome.passed, (line, target, outcome.first, outcome.findings)


def test_a_sample_of_tiles_checks_their_scales() -> None:
    code = cg.compile(cg.build(parse_problem(f"--dt=f16:f16:f8_e4m3 --attr-scales={MX} 512x64:64x512"), "gfx942"))
    outcome = verdict.run(code, groups=2)
    assert outcome.passed
    assert 0 < outcome.checked < 512 * 512


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("tile=32x16x64 waves=1x1 mma=16x16x16 slots=2 taps=split", "within a subgroup's tile"),
        ("tile=32x32x64 waves=1x2 mma=16x16x16 slots=2 taps=split", "within a subgroup's tile"),
        ("tile=32x96x64 waves=1x2 mma=16x16x16 slots=2 taps=split", "within a subgroup's tile"),
        ("tile=32x32x64 waves=1x1 mma=16x16x16 slots=2 taps=split slices=2", "slices: wanted one"),
    ],
)
def test_configs_whose_subgroups_have_parts_of_groups_do_not_fit(config: str, why: str) -> None:
    problem = parse_problem(f"--dt=f16:f16:f8_e4m3 --attr-scales={MX} 64x256:256x192")
    with pytest.raises(cg.UserError, match=why):
        cg.build(problem, "gfx942", config)


@pytest.mark.parametrize(
    "line",
    [
        f"--dt=f16:f16:f16 --attr-scales={MX} 32x32:32x32",
        "--dt=f16:f16:f8_e4m3 --attr-scales=dst:mx:e8m0:1x16 32x32:32x32",
        "--dt=f16:f16:f8_e4m3 --attr-scales=dst:mx:f32:1x32 32x32:32x32",
        "--dt=f16:f16:f8_e4m3 --attr-scales=dst:dynamic_fp:f8_e4m3:1x32 32x32:32x32",
        "--dt=f16:f16:f8_e4m3 --attr-scales=dst:dynamic_fp:f32:1x16 32x32:32x32",
        f"--dt=f16:f16:f16 --attr-scales={FP} 32x32:32x32",
        "--dt=f16:f16:f8_e4m3 --attr-scales=src:mx:e8m0:1x32 32x32:32x32",
        f"--dt=f16:f16:f8_e4m3 --dir=FWD_D --attr-scales={MX} mb1ic16ih8oc32kh3ph1",
        f"--dt=s8:s8:f8_e4m3 --attr-scales={MX} --attr-zero-points=dst:common:1 32x32:32x32",
    ],
)
def test_other_computed_scales_are_refused(line: str) -> None:
    with pytest.raises(cg.Unsupported) as refused:
        cg.build(parse_problem(line), "gfx942")
    assert refused.value.rule == "scales-dynamic"


def test_a_sum_with_elements_of_4_bits_is_refused() -> None:
    problem = parse_problem(f"--dt=f16:f16:f4_e2m1 --attr-scales={MX} --attr-post-ops=sum:0.5 32x32:32x64")
    with pytest.raises(cg.Unsupported, match="wanted a type of whole bytes"):
        cg.build(problem, "gfx942")


def test_elements_of_4_bits_without_pairs_are_refused() -> None:
    with pytest.raises(cg.Unsupported) as refused:
        cg.build(parse_problem(f"--dt=f16:f16:f4_e2m1 --attr-scales={MX} 32x32:32x33"), "gfx942")
    assert refused.value.rule == "nibbles"


@st.composite
def problems(draw: st.DrawFn) -> str:
    """A product with computed scales: any types, sizes, layouts, batches and steps before them."""
    types = draw(st.sampled_from(("f16:f16", "bf16:bf16", "f8_e4m3:f8_e5m2", "s8:s8", "f32:f32")))
    dst, batch = draw(st.sampled_from(sorted(LARGEST))), draw(st.sampled_from(("", "", "2x")))
    m, n, k = draw(st.integers(1, 100)), draw(st.integers(1, 150)), draw(st.integers(1, 100))
    m, n = (m + m % 2, n + n % 2) if dst == "f4_e2m1" else (m, n)
    orders = st.sampled_from(("abc", "acb") if batch else ("ab", "ba"))
    knobs = f"--dt={types}:{dst} --stag={draw(orders)} --wtag={draw(orders)} --dtag={draw(orders)}"
    knobs += draw(st.sampled_from(("", " --bia-dt=f32")))
    knobs += draw(
        st.sampled_from(("", " --attr-post-ops=relu", " --attr-post-ops=linear:2:1", " --attr-post-ops=tanh"))
    )
    scales = draw(st.sampled_from(("", "src:common:0.5+", "wei:per_oc:f32+")))
    computed = draw(st.sampled_from((MX, FP)))
    return f"{knobs} --attr-scales={scales}{computed} {batch}{m}x{k}:{batch}{k}x{n}"


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=16, deadline=None)
@given(problems(), st.integers(0, 1000))
def test_random_products_with_computed_scales(target: str, line: str, seed: int) -> None:
    problem = parse_problem(line)
    assert isinstance(problem, Matmul)
    outcome = verdict.run(cg.compile(cg.build(problem, target)), seed=seed)
    assert outcome.passed, (line, target, outcome.first, outcome.findings)
