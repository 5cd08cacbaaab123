"""Inputs of types that no instruction takes as they are: converted on their way, or dequantised; 8-bit floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import convgen as cg
from convgen.backends.target import get
from convgen.choose.offers import reorders
from convgen.problem.matmul import parse_problem
from convgen.run import reference, verdict
from tests.strategies import always

pytestmark = pytest.mark.in_turn(6)

TARGETS = ("gfx942", "xehpc", "gfx90a", "gfx950", "xehpg", "sm_90")


def run(line: str, target: str, arrays: dict[str, reference.Array] | None = None, config: str | None = None) -> None:
    code = cg.compile(cg.build(parse_problem(line), target, config))
    outcome = verdict.run(code, arrays=arrays)
    assert outcome.passed, (line, target, outcome.first, outcome.findings)


#: One line a way: wider in memory than the other side, narrower, two a byte; memory runs along N, and along K.
MIXED = [
    "--dt=f32:bf16:f32 --wtag=ab 35x40:40x24",
    "--dt=f8_e4m3:f8_e5m2:f16 --dir=FWD_B mb1ic24ih9oc20kh3ph1",
    "--dt=f8_e5m2 --dir=BWD_WB mb2ic16ih7oc20kh3ph1",
    "--dt=f32:f8_e4m3:f8_e4m3 --dir=BWD_D g2mb1ic16ih7oc8kh3ph1sh2",
    "--dt=f16:s4:f16 35x64:64x24",
    "--dt=u8:f4_e2m1:f32 --dir=FWD_D --wtag=aedcb --dtag=abx g16mb3ic32oc16ih7kh2",
    "--dt=s4:f32:f32 --dir=FWD_D mb1ic2oc2ih4kh3ph1",
    "--dt=f16:f4_e2m1:f16 --dir=FWD_D --wtag=abx mb1ic8ih5oc8kh3ph1iw5kw2pw1",
    "--dt=bf16:u4:bf16 --wtag=ab 35x64:64x24",
    "--dt=f4_e2m1:f4_e2m1:bf16 --dir=FWD_D g2mb1ic32ih5oc32kh3ph1",
    "--dt=s8:s4:s32 3x35x64:1x64x24",
    "--dt=u8:f16:f16 --stag=abcd --dtag=abcd --dir=FWD_D mb2ic16ih5oc20kh3ph1",
    "--dt=f16:f6_e3m2:f16 --wtag=ab 35x37:37x24",
    "--dt=f6_e2m3:bf16:f32 --stag=acb 2x36x33:1x33x24",
]
DEQUANTISED = [
    "--dt=f16:u4:f16 --attr-scales=wei:per_ocic:f16:32x1 --attr-zero-points=wei:per_ocic:u4:32x1 "
    "--attr-fpmath=f16:true 35x96:96x24",
    "--dt=bf16:s4:f8_e5m2 --attr-scales=wei:per_ocic:f32:48x1+dst:common:2:bf16 "
    "--attr-zero-points=wei:per_ocic:s8:48x1 --attr-fpmath=bf16:true 3x17x96:3x96x40",
    "--dt=f32:s8:f32 --wtag=ab --attr-zero-points=wei:common:3 --attr-scales=wei:per_oc 35x40:40x24",
    "--dt=bf16:f8_e4m3:bf16 --attr-scales=wei:per_tensor:e8m0:32x32 40x96:96x64",
    "--dt=f8_e4m3:f8_e4m3:bf16 --stag=abx --attr-scales=src:per_tensor:f16:1x32+wei:per_tensor:e8m0:32x32 9x64:64x64",
    "--dt=f4_e2m1:f4_e2m1:bf16 --wtag=ab --attr-scales=src:per_tensor:f8_e4m3:1x16+wei:per_oc 35x48:48x20",
    "--dt=f6_e3m2:f6_e2m3:bf16 --attr-scales=src:per_tensor:f8_e4m3:1x16+wei:per_oc 36x48:48x20",
    "--dt=f8_e5m2:s4:bf16 --dtag=ba --attr-scales=wei:per_ocic:bf16:32x1 --attr-fpmath=bf16:true 33x64:64x64",
]


@pytest.mark.parametrize("line", always(((line,) for line in MIXED + DEQUANTISED), lambda n, row: n % 3 == 0))
@pytest.mark.parametrize("target", TARGETS)
def test_any_types(target: str, line: str) -> None:
    run(line, target)


@pytest.mark.parametrize("target", ["gfx942", "xehpg", "xehpc", "sm_90"])
@pytest.mark.parametrize("n", [4, 24, 80])
def test_floats_of_six_bits_are_unpacked_along_either_side(n: int, target: str) -> None:
    """Rows of N or K hold 4, 8 or 16 numbers in a message; the type beside decides that of the unpacked copy."""
    run(f"--dt=f8_e4m3:f6_e3m2:f32 --wtag=ab 20x{n + 4}:{n + 4}x{n}", target)
    run(f"--dt=f6_e2m3:bf16:bf16 --stag=ba --dtag=ba {n}x37:37x12", target)


@pytest.mark.parametrize("target", ["xehpg", "xehpc"])
def test_elements_that_are_no_whole_words(target: str) -> None:
    """Three zero points a lane, as bytes and as halves."""
    knobs = "--attr-fpmath=f16:true --attr-scales=wei:per_oc:f16 --attr-zero-points=wei:per_oc:u8"
    problem, lanes = parse_problem(f"--dt=f16:u8:f16 --wtag=ba {knobs} 35x96:96x96"), {"xehpg": 8, "xehpc": 16}
    tile = f"tile=32x{6 * lanes[target]}x32 waves=2x2 mma={lanes[target]}x8x16 slots=2 taps=split acc=v in=f16"
    outcome = verdict.run(cg.compile(cg.build(problem, target, tile)))
    assert outcome.passed, outcome.first


def test_the_config_says_in_which_type_is_multiplied() -> None:
    problem = parse_problem("--dt=f16:s4:f16 35x64:64x24")
    config = str(cg.build(problem, "gfx942").config)
    assert config.endswith(" in=f16")
    run(str(problem), "gfx942", config=config)
    assert " in=" not in str(cg.build(parse_problem("--dt=f16 35x64:64x24"), "gfx942").config)


@pytest.mark.parametrize(
    ("dt", "target", "types"),
    [
        ("f8_e4m3", "gfx942", "f16"),
        ("f8_e5m2", "gfx942", "f16"),
        ("f8_e4m3", "gfx950", ""),
        ("f8_e4m3fnuz:f8_e5m2fnuz:f32", "gfx942", ""),
        ("f8_e5m2:f8_e4m3:f32", "xehpc", "f16"),
        ("bf16:f8_e4m3:bf16", "xehpc", "bf16"),
        ("f16:bf16:f32", "gfx90a", "f32"),
        ("f4_e2m1:f4_e2m1:f32", "gfx950", "f8_e4m3"),
        ("s8:s4:s32", "gfx942", "s8"),
    ],
)
def test_products_are_of_the_narrowest_types_that_hold_both(dt: str, target: str, types: str) -> None:
    config = str(cg.build(parse_problem(f"--dt={dt} 64x64:64x64"), target).config)
    assert config.partition(" in=")[2] == types


@pytest.mark.parametrize("target", TARGETS[:2])
@pytest.mark.parametrize("config", ["slots=0", "slots=1", "slots=3", "slots=2 slices=2 sum=launch"])
def test_ways_through_shared_memory_and_past_it(target: str, config: str) -> None:
    shape = "tile=32x32x32 waves=1x1 mma=16x16x16" if target == "gfx942" else "tile=32x32x32 waves=2x1 mma=16x8x16"
    line = "--dt=f16:s4:f16 --attr-scales=wei:per_ocic:f16:16x1 35x96:96x24"
    run(line, target, config=f"{shape} {config} in=f16")


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("--dt=bf16:s8:bf16 --dtag=aB8b --attr-scales=wei:per_ocic:f16:4x1 20x64:64x20", "gfx942"),
        ("--dt=bf16:s8:bf16 --stag=aB8b --attr-zero-points=wei:per_ocic:s8:16x1 30x64:64x16", "xehpc"),
        ("--dt=f16:s8:f16 --wtag=BA16a8b2a --dtag=BA8b4a --attr-scales=wei:per_ocic:f16:16x4 30x64:64x16", "gfx90a"),
    ],
)
def test_what_weights_are_multiplied_by_differs_along_dims_in_blocks(line: str, target: str) -> None:
    run(line, target)


@pytest.mark.parametrize("target", ["gfx942", "gfx950", "xehpc"])
@pytest.mark.parametrize("to", ["f8_e4m3", "f8_e5m2"])
def test_8_bit_results_round_and_overflow(target: str, to: str) -> None:
    """To nearest even, denormals kept; what is too large is NaN, or infinity where there is one; NaN and infinity."""
    numbers = [0.0, -0.0, 1.0, 2.5, 17.0, 18.0, 19.0, 448.0, 464.0, 464.5, -480.0, 57344.0, 61439.0, 61440.0, -1e9]
    numbers += [2.0**-9, 2.0**-10, 3 * 2.0**-11, 2.0**-16, 2.0**-17, 3 * 2.0**-18, np.inf, -np.inf, np.nan, 1e-30, 0.1]
    src = np.zeros((len(numbers), 32), np.float32)
    src[:, 0] = numbers
    wei = np.zeros((32, 16), np.float32)
    wei[0] = 1
    wei[1:] = 0
    with np.errstate(invalid="ignore"):
        run(f"--dt=f32:f32:{to} {len(numbers)}x32:32x16", target, {"src": src, "wei": wei})


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
def test_every_8_bit_float_is_multiplied_as_what_it_is(target: str) -> None:
    """All codes, denormals, infinities and NaN included: each times one, in a row of zeros of its own."""
    for name in ("f8_e4m3", "f8_e5m2"):
        problem = parse_problem(f"--dt={name}:{name}:f32 256x16:16x16")
        elem = reference.numpy_type(name)
        src = np.zeros((256, 16), np.uint8)
        src[:, 3] = np.arange(256)
        wei = np.zeros((16, 16), elem)
        wei[3] = 1
        run(str(problem), target, {"src": src.view(elem), "wei": wei})


def test_rounding_of_dequantised_weights() -> None:
    """(q - zero point) * scale in f32, rounded to the source's type: 7 * 0.1 in f16 is the f16 nearest to it."""
    knobs = "--attr-scales=wei:per_ocic:f32:2x1 --attr-zero-points=wei:common:-2"
    problem = parse_problem(f"--dt=f16:s8:f32 {knobs} 1x4:4x2")
    arrays: dict[str, Any] = {
        "src": np.array([[1, 0, 0, 1]], np.float16),
        "wei": np.array([[5, 1], [1, 1], [1, 1], [-2, 4]], np.int8),
        "wei_scales": np.array([[0.1, 1.0], [3.0, 0.3]], np.float32),
    }
    found = reference.whole(problem, arrays, "dst")
    wanted = [np.float32(np.float16(np.float32(7) * np.float32(0.1))), 3 + np.float32(np.float16(np.float32(6 * 0.3)))]
    assert found.tolist() == [[float(x) for x in wanted]]
    for target in TARGETS[:2]:
        run(str(problem), target, arrays)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("--dt=f16:s4:f16 35x63:63x24", "nibbles"),
        ("--dt=f16:s4:f16 --wtag=ab 35x64:64x23", "nibbles"),
        ("--dt=f4_e2m1:f16:f16 --dir=BWD_W mb1ic8ih5oc8kh3ph1", "nibbles"),
        ("--dt=f16:f16:s4 --dir=BWD_W --bia-dt=f16 --dtag=abx mb1ic8iw4oc8kw1", "nibbles"),
        ("--dt=f16:f4_e2m1:f16 --dir=FWD_D --wtag=bcda g4mb1ic4oc4iw26kw1", "nibbles"),
        ("--dt=s4:f16:f16 --dir=FWD_D --stag=aBcd8b mb1ic32oc16ih4kh1", "nibbles"),
        ("--dt=s8:s8:s32 --attr-zero-points=wei:per_oc:s4 35x64:64x23", "nibbles"),
        ("--dt=s8:s8:s32 --attr-zero-points=wei:per_ocic:s8:64x8 35x64:64x24", "zero-points-groups"),
        ("--dt=s8:s8:s32 --runtime_dims_masks=1 --attr-zero-points=wei:per_oc:s4 35x64:64x24", "runtime-sizes"),
        ("--dt=f16:s8:f16 --attr-scales=wei:per_ocic:f16:16x1 --attr-zero-points=wei:per_ocic:s8:24x1 35x64:64x24",
         "scales-groups"),
        ("--dt=s8:s8:f16 --attr-scales=wei:per_ocic:f16:16x1 --attr-zero-points=src:common:1+wei:common:1 35x64:64x24",
         "zero-points"),
        ("--dt=f16 --attr-zero-points=src:common:3 35x64:64x24", "zero-points"),
        ("--dt=f16:f16:f4_e2m1 35x64:64x24", "types"),
        ("--dt=f16:f16:f6_e2m3 35x64:64x24", "types"),
        ("--dt=f6_e2m3:f16:f16 --dir=FWD_D mb1ic16ih5oc16kh3ph1", "types"),
        ("--dt=f6_e3m2:f6_e3m2:f16 35x64:64x24 --runtime_dims_masks=1:2", "runtime-sizes"),
        ("--dt=f6_e3m2:f16:f16 35x66:66x24", "nibbles"),
        ("--dt=f16:f6_e3m2:f16 --wtag=ab 35x64:64x22", "nibbles"),
        ("--dt=f6_e3m2:f16:f16 --stag=AB16b4a 64x64:64x24", "nibbles"),
        ("--dt=f6_e2m3:f16:f16 --grouped=0:2:8+8 --routing=gather:8:2 16x64:2x64x24", "routing"),
        ("--dt=f4_e3m0:f16:f16 35x64:64x24", "types"),
        ("--dt=f16:e8m0:f16 --dir=FWD_D mb1ic8ih5oc8kh3ph1", "types"),
        ("--dt=f16:f16:e8m0 --dir=BWD_D mb1ic8ih5oc8kh3", "types"),
        ("--dt=e8m0:f16:f16 --grouped=0:2:8+8 --routing=gather:8:2 16x64:2x64x24", "routing"),
    ],
)  # fmt: skip
def test_what_is_refused(line: str, rule: str) -> None:
    with pytest.raises(cg.Unsupported) as error:
        cg.build(parse_problem(line), "gfx942")
    assert error.value.rule == rule


