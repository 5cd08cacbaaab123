"""Tiles to messages: how wide they are, what they may rely on, and buffers that offsets do not reach across."""

from __future__ import annotations

import numpy as np
import pytest

from convgen.backends.target import get
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.error import Unsupported, VerifyError
from convgen.ir.expr import Comparison
from convgen.ir.facts import TargetFacts
from convgen.ir.interp import interpret
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global
from convgen.ir.mutate import postorder
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.simplify.variable_ranges import var_ranges
from convgen.ir.stmt import (
    Copy,
    For,
    GlobalLoad,
    GlobalStore,
    LoadShared,
    LoadView,
    SharedRead,
    SharedWrite,
    StoreShared,
    StoreView,
)
from convgen.ir.types import f16
from convgen.passes import pipeline
from convgen.passes.buffer_shared import buffer_shared
from convgen.passes.clone import sites
from convgen.passes.lower_tiles import lower_tiles
from convgen.plan.config import Config
from convgen.problem.conv import Conv
from convgen.run import reference
from tests.passes.running import tile_kernel, tile_kernels

FACTS = get("gfx942").facts
CONFIG = Config((32, 32, 32), (2, 1), (16, 16, 16))


def lowered(descriptor: str, config: Config = CONFIG, **knobs: str) -> Kernel:
    problem = Conv.parse(descriptor, dir="FWD_D", **{"dt": "f16", **knobs})
    return lower_tiles(buffer_shared(tile_kernel(problem, config, FACTS), FACTS), FACTS)


