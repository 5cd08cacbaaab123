"""Factors that are loaded outside loops, beside a ring of bulk copies: through a slot, or by lanes.

Each row of the kernel's result is the sum of squares of a row of q times blocks of k, one per column of a block.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen import tile
from convgen.backends.nvidia.sim import simulate
from convgen.run.code import Code
from convgen.run.execution import allocate
from convgen.tile import Tensor, Value

ROWS, DEPTH = 136, 64  #: rows of q and of k, the last block is ragged
_SLOT = "// q copy"  #: remark at a bulk copy of q
Matrix = npt.NDArray[Any]


def squares(
    *, slots: int = 2, q_transposed: bool = False, k_transposed: bool = True, at: int = 0, width: int = DEPTH
) -> Code:
    """Return the kernel: q is `width` wide and read from column `at` on; k is (keys, depth) or else (depth, keys)."""

    @tile.kernel(subgroups=(4, 1), slots=slots, copy="tensor")
    def squares(q: Tensor, k: Tensor, o: Tensor) -> None:
        m, _ = tile.grid(o, (64, 64))
        here = (at, m) if q_transposed else (m, at)
        query = tile.load_tile(tile.init_tile(q, here, (64, 64)), transpose=q_transposed)
        total: Value = tile.zeros((64, 64))
        for n in tile.range(0, ROWS, 64):
            there = (n, 0) if k_transposed else (0, n)
            keys = tile.load_tile(tile.init_tile(k, there, (64, 64)), transpose=k_transposed)
            scores = tile.tile_mma(query, keys)
            total = total + scores * scores
        tile.store_tile(total, tile.init_tile(o, (m, 0), (64, 64)))

    q = (width, ROWS) if q_transposed else (ROWS, width)
    k = (ROWS, DEPTH) if k_transposed else (DEPTH, ROWS)
    return cg.compile(squares(Tensor(q, "f16"), Tensor(k, "f16"), Tensor((ROWS, 64), "f32")), "sm_90a")


def is_right(
    code: Code, q_shape: tuple[int, int], *, q_transposed: bool = False, k_transposed: bool = True, at: int = 0
) -> bool:
    """Return whether all orders of warps give what numpy gives, without findings."""
    random = np.random.default_rng(0)
    q, k = (random.integers(-3, 4, shape).astype(np.float16) for shape in (q_shape, (ROWS, DEPTH)))
    queries = (q.T if q_transposed else q)[:, at : at + DEPTH].astype(np.float32)
    blocks = np.zeros((192, DEPTH), np.float32)
    blocks[:ROWS] = k
    wanted = sum((queries @ blocks[n : n + 64].T) ** 2 for n in range(0, 192, 64))
    inputs = {"q": q, "k": k if k_transposed else np.ascontiguousarray(k.T)}
    for early, order in product((False, True), ("forward", "reverse")):
        memory = allocate(code.record, inputs)
        report = simulate(code.asm.encode(), code.record.requests(), memory, early=early, wave_order=order)
        found = memory["o"].whole().view(np.float32).reshape(ROWS, 64)
        if report.findings or not np.array_equal(found, wanted):
            return False
    return True


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_factor_of_the_rings_shape_comes_through_a_slot(slots: int) -> None:
    code = squares(slots=slots)
    assert _SLOT in code.asm
    assert is_right(code, (ROWS, DEPTH))


@pytest.mark.parametrize(
    ("width", "at"),
    [(68, 0), (66, 0), (128, 3)],
    ids=["rows of 136 bytes", "rows of 132 bytes", "from 6 bytes on"],
)
def test_lanes_load_what_bulk_copies_cannot_bring(width: int, at: int) -> None:
    """Bulk copies want rows of a multiple of 16 bytes, and tiles that start at one."""
    code = squares(width=width, at=at)
    assert _SLOT not in code.asm
    assert is_right(code, (ROWS, width), at=at)


@pytest.mark.parametrize(("q_transposed", "k_transposed"), [(True, True), (False, False)])
def test_lanes_load_what_is_in_another_order_than_the_slots(q_transposed: bool, k_transposed: bool) -> None:
    """A tile of its own would take shared memory in all slots."""
    code = squares(q_transposed=q_transposed, k_transposed=k_transposed)
    assert _SLOT not in code.asm
    shape = (DEPTH, ROWS) if q_transposed else (ROWS, DEPTH)
    assert is_right(code, shape, q_transposed=q_transposed, k_transposed=k_transposed)


def test_a_copy_does_not_bring_what_the_kernel_stores() -> None:
    """The producer does not wait for stores of the consumers."""

    @tile.kernel(subgroups=(4, 1), slots=2, copy="tensor")
    def doubled(q: Tensor, k: Tensor, o: Tensor) -> None:
        m, _ = tile.grid(o, (64, 64))
        rows = tile.init_tile(q, (m, 0), (64, 64))
        query = tile.load_tile(rows)
        tile.store_tile(query * 2.0, rows)
        total: Value = tile.zeros((64, 64))
        for n in tile.range(0, ROWS, 64):
            keys = tile.load_tile(tile.init_tile(k, (n, 0), (64, 64)), transpose=True)
            scores = tile.tile_mma(query, keys)
            total = total + scores * scores
        tile.store_tile(total, tile.init_tile(o, (m, 0), (64, 64)))

    q, o = Tensor((ROWS, DEPTH), "f16"), Tensor((ROWS, 64), "f32")
    assert _SLOT not in cg.compile(doubled(q, q, o), "sm_90a").asm
