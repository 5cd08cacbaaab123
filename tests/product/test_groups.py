"""Scales and zero points in groups that do not divide their axis, against a product written here by plain indexing.

An element k, n of weights takes `scales[k // gk, n // gn]`: a group has the size that the attribute gives, the last one
along an axis is shorter.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen.problem.matmul import Matmul, parse_problem
from convgen.problem.scales import Scale
from convgen.problem.zero_points import ZeroPoint
from convgen.run import reference
from tests.strategies import always

pytestmark = pytest.mark.in_turn(6)

TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpg", "xehpc", "sm_90")
WEIGHTS = "--dt=f16:s8:f32 --attr-fpmath=f16:true --attr-scales=wei:per_ocic:f16:{gk}x{gn}"
BLOCKS = "--dt=f8_e4m3:f8_e4m3:f32 --attr-fpmath=bf16 --attr-scales=src:per_tensor:f32:1x128+wei:per_tensor:f32:128x128"

Floats = npt.NDArray[np.float64]


def drawn(problem: Matmul, seed: int = 5) -> dict[str, Any]:
    """Inputs of which every product and sum is exact: integers, and powers of two for scales."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for spec in problem.inputs:
        least = 0 if spec.dtype == "u8" else -3
        values = (0.25, 0.5, 1.0, 2.0) if spec.name.endswith("_scales") else range(least, 4)
        found[spec.name] = rng.choice(values, spec.dims).astype(reference.numpy_type(spec.dtype))
    return found


