"""Inputs that a launch before lays out as the product reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest

from convgen import driver
from convgen.backends.target import get
from convgen.choose.choose import candidates
from convgen.ir.error import UserError
from convgen.plan.config import TENSOR, Config
from convgen.plan.plan import make_plan
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul, parse_problem
from convgen.run import verdict
from tests.product import test_padding as padding
from tests.product.problems import right
from tests.strategies import always

pytestmark = pytest.mark.in_turn(6)

TF32, CHANNELS_LAST = "--dt=f32 --attr-fpmath=tf32", "--stag=axb --wtag=axb --dtag=axb"
LAST = {"stag": "axb", "wtag": "axb", "dtag": "axb"}
STEM = "mb1ic3ih12oc16oh6kh7sh2ph3"
GRIDS = {
    "gfx90a": ("2x1", "32x32x8"),
    "gfx950": ("2x1", "16x16x16"),
    "xehpg": ("2x2", "16x8x16"),
    "xehpc": ("2x1", "16x8x16"),
}
WAYS = "slots=2", "slots=1", "slots=2 stages=2", "slots=3", "slots=2 subtiles=2", "slots=2 slices=2"


def convolution(random: Random) -> Conv:
    """A problem of few channels in any layout of its weights."""
    ic, oc, k = random.choice((1, 2, 3, 5, 8, 17)), random.choice((3, 16, 20, 40)), random.choice((1, 2, 3, 5))
    stride, d = random.choice((1, 2, 3)), random.choice((0, 0, 1))
    size = random.randint((k - 1) * (d + 1) + 1, 10)
    line = f"mb1ic{ic}oc{oc}ih{size}kh{k}sh{stride}ph{random.randint(0, k // 2)}dh{d}"
    tags = {**LAST, "wtag": random.choice(("axb", "abx", "xab"))}
    direction, dt = random.choice(("FWD_D", "FWD_D", "BWD_D")), random.choice(("f16", "bf16", "s8", "u8:s8:s32"))
    return Conv.parse(line, dir=direction, dt=dt if direction == "FWD_D" else "f16", **tags)


@pytest.mark.parametrize("target", GRIDS)
def test_convolutions_are_right(target: str) -> None:
    assert_right(target, 2)


@pytest.mark.sweep
@pytest.mark.parametrize("target", GRIDS)
def test_more_convolutions_are_right(target: str) -> None:
    assert_right(target, 16)


def assert_right(target: str, count: int) -> None:
    """Run so many convolutions, of those that fit."""
    random, ran = Random(f"packed {target}"), 0
    waves, mma = GRIDS[target]
    for n in range(count):
        problem = convolution(random)
        taps, k = random.choice((("split", 32), ("fused", 32), ("chunk", 32), ("runs", 32)))
        phases = random.choice(("", " phases=columns")) if problem.direction.value == "BWD_D" else ""
        if problem.inputs[0].dtype != "f16":
            mma, k = ("16x16x16" if target == "gfx90a" else "16x16x32", 64) if target[0] == "g" else ("16x8x32", 64)
        tile = f"tile={random.choice((64, 96))}x32x{k} waves={waves} mma={mma}"
        line = f"{tile} taps={taps} {WAYS[n % len(WAYS)]} packed=wei"
        if (code := right(problem, target, line + phases)) is None:
            continue
        assert any("_pack_wei_packed" in name for name in code.kernels)
        ran += 1
    assert ran >= 1


def windows(random: Random) -> Conv:
    """A problem of few channels, with windows that reach outside, whose runs begin at words in the image made of it."""
    ic, oc, k = random.choice((1, 2, 3, 4, 6)), random.choice((3, 16, 40)), random.choice((2, 3, 5, 7))
    stride = random.choice((1, 2, 3) if ic % 2 == 0 else (2, 4))
    size = 2 * random.randint(k, 8)  # so that rows of memory are whole words
    line = f"mb{random.randint(1, 3)}ic{ic}oc{oc}ih{size}kh{k}sh{stride}ph{random.randint(1, k // 2)}"
    return Conv.parse(line, dir=random.choice(("FWD_D", "BWD_W")), dt=random.choice(("f16", "bf16")), **LAST)


@pytest.mark.parametrize("target", GRIDS)
def test_windows_are_right_in_images(target: str) -> None:
    assert_images(target, 1)


@pytest.mark.sweep
@pytest.mark.parametrize("target", GRIDS)
def test_windows_are_right_in_more_images(target: str) -> None:
    assert_images(target, 6)


def assert_images(target: str, count: int) -> None:
    """Run so many problems, of those drawn that fit."""
    random, ran = Random(f"images {target}"), 0
    waves, mma = GRIDS[target]
    for n in range(3 * count):
        problem = windows(random)
        packed = random.choice(("src", "src+wei")) if problem.direction.is_forward else "src"
        tile = f"tile={random.choice((64, 96))}x32x32 waves={waves} mma={mma}"
        line = f"{tile} taps=runs {WAYS[n % len(WAYS)]} packed={packed}"
        if (code := right(problem, target, line)) is None:
            continue
        assert sum("_pack_" in name for name in code.kernels) == 1
        ran += 1
        if ran == count:
            break
    assert ran == count


def test_nothing_of_an_image_is_masked_or_trimmed() -> None:
    """Its padding is there, and what pads runs and whole tiles, unless that is many images."""
    problem = Conv.parse("mb8ic3ih32oc64oh16kh7sh2ph3", dir="BWD_W", dt="f16", **LAST)
    config = Config.parse("tile=64x256x32 waves=2x8 mma=16x8x16 taps=runs slices=3 packed=src")
    (part,) = make_plan(problem, config, get("xehpc").facts).parts
    image = part.of_n.view
    assert not any(t.masked for t in image.index)
    assert image.extent(0) >= 256
    assert image.extent(1) >= 3 * 32 * part.k_blocks
    assert image.memory.bytes % 2 == 0


@pytest.mark.parametrize("around", [3, 0])
def test_what_pads_runs_of_an_image_is_kept_out_of_sums(around: int) -> None:
    """Also where windows reach nowhere outside: what pads a run are the next pixels, one of which is infinite."""
    problem = Conv.parse(f"mb1ic3ih15iw16oc16kh7kw7sh2sw2ph{around}pw{around}", dir="FWD_D", dt="f16", **LAST)
    config = "tile=64x16x32 waves=2x1 mma=16x8x16 taps=runs packed=src"
    padding.check(problem, "xehpc", config, padding.corners(problem))


def test_padding_of_an_image_meets_no_infinity_of_gradients() -> None:
    problem = Conv.parse("mb2ic3ih16oc16kh7sh2ph3", dir="BWD_W", dt="f16", **LAST)
    padding.check(
        problem, "xehpc", "tile=16x64x32 waves=2x2 mma=16x8x16 taps=runs packed=src", padding.corners(problem)
    )


@pytest.mark.parametrize("name", ["src", "wei"])
def test_either_factor_of_a_product_is_packed(name: str) -> None:
    problem = Matmul.parse("50x36:36x40", dt="f16", stag="ba", wtag="ab")
    code = driver.compile(driver.build(problem, "gfx942", f"tile=32x32x32 waves=1x1 mma=32x32x8 packed={name}"))
    outcome = verdict.run(code)
    assert (outcome.mismatches, outcome.findings) == (0, ())
    kept = next(f for f in ("src", "wei") if f != name)
    (main,) = (launch for launch in code.record.launches if launch.kernel.endswith("_main"))
    assert {f"{name}_packed", kept} <= {*main.buffers}
    assert name not in main.buffers


@pytest.mark.parametrize(
    ("line", "packed"),
    [
        (f"{TF32} --wtag=ab 150x200:200x132", ("wei",)),
        ("--dt=f8_e4m3:f8_e4m3:f32 --stag=ba --wtag=ab 144x208:208x144", ("src", "wei")),
        ("--dt=s8:s8:s32 --stag=ba --wtag=ba 144x208:208x130", ("src",)),
        (f"{TF32} --dir=BWD_D {CHANNELS_LAST} mb1ic32ih6oc64kh3ph1", ("wei",)),
        (f"{TF32} --dir=BWD_W {CHANNELS_LAST} mb2ic32ih6oc64kh1", ("diff_dst", "src")),
    ],
)
def test_inputs_that_an_instruction_cannot_turn_are_packed(line: str, packed: tuple[str, ...]) -> None:
    """Bulk copies then bring them: `wgmma` reads elements of 8 and 32 bits along K only."""
    problem = parse_problem(line)
    configs = [each.config for each in candidates(problem, get("sm_90a").facts)]
    assert {config.packed for config in configs} == {(), packed}
    ring = next(config for config in configs if config.copy == (TENSOR,))
    assert right(problem, "sm_90a", str(ring)) is not None


@pytest.mark.parametrize("types", ["f16", "bf16"])
def test_inputs_that_an_instruction_turns_stay(types: str) -> None:
    problem = parse_problem(f"--dt={types} --stag=ba --wtag=ab 144x208:208x144")
    assert not any(each.config.packed for each in candidates(problem, get("sm_90a").facts))


@pytest.mark.parametrize(
    ("target", "direction", "words"),
    [
        ("xehpc", "FWD_D", "taps=runs"),
        ("gfx942", "BWD_D", "taps=split phases=columns"),
        ("gfx942", "BWD_D", "taps=split"),
    ],
)
def test_what_is_packed_for_padding_is_not_multiplied(target: str, direction: str, words: str) -> None:
    """Weights with infinities meet what is outside the image, and phases that lack a tap: sums are made again."""
    problem = Conv.parse(STEM, dir=direction, dt="f16", **LAST)
    unit = "waves=1x1 mma=16x16x16" if target == "gfx942" else "waves=2x1 mma=16x8x16"
    line = f"tile=64x16x32 {unit} packed=wei {words}"
    padding.check(problem, target, line, padding.corners(problem))


def test_a_sampled_tile_needs_all_of_the_launch_before() -> None:
    problem = Conv.parse("mb8ic3ih32oc64oh16kh7sh2ph3", dir="FWD_D", dt="f16", **LAST)
    line = "tile=64x32x32 waves=2x1 mma=16x8x16 taps=runs packed=wei"
    outcome = verdict.run(driver.compile(driver.build(problem, "xehpc", line)), groups=2)
    assert (outcome.mismatches, outcome.findings) == (0, ())


@pytest.mark.parametrize(
    ("line", "options", "words", "why"),
    [
        (STEM, {}, "packed=diff_dst", "packed=diff_dst: the problem has no such input"),
        (STEM, {}, "packed=wei reorder=wei", "packed=wei: it is reordered"),
        ("g2" + STEM.replace("ic3", "ic4"), {}, "packed=wei", "packed=wei: wanted one product"),
        ("mb2ic16ih8oc16oh8kh3ph1", {}, "taps=resident packed=src", "packed=src: its windows are resident"),
        (
            "g8mb1ic8ih5oc8kh3ph1",
            {},
            "slots=0 taps=fused packed=wei",
            "packed=wei: mma=fma:4x2x2 takes no packed inputs",
        ),
    ],
)
def test_what_cannot_be_packed_is_said(line: str, options: dict[str, str], words: str, why: str) -> None:
    problem = Conv.parse(line, dir="FWD_D", dt="f16", **{**LAST, **options})
    tile, unit = "32x32x144" if "resident" in words else "32x32x32", "32x32x8"
    if "fused" in words:
        tile, unit = "128x8x9", "fma:4x2x2"
    with pytest.raises(UserError, match=why):
        driver.build(problem, "gfx942", f"tile={tile} waves=1x1 mma={unit} {words}")


def test_sizes_known_at_launch_are_not_packed() -> None:
    problem = Matmul.parse("50x36:36x40", dt="f16", runtime_dims_masks="2:1")
    with pytest.raises(UserError, match="packed=wei: wanted sizes that are known"):
        driver.build(problem, "gfx942", "tile=32x32x32 waves=1x1 mma=32x32x8 packed=wei")


def test_rows_are_those_of_whole_tiles() -> None:
    problem = Conv.parse(STEM, dir="FWD_D", dt="f16", **LAST)
    config = Config.parse("tile=64x48x32 waves=2x1 mma=16x8x16 taps=runs slices=2 packed=wei")
    (part,) = make_plan(problem, config, get("xehpc").facts).parts
    assert (part.of_n.view.extent(0), part.of_n.view.extent(1)) == (48, 8 * 32)  # of 16; 7 runs of 21 in two slices
    assert part.of_n.packing is not None
    assert part.of_n.packing.source is part.product.of_n
    assert part.of_m.packing is None


@pytest.mark.parametrize(
    ("line", "direction", "packed"),
    [
        ("mb32ic3ih224oc64oh112kh7sh2ph3", "FWD_D", ("src", "wei")),
        ("mb32ic3ih224oc64oh112kh7sh2ph3", "BWD_D", ("wei",)),
        ("mb32ic3ih224oc64oh112kh7sh2ph3", "BWD_W", ("src",)),  # cuts of runs along rows differ from lane to lane
        ("mb32ic64ih56oc64oh56kh3ph1", "FWD_D", ()),  # lanes load whole chunks
        ("mb1ic3ih8oc8oh8kh3ph1", "FWD_D", ()),  # a launch takes longer than it spares
    ],
)
def test_inputs_are_packed_where_that_is_worth_a_launch(line: str, direction: str, packed: tuple[str, ...]) -> None:
    best = candidates(Conv.parse(line, dir=direction, dt="f16", **LAST), get("xehpc").facts)[0]
    assert best.config.packed == packed


@pytest.mark.parametrize(
    ("line", "more"),
    [
        ("mb32ic3ih10oc32kh7sh2ph3", "slices=2"),
        ("mb32ic3iw24ih8ow12oh4oc32kh7kw7sh2sw2ph3pw3", "slots=3"),
        ("mb64ic3ih8oc32kh7sh2ph3", "slots=1"),
        ("mb32ic4ih5oc32kh7ph3", ""),  # of an image whose rows end within a line
    ],
)
def test_rectangles_bring_windows_of_images(line: str, more: str) -> None:
    """Those of one pixel in all images, for the gradient of weights; and nothing is turned on the way."""
    problem = Conv.parse(line, dir="BWD_W", dt="f16", **LAST)
    code = driver.compile(
        driver.build(problem, "xehpc", f"tile=32x64x32 waves=2x2 mma=16x8x16 taps=runs packed=src {more}")
    )
    assert verdict.run(code).passed
    main = code.asm[code.asm.index("k_loop:") : code.asm.index("k_loop_end:")]
    assert "load_block2d" in main
    assert "load.ugm" not in main
    assert not re.search(r"add3 .*uw", main)


@pytest.mark.parametrize(
    ("images", "kernel", "rectangles"), [(32, 7, True), (48, 7, False), (1, 7, False), (32, 5, False)]
)
def test_windows_of_few_images_come_in_the_order_of_memory(images: int, kernel: int, rectangles: bool) -> None:
    """Rectangles of fewer rows would be more messages, and rows of less than a line no quicker."""
    line = f"mb{images}ic3ih16oc32kh{kernel}sh2ph{kernel // 2}"
    problem = Conv.parse(line, dir="BWD_W", dt="f16", **LAST)
    config = Config.parse("tile=32x64x32 waves=2x2 mma=16x8x16 taps=runs packed=src")
    (part,) = make_plan(problem, config, get("xehpc").facts).parts
    assert (part.of_n.view.axes[1][-1].name == "mb") == rectangles


def test_sums_of_windows_in_rectangles_that_are_not_finite_are_made_again() -> None:
    problem = Conv.parse("mb32ic3ih8oc16kh3sh2ph1", dir="BWD_W", dt="f16", **LAST)
    padding.check(
        problem, "xehpc", "tile=32x32x32 waves=2x1 mma=16x8x16 taps=runs packed=src", padding.corners(problem)
    )


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("--dt=f16 4095x4097:4097x4099", ("src", "wei")),
        ("--dt=bf16 --wtag=ba 2048x4096:4096x4100", ()),  # K is a multiple of eight
        ("--dt=f16 --wtag=ab 2048x4096:4096x4100", ("wei",)),
        ("--dt=f16 8x1000x1001:8x1001x1000", ("src", "wei")),
        ("--dir=FWD_D --dt=f16 --stag=axb --wtag=axb --dtag=axb mb32ic66ih56oc66oh56kh3ph1", ()),  # windows
    ],
)
def test_rows_that_begin_within_a_message_are_packed(line: str, names: tuple[str, ...]) -> None:
    assert Config.parse(driver.build(parse_problem(line), "sm_90a").config).packed == names


@pytest.mark.parametrize("line", ["--dt=f16 150x201:201x99", "--dt=bf16 --stag=ba --wtag=ba 70x131:131x66"])
def test_packed_rows_are_whole_messages(line: str) -> None:
    config = "tile=128x64x64 waves=2x4 mma=64x64x16 slots=3 packed=src+wei copy=tensor"
    assert right(parse_problem(line), "sm_90a", config)


# ---------------------------------------------------------------- inputs that are converted on the way

GROUPS = "--attr-scales=wei:per_ocic:f16:32x1"
#: what is special -> the problem's line
CONVERTED = {
    "pairs": f"--dt=f16:s4:f16 {GROUPS} --wtag=ba 40x96:96x80",
    "pairs along rows": f"--dt=f16:s4:f16 {GROUPS} --wtag=ab 40x96:96x80",
    "zero points": f"--dt=bf16:u4:f32 {GROUPS} --attr-zero-points=wei:per_ocic:u4:32x1 --wtag=ba 17x128:128x48",
    "one zero point": "--dt=f16:u8:f16 --attr-zero-points=wei:common:3 --attr-fpmath=f16:true --wtag=ba 17x100:100x48",
    "no scales": "--dt=f16:f8_e4m3:f32 --wtag=ba 40x64:64x48",
    "scales of columns": "--dt=f16:s8:f16 --attr-scales=wei:per_oc:f32 --wtag=ab 40x64:64x48",
    "both": "--dt=s8:s8:f16 --attr-fpmath=f16:true --wtag=ba"
    " --attr-scales=src:per_ocic:f32:1x32+wei:per_ocic:f32:32x1 40x64:64x48",
    "of the type that is multiplied": f"--dt=f16 {GROUPS} --wtag=ba 40x64:64x48",
    "a batch": "--dt=f16:s4:f16 --attr-scales=wei:per_tensor:f16:32x1 --wtag=acb 3x20x64:3x64x48",
    "groups of rows": "--dt=bf16:s4:bf16 --attr-scales=wei:per_ocic:f16:32x1"
    " --grouped=0:3:20+0+30 --wtag=acb 50x64:3x64x48",
}


def converting(line: str, target: str) -> Iterator[str]:
    """Yield the configs of a problem whose earlier launch converts what it packs, best first."""
    found = candidates(parse_problem(line), get(target).facts)
    yield from (str(each.config) for each in found if each.config.packs_converted)


@pytest.mark.parametrize(
    ("name", "target"),
    always(
        [(n, t) for n in CONVERTED for t in ("sm_90a", "sm_80", "gfx942", "gfx950", "xehpc", "xehpg")],
        lambda n, case: case in {("pairs", "gfx942"), ("zero points", "sm_90a"), ("groups of rows", "sm_90a")},
    ),
)
def test_inputs_are_converted_where_they_are_packed(name: str, target: str) -> None:
    line = CONVERTED[name]
    found = islice(converting(line, target), Random(f"{name} {target}").randrange(8), None)
    assert any(right(parse_problem(line), target, config) for config in found)


def test_rows_that_have_numbers_are_not_packed() -> None:
    problem = parse_problem(
        "--dt=f16:f8_e4m3:f32 --attr-scales=wei:6:f16:16x1 --routing=gather:12:1 --grouped=0:3:0+8+10 18x64:3x64x16"
    )
    with pytest.raises(UserError, match="its rows have numbers"):
        driver.build(problem, "sm_90", "tile=32x16x32 waves=2x1 mma=8x16x16 slots=2 packed=src+wei")
    assert right(problem, "sm_90a", driver.build(problem, "sm_90a").config)


@pytest.mark.parametrize("dtag", ["ab", "ba"])
def test_only_the_factor_whose_rows_have_numbers_is_not_packed(dtag: str) -> None:
    """With columns of dst contiguous, the rows by number are those of N."""
    problem = parse_problem(f"--dt=f16 --dtag={dtag} --grouped=0:2:9+7 --routing=gather:8:2 16x32:2x32x24")
    config = "tile=32x32x16 waves=1x1 mma=16x16x16 slots=2"
    with pytest.raises(UserError, match="packed=src: its rows have numbers"):
        driver.build(problem, "gfx942", f"{config} packed=src")
    assert right(problem, "gfx942", f"{config} packed=wei")


@pytest.mark.parametrize("name", ["src", "wei"])
def test_terms_in_groups_are_not_packed(name: str) -> None:
    problem = parse_problem("--dt=f16 --grouped=1:2:9+7 24x16:16x8")
    with pytest.raises(UserError, match=f"packed={name}: groups of terms"):
        driver.build(problem, "gfx942", f"tile=32x32x16 waves=1x1 mma=16x16x16 slots=2 packed={name}")


@pytest.mark.parametrize(("line", "packed"), [
    ("--deconv --dir=FWD_B --dt=f16 mb1_ic8oc4_ih2oh1kh1sh3ph1", "wei"),
    ("--dir=BWD_W --dt=f16 mb0_ic3oc2_ih3kh1", "diff_dst"),
])  # fmt: skip
def test_nothing_is_packed_where_no_result_has_terms(line: str, packed: str) -> None:
    problem = parse_problem(line)
    assert right(problem, "gfx942", f"tile=32x32x16 waves=1x1 mma=16x16x16 slots=1 packed={packed}")


@pytest.mark.parametrize("dt", ["f16:s4:f16", "f16:s8:f16", "f16:f8_e4m3:f16"])
def test_weights_of_many_rows_are_converted_before_the_product(dt: str) -> None:
    def chosen(rows: int) -> Config:
        problem = parse_problem(f"--dt={dt} {GROUPS} --wtag=ba {rows}x4096:4096x4096")
        return Config.parse(driver.build(problem, "sm_90a").config)

    many, few = chosen(4096), chosen(16)
    assert (many.packs_converted, many.copy) == (True, (TENSOR,))
    assert (few.packed, few.types) == ((), ("f16",))


def test_a_product_that_converts_has_no_parts_of_bytes_packed() -> None:
    problem = parse_problem(CONVERTED["pairs"])
    with pytest.raises(UserError, match="packed=wei: wanted elements of whole bytes"):
        driver.build(problem, "sm_90", "tile=32x32x32 waves=2x2 mma=8x16x16 slots=2 packed=wei in=f16")
