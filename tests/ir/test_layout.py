"""Layouts against numpy: offsets are what transposing, padding and reshaping give."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convgen.ir.caret import PointedError
from convgen.ir.error import UserError
from convgen.ir.layout.tags import Layout


def offsets(layout: Layout) -> np.ndarray:
    """The offset of every element, as an array of the layout's logical shape."""
    grid = np.indices(layout.dims)
    return np.broadcast_to(np.asarray(layout.offset(list(grid))), layout.dims)


def by_numpy(dims: tuple[int, ...], order: tuple[int, ...], inner: list[tuple[int, int]]) -> np.ndarray:
    """Offsets of a blocked layout by numpy alone: number the memory, then undo its transposition."""
    split = [[size for dim, size in inner if dim == d] for d in range(len(dims))]
    outer = [-(-dims[d] // prod(split[d])) for d in range(len(dims))]
    memory = np.arange(prod(outer) * prod(size for _, size in inner))
    memory = memory.reshape([outer[d] for d in order] + [size for _, size in inner])
    place: dict[tuple[object, ...], int] = {("outer", d): axis for axis, d in enumerate(order)}
    for axis, (d, _) in enumerate(inner, start=len(order)):
        place["inner", d, sum(key[:2] == ("inner", d) for key in place)] = axis
    axes = [
        axis
        for d in range(len(dims))
        for axis in [place["outer", d]] + [place["inner", d, n] for n in range(len(split[d]))]
    ]
    padded = memory.transpose(axes).reshape([outer[d] * prod(split[d]) for d in range(len(dims))])
    return padded[tuple(slice(0, size) for size in dims)]


@st.composite
def tagged(draw: st.DrawFn) -> tuple[str, tuple[int, ...], tuple[int, ...], list[tuple[int, int]]]:
    """A random tag, its tensor, and what it means: the outer order and the inner blocks."""
    ndims = draw(st.integers(1, 4))
    dims = tuple(draw(st.integers(1, 7)) for _ in range(ndims))
    order = tuple(draw(st.permutations(range(ndims))))
    inner = draw(st.lists(st.tuples(st.integers(0, ndims - 1), st.integers(1, 4)), max_size=3))
    blocked = [dim for dim, _ in inner]
    tag = "".join("abcd"[d].upper() if d in blocked else "abcd"[d] for d in order)
    tag += "".join(f"{size}{'abcd'[d]}" for d, size in inner)
    return tag, dims, order, inner


@given(tagged())
def test_offsets_equal_numpy(case: tuple[str, tuple[int, ...], tuple[int, ...], list[tuple[int, int]]]) -> None:
    tag, dims, order, inner = case
    layout = Layout.from_tag(tag, dims)
    expected = by_numpy(dims, order, inner)
    assert np.array_equal(offsets(layout), expected)
    assert len(np.unique(expected)) == prod(dims)
    assert layout.size_elems == prod(layout.padded_dims) > expected.max()
    assert layout.is_apart
    assert layout.tag == tag
    assert all(layout.offset(index) == expected[index] for index in itertools.islice(np.ndindex(*dims), 20))


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 100)), min_size=1, max_size=4))
def test_strided_equals_numpy_strides(axes: list[tuple[int, int]]) -> None:
    dims, strides = zip(*axes)
    layout = Layout.strided(dims, strides)
    view = np.lib.stride_tricks.as_strided(np.arange(2000), dims, [8 * s for s in strides])
    assert np.array_equal(offsets(layout), view)
    assert layout.is_plain
    assert layout.strides() == strides
    assert layout.size_elems == view.max() + 1
    assert np.array_equal(offsets(Layout.from_tag(layout.tag, dims)), view)


ALIASES = [
    ("nchw", 4, "abcd"),
    ("nhwc", 4, "acdb"),
    ("chwn", 4, "bcda"),
    ("ncw", 3, "abc"),
    ("nwc", 3, "acb"),
    ("ncdhw", 5, "abcde"),
    ("ndhwc", 5, "acdeb"),
    ("nChw16c", 4, "aBcd16b"),
    ("NChw16n16c", 4, "ABcd16a16b"),
    ("oihw", 4, "abcd"),
    ("hwio", 4, "cdba"),
    ("ohwi", 4, "acdb"),
    ("OIhw4i16o4i", 4, "ABcd4b16a4b"),
    ("goihw", 5, "abcde"),
    ("hwigo", 5, "decab"),
    ("goiw", 4, "abcd"),
    ("gOIdhw8i8o", 6, "aBCdef8c8b"),
    ("axb", 3, "acb"),
    ("axb", 4, "acdb"),
    ("axb", 5, "acdeb"),
    ("axb", 2, "ab"),
    ("abx", 4, "abcd"),
    ("abx", 2, "ab"),
    ("xba", 4, "cdba"),
    ("abxc", 5, "abdec"),
    ("abxc", 2, "ab"),
    ("ABx16a16b", 5, "ABcde16a16b"),
    ("x", 1, "a"),
]


