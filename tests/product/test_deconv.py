"""Transposed convolutions against their definition: source position i and tap k add to i*s - p + k*(d + 1)."""

from __future__ import annotations

import random
import re
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen.plan.directions import have_columns
from convgen.problem.matmul import parse_problem
from convgen.run import reference, verdict
from convgen.run.code import Code
from tests.product.problems import outcome_of
from tests.strategies import always

pytestmark = pytest.mark.in_turn(6)

TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpg", "xehpc", "sm_80", "sm_90", "sm_90a", "sm_120")
DIRECTIONS = ("FWD_D", "BWD_D", "BWD_W")
SHAPES = (
    "mb2ic16ih6oc32kh4sh2ph1",
    "g2mb1ic8oc12_ih5oh11kh3sh2ph1_iw4ow6kw2sw1dw1",  # output padding, dilation, groups
    "mb2ic20iw9oc12kw3sw2dw1pw2",
    "mb1ic8id3oc16od6kd2sd2_ih4oh5kh3sh1ph1_iw3ow7kw1sw3",  # positions that no tap reaches
    "g8mb2ic8ih6oc8kh3sh2ph1",  # depthwise
    "mb1ic8ih4oc16oh12kh2sh3dh1ph2",
)

Floats = npt.NDArray[np.float64]


def compiled(line: str, target: str) -> tuple[cg.Deconv, Code]:
    problem = parse_problem(line)
    assert isinstance(problem, cg.Deconv)
    return problem, cg.compile(cg.build(problem, target))


def drawn(problem: cg.Deconv, seed: int = 1) -> dict[str, Any]:
    """Small integers, of which every sum is exact."""
    rng = np.random.default_rng(seed)
    return {
        spec.name: rng.integers(-3, 4, spec.dims).astype(reference.numpy_type(spec.dtype)) for spec in problem.inputs
    }


