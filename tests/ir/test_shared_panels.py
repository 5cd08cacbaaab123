"""Tiles in panels: which element stands where, and which tiles are none."""

from __future__ import annotations

import numpy as np
import pytest

from convgen.ir.layout.memory import COL, ROW, Shared, Swizzle, row_major
from convgen.ir.layout.shared_panels import CHUNK, SPANS, panel_order, span_of
from convgen.ir.types import Type, bf16, f16, f32, s8


def tile_of(rows: int, cols: int, elem: Type, span: int, *, transposed: bool) -> Shared:
    digits, swizzle = panel_order(rows, cols, elem, span, transposed=transposed)
    return Shared("t", elem, rows, cols, digits, 1, swizzle, CHUNK)


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize(("elem", "transposed"), [(f16, False), (bf16, True), (f32, False), (s8, False)])
def test_addresses_are_those_of_the_definition(elem: Type, transposed: bool, span: int) -> None:
    """A panel has `span` bytes of each line; bits 4 and up of an address are XORed with bits 7 and up."""
    run, lines = span // elem.bytes, 24
    rows, cols = (3 * run, lines) if transposed else (lines, 3 * run)
    row, col = np.indices((rows, cols))
    along, line = (row, col) if transposed else (col, row)
    place = along // run * span * lines + line * span + along % run * elem.bytes
    wanted = place ^ (place >> 7 & span // CHUNK - 1) << 4
    tile = tile_of(rows, cols, elem, span, transposed=transposed)
    assert np.array_equal(tile.address(0, row, col), wanted)
    assert span_of(tile) == span
    assert tile.is_transposed is transposed
    assert tile.digits.dims == (ROW, COL)


def test_other_tiles_are_not_in_panels() -> None:
    plain = Shared("t", f16, 64, 64, row_major(64, 64), 1, Swizzle(), CHUNK)
    wide = Shared("t", f16, 64, 128, row_major(64, 128), 1, Swizzle(0, 7), CHUNK)
    assert [span_of(tile) for tile in (plain, wide)] == [0, 0]