def load_bytes(kernel: Kernel, buffer: str) -> set[int]:
    """How many bytes a lane the loads of a buffer bring."""
    found = (s for s in postorder(kernel) if isinstance(s, GlobalLoad) and s.site.comment == buffer)
    return {s.var.type.bits // 8 for s in found}


def store_bytes(kernel: Kernel) -> set[int]:
    return {s.value.type.bits // 8 for s in postorder(kernel) if isinstance(s, GlobalStore)}


@pytest.mark.parametrize(
    ("ic", "width"), [(64, 16), (40, 16), (12, 8), (4, 8), (6, 4), (2, 4), (7, 2), (1, 2)], ids=lambda n: f"{n}"
)
def test_loads_are_as_wide_as_the_channels_allow(ic: int, width: int) -> None:
    kernel = lowered(f"mb1ic{ic}ih8oc32kh3ph1")
    assert load_bytes(kernel, "src") == load_bytes(kernel, "wei") == {width}


@pytest.mark.parametrize(
    ("oc", "dst", "width"),
    [(32, "f16", 16), (32, "f32", 16), (36, "f16", 8), (30, "f16", 4), (30, "bf16", 4), (29, "f16", 2), (29, "f32", 4)],
)
def test_stores_are_as_wide_as_the_channels_allow(oc: int, dst: str, width: int) -> None:
    assert store_bytes(lowered(f"mb1ic32ih8oc{oc}kh1", dt=f"f16:f16:{dst}")) == {width}


def test_other_layouts_move_what_is_contiguous() -> None:
    assert load_bytes(lowered("mb1ic32ih8oc32kh3ph1", stag="abx"), "src") == {2}
    assert load_bytes(lowered("mb1ic32ih8oc32kh1", stag="abx"), "src") == {8}  # four rows of a word of K a lane
    assert load_bytes(lowered("mb1ic32ih8oc32kh1", wtag="abx"), "wei") == {16}
    assert store_bytes(lowered("mb1ic32ih8oc32kh1", dtag="abx")) == {16}  # M and N change places


def test_fused_taps_that_straddle_a_message_narrow_it() -> None:
    fused = Config((32, 32, 32), (2, 1), (16, 16, 16), taps="fused")
    assert load_bytes(lowered("mb1ic24ih8oc32kh3ph1", fused), "src") == {16}
    assert load_bytes(lowered("mb1ic20ih8oc32kh3ph1", fused), "src") == {8}


@pytest.mark.parametrize("descriptor", ["mb40ic32ih7oc32kh1", "mb40ic32ih7oc32kh3ph1", "mb40ic32ih8oc32oh6kh3ph0"])
def test_past_the_end_of_k_offsets_are_past_the_end_of_the_buffer(descriptor: str) -> None:
    """Where slices of K do not come out even, no comparison says so; halos are bits of words."""
    problem = Conv.parse(descriptor, dir="BWD_W", dt="f16")
    config = Config((32, 32, 32), (2, 1), (16, 16, 16), taps="fused", slices=3)
    main, _ = tile_kernels(problem, config, FACTS)
    loads = [s for s in postorder(lower_tiles(buffer_shared(main, FACTS), FACTS)) if isinstance(s, GlobalLoad)]
    for name in ("src", "diff_dst"):
        offsets = [load.varying for load in loads if (load.site.comment, load.site.stage) == (name, "load")]
        assert offsets
        assert not any(isinstance(e, Comparison) for offset in offsets for e in postorder(offset))


@pytest.mark.parametrize(("step", "width"), [(8, 16), (4, 8), (2, 4), (6, 4), (1, 2)])
def test_loads_are_as_wide_as_the_start_is_aligned(step: int, width: int) -> None:
    """A lane takes 8 elements of a row, from a column that is a multiple of `step`."""
    k = KernelBuilder("rows")
    rows = Fragment(("row", "col"), (Digit("row", 64, Space.LANE, 1), Digit("col", 8, Space.REGISTER, 1)))
    source, result = (matrix(k.buffer(name, f16, 64 * 64), 64, 64) for name in ("source", "result"))
    with k.loop("n", 0, 4) as loop:
        value = k.load_view("value", source, (0, loop.var * step), rows)
        k.store_view(result, (0, loop.var * 8), value, rows)
        loop.yields()
    before = k.done()
    after = lower_tiles(before, FACTS)
    assert {s.var.type.bits // 8 for s in postorder(after) if isinstance(s, GlobalLoad)} == {width}
    data = np.random.default_rng(1).integers(0, 256, 64 * 64 * 2, np.uint8)
    results = []
    for kernel in (before, after):
        memory = {"source": data, "result": np.zeros_like(data)}
        interpret(kernel, memory)
        results.append(memory["result"])
    first, second = results
    assert np.array_equal(first, second)
    assert first.any()


def test_messages_to_shared_memory_are_as_wide_as_they_can_be() -> None:
    kernel = lowered("mb1ic64ih8oc32kh3ph1")
    assert {s.var.type.bits // 8 for s in postorder(kernel) if isinstance(s, SharedRead)} == {16}
    assert {s.value.type.bits // 8 for s in postorder(kernel) if isinstance(s, SharedWrite)} == {16}


MANY = {
    "3x3": ("mb3ic64ih20oc64kh3ph1", {}),
    "odd": ("mb2ic13ih9oc21kh3ph1", {}),
    "1x1, strided": ("mb1ic256ih28oc64oh14kh1sh2ph0", {}),
    "far apart": ("mb1ic64ih8oc64kh3ph1", {"stag": "abx", "dtag": "bcda", "wtag": "cdba"}),
    "wide stores": ("mb2ic32ih40oc64kh1", {"dt": "bf16:bf16:f32"}),
}
LARGE = Config((64, 32, 32), (2, 1), (16, 16, 16))


@pytest.mark.parametrize("name", MANY)
def test_immediates_fit_and_offsets_do_not_go_below_zero(name: str) -> None:
    descriptor, knobs = MANY[name]
    kernel = lowered(descriptor, LARGE, **knobs)
    bounds = Bounds(var_ranges(kernel), kernel.width)
    messages = [s for s in postorder(kernel) if isinstance(s, (GlobalLoad, GlobalStore))]
    assert messages
    for s in messages:
        assert 0 <= s.imm <= FACTS.global_imm_max
        assert bounds(s.uniform)[0] >= 0
        assert bounds(s.uniform)[1] <= FACTS.surface_max
    for access in (s for s in postorder(kernel) if isinstance(s, (SharedRead, SharedWrite))):
        low, high = bounds(access.address)
        size = (access.var.type if isinstance(access, SharedRead) else access.value.type).bits // 8
        assert min(low, access.imm) >= 0
        assert access.imm + size <= access.tile.bytes
        assert access.imm <= FACTS.shared_imm_max
        assert high < access.tile.bytes


@pytest.mark.parametrize("name", MANY)
def test_nothing_of_the_tile_level_is_left(name: str) -> None:
    descriptor, knobs = MANY[name]
    kernel = lowered(descriptor, LARGE, **knobs)
    tile_level = (Copy, LoadView, StoreView, LoadShared, StoreShared)
    assert not any(isinstance(s, tile_level) for s in postorder(kernel))
    numbers = [s.number for s in sites(kernel.body)]
    assert len(numbers) == len(set(numbers))


def test_the_loop_does_not_grow_with_its_trips() -> None:
    short, long = (lowered(f"mb1ic{ic}ih8oc32kh1") for ic in (32 * 12, 32 * 48))
    assert len(list(postorder(short))) == pytest.approx(len(list(postorder(long))), abs=8)
    assert sum(isinstance(s, For) for s in postorder(long)) == 1


def test_copies_must_have_been_split() -> None:
    problem = Conv.parse("mb1ic32ih8oc32kh1", dir="FWD_D", dt="f16")
    with pytest.raises(VerifyError, match="copy into wei_tile was not split into load and store"):
        lower_tiles(tile_kernel(problem, CONFIG, FACTS), FACTS)


# ---------------------------------------------------------------- beyond the reach of one surface

#: Images of 268 MB (source) and 17 MB (result) each; only the last one's last rows hold anything.
HUGE = "mb9ic64ih1448oc4kh3ph1"
HUGE_RESULT = "mb9ic4ih1448oc64kh3ph1"


def run_last_tile(descriptor: str, facts: TargetFacts = FACTS, **knobs: str) -> None:
    """The last workgroup, on buffers of which the system backs only the touched pages."""
    problem = Conv.parse(descriptor, dir="FWD_D", **{"dt": "f16", **knobs})
    kernel = pipeline.run(tile_kernel(problem, CONFIG, facts), facts)
    random = np.random.default_rng(3)
    memory = {p.name: np.zeros(p.bytes, np.uint8) for p in kernel.params if isinstance(p, Global)}
    assert max(m.size for m in memory.values()) > 1 << 31
    src = memory["src"].view(np.float16).reshape(problem.mb, 1448, 1448, problem.ic)
    src[-1, -3:] = random.integers(-4, 5, src[-1, -3:].shape)
    wei = random.integers(-4, 5, problem.wei_dims).astype(np.float16)
    memory["wei"][:] = reference.pack(problem.wei_layout, wei)
    interpret(kernel, memory, groups=[kernel.grid[0] - 1])
    rows = problem.mb * 1448 * 1448
    pixels, channels = (np.arange((size - 1) // 32 * 32, size) for size in (rows, problem.oc))
    inputs = {"src": np.moveaxis(src, -1, 1), "wei": wei}
    expected = reference.outputs(problem, inputs, "dst", pixels, channels)
    got = memory["dst"].view(np.float16).reshape(rows, problem.oc)[np.ix_(pixels, channels)]
    assert expected.any()
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("descriptor", [HUGE, HUGE_RESULT], ids=["source", "result"])
def test_buffers_beyond_two_gigabytes(descriptor: str, flat: bool) -> None:
    run_last_tile(descriptor, evolve(FACTS, flat=flat))


def test_a_tile_that_spans_too_much_is_refused() -> None:
    """One pixel of each of 64 images: together they lie more than two gigabytes apart."""
    with pytest.raises(Unsupported, match="given src of which one tile spans 2903040064 bytes"):
        lowered("mb64ic64ih600oc16oh1kh1ph0", LARGE)
