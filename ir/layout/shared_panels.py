"""Order of shared tiles whose elements matrix instructions read in place: panels of short, swizzled lines.

A line is a row, or a column of a transposed tile. A panel holds `span` bytes of every line, line after line; the next
panel follows. Within a panel the lines' chunks of 16 bytes are swizzled by the address: as many bits as number the
chunks of a line, from bit 4 on, are XORed with the bits from 7 on.
"""

from __future__ import annotations

from convgen.ir.layout.digits import Digit, Digits, Space
from convgen.ir.layout.memory import COL, ROW, Shared, Swizzle
from convgen.ir.types import Type

SPANS = (128, 64, 32)  #: bytes of a line in a panel, the widest first
CHUNK = 16  #: bytes; unit of the swizzle
_ALIKE_AGAIN = 8  #: lines after which the swizzle repeats
_PERMUTED_ALIKE = 128  #: bytes; the swizzle depends on address bits from 7 on


def panel_order(rows: int, cols: int, elem: Type, span: int, *, transposed: bool) -> tuple[Digits, Swizzle]:
    """Return the digits and the swizzle of a tile in panels of `span` bytes of each line."""
    (along, length), (across, lines) = ((ROW, rows), (COL, cols)) if transposed else ((COL, cols), (ROW, rows))
    run = span // elem.bytes
    panel = Digit(along, run, Space.MEMORY, 1), Digit(across, lines, Space.MEMORY, run)
    panels = Digit(along, length // run, Space.MEMORY, run * lines)
    lines_alike = _PERMUTED_ALIKE // span  # neighbouring lines whose addresses have equal bits from 7 on
    swizzle = Swizzle(lines_alike.bit_length() - 1, span // CHUNK - 1)
    return Digits((ROW, COL), (*panel, panels) if panels.size > 1 else panel), swizzle


def panel_unit(tile: Shared) -> int:
    """Return the bytes after which the swizzle of a tile in panels repeats: panels begin at multiples of it."""
    return _ALIKE_AGAIN * span_of(tile)


def span_of(tile: Shared) -> int:
    """Return the bytes of a line in a panel; 0 if the tile is not in panels."""
    span = tile.digits.digits[0].size * tile.elem.bytes
    if span not in SPANS or tile.chunk != CHUNK:
        return 0
    order = panel_order(tile.rows, tile.cols, tile.elem, span, transposed=tile.is_transposed)
    return span if order == (tile.digits, tile.swizzle) else 0