def test_elements_of_4_bits_come_in_no_runs() -> None:
    problem = parse_problem("--dt=bf16:f32:f4_e2m1 --dir=BWD_W --strides=22x52x1:: mb2ic64oc8iw22kw3pw0")
    config = "tile=32x32x32 waves=1x1 mma=16x16x16 slots=2 taps=runs in=bf16"
    with pytest.raises(cg.UserError, match="taps=runs: wanted elements of whole bytes"):
        cg.build(problem, "gfx950", config)
    run(str(problem), "gfx950")


def test_elements_of_4_bits_are_not_brought_into_another_layout() -> None:
    problem = parse_problem("--dt=f16:s4:f16 --strides=2048x2:: --wtag=ab 1024x1024:1024x1024")
    config = "tile=64x64x64 waves=2x1 mma=32x32x8 slots=2 taps=split in=f16 reorder=src+wei"
    with pytest.raises(cg.UserError, match="reorder=wei: wanted elements of whole bytes"):
        cg.build(problem, "gfx942", config)
    assert {moved for moved, _ in reorders(problem, get("gfx942").facts)} == {(), ("src",)}


def test_floats_of_6_bits_are_unpacked_or_taken_by_bytes() -> None:
    scales = "--attr-scales=src:per_ocic:e8m0:1x32+wei:per_ocic:e8m0:32x1"
    problem = parse_problem(f"--dt=f6_e2m3:f6_e2m3:f16 {scales} 37x96:96x40")
    for config, wanted in (
        (
            "tile=32x16x32 waves=2x1 mma=16x16x4 slots=3 stages=3 taps=split in=f32",
            "wei of f6_e2m3: wanted reorder=wei",
        ),
        (
            "tile=32x16x96 waves=2x1 mma=16x16x96 slots=2 taps=fused reorder=src",
            "src_reordered of f16: wanted bytes of",
        ),
    ):
        with pytest.raises(cg.UserError, match=wanted):
            cg.build(problem, "gfx950", config)


