"""The ends of what nodes and records take: the least and the most, and one beyond either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from convgen.ir.error import UserError
from convgen.ir.expr import Const
from convgen.ir.layout.digits import Digit, Digits, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import (
    COL,
    ROW,
    Dim,
    Global,
    Rectangle,
    RectangleOrder,
    Shared,
    Swizzle,
    row_major,
)
from convgen.ir.layout.mma import MmaAtom, MmaTile
from convgen.ir.record import evolve
from convgen.ir.types import f16, f32, s32, u8, vector
from tests.strategies import in_memory

_NONE = Fragment(("i", "k"), ())


def atom(**changes: Any) -> MmaAtom:
    return evolve(MmaAtom("mma", 4, 4, 4, f16, f16, f32, _NONE, _NONE, _NONE, 4), **changes)


def tile(**changes: Any) -> MmaTile:
    return evolve(MmaTile(atom(), 1, 1, 1), **changes)


def shared(rows: int = 2, cols: int = 16, slots: int = 1, swizzle: Swizzle | None = None, chunk: int = 16) -> Shared:
    return Shared("t", f16, rows, cols, row_major(rows, cols), slots, swizzle or Swizzle(), chunk)


DOORS: list[tuple[str, Callable[[int], object], int, int]] = [
    ("bytes of a buffer", lambda n: Global("x", u8, n), 0, 1 << 48),
    ("swizzle shift", lambda n: Swizzle(n, 1), -8, 30),
    ("swizzle mask", lambda n: Swizzle(0, n), 0, 0xFFFF),
    ("slots", lambda n: shared(slots=n), 1, 64),
    ("rows of a tile", lambda n: shared(rows=n), 1, 1 << 24),
    ("columns of a tile", lambda n: shared(cols=n), 1, 1 << 24),
    ("chunk", lambda n: shared(chunk=n), 1, 1 << 24),
    ("rows of a rectangle", lambda n: Rectangle(n, 1, RectangleOrder.ROWS), 1, 1 << 12),
    ("columns of a rectangle", lambda n: Rectangle(1, n, RectangleOrder.ROWS), 1, 1 << 12),
    ("rectangles side by side", lambda n: Rectangle(1, 1, RectangleOrder.ROWS, n), 1, 1 << 12),
    ("padded size", lambda n: Dim("d", 0, n), 0, 1 << 48),
    ("size", lambda n: Dim("d", n, 12), 0, 12),
    *((name, lambda n, name=name: atom(**{name: n}), 1, 1 << 10) for name in ("n", "m", "k", "clocks")),
    ("tiles", lambda n: tile(tiles_n=n), 1, 1 << 12),
    ("steps", lambda n: tile(steps=n), 1, 1 << 12),
    ("part", lambda n: tile(parts=3, part=n), 0, 2),
    ("lanes of a vector", lambda n: vector(f32, n), 1, 1 << 16),
    ("stride of a digit", lambda n: Fragment(("i",), (Digit("i", 2, Space.REGISTER, n),)), 1, (1 << 24) - 1),
    ("size of a digit", lambda n: Fragment(("i",), (Digit("i", n, Space.LANE, 1),)), 1, 1 << 24),
    ("fixed part", lambda n: Fragment(("i",), (Digit("i", 5, Space.FIXED, n),)), 0, 4),
]


@pytest.mark.parametrize(("make", "least", "most"), [door[1:] for door in DOORS], ids=[door[0] for door in DOORS])
def test_ends(make: Callable[[int], object], least: int, most: int) -> None:
    make(least)
    make(most)
    for beyond in (least - 1, most + 1):
        with pytest.raises(UserError):
            make(beyond)


def test_numbers_are_integers() -> None:
    for value in (1.5, "1", None):
        with pytest.raises(UserError, match="wanted an integer from 1 to 64"):
            shared(slots=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("digits", "swizzle"),
    [
        (in_memory((COL, 16, 1), (ROW, 2, 8)), Swizzle()),  # rows overlap
        (in_memory((COL, 8, 1), (ROW, 2, 16)), Swizzle()),  # another shape
        (in_memory((COL, 16, 1), (ROW, 2, 16)), Swizzle(0, 4)),  # beyond the two rows of two chunks
        (in_memory((COL, 8, 1), (ROW, 2, 8), (COL, 2, 16)), Swizzle(0, 1)),
    ],
)
def test_tiles_that_do_not_fit_together(digits: Digits, swizzle: Swizzle) -> None:
    with pytest.raises(UserError, match="shared tile t of 2 x 16: digits "):
        Shared("t", f16, 2, 16, digits, 1, swizzle, 16)


def test_tiles_that_do() -> None:
    for digits, swizzle in (
        (in_memory((COL, 16, 1), (ROW, 2, 16)), Swizzle(0, 1)),
        (in_memory((COL, 16, 1), (ROW, 2, 16)), Swizzle(0, 2)),
        (in_memory((COL, 16, 1), (ROW, 2, 24)), Swizzle()),
        (in_memory((COL, 8, 1), (ROW, 2, 8), (COL, 2, 16)), Swizzle()),
        (in_memory((ROW, 2, 1), (COL, 16, 2)), Swizzle()),
    ):
        Shared("t", f16, 2, 16, digits, 1, swizzle, 16)


def test_constants_are_bits_of_their_type() -> None:
    for value in (-(1 << 31), (1 << 31) - 1):
        assert Const(s32, value).bits == value
