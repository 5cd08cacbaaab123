"""Products of warpgroups: descriptors of factors, groups and waits, and random problems on the simulator."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen import driver
from convgen.backends.nvidia.ptx import Writer
from convgen.backends.nvidia.select import Selector
from convgen.backends.nvidia.tables import FACTS, ROWS, WgmmaRow
from convgen.backends.nvidia.warpgroups import FactorPlace
from convgen.ir.error import DoesNotFit, UserError
from convgen.ir.expr import const
from convgen.ir.layout.memory import Shared
from convgen.ir.layout.shared_panels import SPANS, panel_order, span_of
from convgen.ir.mutate import rewrite
from convgen.ir.record import evolve
from convgen.ir.stmt import ExitIf, For, block
from convgen.ir.types import Type, bf16, f16, f32, s8
from convgen.passes import pipeline
from convgen.problem.matmul import parse_problem
from convgen.run import verdict
from convgen.run.code import Code
from convgen.simulated_calls import simulate
from tests.strategies import FIXED

_CHANNELS_LAST = "--stag=axb --wtag=axb --dtag=axb"
WGMMA = [row for row in ROWS.values() if isinstance(row, WgmmaRow)]


def tile_of(rows: int, cols: int, elem: Type, span: int, *, transposed: bool) -> Shared:
    digits, swizzle = panel_order(rows, cols, elem, span, transposed=transposed)
    return Shared("t", elem, rows, cols, digits, 1, swizzle, 16)


@given(st.data())
def test_a_descriptor_finds_each_element_where_the_tile_has_it(data: st.DataObject) -> None:
    """The manual's formula for the element (r, k) of a factor, from the fields of the descriptor."""
    elem, span = data.draw(st.sampled_from((f16, bf16, f32, s8))), data.draw(st.sampled_from(SPANS))
    transposed = elem.bits == 16 and data.draw(st.booleans())
    along, lines = span // elem.bytes * data.draw(st.integers(1, 3)), 16 * data.draw(st.integers(1, 4))
    rows, cols = (along, lines) if transposed else (lines, along)
    place = FactorPlace.of(tile_of(rows, cols, elem, span, transposed=transposed), 0)
    leading, stride = (place.constant >> 16 & 0x3FFF) * 16, (place.constant >> 32 & 0x3FFF) * 16
    assert place.constant >> 62 == {128: 1, 64: 2, 32: 3}[span]
    step_k = 32 // elem.bytes  # elements of K of one instruction
    k0 = data.draw(st.integers(0, cols // step_k - 1)) * step_k
    start = place.offset(0, k0) * 16
    r, k = np.indices((rows, step_k))
    if transposed:
        run = span // elem.bytes
        at = r % run * elem.bytes + r // run * leading + k % 8 * span + k // 8 * stride
    else:
        at = r % 8 * span + k * elem.bytes + r // 8 * stride
    at = at + start
    at ^= (at >> 7 & (span // 16 - 1)) << 4
    assert np.array_equal(at, place.tile.address(0, r, k0 + k))


def test_tiles_in_other_orders_have_no_span() -> None:
    digits, _ = panel_order(64, 64, f16, 128, transposed=False)
    _, other = panel_order(64, 64, f16, 64, transposed=False)
    assert span_of(tile_of(64, 64, f16, 128, transposed=False)) == 128
    assert span_of(Shared("t", f16, 64, 64, digits, 1, other, 16)) == 0


@pytest.mark.parametrize("row", WGMMA, ids=lambda row: row.name)
def test_sums_are_laid_out_as_in_the_manual(row: WgmmaRow) -> None:
    """Thread t holds row 16 (t / 32) + (t % 32) / 4 + 8 (i / 2 % 2), column 8 (i / 4) + 2 (t % 4) + i % 2 (PTX ISA)."""
    thread, i = np.indices((128, row.n // 2))
    at = row.atom(1).d.coords(thread // 32, thread % 32, i)
    assert np.array_equal(np.broadcast_to(at["m"], i.shape), 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2))
    assert np.array_equal(np.broadcast_to(at["n"], i.shape), 8 * (i // 4) + 2 * (thread % 4) + i % 2)


def test_an_instruction_of_a_warpgroup_has_a_twin_of_one_warp() -> None:
    atoms = FACTS["sm_90a"].atoms
    wide = [atom for atom in atoms if atom.in_shared]
    assert {atom.of_one_subgroup(atoms).name for atom in wide} == {row.one.name for row in WGMMA}


def compiled(line: str, config: str) -> Code:
    return driver.compile(driver.build(parse_problem(line), "sm_90a", config))


#: name -> problem, config
CASES = {
    "nt": ("--dt=f16 --wtag=ba 200x320:320x144", "tile=128x64x64 waves=2x4 mma=64x64x16 slots=4 copy=direct"),
    "nn, panels": ("--dt=bf16 --wtag=ab 130x200:200x264", "tile=64x128x64 waves=1x4 mma=128x64x16 slots=3 copy=direct"),
    "tt": ("--dt=f16 --stag=ba --wtag=ba 136x128:128x72", "tile=128x64x32 waves=1x4 mma=64x64x16 slots=2 copy=direct"),
    "tn": ("--dt=bf16 --stag=ba --wtag=ab 64x96:96x96", "tile=64x96x32 waves=1x4 mma=96x64x16 slots=1"),
    # ptxas 13.0 serialises these products (C7514) if their sums are awaited later than right behind the loop.
    "ragged, one slot": (
        "--dt=bf16 --stag=ab --wtag=ba 61x126:126x119",
        "tile=128x64x64 waves=2x4 mma=64x64x16 slots=1 copy=direct",
    ),
    "two warpgroups along N": ("--dt=f16 --wtag=ba 64x128:128x128", "tile=64x128x64 waves=1x8 mma=64x64x16 slots=2"),
    "deep blocks": ("--dt=f16 --wtag=ba 64x384:384x64", "tile=64x64x128 waves=1x4 mma=64x64x16 slots=3 copy=direct"),
    "tf32": (
        "--dt=f32 --attr-fpmath=tf32 --wtag=ba 70x80:80x64",
        "tile=64x64x32 waves=1x4 mma=64x64x8 slots=3 copy=direct",
    ),
    "bytes": ("--dt=s8:s8:s32 --wtag=ba 100x192:192x64", "tile=64x64x64 waves=1x4 mma=64x64x32 slots=4 copy=direct"),
    "mixed bytes": (
        "--dt=u8:s8:s32 --wtag=ba 64x128:128x32",
        "tile=64x32x128 waves=1x4 mma=32x64x32 slots=2 copy=direct",
    ),
    "8-bit floats": (
        "--dt=f8_e4m3:f8_e4m3:f16 --wtag=ba 100x400:400x64",
        "tile=64x64x128 waves=1x4 mma=64x64x32 slots=4 copy=direct",
    ),
    "mixed 8-bit floats, through registers": (
        "--dt=f8_e5m2:f8_e4m3:bf16 --wtag=ba --bia-dt=f32 --attr-post-ops=relu 70x300:300x99",
        "tile=64x128x64 waves=1x4 mma=128x64x32 slots=2",
    ),
    "8-bit floats, slices": (
        "--dt=f8_e4m3:f8_e5m2:f32 --wtag=ba 64x640:640x64",
        "tile=64x64x128 waves=1x4 mma=64x64x32 slots=2 slices=2 copy=direct",
    ),
    "8-bit floats, resident windows": (
        f"--dt=f8_e4m3:f8_e4m3:f16 --dir=FWD_D {_CHANNELS_LAST} mb1ic128ih9oc64oh9kh3ph1",
        "tile=64x64x576 waves=1x4 mma=64x64x32 slots=2 taps=resident copy=direct",
    ),
    "8-bit floats, backward data": (
        f"--dt=f8_e4m3:f8_e4m3:f8_e5m2 --dir=BWD_D {_CHANNELS_LAST} mb1ic64ih9oc64oh9kh3ph1",
        "tile=64x64x64 waves=1x4 mma=64x64x32 slots=2",
    ),
    "8-bit floats, backward weights": (
        f"--dt=f8_e5m2:f32:f8_e4m3 --dir=BWD_W {_CHANNELS_LAST} mb2ic64ih8oc64oh8kh3ph1",
        "tile=64x64x64 waves=1x4 mma=64x64x32 slots=1 taps=fused",
    ),
    "batch": ("--dt=f16 --wtag=acb 3x64x96:3x96x64", "tile=64x64x32 waves=1x4 mma=64x64x16 slots=3 copy=direct"),
    "epilogue": (
        "--dt=f16 --wtag=ba --bia-dt=f32 --attr-post-ops=relu+sum:0.5 64x128:128x64",
        "tile=64x64x64 waves=1x4 mma=64x64x16 slots=2 copy=direct",
    ),
    "forward": (
        f"--dt=f16 --dir=FWD_B {_CHANNELS_LAST} mb2ic40ih9oc70oh9kh3ph1",
        "tile=128x96x32 waves=1x4 mma=96x64x16 slots=3 copy=direct",
    ),
    "backward data of stride 2": (
        f"--dt=bf16 --dir=BWD_D {_CHANNELS_LAST} mb2ic32ih9oc64oh5kh3sh2ph1",
        "tile=64x32x32 waves=1x4 mma=32x64x16 slots=4 copy=direct grids=merged",
    ),
    "backward weights": (
        f"--dt=f16 --dir=BWD_W {_CHANNELS_LAST} mb3ic64ih8oc64oh8kh3ph1",
        "tile=64x128x64 waves=1x4 mma=128x64x16 slots=4 taps=fused slices=2 copy=direct",
    ),
    "few channels": (
        f"--dt=f16 --dir=FWD_D {_CHANNELS_LAST} mb1ic3ih20oc64oh10kh7sh2ph3",
        "tile=64x64x32 waves=1x4 mma=64x64x16 slots=1 taps=fused",
    ),
    "groups": (
        f"--dt=f16 --dir=FWD_D {_CHANNELS_LAST} mb1g2ic64ih8oc128oh8kh3ph1",
        "tile=64x64x32 waves=1x4 mma=64x64x16 slots=2 copy=direct",
    ),
    "channels first": ("--dt=f16 --dir=FWD_D mb1ic32ih8oc64oh8kh3ph1", "tile=64x64x32 waves=1x4 mma=64x64x16 slots=2"),
    "resident windows": (
        f"--dt=f16 --dir=FWD_D {_CHANNELS_LAST} mb1ic64ih11oc64oh11kh3ph1",
        "tile=128x64x288 waves=2x4 mma=64x64x16 slots=2 taps=resident copy=direct",
    ),
    "stream-K": (
        "--dt=f16 --wtag=ba 128x448:448x128",
        "tile=64x64x64 waves=1x4 mma=64x64x16 slots=4 map=stream:3 copy=direct",
    ),
    "persistent workgroups": (
        "--dt=f16 --wtag=ba 192x128:128x128",
        "tile=64x64x64 waves=1x4 mma=64x64x16 slots=2 map=persist:2 copy=direct",
    ),
}


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("name", CASES)
def test_the_simulator_gets_the_sums(name: str) -> None:
    code = compiled(*CASES[name])
    assert "wgmma.mma_async" in code.asm
    outcome = verdict.run(code)
    assert outcome.passed, outcome


def test_sums_of_a_loop_that_may_not_run_are_right() -> None:
    """ptxas 13.0 wants a fence behind such a loop (C7519): the sums also come around it."""
    line, config = "--dt=f16 --wtag=ab --runtime_dims_masks=2:1 64x155:155x32", "tile=64x32x128 waves=1x4 mma=32x64x16"
    assert verdict.run(compiled(line, f"{config} slots=3")).passed


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("name", [name for name in CASES if "8-bit floats" in name])
def test_relaxed_sums_stay_in_the_instruction(name: str) -> None:
    line, config = CASES[name]
    strict, relaxed = (compiled(f"--attr-acc-mode={mode} {line}", config) for mode in ("strict", "any"))
    assert relaxed.asm.count("add.rn.f32") < strict.asm.count("add.rn.f32")
    outcome = verdict.run(relaxed)
    assert outcome.passed, outcome


def test_sums_of_8_bit_floats_are_added_in_f32_unless_they_are_relaxed() -> None:
    """Sums that stay in the instruction lose bits: behind 2^14 it adds 48 for each product of 49."""
    line, config = "--dt=f8_e4m3:f8_e4m3:f32 --wtag=ba 64x512:512x64", "tile=64x64x128 waves=1x4 mma=64x64x32 slots=2"
    sevens = {
        name: np.full(dims, 7, ml_dtypes.float8_e4m3fn) for name, dims in (("src", (64, 512)), ("wei", (512, 64)))
    }
    assert (simulate(compiled(line, config), **sevens) == 512 * 49).all()
    relaxed = simulate(compiled(f"--attr-acc-mode=relaxed {line}", config), **sevens)
    assert (relaxed > 512 * 49 * 0.9).all()
    assert (relaxed < 512 * 49).all()


def test_sums_are_awaited_also_where_an_exit_is_not_taken() -> None:
    """A wait in the branch of an exit leaves the sums in flight for what follows the exit."""
    (kernel,) = driver.build(parse_problem("--dt=f16 --wtag=ba 64x512:512x64"), "sm_90a", CASES["tt"][1]).ir.kernels
    kernel = pipeline.run(kernel, FACTS["sm_90a"])
    taken = kernel.group_ids[0] < const(-1)

    def with_exits(loop: For) -> For:
        return evolve(loop, body=block(ExitIf(taken, loop.carried), loop.body, ExitIf(taken, loop.yields)))

    text = Selector(evolve(kernel, body=rewrite(kernel.body, {For: with_exits})), "sm_90a", Writer()).run().lines
    stays = [number for number, line in enumerate(text) if line.startswith("STAY")]
    moved = next(number for number, line in enumerate(text) if number > stays[-1] and "mov.b32" in line)
    assert any("wgmma.wait_group.sync.aligned 0" in line for line in text[stays[-1] : moved])


SHAPES = st.integers(1, 160)


@settings(FIXED, max_examples=12)
@given(st.data())
def test_random_products_are_right_or_refused(data: st.DataObject) -> None:
    types, k_step = data.draw(st.sampled_from((("f16", 16), ("bf16", 16), ("s8:s8:s32", 32))))
    m, k, n = data.draw(SHAPES), data.draw(SHAPES), data.draw(SHAPES)
    tags = [data.draw(st.sampled_from(("ab", "ba"))) for _ in range(2)]
    columns, teams_m = data.draw(st.sampled_from((32, 64, 96, 128))), data.draw(st.sampled_from((1, 2)))
    tile = f"{64 * teams_m * data.draw(st.sampled_from((1, 2)))}x{columns}x{data.draw(st.sampled_from((32, 64, 128)))}"
    config = f"tile={tile} waves={teams_m}x4 mma={columns}x64x{k_step} slots={data.draw(st.integers(1, 4))}"
    config += data.draw(st.sampled_from(("", " copy=direct", " slices=2")))
    try:
        code = compiled(f"--dt={types} --stag={tags[0]} --wtag={tags[1]} {m}x{k}:{k}x{n}", config)
    except (DoesNotFit, UserError):
        return
    assert verdict.run(code).passed, code.config


@pytest.mark.parametrize(
    ("line", "config", "why"),
    [
        (
            "--dt=f16:s4:f16 --attr-scales=wei:per_ocic:f16:32x1 64x64:64x64",
            "tile=64x64x32 waves=1x4 mma=64x64x16 slots=2 in=f16",
            "an input that is dequantised in registers has no place there",
        ),
        ("--dt=f16 64x64:64x64", "tile=64x64x32 waves=1x4 mma=64x64x16 slots=0", "slots=0"),
        # 16 warps have 128 registers a lane.
        ("--dt=f16 256x64:64x256", "tile=256x256x64 waves=2x8 mma=128x64x16 slots=2", "at most 128"),
        ("--dt=f16 64x64:64x64", "tile=64x64x16 waves=2x2 mma=64x64x16 slots=2", "what one instruction spans"),
    ],
)
def test_what_does_not_suit_is_refused_in_one_line(line: str, config: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        compiled(line, config)
