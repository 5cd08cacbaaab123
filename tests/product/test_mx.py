"""Products of factors in MX formats: floats of 8, 6 and 4 bits with e8m0 scales for groups of 32 along K.

The reference here decodes bits by the formats' definitions (OCP Microscaling Formats 1.0, section 5.3) and sums in f64.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import convgen as cg
from convgen.backends.target import get as target_of
from convgen.ir.types import scalar
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.matmul import Matmul, parse_problem
from convgen.run.code import Code
from tests.strategies import always

pytestmark = pytest.mark.in_turn(6)

Array = npt.NDArray[Any]

TARGETS = ("gfx942", "gfx950", "xehpc", "sm_90a", "sm_89")
GROUP = 32
ONE, NAN = 127, 255  #: codes of e8m0
#: type -> bits of exponent and of mantissa, and whether the largest exponent is that of infinity and NaN
FORMATS = {
    "f8_e4m3": (4, 3, False),
    "f8_e5m2": (5, 2, True),
    "f6_e2m3": (2, 3, False),
    "f6_e3m2": (3, 2, False),
    "f4_e2m1": (2, 1, False),
}
#: elements that make whole bytes
TOGETHER = {"f8": 1, "f6": 4, "f4": 2}
#: numbers that all formats have
NUMBERS = np.array([0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6])


def decoded(codes: Array, dtype: str) -> npt.NDArray[np.float64]:
    """Return the numbers of codes of an element type."""
    exponent_bits, mantissa_bits, has_infinity = FORMATS[dtype]
    bias = (1 << exponent_bits - 1) - 1
    sign = np.where(codes >> exponent_bits + mantissa_bits & 1, -1.0, 1.0)
    exponent = (codes >> mantissa_bits & (1 << exponent_bits) - 1).astype(np.int64)
    mantissa = (codes & (1 << mantissa_bits) - 1).astype(np.float64)
    steps = np.where(exponent == 0, mantissa, mantissa + (1 << mantissa_bits))
    numbers: npt.NDArray[np.float64] = sign * np.ldexp(steps, np.maximum(exponent, 1) - bias - mantissa_bits)
    top = exponent == (1 << exponent_bits) - 1
    if has_infinity:
        return np.where(top, np.where(mantissa == 0, sign * np.inf, np.nan), numbers)
    is_nan = top & (mantissa == (1 << mantissa_bits) - 1) & (dtype == "f8_e4m3")
    return np.where(is_nan, np.nan, numbers)


def powers(codes: Array) -> npt.NDArray[np.float64]:
    """Return the numbers of codes of e8m0."""
    return np.where(codes == NAN, np.nan, np.ldexp(1.0, codes.astype(np.int64) - ONE))


def drawn(problem: Matmul, seed: int) -> dict[str, Array]:
    """Return factors and scales as codes: every sum of products is exact in f32."""
    rng, inputs = np.random.default_rng(seed), dict[str, Array]()
    for spec in problem.inputs:
        if spec.name.endswith("_scales"):
            inputs[spec.name] = rng.integers(ONE - 2, ONE + 2, spec.dims).astype(np.uint8)
        elif spec.name in ("src", "wei"):
            typed = rng.choice(NUMBERS, spec.dims).astype(scalar(spec.dtype).numpy)
            inputs[spec.name] = typed.view(np.uint8)
    return inputs


def product(problem: Matmul, inputs: dict[str, Array]) -> npt.NDArray[np.float64]:
    """Return the exact product of the decoded factors, each multiplied by its scales."""
    factors = []
    for name, axis in (("src", -1), ("wei", -2)):
        numbers = decoded(inputs[name], problem.tensor(name).dtype)
        attribute = problem.attribute(f"{name}_scales")
        assert attribute is not None
        scales, groups = powers(inputs[f"{name}_scales"]), problem.spans(attribute)
        for at, (size, group) in enumerate(zip(numbers.shape, groups)):
            scales = scales.take(np.arange(size) // group, at) if scales.shape[at] > 1 else scales
        factors.append(numbers * scales)
        assert scales.shape[axis] in (1, numbers.shape[axis])
    with np.errstate(all="ignore"):
        result: npt.NDArray[np.float64] = np.matmul(*factors)
    return result


def simulated(code: Code, inputs: dict[str, Array]) -> Array:
    """Return the result of a simulated launch on inputs in codes."""
    problem = code.problem
    assert problem is not None
    typed = {name: codes.view(scalar(problem.tensor(name).dtype).numpy) for name, codes in inputs.items()}
    return np.asarray(cg.simulate(code, **typed))


def check(line: str, target: str, config: str | None = None, seed: int = 0) -> Code:
    """Compare a simulated product with the exact one, bit for bit."""
    problem = parse_problem(line)
    assert isinstance(problem, Matmul)
    code = cg.compile(cg.build(problem, target, config))
    inputs = drawn(problem, seed)
    with np.errstate(over="ignore"):
        wanted = product(problem, inputs).astype(np.float32).astype(scalar(problem.tensor("dst").dtype).numpy)
    assert np.array_equal(simulated(code, inputs), wanted), (line, target, config)
    return code


def mx(types: str, sizes: str, knobs: str = "", group: int = GROUP) -> str:
    """Return the line of a product whose factors have e8m0 scales for groups along K."""
    return f"--dt={types} --attr-scales=src:per_ocic:e8m0:1x{group}+wei:per_ocic:e8m0:{group}x1 {knobs} {sizes}"


LINES = [
    mx("f8_e4m3:f8_e4m3:f32", "37x72:72x20"),
    mx("f8_e5m2:f8_e4m3:bf16", "20x136:136x33"),
    mx("f8_e5m2:f8_e5m2:f16", "2x18x104:2x104x20", "--stag=acb --wtag=abc"),
    mx("f4_e2m1:f4_e2m1:f32", "37x72:72x20"),
    mx("f4_e2m1:f4_e2m1:bf16", "18x136:136x18", "--dtag=ba"),
    mx("f8_e4m3:f4_e2m1:f32", "19x96:96x34"),
    mx("f4_e2m1:f8_e5m2:f32", "18x80:80x18", group=64),
    mx("f6_e2m3:f6_e2m3:f32", "37x72:72x20"),
    mx("f6_e3m2:f6_e2m3:bf16", "3x18x136:3x136x20"),
    mx("f8_e4m3:f6_e3m2:f32", "19x192:192x34", group=96),
    mx("f6_e2m3:f8_e5m2:f16", "20x264:264x20", "--dtag=ba"),
    mx("f4_e2m1:f6_e3m2:f32", "18x80:80x18"),
    mx("f6_e2m3:f4_e2m1:f32", "18x160:160x36", group=64),
]


#: Floats of 6 bits that an earlier launch unpacks on every target.
UNPACKED = [
    mx("f6_e3m2:f6_e2m3:bf16", "36x96:96x20", "--wtag=ab --attr-fpmath=bf16"),
    mx("f6_e2m3:f8_e5m2:f32", "2x24x140:2x140x80", "--stag=acb --attr-fpmath=f16"),
]


@pytest.mark.parametrize(
    "line", always(((line,) for line in UNPACKED + LINES), lambda n, row: n < len(UNPACKED) or n % 3 == 0)
)
@pytest.mark.parametrize("target", TARGETS)
def test_factors_with_scales_are_multiplied_exactly(target: str, line: str) -> None:
    check(line, target)


@pytest.mark.parametrize("target", TARGETS)
def test_m_and_n_are_known_at_launch(target: str) -> None:
    line = mx("f8_e4m3:f8_e5m2:f32", "70x272:272x48", "--runtime_dims_masks=1:2")
    code = cg.compile(cg.build(parse_problem(line), target))
    for m, n in ((70, 48), (2, 16)):
        problem = parse_problem(mx("f8_e4m3:f8_e5m2:f32", f"{m}x272:272x{n}"))
        assert isinstance(problem, Matmul)
        inputs = drawn(problem, m)
        typed = {name: codes.view(scalar(problem.tensor(name).dtype).numpy) for name, codes in inputs.items()}
        assert np.array_equal(cg.simulate(code, m=m, n=n, **typed), product(problem, inputs).astype(np.float32))
    assert target != "gfx950" or "v_mfma_scale_f32_" in code.asm


def test_on_gfx950_instructions_apply_the_scales() -> None:
    for line in LINES:
        code = cg.compile(cg.build(parse_problem(line), "gfx950"))
        assert "v_mfma_scale_f32_" in code.asm, line


@pytest.mark.parametrize(
    "line",
    [
        mx("f8_e4m3:f8_e4m3:f32", "32x96:96x32", group=16),
        mx("f4_e2m1:f4_e2m1:f32", "32x96:96x32", "--wtag=ab"),
        mx("f8_e4m3:f4_e2m1:f32", "32x96:96x32", "--wtag=ab"),
        mx("f6_e2m3:f6_e2m3:f32", "32x96:96x32", "--wtag=ab"),
        mx("f6_e2m3:f8_e4m3:f32", "32x96:96x32", "--stag=ba"),
        mx("f6_e2m3:f6_e2m3:f32", "32x96:96x32", group=16),
        "--dt=f8_e4m3:f8_e4m3:f32 --attr-scales=wei:per_ocic:e8m0:32x1 32x96:96x32",
        "--dt=f8_e4m3:f8_e4m3:f32 --attr-scales=src:per_ocic:bf16:1x32+wei:per_ocic:e8m0:32x1 32x96:96x32",
    ],
)
def test_factors_that_instructions_do_not_scale_are_converted(line: str) -> None:
    """Groups of fewer numbers, pairs along N, one factor alone, scales of another type."""
    code = cg.compile(cg.build(parse_problem(line), "gfx950"))
    assert "v_mfma_scale_f32_" not in code.asm
    assert " in=" in code.config


PAIRS = ["f8_e5m2:f4_e2m1", "f4_e2m1:f8_e4m3", "f6_e3m2:f6_e2m3", "f8_e5m2:f6_e2m3", "f6_e3m2:f4_e2m1"]


def wider(types: str) -> int:
    """Return the bits of the wider factor, by whose bytes K of a config counts."""
    return max(int(each[1]) for each in types.split(":")[:2])


#: Configs of gfx950 with words that move scales: subgroups along K, parts of M, slices, direct copies, 32 x 32.
CONFIGS = [
    "tile=64x32x256 waves=1x2x2 mma=16x16x128 slots=2 taps=fused",
    "tile=64x64x128 waves=2x2 mma=32x32x64 slots=3 taps=fused copy=direct",
    "tile=64x32x128 waves=2x1 mma=16x16x128 slots=2 taps=fused subtiles=2 acc=a",
    "tile=32x64x256 waves=1x2 mma=32x32x64 slots=1 taps=fused slices=2 sum=last",
    "tile=96x16x512 waves=3x1 mma=16x16x128 slots=0 taps=fused",
]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("types", ["f8_e4m3:f8_e5m2", "f4_e2m1:f4_e2m1", *PAIRS])
def test_scales_follow_the_words_of_a_config(types: str, config: str) -> None:
    *tile, depth = map(int, config.split("tile=")[1].split()[0].split("x"))
    n, m, k = map(int, config.split("mma=")[1].split()[0].split("x"))
    of = wider(types)
    words = {
        f"tile={tile[0]}x{tile[1]}x{depth}": f"tile={tile[0]}x{tile[1]}x{depth * of // 8}",
        f"{n}x{m}x{k}": f"{n}x{m}x{k * of // 8}",
    }
    for numbers, in_bytes in words.items():
        config = config.replace(numbers, in_bytes)
    line = mx(f"{types}:f32", "70x1200:1200x40")
    if "f6" in types and "copy=direct" in config:
        with pytest.raises(cg.UserError, match="rows of 96 elements do not divide evenly over lanes"):
            check(line, "gfx950", config)
        return
    code = check(line, "gfx950", config)
    assert f"v_mfma_scale_f32_{n}x{m}x{k}_f8f6f4" in code.asm


def test_scales_go_through_shared_memory_where_lanes_copy_them_evenly() -> None:
    """Else, and beside direct copies, each lane loads its own."""
    problem, facts = parse_problem(mx("f8_e4m3:f8_e4m3:f32", "128x512:512x128")), target_of("gfx950").facts
    words = "waves=1x2 mma=16x16x128 slots=2 taps=fused"
    for wei in ("f4_e2m1", "f6_e3m2"):
        pair = parse_problem(mx(f"f8_e4m3:{wei}:f32", "128x512:512x128"))
        part = make_plan(pair, Config.parse(f"tile=64x64x256 {words}"), facts).parts[0]
        sides = [path.scale_path.tile for path in (part.of_m, part.of_n) if path.scale_path]
        assert [(tile.rows, tile.cols) for tile in sides if tile] == [(64, 8), (64, 8)], wei
    for tile, copy, is_shared in (("64x64x256", "", True), ("48x64x256", "", False), ("64x64x256", "direct", False)):
        words = f"waves=1x2 mma=16x16x128 slots=2 taps=fused{f' copy={copy}' if copy else ''}"
        part = make_plan(problem, Config.parse(f"tile={tile} {words}"), facts).parts[0]
        assert (part.of_m.scale_path is not None) == is_shared, (tile, copy)
        tiles = {tile.name for tile in part.tiles}
        assert ("src_scales_tile" in tiles) == is_shared


def test_registers_of_six_bit_numbers_are_loaded_in_pairs() -> None:
    """A lane's six registers by three messages: the second of two would begin at an odd register."""
    config = "tile=16x16x128 waves=1x1 mma=16x16x128 slots=0 taps=fused"
    code = check(mx("f8_e4m3:f6_e2m3:f32", "16x128:128x16"), "gfx950", config)
    assert len(re.findall(r"buffer_load_dwordx2 .* // wei fragment", code.asm)) == 3


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "types", ["f8_e4m3:f8_e4m3", "f8_e5m2:f8_e5m2", "f4_e2m1:f4_e2m1", "f8_e4m3:f4_e2m1", "f6_e3m2:f6_e2m3"]
)
def test_codes_at_the_ends(target: str, types: str) -> None:
    """A scale of NaN spoils its row or column, the least one is 2^-127, the greatest 2^127; infinities and NaNs.

    K is no multiple of 32: what is multiplied behind its end must not meet a scale of NaN.
    """
    line = mx(f"{types}:f32", "18x104:104x18")
    problem = parse_problem(line)
    assert isinstance(problem, Matmul)
    inputs, dtype = drawn(problem, 1), types.partition(":")[0]
    inputs["src_scales"][3, 1] = NAN
    inputs["src_scales"][4, 3] = NAN  # the last group, which is shorter
    inputs["wei_scales"][2, 5] = NAN
    inputs["src_scales"][6, :] = 0
    inputs["src_scales"][7, :] = 254
    inputs["src"][7] = 0
    inputs["src"][7, 5] = np.ones(1, scalar(dtype).numpy).view(np.uint8)[0]
    inputs["wei_scales"][:, 7] = 0
    if dtype == "f8_e5m2":
        inputs["src"][9, 3], inputs["src"][10, 103] = 0x7C, 0xFC
        inputs["wei"][40, 11] = 0x7C
    if dtype.startswith("f8"):
        inputs["src"][12, 50] = 0x7F
    code = cg.compile(cg.build(problem, target))
    with np.errstate(all="ignore"):
        wanted = product(problem, inputs).astype(np.float32)
    assert np.isnan(wanted).any(axis=1).all()
    assert not np.isnan(wanted[[0, 6, 7]]).all()
    result = simulated(code, inputs)
    assert np.array_equal(result, wanted, equal_nan=True), np.argwhere(~((result == wanted) | np.isnan(wanted)))[:5]


