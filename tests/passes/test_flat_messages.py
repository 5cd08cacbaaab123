"""Flat addresses, masks and blocks against the interpretation of the views and tiles they come from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from convgen.backends.target import get
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.error import Unsupported
from convgen.ir.expr import And, Const, Eq, Expr, Lane
from convgen.ir.facts import TargetFacts
from convgen.ir.interp import interpret
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, Shared, Swizzle, row_major
from convgen.ir.mutate import postorder
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import BlockRead, BlockWrite, FlatAtomic, FlatLoad, FlatStore, PlaneLoad, SharedRead, SharedWrite
from convgen.ir.types import f16, f32
from convgen.ir.verify import verify
from convgen.passes.buffer_shared import buffer_shared
from convgen.passes.lower_tiles import lower_tiles
from convgen.plan.config import Config
from convgen.problem.conv import Conv
from tests.passes.running import tile_kernel
from tests.passes.test_differential import check_every_pass, check_without
from tests.strategies import FIXED, cases, image_of

pytestmark = pytest.mark.in_turn(2)

GFX942, XEHPC = get("gfx942").facts, get("xehpc").facts

#: Facts that no target has: a feature by itself, and surfaces so short that small buffers are beyond the reach of one.
VARIANTS: dict[str, TargetFacts] = {
    "flat": evolve(GFX942, flat=True),
    "near": evolve(GFX942, surface_max=1 << 11),
    "flat and near": evolve(GFX942, flat=True, surface_max=1 << 11),
    "halves": evolve(GFX942, split_barriers=True),
    "surfaces, blocks": evolve(XEHPC, flat=False, global_imm_max=4095, shared_imm_max=255),
    "flat, no blocks": evolve(XEHPC, block_bytes=0, chunk_bytes=16),
    "no planes": evolve(XEHPC, planes=None),
    "short blocks": evolve(XEHPC, block_bytes=128),
}


@pytest.mark.parametrize("variant", VARIANTS)
@settings(FIXED, max_examples=1)
@given(data=st.data())
def test_features_do_not_depend_on_one_another(variant: str, data: st.DataObject) -> None:
    facts = VARIANTS[variant]
    case = data.draw(cases(facts))
    try:
        check_every_pass(case, facts)
        check_without(case, ("simplify",), facts)
    except Unsupported:  # a tile that no short surface holds
        if "near" not in variant:
            raise
        reject()


# ---------------------------------------------------------------- what is made


def lowered(descriptor: str, facts: TargetFacts = XEHPC, **knobs: str) -> Kernel:
    problem = Conv.parse(descriptor, **{"dir": "FWD_D", "dt": "f16", **knobs})
    config = Config((32, 32, 32), (2, 1), (16, 8, 16))
    return lower_tiles(buffer_shared(tile_kernel(problem, config, facts), facts), facts)


def masks_of(kernel: Kernel, comment: str) -> list[Expr]:
    return [s.mask for s in postorder(kernel) if isinstance(s, FlatLoad) and s.site.comment == comment]


def masks(kernel: Kernel, comment: str) -> set[bool]:
    """Whether the masks of loads are always true."""
    return {isinstance(mask, Const) and bool(mask.bits) for mask in masks_of(kernel, comment)}


def test_only_what_may_not_exist_has_a_mask() -> None:
    whole = evolve(XEHPC, planes=None)
    assert masks(lowered("mb1ic64ih8oc32kh1", whole), "src") == {True}
    assert masks(lowered("mb1ic64ih8oc32kh3ph1", whole), "src") == {False}
    assert masks(lowered("mb1ic64ih9oc32kh1", whole), "src") == {False}  # 81 pixels in tiles of 32
    assert masks(lowered("mb1ic64ih9oc32kh1", whole), "wei") == {True}


@pytest.mark.parametrize(("taps", "tests"), [("kh3kw5ph1pw2", 1), ("kh3kw30ph1pw15", 2)])
def test_taps_that_fit_one_word_are_one_test(taps: str, tests: int) -> None:
    """Bits of kh and of kw, 3 and 5 or 3 and 30, stand side by side where they are 32 at most."""
    kernel = lowered(f"mb1ic32ih9iw40oc32{taps}")
    found = [[n for n in postorder(mask) if isinstance(n, Eq)] for mask in masks_of(kernel, "src")]
    assert max(map(len, found)) == tests  # blocks of K that are peeled know their taps
    assert all(isinstance(n.a, And) for each in found for n in each)


def test_a_matrix_is_loaded_in_rectangles() -> None:
    """Where lanes go down the rows of a plane; not where a halo or a short row is in the way."""

    def planes(descriptor: str, facts: TargetFacts = XEHPC) -> int:
        return sum(isinstance(s, PlaneLoad) for s in postorder(lowered(descriptor, facts)))

    assert planes("mb1ic64ih8oc32kh1") > 0
    assert planes("mb1ic64ih8oc32kh3ph1", evolve(XEHPC, planes=None)) == 0
    assert planes("mb1ic64ih8oc32kh1", evolve(XEHPC, planes=None)) == 0
    assert planes("mb1ic16ih8oc32kh1") == 0


def test_stores_and_additions_are_flat_too() -> None:
    kernel = lowered("mb1ic64ih8oc32kh1", evolve(XEHPC, planes=None))
    assert any(type(s) is FlatStore for s in postorder(kernel))
    k = KernelBuilder("adds", width=16)
    rows = Fragment(("i", "j"), (Digit("j", 2, Space.REGISTER, 1), Digit("i", 16, Space.LANE, 1)))
    sums = matrix(k.buffer("sums", f32, 14 * 2), 14, 2)
    k.atomic_view("add", sums, (0, 0), k.load_view("v", sums, (0, 0), rows), rows)
    before = k.done()
    after = verify(lower_tiles(before, XEHPC), "message")
    added = [s for s in postorder(after) if isinstance(s, FlatAtomic)]
    assert [s.value.type.bits for s in added] == [32, 32]
    results = []
    for kernel in (before, after):
        memory = {"sums": np.arange(28, dtype=np.float32).view(np.uint8).copy()}
        interpret(kernel, memory)
        results.append(memory["sums"].view(np.float32).tolist())
    assert results[0] == results[1] == [2 * n for n in range(28)]


# ---------------------------------------------------------------- blocks

LANES = XEHPC.subgroup_size


def image_tile(f: Fragment, slots: int = 1) -> Shared:
    """A tile in which the fragment's registers stand as they are."""
    digits = image_of(f, LANES, f16.bytes)
    rows, cols = f.shape
    return Shared("t", f16, rows, cols, digits, slots, Swizzle(), 16)


