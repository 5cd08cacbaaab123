"""Words that say at which taps a coordinate is outside: against the coordinates themselves."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from convgen.ir.evaluate import Evaluator, Value
from convgen.ir.expr import Cast, var
from convgen.ir.mutate import postorder
from convgen.ir.simplify.simplify import simplify
from convgen.ir.types import s32
from convgen.passes.messages.masks import outside


@st.composite
def windows(draw: st.DrawFn) -> tuple[int, int, int, int, int, int]:
    """Least and greatest coordinate of the first tap, step, taps, size, and places that are asked for."""
    taps, size = draw(st.integers(1, 31)), draw(st.integers(1, 80))
    low = draw(st.integers(-40, 12))
    high = low + draw(st.integers(0, 120))
    return low, high, draw(st.integers(1, 3)), taps, size, draw(st.integers(taps, 31))


@given(windows())
@example((-1, 54, 1, 3, 56, 3))  # a layer of ResNet-50
@example((-1, 12, 1, 3, 14, 3))  # all coordinates in one word
@example((-1, 53, 1, 3, 56, 3))  # with a stride of two nothing leaves at the end
@example((0, 60, 1, 5, 56, 5))  # nothing leaves at the begin
@example((5, 60, 1, 3, 80, 3))  # all taps are inside
@example((5, 90, 1, 3, 80, 3))  # away from the begin
@example((-3, 30, 1, 7, 4, 9))  # more taps than there are coordinates, and places than taps
def test_the_word_says_where_taps_are_outside(window: tuple[int, int, int, int, int, int]) -> None:
    low, high, step, taps, size, places = window
    origin = var("origin", s32)
    word = outside(origin, low, high, step, taps, size, places)
    origins = np.arange(low, high + 1)
    wanted = [[t >= taps or not 0 <= at + step * t < size for t in range(places)] for at in origins]
    for e in (word, simplify(word, {origin: (low, high)})):
        evaluate = Evaluator(len(origins))
        evaluate.env[origin] = Value(origins.astype(np.int32))
        found = np.broadcast_to(evaluate(e).data.ravel(), len(origins)).astype(np.uint32)
        bits = found[:, None] >> (31 - np.arange(places)).astype(np.uint32) & 1
        assert np.array_equal(bits, np.array(wanted)), window


def operations(*window: int) -> int:
    """Of a word, as it is computed; conversions cost nothing."""
    origin = var("origin", s32)
    made = simplify(outside(origin, *window), {origin: (window[0], window[1])})
    return sum(bool(node.child_fields) and not isinstance(node, Cast) for node in postorder(made))


def test_words_of_images_are_cheap() -> None:
    """A shift by a sum where a word holds all coordinates; else three operations more, or one if one end is far."""
    assert operations(-1, 12, 1, 3, 14, 3) == 2
    assert operations(-1, 54, 1, 3, 56, 3) == 5
    assert operations(-1, 53, 1, 3, 56, 3) == 3
    assert operations(0, 60, 1, 5, 56, 5) == 3
