"""The digit algebra against numpy, for random splits with gaps and replicas.

Numpy numbers the positions of the dimensions, reshapes to one axis a digit, and reads off where each digit goes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir.layout.digits import Digit, Digits, Space, Straddles, stacked
from tests.strategies import FIXED

DIMS = ("i", "j")
SPACES = (Space.MEMORY, Space.LANE, Space.WORKGROUP)
SIZES = (1, 2, 3, 4, 6)


@st.composite
def splits(draw: st.DrawFn, *, gaps: bool = True, spaces: tuple[Space, ...] = SPACES) -> Digits:
    """Digits in any order, whose numbers do not meet; with `gaps` some numbers of a space are no digit's (replicas)."""
    ends = dict.fromkeys(spaces, 1)
    digits = []
    for _ in range(draw(st.integers(0, 6))):
        space, size = draw(st.sampled_from(spaces)), draw(st.sampled_from(SIZES))
        ends[space] *= draw(st.sampled_from((1, 1, 2, 3))) if gaps else 1
        digits.append(Digit(draw(st.sampled_from(DIMS)), size, space, ends[space]))
        ends[space] *= size
    return Digits(DIMS, tuple(draw(st.permutations(digits))))


def positions(split: Digits) -> dict[str, Any]:
    """All coordinates of the tile, one array a dimension."""
    return dict(zip(split.dims, np.indices(split.shape)))


def by_numpy(split: Digits, space: str) -> Any:
    """The number in a space of each position, without a single division: reshape to digits, add up their axes."""
    of_dim = []
    for dim in split.dims:
        digits = split.of(dim)
        number = np.zeros([d.size for d in reversed(digits)], np.int64)
        for axis, d in enumerate(reversed(digits)):
            steps = np.arange(d.size) * (d.stride if d.space == space else 0)
            number += steps.reshape([-1 if n == axis else 1 for n in range(len(digits))])
        of_dim.append(number.reshape(-1))
    return of_dim[0][:, None] + of_dim[1][None, :]


@settings(FIXED, max_examples=200)
@given(splits(), st.sampled_from(SPACES), st.sampled_from((2, 3, 4, 6, 8)))
def test_coordinates_of_multiples_and_remainders_add_up(split: Digits, space: Space, unit: int) -> None:
    numbers = np.arange(2 * split.span(space))
    whole, low, high = (split.coordinates({space: n}) for n in (numbers, numbers % unit, numbers - numbers % unit))
    if split.adds_up(space, unit):
        assert all(np.array_equal(whole[dim], low[dim] + high[dim]) for dim in DIMS)


def test_digits_that_carry_do_not_add_up() -> None:
    carrying = Digits(("i",), (Digit("i", 3, Space.LANE, 4),))
    assert not carrying.adds_up(Space.LANE, 8)
    assert carrying.adds_up(Space.LANE, 4)


@settings(FIXED, max_examples=200)
@given(splits())
def test_places_are_those_of_numpy(split: Digits) -> None:
    place = split.place(positions(split))
    for space in SPACES:
        assert np.array_equal(np.broadcast_to(place.get(space, 0), split.shape), by_numpy(split, space))
        assert split.span(space) == 1 + by_numpy(split, space).max()
        assert split.count(space) == len(np.unique(by_numpy(split, space)))


@settings(FIXED, max_examples=200)
@given(splits())
def test_coordinates_are_the_inverse_of_places(split: Digits) -> None:
    at = positions(split)
    back = split.coordinates(split.place(at))
    assert all(np.array_equal(np.broadcast_to(back[dim], split.shape), at[dim]) for dim in DIMS)


@settings(FIXED, max_examples=200)
@given(splits(), st.data())
def test_numbers_that_no_digit_counts_are_replicas(split: Digits, data: st.DataObject) -> None:
    """Each number of a space holds the coordinates of the first place that has them."""
    space = data.draw(st.sampled_from(SPACES))
    numbers = np.arange(4 * split.span(space))
    coords = split.coordinates({space: numbers})
    first = split.place(coords).get(space, 0) + 0 * numbers
    again = split.coordinates({space: first})
    assert all(np.array_equal(again[dim] + 0 * numbers, coords[dim] + 0 * numbers) for dim in DIMS)
    assert (first <= numbers).all()