def spread(tensor: Any, shape: tuple[int, int], groups: tuple[int, int]) -> Floats:
    """Element [i // groups[0], j // groups[1]] for each i, j of a matrix."""
    i, j = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    spread: Floats = tensor.astype(np.float64)[i // groups[0], j // groups[1]]
    return spread


def simulated(line: str, target: str, wanted: Any, config: str | None = None) -> None:
    """Compare the simulated kernel and the reference, which must agree with what the test computed, bit for bit."""
    problem = parse_problem(line)
    assert isinstance(problem, Matmul)
    arrays = drawn(problem)
    right = wanted(arrays)
    assert np.array_equal(reference.whole(problem, arrays, "dst").astype(np.float64), right)
    code = cg.compile(cg.build(problem, target, config))
    assert np.array_equal(cg.simulate(code, **arrays).astype(np.float64), right)


#: Each target meets two of the shapes in every run, each shape two targets.
SHAPES = [(136, 2112), (2112, 24), (576, 136), (136, 2624), (2240, 24)]


@pytest.mark.parametrize(
    ("k", "n", "target"),
    always(
        [(*shape, target) for shape, target in product(SHAPES, TARGETS)],
        lambda n, _: (n // len(TARGETS) + n) % len(TARGETS) < 2,
    ),
)
def test_the_last_group_of_weights_is_shorter(k: int, n: int, target: str) -> None:
    def wanted(arrays: dict[str, Any]) -> Any:
        weights = arrays["wei"].astype(np.float64) * spread(arrays["wei_scales"], (k, n), (128, 128))
        return arrays["src"].astype(np.float64) @ weights

    simulated(f"{WEIGHTS.format(gk=128, gn=128)} 5x{k}:{k}x{n}", target, wanted)


@pytest.mark.parametrize("target", TARGETS)
def test_both_factors_have_scales_in_groups(target: str) -> None:
    """src has a scale for each row and 128 of K, weights one for 128 x 128, as DeepSeek's products have."""

    def wanted(arrays: dict[str, Any]) -> Any:
        src = arrays["src"].astype(np.float64) * spread(arrays["src_scales"], (9, 136), (1, 128))
        return src @ (arrays["wei"].astype(np.float64) * spread(arrays["wei_scales"], (136, 136), (128, 128)))

    simulated(f"{BLOCKS} 9x136:136x136", target, wanted)


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
def test_groups_of_odd_sizes_along_every_axis(target: str) -> None:
    """Groups that divide no axis and no tile: 10 rows of src, 7 columns of weights, 24 of K; zero points beside."""
    line = (
        "--dt=f16:s8:f32 --attr-fpmath=f16:true --attr-scales=src:per_tensor:f16:10x24+wei:per_ocic:f16:24x7 "
        "--attr-zero-points=wei:per_ocic:s8:24x7 33x203:203x91"
    )

    def wanted(arrays: dict[str, Any]) -> Any:
        src = arrays["src"].astype(np.float64) * spread(arrays["src_scales"], (33, 203), (10, 24))
        less = arrays["wei"].astype(np.float64) - spread(arrays["wei_zero_points"], (203, 91), (24, 7))
        return src @ (less * spread(arrays["wei_scales"], (203, 91), (24, 7)))

    simulated(line, target, wanted)


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
def test_weights_of_4_bits_have_shorter_last_groups(target: str) -> None:
    line = (
        "--dt=f16:s4:f32 --attr-fpmath=f16:true --attr-scales=wei:per_ocic:f16:48x24 "
        "--attr-zero-points=wei:per_ocic:s4:48x24 17x200:200x90"
    )

    def wanted(arrays: dict[str, Any]) -> Any:
        less = arrays["wei"].astype(np.float64) - spread(arrays["wei_zero_points"], (200, 90), (48, 24))
        return arrays["src"].astype(np.float64) @ (less * spread(arrays["wei_scales"], (200, 90), (48, 24)))

    simulated(line, target, wanted)


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
def test_scales_behind_the_sums_come_in_groups(target: str) -> None:
    """Rows of src, columns of weights and blocks of dst share scales; no factor is dequantised on its way."""
    line = "--dt=f16:f16:f32 --attr-scales=src:1:f32:10x1+wei:2:f16:1x24+dst:per_tensor:f32:10x24 33x40:40x91"

    def wanted(arrays: dict[str, Any]) -> Any:
        sums = arrays["src"].astype(np.float64) @ arrays["wei"].astype(np.float64)
        rows, columns = arrays["src_scales"], arrays["wei_scales"]
        scaled = sums * spread(rows, (33, 91), (10, 91)) * spread(columns, (33, 91), (33, 24))
        quotient: Floats = scaled / spread(arrays["dst_scales"], (33, 91), (10, 24))
        return quotient

    simulated(line, target, wanted)


@pytest.mark.parametrize("target", ["gfx942", "gfx950", "xehpc"])
def test_integers_have_scales_along_k(target: str) -> None:
    """Groups of 48 of src and of 24 of weights along one K; what is multiplied are floats, summed as such."""
    line = (
        "--dt=u8:s8:f32 --attr-fpmath=f16:true --attr-scales=src:per_tensor:f16:1x48+wei:per_tensor:bf16:24x1 "
        "--attr-zero-points=wei:per_ocic:s8:24x1+dst:per_tensor:s8:10x9 17x136:136x40"
    )

    def wanted(arrays: dict[str, Any]) -> Any:
        src = arrays["src"].astype(np.float64) * spread(arrays["src_scales"], (17, 136), (1, 48))
        less = arrays["wei"].astype(np.float64) - spread(arrays["wei_zero_points"], (136, 40), (24, 1))
        product = src @ (less * spread(arrays["wei_scales"], (136, 40), (24, 1)))
        return product + spread(arrays["dst_zero_points"], (17, 40), (10, 9))

    simulated(line, target, wanted)


@pytest.mark.parametrize(
    ("target", "config"),
    [
        ("gfx942", "tile=32x32x32 waves=1x1 mma=16x16x16 slots=3 stages=2 in=f16"),
        ("gfx942", "tile=32x32x32 waves=1x1 mma=16x16x16 slots=2 slices=2 sum=launch in=f16"),
        ("gfx942", "tile=32x32x32 waves=1x1 mma=16x16x16 slots=0 in=f16"),
        ("gfx942", "tile=32x32x64 waves=1x1 mma=16x16x16 slots=2 taps=split in=f16"),
        ("xehpc", "tile=32x32x32 waves=2x1 mma=16x8x16 slots=2 slices=2 sum=launch in=f16"),
        ("xehpc", "tile=32x16x32 waves=4x1 mma=16x8x16 slots=0 prefetch=2 in=f16"),
    ],
)
@pytest.mark.parametrize("tags", ["", "--stag=ba --wtag=ab --dtag=ba"])
def test_tiles_end_anywhere_in_groups(target: str, config: str, tags: str) -> None:
    def wanted(arrays: dict[str, Any]) -> Any:
        weights = arrays["wei"].astype(np.float64) * spread(arrays["wei_scales"], (104, 136), (40, 48))
        return arrays["src"].astype(np.float64) @ weights

    simulated(f"{tags} {WEIGHTS.format(gk=40, gn=48)} 34x104:104x136", target, wanted, config)


def test_matrices_of_a_batch_have_groups_of_their_own() -> None:
    line = "--dt=f16:s8:f32 --attr-fpmath=f16:true --attr-scales=wei:per_tensor:f16:48x40 2x9x104:2x104x56"

    def wanted(arrays: dict[str, Any]) -> Any:
        pairs = zip(arrays["wei"], arrays["wei_scales"])
        weights = np.stack([wei.astype(np.float64) * spread(scales, (104, 56), (48, 40)) for wei, scales in pairs])
        product: Floats = arrays["src"].astype(np.float64) @ weights
        return product

    simulated(line, "gfx942", wanted)


@pytest.mark.parametrize(
    ("line", "sizes"),
    [
        (f"{WEIGHTS.format(gk=128, gn=128)} 64x256:256x192", {"m": (), "n": (128,), "k": (128,)}),
        (f"{WEIGHTS.format(gk=300, gn=1)} 64x256:256x192", {"m": (), "n": (), "k": ()}),
        (f"{BLOCKS} 64x576:576x2112", {"m": (), "n": (128,), "k": (128,)}),
    ],
)
def test_groups_have_the_sizes_that_the_attributes_give(line: str, sizes: dict[str, tuple[int, ...]]) -> None:
    problem = parse_problem(line)
    assert isinstance(problem, Matmul)
    assert problem.groups == sizes


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("line", "scale", "end"),
    [
        ("--attr-scales=wei:per_ocic:f16:32x1 --attr-zero-points=wei:common:-1 17x40:40x20", np.inf, 20),
        ("--wtag=ab --attr-scales=wei:per_ocic:f16:48x3 --attr-zero-points=wei:per_oc:s8 9x100:100x20", np.inf, 5),
        ("--attr-scales=wei:per_ocic:f16:32x1 --attr-zero-points=wei:common:127 17x40:40x20", 2000, 20),
    ],
)
def test_nothing_behind_the_end_of_k_is_scaled(line: str, scale: float, end: int, target: str) -> None:
    """The last group is shorter: what lies behind it would be (0 - zero point) * infinity, or overflow f16."""
    problem = parse_problem(f"--dt=f16:u8:f32 {line}")
    assert isinstance(problem, Matmul)
    arrays = drawn(problem)
    (point,) = problem.zero_points
    zero = -np.ones(problem.wei_dims) if point.value is None else np.full(problem.wei_dims, float(point.value))
    if point.value is None:
        arrays["wei_zero_points"][...] = -1
    arrays["wei"] = (arrays["wei"] + max(0, int(zero.max()) - 3)).astype(np.uint8)
    arrays["src"] = np.abs(arrays["src"]) + np.float16(1)
    arrays["wei_scales"][-1, :end:2] = scale
    (attribute,) = problem.scales
    first, second = attribute.groups
    weights = (arrays["wei"] - zero) * spread(arrays["wei_scales"], (problem.k, problem.n), (first, second))
    right = np.stack([(row[:, None] * weights).sum(0) for row in arrays["src"].astype(np.float64)])
    assert not np.isnan(right).any()
    result = cg.simulate(cg.compile(cg.build(problem, target)), **arrays)
    assert np.array_equal(result.astype(np.float64), right)


BOTH_POINTS = [
    "--dt=u8:s8:f16 --attr-scales=wei:per_ocic:f16:32x1 --attr-zero-points=src:common:3+wei:common:2 17x70:70x19",
    "--dt=s8:s8:f32 --attr-scales=src:3:f16:1x13 --attr-zero-points=src:3:s8:1x13+wei:per_oc:u8 33x47:47x21",
    "--dt=s8:u8:f32 --attr-scales=src:3:f32:1x8+wei:3:bf16:16x1 --attr-zero-points=src:1:s8+wei:3:u8:16x1 9x33:33x30",
    "--dt=u8:u8:f32 --stag=ba --attr-scales=wei:3:f32:5x7 --attr-zero-points=src:common:s32+wei:3:s8:5x7 24x29:29x14",
    "--dt=bf16:s8:f32 --attr-fpmath=bf16:true --attr-scales=wei:3:f16:20x1 --attr-zero-points=wei:2:s8 35x70:70x48",
]


@pytest.mark.parametrize("target", [*TARGETS, "sm_90a"])
@pytest.mark.parametrize("line", BOTH_POINTS)
@pytest.mark.parametrize("scale", [1.0, np.inf], ids=["finite", "infinite"])
def test_both_factors_have_zero_points(line: str, target: str, scale: float) -> None:
    """Past the end of K a factor would be less its zero point, were it not for a scale along K, which is 0 there."""
    problem = parse_problem(line)
    assert isinstance(problem, Matmul)
    arrays = drawn(problem)
    scaled = next(name for name in ("wei_scales", "src_scales") if name in arrays)
    arrays[scaled].flat[-1] *= scale

    def factor(role: str) -> Any:
        values = arrays[role].astype(np.float64)
        attributes: tuple[Scale | ZeroPoint, ...] = (*problem.zero_points, *problem.scales)
        for attribute in attributes:
            if attribute.role == role:
                tensor = arrays.get(attribute.name, np.array([[attribute.value]]))
                groups = [n if size > 1 else 10**6 for n, size in zip(problem.spans(attribute), tensor.shape)]
                operand = spread(tensor, (values.shape[0], values.shape[1]), (groups[0], groups[1]))
                values = values * operand if attribute.name.endswith("scales") else values - operand
        return values

    with np.errstate(invalid="ignore"):
        right = factor("src") @ factor("wei")
    got = cg.simulate(cg.compile(cg.build(problem, target)), **arrays)
    assert np.array_equal(got.astype(np.float64), right, equal_nan=True)
    assert np.isfinite(right).any()


@pytest.mark.parametrize("target", ["gfx942", "gfx950", "xehpc", "sm_80", "sm_90a"])
def test_zero_points_of_floats_are_subtracted_before_rounding(target: str) -> None:
    """A difference of 101.25 has 9 bits, more than bf16, to which it is rounded once: behind the scale."""
    line = "--dt=bf16:f8_e4m3:f32 --attr-fpmath=bf16:true --attr-scales=wei:3:f32:16x1 --attr-zero-points=wei:3:s8:16x1"
    problem = parse_problem(f"{line} 16x48:48x24")
    assert isinstance(problem, Matmul)
    arrays = drawn(problem)
    arrays["src"] = np.eye(16, 48).astype(arrays["src"].dtype)
    arrays["wei"] = np.random.default_rng(1).choice([0.25, 0.75, 1.75, -13.0], (48, 24)).astype(arrays["wei"].dtype)
    arrays["wei_zero_points"][:] = -101
    arrays["wei_scales"][:] = 0.7
    right = ((arrays["wei"].astype(np.float32) + np.float32(101)) * np.float32(0.7)).astype(arrays["src"].dtype)[:16]
    got = cg.simulate(cg.compile(cg.build(problem, target)), **arrays)
    assert np.array_equal(got, right.astype(np.float32))


@pytest.mark.parametrize("target", ["gfx942", "gfx950", "xehpc", "sm_80", "sm_90a"])
@pytest.mark.parametrize("point", ["wei:common:-100", "wei:2:s8", "wei:2"])
def test_differences_of_9_bits_are_rounded_once(point: str, target: str) -> None:
    """355 is no bf16: (255 + 100) * 0.7 is 248.5, and 249 if the difference were rounded to 356."""
    line = (
        f"--dt=bf16:u8:f32 --attr-fpmath=bf16:true --attr-scales=wei:3:f32:16x1 --attr-zero-points={point} 16x48:48x24"
    )
    problem = parse_problem(line)
    assert isinstance(problem, Matmul)
    arrays = drawn(problem)
    arrays["src"] = np.eye(16, 48).astype(arrays["src"].dtype)
    arrays["wei"][:], arrays["wei_scales"][:] = 255, 0.7
    if "wei_zero_points" in arrays:
        arrays["wei_zero_points"][:] = -100
    got = cg.simulate(cg.compile(cg.build(problem, target)), **arrays)
    assert (got == 248).all()


@pytest.mark.parametrize("target", ["gfx942", "gfx950", "xehpc", "sm_80", "sm_90a"])
@pytest.mark.parametrize(("masks", "knobs", "sizes"), [
    ("3:1", "--dt=f32:s8:f32 --attr-scales=wei:common:1.25 --attr-zero-points=wei:6:u8", (2, 9, 30, 7)),
    ("2", "--dt=bf16:s8:f32 --attr-scales=wei:6:f32:15x1 --attr-zero-points=wei:4:u8", (3, 9, 30, 7)),
    ("0:4", "--dt=s8:s8:f32 --attr-scales=src:6:f32:1x15 --attr-zero-points=src:common:3", (3, 11, 30, 5)),
    ("4:2", "--dt=bf16:s8:f32 --attr-zero-points=wei:common:3", (3, 11, 26, 7)),
    ("2:4", "--dt=f8_e4m3:f8_e5m2:f32 --attr-scales=src:6:e8m0:1x15+wei:6:e8m0:15x1", (3, 2, 30, 5)),
    ("3:5", "--dt=s8:s8:f32 --attr-scales=src:7:f32:1x8+wei:7:f16:8x1 --attr-zero-points=src:2:s8", (2, 9, 30, 1)),
    ("3:1", "--dt=bf16:u8:f32 --wtag=acb --attr-scales=wei:7:f32:10x1 --attr-zero-points=wei:4:u8", (1, 3, 30, 7)),
])  # fmt: skip
def test_sizes_without_groups_are_known_at_launch(masks: str, knobs: str, sizes: tuple[int, ...], target: str) -> None:
    def of(batch: int, m: int, k: int, n: int) -> Matmul:
        problem = parse_problem(f"{knobs} {batch}x{m}x{k}:{batch}x{k}x{n}")
        assert isinstance(problem, Matmul)
        return problem

    knobs = f"{knobs} --attr-fpmath=bf16:true"
    largest = parse_problem(f"--runtime_dims_masks={masks} {of(3, 11, 30, 7)}")
    arrays = drawn(of(*sizes))
    given = {name: size for name, size in zip(("b0", "m", "k", "n"), sizes) if name in largest.runtime}
    got = cg.simulate(cg.compile(cg.build(largest, target)), **arrays, **given)
    assert np.array_equal(got, reference.whole(of(*sizes), arrays, "dst"))


@pytest.mark.parametrize(
    ("dim", "knobs"),
    [
        ("k", "2:1 --attr-scales=src:3:f32:1x15"),
        ("n", "0:2 --attr-scales=wei:3:f32:15x3"),
        ("k", "2:1 --attr-scales=wei:3:f32:1x21"),
    ],
)
def test_groups_along_sizes_known_at_launch_are_refused(dim: str, knobs: str) -> None:
    line = f"--dt=s8:s8:f32 --runtime_dims_masks={knobs} 35x30:30x21"
    with pytest.raises(cg.Unsupported, match=f"scales or zero points along {dim}, wanted a size that is") as refusal:
        cg.build(parse_problem(line), "gfx942")
    assert refusal.value.rule == "runtime-sizes"