@st.composite
def problems(draw: st.DrawFn) -> str:
    """A product in MX formats: any types, sizes, layouts and batches; K ends anywhere."""
    src, wei = (draw(st.sampled_from(tuple(FORMATS))) for _ in range(2))
    if draw(st.integers(0, 3)) == 0:
        wei = src
    of_src, of_wei = TOGETHER[src[:2]], TOGETHER[wei[:2]]
    k = max(of_src, of_wei) * draw(st.integers(9, 200))
    m, n = of_src * draw(st.integers(1, 80 // of_src)), of_wei * draw(st.integers(1, 80 // of_wei))
    dst, group = draw(st.sampled_from(("f32", "f16", "bf16"))), draw(st.sampled_from((32, 32, 32, 64, 128)))
    batch = draw(st.sampled_from(("", "", "3x")))
    orders = st.sampled_from(("abc", "acb") if batch else ("ab", "ba"))
    stag, wtag = (draw(st.sampled_from(("any",))) if draw(st.booleans()) else draw(orders) for _ in range(2))
    knobs = f"--stag={stag} --wtag={wtag} --dtag={draw(orders)}"
    knobs += draw(st.sampled_from(("", "", " --attr-fpmath=f16", " --attr-fpmath=bf16")))
    return mx(f"{src}:{wei}:{dst}", f"{batch}{m}x{k}:{batch}{k}x{n}", knobs, group)


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=20, deadline=None)
@given(problems(), st.integers(0, 1000))
def test_random_factors_with_scales(target: str, line: str, seed: int) -> None:
    check(line, target, seed=seed)


@st.composite
def configs(draw: st.DrawFn) -> tuple[str, str]:
    """A product and a config of gfx950 whose instructions apply the scales."""
    types, wide = ":".join(draw(st.sampled_from(tuple(FORMATS))) for _ in range(2)), draw(st.booleans())
    side, k = (32, 64) if wide else (16, 128)
    k = k * wider(types) // 8
    waves_m, waves_n, waves_k = draw(
        st.sampled_from(((1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 2), (2, 1, 2)))
    )
    subtiles = draw(st.sampled_from((1, 1, 2)))
    tile_m = side * waves_m * subtiles * draw(st.sampled_from((1, 2, 3)))
    tile_n = side * waves_n * draw(st.sampled_from((1, 2, 4)))
    tile_k = k * waves_k * draw(st.sampled_from((1, 2, 4)))
    slots, copy = draw(st.sampled_from(((0, ""), (1, ""), (2, ""), (2, " copy=direct"), (3, " copy=direct"))))
    words = f"slots={slots}{copy} taps=fused acc={draw(st.sampled_from('va'))}"
    words += f" subtiles={subtiles}" if subtiles > 1 else ""
    words += draw(st.sampled_from(("", "", " slices=2", " slices=3 sum=last")))
    config = f"tile={tile_m}x{tile_n}x{tile_k} waves={waves_m}x{waves_n}x{waves_k} mma={side}x{side}x{k} {words}"
    m, n, depth = draw(st.integers(1, 200)), 2 * draw(st.integers(1, 90)), 32 * draw(st.integers(2, 50))
    depth -= 4 * draw(st.integers(0, 4))
    return mx(f"{types}:{draw(st.sampled_from(('f32', 'bf16')))}", f"{m}x{depth}:{depth}x{n}"), config


@pytest.mark.sweep
@settings(max_examples=120, deadline=None)
@given(configs(), st.integers(0, 1000))
def test_random_configs_with_scales(case: tuple[str, str], seed: int) -> None:
    line, config = case
    try:
        cg.compile(cg.build(parse_problem(line), "gfx950", config))
    except cg.UserError:  # the config does not fit
        return
    check(line, "gfx950", config, seed)