_FLOATS = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2")
_NARROW = ("s4", "u4", "f4_e2m1", "f6_e2m3", "f6_e3m2")


@st.composite
def products(draw: st.DrawFn) -> str:
    """A matrix product of any two types, its weights dequantised in half of those of integers."""
    src, wei = draw(st.sampled_from(_FLOATS)), draw(st.sampled_from((*_FLOATS, *_NARROW, "s8", "u8")))
    m, n, k = draw(st.integers(1, 70)), 2 * draw(st.integers(1, 30)), 32 * draw(st.integers(1, 5))
    n += n % 4 if wei.startswith("f6") else 0
    dst = draw(st.sampled_from(("f32", "f16", "bf16", "f8_e5m2", "f8_e4m3")))
    knobs = f"--dt={src}:{wei}:{dst} --stag={draw(_ORDERS)} --wtag={draw(_ORDERS)} --dtag={draw(_ORDERS)}"
    if draw(st.booleans()):
        group = draw(st.sampled_from((8, 16, 32)))
        scale = draw(st.sampled_from(("f32", "f16", "bf16", "e8m0")))
        knobs += f" --attr-scales=wei:per_ocic:{scale}:{group}x1 --attr-fpmath={draw(_MODES)}:true"
        if wei in ("s4", "u4", "s8", "u8"):
            knobs += f" --attr-zero-points=wei:per_ocic:{draw(st.sampled_from(('s8', 'u8', 's4', 'u4')))}:{group}x1"
    return f"{knobs} {m}x{k}:{k}x{n}"