@st.composite
def blocks(draw: st.DrawFn) -> Fragment:
    """Fragments of f16 over 16 lanes and 2 subgroups with 2 to 32 registers, digits in any order."""
    digits: list[Digit] = []
    for space, size in (
        (Space.LANE, LANES),
        (Space.SUBGROUP, 2),
        (Space.REGISTER, draw(st.sampled_from((2, 4, 8, 32)))),
    ):
        stride = 1
        while stride < size:
            part = draw(st.sampled_from([n for n in (2, 4, 16, 32) if size % (stride * n) == 0]))
            digits.append(Digit(draw(st.sampled_from("ij")), part, space, stride))
            stride *= part
    return Fragment(("i", "j"), tuple(draw(st.permutations(digits))))


def through(tile: Shared, stored: Fragment, read: Fragment) -> tuple[Kernel, Kernel]:
    """A matrix by way of a shared tile, before and after lowering."""
    k = KernelBuilder("through", subgroups=2, width=LANES)
    rows, cols = stored.shape
    source, result = (matrix(k.buffer(n, f16, rows * cols), rows, cols) for n in ("source", "result"))
    k.tiles.append(tile)
    slot = tile.slots - 1
    k.store_shared(tile, k.load_view("v", source, (0, 0), stored), stored, slot)
    k.barrier()
    k.store_view(result, (0, 0), k.load_shared("w", tile, read, slot), read)
    before = k.done()
    return before, verify(lower_tiles(verify(before, "tile"), XEHPC), "message")


def assert_copies(kernel: Kernel) -> None:
    size = next(p.bytes for p in kernel.params if isinstance(p, Global))
    data = np.random.default_rng(2).integers(0, 256, size, np.uint8)
    memory = {"source": data.copy(), "result": np.zeros_like(data)}
    interpret(kernel, memory)
    assert np.array_equal(memory["result"], data)


@settings(FIXED, max_examples=80)
@given(blocks(), st.integers(1, 2))
def test_the_image_of_a_fragment_moves_in_blocks(f: Fragment, slots: int) -> None:
    before, after = through(image_tile(f, slots), f, f)
    assert_copies(before)
    assert_copies(after)
    writes = [s for s in postorder(after) if isinstance(s, SharedWrite)]
    reads = [s for s in postorder(after) if isinstance(s, SharedRead)]
    assert all(isinstance(s, BlockWrite) for s in writes)
    assert all(isinstance(s, BlockRead) for s in reads)
    each = min(f.registers * f16.bytes, XEHPC.block_bytes // LANES)
    assert {s.var.type.bits // 8 for s in reads} == {s.value.type.bits // 8 for s in writes} == {each}
    addresses = [*(s.address for s in reads), *(s.address for s in writes)]
    assert not any(isinstance(n, Lane) for e in addresses for n in postorder(e))


@settings(FIXED, max_examples=60)
@given(blocks(), st.sampled_from(("rows", "own")), st.data())
def test_any_tile_gives_back_what_was_stored(f: Fragment, kind: str, data: st.DataObject) -> None:
    """Stored one way and read another, in a tile by rows or in the image of either."""
    other = Fragment(f.dims, tuple(data.draw(st.permutations(f.digits))))
    rows, cols = f.shape
    tile = (
        image_tile(f)
        if kind == "own"
        else Shared("t", f16, rows, cols, row_major(rows, cols, cols + 8), 1, Swizzle(), 16)
    )
    for kernel in through(tile, f, other):
        assert_copies(kernel)