def expected(problem: cg.Deconv, arrays: dict[str, Any]) -> Floats:
    """The result by the definition, one source position and tap at a time, without attributes."""
    src, wei, dst = (
        arrays.get(name, arrays.get(f"diff_{name}", np.zeros(problem.size(name)))).astype(np.float64)
        for name in ("src", "wei", "dst")
    )
    groups, rank = problem.groups, problem.ndims - 2
    src, dst = (x.reshape(problem.mb, groups, -1, *x.shape[2:]) for x in (src, dst))
    wei = wei.reshape(groups, problem.oc // groups, problem.ic // groups, *wei.shape[-rank:])
    axes = problem.spatial
    for at in product(*(range(a.i) for a in axes)):
        for tap in product(*(range(a.k) for a in axes)):
            to = [i * a.s - a.p + k * (a.d + 1) for i, k, a in zip(at, tap, axes)]
            if not all(0 <= o < a.o for o, a in zip(to, axes)):
                continue
            x, y, w = (..., *at), (..., *to), (..., *tap)
            if problem.direction.is_forward:
                dst[y] += np.einsum("ngc,gkc->ngk", src[x], wei[w])
            elif problem.direction.name == "BWD_D":
                src[x] += np.einsum("ngk,gkc->ngc", dst[y], wei[w])
            else:
                wei[w] += np.einsum("ngk,ngc->gkc", dst[y], src[x])
    result = dst if problem.direction.is_forward else src if problem.direction.name == "BWD_D" else wei
    whole: Floats = result.reshape(problem.outputs[0].dims)
    return whole


@pytest.mark.parametrize(("shape", "direction", "target"), always(
    [(*each, target) for each in product(SHAPES, DIRECTIONS) for target in TARGETS], lambda n, _: n % 10 == 0
))  # fmt: skip
def test_by_the_definition(shape: str, direction: str, target: str) -> None:
    types = {"FWD_D": "f16:f16:f32", "BWD_D": "f32:f16:f16", "BWD_W": "f16:f32:f16"}[direction]
    problem, code = compiled(f"--deconv --dir={direction} --dt={types} {shape}", target)
    arrays = drawn(problem)
    assert np.array_equal(cg.simulate(code, **arrays), expected(problem, arrays))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_reference_by_the_definition(shape: str, direction: str) -> None:
    problem = parse_problem(f"--deconv --dir={direction} {shape}")
    assert isinstance(problem, cg.Deconv)
    arrays = drawn(problem)
    right = reference.whole(problem, arrays, problem.outputs[0].name)
    assert np.array_equal(right, expected(problem, arrays))


@pytest.mark.parametrize("target", TARGETS)
def test_steps_follow_the_sums_where_taps_reach_and_where_none_does(target: str) -> None:
    """One of nine positions has a tap. All have a bias and the old destination."""
    line = "--deconv --dt=f16:f16:f32 --attr-post-ops=sum+add:f32:per_tensor+relu mb2ic16ih3oc12oh9kh1sh3ph0"
    problem, code = compiled(line, target)
    arrays = drawn(problem)
    assert len(code.record.launches) == 9
    sums = expected(problem, {**arrays, "dst": np.zeros(problem.dst_dims)})
    assert (sums.reshape(2, 12, 3, 3, 3, 3)[:, :, :, 1:] == 0).all()
    right = np.maximum(sums + arrays["bia"][:, None, None] + arrays["dst"] + arrays["post_op_1"], 0)
    assert np.array_equal(cg.simulate(code, **arrays), right)


ATTRIBUTES = [
    ("f16", "--bia-dt=f16 --attr-post-ops=relu+mul:f32:per_oc"),
    ("bf16:bf16:f32", "--dtag=abx --attr-post-ops=prelu:2+add:f32:4"),
    ("s8:s8:u8", "--attr-scales=src:common:0.25+wei:per_oc+dst:common:2 --attr-zero-points=dst:common:3"),
    ("u8:s8:s8", "--attr-scales=src:common:0.5 --attr-zero-points=src:common:3+dst:common:1"),
    ("u8:s8:s32", "--attr-zero-points=src:per_dim_1"),
    ("f8_e5m2:f8_e5m2:f16", "--attr-scales=wei:per_oc:f16"),
    ("f32", "--wtag=xba --attr-post-ops=sum:0.5+tanh"),
]


@pytest.mark.parametrize(("types", "words", "shape", "target"), always(
    [(*each, shape, target) for each in ATTRIBUTES for shape in SHAPES for target in TARGETS], lambda n, _: n % 29 == 0
))  # fmt: skip
def test_attributes(types: str, words: str, shape: str, target: str) -> None:
    _, code = compiled(f"--deconv --dt={types} {words} {shape}", target)
    assert verdict.run(code, seed=3).passed


@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_WB"])
@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90a"])
def test_layouts_in_blocks(direction: str, target: str) -> None:
    step = " --attr-post-ops=add:f16:per_tensor" if direction == "FWD_B" else ""
    tags = "--stag=aBcd16b --wtag=ABcd4b8a --dtag=aBcd8b"
    _, code = compiled(f"--deconv --dir={direction} --dt=f16 {tags}{step} mb2ic20ih6oc12kh3sh2ph1", target)
    assert verdict.run(code, seed=3).passed


@pytest.mark.parametrize("line", [
    "--deconv --dir=FWD_D --dt=f16 --stag=abcD2d mb2_ic4oc16_ih1oh3kh3ph0_iw1ow1kw1sw2pw0",
    "--dir=BWD_D --dt=f16 --dtag=abcD2d mb2_ic16oc4_ih3oh1kh3ph0_iw1ow1kw1sw2pw0",
])  # fmt: skip
@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90a"])
def test_taps_in_the_padding_of_blocks_are_not_loaded(target: str, line: str) -> None:
    """Along the blocks of one position taps run backwards, so that those in padding lie before the first weight."""
    outcome = verdict.run(cg.compile(cg.build(parse_problem(line), target)), seed=3)
    assert not outcome.findings, outcome.findings[0]
    assert outcome.passed


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90a"])
def test_images_of_a_number_that_a_launch_tells(target: str) -> None:
    problem, code = compiled("--deconv --dt=f16:f16:f32 --runtime_dims_masks=1 mb5ic16ih5oc32kh3sh1ph1", target)
    arrays = drawn(problem)
    arrays["src"] = arrays["src"][:3]
    smaller = cg.Deconv.parse("--deconv --dt=f16:f16:f32 mb3ic16ih5oc32kh3sh1ph1")
    right = expected(smaller, arrays) + arrays["bia"][:, None, None]
    assert np.array_equal(cg.simulate(code, mb=3, **arrays), right)


@pytest.mark.parametrize("target", ["gfx942", "gfx950", "xehpc", "sm_80", "sm_90a"])
def test_taps_that_a_phase_lacks_have_no_zero_point(target: str) -> None:
    """Phases with 2, 1 and 4 taps: as columns of one product they would have 0 less the zero point for missing ones."""
    points = "--attr-zero-points=src:common:1+wei:common:2"
    shape = "g2mb2ic8oc2_ih6oh16kh3sh2ph0_iw7ow17kw4sw2pw1"
    _, code = compiled(f"--deconv --dir=FWD_D --dt=s8:u8:f32 {points} {shape}", target)
    assert verdict.run(code, seed=1).passed
    problem = parse_problem(f"--deconv --dir=FWD_D --dt=s8:u8:f32 {points} {shape}")
    assert not have_columns(problem)
    assert have_columns(parse_problem(f"--deconv --dir=FWD_D --dt=s8:u8:f32 {shape}"))


def test_a_line_is_printed_as_it_is_read() -> None:
    line = "--deconv --dt=f16 --attr-post-ops=relu g2mb1_ic8oc12_ih5oh11kh3sh2ph1_iw4ow6kw2dw1pw0"
    problem = parse_problem(line)
    assert str(problem) == line
    assert problem != parse_problem(line.removeprefix("--deconv "))


@pytest.mark.parametrize(("shape", "sizes"), [
    ("ic4oc4ih4kh3sh2", (9, 0)),
    ("ic4oc4ih4kh3sh2ph1", (7, 1)),
    ("ic4oc4ih4oh8kh3sh2ph1", (8, 1)),  # output padding of 1
    ("ic4oc4ih4oh7kh3sh2", (7, 1)),  # a deduced padding
    ("ic4oc4ih4kh3dh1", (8, 0)),
])  # fmt: skip
def test_sizes_are_deduced_as_in_benchdnn(shape: str, sizes: tuple[int, int]) -> None:
    axis = cg.Deconv.parse(shape).axes[1]
    assert (axis.o, axis.p) == sizes


def test_sizes_as_frameworks_have_them() -> None:
    problem = cg.Deconv.from_sizes(
        ic=16, oc=8, input=(5, 4), kernel=3, stride=2, padding=1, output=(10, 7), dir="FWD_D"
    )
    assert str(problem) == "--deconv --dir=FWD_D mb1_ic16oc8_ih5oh10kh3sh2ph1_iw4ow7kw3sw2pw1"


REFUSED = [
    ("--deconv --dir=BWD_D --attr-post-ops=relu ic4oc4ih4kh3", "given attr-post-ops relu in BWD_D, wanted none"),
    ("--deconv ic4oc4ih4kh17sh17", "given sh17sw17 in FWD_B, which makes 289 stride phases, wanted at most 256"),
    (
        "--deconv --attr-scales=wei:4 ic4oc4ih4kh3",
        "that differs along positions or taps, wanted one along images or channels",
    ),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_refusals_are_one_line(line: str, message: str) -> None:
    with pytest.raises(cg.Unsupported, match=message) as refused:
        cg.build(parse_problem(line), "gfx942")
    assert "\n" not in str(refused.value)


SWEPT_TYPES = ("f16", "bf16", "f32", "f16:f16:f32", "s8:s8:s32", "u8:s8:s8", "s8:u8:f32", "f8_e5m2:f8_e4m3:f16", "f64")


def random_line(rng: random.Random) -> str:
    """A random transposed convolution with random sizes, layouts, types and attributes."""
    direction, rank = rng.choice(("FWD_D", "FWD_D", "FWD_B", "BWD_D", "BWD_W", "BWD_WB")), rng.choice((1, 2, 2, 3))
    types = rng.choice(SWEPT_TYPES if direction.startswith("FWD") else ("f16", "bf16", "f32"))
    groups = rng.choice((1, 1, 1, 2, 4))
    ic, oc = (groups * rng.choice((1, 3, 4, 8, 16, 20)) for _ in range(2))
    shape = (f"g{groups}" if groups > 1 or rng.random() < 0.1 else "") + f"mb{rng.choice((1, 2, 3))}ic{ic}oc{oc}"
    for letter in "dhw"[3 - rank :]:
        i, k, s, d = rng.randint(1, 7), rng.randint(1, 4), rng.randint(1, 4), rng.choice((0, 0, 1, 2))
        p = rng.randint(0, 2)
        o = max(1, (i - 1) * s + (k - 1) * (d + 1) + 1 - 2 * p + rng.choice((0, 0, 1, 3)))
        shape += f"_i{letter}{i}o{letter}{o}k{letter}{k}s{letter}{s}p{letter}{p}d{letter}{d}"
    words = [f"--dir={direction}", f"--dt={types}"]
    words += [f"--{tag}={rng.choice(('any', 'abx', 'axb'))}" for tag in ("stag", "dtag")]
    words.append(f"--wtag={rng.choice(('any', 'any', 'abx'))}")
    if direction.startswith("FWD") and types != "f64":
        steps = "relu", "sum", "mul:f32:per_oc", "add:f32:per_tensor", "linear:2:1+relu", "prelu:2", "sum:0.5+add:f32:1"
        words += [f"--attr-post-ops={rng.choice(steps)}"] if rng.random() < 0.5 else []
        words += [f"--attr-scales=src:common:0.5+wei:{rng.choice(('per_oc', 'common'))}"] if rng.random() < 0.3 else []
        if "8:" in types and "f8" not in types and rng.random() < 0.6:
            points = "src:common:3", "src:per_dim_1", "dst:common:2", "src:common:1+wei:common:2"
            words.append(f"--attr-zero-points={rng.choice(points)}")
    return " ".join(["--deconv", *words, shape])


@pytest.mark.parametrize(("target", "seed"), always(
    [(target, seed) for seed in range(60) for target in TARGETS], lambda n, _: n % 41 == 0
))  # fmt: skip
def test_random_deconvolutions(target: str, seed: int) -> None:
    """A random problem is right on a target, or is refused in one line. A seed gives all targets one problem."""
    outcome = outcome_of(random_line(random.Random(seed)), target, seed)
    assert re.fullmatch("passed|given .*, wanted .*", outcome)


@pytest.mark.parametrize("seed", range(60))
def test_the_reference_of_random_sizes_by_the_definition(seed: int) -> None:
    line = random_line(random.Random(seed))
    words = [word for word in line.split() if not word.startswith(("--dt", "--attr"))]
    problem = parse_problem(" ".join(words).replace("FWD_B", "FWD_D"))
    assert isinstance(problem, cg.Deconv)
    arrays = drawn(problem, seed)
    output, *bias = problem.outputs
    assert np.array_equal(reference.whole(problem, arrays, output.name), expected(problem, arrays))
    for each in bias:
        sums = arrays["diff_dst"].sum(axis=(0, *range(2, problem.ndims)))
        assert np.array_equal(reference.whole(problem, arrays, each.name), sums)
