"""Elements of less than a word in registers: shuffles, parts and conversions, on the simulator of each family."""

from __future__ import annotations

import numpy as np
import pytest

from convgen.backends import target as targets
from convgen.driver import compile
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.error import Unsupported
from convgen.ir.expr import Expr, Lane, Pack, Shuffle, Slice
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.types import Type, f32, s8, s32, u4, u8, vector
from convgen.passes import pipeline
from tests.backends.intel.random_kernels import assert_simulates

LANES = {"gfx942": 64, "xehpg": 8, "xehpc": 16}
TARGETS = pytest.mark.parametrize("target", LANES)
EACH = 16  #: elements of a lane
RANDOM = np.random.default_rng(11)

ORDERS = {
    "a matrix of bytes turned round": tuple(4 * (i % 4) + i // 4 for i in range(16)),
    "reversed": tuple(range(15, -1, -1)),
    "halves of words": (2, 3, 6, 7, 0, 1, 4, 5),
    "one word and parts of it": (4, 5, 6, 7, 5, 6, 4, 7),
    "of three words": (0, 1, 4, 12, 2, 2, 9, 13),
    "fewer than a word": (9, 3),
    "a single one": (6,),
    **{f"random {n}": tuple(map(int, RANDOM.integers(0, EACH, size=n))) for n in (2, 4, 8, 16)},
}


def rows(lanes: int, each: int) -> Fragment:
    """A row a lane."""
    inner = (Digit("col", each, Space.REGISTER, 1),) if each > 1 else ()
    return Fragment(("row", "col"), (Digit("row", lanes, Space.LANE, 1), *inner))


def check(target: str, of: Type, given: np.ndarray, to: Type, order: tuple[int, ...] = (), *, off: int = 0) -> str:
    """Each lane loads a row from a column on, turns it to another type or order and stores it; gives the text."""
    lanes, facts = LANES[target], targets.get(target).facts
    wide, count = EACH + off, len(order) or EACH
    k = KernelBuilder("k", width=lanes)
    source = matrix(k.buffer("x", of, lanes * wide), lanes, wide)
    result = matrix(k.buffer("y", to, lanes * wide), lanes, wide)
    value: Expr = k.load_view("v", source, (0, off), rows(lanes, EACH))
    if order:
        value = Shuffle(value, order)
    value = k.let("w", value.to(vector(to, count), saturate=to.is_int and to.bits < of.bits))
    k.store_view(result, (0, off), value, rows(lanes, count))
    kernel = k.done()
    memory = {"x": given.view(np.uint8).copy(), "y": np.full(lanes * wide * to.bytes, 0xA5, np.uint8)}
    lowered = pipeline.run(kernel, facts)
    assert_simulates(target, kernel, lowered, memory)
    return targets.get(target).emit(lowered).text


@TARGETS
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_shuffles(target: str, order: tuple[int, ...]) -> None:
    given = RANDOM.integers(0, 256, LANES[target] * EACH, np.uint8)
    check(target, u8, given, u8, order)


@TARGETS
def test_parts_that_no_message_moves_together(target: str) -> None:
    """Rows of an odd length begin anywhere, so bytes come and go one by one."""
    given = RANDOM.integers(0, 256, LANES[target] * (EACH + 1), np.uint8)
    check(target, s8, given, s8, off=1)


@TARGETS
@pytest.mark.parametrize(("start", "count"), [(1, 2), (3, 4), (9, 2), (1, 6), (2, 4), (8, 8)])
def test_nibbles_that_begin_within_bytes(target: str, start: int, count: int) -> None:
    """Some of sixteen, and all of them again."""
    lanes = LANES[target]
    k = KernelBuilder("k", width=lanes)
    x, y = k.buffer("x", u4, 16 * lanes), k.buffer("y", u4, 8 * lanes)
    held = k.global_load("held", vector(u4, 16), k.surface(x), Lane() * 8)
    parts = (Slice(held, start, count), Slice(held, 8, 8 - count)) if count < 8 else (Slice(held, start, count),)
    k.global_store(k.surface(y), Pack(vector(u4, 8), parts), Lane() * 4)
    kernel = k.done()
    memory = {"x": RANDOM.integers(0, 256, 8 * lanes, np.uint8), "y": np.zeros(4 * lanes, np.uint8)}
    assert_simulates(target, kernel, pipeline.run(kernel, targets.get(target).facts), memory)


@TARGETS
@pytest.mark.parametrize("of", [s32, f32, u8], ids=str)
def test_nothing_is_converted_to_nibbles(target: str, of: Type) -> None:
    """It is refused in one line, however much was computed before."""
    lanes = LANES[target]
    k = KernelBuilder("k", width=lanes)
    x, y = k.buffer("x", of, 2 * lanes), k.buffer("y", u4, 2 * lanes)
    held = k.global_load("held", vector(of, 2), k.surface(x), Lane() * (2 * of.bytes))
    value = held * held
    k.global_store(k.surface(y), (value * value + value).to(vector(u4, 2)), Lane())
    with pytest.raises(Unsupported, match=r"given a conversion from .* to u4x2, wanted one that") as caught:
        compile(k, target)
    assert "\n" not in str(caught.value)


@TARGETS
@pytest.mark.parametrize("to", [s8, u8, f32], ids=str)
def test_sums_become_results(target: str, to: Type) -> None:
    """Saturated, or rounded once: to even where two are as near."""
    near = RANDOM.integers(-400, 400, LANES[target] * EACH)
    far = RANDOM.integers(-(1 << 31), 1 << 31, LANES[target] * EACH)
    given = np.where(RANDOM.integers(0, 2, len(near)), near, far).astype(np.int32)
    given[:8] = (s32.min, s32.max, -129, -128, 127, 128, (1 << 24) + 1, (1 << 24) + 3)
    check(target, s32, given, to)


@TARGETS
@pytest.mark.parametrize("of", [s8, u8], ids=str)
def test_factors_become_terms(target: str, of: Type) -> None:
    given = RANDOM.integers(0, 256, LANES[target] * EACH, np.uint8)
    check(target, of, given, s32)


def test_four_by_four_bytes_take_eight_permutations() -> None:
    given = RANDOM.integers(0, 256, LANES["gfx942"] * EACH, np.uint8)
    text = check("gfx942", u8, given, u8, ORDERS["a matrix of bytes turned round"])
    assert text.count("v_perm_b32") == 8