@settings(FIXED, max_examples=100)
@given(splits(spaces=(Space.AXIS,), gaps=False), st.integers(1, 5))
def test_overrun_shows_in_the_outermost_digit(split: Digits, times: int) -> None:
    if not split.digits:
        return
    whole = split.span(Space.AXIS)
    step, top = max(reversed(list(split.stepped())), key=lambda item: item[1].stride * item[1].size)
    numbers = np.arange(whole, (times + 1) * whole)
    plain, coords = (split.coordinates({Space.AXIS: numbers}, overrun=overrun) for overrun in (False, True))
    over = {top.dim: numbers // whole * top.size * step}
    assert all(np.array_equal(coords[dim] + 0 * numbers, plain[dim] + over.get(dim, 0 * numbers)) for dim in DIMS)


@settings(FIXED, max_examples=200)
@given(splits(), splits(gaps=False, spaces=(Space.REGISTER, Space.SUBGROUP)))
def test_a_composition_is_one_after_the_other(outer: Digits, inner: Digits) -> None:
    """Memory's numbers are split again: by the composition, or number by number."""
    inner = Digits(("memory",), tuple(Digit("memory", d.size, d.space, d.stride) for d in inner.digits))
    fits = inner.extent("memory") >= outer.span(Space.MEMORY)
    try:
        both = outer.then(inner)
    except Straddles:
        assert not fits or not divides(outer, inner)
        return
    assert fits or outer.count(Space.MEMORY) == 1
    at = positions(outer)
    through = outer.place(at)
    direct, wanted = both.place(at), inner.place({"memory": through.get(Space.MEMORY, 0)})
    for space in (Space.REGISTER, Space.SUBGROUP):
        assert np.array_equal(direct.get(space, 0) + 0 * at["i"], wanted.get(space, 0) + 0 * at["i"])
    for space in (Space.LANE, Space.WORKGROUP):
        assert np.array_equal(direct.get(space, 0) + 0 * at["i"], through.get(space, 0) + 0 * at["i"])


def divides(outer: Digits, inner: Digits) -> bool:
    """Whether the ends of all digits, on both sides, are multiples of one another where digits overlap."""
    for d in (d for d in outer.digits if d.space == Space.MEMORY and d.size > 1):
        low, high = d.stride, d.stride * d.size
        ends = sorted({low, high, *(s * n.size for s, n in inner.stepped() if low < s * n.size < high)})
        begins = [s for s, n in inner.stepped() if n.size > 1 and s <= low < s * n.size]
        if any(b % a for a, b in pairwise(ends)) or any(low % s for s in begins):
            return False
    return True


@settings(FIXED, max_examples=200)
@given(splits(gaps=False))
def test_the_inverse_leads_back(split: Digits) -> None:
    inverse = split.inverse()
    at = positions(split)
    back = inverse.place(split.place(at))
    assert all(np.array_equal(back.get(dim, 0) + 0 * at[dim], at[dim]) for dim in DIMS)
    twice = inverse.inverse()
    assert twice.place(at).keys() <= split.place(at).keys()


def test_gaps_have_no_inverse() -> None:
    for digits in ((Digit("i", 4, Space.LANE, 2),), (Digit("i", 4, Space.LANE, 1), Digit("j", 2, Space.LANE, 2))):
        with pytest.raises(Straddles, match="wanted one digit after the other in lane"):
            Digits(DIMS, digits).inverse()


@settings(FIXED, max_examples=200)
@given(splits())
def test_factors_and_merged_digits_split_alike(split: Digits) -> None:
    for other in (split.factored(Space.LANE), split.merged(*SPACES), split.factored(Space.LANE).merged(*SPACES)):
        assert other.shape == split.shape
        assert all(np.array_equal(by_numpy(other, space), by_numpy(split, space)) for space in SPACES)
    prime = [d.size for d in split.factored(Space.LANE).digits if d.space == Space.LANE]
    assert all(all(size % n for n in range(2, size)) for size in prime)
    fewest = split.merged(*SPACES)
    assert fewest == fewest.merged(*SPACES)
    assert all(d.size > 1 for d in fewest.digits)


@settings(FIXED, max_examples=200)
@given(splits(), st.sampled_from(SPACES))
def test_numbering_anew_keeps_the_order_and_leaves_no_gaps(split: Digits, space: Space) -> None:
    before, after = by_numpy(split, space), by_numpy(split.renumbered(space), space)
    assert np.array_equal(np.unique(after), np.arange(split.count(space)))
    assert np.array_equal(np.argsort(before, axis=None, kind="stable"), np.argsort(after, axis=None, kind="stable"))
    others = [other for other in SPACES if other != space]
    assert all(np.array_equal(by_numpy(split, o), by_numpy(split.renumbered(space), o)) for o in others)


def test_numbering_anew_by_a_key() -> None:
    split = Digits(DIMS, (Digit("i", 2, Space.LANE, 1), Digit("i", 4, Space.LANE, 2), Digit("j", 3, Space.LANE, 8)))
    turned = split.renumbered(Space.LANE, lambda step, d: (d.dim != "j", -step))
    assert str(turned) == "i2l12 i4l3 j3l1"


@settings(FIXED, max_examples=200)
@given(splits(spaces=(Space.MEMORY,)), st.data())
def test_distances(split: Digits, data: st.DataObject) -> None:
    """From the first position to one that a digit, or a part of it, is away."""
    factored = [(step, d) for step, d in split.factored(Space.MEMORY).stepped() if d.size > 1]
    if not factored:
        assert split.distance("i", 1) == 0
        return
    step, d = data.draw(st.sampled_from(factored))
    at = split.place({dim: step if dim == d.dim else 0 for dim in DIMS})
    assert split.distance(d.dim, step) == at[Space.MEMORY] == d.stride
    assert split.distance(d.dim, split.extent(d.dim)) == 0


@settings(FIXED, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(DIMS), st.sampled_from(SIZES), st.integers(1, 9)), max_size=4))
def test_apart(digits: list[tuple[str, int, int]]) -> None:
    """What is said to be apart has no two positions with one number."""
    split = Digits(DIMS, tuple(Digit(dim, size, Space.MEMORY, stride) for dim, size, stride in digits))
    numbers = by_numpy(split, Space.MEMORY)
    if split.overlap(Space.MEMORY) is None:
        assert len(np.unique(numbers)) == numbers.size
    if numbers.size <= 4:
        assert (split.overlap(Space.MEMORY) is None) == (len(np.unique(numbers)) == numbers.size)


def test_names_and_stacks() -> None:
    split = Digits(DIMS, stacked(Space.MEMORY, (("j", 4), ("i", 0), ("i", 2))))
    assert str(split) == "j4m1 i0m4 i2m4"
    assert str(split.renamed({"i": "row"})) == "j4m1 row0m4 row2m4"
    assert split.renamed({"i": "row"}).dims == ("row", "j")


def test_digits_that_are_cut() -> None:
    """A digit of 8 over splits of 2 x 4, of 3 x 4 (which straddles), of 2 x 2 (too short)."""

    def dealt(*sizes: int) -> Digits:
        return Digits(("memory",), stacked(Space.LANE, (("memory", size) for size in sizes)))

    whole = Digits(("i",), (Digit("i", 8, Space.MEMORY, 1),))
    assert str(whole.then(dealt(2, 4))) == "i2l1 i4l2"
    assert str(whole.then(dealt(16))) == "i8l1"
    for sizes in ((3, 4), (2, 2)):
        with pytest.raises(Straddles, match="given the digit i8m1, wanted one that"):
            whole.then(dealt(*sizes))
