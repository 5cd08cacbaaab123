"""Coordinates that differ between the elements of a tile: each row of a tile is any row of a tensor."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen.backends.target import get
from convgen.ir.build import KernelBuilder
from convgen.ir.error import Unsupported
from convgen.ir.expr import Pack, Slice
from convgen.ir.interp import interpret
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Dim, Global, TensorDim, View
from convgen.ir.layout.tags import Layout
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.types import f32, s32, vector
from convgen.passes.lower_tiles import lower_tiles

TARGETS = ("gfx942", "xehpc", "sm_80")
ROWS, COLS, TILE = 12, 16, 8


def view(buffer: Global, outer: int = 1) -> View:
    """Rows of `COLS` elements, with a trivial axis for the rows of a tile and one for the rows of the tensor.

    The tensor's rows are counted by one dim, or by two of which the outer has `outer` positions, side by side.
    """
    tile, cols = (Dim("m", TILE, TILE),), (Dim("k", COLS, COLS),)
    inner = ROWS // outer
    rows = (Dim("row", inner, inner),) if outer == 1 else (Dim("high", outer, outer), Dim("low", inner, inner))
    terms = (("row", 1),) if outer == 1 else (("high", 1), ("low", outer))
    index = TensorDim(ROWS, terms), TensorDim(COLS, (("k", 1),))
    return View(buffer, Layout.dense((ROWS, COLS), (0, 1)), (tile, cols, rows), index)


def moving(width: int, outer: int = 1, *, packed: bool = True, along_rows: bool = False) -> Kernel:
    """y[to[m]] = x[from[m]] for the rows m of a tile; each lane has runs of a row, or of `along_rows` of a column."""
    k = KernelBuilder("moving", width=width)
    x, y = (k.buffer(name, f32, ROWS * COLS) for name in "xy")
    numbers = [k.buffer(name, s32, TILE) for name in ("from", "to")]
    side = (Dim("m", TILE, TILE),), (Dim("any", COLS, COLS),)
    run = Digit("k", 2, Space.REGISTER, 4 if along_rows else 1), Digit("m", 4, Space.REGISTER, 1 if along_rows else 2)
    lanes = Digit("k", 8, Space.LANE, 1), Digit("m", 2, Space.LANE, 8)
    layout = Fragment(("m", "k"), (run[0], lanes[0], run[1], lanes[1]))
    coordinates = []
    for number in numbers:
        of_rows = View(number, Layout.dense((TILE,), (0,)), side, (TensorDim(TILE, (("m", 1),)),))
        whole = k.load_view(number.name, of_rows, (0, 0), layout)
        parts = tuple(k.let("row", Pack(s32, (Slice(whole, n, 1),))) for n in range(layout.registers))
        coordinates.append(Pack(vector(s32, layout.registers), parts) if packed else whole)
    value = k.load_view("value", view(x, outer), (0, 0, coordinates[0]), layout)
    k.store_view(view(y, outer), (0, 0, coordinates[1]), value, layout)
    return k.done()


def moved(source: npt.NDArray[np.int32], target: npt.NDArray[np.int32], outer: int) -> npt.NDArray[np.float32]:
    order = np.arange(ROWS).reshape(-1, outer).T.ravel()  # row of the tensor by position along the view's axis
    x, y = np.arange(1, ROWS * COLS + 1, dtype=np.float32).reshape(ROWS, COLS), np.zeros((ROWS, COLS), np.float32)
    for m in range(TILE):
        if 0 <= target[m] < ROWS:
            y[order[target[m]]] = x[order[source[m]]] if 0 <= source[m] < ROWS else 0
    return y


NUMBERS = [
    ([3, 0, 11, 5, 5, 7, 2, 1], [0, 1, 2, 3, 4, 5, 6, 7]),
    ([0, 1, 2, 3, 4, 5, 6, 7], [11, 0, 10, 1, 9, 2, 8, 3]),
    ([-1, 12, 4, 1 << 20, 6, 0, -5, 9], [7, 3, -1, 0, 12, 5, 100, 11]),
]


@pytest.mark.parametrize("outer", [1, 3])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "whole"])
@pytest.mark.parametrize("target", TARGETS)
def test_rows_come_from_and_go_to_where_their_numbers_say(target: str, outer: int, *, packed: bool) -> None:
    """Interpreted as built and lowered, and on the target's simulator; rows that do not exist are zero, or dropped."""
    facts = get(target).facts
    for along_rows in (False, True):
        kernel = moving(facts.subgroup_size, outer, packed=packed, along_rows=along_rows)
        code = cg.compile(kernel, target)
        for given in NUMBERS:
            source, to = (np.array(each, np.int32) for each in given)
            arrays = {"x": np.arange(1, ROWS * COLS + 1, dtype=np.float32), "from": source, "to": to}
            wanted = moved(source, to, outer)
            for each in (kernel, lower_tiles(kernel, facts)):
                memory = {name: np.frombuffer(array.tobytes(), np.uint8).copy() for name, array in arrays.items()}
                memory["y"] = np.zeros(ROWS * COLS * 4, np.uint8)
                interpret(each, memory)
                assert np.array_equal(memory["y"].view(np.float32).reshape(ROWS, COLS), wanted)
            stored = np.flatnonzero(moved(np.zeros_like(source), to, outer).any(1))
            result = np.asarray(cg.simulate(code, **arrays)).reshape(ROWS, COLS)
            assert np.array_equal(result[stored], wanted[stored])


def test_rows_of_buffers_beyond_the_reach_of_offsets_are_refused() -> None:
    facts = get("gfx942").facts
    kernel = moving(facts.subgroup_size)
    small = evolve(facts, surface_max=ROWS * COLS * 4 - 1)
    with pytest.raises(Unsupported, match="given x of 768 bytes, whose rows have numbers, wanted at most 767"):
        lower_tiles(kernel, small)
