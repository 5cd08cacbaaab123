"""Loops of products within other loops: a prologue fills slots that an iteration of the outer loop before has read."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen import tile
from convgen.tile import Tensor

Matrix = npt.NDArray[np.float16]
TARGETS = ("gfx942", "xehpc", "sm_80", "sm_90a")
SIDE = 32


def integers(*shapes: tuple[int, ...]) -> list[Matrix]:
    random = np.random.default_rng(0)
    return [random.integers(-4, 5, shape).astype(np.float16) for shape in shapes]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("slots", "blocks"), [(2, 3), (3, 4), (4, 7)])
def test_a_repeated_loop_awaits_the_readers_of_its_slots(slots: int, blocks: int, target: str) -> None:
    @tile.kernel(subgroups=(2, 2), slots=slots)
    def repeated(a: Tensor, b: Tensor, c: Tensor) -> None:
        acc = tile.zeros((SIDE, SIDE))
        for n in tile.range(0, 2):
            for k in tile.range(0, a.shape[1], SIDE):
                left = tile.load_tile(tile.init_tile(a, (0, k), (SIDE, SIDE)))
                right = tile.load_tile(tile.init_tile(b, (n, k, 0), (None, SIDE, SIDE)))
                acc = tile.tile_mma(left, right, acc)
        tile.store_tile(acc, tile.init_tile(c, (0, 0), (SIDE, SIDE)))

    depth = blocks * SIDE
    a, b = integers((SIDE, depth), (2, depth, SIDE))
    tensors = Tensor(a.shape, "f16"), Tensor(b.shape, "f16"), Tensor((SIDE, SIDE), "f32")
    found = cg.simulate(cg.compile(repeated(*tensors), target), a=a, b=b)
    assert np.array_equal(found, (a.astype(np.float32) @ b.astype(np.float32)).sum(0))


@pytest.mark.parametrize("target", TARGETS)
def test_both_loops_copy_factors(target: str) -> None:
    """The copies of the inner prologue are none of those with which the outer loop begins."""

    @tile.kernel(subgroups=(2, 2), slots=2)
    def both(a: Tensor, b: Tensor, c: Tensor) -> None:
        acc = tile.zeros((SIDE, SIDE))
        for k in tile.range(0, a.shape[1], SIDE):
            left = tile.load_tile(tile.init_tile(a, (0, k), (SIDE, SIDE)))
            acc = tile.tile_mma(left, tile.load_tile(tile.init_tile(b, (k, 0), (SIDE, SIDE))), acc)
            for at in tile.range(0, a.shape[1], SIDE):
                left = tile.load_tile(tile.init_tile(a, (0, at), (SIDE, SIDE)))
                acc = tile.tile_mma(left, tile.load_tile(tile.init_tile(b, (at, 0), (SIDE, SIDE))), acc)
        tile.store_tile(acc, tile.init_tile(c, (0, 0), (SIDE, SIDE)))

    a, b = integers((SIDE, 3 * SIDE), (3 * SIDE, SIDE))
    tensors = Tensor(a.shape, "f16"), Tensor(b.shape, "f16"), Tensor((SIDE, SIDE), "f32")
    found = cg.simulate(cg.compile(both(*tensors), target), a=a, b=b)
    assert np.array_equal(found, 4 * (a.astype(np.float32) @ b.astype(np.float32)))
