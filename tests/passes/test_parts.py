"""Parts of shared tiles in the order of blocks: blocks begin at any row where rows stand one behind the other."""

from __future__ import annotations

import numpy as np
import pytest

from convgen.backends.target import get
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.error import VerifyError
from convgen.ir.interp import interpret
from convgen.ir.layout.digits import Digit, Digits, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import COL, ROW, Shared, Swizzle
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.stmt import BlockRead
from convgen.ir.types import f16
from convgen.ir.verify import verify
from convgen.passes.lower_tiles import lower_tiles

FACTS = get("xehpc").facts
ROWS, COLS, LANES = 48, 32, 16
WHOLE = Fragment(
    ("row", "k"),
    (Digit("k", 32, Space.REGISTER, 1), Digit("row", 16, Space.LANE, 1), Digit("row", 3, Space.REGISTER, 32)),
)
#: 16 rows of 16 columns as `dpas` reads them: two rows a register, 8 dwords of each.
READ = Fragment(
    ("row", "k"),
    (
        Digit("k", 2, Space.REGISTER, 1),
        Digit("k", 8, Space.LANE, 1),
        Digit("row", 2, Space.LANE, 8),
        Digit("row", 8, Space.REGISTER, 2),
    ),
)
IN_ROWS = Digits(
    (ROW, COL),
    tuple(Digit(*each[:2], Space.MEMORY, each[2]) for each in ((COL, 16, 1), (ROW, ROWS, 16), (COL, 2, 16 * ROWS))),
)
IN_BLOCKS = Digits(
    (ROW, COL),
    tuple(
        Digit(*each[:2], Space.MEMORY, each[2]) for each in ((COL, 16, 1), (ROW, 8, 16), (COL, 2, 128), (ROW, 6, 256))
    ),
)


def brought(row: int, col: int, digits: Digits) -> Kernel:
    """Stores a part of a tile of 48 x 32 elements, that begins at a place."""
    k = KernelBuilder("parts", width=LANES)
    source, result = (
        matrix(k.buffer("source", f16, ROWS * COLS), ROWS, COLS),
        matrix(k.buffer("result", f16, 256), 16, 16),
    )
    k.tiles.append(tile := Shared("tile", f16, ROWS, COLS, digits, 1, Swizzle(), 32))
    k.store_shared(tile, k.load_view("loaded", source, (0, 0), WHOLE), WHOLE)
    k.barrier()
    k.store_view(result, (0, 0), k.load_part("read", tile, READ, (row, col)), READ)
    return k.done()


@pytest.mark.parametrize(("row", "col"), [(0, 0), (3, 0), (32, 16), (17, 16)])
def test_a_part_is_one_block_wherever_it_begins(row: int, col: int) -> None:
    before = verify(brought(row, col, IN_ROWS))
    after = lower_tiles(before, FACTS)
    assert sum(isinstance(s, BlockRead) for s in statements(after.body)) == 1
    numbers = np.arange(ROWS * COLS, dtype=np.float16)
    for made in (before, after):
        found = np.zeros(256, np.float16)
        interpret(made, {"source": numbers.view(np.uint8), "result": found.view(np.uint8)})
        assert np.array_equal(found.reshape(16, 16), numbers.reshape(ROWS, COLS)[row : row + 16, col : col + 16])


@pytest.mark.parametrize(("row", "col"), [(3, 0), (0, 8)])
def test_parts_that_straddle_blocks_are_refused(row: int, col: int) -> None:
    verify(brought(8, 16, IN_BLOCKS))
    with pytest.raises(VerifyError, match=f"a part of shared tile tile from row {row}, column {col} on"):
        verify(brought(row, col, IN_BLOCKS))