@pytest.mark.parametrize(("tag", "ndims", "letters"), ALIASES)
def test_names_and_meta_tags(tag: str, ndims: int, letters: str) -> None:
    dims = (6, 5, 4, 3, 2, 2)[:ndims]
    assert Layout.from_tag(tag, dims) == Layout.from_tag(letters, dims)
    assert Layout.from_tag(tag, dims).tag == letters


MALFORMED = [
    ("", 4, 0),
    ("abc", 4, 3),
    ("abcc", 4, 3),
    ("abce", 4, 3),
    ("abc!", 4, 3),
    ("ab d", 4, 2),
    ("aBcd", 4, 1),
    ("abcd16b", 4, 6),
    ("aBcd16", 4, 4),
    ("aBcd16B", 4, 6),
    ("aBcd0b", 4, 4),
    ("aB16bcd", 4, 5),
    ("axbx", 4, 3),
    ("a16xb", 4, 3),
    ("nchw", 5, 3 + 1),
    ("ncdhw", 4, 2),
    ("nhwq", 4, 3),
    ("nc", 6, 0),
    ("abé", 3, 2),
    ("ab²", 3, 2),
    ("Ab1234567890a", 2, 2),
]


@pytest.mark.parametrize(("tag", "ndims", "column"), MALFORMED)
def test_errors_point_at_the_character(tag: str, ndims: int, column: int) -> None:
    with pytest.raises(PointedError) as caught:
        Layout.from_tag(tag, (2,) * ndims)
    assert caught.value.column == column
    assert "\n" not in str(caught.value)
    text, caret = caught.value.excerpt.splitlines()
    assert text == f"  {tag}"
    assert caret.index("^") == column + 2


def test_strides_must_match_the_dimensions() -> None:
    with pytest.raises(UserError, match="2 strides 4x1, wanted 3"):
        Layout.from_tag("4x1", (2, 2, 2))


def test_gaps_overlaps_and_emptiness() -> None:
    assert Layout.strided((4, 4), (5, 1)).is_apart
    assert not Layout.strided((4, 4), (1, 1)).is_apart
    assert Layout.strided((4, 4), (5, 1)).size_elems == 19
    assert Layout.from_tag("acdb", (0, 8, 4, 4)).size_elems == 0
    assert Layout.from_tag("aBcd16b", (1, 17, 2, 2)).size_elems == 128


def test_blocked_layouts_have_no_strides() -> None:
    with pytest.raises(UserError, match="aBcd16b"):
        Layout.from_tag("aBcd16b", (1, 32, 2, 2)).strides()


class Symbol:
    """A stand-in for an IR expression: it writes down what is asked of it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __add__(self, other: Symbol) -> Symbol:
        return Symbol(f"({self.text} + {other.text})")

    def __mul__(self, factor: int) -> Symbol:
        return Symbol(f"{self.text}*{factor}")

    def __floordiv__(self, divisor: int) -> Symbol:
        return Symbol(f"{self.text}//{divisor}")

    def __mod__(self, divisor: int) -> Symbol:
        return Symbol(f"{self.text}%{divisor}")


@pytest.mark.parametrize(
    ("tag", "dims", "text"),
    [
        ("acdb", (2, 64, 3, 5), "(n*960 + (h*320 + (w*64 + c)))"),
        ("acdb", (1, 64, 1, 1), "c"),
        ("aBcd16b", (1, 16, 3, 5), "(h*80 + (w*16 + c))"),
        ("aBcd16b", (1, 32, 3, 5), "(c//16*240 + (h*80 + (w*16 + c%16)))"),
        ("aBcd4b2b", (1, 16, 1, 1), "(c//8*8 + (c//2%4*2 + c%2))"),
    ],
)
def test_offset_of_expressions_is_lean(tag: str, dims: tuple[int, ...], text: str) -> None:
    total = Layout.from_tag(tag, dims).offset([Symbol(name) for name in "nchw"])
    assert isinstance(total, Symbol)
    assert total.text == text


def test_of_equal_strides_the_later_dimension_is_the_inner_one() -> None:
    """As in a plain tag, so that a dimension of one position does not turn the order round."""
    assert [block.dim for block in Layout.strided((1, 1, 4), (4, 4, 1)).blocks] == ["c", "b", "a"]