_ORDERS, _MODES = st.sampled_from(("ab", "ba")), st.sampled_from(("strict", "f16", "bf16"))


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=20, deadline=None)
@given(st.data())
def test_random_types(target: str, data: st.DataObject) -> None:
    line = data.draw(products())
    run(line, target)


def test_a_config_whose_registers_hold_no_pairs_does_not_fit() -> None:
    """Other configs do, so it is the config that is refused, and a chooser goes on to the next."""
    problem = parse_problem("--dt=f8_e5m2:u4:bf16 --wtag=ab 31x64:64x8")
    config = "tile=64x32x16 waves=1x2 mma=16x8x16 slots=0 taps=split subtiles=2 in=f16"
    with pytest.raises(cg.UserError, match=r"given the config .*, wanted one that fits: no pairs of neighbours"):
        cg.compile(cg.build(problem, "xehpg", config))


@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950", "xehpc"])
@pytest.mark.parametrize("to", ["f8_e4m3fnuz", "f8_e5m2fnuz"])
def test_results_without_negative_zero_round_and_overflow(target: str, to: str) -> None:
    """As ml_dtypes: minus zero and what rounds to it are zero, what is too large and infinities are NaN."""
    numbers = [0.0, -0.0, 1.0, -17.0, 240.0, 247.0, 248.0, -248.0, 57344.0, 61439.0, 61440.0, -1e9, 0.1, -1e-30]
    numbers += [2.0**-10, -(2.0**-11), 3 * 2.0**-11, 2.0**-17, -(2.0**-18), 3 * 2.0**-18, np.inf, -np.inf, np.nan]
    src = np.zeros((len(numbers), 32), np.float32)
    src[:, 0] = numbers
    wei = np.zeros((32, 16), np.float32)
    wei[0] = 1
    problem = parse_problem(f"--dt=f32:f32:{to} {len(numbers)}x32:32x16")
    with np.errstate(invalid="ignore"):
        wanted = np.broadcast_to(src[:, :1], (len(numbers), 16)).astype(reference.numpy_type(to))
        found = cg.simulate(cg.compile(cg.build(problem, target)), src=src, wei=wei)
    finite = np.isfinite(src[:, 0])
    assert np.array_equal(found[finite].view(np.uint8), wanted[finite].view(np.uint8))
    assert np.isnan(found[~finite].astype(np.float32)).all()
